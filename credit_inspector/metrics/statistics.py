"""Statistics of importance weights and of two policies on the same tokens; no column of its own.

Weights come as logs, since a product over a long response leaves float64 (71,000 tokens of log-ratio 0.01 make e^710).
Numbers that are not finite take no part.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from credit_inspector.errors import UsageError
from credit_inspector.table import Floats, TokenTable

BOUND = 20.0
"""Log-ratios are held within ± this where they are squared, as verl 0.9.1 does (``SAFETY_BOUND``)."""


class SampleSize(NamedTuple):
    """How many equally weighted samples a weighted sample is worth."""

    size: float
    fraction: float
    """``size`` over the number of weights; equal to 1 / (1 + CV²) with CV the weights' deviation over their mean."""


def ess(log_weight: Floats, truncate: float | None = None) -> SampleSize:
    """Effective sample size (Σw)² / Σw² of weights given as logs (Kish 1965); NaN without a finite one.

    Args:
        log_weight: any shape.
        truncate: the weight's upper bound, as in truncated importance sampling. Trainers that log the size after
            truncation report a better one (verl 0.9.1 ``rollout_is_eff_sample_size``).

    Raises:
        UsageError: a bound that is not above 0.
    """
    if truncate is not None and not truncate > 0:
        raise UsageError(f"weights truncated at {truncate:g}", wanted="a bound above 0")
    known = log_weight[np.isfinite(log_weight)]
    if not known.size:
        return SampleSize(np.nan, np.nan)
    if truncate is not None:
        known = np.minimum(known, np.log(truncate))
    # The size does not depend on the weights' scale, so the largest is 1 and nothing overflows.
    weight = np.exp(known - known.max())
    size = float(weight.sum() ** 2 / np.square(weight).sum())
    return SampleSize(size, size / known.size)


class Truncated(NamedTuple):
    """Weights before and after an upper bound: a maximum that is logged after it always equals the bound."""

    raw_max: float
    raw_mean: float
    used_mean: float
    share: float
    """Of weights above the bound."""


def truncated(log_weight: Floats, bound: float) -> Truncated:
    """Figures of weights given as logs; NaN without a finite one, infinite where a weight is beyond float64."""
    known = log_weight[np.isfinite(log_weight)]
    if not known.size:
        return Truncated(np.nan, np.nan, np.nan, np.nan)
    with np.errstate(over="ignore"):
        raw = np.exp(known)
    return Truncated(float(raw.max()), float(raw.mean()), float(np.minimum(raw, bound).mean()), float((raw > bound).mean()))


def off_policy(table: TokenTable, trainer: Floats, engine: Floats) -> dict[str, float]:
    """How far the trainer's policy stands from the one that sampled, on the sampled tokens.

    With κ = π_trainer / π_engine, means over trained tokens where both log-probs are finite; what is taken by response is
    a mean over responses that have such tokens. NaN without any.

    =======================================  ===========================================================================
    ``kl``, ``k3_kl``                        KL(engine ‖ trainer) by k1 = −log κ and by k3 = κ − 1 − log κ
    ``training_ppl``, ``rollout_ppl``        mean over responses of exp(−mean log-prob); ``…_log_ppl``: its log's mean
    ``log_ppl_diff``, ``…_abs_diff``,        by response, mean log-prob of the engine minus the trainer's
    ``…_diff_max``, ``…_diff_min``
    ``ppl_ratio``                            mean over responses of the ratio of the two perplexities
    ``chi2_token``, ``chi2_seq``             E[κ²] − 1 over tokens, and over responses with the product of κ
    ``mult_prob_error``                      mean of exp|log κ|: 1 where both agree; NeMo-RL looks closer above 1.05
    =======================================  ===========================================================================

    Names and formulas: verl 0.9.1 ``rollout_corr_helper.compute_offpolicy_metrics``; the last one NeMo-RL
    ``token_mult_prob_error``. ``chi2_seq`` of long responses is at home at verl's bound e^40, or −1.

    Args:
        table: the step.
        trainer: ``[T]`` log-probs of the trainer's forward.
        engine: ``[T]`` log-probs of the engine that sampled.
    """
    known = table.loss_mask & np.isfinite(trainer) & np.isfinite(engine)
    log_ratio = np.where(known, trainer, 0.0) - np.where(known, engine, 0.0)
    rows = table.sum_by_row(known) > 0
    by_response = _by_response(table, known, rows, trainer, engine)
    log_product = table.sum_by_row(log_ratio)[rows]
    return _by_token(log_ratio[known]) | by_response | {"chi2_seq": _chi2(log_product)}


def _by_token(log_ratio: Floats) -> dict[str, float]:
    with np.errstate(over="ignore"):
        k3, error = np.expm1(log_ratio) - log_ratio, np.exp(np.abs(log_ratio))
    return {
        "kl": mean(-log_ratio),
        "k3_kl": mean(k3),
        "chi2_token": _chi2(log_ratio),
        "mult_prob_error": mean(error),
    }


def _by_response(table: TokenTable, known: np.ndarray, rows: np.ndarray, trainer: Floats, engine: Floats) -> dict[str, float]:
    training, rollout = (-table.mean_by_row(values, known)[rows] for values in (trainer, engine))
    apart = training - rollout
    with np.errstate(over="ignore"):
        return {
            "training_ppl": mean(np.exp(training)),
            "training_log_ppl": mean(training),
            "rollout_ppl": mean(np.exp(rollout)),
            "rollout_log_ppl": mean(rollout),
            "log_ppl_diff": mean(apart),
            "log_ppl_abs_diff": mean(np.abs(apart)),
            "log_ppl_diff_max": float(apart.max()) if len(apart) else np.nan,
            "log_ppl_diff_min": float(apart.min()) if len(apart) else np.nan,
            "ppl_ratio": mean(np.exp(apart)),
        }


def _chi2(log_ratio: Floats) -> float:
    return mean(np.exp(2 * np.clip(log_ratio, -BOUND, BOUND))) - 1


def mean(values: Floats) -> float:
    """The mean; NaN of nothing."""
    return float(np.mean(values)) if len(values) else np.nan
