"""Policy losses in closed form: how hard a loss pushes each token's log-probability.

To add one, drop a file in that decorates a function with ``@loss``. It gets a ``LossInputs`` and returns a ``Push``.
What it takes beyond the fields of ``Algorithm`` are its keyword-only parameters, filled from ``Algorithm.settings``.
The law of the kind (``tests/losses``): the coefficient equals autograd of the loss written the long way.

A loss sees one ratio for each token, of whatever level; ``credit/policy_push`` makes it and sends the gradient of a
response's one ratio back to all of its tokens. GSPO (Zheng et al. 2025) is therefore no file of its own: it is ``ppo_clip``
at the level ``sequence`` (TRL, OpenRLHF, NeMo-RL, slime) or ``sequence-token`` (verl, TRL's ``gspo_token``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from credit_inspector.algorithm import Algorithm, RatioLevel
from credit_inspector.errors import UsageError
from credit_inspector.registry import Registry, chosen, settings_of
from credit_inspector.table import Floats, TokenTable


@dataclass(frozen=True, slots=True)
class LossInputs:
    """What a policy loss sees of one step; arrays are ``[T]``, and NaN where the token is not ``kept`` or has no finite value.

    A loss that is ``by_token`` may see a step in pieces: T is then a piece's.
    """

    table: TokenTable
    """The whole step."""
    algorithm: Algorithm
    look: Callable[[str], Floats]
    """Fetches ``logprob`` and ``old``, which most losses do without."""
    token_log_ratio: Floats
    """``logprob − old`` of each token; 0 by construction, even without log-probs, where one update trains on a batch."""
    log_ratio: Floats
    """The log of the ratio at the rule's ``ratio_level``: the token's own, or the mean or the sum over the response on each of
    its tokens."""
    advantage: Floats
    weight: Floats
    """The aggregation's weight of each token in the loss, times the constants that a rule puts before it (rollout correction,
    entropy mask, off-policy mask)."""
    correction: Floats
    """The rollout weight κ, for a loss that has it elsewhere in its formula (``corrects``) and not in ``weight``; else 1."""
    kept: NDArray[np.bool_]
    """Trained, and not left out by the rule (dead group, truncated, rejected)."""

    @property
    def logprob(self) -> Floats:
        """``[T]`` log π of the sampled token under the weights that the update started from; NaN where nobody recorded it."""
        return self.look("logprob")

    @property
    def old(self) -> Floats:
        """``[T]`` the same under the policy that the ratio refers to (``Algorithm.ratio_from``)."""
        return self.look("old")

    @property
    def held_log_ratio(self) -> Floats:
        """``[T]`` log_ratio, held within the rule's clamp."""
        clamp = self.algorithm.log_ratio_clamp
        return self.log_ratio if clamp is None else np.clip(self.log_ratio, -clamp, clamp)

    @property
    def ratio(self) -> Floats:
        """``[T]`` exp(held_log_ratio); infinite beyond what a float holds."""
        with np.errstate(over="ignore"):
            ratio: Floats = np.exp(self.held_log_ratio)
        return ratio

    @property
    def beyond_clamp(self) -> NDArray[np.bool_]:
        """``[T]`` where the rule's clamp holds the log-ratio, so that no gradient comes through it."""
        clamp = self.algorithm.log_ratio_clamp
        return np.zeros(len(self.log_ratio), np.bool_) if clamp is None else np.abs(self.log_ratio) > clamp

    def coefficient(self, factor: Floats, cut: NDArray[np.bool_]) -> Floats:
        """``[T]`` −weight · advantage · factor; 0 where ``cut`` or without an advantage, whatever the factor's size.

        A cut token's ratio may be infinite, and an infinite factor times 0 is no number.
        """
        product: Floats = self.weight * self.advantage
        np.negative(product, out=product)
        still = np.flatnonzero(cut | (product == 0))
        settled = np.where(np.isnan(factor[still]) | np.isnan(product[still]), np.nan, 0.0)
        with np.errstate(over="ignore", invalid="ignore"):
            np.multiply(product, factor, out=product)
        product[still] = settled
        return product


@dataclass(frozen=True, slots=True)
class Push:
    """What a policy loss does to each token."""

    coefficient: Floats
    """``[T]`` dL/dlogπ of the minimised loss: negative raises the token's probability."""
    clipped: NDArray[np.int8]
    """``[T]`` 0 no; +1 cut (CISPO: held) at the upper bound; −1 at the lower; 2 by dual clip, delta or a cap; 3 by a log-ratio
    clamp. A loss with other gates says what its codes mean. A token with advantage 0 is never clipped, and one without a
    coefficient has code 0."""
    through: Literal["ratio", "logprob"] = "ratio"
    """What carries the gradient: the ratio, so that one ratio for a response sends its push to all tokens of it; or each
    token's own log-probability, with the ratio a constant."""


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """A policy loss; call it with its inputs."""

    name: str
    settings: Mapping[str, float]
    """Its own settings with their defaults."""
    levels: tuple[RatioLevel, ...]
    """The levels of the ratio at which it is defined."""
    corrects: bool
    """Whether it puts the rollout weight into its own formula instead of before it."""
    by_token: bool
    """Whether a token's push depends on nothing but its own inputs, so that a step may be worked through in pieces."""
    push: Callable[..., Push]

    def __call__(self, inputs: LossInputs) -> Push:
        """What it does to each token.

        Raises:
            UsageError: the loss is not defined at the rule's level of the ratio.
            MissingColumn: the loss cannot be had from what a run leaves.
        """
        if inputs.algorithm.ratio_level not in self.levels:
            raise UsageError(
                f"loss {self.name} with ratio_level {inputs.algorithm.ratio_level}",
                wanted=f"ratio_level {' or '.join(self.levels)}",
            )
        return self.push(inputs, **chosen(inputs.algorithm.settings, self.settings))


losses: Registry[PolicyLoss] = Registry("losses", __name__)


def loss(
    name: str, *, levels: Sequence[RatioLevel] = get_args(RatioLevel), corrects: bool = False, by_token: bool = True
) -> Callable[[Callable[..., Push]], Callable[..., Push]]:
    """Put a policy loss in under its name in ``Algorithm.loss``.

    ``levels`` are those of the ratio that it is defined at; ``corrects`` says that it reads ``LossInputs.correction``;
    ``by_token=False`` that it reads ``LossInputs.table`` to look at more than one token at a time.
    """

    def put(function: Callable[..., Push]) -> Callable[..., Push]:
        losses.add(name, PolicyLoss(name, settings_of(function), tuple(levels), corrects, by_token, function))
        return function

    return put


__all__ = ["LossInputs", "PolicyLoss", "Push", "loss", "losses"]
