"""A critic's values at masked tokens that leak into advantages."""

from __future__ import annotations

import numpy as np

from credit_inspector.checks import check
from credit_inspector.checks._stored import COLUMNS, RECOMPUTED, by_token, differing
from credit_inspector.checks._walks import WALK_COLUMNS, follows, reached
from credit_inspector.panel import Finding, Severity, TokenLink
from credit_inspector.store import Store

CODE = "masked-values-leak"


@check(CODE)
def masked_values(store: Store) -> list[Finding]:
    """Whether stored GAE advantages follow only if the critic's values at tool output or padding take part.

    Two ways are tried: masked tokens as steps of their own, and the slot behind a trained token as its next value.
    """
    links: list[TokenLink] = []
    tokens, worst, steps = 0, 0.0, 0
    for step in store.steps:
        table, _ = store.read_step(step, [*COLUMNS, *WALK_COLUMNS])
        if not follows(table, "masked-values"):
            continue
        steps += 1
        tokens += int(np.count_nonzero(differing(table)))
        apart = np.abs(by_token(table) - table.values(RECOMPUTED))
        worst = max(worst, float(apart[differing(table)].max()))
        links += [TokenLink(step, table.rollouts[row].sample_id, 0, int(table.lengths[row])) for row in reached(table)]
    if not steps:
        return []
    return [
        Finding(
            code=CODE,
            severity=Severity.WARNING,
            sentence=f"Stored advantages depend on masked values: {tokens} trained tokens are off by up to {worst:.4g}.",
            how_sure=f"{steps} of {len(store.steps)} steps; with values of masked tokens let in, every stored advantage follows",
            why="A critic was never trained on padding or tool output; its value there is arbitrary and becomes credit.",
            do="Take the next trained token's value as the next value, and 0 behind the last one.",
            links=tuple(links[:10]),
            numbers={"tokens": tokens, "residual": worst, "steps": steps},
        )
    ]
