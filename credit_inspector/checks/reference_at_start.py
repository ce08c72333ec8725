"""A reference that is not the model that training started from."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from credit_inspector.algorithms.kl import kl_value
from credit_inspector.checks import check
from credit_inspector.checks._own import read_own
from credit_inspector.errors import MissingColumn
from credit_inspector.metrics.ratio import old_logprob, policy_logprob
from credit_inspector.panel import Finding, Severity
from credit_inspector.shares import percent
from credit_inspector.store import Store
from credit_inspector.table import Floats, TokenTable

CODE = "reference-differs-at-start"
BF16_BITS = 7
"""Stored bits of a bfloat16's fraction: numbers between 4 and 8 are 1/32 apart."""
NOISE = 5e-4
"""Mean k3 in nats that rounding to bfloat16 explains."""


@check(CODE)
def reference_at_start(store: Store) -> list[Finding]:
    """At the first update the policy is the model that training started from, and the reference is meant to be the same.

    Tokens whose two log-probs are within one step of bfloat16 count as equal. Only a step that updates the first weights and
    whose policy equals the sampling policy is looked at.
    """
    found = measure(store)
    if found is None or not found[0] > NOISE:
        return []
    k3, k1, share, step, tokens = found
    return [
        Finding(
            code=CODE,
            severity=Severity.WARNING,
            sentence=f"Step {step}: the policy equals the sampling policy but differs from the reference: "
            f"mean k1 {k1:.3g}, k3 {k3:.4g} nats.",
            how_sure=f"{percent(share)} of {tokens} trained tokens differ by more than one step of bfloat16",
            why="The KL term then pulls towards another model from the start, such as the one before fine-tuning.",
            do="Take the reference from the weights that training starts from; with adapters, not from the bare base model.",
            cannot_tell="Whether the other reference is meant.",
            numbers={"k1": k1, "k3": k3, "share": share, "tokens": tokens},
        )
    ]


def measure(store: Store) -> tuple[float, float, float, int, int] | None:
    """``(mean k3, mean k1, share of tokens that differ, step, tokens)`` at the first update; ``None`` where it is not there."""
    if not store.steps:
        return None
    table = read_own(store, store.steps[0], ["logprob/policy", "logprob/old", "logprob/ref"])
    if not _is_first(table) or not table.has("logprob/ref"):
        return None
    try:
        policy = policy_logprob(table, table.algorithm).values
        old = old_logprob(table, table.algorithm).values
    except MissingColumn:
        return None
    reference = table.values("logprob/ref")
    known = table.loss_mask & np.isfinite(policy) & np.isfinite(reference)
    if not known.any() or _k3(policy, old, known) > NOISE:
        return None
    differs = known & apart(policy, reference)
    k1 = float(np.where(differs, policy - np.where(known, reference, 0.0), 0.0)[known].mean())
    return _k3(policy, reference, known), k1, float(differs.sum() / known.sum()), table.step, int(known.sum())


def _k3(policy: Floats, other: Floats, known: NDArray[np.bool_]) -> float:
    """Mean k3 in nats; a token within one step of bfloat16, or without the other log-prob, has none."""
    differs = known & apart(policy, other)
    distance = np.where(differs, policy, 0.0) - np.where(differs, other, 0.0)
    # Beyond 709 nats the value leaves float64; any such token is over the limit anyway.
    return float(kl_value("k3", np.maximum(distance, -709.0))[known].mean())


def apart(one: Floats, other: Floats) -> NDArray[np.bool_]:
    """Where two log-probs are numbers that differ by more than one step of bfloat16 at their size."""
    both = np.isfinite(one) & np.isfinite(other)
    first, second = np.where(both, one, 0.0), np.where(both, other, 0.0)
    size = np.maximum(np.maximum(np.abs(first), np.abs(second)), 2.0**-BF16_BITS)
    step = 2.0 ** (np.floor(np.log2(size)) - BF16_BITS)
    # A little slack: stored numbers are float32.
    found: NDArray[np.bool_] = both & (np.abs(first - second) > 1.001 * step)
    return found


def _is_first(table: TokenTable) -> bool:
    """Whether the step updates the weights that training started from."""
    versions = {rollout.policy_version for rollout in table.rollouts}
    return versions == {0} if versions != {None} else table.step in (0, 1)
