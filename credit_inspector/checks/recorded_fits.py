"""Whether recorded log-probs are those of the checkpoint beside them."""

from __future__ import annotations

import numpy as np

from credit_inspector.checks import check
from credit_inspector.panel import Finding, Severity
from credit_inspector.store import Store

CODE = "recorded-logprobs-differ"
NOISE = 0.02
"""Nats of mean difference that another precision or another kernel explains (bfloat16: 1e-3 to 1e-2)."""


@check(CODE)
def recorded_fits(store: Store) -> list[Finding]:
    """The checkpoint that sampled a step must give the log-probs recorded for it.

    Only steps whose sampling weights are exactly those of a checkpoint are compared; others differ by the updates between.
    """
    apart = measure(store)
    bad = {step: value for step, value in apart.items() if value > NOISE}
    if not bad:
        return []
    worst = max(bad, key=lambda step: bad[step])
    return [
        Finding(
            code=CODE,
            severity=Severity.ERROR,
            sentence=f"Step {worst}: recorded log-probs differ from the checkpoint's by {bad[worst]:.3f} nats on average.",
            how_sure=f"{len(bad)} of {len(apart)} steps whose sampling weights are a checkpoint; noise is below {NOISE}",
            why="Ratios and KL then compare two different things, and so does every credit that is computed from them.",
            do="Check the temperature, the padding side, the chat template and whether this checkpoint sampled the step.",
            numbers={"mean_abs_difference": bad[worst], "steps": len(bad)},
        )
    ]


def measure(store: Store) -> dict[int, float]:
    """From step to mean ``|recorded − recomputed|`` log-prob in nats, for steps that a checkpoint sampled exactly."""
    apart: dict[int, float] = {}
    for step in store.steps:
        table, _ = store.read_step(step, ["logprob/old", "logprob/recomputed"])
        sampled_by = {r.policy_version for r in table.rollouts}
        if not (table.has("logprob/old") and table.has("logprob/recomputed")) or len(sampled_by) != 1:
            continue
        if f"step_{sampled_by.pop() or 0:06d}" not in table.columns["logprob/recomputed"].note:
            continue
        difference = np.abs(table.values("logprob/old") - table.values("logprob/recomputed"))[table.loss_mask]
        if np.isfinite(difference).any():
            apart[step] = float(np.nanmean(difference))
    return apart
