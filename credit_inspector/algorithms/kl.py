"""Estimators of KL(policy ‖ reference) from the sampled token alone, as arrays (Schulman 2020).

With d = log π − log π_ref: k1 = d, k2 = d²/2, k3 = e^{−d} − 1 + d. On samples of the policy k1 and k3 have the mean KL; a
single k1 may be negative, k2 and k3 never are. Trainers hold the distance, the value or both within clamps.
"""

from __future__ import annotations

import numpy as np

from credit_inspector.algorithm import KLEstimator
from credit_inspector.algorithms.normalise import Floats

LOW_VAR_DISTANCE, LOW_VAR_VALUE = 20.0, 10.0
"""The clamps of verl 0.9.1 ``kl_penalty_forward``, which make ``low_var_kl`` of k3."""


def kl_value(
    estimator: KLEstimator, distance: Floats, *, input_clamp: float | None = None, output_clamp: float | None = None
) -> Floats:
    """``[T]`` the estimator at ``distance`` = log π − log π_ref; infinite where it is beyond a float.

    Args:
        estimator: ``low_var_kl`` is k3 with clamps of its own: the distance within ±20, the value up to 10.
        distance: ``[T]``
        input_clamp: the distance is held within ± this first (NeMo-RL 20, open-instruct 40).
        output_clamp: the value is held within ± this last (OpenRLHF and NeMo-RL 10).
    """
    near = held(distance, input_clamp)
    with np.errstate(over="ignore", invalid="ignore"):
        if estimator == "k1":
            value = near
        elif estimator == "abs":
            value = np.abs(near)
        elif estimator == "k2":
            value = 0.5 * near**2
        elif estimator == "k3":
            value = np.expm1(-near) + near
        else:
            value = np.minimum(kl_value("k3", near, input_clamp=LOW_VAR_DISTANCE), LOW_VAR_VALUE)
    return held(value, output_clamp)


def held(values: Floats, clamp: float | None) -> Floats:
    """``[T]`` within ± the clamp."""
    return values if clamp is None else np.clip(values, -clamp, clamp)
