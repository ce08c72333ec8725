"""ART's (OpenPipe) trajectories: ``.art/{project}/models/{model}/trajectories/{split}/{step:04d}.parquet``.

``write_trajectory_groups_parquet`` (openpipe-art 0.5.18, called by ``Model.log``, always on) writes a row a trajectory:
``group_index``, ``group_metadata``, ``group_metrics``, ``group_logs``, ``reward``, ``metrics``, ``metadata``, ``tools`` (JSON in
text), ``logs`` and ``messages``, a list of ``role, content, tool_calls, tool_call_id, trainable``. Before that,
``{step:04d}.jsonl`` held a line a group (``trajectories`` with ``messages_and_choices``), which ``trajectory_migration`` turns
into the former. Token ids and log-probs are written by neither, additional histories only by the older one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from credit_inspector.errors import FormatError
from credit_inspector.rollout import CheckpointAt, Problem, Run, Step
from credit_inspector.tokens import has_tokenizer
from credit_inspector.trainers import ReadOptions, reader
from credit_inspector.trainers._chats import made, parted
from credit_inspector.trainers._rollouts import Columns, no_step, read_step
from credit_inspector.trainers._rows import Item, JsonLines, ParquetFile, Row, first_rows, open_parquet
from credit_inspector.trainers._values import as_mapping

_NAMES = {"group_index", "reward", "messages", "metrics", "metadata"}
_PARTS = {"role", "content", "trainable"}
_TRIED = 3
"""Files of a folder that are looked into, so that a torn one does not hide the others."""
_JSON = ("group_metadata", "group_metrics", "metrics", "metadata", "tools")
_COLUMNS = Columns(
    mapping={
        "group_id": "group_index",
        "prompt": "chat_prompt",
        "response": "chat_response",
        "reward": "reward",
        "truncated": "chat_ended",
    },
    numpy_text=False,
)


@reader("art")
def open_art(path: Path, options: ReadOptions) -> Run | None:
    """Open a model's folder, the project's where it has one model, ``trajectories``, a split or one file.

    Raises:
        FormatError: a project of several models.
        UsageError: on reading a step that is not there.
    """
    if path.is_file():
        return _run(path, {_step_of(path): path}, ()) if _is_art(path) else None
    home = _home(path)
    splits = {} if home is None else _splits(home)
    if home is None or not splits:
        return None
    split = next((name for name in ("train", "val") if name in splits), min(splits))
    others = [name for name in splits if name != split]
    notes = [f"split {split} is read" + (f", not {', '.join(others)}" if others else "")]
    if split != "train":
        notes.append(f"there is no train split: {split} is what an evaluation sampled, and nothing was trained on it")
    return _run(path, splits[split], notes, home.parent)


def _run(path: Path, files: Mapping[int, Path], notes: Iterable[str], model: Path | None = None) -> Run:
    checkpoints = () if model is None else _checkpoints(model)
    return Run(
        path=path,
        trainer="art",
        steps=tuple(sorted(files)),
        read=partial(_read, files),
        checkpoints=checkpoints,
        tokenizer=next((one.path for one in reversed(checkpoints) if has_tokenizer(one.path)), None),
        notes=(
            *notes,
            "groups are by ART's group_index; reward is the trajectory's, its metrics are no part of it",
            "the response begins at the first message that is trainable; no token ids or log-probs are written",
        ),
    )


# ── which files ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _home(path: Path) -> Path | None:
    """The ``trajectories`` folder; a split's own folder stands for one."""
    if not path.is_dir():
        return None
    if (path / "trajectories").is_dir():
        return path / "trajectories"
    models = sorted(path.glob("models/*/trajectories")) or sorted(path.glob("*/models/*/trajectories"))
    models = [one for one in models if _splits(one)]
    if len(models) > 1:
        names = ", ".join(one.parent.name for one in models[:6])
        raise FormatError(f"{path} holds {len(models)} of ART's models: {names}", wanted="one", do="open one of them")
    return models[0] if models else path


def _splits(home: Path) -> dict[str, dict[int, Path]]:
    """Files by step of each split in a folder of splits, or of the one split that the folder is."""
    if own := _files(home):
        return {home.name: own}
    inside = sorted(home.iterdir()) if home.is_dir() else []
    return {folder.name: files for folder in inside if folder.is_dir() and (files := _files(folder))}


def _files(folder: Path) -> dict[int, Path]:
    """A split's files; a step in both formats was migrated and is read from the newer."""
    found: dict[int, Path] = {}
    for suffix in (".jsonl", ".parquet"):
        found |= {int(file.stem): file for file in folder.glob(f"*{suffix}") if file.stem.isdecimal() and file.stem.isascii()}
    sorted_files = dict(sorted(found.items()))
    return sorted_files if any(map(_is_art, islice(sorted_files.values(), _TRIED))) else {}


def _step_of(file: Path) -> int:
    return int(file.stem) if file.stem.isdecimal() and file.stem.isascii() else 0


def _is_art(file: Path) -> bool:
    if file.suffix == ".parquet":
        return _is_arts_schema(file)
    rows = first_rows(file, 2) if file.suffix == ".jsonl" else []
    return bool(rows) and all(map(_is_group, rows))


def _is_arts_schema(file: Path) -> bool:
    try:
        with open_parquet(file) as opened:
            schema = opened.schema_arrow
    except FormatError:
        return False
    if not set(schema.names) >= _NAMES:
        return False
    kind = schema.field("messages").type
    part = kind.value_type if pa.types.is_list(kind) or pa.types.is_large_list(kind) else None
    return part is not None and pa.types.is_struct(part) and {field.name for field in part} >= _PARTS


def _is_group(row: Mapping[str, Any]) -> bool:
    inside = row.get("trajectories")
    return isinstance(inside, list) and all(isinstance(one, Mapping) and "messages_and_choices" in one for one in inside)


def _checkpoints(model: Path) -> tuple[CheckpointAt, ...]:
    folder = model / "checkpoints"
    inside = folder.iterdir() if folder.is_dir() else ()
    named = {place for place in inside if place.is_dir() and place.name.isdecimal() and place.name.isascii()}
    return tuple(CheckpointAt(int(place.name), place) for place in sorted(named, key=lambda place: int(place.name)))


# ── one step ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _read(files: Mapping[int, Path], step: int) -> Step:
    if step not in files:
        raise no_step(step, files)
    file = files[step]
    rows = ParquetFile(file).scan() if file.suffix == ".parquet" else _unfolded(JsonLines(file).scan())
    items = (made(partial(_row, item), "a row") for item in rows)
    return read_step(step, chain.from_iterable(items), _COLUMNS)


def _unfolded(items: Iterable[Item]) -> Iterator[Item]:
    """The older files' groups → a row a trajectory, as ``migrate_jsonl_to_parquet`` has them."""
    index = 0
    for item in items:
        if isinstance(item, Problem):
            yield item
        elif not _is_group(item.values):
            yield Problem("bad-line", f"line {item.number} is no group of trajectories, skipped")
        else:
            shared = {key: value for key, value in item.values.items() if key != "trajectories"}
            for place, one in enumerate(item.values["trajectories"]):
                own = {key: value for key, value in one.items() if key != "messages_and_choices"}
                messages = _flattened(one["messages_and_choices"])
                values = shared | own | {"group_index": index, "messages": messages}
                yield Row(item.number, values, item.problems if place == 0 else (), item.place)
            index += 1


def _flattened(messages: Any) -> list[dict[str, Any]]:
    """Choices of the API (which the policy sampled) and plain messages (which it did not) → messages."""
    found = []
    for one in messages if isinstance(messages, list) else []:
        if not isinstance(one, Mapping):
            continue
        inner = one.get("message") if "finish_reason" in one or "message" in one else None
        message = dict(inner) if isinstance(inner, Mapping) else dict(one)
        rest = {"finish_reason": one.get("finish_reason")} if isinstance(inner, Mapping) else {}
        found.append(message | rest | {"trainable": isinstance(inner, Mapping)})
    return found


def _row(item: Item) -> Iterator[Item]:
    if isinstance(item, Problem):
        yield item
        return
    values = {key: _plain(value) if key in _JSON else value for key, value in item.values.items()}
    raw = values.pop("messages", None)
    messages = [one for one in raw if isinstance(one, Mapping)] if isinstance(raw, list) else []
    trained = any(one.get("trainable") for one in messages)
    chat = parted(messages, own=_is_trainable) if trained else parted(messages)
    ended = next((one.get("finish_reason") for one in reversed(messages) if _is_trainable(one)), None)
    values |= {"chat_prompt": chat["prompt"], "chat_response": chat["response"], "chat_ended": ended, "messages": messages}
    problems = item.problems
    if not trained:
        said = f"row {item.number}: no message is trainable, the response is taken to begin at the first assistant's"
        problems = (*problems, Problem("nothing-trained", said))
    yield Row(item.number, values, problems, item.place)


def _is_trainable(message: Mapping[str, Any]) -> bool:
    return bool(message.get("trainable"))


def _plain(value: Any) -> Any:
    """What JSON in text stands for; what is none stays as it was."""
    found = as_mapping(value)
    return value if found is None else found
