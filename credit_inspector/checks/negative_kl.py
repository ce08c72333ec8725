"""A mean KL below zero."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from credit_inspector.checks import check
from credit_inspector.metrics.kl import CLEAR, ENOUGH, ERRORS
from credit_inspector.panel import Finding, Severity
from credit_inspector.store import Store
from credit_inspector.table import TokenTable

CODE = "kl-mean-negative"
SAMPLED_BY = ("logprob/old", "logprob/policy", "logprob/rollout")
"""Whose log-probs say how likely the samples were when they were drawn, best first."""


class Below(NamedTuple):
    """A step whose mean k1 is clearly negative."""

    step: int
    mean: float
    tokens: int
    of: str


@check(CODE)
def negative_kl(store: Store) -> list[Finding]:
    """Steps whose mean k1 over trained tokens is clearly below 0. A single k1 may be negative; the mean over samples is not.

    Samples of a policy are on average more likely under it than under any other. Where they are not, they were not drawn
    from it: top-k or a minimum length at sampling, another temperature, another mask or padding side when scoring.
    """
    found = measure(store)
    if not found:
        return []
    worst = min(found, key=lambda below: below.mean)
    return [
        Finding(
            code=CODE,
            severity=Severity.WARNING,
            sentence=f"Step {worst.step}: mean k1 is {worst.mean:.3g} nats over {worst.tokens} tokens: the policy scores its own "
            "samples below the reference.",
            how_sure=f"{len(found)} of {len(store.steps)} steps; each by more than {ERRORS} standard errors and {CLEAR} nats",
            why="Samples that the policy did not draw make every estimate of KL, and every ratio, one of something else.",
            do="Check sampling settings (top-k, top-p, minimum length), masks, padding side and temperature.",
            cannot_tell="k1 may be negative on single tokens, which is no fault.",
            numbers={"mean_k1": worst.mean, "tokens": worst.tokens, "steps": len(found)},
        )
    ]


def measure(store: Store) -> list[Below]:
    """The steps, with log π_old − log π_ref: the weights that sampled, not those that the batch has already moved."""
    found = (_below(store.read_step(step, [*SAMPLED_BY, "logprob/ref"])[0]) for step in store.steps)
    return [below for below in found if below is not None]


def _below(table: TokenTable) -> Below | None:
    name = next((name for name in SAMPLED_BY if table.has(name)), None)
    if name is None or not table.has("logprob/ref"):
        return None
    with np.errstate(invalid="ignore"):
        k1 = (table.values(name) - table.values("logprob/ref"))[table.loss_mask]
    k1 = k1[np.isfinite(k1)]
    if len(k1) < ENOUGH or not k1.mean() < -max(CLEAR, ERRORS * k1.std() / np.sqrt(len(k1))):
        return None
    return Below(table.step, float(k1.mean()), len(k1), name)
