"""prime-rl's output folder: what each token did in the update, and the conversations that it came from.

- ``trainer.enable_token_export = true`` → ``token_exports/step_{N}/rank_{R}.jsonl``: one line a trained sequence, prompt and
  response in one list, with the sampler's and the trainer's log-probs, entropy, advantages, weights and what the loss cut. An
  empty file ``STABLE`` says that a step is complete. No reward, text or group is in it.
- The file monitor (on by default) → ``rollouts/step_{N}/{train,eval}/{all,effective}/traces.jsonl`` (``_episodes.py``);
  ``effective`` is what step N trained on. Before July 2026 ``rollouts/step_{N}/train_rollouts.jsonl``, with bare traces or
  verifiers' older rows.

Where both are there, a sequence gets reward, text and group from the trace with the same token ids, as the trainer cut it to its
``seq_len``. Read in prime-rl 0.8.0 (commit 559b447: ``trainer/rl/token_export.py``, ``trainer/batch.py``, ``monitors/file.py``,
``orchestrator/train_sink.py``) and its first export (e971d905a), which wrote one file a rank and no ``STABLE``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from credit_inspector.errors import FormatError
from credit_inspector.rollout import CheckpointAt, Problem, Run, Step
from credit_inspector.tokens import has_tokenizer
from credit_inspector.trainers import ReadOptions, _episodes, _results, reader
from credit_inspector.trainers._joined import split
from credit_inspector.trainers._rollouts import no_step, own_columns, read_step
from credit_inspector.trainers._rows import Item, JsonLines, Places, Row, by_step, first_rows, kind
from credit_inspector.trainers._values import flags, floats, integers, whole

_OURS: Mapping[str, str] = {
    "inference_logprobs": "logprob/rollout",
    "trainer_logprobs": "logprob/policy",
    "entropy": "entropy/policy",
    "advantages": "advantage",
    **{
        name: f"prime/{name}"
        for name in (
            "mismatch_kl",
            "log_importance_ratio",
            "importance_ratio",
            "prob_delta",
            "is_masked",
            "is_masked_high",
            "is_masked_low",
            "rl_weights",
            "ce_weights",
            "ref_kl_weights",
        )
    },
}
"""The export's columns → ours. What prime-rl derived stays under its own name: this project derives it anew."""
_EVERYWHERE = frozenset({"logprob/policy", "entropy/policy", "prime/rl_weights", "prime/ce_weights", "prime/ref_kl_weights"})
"""Columns that mean something outside the mask too; in the others the trainer's 0 there is a filler."""
_TRAINED_ONLY = tuple(name for name in _OURS.values() if name not in _EVERYWHERE)
_LISTS = ("token_ids", "position_ids", "loss_mask", "rewards", *_OURS)
_TOKEN_COLUMNS = tuple(dict.fromkeys((*_OURS.values(), *_episodes.TOKEN_COLUMNS)))
_COLUMNS = own_columns(*_TOKEN_COLUMNS)
_WITHOUT_REWARD = replace(_COLUMNS, mapping={name: name for name in _COLUMNS.mapping if name != "reward"})

_STEP = re.compile(r"step_(\d{1,9})")
_RANK = re.compile(r"rank_(\d{1,9})\.jsonl")
_TRAIN = ("train/effective/traces.jsonl", "train_rollouts.jsonl", "train/all/traces.jsonl")
_EVAL = ("eval/effective/traces.jsonl", "eval_rollouts.jsonl", "eval/all/traces.jsonl")
_CHECKPOINTS = ("checkpoints/step_*/weight", "checkpoints/step_*", "weights/step_*", "broadcasts/step_*")
_SHOWN = 8
_COMPARED = 64
"""Among how many traces of equal tokens the closest is sought."""

_Part = tuple[JsonLines, Places | None]
"""A file, and where in it the rows of a step lie; ``None`` is the whole file."""


@reader("prime_rl")
def open_prime_rl(path: Path, options: ReadOptions) -> Run | None:
    """Open an output folder, its ``token_exports`` or ``rollouts``, one step of them, or one export file.

    Raises:
        FormatError: an export of which no step is complete.
    """
    exports = _exports(path)
    if exports is not None and (first := _first(exports.files())) and all(map(_is_export, first)):
        return _of_exports(path, exports, first)
    return _of_rollouts(path)


def _is_export(row: Mapping[str, Any]) -> bool:
    return all(isinstance(row.get(key), list) for key in ("token_ids", "trainer_logprobs", "inference_logprobs", "loss_mask"))


def _first(files: Iterable[Path]) -> Sequence[Mapping[str, Any]]:
    return next((rows for file in files if (rows := first_rows(file))), [])


# ── the export's files ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Exports:
    """The export's files: by step, or each with all steps in it."""

    root: Path
    steps: dict[int, list[Path]] = field(default_factory=dict)
    whole: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def files(self) -> Iterator[Path]:
        """All of them, in order."""
        yield from (file for _, files in sorted(self.steps.items()) for file in files)
        yield from self.whole


def _exports(path: Path) -> _Exports | None:
    """Where the export lies below a path, by the names of files alone."""
    if path.is_file():
        return _one_file(path)
    if not path.is_dir():
        return None
    folder = path / "token_exports" if (path / "token_exports").is_dir() else path
    if ranks := _ranks(folder):
        step = _STEP.fullmatch(folder.name)
        root = folder.parent.parent if step else folder.parent
        return _Exports(root, {int(step[1]): ranks}) if step else _Exports(root, whole=ranks)
    steps = {step: ranks for step, inner in _step_folders(folder).items() if (ranks := _ranks(inner))}
    root = folder.parent if folder.name == "token_exports" else folder
    return _Exports(root, steps) if steps else None


def _one_file(path: Path) -> _Exports | None:
    if kind(path) != "jsonl":
        return None
    path = path.absolute()
    step = _STEP.fullmatch(path.parent.name) if _RANK.fullmatch(path.name) else None
    others = len(_ranks(path.parent)) - 1 if step else 0
    notes = [f"{others} other ranks' files of this step lie beside it and are not read"] if others > 0 else []
    if step is None:
        return _Exports(path.parent, whole=[path])
    return _Exports(path.parent.parent.parent, {int(step[1]): [path]}, notes=notes)


def _ranks(folder: Path) -> list[Path]:
    found = {int(named[1]): file for file in folder.glob("rank_*.jsonl") if (named := _RANK.fullmatch(file.name))}
    return [file for _, file in sorted(found.items())]


def _step_folders(folder: Path) -> dict[int, Path]:
    found = {int(named[1]): inner for inner in folder.glob("step_*") if (named := _STEP.fullmatch(inner.name))}
    return {step: inner for step, inner in sorted(found.items()) if inner.is_dir()}


def _complete(exports: _Exports, path: Path) -> dict[int, list[Path]]:
    """The steps that their ``STABLE`` calls complete; the first versions wrote none."""
    stable = {step: files for step, files in exports.steps.items() if (files[0].parent / "STABLE").is_file()}
    if stable or not exports.steps:
        if rest := [step for step in exports.steps if step not in stable]:
            exports.notes.append(f"step {_shown(rest)} has no STABLE beside it: still being written, left out")
        return stable
    *before, last = exports.steps
    if not before:
        raise FormatError(
            f"{path} holds step {last} alone, without the STABLE that ends a step",
            wanted="a step that is written to its end",
            do="wait for it; if the trainer was stopped, put an empty file STABLE there",
        )
    said = f"no step has a STABLE beside it, as prime-rl's first exports: the last one, {last}, may be cut short and is left out"
    exports.notes.append(said)
    return {step: exports.steps[step] for step in before}


def _shown(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps[:_SHOWN])) + (" …" if len(steps) > _SHOWN else "")


# ── a run of exports ────────────────────────────────────────────────────────────────────────────────────────────────


def _of_exports(path: Path, exports: _Exports, first: Sequence[Mapping[str, Any]]) -> Run:
    parts: dict[int, list[_Part]] = defaultdict(list)
    single = path.is_file()
    for step, files in (exports.steps if single else _complete(exports, path)).items():
        parts[step] += [(JsonLines(file), None) for file in files]
    for file in exports.whole:
        table = JsonLines(file)
        for step, places in by_step(table, _step_of, default=0).items():
            parts[step].append((table, places))
    steps = dict(sorted(parts.items()))
    traces = _traces(exports.root / "rollouts", _TRAIN)
    rows = [item.values for place, values in enumerate(first) for item in _exported(Row(place, values)) if isinstance(item, Row)]
    known = _first_samples([traces[step] for step in steps if step in traces])
    names = {*_names(rows), *(name for name in _names(known) if name in _FROM_TRACE)}
    checkpoints = _checkpoints(exports.root)
    return Run(
        path=path,
        trainer="prime_rl",
        steps=tuple(steps),
        read=partial(_read, steps, traces, any("reward" in row for row in rows)),
        checkpoints=checkpoints,
        tokenizer=_tokenizer(exports.root, checkpoints),
        columns=tuple(name for name in _TOKEN_COLUMNS if name in names),
        notes=(*_export_notes(steps, traces), *_episodes.notes(known), *exports.notes),
    )


def _step_of(row: Row) -> int | None:
    """The run's own step; a trainer of several runs counted its own beside it."""
    values = row.values
    return whole(values.get("export_step")) if values.get("export_step") is not None else whole(values.get("step"))


def _first_samples(files: Iterable[Path]) -> list[Mapping[str, Any]]:
    """The first rows that traces give."""
    return [item.values for values in _first(files) for item in _samples(Row(0, values)) if isinstance(item, Row)]


def _names(rows: Iterable[Mapping[str, Any]]) -> set[str]:
    return {name for row in rows for name in _TOKEN_COLUMNS if isinstance(row.get(name), np.ndarray)}


def _export_notes(steps: Mapping[int, Any], traces: Mapping[int, Path]) -> Iterator[str]:
    yield "trainer's log-probs are those of the update, the sampling engine's stand as logprob/rollout"
    yield "only sequences with a trained token are exported: those whose advantage is 0 are not, so groups may be incomplete"
    if bare := [step for step in steps if step not in traces]:
        which = "" if len(bare) == len(steps) else f" of step {_shown(bare)}"
        yield f"no traces{which} lie in rollouts/: rewards and text are not known, and groups are equal prompts"
    if len(bare) < len(steps):
        yield "reward, text and group are of the trace with the same token ids; reward is the sum of score × weight"


def _read(steps: Mapping[int, Sequence[_Part]], traces: Mapping[int, Path], rewarded: bool, step: int) -> Step:
    if step not in steps:
        raise no_step(step, steps)
    items: Iterator[Item] = chain.from_iterable(_rows_of(part) for part in steps[step])
    if step in traces:
        items = _joined(items, JsonLines(traces[step]), step)
    return read_step(step, items, _COLUMNS if rewarded or step in traces else _WITHOUT_REWARD)


def _rows_of(part: _Part) -> Iterator[Item]:
    table, places = part
    items: Iterable[Item] = table.scan() if places is None else chain(places.problems, table.at(places))
    for item in items:
        if isinstance(item, Row):
            yield from _exported(item)
        else:
            yield item


# ── one line of an export ───────────────────────────────────────────────────────────────────────────────────────────


def _exported(row: Row) -> Iterator[Item]:
    """The sequences of one line: one, or as many as its positions begin anew."""
    values = row.values
    ids, mask = integers(values.get("token_ids")), flags(values.get("loss_mask"))
    rank, place = whole(values.get("rank")), whole(values.get("export_sequence_idx"))
    name = None if rank is None or place is None else f"rank{rank}-{place}"
    yield from row.problems
    if ids is None or mask is None:
        what = "token_ids" if ids is None else "loss_mask"
        yield Problem("bad-ids", f"line {row.number}: {what} is no list of whole numbers, left out", name or "")
        return
    begins = _begins(values.get("position_ids"), len(ids))
    for number, (begin, end) in enumerate(zip(begins, [*begins[1:], len(ids)], strict=True)):
        part = name if name is None or len(begins) == 1 else f"{name}/{number}"
        yield from _sequence(row, ids, mask, slice(begin, end), part)


def _begins(positions: Any, length: int) -> list[int]:
    read = integers(positions)
    if read is None or len(read) != length:
        return [0]
    return [0, *(int(place) for place in np.flatnonzero(read == 0) if place > 0)]


def _sequence(row: Row, ids: NDArray[np.int32], mask: NDArray[np.bool_], here: slice, name: str | None) -> Iterator[Item]:
    values, whole_line = row.values, here == slice(0, len(ids))
    columns = {ours: _cut(values.get(theirs), len(ids), here) for theirs, ours in _OURS.items()}
    found, problems = split(
        ids[here], mask if whole_line else mask[here], columns, trained_only=_TRAINED_ONLY, where=name or str(row.number)
    )
    if not whole_line and not found["loss_mask"].any():
        return  # padding at the end of a pack
    problems += _without_fill(found, name or str(row.number))
    rest = {key: value for key, value in values.items() if key not in _LISTS}
    extra = {f"prime_{key}" if key in _COLUMNS.mapping else key: value for key, value in rest.items()}
    reward = _reward(values.get("rewards"), mask, here)
    yield Row(row.number, {**extra, **found, **reward, "sample_id": name}, tuple(problems), row.place)


def _cut(values: Any, length: int, here: slice) -> Any:
    """The part of a column that is a sequence's own; ``None`` where the trainer had no value for any token."""
    if not isinstance(values, list) or all(value is None for value in values):
        return None
    return values[here] if len(values) == length else values


def _without_fill(found: dict[str, Any], where: str) -> list[Problem]:
    """Take out what stands for nothing: log-probs of a sampler that gave none, advantages of tokens that no reward moves."""
    problems = []
    mask = found["loss_mask"]
    sampled, weights = found.get("logprob/rollout"), found.get("prime/rl_weights")
    if sampled is not None and mask.any() and not sampled[mask].any():
        del found["logprob/rollout"]
        problems.append(Problem("fill-values", "the sampler's log-probs are 0 at every trained token: it gave none", where))
    credit = found.get("advantage")
    if weights is not None and credit is not None and not weights[mask].any() and not credit[mask].any():
        del found["advantage"]
    return problems


def _reward(values: Any, mask: NDArray[np.bool_], here: slice) -> dict[str, Any]:
    """The first exports repeated the reward at each token."""
    read = floats(values) if isinstance(values, list) else None
    if read is None or len(read.values) != len(mask):
        return {}
    trained = read.values[here][mask[here]]
    return {"reward": float(trained[0])} if len(trained) and np.isfinite(trained[0]) else {}


# ── joining with traces ─────────────────────────────────────────────────────────────────────────────────────────────


_FROM_TRACE = ("logprob/ref",)
_NOT_FROM_TRACE = frozenset({"prompt_ids", "response_ids", "loss_mask", "advantage", *_TOKEN_COLUMNS})


def _joined(items: Iterable[Item], table: JsonLines, step: int) -> Iterator[Item]:
    """Exported sequences with what their traces say of them."""
    rows: list[Row] = []
    for item in items:
        if isinstance(item, Row):
            rows.append(item)
        else:
            yield item
    known = _Known()
    for item in table.scan():
        if isinstance(item, Problem):
            yield item
        else:
            known.add(one for one in _samples(item) if isinstance(one, Row))
    longest = max((len(_ids(row)) for row in rows), default=0)
    unknown = cut = 0
    for row in rows:
        trace, is_cut = known.take(row, longest)
        unknown, cut = unknown + (trace is None), cut + is_cut
        yield row if trace is None else _with_trace(row, trace, is_cut)
    if unknown:
        said = f"{unknown} of {len(rows)} sequences stand in no trace of step {step}: without reward, text and group"
        yield Problem("unmatched", said, table.path.name)
    if cut:
        yield Problem("cut", f"{cut} sequences were cut to {longest} tokens for training: their text goes on", table.path.name)


def _samples(row: Row) -> Iterator[Item]:
    """The rows of one line of traces, whichever of the two formats it has."""
    if _results.is_result(row.values):
        return _results.samples(row)
    if _episodes.is_episode(row.values) or _episodes.is_trace(row.values):
        return _episodes.samples(row)
    return iter([Problem("bad-line", f"line {row.number} is no trace, skipped")])


def _ids(row: Row) -> NDArray[np.int32]:
    parts = [row.values.get(name) for name in ("prompt_ids", "response_ids")]
    found: NDArray[np.int32] = np.concatenate([np.zeros(0, np.int32), *(part for part in parts if part is not None)])
    return found


@dataclass(slots=True)
class _Known:
    """A step's traces by their token ids. Each serves one sequence, since equal responses may be credited differently."""

    whole: defaultdict[bytes, list[Row]] = field(default_factory=lambda: defaultdict(list))
    cut: dict[bytes, list[Row]] | None = None

    def add(self, rows: Iterable[Row]) -> None:
        """Remember rows that have token ids."""
        for row in rows:
            if row.values.get("response_ids") is not None:
                self.whole[_ids(row).tobytes()].append(row)

    def take(self, row: Row, longest: int) -> tuple[Row | None, bool]:
        """The trace of a sequence, and whether the sequence is only its beginning; the trainer cuts to one length."""
        ids = _ids(row)
        if rows := self.whole.get(ids.tobytes()):
            return _closest(row, rows), False
        if self.cut is None:
            self.cut = self._cut(longest)
        rows = self.cut.get(ids.tobytes())
        return (_closest(row, rows), True) if rows else (None, False)

    def _cut(self, longest: int) -> dict[bytes, list[Row]]:
        found: defaultdict[bytes, list[Row]] = defaultdict(list)
        size = longest * np.dtype(np.int32).itemsize
        for key, rows in self.whole.items():
            if len(key) > size:
                found[key[:size]] += rows
        return found


def _closest(row: Row, rows: list[Row]) -> Row:
    """Of traces with the same tokens, the one with this sequence's advantages and log-probs; it is taken out."""
    best = min(range(min(len(rows), _COMPARED)), key=lambda place: (_distance(row, rows[place]), place))
    return rows.pop(best)


def _distance(row: Row, other: Row) -> float:
    """How far two rows' values lie apart; traces are rounded to four decimals."""
    total = 0.0
    for name in ("advantage", "logprob/rollout"):
        one, two = row.values.get(name), other.values.get(name)
        if not isinstance(one, np.ndarray) or not isinstance(two, np.ndarray):
            continue
        apart = np.abs(one - two[: len(one)]) if len(two) >= len(one) else np.zeros(0)
        known = apart[np.isfinite(apart)]
        total += round(float(known.mean()), 3) if len(known) else 0.0
    return total


def _with_trace(row: Row, trace: Row, is_cut: bool) -> Row:
    found = {key: value for key, value in trace.values.items() if key not in _NOT_FROM_TRACE}
    own = {key: value for key, value in row.values.items() if key != "sample_id" or found.get("sample_id") is None}
    values = {**found, **own}
    if is_cut:
        values["response"] = None
    if len(_part(row, "prompt_ids")) == len(_part(trace, "prompt_ids")):
        count = len(_part(row, "response_ids"))
        values |= {name: part[:count] for name in _FROM_TRACE if (part := trace.values.get(name)) is not None}
    return Row(row.number, values, (*row.problems, *trace.problems), row.place)


def _part(row: Row, name: str) -> Sequence[Any]:
    found = row.values.get(name)
    return [] if found is None else found


# ── traces alone ────────────────────────────────────────────────────────────────────────────────────────────────────


def _of_rollouts(path: Path) -> Run | None:
    folder = _rollouts_folder(path)
    if folder is None:
        return None
    one = _STEP.fullmatch(folder.name)
    steps = _traces(folder, _TRAIN)
    notes = ["no token export lies beside the traces: the trainer's own log-probs are not known"]
    if steps:
        steps = _shipped(steps, notes)
    else:
        steps = _traces(folder, _EVAL)
        notes.append("only evaluations are there: nothing in them was trained on")
    first = _first(steps.values())
    if not first or not all(_results.is_result(row) or _episodes.is_episode(row) or _episodes.is_trace(row) for row in first):
        return None
    root = folder.parent.parent if one else folder.parent
    checkpoints = _checkpoints(root)
    samples = _first_samples(steps.values())
    found = _names(samples)
    return Run(
        path=path,
        trainer="prime_rl",
        steps=tuple(steps),
        read=partial(_read_traces, steps),
        checkpoints=checkpoints,
        tokenizer=_tokenizer(root, checkpoints),
        columns=tuple(name for name in _TOKEN_COLUMNS if name in found),
        notes=("reward is the sum of score × weight over the rewards that were given", *_episodes.notes(samples), *notes),
    )


def _rollouts_folder(path: Path) -> Path | None:
    if not path.is_dir():
        return None
    return next((folder for folder in (path / "rollouts", path) if _traces(folder, (*_TRAIN, *_EVAL))), None)


def _traces(folder: Path, names: Sequence[str]) -> dict[int, Path]:
    """The best file of traces of each step; of one step where the folder is that step's own."""
    one = _STEP.fullmatch(folder.name)
    folders = {int(one[1]): folder} if one else _step_folders(folder)
    found = {step: [inner / name for name in names if (inner / name).is_file()] for step, inner in folders.items()}
    return {step: files[0] for step, files in found.items() if files}


def _shipped(steps: Mapping[int, Path], notes: list[str]) -> dict[int, Path]:
    """The steps that were trained on, where that is known."""
    collected = [step for step, file in steps.items() if file.parent.name == "all"]
    if not collected:
        return dict(steps)
    if len(collected) == len(steps):
        notes.append("what was trained on is not told apart: all finished episodes are read, also failed and filtered ones")
        return dict(steps)
    notes.append(f"step {_shown(collected)} has no effective/traces.jsonl: not trained on yet, left out")
    return {step: file for step, file in steps.items() if step not in collected}


def _read_traces(steps: Mapping[int, Path], step: int) -> Step:
    if step not in steps:
        raise no_step(step, steps)
    items: Callable[[], Iterator[Item]] = JsonLines(steps[step]).scan
    rows = (one for item in items() for one in (_samples(item) if isinstance(item, Row) else (item,)))
    return read_step(step, rows, _COLUMNS)


# ── beside it ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _checkpoints(root: Path) -> tuple[CheckpointAt, ...]:
    """Model folders by step; what a training saved goes before what it only sent to its sampler."""
    found: dict[int, Path] = {}
    for pattern in _CHECKPOINTS:
        for folder in sorted(root.glob(pattern)):
            named = _STEP.fullmatch(folder.name) or _STEP.fullmatch(folder.parent.name)
            if named and (folder / "config.json").is_file() | (folder / "adapter_config.json").is_file():
                found.setdefault(int(named[1]), folder)
    return tuple(CheckpointAt(step, folder) for step, folder in sorted(found.items()))


def _tokenizer(root: Path, checkpoints: Sequence[CheckpointAt]) -> Path | None:
    folders = [root, *(checkpoint.path for checkpoint in reversed(checkpoints))]
    return next((folder for folder in folders if has_tokenizer(folder)), None)
