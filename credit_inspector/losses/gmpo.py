"""GMPO: the geometric mean of a response's ratios, each of them clipped first, in log space."""

from __future__ import annotations

import numpy as np

from credit_inspector.errors import UsageError
from credit_inspector.losses import LossInputs, Push, loss


@loss("gmpo", levels=("token",), corrects=True, by_token=False)
def gmpo(inputs: LossInputs) -> Push:
    """``[T]`` c = −(a / n) q Σ w A over the response, q = exp(mean z) (Geometric-Mean Policy Optimization, 2025, eq. 5).

    z is the token's log-ratio held at clip_high where A > 0 and at −clip_low where A < 0, and 0 where A = 0; n the kept
    tokens of the response, a 0 where the token is held (codes +1 and −1) and 1 elsewhere. The bounds are on the
    log-ratio: 0.4 is a ratio of e^0.4. With weights 1 / (B n) this is verl 0.9.1's ``compute_policy_loss_geo_mean``
    (whatever its ``loss_agg_mode`` says) and TRL 1.16.0's ``GMPOTrainer``: aggregation ``seq-mean-token-mean``,
    ``count_empty``. Rollout weights κ weigh a whole response, by their geometric mean, with 1e-10 for a κ
    of 0 (verl).

    Raises:
        UsageError: the rule trains a share of the tokens by entropy, which changes n and not the weights.
    """
    if inputs.algorithm.top_entropy_quantile < 1:
        raise UsageError("gmpo with top_entropy_quantile is not computed", wanted="top_entropy_quantile 1")
    rule, table, advantage = inputs.algorithm, inputs.table, inputs.advantage
    log_ratio, gain = inputs.token_log_ratio, inputs.weight * inputs.advantage
    known = np.isfinite(log_ratio) & np.isfinite(gain) & np.isfinite(inputs.correction)
    clipped = np.zeros(len(log_ratio), np.int8)
    clipped[(advantage > 0) & (log_ratio > rule.clip_high)] = 1
    clipped[(advantage < 0) & (log_ratio < -rule.clip_low)] = -1
    held = np.where(clipped == 1, rule.clip_high, np.where(clipped == -1, -rule.clip_low, log_ratio))
    tokens = np.maximum(table.sum_by_row(known), 1)
    with np.errstate(over="ignore", invalid="ignore"):
        ratio = np.exp(table.sum_by_row(np.where(known & (advantage != 0), held, 0.0)) / tokens)
        kappa = np.exp(table.sum_by_row(np.where(known, np.log(np.maximum(inputs.correction, 1e-10)), 0.0)) / tokens)
        shared = kappa * ratio * table.sum_by_row(np.where(known, gain, 0.0)) / tokens
        coefficient = -table.to_tokens(shared) * ((clipped == 0) & (advantage != 0)) + 0.0
    return Push(np.where(known, coefficient, np.nan), clipped, "logprob")
