"""DRO: the log-probability times the advantage, held near the old policy by a squared log-ratio."""

from __future__ import annotations

import numpy as np

from credit_inspector.errors import UsageError
from credit_inspector.losses import LossInputs, Push, loss


@loss("dro", levels=("token",))
def dro(inputs: LossInputs, *, beta: float = 0.0) -> Push:
    """``[T]`` c = −w (A − beta (log π − log π_old)), without a ratio or a bound (Richemond et al. 2024).

    verl 0.9.1 ``compute_policy_loss_dro``; ``beta`` is its ``dro_beta``, which has no default there either. A token with
    advantage 0 is pulled back too.

    Raises:
        UsageError: no positive beta.
    """
    if beta <= 0:
        raise UsageError(f"loss dro with beta {beta:g}", wanted="a positive beta", do="give the run's dro_beta as setting beta")
    coefficient = -inputs.weight * (inputs.advantage - beta * inputs.token_log_ratio)
    return Push(coefficient + 0.0, np.zeros(len(coefficient), np.int8), "logprob")
