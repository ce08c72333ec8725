"""verifiers: ``traces.jsonl`` of its version 1, and ``results.jsonl`` before that.

- Since 0.2: ``outputs/<run>/traces.jsonl``, one ``Episode`` a line (``_episodes.py``), or one bare trace a line in files from
  before August 2026. Token ids, masks and log-probs are in it where the client trains; an evaluation over an API leaves text.
- Before: ``vf-eval -s`` → ``outputs/evals/<env>--<model>/<run>/results.jsonl`` beside ``metadata.json`` (``_results.py``).

A single trace file of prime-rl is read here as well; its output folder is ``prime_rl.py``'s. Read in verifiers 0.4.0, 0.1.14 and
commit a60a606.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from credit_inspector.errors import FormatError
from credit_inspector.rollout import Problem, Run, Step
from credit_inspector.trainers import ReadOptions, _episodes, _results, reader
from credit_inspector.trainers._rollouts import Columns, no_step, read_step
from credit_inspector.trainers._rows import Item, JsonLines, Places, Row, by_step, first_rows, kind

_FILES = ("traces.jsonl", "results.jsonl")
_STEP = re.compile(r"step_(\d{1,9})")
_ABOVE = 4


class _Kind(NamedTuple):
    """One of the formats."""

    samples: Callable[[Row], Iterator[Item]]
    columns: Columns
    names: tuple[str, ...]


_V1 = _Kind(_episodes.samples, _episodes.COLUMNS, _episodes.TOKEN_COLUMNS)
_OLD = _Kind(_results.samples, _results.COLUMNS, _results.TOKEN_COLUMNS)
_OLDEST = _Kind(_results.samples, _results.FLAT_COLUMNS, _results.TOKEN_COLUMNS)


@reader("verifiers")
def open_verifiers(path: Path, options: ReadOptions) -> Run | None:
    """Open a run's folder, or its file.

    Raises:
        FormatError: the file is named as verifiers names it, lies beside its ``metadata.json``, and holds no row.
    """
    file = _file(path)
    if file is None:
        return None
    first = first_rows(file)
    if not first:
        _refuse_empty(file)
        return None
    form = _form(first)
    if form is None:
        return None
    kinds = [_episodes.work_of(row)[0] for row in first]
    train = "train" in kinds
    steps = _steps(file, first)
    rows = [item.values for values in first for item in form.samples(Row(0, values)) if isinstance(item, Row)]
    names = tuple(name for name in form.names if any(isinstance(row.get(name), np.ndarray) for row in rows))
    return Run(
        path=path,
        trainer="verifiers",
        steps=tuple(steps),
        read=partial(_read, file, form, steps, train),
        columns=names,
        notes=(*_notes(form, first, names, train), *_episodes.notes(rows)),
    )


def _file(path: Path) -> Path | None:
    if path.is_file():
        return path if kind(path) == "jsonl" else None
    return next((path / name for name in _FILES if (path / name).is_file()), None) if path.is_dir() else None


def _refuse_empty(file: Path) -> None:
    """A file without rows is verifiers' only where its ``metadata.json`` says so."""
    if file.name == "results.jsonl" and (file.parent / "metadata.json").is_file():
        raise FormatError(f"{file} has no row that can be read", wanted="a rollout a line")


def _form(first: Sequence[Mapping[str, Any]]) -> _Kind | None:
    if all(_episodes.is_episode(row) or _episodes.is_trace(row) for row in first):
        return _V1
    if not all(map(_results.is_result, first)):
        return None
    return _OLD if any(isinstance(row.get("metrics"), Mapping) for row in first) else _OLDEST


# ── steps ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _steps(file: Path, first: Sequence[Mapping[str, Any]]) -> dict[int, Places | None]:
    """The steps in a file and where they lie; ``None`` is the whole file, which is then not read to find out."""
    above = [_STEP.fullmatch(folder.name) for folder in file.absolute().parents[:_ABOVE]]
    if named := next((found for found in above if found), None):
        return {int(named[1]): None}
    if all(_episodes.work_of(row)[1] is None for row in first):
        return {0: None}
    return dict(by_step(JsonLines(file), lambda row: _episodes.work_of(row.values)[1], default=0))


def _read(file: Path, form: _Kind, steps: Mapping[int, Places | None], train: bool, step: int) -> Step:
    if step not in steps:
        raise no_step(step, steps)
    table, places = JsonLines(file), steps[step]
    items: Iterator[Item] = table.scan() if places is None else chain(places.problems, table.at(places))
    return read_step(step, _samples(items, form, train), form.columns)


def _samples(items: Iterator[Item], form: _Kind, train: bool) -> Iterator[Item]:
    skipped = 0
    for item in items:
        if isinstance(item, Problem):
            yield item
        elif train and _episodes.work_of(item.values)[0] == "eval":
            skipped += 1
        else:
            yield from form.samples(item)
    if skipped:
        yield Problem("eval-rows", f"{skipped} lines are of evaluations, not of the training: left out")


# ── what it says of itself ──────────────────────────────────────────────────────────────────────────────────────────


def _notes(form: _Kind, first: Sequence[Mapping[str, Any]], names: Sequence[str], train: bool) -> Iterator[str]:
    if form is not _V1:
        yield "groups are by verifiers' example_id"
        yield "reward is verifiers' weighted sum; which metrics are reward functions, and their weights, is not in the file"
    else:
        named = any(isinstance(row.get("group"), Mapping) for row in first)
        yield "groups are those that the trainer named" if named else "groups are by task: the file names no groups"
        yield "reward is the sum of score × weight over the rewards that were given"
    if "logprob/rollout" in names:
        yield "logprob/rollout is the sampling client's"
    if not train:
        yield "nothing says that these rollouts were trained on: an evaluation has sampled tokens and no trained ones"
