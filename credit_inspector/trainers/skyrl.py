r"""SkyRL's batches, ``dumped_data/global_step_{N}_training_input.pkl``, and its evaluations.

Written with ``trainer.dump_data_batch=true`` below ``trainer.export_path``, read in SkyRL 0.3.0 and at commit a956457: a
pickle of a ``TrainingInputBatch``, whose tensors are bytes with a shape and a dtype. Prompt and response lie in one row,
padded on the left; what belongs to response tokens has the width of the longest response and is padded on the left, too::

    sequences        | pad  prompt prompt resp  resp |
    response_mask           | 0     0     1     1    |

Rewards and uids are taken out before the batch is saved. Since a later version ``policy_prompt_boundaries`` says which rows
belong to one prompt; else groups are equal prompts. Rows that fill a batch up to the number of workers are copies of the
first one (``pad_size``) and are left out.

``dumped_evals/global_step_{N}_evals/{data source}.jsonl`` (on by default) holds text and scores of the evaluations. They are
no training data: they are shown only where nothing else is there.
"""

from __future__ import annotations

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
from credit_inspector.trainers._padded import Flags, cut, drop_fill_columns, places
from credit_inspector.trainers._rollouts import Columns, no_step, own_columns, read_step
from credit_inspector.trainers._rows import JsonLines, Row, first_rows
from credit_inspector.trainers._tensordicts import Budget, at, columns, decoded, load

_FILE = re.compile(r"global_step_(\d{1,11})_training_input\.pkl")
_EVALS = re.compile(r"global_step_(\d{1,11})_evals")
_HEAD = 256
_EVAL_KEYS = frozenset({"input_prompt", "output_response", "score", "env_class", "env_extras"})

_TOKEN_COLUMNS = {
    "logprob/rollout": "rollout_logprobs",
    "logprob/old": "action_log_probs",
    "logprob/ref": "base_action_log_probs",
    "value/old": "values",
    "advantage": "advantages",
}
"""Our names → SkyRL's, each ``[B, R]``."""
_MORE = ("returns", "kl")
"""``[B, R]`` without a name of ours."""

_MODULES = ("skyrl.backends.skyrl_train.training_batch", "skyrl_train.training_batch")


class _Dict(Stub):
    """A batch, which is a ``dict``: a version before 0.3 pickled its items beside its state, which has them again."""

    name = "skyrl.TrainingInputBatch"

    def __setitem__(self, key: Any, value: Any) -> None:
        return None


_REBUILT = stub("_rebuild_tensor_batch")
_ALLOWED: Mapping[str, Any] = {
    **{f"{module}.{kind}": _Dict for module in _MODULES for kind in ("TrainingInputBatch", "TensorBatch")},
    **{f"{module}._rebuild_tensor_batch": _REBUILT for module in _MODULES},
    **{name: stub(name) for name in ("torch.device", "torch._utils._rebuild_tensor_v2", "torch.storage._load_from_bytes")},
}


@reader("skyrl")
def open_skyrl(path: Path, options: ReadOptions) -> Run | None:
    """Open an export folder, its ``dumped_data`` or ``dumped_evals``, or one file.

    Raises:
        FormatError: none of the files can be read.
        UsageError: on reading a step that is not there.
    """
    batches, evals = _batches(path), _evals(path)
    if batches:
        return _train_run(path, batches, evals)
    if not evals:
        return None
    note = "these are evaluations: SkyRL left no training batch here (trainer.dump_data_batch)"
    notes = (note, "groups are equal prompts", "reward is SkyRL's score", "texts hold special tokens as SkyRL decoded them")
    return Run(path=path, trainer="skyrl", steps=tuple(evals), read=partial(_read_evals, evals), notes=notes)


def _train_run(path: Path, files: Mapping[int, Path], evals: Mapping[int, list[Path]]) -> Run:
    first = _first(list(files.values()))
    known = "SkyRL's policy_prompt_boundaries" if _boundaries(first) else "equal prompts: the batch holds no uid"
    notes = [f"groups are by {known}", "no reward is in the batch: SkyRL takes it out before it saves"]
    if evals:
        notes.append(f"evaluations lie beside the training batches and are not shown (steps: {', '.join(map(str, evals))})")
    return Run(
        path=path,
        trainer="skyrl",
        steps=tuple(files),
        read=partial(_read, files),
        columns=tuple(name for name, source in _TOKEN_COLUMNS.items() if source in first.tensors),
        notes=tuple(notes),
    )


# ── which files ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _batches(path: Path) -> dict[int, Path]:
    """The training batches by step, ascending."""
    if path.is_file():
        named = _FILE.fullmatch(path.name)
        return {int(named[1]) if named else 0: path} if named or _is_batch(path) else {}
    for folder in (path / "dumped_data", path) if path.is_dir() else ():
        named_files = ((_FILE.fullmatch(file.name), file) for file in folder.glob("global_step_*.pkl"))
        if found := {int(named[1]): file for named, file in named_files if named and file.is_file()}:
            return dict(sorted(found.items()))
    return {}


def _is_batch(path: Path) -> bool:
    if path.suffix != ".pkl":
        return False
    with path.open("rb") as file:
        head = file.read(_HEAD)
    return b"training_batch" in head and b"skyrl" in head


def _evals(path: Path) -> dict[int, list[Path]]:
    """The evaluations' files by step; ``eval_only`` is step 0."""
    if path.is_file():
        rows = first_rows(path, 3) if path.suffix == ".jsonl" else []
        is_eval = bool(rows) and all(row.keys() >= _EVAL_KEYS for row in rows)
        return {_eval_step(path.parent): [path]} if is_eval else {}
    folders = [path, *sorted(path.glob("*/")), *sorted(path.glob("dumped_evals/*/"))] if path.is_dir() else []
    found: dict[int, list[Path]] = {}
    for folder in folders:
        if not _EVALS.fullmatch(folder.name) and folder.name != "eval_only":
            continue
        files = [file for file in sorted(folder.glob("*.jsonl")) if file.name != "aggregated_results.jsonl"]
        kept = [file for file in files if (rows := first_rows(file, 1)) and rows[0].keys() >= _EVAL_KEYS]
        if kept:
            found.setdefault(_eval_step(folder), []).extend(kept)
    return dict(sorted(found.items()))


def _eval_step(folder: Path) -> int:
    named = _EVALS.fullmatch(folder.name)
    return int(named[1]) if named else 0


# ── a batch ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Batch:
    tensors: dict[str, Any]
    """``[B, …]`` each, by SkyRL's names."""
    meta: Mapping[str, Any]

    def row(self, name: str, row: int) -> Any:
        """A row's values, where the column has them."""
        values = at(self.tensors.get(name), row)
        return values if isinstance(values, np.ndarray) else None

    @property
    def rows(self) -> int:
        """Rows of the batch, those that fill it up included."""
        sequences = self.tensors.get("sequences")
        return len(sequences) if sequences is not None and sequences.ndim == 2 else 0

    @property
    def filled(self) -> int:
        """How many rows fill the batch up."""
        size = self.meta.get("pad_size")
        return size if type(size) is int and 0 < size < self.rows else 0


def _load(file: Path) -> _Batch:
    """Read one batch.

    Raises:
        FormatError: it cannot be read, asks for more than data, or holds no sequences.
    """
    found = load_pickle(file, allow=_ALLOWED)
    args: tuple[Any, ...] = getattr(found, "args", ())
    state = args[1] if isinstance(found, _REBUILT) and len(args) == 2 else getattr(found, "state", None)
    held = state.get("batch_dict") if isinstance(state, Mapping) else None
    if not isinstance(held, Mapping):
        raise FormatError(f"{file} is a pickle of something else", wanted="SkyRL's TrainingInputBatch")
    budget = Budget(file.stat().st_size)
    read = {name: _tensor(each, budget) for name, each in held.items() if isinstance(name, str)}
    meta = state.get("metadata") if isinstance(state, Mapping) else None
    batch = _Batch({name: value for name, value in read.items() if value is not None}, meta if isinstance(meta, Mapping) else {})
    if not budget.rows(batch.rows):
        raise FormatError(f"{file} holds no sequences", wanted="SkyRL's TrainingInputBatch")
    return batch


def _tensor(held: Any, budget: Budget) -> Any:
    """``{"data": bytes, "shape", "dtype"}``; a dtype that numpy lacks went through torch and is none that is read here."""
    if not isinstance(held, Mapping) or held.get("format", "numpy") not in ("numpy", "torch"):
        return None
    if held.get("format") == "torch":
        return _by_torch(held.get("data"), budget)
    return decoded(held.get("data"), held.get("dtype"), held.get("shape"), budget)


def _by_torch(raw: Any, budget: Budget) -> Any:
    return columns({"only": load(raw)}, budget).get("only") if isinstance(raw, bytes) else None


def _first(files: Iterable[Path]) -> _Batch:
    errors = []
    for file in files:
        try:
            return _load(file)
        except FormatError as error:
            errors.append(error)
    raise errors[0]


def _boundaries(batch: _Batch) -> dict[int, str]:
    """The prompt of each row, where ``policy_prompt_boundaries`` says it: ``[(begin, end), …]``."""
    pairs = batch.meta.get("policy_prompt_boundaries")
    found: dict[int, str] = {}
    for place, pair in enumerate(pairs if isinstance(pairs, list) else ()):
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(type(each) is int for each in pair):
            return {}
        begin, end = pair
        if not 0 <= begin <= end <= batch.rows or begin in found:
            return {}
        found |= dict.fromkeys(range(begin, end), str(place))
    return found


# ── rows ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_COLUMNS = own_columns(*_TOKEN_COLUMNS, without=["reward"])


def _read(files: Mapping[int, Path], step: int) -> Step:
    if step not in files:
        raise no_step(step, files)
    batch = _load(files[step])
    groups = _boundaries(batch)
    with np.errstate(all="ignore"):  # damaged numbers
        rows = [_row(batch, row, groups) for row in range(batch.rows - batch.filled)]
    items: list[Row | Problem] = list(drop_fill_columns([values for values, _ in rows]))
    if batch.filled:
        items.append(Problem("padding-rows", f"{batch.filled} rows that fill the batch up are left out"))
    for number, (values, wrong) in enumerate(rows, 1):
        items += [Row(number, values, tuple(wrong))] if values else wrong
    return read_step(step, items, _COLUMNS)


def _row(batch: _Batch, row: int, groups: Mapping[int, str]) -> tuple[dict[str, Any], list[Problem]]:
    """One response under this project's names."""
    where = str(row)
    ids, response = batch.row("sequences", row), batch.row("response_mask", row)
    width = 0 if response is None else len(response)
    real = places(response, width)
    attended = places(batch.row("attention_mask", row), len(ids))
    if real is None or attended is None or width > len(ids):
        return {}, [Problem("no-mask", "no attention mask and response mask that fit, left out", where)]
    values: dict[str, Any] = {**_tokens(ids, attended, real), "group_id": groups.get(row)}
    trained, problems = _trained(batch.row("loss_mask", row), real, where)
    values["loss_mask"] = trained[real]
    held = {name: batch.row(source, row) for name, source in _TOKEN_COLUMNS.items()}
    kept, unfit = cut(held, real, trained, where)
    more, _ = cut({name: batch.row(name, row) for name in _MORE}, real, None, where)
    return values | kept | {name: column.tolist() for name, column in more.items()}, problems + unfit


def _tokens(ids: Any, attended: Flags, real: Flags) -> dict[str, Any]:
    """Prompt and response: the response lies in the last ``R`` places, the prompt before its first token."""
    begin = len(ids) - len(real)
    first = np.flatnonzero(real)
    before = np.arange(len(ids)) < (begin + first[0] if len(first) else len(ids))
    return {"prompt_ids": ids[attended & before], "response_ids": ids[begin:][real]}


def _trained(mask: Any, real: Flags, where: str) -> tuple[Flags, list[Problem]]:
    read = places(mask, len(real))
    if read is not None:
        return read & real, []
    return np.zeros(len(real), np.bool_), [Problem("no-mask", "no loss mask that fits: none counts as trained", where)]


# ── evaluations ─────────────────────────────────────────────────────────────────────────────────────────────────────

_EVAL_COLUMNS = Columns(
    mapping={"prompt": "input_prompt", "response": "output_response", "reward": "score", "truncated": "cut"}, numpy_text=False
)


def _read_evals(files: Mapping[int, list[Path]], step: int) -> Step:
    if step not in files:
        raise no_step(step, files)
    return read_step(step, _eval_rows(files[step]), _EVAL_COLUMNS)


def _eval_rows(files: Iterable[Path]) -> Iterator[Row | Problem]:
    for file in files:
        for item in JsonLines(file).scan():
            if isinstance(item, Row):
                values = {"dataset": file.stem, **item.values, "cut": item.values.get("stop_reason")}
                yield Row(item.number, values, item.problems, item.place)
            else:
                yield item
