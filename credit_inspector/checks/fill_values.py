"""Log-probs that are none: above zero."""

from __future__ import annotations

from collections import Counter

import numpy as np

from credit_inspector.checks import check
from credit_inspector.metrics.surprisal import ROUNDING
from credit_inspector.panel import Finding, Severity, TokenLink
from credit_inspector.store import Store

CODE = "logprob-above-zero"
NAMES = ("logprob/policy", "logprob/old", "logprob/ref", "logprob/rollout")


@check(CODE)
def fill_values(store: Store) -> list[Finding]:
    """Stored log-probs above 0: at masked positions a fill value, at trained ones no log-prob at all.

    Nothing here counts masked positions; a trainer's own KL or entropy that sums them up depends on the padding.
    """
    masked: Counter[str] = Counter()
    trained: Counter[str] = Counter()
    links: list[TokenLink] = []
    for step in store.steps:
        table, _ = store.read_step(step, NAMES)
        for name in filter(table.has, NAMES):
            above = table.values(name) > ROUNDING
            masked[name] += int(np.count_nonzero(above & ~table.loss_mask))
            trained[name] += int(np.count_nonzero(wrong := above & table.loss_mask))
            for place in np.flatnonzero(wrong)[: 10 - len(links)]:
                at = int(table.position[place])
                links.append(TokenLink(step, table.rollouts[table.row[place]].sample_id, at, at + 1))
    found = []
    if total := trained.total():
        found.append(_trained(trained, total, tuple(links)))
    if total := masked.total():
        found.append(_masked(masked, total))
    return found


def _trained(count: Counter[str], total: int, links: tuple[TokenLink, ...]) -> Finding:
    return Finding(
        code=CODE,
        severity=Severity.ERROR,
        sentence=f"{total} stored log-probs of trained tokens are above 0, most in {count.most_common(1)[0][0]}.",
        how_sure=f"counted over all steps; rounding explains {ROUNDING:g} nats",
        why="No probability is above 1: ratios and KL at these tokens are of something that is no log-prob.",
        do="Check the column's name and sign, and whether it is aligned with the tokens.",
        links=links,
        numbers={"trained": total},
    )


def _masked(count: Counter[str], total: int) -> Finding:
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        sentence=f"log-prob > 0 at masked positions looks like a fill value: {total} of them, most in "
        f"{count.most_common(1)[0][0]}.",
        how_sure="counted over all steps; no figure here uses masked positions",
        why="A KL or an entropy that sums over padding takes fill values in, and then depends on the batch's longest response.",
        do="Compare the trainer's own KL and entropy with the ones here; mask before summing.",
        numbers={"masked": total},
    )
