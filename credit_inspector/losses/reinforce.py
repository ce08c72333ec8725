"""REINFORCE: the log-probability times the advantage, without any ratio."""

from __future__ import annotations

import numpy as np

from credit_inspector.losses import LossInputs, Push, loss


@loss("reinforce")
def reinforce(inputs: LossInputs) -> Push:
    """``[T]`` c = −w A, without clipping and without log-probs (Williams 1992; verl 0.9.1 ``gpg``)."""
    return Push(-inputs.weight * inputs.advantage + 0.0, np.zeros(len(inputs.advantage), np.int8), "logprob")
