"""SAPO: a smooth gate over the ratio where PPO cuts."""

from __future__ import annotations

import numpy as np

from credit_inspector.losses import LossInputs, Push, loss


@loss("sapo")
def sapo(inputs: LossInputs, *, tau_pos: float = 1.0, tau_neg: float = 1.05) -> Push:
    """``[T]`` c = −w A ρ · 4 s (1 − s), s = σ(τ (ρ − 1)); −w A at ρ = 1 (Soft Adaptive Policy Optimization, 2025, eq. 5–6).

    The loss is −w A σ(τ (ρ − 1)) · 4/τ, with τ ``tau_pos`` for A > 0 and ``tau_neg`` otherwise: verl 0.9.1
    ``compute_policy_loss_sapo``, TRL 1.16.0 ``loss_type="sapo"``. A token far off fades to 0 and none is cut, except by
    verl's log-ratio clamp (code 3).
    """
    advantage, held = inputs.advantage, inputs.held_log_ratio
    tau = np.where(advantage > 0, tau_pos, tau_neg)
    distance = tau * np.abs(inputs.ratio - 1)
    with np.errstate(invalid="ignore"):
        # ρ s (1 − s) in one exponential: an infinite ratio gives 0, as a product with an infinite factor would not.
        gate = np.where(np.isinf(distance), 0.0, np.exp(held - distance) / (1 + np.exp(-distance)) ** 2)
    clipped = np.where(inputs.beyond_clamp & (np.abs(advantage) > 0), 3, 0).astype(np.int8)
    return Push(inputs.coefficient(4 * gate, clipped == 3), clipped)
