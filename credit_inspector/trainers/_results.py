"""verifiers' older rows: one rollout a line with its chat and, where it was asked for, the tokens of each turn.

``vf-eval -s`` and prime-rl's ``train_rollouts.jsonl`` hold them (read in verifiers 0.1.14, ``utils/save_utils.py``, and in
``verifiers/legacy`` of commit a60a606): ``example_id``, ``prompt``, ``completion``, ``reward``, ``metrics`` and each metric once
more beside it. With ``-C trajectory`` there are steps, one a model call, with ``tokens``; a step's prompt repeats all that came
before it. Steps whose prompt begins with the tokens so far are one sequence, as prime-rl joined them; the others begin another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from credit_inspector.rollout import Problem
from credit_inspector.trainers._joined import split
from credit_inspector.trainers._rollouts import mismatch, own_columns
from credit_inspector.trainers._rows import Item, Row
from credit_inspector.trainers._values import flags, floats, integers, number

TOKEN_COLUMNS = ("logprob/rollout", "advantage")
_HEAVY = frozenset({"tokens", "response", "prompt", "completion"})
"""What of a step is read elsewhere, or repeats what the row holds."""

_KNOWN = frozenset(
    {
        "example_id",
        "prompt",
        "completion",
        "reward",
        "metrics",
        "trajectory",
        "is_truncated",
        "advantage",
        "rewards",
    }
)
_BOOKKEEPING = re.compile(r"num_.*|total_.*|.*_(calls|turns|tokens|ms|time|seconds|duration|count)", re.IGNORECASE)
"""Metrics that verifiers' monitors put beside the reward functions' values."""
_NO_METRIC = re.compile(r"answer|label|target|seed|step|idx|index|temperature|.*_?id|is_.*", re.IGNORECASE)
"""Columns that hold a number and are no metric."""


def _is_component(name: str, value: Any) -> bool:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and not _BOOKKEEPING.fullmatch(name) and not _NO_METRIC.fullmatch(name)


COLUMNS = own_columns(*TOKEN_COLUMNS)
FLAT_COLUMNS = replace(COLUMNS, is_component=_is_component)
"""Of rows from before there was ``metrics``: each number beside the reward that is no bookkeeping is taken for one."""


def is_result(row: Mapping[str, Any]) -> bool:
    """Whether a line is such a row."""
    has_keys = all(key in row for key in ("example_id", "prompt", "completion", "reward"))
    return has_keys and isinstance(row["prompt"], str | list | None) and isinstance(row["completion"], str | list | None)


def samples(row: Row) -> Iterator[Item]:
    """The rows of one line: one, or one for each sequence that its steps make."""
    yield from row.problems
    try:
        yield from _of_row(row)
    except RecursionError:
        yield Problem("bad-line", f"line {row.number} is nested too deeply, skipped")


def _of_row(row: Row) -> Iterator[Item]:
    about = _about(row.values)
    steps = _steps(row.values.get("trajectory"))
    name = next((found for step in steps if isinstance(found := step.get("trajectory_id"), str) and found), None)
    where, problems = name or str(row.number), list[Problem]()
    sequences = list(_sequences(steps, problems, where))
    yield from problems
    if not sequences:
        yield Row(row.number, {**about, "sample_id": name}, (), row.place)
    for place, sequence in enumerate(sequences):
        part = None if name is None else f"{name}/{place}" if len(sequences) > 1 else name
        values, misfits = sequence.values(part or where)
        texts = {"branch": place, "branches": len(sequences), **sequence.texts()} if len(sequences) > 1 else {}
        turns = [{key: value for key, value in step.items() if key not in _HEAVY} for step in sequence.steps]
        yield Row(row.number, {**about, **values, **texts, "turns": turns, "sample_id": part}, tuple(misfits), row.place)


def _about(row: Mapping[str, Any]) -> dict[str, Any]:
    metrics = row.get("metrics")
    metrics = metrics if isinstance(metrics, Mapping) else {}
    rest = {key: value for key, value in row.items() if key not in _KNOWN and not _is_repeated(key, value, metrics)}
    found = {f"row_{key}" if key in COLUMNS.mapping else key: value for key, value in rest.items()}
    if metrics:
        found["metrics"] = metrics
        found["rewards"] = {name: value for name, value in metrics.items() if not _BOOKKEEPING.fullmatch(name)}
    return found | {
        "group_id": row.get("example_id"),
        "prompt": row.get("prompt"),
        "response": row.get("completion"),
        "reward": row.get("reward"),
        "truncated": row.get("is_truncated"),
        "advantage": row.get("advantage"),
    }


def _is_repeated(key: str, value: Any, metrics: Mapping[str, Any]) -> bool:
    """Whether a column is a metric that stands in ``metrics`` as well."""
    return key in metrics and (metrics[key] == value or metrics[key] != metrics[key])


def _steps(value: Any) -> list[Mapping[str, Any]]:
    return [step for step in value if isinstance(step, Mapping)] if isinstance(value, list) else []


# ── steps → sequences ───────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Sequence:
    """Steps that make one sequence of tokens."""

    steps: list[Mapping[str, Any]] = field(default_factory=list)
    begin: int = 0
    """Where the first turn's completion begins."""
    ids: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    mask: list[NDArray[np.bool_]] = field(default_factory=list)
    logprobs: list[NDArray[np.float32]] = field(default_factory=list)
    advantages: list[NDArray[np.float64]] = field(default_factory=list)

    def add(self, step: Mapping[str, Any], turn: _Turn) -> None:
        """Put a step at the end; its prompt begins with the tokens so far."""
        between = len(turn.prompt) - len(self.ids)
        advantage = number(step.get("advantage")).value
        self.begin = self.begin if self.steps else len(turn.prompt)
        self.steps.append(step)
        self.mask += [np.zeros(between, np.bool_), turn.mask]
        self.logprobs += [np.full(between, np.nan, np.float32), turn.logprobs]
        self.advantages += [np.full(between, np.nan), np.full(len(turn.completion), np.nan if advantage is None else advantage)]
        self.ids = np.concatenate([turn.prompt, turn.completion])

    def values(self, where: str) -> tuple[dict[str, Any], list[Problem]]:
        """Prompt, response and what belongs to its tokens."""
        columns: dict[str, NDArray[Any]] = {
            "logprob/rollout": np.concatenate(self.logprobs),
            "advantage": np.concatenate(self.advantages),
        }
        given = {name: values for name, values in columns.items() if np.isfinite(values).any()}
        return split(self.ids, np.concatenate(self.mask), given, begin=self.begin, trained_only=TOKEN_COLUMNS, where=where)

    def texts(self) -> dict[str, Any]:
        """What its own messages say, where a row's steps make several sequences."""
        first, last = self.steps[0].get("prompt"), self.steps[-1]
        before, after = last.get("prompt"), last.get("completion")
        if isinstance(first, list) and isinstance(before, list) and isinstance(after, list):
            return {"prompt": first, "response": [*before[len(first) :], *after]}
        return {"prompt": first, "response": after}


@dataclass(frozen=True, slots=True)
class _Turn:
    """The tokens of one model call."""

    prompt: NDArray[np.int32]
    completion: NDArray[np.int32]
    mask: NDArray[np.bool_]
    logprobs: NDArray[np.float32]


def _sequences(steps: Sequence[Mapping[str, Any]], problems: list[Problem], where: str) -> Iterator[_Sequence]:
    current = _Sequence()
    for place, step in enumerate(steps):
        turn = _turn(step.get("tokens"), place, problems, where)
        if turn is None:
            continue
        if len(turn.prompt) < len(current.ids) or not np.array_equal(turn.prompt[: len(current.ids)], current.ids):
            yield current
            current = _Sequence()
        current.add(step, turn)
    if current.steps:
        yield current


def _turn(tokens: Any, place: int, problems: list[Problem], where: str) -> _Turn | None:
    if not isinstance(tokens, Mapping):
        return None
    prompt, completion = integers(tokens.get("prompt_ids")), integers(tokens.get("completion_ids"))
    if prompt is None or completion is None:
        problems.append(Problem("bad-ids", f"turn {place}: no lists of token ids, left out", where))
        return None
    count = len(completion)
    given = tokens.get("completion_mask")
    mask = np.ones(count, np.bool_) if given is None else flags(given)
    if mask is None or len(mask) != count:
        said = f"turn {place}: {mismatch(count, 0 if mask is None else len(mask), 'loss_mask')}: none counts as trained"
        problems.append(Problem("length-mismatch", said, where))
        mask = np.zeros(count, np.bool_)
    return _Turn(prompt, completion, mask, _logprobs(tokens.get("completion_logprobs"), count, place, problems, where))


def _logprobs(value: Any, count: int, place: int, problems: list[Problem], where: str) -> NDArray[np.float32]:
    read = floats(value) if value else None
    if read is not None and len(read.values) == count:
        return read.values
    if value:
        found = 0 if read is None else len(read.values)
        said = f"turn {place}: {mismatch(count, found, 'logprob/rollout')}, left out"
        problems.append(Problem("length-mismatch", said, where))
    return np.full(count, np.nan, np.float32)
