r"""ROLL's dumps: ``rollout_dump_data.step_{N}.jsonl`` and the pickles of ``rollout_mock``.

Read in ROLL at commit 8eb27cc. ``rollout_dump_dir=/abs/path`` writes text, each file one line, a dict of lists: ``prompt``,
``responses``, ``scores`` and what the dataset holds (``roll/pipeline/rlvr/utils.py``). The agentic pipelines write the same
file with other columns: ``messages`` and ``trajectory_data``, both JSON in text.

``rollout_mock: {enable: true, mode: dump, dump_dir: …}`` writes ``train/step_{N:06d}.pkl`` and ``val/…``: a pickle of ROLL's
``DataProto``, as it came from the rollout. Prompt and response lie in one row ``[T]``, padded on the right; tool turns lie
between model turns and ``response_mask`` tells them apart. A log-probability of token t stands at place t − 1, since these
columns are ``[T − 1]``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from credit_inspector.errors import FormatError
from credit_inspector.pickles import Stub, load_pickle, stub
from credit_inspector.rollout import Problem, Run, Step
from credit_inspector.trainers import ReadOptions, reader
from credit_inspector.trainers._joined import split
from credit_inspector.trainers._padded import drop_fill_columns, places, without_fill
from credit_inspector.trainers._rollouts import FIELDS, Columns, no_step, own_columns, read_step
from credit_inspector.trainers._rows import Item, JsonLines, Row, first_rows
from credit_inspector.trainers._tensordicts import Budget, at, columns, load, plain
from credit_inspector.trainers._values import text

_TEXT_FILE = re.compile(r"rollout_dump_data\.step_(\d{1,11})\.jsonl")
_PICKLE_FILE = re.compile(r"step_(\d{6,11})\.pkl")
_HEAD = 256
_DATA_PROTO = "roll.distributed.scheduler.protocol.DataProto"
_INERT = (_DATA_PROTO, "_io.BytesIO", "torch._utils._rebuild_tensor_v2", "torch.storage._load_from_bytes")
_ALLOWED: Mapping[str, Any] = {name: stub(name) for name in _INERT}


@reader("roll")
def open_roll(path: Path, options: ReadOptions) -> Run | None:
    """Open a dump folder of either kind, its ``train`` or ``val``, or one file.

    Raises:
        FormatError: none of the files can be read.
        UsageError: on reading a step that is not there.
    """
    if pickles := _pickles(path):
        return _pickle_run(path, pickles)
    texts = _texts(path)
    return _text_run(path, texts) if texts else None


# ── pickles ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_TOKEN_COLUMNS = {
    "logprob/rollout": "infer_logprobs",
    "logprob/old": "old_log_probs",
    "logprob/ref": "ref_log_probs",
    "value/old": "values",
    "reward/token": "token_level_rewards",
    "reward/token_score": "scores",
    "advantage": "advantages",
}
"""Our names → ROLL's, ``[B, T]`` or ``[B, T − 1]``."""
_TAKEN = frozenset(
    {*_TOKEN_COLUMNS.values(), "input_ids", "attention_mask", "position_ids", "response_mask", "prompt_mask"}
    | {"prompts", "responses", "traj_group_id", "traj_id", "rollout_id", "prompt", "multi_modal_inputs", "multi_modal_data"}
)
_COLUMNS = own_columns(*_TOKEN_COLUMNS)


@dataclass(slots=True)
class _Batch:
    tensors: dict[str, Any]
    objects: Mapping[str, Any]

    @property
    def rows(self) -> int:
        """How many responses it holds."""
        ids = self.tensors.get("input_ids")
        return len(ids) if isinstance(ids, np.ndarray) and ids.ndim == 2 else 0

    def get(self, name: str, row: int) -> Any:
        """A row's value; ``None`` where there is none."""
        return at(self.tensors.get(name, self.objects.get(name)), row)


def _pickles(path: Path) -> dict[int, Path]:
    """The batches by step, ascending: of the training where there are any."""
    if path.is_file():
        named = _PICKLE_FILE.fullmatch(path.name)
        return {int(named[1]) if named else 0: path} if path.suffix == ".pkl" and _is_batch(path) else {}
    for folder in (path / "train", path, path / "val") if path.is_dir() else ():
        named_files = ((_PICKLE_FILE.fullmatch(file.name), file) for file in folder.glob("step_*.pkl"))
        found = {int(named[1]): file for named, file in named_files if named and file.is_file()}
        if found and any(map(_is_batch, found.values())):
            return dict(sorted(found.items()))
    return {}


def _is_batch(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(_HEAD)
    return b"roll.distributed.scheduler.protocol" in head


def _pickle_run(path: Path, files: Mapping[int, Path]) -> Run:
    first = _first(files.values())
    known = "ROLL's traj_group_id" if "traj_group_id" in first.objects else "equal prompts: the batch holds no group id"
    notes = [
        f"groups are by {known}",
        "reward is the sum of ROLL's scores of the row",
        "no advantages are in the batch: it was saved after the rollout",
    ]
    if "advantages" in first.tensors:
        notes.pop()
    if next(iter(files.values())).parent.name == "val":
        notes.append("these are validation rollouts: no training batch is here")
    return Run(
        path=path,
        trainer="roll",
        steps=tuple(files),
        read=partial(_read_pickle, files),
        columns=tuple(name for name, source in _TOKEN_COLUMNS.items() if _is_per_token(first, source)),
        notes=tuple(notes),
    )


def _is_per_token(batch: _Batch, source: str) -> bool:
    column = batch.tensors.get(source)
    return isinstance(column, np.ndarray) and column.ndim == 2


def _first(files: Iterable[Path]) -> _Batch:
    errors = []
    for file in files:
        try:
            return _load(file)
        except FormatError as error:
            errors.append(error)
    raise errors[0]


def _load(file: Path) -> _Batch:
    """Read one batch.

    Raises:
        FormatError: it cannot be read, asks for more than data, or holds no sequences.
    """
    found = load_pickle(file, allow=_ALLOWED)
    state = getattr(found, "state", None) if isinstance(found, Stub) and found.name == _DATA_PROTO else None
    if not isinstance(state, tuple) or len(state) != 4:
        raise FormatError(f"{file} is a pickle of something else", wanted="ROLL's DataProto")
    held = getattr(state[0], "state", None) if isinstance(state[0], Stub) else None
    raw = held[0] if isinstance(held, tuple) and held else None
    if not isinstance(raw, bytes):
        raise FormatError(f"{file} holds no tensors", wanted="ROLL's DataProto")
    budget = Budget(file.stat().st_size)
    batch = _Batch(columns(load(raw), budget), state[1] if isinstance(state[1], Mapping) else {})
    if not batch.rows:
        raise FormatError(f"{file} holds no sequences", wanted="a batch after its rollout")
    return batch


def _read_pickle(files: Mapping[int, Path], step: int) -> Step:
    if step not in files:
        raise no_step(step, files)
    batch = _load(files[step])
    with np.errstate(all="ignore"):  # damaged numbers
        rows = [_row(batch, row) for row in range(batch.rows)]
    items: list[Row | Problem] = list(drop_fill_columns([values for values, _ in rows]))
    for number, (values, wrong) in enumerate(rows, 1):
        items += [Row(number, values, tuple(wrong))] if values else wrong
    return read_step(step, items, _COLUMNS)


def _row(batch: _Batch, row: int) -> tuple[dict[str, Any], list[Problem]]:
    """One response under this project's names."""
    name = next((each for key in ("traj_id", "rollout_id") if isinstance(each := batch.get(key, row), str)), None)
    where = name or str(row)
    ids = batch.get("input_ids", row)
    attended = places(batch.get("attention_mask", row), len(ids))
    if attended is None or not attended.any():
        return {}, [Problem("no-mask", "no attention mask that fits, or none of its tokens is real, left out", where)]
    mask, begin = _response(batch, row, attended)
    held = {ours: _aligned(batch.get(source, row), len(ids), attended) for ours, source in _TOKEN_COLUMNS.items()}
    values, problems = split(ids[attended], mask, held, begin=begin, where=where)
    trained = values.get("loss_mask")
    if trained is not None:
        values |= {key: without_fill(key, values[key], trained) for key in _TOKEN_COLUMNS if key in values}
    group, prompt = batch.get("traj_group_id", row), batch.get("prompt", row)
    values |= {"sample_id": name, "group_id": group if isinstance(group, str) else None}
    values |= {"prompt": prompt if isinstance(prompt, str) else None, **_reward(batch, row)}
    return values | _rest(batch, row), problems


def _response(batch: _Batch, row: int, attended: Any) -> tuple[Any, int | None]:
    """The mask of trained tokens, and where the response begins if none is trained: after the prompt's mask."""
    mask = places(batch.get("response_mask", row), len(attended))
    prompt = places(batch.get("prompt_mask", row), len(attended))
    if mask is None:
        begin = None if prompt is None else int(prompt[attended].sum())
        return np.zeros(int(attended.sum()), np.bool_), begin
    return mask[attended], None if mask.any() or prompt is None else int(prompt[attended].sum())


def _aligned(value: Any, length: int, attended: Any) -> Any:
    """A column at the places of its tokens: one of ``T − 1`` values begins with the second token's."""
    if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.kind not in "fiub":
        return None
    if len(value) == length - 1:
        value = np.concatenate([[np.nan], value.astype(np.float64)])
    return value[attended] if len(value) == length else None


def _reward(batch: _Batch, row: int) -> dict[str, Any]:
    """The row's score: one number, or one a token, of which the last holds it."""
    scores = batch.get("scores", row)
    if not isinstance(scores, np.ndarray | np.generic) or scores.dtype.kind not in "fiub":
        return {}
    return {"reward": float(np.asarray(scores, np.float64).sum())}


def _rest(batch: _Batch, row: int) -> dict[str, Any]:
    names = [name for name in batch.objects if isinstance(name, str) and name not in _TAKEN]
    found = {name: plain(batch.get(name, row)) for name in names}
    numbers = {name: batch.get(name, row) for name in batch.tensors if name not in _TAKEN}
    found |= {name: value.item() for name, value in numbers.items() if isinstance(value, np.generic)}
    return {(f"roll_{name}" if name in FIELDS or name in _TOKEN_COLUMNS else name): value for name, value in found.items()}


# ── text ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_TEXT_KEYS = frozenset({"global_step", "responses", "scores"})
_TRAJECTORY_KEYS = frozenset({"global_step", "messages", "trajectory_data"})
_TEXT_COLUMNS = Columns(
    mapping={name: name for name in ("sample_id", "group_id", "prompt", "response", "reward", "truncated")}, numpy_text=False
)


def _texts(path: Path) -> dict[int, Path]:
    """The text files by step, ascending."""
    if path.is_file():
        named = _TEXT_FILE.fullmatch(path.name)
        return {int(named[1]) if named else 0: path} if path.suffix == ".jsonl" and _is_text(path) else {}
    named_files = ((_TEXT_FILE.fullmatch(file.name), file) for file in path.glob("rollout_dump_data.*")) if path.is_dir() else ()
    found = {int(named[1]): file for named, file in named_files if named and file.is_file()}
    return dict(sorted(found.items())) if any(map(_is_text, found.values())) else {}


def _is_text(path: Path) -> bool:
    rows = first_rows(path, 1)
    row = rows[0] if rows else {}
    return any(row.keys() >= keys and all(isinstance(row[key], list) for key in keys) for keys in (_TEXT_KEYS, _TRAJECTORY_KEYS))


def _text_run(path: Path, files: Mapping[int, Path]) -> Run:
    row = next((rows[0] for file in files.values() if (rows := first_rows(file, 1))), {})
    if "responses" in row:
        notes = ("groups are by ROLL's id of the prompt where it is there, else equal prompts", "reward is ROLL's score")
    else:
        notes = ("groups are by the environment's group, episode and seed", "reward is the episode's")
    return Run(path=path, trainer="roll", steps=tuple(files), read=partial(_read_text, files), notes=notes)


def _read_text(files: Mapping[int, Path], step: int) -> Step:
    if step not in files:
        raise no_step(step, files)
    return read_step(step, _text_rows(JsonLines(files[step])), _TEXT_COLUMNS)


def _text_rows(table: JsonLines) -> Iterator[Item]:
    for item in table.scan():
        if isinstance(item, Row):
            yield from item.problems
            yield from _unfolded(item)
        else:
            yield item


def _unfolded(item: Row) -> Iterator[Item]:
    """A dict of lists → its rows; a list of another length is left out, since which rows it belongs to is not known."""
    lists = {key: value for key, value in item.values.items() if isinstance(value, list)}
    leading = "responses" if "responses" in lists else "messages"
    count = len(lists.get(leading, ()))
    for key, value in lists.items():
        if len(value) != count:
            yield Problem("unequal-lists", f"{count} {leading}, {len(value)} values of {key}", f"line {item.number}")
    fit = {key: value for key, value in lists.items() if len(value) == count}
    groups = _groups(fit)
    for place in range(count):
        raw = {key: value[place] for key, value in fit.items()}
        values = _answer(raw, groups) if leading == "responses" else _trajectory(raw)
        yield Row(place + 1, values)


def _groups(lists: Mapping[str, list[Any]]) -> bool:
    """Whether ``id`` names prompts: each id stands for one prompt only."""
    ids, prompts = lists.get("id"), lists.get("prompt")
    if ids is None or any(not isinstance(each, str | int) or each == "" for each in ids):
        return False
    if prompts is None:
        return True
    pairs = {(str(one), str(text(prompt))) for one, prompt in zip(ids, prompts, strict=True)}
    return len({one for one, _ in pairs}) == len(pairs)


def _answer(raw: Mapping[str, Any], groups: bool) -> dict[str, Any]:
    rest = {key: value for key, value in raw.items() if key not in ("responses", "scores", "prompt")}
    prompt = raw.get("prompt")
    if prompt is None:
        prompt = _json(raw.get("messages"))
    return {
        **{(f"roll_{key}" if key in FIELDS else key): value for key, value in rest.items()},
        "prompt": prompt,
        "response": raw.get("responses"),
        "reward": raw.get("scores"),
        "group_id": str(raw.get("id")) if groups else None,
    }


def _trajectory(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the agentic pipelines: the first answer of the model begins the response."""
    chat, data = _json(raw.get("messages")), _json(raw.get("trajectory_data"))
    data = data if isinstance(data, Mapping) else {}
    turns = chat if isinstance(chat, list) else []
    roles = [turn.get("role") if isinstance(turn, Mapping) else None for turn in turns]
    first = roles.index("assistant") if "assistant" in roles else len(turns)
    environment, rewards = _inner(data, "env_info"), _inner(data, "reward_info")
    parts = [environment.get(key) for key in ("tag", "group_id", "episode_id", "seed")]
    reward = rewards.get("episode_reward")
    rest = {key: value for key, value in raw.items() if key not in ("messages", "trajectory_data")}
    return {
        **{(f"roll_{key}" if key in FIELDS else key): value for key, value in rest.items()},
        "prompt": turns[:first] or None,
        "response": turns[first:] or None,
        "reward": reward,
        "sample_id": data.get("trajectory_id") if isinstance(data.get("trajectory_id"), str) else None,
        "group_id": "_".join(map(str, parts)) if any(part is not None for part in parts) else None,
        "truncated": _inner(data, "length_info").get("truncated"),
        "trajectory": dict(data),
    }


def _inner(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = values.get(name)
    return found if isinstance(found, Mapping) else {}


def _json(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
