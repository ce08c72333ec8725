"""What the KL term of the loss tells each token: the pull towards the reference, whatever the advantage."""

from __future__ import annotations

import numpy as np

from credit_inspector.algorithm import Algorithm, KLEstimator, KLGradient
from credit_inspector.columns import Made
from credit_inspector.credit import credit
from credit_inspector.metrics.finite import finite_where_trained
from credit_inspector.metrics.kl import kl_value
from credit_inspector.metrics.ratio import policy_logprob, update_log_ratio
from credit_inspector.table import Floats, TokenTable


def kl_slope(estimator: KLEstimator, distance: Floats) -> Floats:
    """``[T]`` d estimator / d log π at ``distance`` = log π − log π_ref, as autograd gives it.

    k1 1; abs sign; k2 d; k3 1 − e^{−d}. ``low_var_kl`` is 0 beyond verl's clamps (|d| > 20 or k3 > 10, that is π_ref/π
    above 13.6): the tokens that fell furthest are not pulled back.
    """
    if estimator == "k1":
        return np.where(np.isnan(distance), np.nan, 1.0)
    if estimator == "abs":
        return np.sign(distance)
    if estimator == "k2":
        return distance
    with np.errstate(over="ignore"):
        slope = -np.expm1(-distance)
    if estimator == "k3":
        return slope
    return np.where((np.abs(distance) > 20) | (kl_value("k3", distance) > 10), 0.0, slope)


def kl_gradient(estimator: KLEstimator, gradient: KLGradient, distance: Floats, ratio: Floats) -> Floats:
    """``[T]`` what the KL term sends back to log π, per unit of weight and beta.

    ``autograd``: the estimator's own slope. ``ratio-weighted``: the term is ρ k with a ratio that carries gradient, so
    that ρ (k + k') comes back, which for k3 is ρ d (DeepSeek-V3.2, 2025; TRL from 1.10). ``straight-through``: d, the
    slope of k2, under another value (verl's ``k1+`` and ``k3+``).
    """
    if gradient == "straight-through":
        return distance
    slope = kl_slope(estimator, distance)
    if gradient == "autograd":
        return slope
    with np.errstate(over="ignore", invalid="ignore"):
        # ρ (k3 + 1 − e^{−d}) in closed form: the two exponentials cancel, and would not do so in floating point.
        return ratio * (distance if estimator == "k3" else kl_value(estimator, distance) + slope)


@credit(
    "credit/kl_push",
    label="push of the KL term",
    needs=("table", "algorithm", "weight"),
    after=("logprob/policy", "logprob/old", "logprob/ref"),
    unit="1 / nat",
    scope="batch",
    family="assigned",
    sign="+ pushed up, − pushed down",
)
def kl_push(table: TokenTable, algorithm: Algorithm, weight: Floats) -> Made:
    """−dL/dlogπ of the loss's KL term alone: towards the reference, also in groups whose advantages are all 0."""
    if not algorithm.kl_beta:
        return Made(table.trained(np.zeros(table.n_tokens)), "the rule has no KL term in the loss")
    reference, policy = table.values("logprob/ref"), policy_logprob(table, algorithm)
    ratio, said = np.ones(1), ""
    with np.errstate(over="ignore", invalid="ignore"):
        distance = policy.values - reference
        if algorithm.kl_gradient == "ratio-weighted":
            known = update_log_ratio(table, algorithm)
            ratio, said = np.exp(known.values), known.note
        slope = kl_gradient(algorithm.kl_estimator, algorithm.kl_gradient, distance, ratio)
        push = 0.0 - algorithm.kl_beta * weight * slope
    rule = f"beta {algorithm.kl_beta:g}, {algorithm.kl_estimator}, gradient {algorithm.kl_gradient}"
    return finite_where_trained(table, push, rule, policy.note, said)
