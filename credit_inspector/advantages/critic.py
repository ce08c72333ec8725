"""What a run with a critic does beside the policy: the value loss in closed form, and the controller of the KL weight."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from credit_inspector.table import Floats


class ValueLoss(NamedTuple):
    """PPO's clipped value loss."""

    loss: float
    gradient: Floats
    """``[T]`` dL/dV of the predicted value; 0 where the clip cuts it or there is no weight."""
    clipped: NDArray[np.bool_]
    """``[T]`` where the clipped error is the greater one, so that it counts. Its share of trained tokens is the clip
    fraction."""


def value_loss(predicted: Floats, targets: Floats, old: Floats, weight: Floats, *, clip: float) -> ValueLoss:
    """½ Σ w max((V − R)², (clip(V, V_old ± ``clip``) − R)²), all ``[T]``; ``weight`` is the aggregation's, 0 or NaN elsewhere.

    Schulman et al.'s PPO code; verl 0.9.1 (``compute_value_loss``), TRL's PPO until 1.12. dL/dV = w (V − R), and 0 where
    the clipped error is greater: such a value has left the bound on the side of its target, or jumped past it.
    """
    counts = np.isfinite(weight) & (weight != 0)
    value, target, before = (np.where(counts, each, 0.0) for each in (predicted, targets, old))
    share = np.where(counts, weight, 0.0)
    error, held = (value - target) ** 2, (np.clip(value, before - clip, before + clip) - target) ** 2
    clipped = held > error
    loss = 0.5 * float((share * np.maximum(error, held)).sum())
    return ValueLoss(loss, np.where(clipped, 0.0, share * (value - target)), clipped)


def adapted_kl_weight(weight: float, kl: float, *, target: float, horizon: float, responses: int) -> float:
    """The KL weight after a step: weight · (1 + clip(kl / target − 1, ±0.2) · responses / horizon).

    Ziegler et al. 2019 (arXiv 1909.08593, section 2.2); verl 0.9.1 (``AdaptiveKLController``), OpenRLHF. A run with it has
    another ``Algorithm.kl_in_reward`` each step.
    """
    error = min(max(kl / target - 1, -0.2), 0.2)
    return weight * (1 + error * responses / horizon)
