"""Policy losses in closed form: how hard a loss pushes each token's log-probability.

To add one, drop a file in that decorates a function with ``@loss``. It gets a ``LossInputs`` and returns a ``Push``.
What it takes beyond the fields of ``Algorithm`` are its keyword-only parameters, filled from ``Algorithm.settings``.
The law of the kind (``tests/losses``): the coefficient equals autograd of the loss written the long way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from credit_inspector.algorithm import Algorithm
from credit_inspector.registry import Registry, chosen, settings_of
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
    """The log of the ratio at the rule's ``ratio_level``: ``logprob − old``, or its mean or sum over the response, on each of its
    tokens; 0 by construction, even without log-probs, where one update trains on a batch."""
    advantage: Floats
    weight: Floats
    """The aggregation's weight of each token in the loss, times the constants that a rule puts before it (rollout correction,
    entropy mask, off-policy mask)."""
    rollout: Floats
    """log π of the sampled token as the sampling engine gave it; NaN where nobody recorded it."""
    kept: NDArray[np.bool_]
    """Trained, and not left out by the rule (dead group, truncated, rejected)."""

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
    through: Literal["ratio", "logprob"] = "ratio"
    """What carries the gradient: the ratio, so that one ratio for a response sends its push to all tokens of it; or each
    token's own log-probability, with the ratio a constant."""


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """A policy loss; call it with its inputs."""

    name: str
    settings: Mapping[str, float]
    """Its own settings with their defaults."""
    push: Callable[..., Push]

    def __call__(self, inputs: LossInputs) -> Push:
        """What it does to each token."""
        return self.push(inputs, **chosen(inputs.algorithm.settings, self.settings))


losses: Registry[PolicyLoss] = Registry("losses", __name__)


def loss(name: str) -> Callable[[Callable[..., Push]], Callable[..., Push]]:
    """Put a policy loss in under its name in ``Algorithm.loss``."""

    def put(function: Callable[..., Push]) -> Callable[..., Push]:
        losses.add(name, PolicyLoss(name, settings_of(function), function))
        return function

    return put


__all__ = ["LossInputs", "PolicyLoss", "Push", "loss", "losses"]
