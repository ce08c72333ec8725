"""Countdown: rewards for a part of the way, and TinyZero's own score.

The numbers and the target come from what the trainer recorded beside a response (``Rollout.extra``): at its top, or under
``ground_truth``, ``reward_model`` or ``extra_info`` as verl has them, also as JSON text.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from credit_inspector.errors import MissingColumn
from credit_inspector.shaping import Change, ShapingInputs, shaping
from credit_inspector.shaping.expressions import as_python, exact, numbers_in
from credit_inspector.shaping.format import format_of

_INSIDE = ("ground_truth", "reward_model", "extra_info")


@dataclass(frozen=True, slots=True)
class Task:
    """A Countdown problem."""

    numbers: tuple[int, ...]
    target: int


@dataclass(frozen=True, slots=True)
class Process:
    """How far an answer comes."""

    parsable: bool
    all_used: bool
    """Every given number stands in the answer, as often as it was given."""
    each_once: bool
    """No number stands in it more often than given."""
    closeness: float
    """max(0, 1 − |value − target| / max(1, |target|)), in exact fractions; 0 where there is no value."""
    correct: bool


def process_of(text: str, task: Task) -> Process:
    """Look at a response's last answer."""
    found = format_of(text)
    if found.answer is None:
        return Process(False, False, False, 0.0, False)
    used, given = Counter(numbers_in(found.answer)), Counter(task.numbers)
    value = exact(found.answer)
    all_used = not given - used
    each_once = bool(used) and not used - given
    near = Fraction(0) if value is None else max(Fraction(0), 1 - abs(value - task.target) / max(1, abs(task.target)))
    correct = value == task.target and all_used and each_once
    return Process(value is not None, all_used, each_once, float(near), correct)


def tinyzero_score(text: str, task: Task) -> float:
    """TinyZero's ``compute_score`` (git 95df88f, ``verl/utils/reward_score/countdown.py``): 0, 0.1 or 1.

    ``text`` is prompt and response together: what stands after the first ``Assistant:`` (or ``<|im_start|>assistant``) counts,
    and of that the last line alone. Several answers, words after the answer, ``**`` and ``//`` all pass, as they do there.
    """
    for marker in ("Assistant:", "<|im_start|>assistant"):
        if marker in text:
            text = text.split(marker, 1)[1]
            break
    else:
        return 0.0
    answers = re.findall(r"<answer>(.*?)</answer>", text.split("\n")[-1])
    if not answers:
        return 0.0
    equation = answers[-1].strip()
    try:
        used = sorted(int(run) for run in re.findall(r"\d+", equation))
    except ValueError:  # more digits than Python converts
        return 0.1
    value = as_python(equation) if used == sorted(task.numbers) else None
    try:
        return 1.0 if value is not None and abs(value - task.target) < 1e-5 else 0.1
    except OverflowError:  # an integer too large to be held against a float
        return 0.1


@shaping("process_reward", main="weight")
def process_reward(
    step: ShapingInputs,
    *,
    weight: float = 0.5,
    all_used: float = 1.0,
    each_once: float = 1.0,
    closeness: float = 1.0,
    correct: float = 0.0,
    replace: bool = False,
) -> Change:
    """Countdown: adds weight times the weighted mean of all_used, each_once, closeness and correct.

    The numbers that follow are the parts' weights in that mean. ``replace=1`` takes it instead of the reward. A response that
    names no numbers and target, or has no text, is left without a reward.
    """
    parts = {"all_used": all_used, "each_once": each_once, "closeness": closeness, "correct": correct}
    total = sum(abs(share) for share in parts.values()) or 1.0
    tasks = _tasks(step)
    added = np.full(step.table.n_rows, np.nan)
    for row, text, task in _known(step, tasks):
        found = process_of(text, task)
        added[row] = sum(share * float(getattr(found, name)) for name, share in parts.items()) / total
    missing = _missing(tasks)
    if replace:
        return Change(reward=np.where(np.isfinite(step.reward), weight * added, np.nan), replaces=True, note=missing)
    return Change(reward=step.reward + weight * added, note=missing)


@shaping("tinyzero_reward", main="weight")
def tinyzero_reward(step: ShapingInputs, *, weight: float = 1.0, assume_marker: bool = False) -> Change:
    """TinyZero's Countdown score (0, 0.1 or 1) instead of the reward, bit for bit with its gaps.

    ``assume_marker=1`` scores the response as if ``Assistant:`` stood before it; without that marker TinyZero gives 0.
    """
    tasks = _tasks(step)
    scores = np.full(step.table.n_rows, np.nan)
    marked = False
    for row, text, task in _known(step, tasks):
        whole = f"Assistant:{text}" if assume_marker else (step.table.rollouts[row].prompt or "") + text
        marked |= "Assistant:" in whole or "<|im_start|>assistant" in whole
        scores[row] = weight * tinyzero_score(whole, task)
    notes = [] if marked else ["tinyzero_reward: no text holds 'Assistant:', so that all score 0; see assume_marker"]
    notes += [said] if (said := _missing(tasks)) else []
    return Change(reward=scores, replaces=True, note="; ".join(notes))


def task_of(extra: Mapping[str, Any]) -> Task | None:
    """The problem that stands beside a response, or ``None``."""
    for held in _mappings(extra, 0):
        numbers = held.get("numbers", held.get("nums"))
        target = held.get("target")
        if isinstance(numbers, list | tuple | np.ndarray) and _whole(target) and all(map(_whole, numbers)):
            return Task(tuple(int(number) for number in numbers), int(target))  # type: ignore[arg-type]
    return None


def _mappings(held: object, depth: int) -> Iterator[Mapping[str, Any]]:
    if isinstance(held, str) and len(held) < 10_000 and held.lstrip().startswith("{"):
        try:
            held = json.loads(held)
        except ValueError:
            return
    if isinstance(held, Mapping):
        yield held
        if depth < 3:  # reward_model → ground_truth → text
            for name in _INSIDE:
                if name in held:
                    yield from _mappings(held[name], depth + 1)


def _whole(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1


def _tasks(step: ShapingInputs) -> list[Task | None]:
    found = [task_of(rollout.extra) for rollout in step.table.rollouts]
    if not any(found):
        raise MissingColumn(
            f"{step.named}: no response says which numbers and which target it had",
            wanted="numbers and target in the recorded extras, or in their ground_truth",
        )
    return found


def _known(step: ShapingInputs, tasks: Sequence[Task | None]) -> Iterator[tuple[int, str, Task]]:
    for row, (text, task) in enumerate(zip(step.responses, tasks, strict=True)):
        if text is not None and task is not None:
            yield row, text, task


def _missing(tasks: Sequence[Task | None]) -> str:
    missing = sum(task is None for task in tasks)
    return f"{missing} of {len(tasks)} responses name no numbers and target" if missing else ""
