"""An engine whose log-probs are not the trainer's."""

from __future__ import annotations

import numpy as np

from credit_inspector.checks import check
from credit_inspector.checks._engine import steps_apart
from credit_inspector.metrics.mismatch import NOTABLE
from credit_inspector.panel import Finding, Severity
from credit_inspector.store import Store

CODE = "engine-mismatch"


@check(CODE)
def engine_mismatch(store: Store) -> list[Finding]:
    """Steps in which engine and trainer score the same tokens differently, for no reason that other checks know."""
    found = sorted((step for step in steps_apart(store) if step.cause == "unknown"), key=lambda step: -step.error)
    if not found:
        return []
    worst = found[0]
    error = f"{worst.error:.4g}" if np.isfinite(worst.error) else "beyond any float"
    return [
        Finding(
            code=CODE,
            severity=Severity.WARNING,
            sentence=f"Step {worst.step}: engine and trainer differ by a mean exp|d| of {error}, above {NOTABLE:g}; "
            f"worst is token {worst.worst.start} of {worst.worst.sample_id} with {worst.largest:+.3g} nats.",
            how_sure=f"{len(found)} of {len(store.steps)} steps; {worst.tokens} tokens of step {worst.step}",
            why="With the same weights this is noise, and in a product of ratios it looks like a change of the policy.",
            do="Compare precision, kernels and chat template; correct with truncated importance weights (rollout_weight).",
            cannot_tell="Weights that moved between sampling and scoring differ in the same way.",
            links=tuple(step.worst for step in found[:10]),
            numbers={"mean_error": worst.error, "largest": worst.largest, "steps": len(found)},
        )
    ]
