"""What the KL term of the loss tells each token: the pull towards the reference, whatever the advantage."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from credit_inspector.algorithm import Algorithm, KLEstimator, KLGradient
from credit_inspector.algorithms.kl import LOW_VAR_DISTANCE, LOW_VAR_VALUE, held, kl_value
from credit_inspector.columns import Made
from credit_inspector.credit import credit
from credit_inspector.credit.kept import kept
from credit_inspector.metrics.finite import finite_where_trained
from credit_inspector.metrics.ratio import policy_logprob, update_log_ratio
from credit_inspector.metrics.sequence_ratio import sequence_mean, sequence_sum
from credit_inspector.table import Floats, TokenTable

RATIO_CAP = 10.0
"""OpenRLHF 0.11.2 ``KL_IS_WEIGHT_CLIP``: its unbiased gradient counts a ratio no further than this."""


def kl_gradient(
    estimator: KLEstimator,
    gradient: KLGradient,
    distance: Floats,
    ratio: Floats,
    *,
    input_clamp: float | None = None,
    output_clamp: float | None = None,
) -> Floats:
    """``[T]`` what the KL term sends back to log π, per unit of weight and beta, where each token has a ratio ρ of its own.

    With d the distance log π − log π_ref, k the estimator and k' its slope (k1 1; abs sign; k2 d; k3 1 − e^{−d}):

    ====================  ===============  ============================================================================
    gradient              sent back        trainer
    ====================  ===============  ============================================================================
    ``autograd``          k'               verl, OpenRLHF, slime, TRL before 1.10 and without ``use_bias_correction_kl``
    ``ratio-weighted``    ρ (k + k')       DeepSeek-V3.2 (2025); TRL from 1.10, slime ``use_unbiased_kl``; ρ d for k3
    ``score-weighted``    k + k'           NeMo-RL 7ea279a, k times exp(log π − stop-gradient(log π)); d for k3
    ``ratio-capped``      min(ρ, 10) d     OpenRLHF 0.11.2 ``unbiased_gradient``
    ``straight-through``  d                verl's ``k1+`` and ``k3+``: the slope of k2 under another value
    ====================  ===============  ============================================================================

    Beyond the clamp on the distance k' is 0 (NeMo-RL then detaches its factor too, so that nothing comes back), and nothing
    comes back where the term's value is beyond the clamp on the value. So verl's ``low_var_kl`` does not pull back a token
    with π_ref/π above 13.6, nor OpenRLHF's k2 one with |d| above 4.47: those that drifted most. At a bound itself there
    still is a slope. The last two gradients know no clamp.

    Args:
        estimator: k; the clamps of ``low_var_kl`` are its own, inside the term's.
        gradient: see above.
        distance: ``[T]`` d.
        ratio: ``[T]`` ρ; read by the two gradients that have it.
        input_clamp: on the distance.
        output_clamp: on the term's value, with its factor ρ in it (slime).
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if gradient == "straight-through":
            return distance
        if gradient == "ratio-capped":
            return np.minimum(ratio, RATIO_CAP) * distance
        factor = ratio if gradient == "ratio-weighted" else np.ones(1)
        term = _term(estimator, distance, factor, input_clamp, output_clamp)
        if gradient == "autograd":
            back = term.slope
        else:
            # k3 + 1 − e^{−d} is d: the two exponentials cancel, and would not do so in floating point.
            both = distance if estimator == "k3" else term.value + term.slope
            back = factor * np.where(term.inside, both, term.value if gradient == "ratio-weighted" else 0.0)
    return np.where(np.isnan(distance) | np.isnan(factor), np.nan, np.where(term.live, back, 0.0))


def kl_coefficient(table: TokenTable, algorithm: Algorithm, weight: Floats, distance: Floats, log_ratio: Floats) -> Floats:
    """``[T]`` dL/dlogπ of the KL term, beta times weight times gradient; arrays are ``[T]``, NaN where not in the loss.

    TRL multiplies k3 by the ratio of its policy loss. Where that is one ratio for a response (``ratio_level``), what
    comes back through it goes to all tokens of the response: 1/n of the sum to each (``sequence``), or the sum (``product``).
    """
    clamps = {"input_clamp": algorithm.kl_input_clamp, "output_clamp": algorithm.kl_output_clamp}
    scale, estimator, gradient = algorithm.kl_beta * weight, algorithm.kl_estimator, algorithm.kl_gradient
    with np.errstate(over="ignore", invalid="ignore"):
        if gradient != "ratio-weighted" or algorithm.ratio_level == "token":
            return scale * kl_gradient(estimator, gradient, distance, np.exp(log_ratio), **clamps)
        product = algorithm.ratio_level == "product"
        ratio = np.exp(table.to_tokens((sequence_sum if product else sequence_mean)(table, log_ratio)))
        if algorithm.ratio_level == "sequence-token":
            return scale * kl_gradient(estimator, gradient, distance, ratio, **clamps)
        term = _term(estimator, distance, ratio, **clamps)
        own = scale * ratio * np.where(term.live, term.slope, 0.0)
        through = scale * ratio * np.where(term.live, term.value, 0.0)
        known = np.isfinite(own) & np.isfinite(through)
        total = table.sum_by_row(np.where(known, through, 0.0))
        shared = total if product else total / np.maximum(table.sum_by_row(known), 1)
        return np.where(known, own + table.to_tokens(shared), np.nan)


@credit(
    "credit/kl_push",
    label="push of the KL term",
    needs=("table", "algorithm", "weight"),
    after=("logprob/policy", "logprob/old", "logprob/ref", "logprob/rollout"),
    unit="1 / nat",
    scope="batch",
    family="assigned",
    sign="+ pushed up, − pushed down",
)
def kl_push(table: TokenTable, algorithm: Algorithm, weight: Floats) -> Made:
    """−dL/dlogπ of the loss's KL term alone: towards the reference, also in groups whose advantages are all 0."""
    if not algorithm.kl_beta:
        return Made(table.nan_outside, "the rule has no KL term in the loss")
    reference, policy = table.values("logprob/ref"), policy_logprob(table, algorithm)
    log_ratio, said = np.zeros(table.n_tokens), ""
    if algorithm.kl_gradient in ("ratio-weighted", "ratio-capped"):
        log_ratio, said = update_log_ratio(table, algorithm)
    inside = kept(table, algorithm)
    with np.errstate(invalid="ignore"):
        distance = policy.values - reference
    in_loss = (np.where(inside, values, np.nan) for values in (weight, distance, log_ratio))
    push = 0.0 - kl_coefficient(table, algorithm, *in_loss)
    push = np.where(inside, push, np.where(table.loss_mask, 0.0, np.nan))
    return finite_where_trained(table, push, _rule(algorithm), policy.note, said)


class _Term(NamedTuple):
    """The estimator within the clamp on its distance; arrays are ``[T]``."""

    value: Floats
    slope: Floats
    """0 beyond the clamp on the distance."""
    inside: NDArray[np.bool_]
    """Within that clamp."""
    live: NDArray[np.bool_]
    """The term's value, its factor in it, is within the clamp on the value."""


def _term(
    estimator: KLEstimator, distance: Floats, factor: Floats, input_clamp: float | None, output_clamp: float | None
) -> _Term:
    inside = _within(distance, input_clamp)
    near = held(distance, input_clamp)
    value = kl_value(estimator, near)
    return _Term(value, np.where(inside, _slope(estimator, near), 0.0), inside, _within(factor * value, output_clamp))


def _slope(estimator: KLEstimator, distance: Floats) -> Floats:
    if estimator == "k1":
        return np.ones(distance.shape)
    if estimator == "abs":
        return np.sign(distance)
    if estimator == "k2":
        return distance
    slope: Floats = -np.expm1(-distance)
    if estimator == "k3":
        return slope
    follows = _within(distance, LOW_VAR_DISTANCE) & _within(kl_value("k3", distance), LOW_VAR_VALUE)
    return np.where(follows, slope, 0.0)


def _within(values: Floats, clamp: float | None) -> NDArray[np.bool_]:
    return np.ones(values.shape, np.bool_) if clamp is None else np.abs(values) <= clamp


def _rule(algorithm: Algorithm) -> str:
    said = [f"beta {algorithm.kl_beta:g}", algorithm.kl_estimator, f"gradient {algorithm.kl_gradient}"]
    if algorithm.kl_gradient not in ("ratio-capped", "straight-through"):
        clamps = {"distance": algorithm.kl_input_clamp, "value": algorithm.kl_output_clamp}
        said += [f"{name} within ±{clamp:g}" for name, clamp in clamps.items() if clamp is not None]
    return ", ".join(said)
