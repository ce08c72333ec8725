"""The clipped surrogate of PPO and GRPO, with dual clip, TRL's delta and the log-ratio clamp."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from credit_inspector.losses import LossInputs, Push, loss


@loss("ppo_clip")
def ppo_clip(inputs: LossInputs, *, log_ratio_max: float = math.inf) -> Push:
    """``[T]`` c = −w ρ A while the ratio is inside, exactly 0 where a bound cuts it (Schulman et al. 2017, eq. 7).

    =============  =====================================================  ==============================================
    code           cut where                                              trainer
    =============  =====================================================  ==============================================
    +1             A > 0 and ρ > upper bound                              all
    −1             A < 0 and ρ < lower bound                              all
    2              A < 0 and ρ > dual_clip                                verl 0.9.1 ``compute_policy_loss_vanilla``
    2              ρ > delta, unless A < 0 and ρ is within the bounds     TRL 1.16.0 ``_compute_loss``
    3              log-ratio beyond its clamp and nothing above applies   verl 0.9.1, OpenRLHF 0.11.2
    3              log-ratio above ``log_ratio_max``, the same            verl 0.9.1 ``compute_policy_loss_gspo``: 10
    =============  =====================================================  ==============================================

    All comparisons are strict. The exception in the second 2 is TRL's: for A < 0 the loss takes the larger of the two
    ratios, and the one that is held within the bounds still follows ρ there; it matters only for a delta below the
    upper bound.
    """
    rule, advantage, ratio = inputs.algorithm, inputs.advantage, inputs.ratio
    low, high = rule.ratio_bounds
    up, down = advantage > 0, advantage < 0
    clipped = (up & (ratio > high)).view(np.int8) - (down & (ratio < low)).view(np.int8)
    if rule.dual_clip is not None:
        _code(clipped, 2, down & (ratio > rule.dual_clip))
    if rule.delta is not None:
        _code(clipped, 2, (ratio > rule.delta) & (up | (down & (ratio > high))))
    if rule.log_ratio_clamp is not None or log_ratio_max < math.inf:
        _code(clipped, 3, (inputs.beyond_clamp | (inputs.log_ratio > log_ratio_max)) & (up | down))
    return Push(inputs.coefficient(ratio, clipped != 0), clipped)


def _code(clipped: NDArray[np.int8], code: int, where: NDArray[np.bool_]) -> None:
    """Give tokens a code that have none yet; they are few."""
    places = np.flatnonzero(where)
    clipped[places[clipped[places] == 0]] = code
