"""DPPO: the trust region is a distance between probabilities and not a ratio."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from credit_inspector.losses import LossInputs, Push, loss


@loss("dppo_tv", levels=("token",))
def dppo_tv(inputs: LossInputs) -> Push:
    """``[T]`` c = −w A min(ρ, cap) while p − q is within −clip_low … clip_high, 0 beyond (DPPO, 2026, binary TV).

    p = π and q = π_old of the sampled token: both thresholds are probabilities, whatever ``clip_bounds`` says. Codes: +1
    A > 0 and p − q above, −1 A < 0 and p − q below, 2 the ratio is held at the cap ``dual_clip`` and still pushes. verl
    0.9.1 ``compute_policy_loss_dppo_tv``, whose cap is ``clip_ratio_c`` (3.0 by default; the 20 in its code is never
    reached).
    """
    apart = np.exp(inputs.logprob) - np.exp(inputs.old)
    rule = inputs.algorithm
    return _gated(inputs, apart > rule.clip_high, apart < -rule.clip_low)


@loss("dppo_kl", levels=("token",))
def dppo_kl(inputs: LossInputs) -> Push:
    """``[T]`` as ``dppo_tv``, with the binary KL(q, p) as the distance, on the side that A pushes to (DPPO, 2026).

    KL = q log(q/p) + (1 − q) log((1 − q)/(1 − p)), with 1e-8 added to 1 − q and 1 − p as verl 0.9.1's
    ``compute_policy_loss_dppo_kl`` does. Codes as in ``dppo_tv``: +1 A > 0, p > q and KL above clip_high; −1 A < 0, p < q
    and KL above clip_low.
    """
    p, q = np.exp(np.minimum(inputs.logprob, 0.0)), np.exp(np.minimum(inputs.old, 0.0))
    divergence = q * (inputs.old - inputs.logprob) + (1 - q) * np.log((1 - q + 1e-8) / (1 - p + 1e-8))
    rule = inputs.algorithm
    return _gated(inputs, (divergence > rule.clip_high) & (p > q), (divergence > rule.clip_low) & (p < q))


def _gated(inputs: LossInputs, above: NDArray[np.bool_], below: NDArray[np.bool_]) -> Push:
    """``[T]`` the capped ratio as a constant weight, 0 where the advantage pushes further out."""
    advantage, ratio, cap = inputs.advantage, inputs.ratio, inputs.algorithm.dual_clip
    clipped = np.zeros(len(advantage), np.int8)
    if cap is not None:
        clipped[(ratio > cap) & (np.abs(advantage) > 0)] = 2
        ratio = np.minimum(ratio, cap)
    clipped[(advantage > 0) & above] = 1
    clipped[(advantage < 0) & below] = -1
    return Push(inputs.coefficient(ratio, np.abs(clipped) == 1), clipped, "logprob")
