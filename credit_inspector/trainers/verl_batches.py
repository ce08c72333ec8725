r"""verl's batches as its rollout cache leaves them: ``gen_batch.dp`` (V0) and ``tq_batch.pt`` (V1).

Written with ``skip.rollout.enable=True`` or ``skip.rollout_tq.enable=True``, read in verl 0.9.1
(``verl/utils/skip/rollout_skip.py``)::

    {dump_dir}/{experiment}_{project}/GBS{b}_N{n}_in{p}_out{r}/{step}/gen_batch.dp               + meta.json
                                                               {step}/{inner}/tq_batch.pt        + meta.json

The first is a pickle of a ``DataProto``, as any ``DataProto.save_to_disk`` writes it: prompts padded on the left, responses
on the right, what lies between said by ``attention_mask``. The second is a torch file of what TransferQueue held: the same
columns, unpadded, with keys ``{uid}_{session}_{output}``. Neither needs verl or tensordict to be read, and nothing in them
is run. They hold the rollout; log-probabilities of the trainer, rewards and advantages are there if the batch was saved
later in the step.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from credit_inspector.errors import FormatError
from credit_inspector.pickles import Stub, load_pickle, stub
from credit_inspector.rollout import Problem, Run, Step
from credit_inspector.trainers import ReadOptions, reader
from credit_inspector.trainers._padded import Flags, cut, drop_fill_columns, places
from credit_inspector.trainers._rollouts import FIELDS, no_step, own_columns, read_step
from credit_inspector.trainers._rows import Row
from credit_inspector.trainers._tensordicts import Budget, at, columns, decoded, load, plain
from credit_inspector.trainers._values import whole

_PICKLE, _QUEUE, _META = "gen_batch.dp", "tq_batch.pt", "meta.json"
_SETTING = re.compile(r"GBS\w+_N\w+_in\w+_out\w+")
_KEY = re.compile(r"(?P<uid>.+)_(?P<session>\d+)_(?P<output>\d+)", re.DOTALL)
_HEAD = 256
_DATA_PROTO = "verl.protocol.DataProto"

_TOKEN_COLUMNS = {
    "logprob/rollout": "rollout_log_probs",
    "logprob/old": "old_log_probs",
    "logprob/ref": "ref_log_prob",
    "entropy/policy": "entropys",
    "value/old": "values",
    "reward/token": "token_level_rewards",
    "reward/token_score": "token_level_scores",
    "advantage": "advantages",
    "rollout_weight": "rollout_is_weights",
}
"""Our names → verl's, each ``[B, R]``."""
_NAMES = (*FIELDS, *_TOKEN_COLUMNS)
_SCORES = "rm_scores"
_TAKEN = frozenset(
    {*_TOKEN_COLUMNS.values(), _SCORES, "prompts", "responses", "response_mask", "loss_mask", "input_ids"}
    | {"attention_mask", "position_ids", "uid", "raw_prompt", "extra_fields", "request_id"}
)
_NOT_READ = frozenset({"multi_modal_inputs", "multi_modal_data", "routed_experts", "teacher_ids", "teacher_logprobs"})
"""Pictures, and tables of a number for each token and layer."""


def _size(*parts: Any) -> tuple[Any, ...]:
    """``torch.Size``, in batches that were saved by way of numpy."""
    return tuple(parts[0]) if len(parts) == 1 and isinstance(parts[0], tuple | list) else ()


_INERT = (
    _DATA_PROTO,
    "verl.protocol.DataProtoItem",
    "torch._utils._rebuild_tensor_v2",
    "torch.storage._load_from_bytes",
    "transformers.feature_extraction_utils.BatchFeature",
    "transformers.image_processing_base.BatchFeature",
    "transformers.tokenization_utils_base.BatchEncoding",
    "PIL.Image.Image",
    "PIL.PngImagePlugin.PngImageFile",
    "PIL.JpegImagePlugin.JpegImageFile",
)
"""What a multi-modal batch holds beside plain data: it is named, and not made."""
_ALLOWED: Mapping[str, Any] = {**{name: stub(name) for name in _INERT}, "torch.Size": _size}


@reader("verl_batches")
def open_verl_batches(path: Path, options: ReadOptions) -> Run | None:
    """Open a dump folder, one experiment or one step of it, or one file.

    Raises:
        FormatError: several experiments in one folder, or none of the files can be read.
        UsageError: on reading a step that is not there.
    """
    files = _files(path)
    if not files:
        return None
    first = _first(files)
    return Run(
        path=path,
        trainer="verl_batches",
        steps=tuple(files),
        read=partial(_read, files),
        columns=tuple(name for name, source in _TOKEN_COLUMNS.items() if _source(first, name, source) is not None),
        notes=tuple(_notes(first)),
    )


# ── which files ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _files(path: Path) -> dict[int, list[Path]]:
    """The files of each step, ascending."""
    if path.is_file():
        return {_step(path): [path]} if _is_batch(path) else {}
    found: dict[int, list[Path]] = {}
    for file in _in_folder(path) if path.is_dir() else ():
        found.setdefault(_step(file), []).append(file)
    return dict(sorted(found.items()))


def _is_batch(path: Path) -> bool:
    if path.name == _QUEUE or path.suffix == ".dp":
        return True
    if path.suffix not in (".pkl", ".pickle"):
        return False
    with path.open("rb") as file:
        head = file.read(_HEAD)
    return b"verl.protocol" in head and b"DataProto" in head


def _in_folder(path: Path) -> list[Path]:
    """The files of the one experiment in a folder: the folder of its steps, or one of the two around it."""
    if steps := _of_steps(path):
        return steps
    settings = [inner for inner in _folders(path) if _SETTING.fullmatch(inner.name)]
    if not settings:
        settings = [deep for inner in _folders(path) for deep in _folders(inner) if _SETTING.fullmatch(deep.name)]
    runs = [(folder, files) for folder in settings if (files := _of_steps(folder))]
    if len(runs) > 1:
        names = " and ".join(str(folder.relative_to(path)) for folder, _ in runs[:6])
        raise FormatError(f"{path} holds {len(runs)} verl runs: {names}", wanted="one", do="open one of them")
    return runs[0][1] if runs else []


def _of_steps(path: Path) -> list[Path]:
    """Batches in a folder of steps, in one step, or in one part of a step."""
    numbered = sorted((int(inner.name), inner) for inner in _folders(path) if _is_number(inner.name))
    found = _here(path)
    for _, folder in numbered:
        found += _here(folder)
        parts = sorted((int(inner.name), inner) for inner in _folders(folder) if _is_number(inner.name))
        found += [file for _, part in parts for file in _here(part)]
    return found


def _here(folder: Path) -> list[Path]:
    return [file for name in (_PICKLE, _QUEUE) if (file := folder / name).is_file()]


def _folders(path: Path) -> list[Path]:
    return sorted(inner for inner in path.iterdir() if inner.is_dir())


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) < 12


def _step(file: Path) -> int:
    """What ``meta.json`` says, else the number of the step's folder."""
    try:
        meta = json.loads((file.parent / _META).read_bytes())
        named = whole(meta.get("global_steps"))
    except (OSError, ValueError, AttributeError, RecursionError):
        named = None
    if named is not None:
        return named
    folders = (file.parent.parent, file.parent) if file.name == _QUEUE else (file.parent,)
    return next((int(folder.name) for folder in folders if _is_number(folder.name)), 0)


# ── one file ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Batch:
    """A file's columns, by verl's names; a value of a column is that of a row."""

    tensors: dict[str, Any]
    objects: dict[str, Any]
    rows: int
    keys: list[Any] = field(default_factory=list)
    """Of a TransferQueue dump: ``{uid}_{session}_{output}``."""
    tags: list[Any] = field(default_factory=list)
    rewards: frozenset[str] = frozenset()
    """Names among the objects that the reward function returned."""
    jagged: bool = False

    def get(self, name: str, row: int) -> Any:
        """A row's value of a column; ``None`` where there is none."""
        return at(self.tensors.get(name, self.objects.get(name)), row)


def _load(file: Path) -> _Batch:
    """Read one file.

    Raises:
        FormatError: it cannot be read, asks for more than data, or holds no responses.
    """
    budget = Budget(file.stat().st_size)
    batch = _from_queue(file, budget) if file.name == _QUEUE else _from_pickle(file, budget)
    if not batch.rows:
        raise FormatError(f"{file} holds no responses", wanted="a batch after its rollout")
    return batch


def _from_pickle(file: Path, budget: Budget) -> _Batch:
    found = load_pickle(file, allow=_ALLOWED)
    state = getattr(found, "state", None) if isinstance(found, Stub) and found.name == _DATA_PROTO else None
    if not isinstance(state, tuple) or len(state) != 3:
        raise FormatError(f"{file} is a pickle of something else", wanted="verl's DataProto")
    held, objects, meta = state
    tensors = _tensors(held, budget)
    held_objects = objects.items() if isinstance(objects, Mapping) else ()
    others = {name: each for name, each in held_objects if isinstance(name, str) and _is_rows(each)}
    named = meta.get("reward_extra_keys") if isinstance(meta, Mapping) else None
    rewards = frozenset(name for name in named if isinstance(name, str)) if isinstance(named, list | tuple | set) else frozenset()
    return _Batch(tensors, others, _count(tensors), rewards=rewards)


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, np.ndarray) and value.ndim > 0)


def _tensors(held: Any, budget: Budget) -> dict[str, Any]:
    """What ``DataProto.__getstate__`` made of the tensors: a torch file, or numpy's bytes by name."""
    if isinstance(held, bytes):
        return columns(load(held), budget)
    items = held[2] if isinstance(held, tuple) and len(held) == 3 else None
    if not isinstance(items, Mapping):
        raise FormatError("a DataProto without tensors", wanted="a batch after its rollout")
    read = {name: _from_numpy(item, budget) for name, item in items.items() if isinstance(name, str)}
    return {name: value for name, value in read.items() if value is not None}


def _from_numpy(item: Any, budget: Budget) -> Any:
    """``(dtype, shape, bytes)``, or ``(layout, [(dtype, shape, bytes), …])`` of a nested tensor."""
    if not isinstance(item, tuple | list):
        return None
    if len(item) == 3:
        return decoded(item[2], item[0], item[1], budget)
    parts = item[1] if len(item) == 2 and isinstance(item[1], list) else []
    rows = [decoded(part[2], part[0], part[1], budget) if _is_triple(part) else None for part in parts]
    return rows if rows and all(row is not None for row in rows) else None


def _is_triple(part: Any) -> bool:
    return isinstance(part, tuple | list) and len(part) == 3


def _from_queue(file: Path, budget: Budget) -> _Batch:
    found = load(file)
    if not isinstance(found, Mapping) or "tensordict" not in found:
        raise FormatError(f"{file} is another torch file", wanted="verl's TransferQueue batch")
    tensors = columns(found["tensordict"], budget)
    keys, tags = (value if isinstance(value, list) else [] for value in (found.get("keys"), found.get("tags")))
    return _Batch(tensors, {}, _count(tensors), keys, tags, jagged="attention_mask" not in tensors)


def _count(tensors: Mapping[str, Any]) -> int:
    responses = tensors.get("responses")
    return len(responses) if isinstance(responses, list) or (responses is not None and responses.ndim == 2) else 0


def _first(files: Mapping[int, list[Path]]) -> _Batch:
    """The first file that can be read; what is wrong with the first one where none can."""
    errors = []
    for file in (file for step in files.values() for file in step):
        try:
            return _load(file)
        except FormatError as error:
            errors.append(error)
    raise errors[0]


# ── one row ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _source(batch: _Batch, name: str, source: str) -> str | None:
    """The column that holds one of ours; scores lie under either of two names."""
    if source in batch.tensors:
        return source
    return _SCORES if name == "reward/token_score" and _SCORES in batch.tensors else None


def _row(batch: _Batch, row: int) -> tuple[dict[str, Any], list[Problem]]:
    """One response under this project's names, and what else the batch holds of it."""
    key = batch.keys[row] if row < len(batch.keys) else None
    where = key if isinstance(key, str) else str(row)
    real, prompt, problems = _real(batch, row, where)
    if real is None:
        return {}, problems
    values: dict[str, Any] = {**_identity(batch, row, key), **prompt}
    values["response_ids"] = np.asarray(batch.get("responses", row))[real]
    trained = places(batch.get("response_mask", row), len(real))
    values["loss_mask"] = np.ones(int(real.sum()), np.bool_) if trained is None else trained[real]
    sources = {name: _source(batch, name, source) for name, source in _TOKEN_COLUMNS.items()}
    held = {name: batch.get(source, row) for name, source in sources.items() if source}
    kept, unfit = cut(held, real, trained, where)
    values |= kept | _reward(kept) | _components(batch, row) | _rest(batch, row, real)
    return values, problems + unfit


def _real(batch: _Batch, row: int, where: str) -> tuple[Flags | None, dict[str, Any], list[Problem]]:
    """Which places of the response are tokens, and the prompt's tokens."""
    response, prompt = batch.get("responses", row), batch.get("prompts", row)
    if not _is_flat(response):
        return None, {}, [Problem("bad-ids", "responses hold no list of token ids, left out", where)]
    begin = len(prompt) if _is_flat(prompt) else 0
    if batch.jagged:
        return np.ones(len(response), np.bool_), {"prompt_ids": prompt} if begin else {}, []
    attended = places(batch.get("attention_mask", row), begin + len(response))
    if attended is not None:
        return attended[begin:], {"prompt_ids": np.asarray(prompt)[attended[:begin]]} if begin else {}, []
    said = "no attention mask that fits: the response ends at its last trained token, the prompt's padding is not known"
    mask = places(batch.get("response_mask", row), len(response))
    if mask is None:
        return None, {}, [Problem("no-mask", "neither attention mask nor response mask fits, left out", where)]
    last = np.flatnonzero(mask)
    return np.arange(len(response)) <= (last[-1] if len(last) else -1), {}, [Problem("no-mask", said, where)]


def _is_flat(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 1


def _identity(batch: _Batch, row: int, key: Any) -> dict[str, Any]:
    uid = batch.get("uid", row)
    found = _KEY.fullmatch(key) if isinstance(key, str) else None
    values: dict[str, Any] = {"prompt": plain(batch.get("raw_prompt", row))}
    if found:
        values |= {"sample_id": key, "group_id": found["uid"]}
        values |= {"session": int(found["session"]), "output": int(found["output"])} if len(key) < 500 else {}
    else:
        name = batch.get("request_id", row)
        values |= {"group_id": uid if isinstance(uid, str | int) else None, "sample_id": name if isinstance(name, str) else None}
    values["policy_version"] = _version(batch, row)
    return values


def _version(batch: _Batch, row: int) -> int | None:
    """The step after which the weights were taken that began the response."""
    tag = batch.tags[row] if row < len(batch.tags) else None
    known = tag.get("min_global_steps") if isinstance(tag, Mapping) else batch.get("min_global_steps", row)
    return whole(known) if isinstance(known, int | float | np.generic) else None


def _reward(kept: Mapping[str, Any]) -> dict[str, Any]:
    """What the group statistic is taken of: token-level rewards, and before these exist the scores."""
    tokens = next((kept[name] for name in ("reward/token", "reward/token_score") if name in kept), None)
    return {} if tokens is None else {"reward": float(tokens.astype(np.float64).sum())}


def _components(batch: _Batch, row: int) -> dict[str, Any]:
    """What the reward function returned beside the score."""
    extra = plain(batch.get("extra_fields", row))
    info = extra.get("reward_extra_info") if isinstance(extra, Mapping) else None
    named = {name: plain(batch.get(name, row)) for name in sorted(batch.rewards)}
    found: dict[str, Any] = {"rewards": {**named, **(info if isinstance(info, Mapping) else {})}}
    if isinstance(extra, Mapping):
        found |= {name: value for name, value in extra.items() if name != "reward_extra_info" and name not in _NAMES}
    return found


def _rest(batch: _Batch, row: int, real: Flags) -> dict[str, Any]:
    """Columns that have no name of ours; of those with a value for each token the response's."""
    found: dict[str, Any] = {}
    for name in (*batch.tensors, *batch.objects):
        if name in _TAKEN or name in _NOT_READ or name in batch.rewards:
            continue
        value = batch.get(name, row)
        if isinstance(value, np.ndarray) and value.ndim:
            if value.shape == real.shape:
                found[name] = value[real].tolist()
            elif value.dtype == object:
                found[name] = plain(value)
        else:
            found[name] = plain(value)
    return {(f"verl_{name}" if name in _NAMES else name): value for name, value in found.items()}


# ── one step ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _read(files: Mapping[int, list[Path]], step: int) -> Step:
    if step not in files:
        raise no_step(step, files)
    with np.errstate(all="ignore"):  # damaged numbers
        rows = list(_rows(files[step]))
    problems = drop_fill_columns([values for values, _ in rows])
    kept = [Row(number, values, tuple(wrong)) for number, (values, wrong) in enumerate(rows, 1) if values]
    lost = [problem for values, wrong in rows if not values for problem in wrong]
    items: Iterable[Row | Problem] = [*problems, *lost, *kept]
    has_reward = any("reward" in values for values, _ in rows)
    return read_step(step, items, own_columns(*_TOKEN_COLUMNS, without=[] if has_reward else ["reward"]))


def _rows(files: Iterable[Path]) -> Iterator[tuple[dict[str, Any], list[Problem]]]:
    for file in files:
        batch = _load(file)
        for row in range(batch.rows):
            yield _row(batch, row)


def _notes(batch: _Batch) -> Iterator[str]:
    """What was assumed, from the first file."""
    if batch.keys:
        yield "groups are by the prompt's uid in verl's keys"
    else:
        yield "groups are by verl's uid" if "uid" in batch.objects else "groups are equal prompts: the batch holds no uid"
    if "token_level_rewards" in batch.tensors:
        yield "reward is the sum of verl's token-level rewards, after a KL penalty in the reward if there is one"
    elif _source(batch, "reward/token_score", "token_level_scores"):
        yield "reward is the sum of verl's scores, before any KL penalty"
    else:
        yield "no reward is in the batch: it was saved before the reward was computed"
    if "advantages" not in batch.tensors:
        yield "no advantages are in the batch: it was saved after the rollout"
    if "response_mask" not in batch.tensors:
        yield "no response mask is in the batch: every token of a response counts as trained, as verl then takes it"
    if skipped := sorted(name for name in _NOT_READ if name in batch.tensors or name in batch.objects):
        yield f"not read: {', '.join(skipped)}"
    if "entropys" in batch.tensors:
        yield "entropy is of the policy before the update"
