"""CISPO: the ratio is held within bounds as a constant weight, so that no token loses its push."""

from __future__ import annotations

import numpy as np

from credit_inspector.losses import LossInputs, Push, loss


@loss("cispo")
def cispo(inputs: LossInputs) -> Push:
    """``[T]`` c = −w A clip(ρ, lower, upper), never cut to 0 (MiniMax-M1, 2025, eq. 4).

    ``Algorithm.clip_bounds`` tells the two conventions apart: ``around-one`` holds ρ in 1 − clip_low … 1 + clip_high
    (verl 0.9.1 ``compute_policy_loss_cispo``, slime, NeMo-RL); ``absolute`` holds it in clip_low … clip_high, which
    with clip_low 0 is TRL 1.16.0's ``torch.clamp(ratio, max=epsilon_high)``. The codes +1 and −1 mark tokens held at a
    bound, whatever the sign of A.
    """
    low, high = inputs.algorithm.ratio_bounds
    ratio, moves = inputs.ratio, np.abs(inputs.advantage) > 0
    clipped = np.zeros(len(ratio), np.int8)
    clipped[moves & (ratio < low)] = -1
    clipped[moves & (ratio > high)] = 1
    return Push(inputs.coefficient(np.clip(ratio, low, high), np.zeros(len(ratio), np.bool_)), clipped, "logprob")
