"""Groups without a signal."""

from __future__ import annotations

from credit_inspector.checks import check
from credit_inspector.outcome import dead_groups
from credit_inspector.panel import Finding, Severity
from credit_inspector.shares import percent
from credit_inspector.store import Store

CODE = "dead-groups"
WARN = 0.5


@check(CODE)
def dead(store: Store) -> list[Finding]:
    """How many groups have one reward for all: nothing is learned from them but the KL term."""
    best, other, total = measure(store)
    if not total or best + other == 0:
        return []
    part = (best + other) / total
    return [
        Finding(
            code=CODE,
            severity=Severity.WARNING if part > WARN else Severity.INFO,
            sentence=f"{percent(part)} of the groups carry no policy signal: {best} all at the best reward, {other} below it.",
            how_sure=f"counted over {total} groups, each at every optimizer step that trained on it",
            why="With a group baseline, equal rewards give every advantage 0; only the KL term moves these tokens.",
            do="Sample harder prompts where all are right, easier ones where all are wrong, or drop such groups (DAPO).",
            numbers={"share": part, "all_best": best, "all_below": other, "groups": total},
        )
    ]


def measure(store: Store) -> tuple[int, int, int]:
    """``(all at the best reward, dead below it, groups)`` over all steps."""
    counts = [dead_groups(store.read_step(step, [])[0]) for step in store.steps]
    best, other, total = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0, 0)
    return best, other, total
