"""Right answers that are pushed down because of a reward component."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from credit_inspector.checks import check
from credit_inspector.checks._parts import named, parts
from credit_inspector.components import Decomposition, advantages
from credit_inspector.panel import Finding, Severity, TokenLink
from credit_inspector.shares import percent
from credit_inspector.store import Store
from credit_inspector.table import Floats, TokenTable

CODE = "right-but-negative"
WARN = 0.05
"""Share of right answers pushed down from which on it is more than a tail."""


class Turned(NamedTuple):
    """One right answer with a negative advantage."""

    link: TokenLink
    advantage: float
    without: float
    """Its advantage without the component."""
    component: str


@check(CODE)
def right_but_negative(store: Store) -> list[Finding]:
    """Answers whose main reward component is at its best, whose advantage is negative, and would not be without another one.

    The main component is the one with the largest spread inside groups. Which component turned the sign is told by what
    the advantage would be if that component had not been there.
    """
    turned, right = measure(store)
    if not turned:
        return []
    blame, count = Counter(each.component for each in turned).most_common(1)[0]
    worst = turned[0]
    part = len(turned) / right
    return [
        Finding(
            code=CODE,
            severity=Severity.WARNING if part > WARN else Severity.INFO,
            sentence=f"{len(turned)} of {right} right answers are correct but negative, {count} of them because of "
            f"{named(blame)}: {worst.link.sample_id} has A = {worst.advantage:.4g}, without {named(worst.component)} "
            f"{worst.without:+.4g}.",
            how_sure=f"{percent(part)} of right answers; each advantage recomputed by the run's rule without that component",
            why="The baseline mixes components: a penalty can move a right answer below the mean of its group.",
            do="Lower the component's weight, or apply it only where the group's other answers are right too.",
            cannot_tell="Whether the component is meant to outweigh being right.",
            links=tuple(each.link for each in turned[:10]),
            numbers={
                "answers": len(turned),
                "right": right,
                "share": part,
                "advantage": worst.advantage,
                "advantage_without": worst.without,
            },
        )
    ]


def measure(store: Store) -> tuple[list[Turned], int]:
    """``(right answers that a component pushed down, worst first; right answers)`` over all steps."""
    turned: list[Turned] = []
    right = 0
    for table, split in parts(store):
        if len(split.names) == 1:
            continue
        main = int(np.argmax(np.nan_to_num(split.inside)))
        best = _best(split, main)
        right += int(np.count_nonzero(best))
        negative = np.flatnonzero(best & (np.nan_to_num(split.advantage) < 0))
        if len(negative):
            turned += _blamed(table, split, main, negative)
    return sorted(turned, key=lambda each: each.advantage), right


def _best(split: Decomposition, main: int) -> NDArray[np.bool_]:
    """``[N]`` answers whose main component is above the middle of its range in the step."""
    values = split.reward[main]
    known = np.isfinite(values)
    if not known.any() or split.inside[main] == 0:
        return np.zeros(len(values), np.bool_)
    middle = (values[known].min() + values[known].max()) / 2
    best: NDArray[np.bool_] = known & (np.where(known, values, middle) > middle)
    return best


def _blamed(table: TokenTable, split: Decomposition, main: int, rows: NDArray[np.int64]) -> list[Turned]:
    """For each row the component without which its advantage is highest, where that is no longer negative."""
    without = {k: _without(table, split, k) for k in range(len(split.names)) if k != main and not split.idle[k]}
    found = []
    for row in rows:
        best = max(without, key=lambda k: np.nan_to_num(without[k][row], nan=-np.inf), default=None)
        if best is not None and without[best][row] >= 0:
            link = TokenLink(table.step, table.rollouts[row].sample_id, 0, int(table.lengths[row]))
            found.append(Turned(link, float(split.advantage[row]), float(without[best][row]), split.names[best]))
    return found


def _without(table: TokenTable, split: Decomposition, component: int) -> Floats:
    rest = np.sum(np.delete(split.reward, component, axis=0), axis=0)
    if table.algorithm is None:
        return np.full(table.n_rows, np.nan)
    return advantages(table, table.algorithm, rest)
