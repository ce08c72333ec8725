"""An engine whose log-probs are not the trainer's."""

from __future__ import annotations

import numpy as np

from credit_inspector.checks import check
from credit_inspector.checks._engine import steps_apart
from credit_inspector.metrics.mismatch import NOTABLE
from credit_inspector.panel import Finding, Severity, TokenLink
from credit_inspector.store import Store

CODE = "engine-mismatch"


@check(CODE)
def engine_mismatch(store: Store) -> list[Finding]:
    """Steps in which engine and trainer score the same tokens differently, for no reason that other checks know."""
    found = sorted((step for step in steps_apart(store) if step.cause == "unknown"), key=lambda step: -step.error)
    if not found:
        return []
    worst, links = found[0], []
    for step in found[:10]:
        place = int(step.places[np.abs(step.difference).argmax()])
        at, name = int(step.table.position[place]), step.table.rollouts[step.table.row[place]].sample_id
        links.append(TokenLink(step.table.step, name, at, at + 1))
    largest = float(worst.difference[np.abs(worst.difference).argmax()])
    error = f"{worst.error:.5g}" if np.isfinite(worst.error) else "beyond any float"
    return [
        Finding(
            code=CODE,
            severity=Severity.WARNING,
            sentence=f"Step {worst.table.step}: engine and trainer differ by a mean exp|d| of {error}, above {NOTABLE:g}; "
            f"worst is token {links[0].start} of {links[0].sample_id} with {largest:+.3g} nats.",
            how_sure=f"{len(found)} of {len(store.steps)} steps; {len(worst.places)} tokens of step {worst.table.step}",
            why="With the same weights this is noise, and in a product of ratios it looks like a change of the policy.",
            do="Compare precision, kernels and chat template; correct with truncated importance weights (rollout_weight).",
            cannot_tell="Weights that moved between sampling and scoring differ in the same way.",
            links=tuple(links),
            numbers={"mean_error": worst.error, "largest": largest, "steps": len(found)},
        )
    ]
