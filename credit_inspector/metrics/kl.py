"""Per-token estimators of KL(policy ‖ reference) from the sampled token alone (Schulman 2020).

With d = log π − log π_ref: k1 = d, k2 = d²/2, k3 = e^{−d} − 1 + d. On samples of the policy k1 and k3 have the mean
KL; a single k1 may be negative, k2 and k3 never are. Trainers use them in the loss with clamps and gradients of their
own (``credit/kl_push.py``); these columns are the plain values, computed in float64.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from credit_inspector.algorithm import KLEstimator
from credit_inspector.algorithms.kl import kl_value
from credit_inspector.columns import Made
from credit_inspector.metrics import metric
from credit_inspector.metrics.finite import finite_where_trained
from credit_inspector.metrics.ratio import Known, policy_logprob
from credit_inspector.table import Floats, TokenTable

_AFTER = ("logprob/policy", "logprob/old", "logprob/ref")

ENOUGH, CLEAR, ERRORS = 100, 0.05, 4
"""A mean k1 is called negative from so many tokens on, below so many nats, and by so many standard errors."""


@metric(
    "kl/k1",
    label="KL k1",
    needs=("table",),
    after=_AFTER,
    unit="nats",
    scope="token",
    family="policy",
    sign="+ more likely than under the reference, − less likely",
)
def k1(table: TokenTable) -> Made:
    """Estimates KL by log π − log π_ref of the sampled token; may be negative on single tokens (Schulman 2020)."""
    made = _column(table, "k1")
    return replace(made, note="; ".join(filter(None, (made.note, _below_zero(np.asarray(made.values))))))


@metric("kl/k2", label="KL k2", needs=("table",), after=_AFTER, unit="nats", scope="token", family="policy")
def k2(table: TokenTable) -> Made:
    """Estimates KL by ½ (log π − log π_ref)² of the sampled token; biased, never negative (Schulman 2020)."""
    return _column(table, "k2")


@metric("kl/k3", label="KL k3", needs=("table",), after=_AFTER, unit="nats", scope="token", family="policy")
def k3(table: TokenTable) -> Made:
    """Estimates KL by π_ref/π − 1 − log(π_ref/π) of the sampled token; unbiased, never negative (Schulman 2020)."""
    return _column(table, "k3")


def reference_distance(table: TokenTable) -> Known:
    """``[T]`` log π − log π_ref of the sampled tokens in float64, trained or not.

    Raises:
        MissingColumn: one of the two is neither recorded nor computed.
    """
    reference, policy = table.values("logprob/ref"), policy_logprob(table, table.algorithm)
    with np.errstate(invalid="ignore"):
        return Known(policy.values - reference, policy.note)


def _column(table: TokenTable, estimator: KLEstimator) -> Made:
    distance = reference_distance(table)
    return finite_where_trained(table, kl_value(estimator, distance.values), f"estimator {estimator}", distance.note)


def _below_zero(distance: Floats) -> str:
    """KL is never negative: a clearly negative mean says that the policy did not draw these samples."""
    known = distance[np.isfinite(distance)]
    if len(known) < ENOUGH or not known.mean() < -max(CLEAR, ERRORS * known.std() / np.sqrt(len(known))):
        return ""
    return (
        f"mean {known.mean():.3g} over {len(known)} tokens: the policy scores its own samples below the reference; "
        "check sampling settings, masks, temperature"
    )
