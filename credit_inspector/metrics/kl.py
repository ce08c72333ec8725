"""Per-token estimators of KL(policy ‖ reference) from the sampled token alone (Schulman 2020).

With d = log π − log π_ref: k1 = d, k2 = d²/2, k3 = e^{−d} − 1 + d. On samples of the policy k1 and k3 have the mean
KL; a single k1 may be negative, k2 and k3 never are. Trainers use them in the loss with clamps and gradients of their
own (``credit/kl_push.py``); these columns are the plain values, computed in float64.
"""

from __future__ import annotations

import numpy as np

from credit_inspector.algorithm import KLEstimator
from credit_inspector.columns import Made
from credit_inspector.metrics import metric
from credit_inspector.metrics.finite import finite_where_trained
from credit_inspector.table import Floats, TokenTable

_NEEDS = ("table", "logprob/policy", "logprob/ref")


def kl_value(estimator: KLEstimator, distance: Floats) -> Floats:
    """``[T]`` the estimator at ``distance`` = log π − log π_ref.

    ``low_var_kl`` is k3 with the clamps of verl 0.9.1 ``kl_penalty_forward``: the distance to ±20, the value to ±10.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if estimator == "k1":
            return distance
        if estimator == "abs":
            return np.abs(distance)
        if estimator == "k2":
            return 0.5 * distance**2
        held = distance if estimator == "k3" else np.clip(distance, -20, 20)
        value = np.expm1(-held) + held
    return value if estimator == "k3" else np.minimum(value, 10)


@metric(
    "kl/k1",
    label="KL k1",
    needs=_NEEDS,
    unit="nats",
    scope="token",
    family="policy",
    sign="+ more likely than under the reference, − less likely",
)
def k1(table: TokenTable, policy: Floats, reference: Floats) -> Made:
    """Estimates KL by log π − log π_ref of the sampled token; may be negative on single tokens (Schulman 2020)."""
    return _column(table, policy, reference, "k1")


@metric("kl/k2", label="KL k2", needs=_NEEDS, unit="nats", scope="token", family="policy")
def k2(table: TokenTable, policy: Floats, reference: Floats) -> Made:
    """Estimates KL by ½ (log π − log π_ref)² of the sampled token; biased, never negative (Schulman 2020)."""
    return _column(table, policy, reference, "k2")


@metric("kl/k3", label="KL k3", needs=_NEEDS, unit="nats", scope="token", family="policy")
def k3(table: TokenTable, policy: Floats, reference: Floats) -> Made:
    """Estimates KL by π_ref/π − 1 − log(π_ref/π) of the sampled token; unbiased, never negative (Schulman 2020)."""
    return _column(table, policy, reference, "k3")


def _column(table: TokenTable, policy: Floats, reference: Floats, estimator: KLEstimator) -> Made:
    with np.errstate(invalid="ignore"):
        distance = policy - reference
    return finite_where_trained(table, kl_value(estimator, distance), f"estimator {estimator}")
