"""Responses without a reward."""

from __future__ import annotations

import numpy as np

from credit_inspector.checks import check
from credit_inspector.checks._stored import COLUMNS, by_response
from credit_inspector.panel import Finding, Severity, TokenLink
from credit_inspector.shares import percent
from credit_inspector.store import Store
from credit_inspector.table import TokenTable

CODE = "rewards-missing"


@check(CODE)
def rewards_missing(store: Store) -> list[Finding]:
    """How many responses have no reward in steps where others have one, and whether the trainer took that for 0.

    A missing reward that becomes 0 shifts the baseline of its whole group. Steps without any reward are not counted: their
    rewards were not recorded.
    """
    missing, total, shrunk, zeroed = 0, 0, 0, 0
    links: list[TokenLink] = []
    for step in store.steps:
        table, _ = store.read_step(step, COLUMNS)
        scored = np.isfinite(table.reward)
        if not scored.any():
            continue
        missing += int(np.count_nonzero(~scored))
        total += table.n_rows
        known = table.group >= 0
        shrunk += len(np.unique(table.group[known & ~scored]))
        zeroed += _taken_for_zero(table)
        links += [TokenLink(step, table.rollouts[row].sample_id, 0, int(table.lengths[row])) for row in np.flatnonzero(~scored)]
    if not missing:
        return []
    as_zero = f" {zeroed} of them have a stored advantage all the same: the trainer counted a reward." if zeroed else ""
    return [
        Finding(
            code=CODE,
            severity=Severity.WARNING,
            sentence=f"{missing} of {total} responses ({percent(missing / total)}) have no reward; "
            f"{shrunk} groups are compared without them.{as_zero}",
            how_sure="counted; a reward that is NaN or absent is missing, and is never taken for 0",
            why="Only responses with a reward have an advantage here. A missing reward taken for 0 moves all of its group.",
            do="Look at why the grader gave nothing (timeouts, errors), and leave such responses out of the group's mean.",
            links=tuple(links[:10]),
            numbers={"responses": missing, "of": total, "groups": shrunk, "stored_all_the_same": zeroed},
        )
    ]


def _taken_for_zero(table: TokenTable) -> int:
    return int(np.count_nonzero(~np.isfinite(table.reward) & (np.nan_to_num(by_response(table)) != 0)))
