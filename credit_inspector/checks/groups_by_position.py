"""Groups cut by row position instead of by prompt."""

from __future__ import annotations

from credit_inspector.checks import check
from credit_inspector.checks._stored import unexplained_steps
from credit_inspector.panel import Finding, Severity, TokenLink
from credit_inspector.store import Store

CODE = "groups-by-position"


@check(CODE)
def groups_by_position(store: Store) -> list[Finding]:
    """Whether stored advantages follow from blocks of consecutive rows, and not from the groups that the run names.

    Rows that were interleaved over prompts, or gathered from several processes, and then reshaped in blocks of n make
    every "group" a mix of prompts, without any error.
    """
    found = [
        (detection.blocks, table.n_rows, TokenLink(table.step, table.rollouts[0].sample_id))
        for table, detection in unexplained_steps(store)
        if detection.blocks is not None and (table.group >= 0).any()
    ]
    if not found:
        return []
    size, rows, first = found[0]
    steps = f"step {first.step}" if len(found) == 1 else f"{len(found)} of {len(store.steps)} steps, first at {first.step}"
    return [
        Finding(
            code=CODE,
            severity=Severity.WARNING,
            sentence=f"Stored advantages match blocks of {size} consecutive rows, not the group ids ({steps}).",
            how_sure=f"each of {rows} stored advantages of step {first.step} follows from its block of rows",
            why="A response is then compared with answers to other prompts, and what it is paid says how easy its prompt was.",
            do="Group by the prompt's id where advantages are computed, or sort rows by it before the reshape.",
            links=tuple(link for _, _, link in found[:10]),
            numbers={"block": float(size), "steps": len(found)},
        )
    ]
