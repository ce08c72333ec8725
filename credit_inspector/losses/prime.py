"""prime-rl's losses: a ratio to the sampling engine, a mask on the distance of probabilities, and a squared log-ratio."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from credit_inspector.losses import LossInputs, Push, loss


@loss("prime", levels=("token",))
def prime(inputs: LossInputs, *, adv_tau: float = 1.0, kl_tau: float = 1e-3) -> Push:
    """``[T]`` c = w (−adv_tau A ρ k + 2 kl_tau log ρ) (prime-rl 559b447 ``default_loss_fn``: DPPO and Kimi-K2.5's KL).

    ρ is trainer over sampling engine (``ratio_from`` ``rollout``), without a cap. k is 0 where A > 0 and p − q > clip_high
    (code +1), or A < 0 and p − q < −clip_low (code −1): both are probabilities (``dppo_mask_high``, ``dppo_mask_low``). The
    second part acts on all kept tokens, also on those with advantage 0. The trainer's weight is 1 / trained tokens.
    """
    apart, rule, advantage = np.exp(inputs.logprob) - np.exp(inputs.old), inputs.algorithm, inputs.advantage
    clipped = np.zeros(len(apart), np.int8)
    clipped[(advantage > 0) & (apart > rule.clip_high)] = 1
    clipped[(advantage < 0) & (apart < -rule.clip_low)] = -1
    return _with_penalty(inputs, clipped, adv_tau, kl_tau)


@loss("prime_ipo", levels=("token",))
def prime_ipo(inputs: LossInputs, *, adv_tau: float = 1.0, kl_tau: float = 1e-3) -> Push:
    """``[T]`` as ``prime``, but masked on both sides whatever the sign of A (prime-rl 559b447 ``ipo_loss_fn``).

    Code +1: p − q > clip_high; −1: p − q < −clip_low. The trainer has one ``ipo_threshold`` for both.
    """
    apart, rule = np.exp(inputs.logprob) - np.exp(inputs.old), inputs.algorithm
    moves = np.abs(inputs.advantage) > 0
    clipped = np.zeros(len(apart), np.int8)
    clipped[moves & (apart > rule.clip_high)] = 1
    clipped[moves & (apart < -rule.clip_low)] = -1
    return _with_penalty(inputs, clipped, adv_tau, kl_tau)


def _with_penalty(inputs: LossInputs, clipped: NDArray[np.int8], adv_tau: float, kl_tau: float) -> Push:
    """The ratio is the token's own, so that the whole gradient goes through its log-probability."""
    penalty = 2 * kl_tau * inputs.weight * inputs.token_log_ratio
    return Push(inputs.coefficient(adv_tau * inputs.ratio, clipped != 0) + penalty, clipped, "logprob")
