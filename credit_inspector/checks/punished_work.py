"""Good work that was punished."""

from __future__ import annotations

import numpy as np

from credit_inspector.checks import check
from credit_inspector.checks.filler_paid import LABELS, pay_column
from credit_inspector.outcome import wrong
from credit_inspector.panel import Finding, Severity, TokenLink
from credit_inspector.shares import Share, share
from credit_inspector.store import Store

CODE = "good-work-punished"
SHARED = 0.25
"""How much more often right siblings have a run of tokens than wrong ones, for it to count as good work."""
WARN = 0.05
WORST = 10


@check(CODE)
def punished_work(store: Store) -> list[Finding]:
    """In wrong answers, how much of the negative credit fell on runs of tokens that right siblings have more often."""
    total, links, tokens = measure(store)
    if not total.low > WARN:
        return []
    return [
        Finding(
            code=CODE,
            severity=Severity.WARNING,
            sentence=f"In wrong answers, {total.text} of the negative credit fell on tokens that right siblings share.",
            how_sure=f"{total.interval}; {total.responses} wrong answers, {tokens} trained tokens; evidence: siblings",
            why="A wrong answer is pushed down as a whole, its good steps with it; the same step is pushed up elsewhere, and "
            "the two cancel.",
            do="A process reward or values by sampling separate the step that failed from the ones before it.",
            cannot_tell="A run of tokens shared with right siblings may still be the cause where it stands in another place.",
            links=links,
            numbers={"share": total.value, "low": total.low, "high": total.high},
        )
    ]


def measure(store: Store) -> tuple[Share, tuple[TokenLink, ...], int]:
    """``(share, worst responses, trained tokens)``; the share is NaN where there are no siblings to compare."""
    parts: list[float] = []
    wholes: list[float] = []
    names: list[str] = []
    links: list[tuple[float, TokenLink]] = []
    tokens = 0
    for step in store.steps:
        table, _ = store.read_step(step, [*LABELS, "credit/contrast"])
        column = pay_column(table)
        if not column or not table.has("credit/contrast"):
            continue
        pay = table.values(column)
        down = np.where(np.isfinite(pay) & (pay < 0), -pay, 0.0)
        good = table.sum_by_row(np.where(table.values("credit/contrast") >= SHARED, down, 0.0))
        whole = table.sum_by_row(down)
        for row in np.flatnonzero(wrong(table) & (whole > 0)):
            name = table.rollouts[row].sample_id
            parts.append(good[row])
            wholes.append(whole[row])
            names.append(name)
            tokens += int(table.trained_lengths[row])
            links.append((good[row], TokenLink(table.step, name, 0, int(table.lengths[row]))))
    worst = tuple(link for value, link in sorted(links, key=lambda pair: -pair[0])[:WORST] if value > 0)
    return share(np.array(parts), np.array(wholes), names), worst, tokens
