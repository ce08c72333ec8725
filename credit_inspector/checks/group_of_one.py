"""Groups of a single response."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from credit_inspector.checks import check
from credit_inspector.checks._groups import compares_in_groups
from credit_inspector.checks._stored import COLUMNS, TOLERANCE, by_response
from credit_inspector.panel import Finding, Severity, TokenLink
from credit_inspector.store import Store
from credit_inspector.table import TokenTable

CODE = "group-of-one"


@check(CODE)
def group_of_one(store: Store) -> list[Finding]:
    """Responses that are alone in their group, under a rule that compares inside groups, and what was stored for them.

    A sample deviation of one value is no number, and trainers differ in what they make of it: the raw reward (verl), 0 (TRL).
    """
    what: Counter[str] = Counter()
    total, links = 0, []
    for step in store.steps:
        table, _ = store.read_step(step, COLUMNS)
        if not compares_in_groups(table.algorithm):
            continue
        lone = _alone(table)
        what.update(_stored(table, lone))
        total += table.n_rows
        links += [TokenLink(step, table.rollouts[row].sample_id, 0, int(table.lengths[row])) for row in lone]
    if not links:
        return []
    values = "; ".join(f"{text} ({count})" if len(what) > 1 else text for text, count in what.most_common())
    return [
        Finding(
            code=CODE,
            severity=Severity.WARNING,
            sentence=f"{len(links)} of {total} responses are a single-row group, with no baseline: {values}.",
            how_sure="counted; a group is the responses to one prompt at one step",
            why="One response has no mean and no spread to compare with: it is not trained on, or pushed by its raw reward.",
            do="Sample two or more responses a prompt, keep groups whole in a batch, or choose a rule with a batch baseline.",
            links=tuple(links[:10]),
            numbers={"responses": len(links), "of": total, **{text.replace(" ", "_"): count for text, count in what.items()}},
        )
    ]


def _alone(table: TokenTable) -> NDArray[np.int64]:
    """Rows alone in their group. A response without a reward still makes it a group of two, badly scored."""
    known = table.group >= 0
    size = np.bincount(table.group[known], minlength=1)
    return np.flatnonzero(known & (size[table.group] == 1))


def _stored(table: TokenTable, rows: NDArray[np.int64]) -> list[str]:
    """What each of these rows has as its stored advantage, in words."""
    stored = by_response(table)
    if not np.isfinite(stored).any() and not any(r.advantage is not None for r in table.rollouts):
        return ["no advantage was stored"] * len(rows)
    return [_in_words(float(stored[row]), float(table.reward[row])) for row in rows]


def _in_words(value: float, reward: float) -> str:
    if not np.isfinite(value):
        return "stored value is missing"
    if value == 0:
        return "stored value is zeroed"
    if abs(value - reward) <= TOLERANCE * max(1.0, abs(reward)):
        return "stored value equals the raw reward"
    return "stored value is neither 0 nor the reward"
