"""The sums of a what-if over all of its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from credit_inspector.panel import TokenLink
from credit_inspector.shares import Share, resampled, share
from credit_inspector.table import Floats
from credit_inspector.whatif.step import MEASURES, RowSums, StepWhatIf


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePair:
    """A share before and after, and its change with a 95 % interval from the same resampled responses."""

    before: Share
    after: Share
    change: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many responses or groups had a signal, and how many gained or lost all of it."""

    all: int
    before: int
    after: int
    gained: int
    lost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over steps; by measure (``credit/delivered``, ``credit/coefficient``) where they are of credit."""

    filler: Mapping[str, SharePair]
    """In right answers: the part of the positive credit that goes to unearned tokens. Empty where nobody looked."""
    answer: Mapping[str, SharePair]
    """The part of it that goes to the answer span."""
    push: Mapping[str, Mapping[str, tuple[float, float]]]
    """By measure and class (``right``, ``wrong``): the sum of it over all tokens, before and after."""
    size: Mapping[str, tuple[float, float]]
    """By measure: Σ|c| after / before, and √(Σc² after / Σc² before); NaN where nothing was pushed before."""
    up_length: tuple[float, float]
    """Mean length of what is pushed up, weighted by its positive coefficient, before and after; in tokens."""
    down_length: tuple[float, float]
    flips: Mapping[str, int]
    responses_up_to_down: int
    responses_down_to_up: int
    turned: tuple[TokenLink, ...]
    """Right answers whose advantage turned negative, the most negative first."""
    responses: Counts
    groups: Counts
    clipped: tuple[int, int] | None


def totals(steps: Sequence[StepWhatIf]) -> Totals:
    """Add steps up."""
    measures = [name for name in MEASURES if all(name in step.sums for step in steps)]
    turned = sorted(
        (float(step.advantage.after[row]), TokenLink(step.step, step.sample_ids[row], 0, int(step.length[row])))
        for step in steps
        for row in np.flatnonzero(step.turned)
    )
    was, now = _join(steps, lambda step: step.advantage.before), _join(steps, lambda step: step.advantage.after)
    clips = [step.clipped for step in steps if step.clipped is not None]
    with np.errstate(invalid="ignore"):
        fallen, risen = int(np.count_nonzero((was > 0) & (now < 0))), int(np.count_nonzero((was < 0) & (now > 0)))
    return Totals(
        filler=_shares(steps, measures, lambda sums: sums.up_unearned) if any(s.unearned_known for s in steps) else {},
        answer=_shares(steps, measures, lambda sums: sums.up_answer) if any(s.answer_known for s in steps) else {},
        push={name: _push(steps, name) for name in measures},
        size={name: _size(steps, name) for name in measures},
        up_length=_length(steps, lambda sums: sums.up),
        down_length=_length(steps, lambda sums: -sums.down),
        flips={name: sum(step.flips[name] for step in steps) for name in steps[0].flips} if steps else {},
        responses_up_to_down=fallen,
        responses_down_to_up=risen,
        turned=tuple(link for _, link in turned),
        responses=_live([(step.signal.before > 0, step.signal.after > 0) for step in steps]),
        groups=_live([step.live_groups() for step in steps]),
        clipped=(sum(c[0] for c in clips), sum(c[1] for c in clips)) if clips else None,
    )


Pick = Callable[[RowSums], Floats]


def _shares(steps: Sequence[StepWhatIf], measures: Sequence[str], part: Pick) -> dict[str, SharePair]:
    return {name: _share_pair(steps, name, part) for name in measures}


def _share_pair(steps: Sequence[StepWhatIf], measure: str, part: Pick) -> SharePair:
    names = [step.sample_ids[row] for step in steps for row in np.flatnonzero(step.right)]
    sides = []
    for side in (0, 1):
        parts = _join(steps, lambda step, side=side: part(step.sums[measure][side])[step.right])  # type: ignore[misc]
        wholes = _join(steps, lambda step, side=side: step.sums[measure][side].up[step.right])  # type: ignore[misc]
        sides.append((parts, wholes))
    before, after = (share(parts, wholes, names) for parts, wholes in sides)
    low, high = _interval(sides, names)
    return SharePair(before=before, after=after, change=after.value - before.value, low=low, high=high)


def _interval(sides: Sequence[tuple[Floats, Floats]], names: Sequence[str]) -> tuple[float, float]:
    """2.5 % and 97.5 % of after − before, each draw taken on both sides, whole responses at a time."""
    _, ratios = resampled(sides, names)
    change = ratios[1] - ratios[0]
    if not np.isfinite(change).any():
        return np.nan, np.nan
    low, high = np.nanpercentile(change, [2.5, 97.5])
    return float(low), float(high)


def _push(steps: Sequence[StepWhatIf], measure: str) -> dict[str, tuple[float, float]]:
    found = {}
    for kind in ("right", "wrong"):
        before, after = (
            sum(float((step.sums[measure][side].up + step.sums[measure][side].down)[getattr(step, kind)].sum()) for step in steps)
            for side in (0, 1)
        )
        found[kind] = (before, after)
    return found


def _size(steps: Sequence[StepWhatIf], measure: str) -> tuple[float, float]:
    absolute = [sum(float(step.sums[measure][side].absolute.sum()) for step in steps) for side in (0, 1)]
    squares = [sum(float(step.sums[measure][side].squares.sum()) for step in steps) for side in (0, 1)]
    if absolute[0] <= 0 or squares[0] <= 0:
        return np.nan, np.nan
    return absolute[1] / absolute[0], float(np.sqrt(squares[1] / squares[0]))


def _length(steps: Sequence[StepWhatIf], pick: Pick) -> tuple[float, float]:
    lengths = _join(steps, lambda step: step.length)
    found = []
    for side in (0, 1):
        pushed = _join(steps, lambda step, side=side: pick(step.sums["credit/coefficient"][side]))  # type: ignore[misc]
        found.append(float((pushed * lengths).sum() / pushed.sum()) if pushed.sum() > 0 else np.nan)
    return found[0], found[1]


def _live(sides: Sequence[tuple[np.ndarray, np.ndarray]]) -> Counts:
    was = np.concatenate([np.zeros(0, bool), *(pair[0] for pair in sides)])
    now = np.concatenate([np.zeros(0, bool), *(pair[1] for pair in sides)])
    count = np.count_nonzero
    return Counts(
        all=len(was), before=int(count(was)), after=int(count(now)), gained=int(count(~was & now)), lost=int(count(was & ~now))
    )


def _join(steps: Sequence[StepWhatIf], pick: Callable[[StepWhatIf], Floats]) -> Floats:
    return np.concatenate([np.zeros(0), *map(pick, steps)])
