"""Policy losses in closed form: how hard a loss pushes each token's log-probability.

To add one, drop a file in that decorates a function with ``@loss``. It gets a ``LossInputs`` and returns a ``Push``.
The law of the kind (``tests/contracts``): the coefficient equals autograd of the loss written the long way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from credit_inspector.algorithm import Algorithm
from credit_inspector.registry import Registry
from credit_inspector.table import Floats, TokenTable


@dataclass(frozen=True, slots=True)
class LossInputs:
    """What a policy loss sees of one step; arrays are ``[T]`` and NaN where the token is not trained."""

    table: TokenTable
    algorithm: Algorithm
    logprob: Floats
    """log π of the sampled token under the weights that the update started from; NaN where nobody recorded it."""
    old: Floats
    """The same under the weights that sampled it (trainer's forward)."""
    log_ratio: Floats
    """``logprob − old``; 0 by construction, even without log-probs, where one update trains on a batch."""
    advantage: Floats
    weight: Floats
    """The aggregation's weight of each token in the loss."""

    @property
    def ratio(self) -> Floats:
        """``[T]`` exp(log_ratio), held within the rule's clamp first; infinite beyond what a float holds."""
        clamp = self.algorithm.log_ratio_clamp
        held = self.log_ratio if clamp is None else np.clip(self.log_ratio, -clamp, clamp)
        with np.errstate(over="ignore"):
            ratio: Floats = np.exp(held)
        return ratio


@dataclass(frozen=True, slots=True)
class Push:
    """What a policy loss does to each token."""

    coefficient: Floats
    """``[T]`` dL/dlogπ of the minimised loss: negative raises the token's probability."""
    clipped: NDArray[np.int8]
    """``[T]`` 0 no; +1 cut (CISPO: held) at the upper bound; −1 at the lower; 2 by dual clip or delta; 3 by a log-ratio
    clamp. A token with advantage 0 is never clipped, and one without a coefficient has code 0."""


PolicyLoss = Callable[[LossInputs], Push]

losses: Registry[PolicyLoss] = Registry("losses", __name__)


def loss(name: str) -> Callable[[PolicyLoss], PolicyLoss]:
    """Put a policy loss in under its name in ``Algorithm.loss``."""
    return lambda function: losses.add(name, function)


__all__ = ["LossInputs", "PolicyLoss", "Push", "loss", "losses"]
