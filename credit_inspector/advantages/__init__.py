"""Advantage estimators: rewards → one advantage per token.

To add one, drop a file in that decorates a function with ``@estimator``. It gets the step's table and the run's algorithm and
returns ``[T]``: NaN where no advantage can be computed (no reward, no group), 0 for a group without spread. What it takes
beyond the fields of ``Algorithm`` are its keyword-only parameters, filled from ``Algorithm.settings``::

    @estimator("gpg", words="reward − group mean, scaled")
    def gpg(table, algorithm, *, f_norm=1.0): ...

What all of them share is done to the answer, in the trainers' order: a KL term that enters after the group's statistic is
taken off, then advantages are whitened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from credit_inspector.advantages.returns import discounted
from credit_inspector.advantages.token_rewards import reward_kl
from credit_inspector.advantages.whiten import whiten
from credit_inspector.algorithm import Algorithm
from credit_inspector.registry import Registry, chosen, settings_of
from credit_inspector.table import Floats, TokenTable


@dataclass(frozen=True, slots=True)
class Estimator:
    """An advantage estimator; call it with a step's table and a rule."""

    name: str
    words: str
    """The rule in a few words, to stand beside every advantage; empty where ``Algorithm``'s fields say it better."""
    settings: Mapping[str, float]
    """Its own settings with their defaults."""
    make: Callable[..., Floats]

    def __call__(self, table: TokenTable, algorithm: Algorithm) -> Floats:
        """``[T]`` advantages, as the policy loss gets them.

        ``Algorithm.kl_in_reward_as``: ``to-go`` takes off β Σ γ^k kl of the token and all later ones (OpenRLHF, whatever the
        estimator), ``same-token`` only β kl of the token (NeMo-RL's REINFORCE++). Then ``Algorithm.whiten``.

        Raises:
            MissingColumn: something that the rule needs was not recorded.
        """
        if not table.n_rows:
            return np.zeros(0)
        advantages = self.make(table, algorithm, **chosen(algorithm.settings, self.settings))
        if algorithm.kl_in_reward and algorithm.kl_in_reward_as in ("to-go", "same-token"):
            advantages = advantages - _kl(table, algorithm)
        return whiten(table, advantages, algorithm)


def _kl(table: TokenTable, algorithm: Algorithm) -> Floats:
    kl = reward_kl(table, algorithm)
    if algorithm.kl_in_reward_as == "same-token":
        return kl
    return discounted(table, kl, gamma=algorithm.gamma, observation=algorithm.observation)


estimators: Registry[Estimator] = Registry("advantages", __name__)


def estimator(name: str, *, words: str = "") -> Callable[[Callable[..., Floats]], Callable[..., Floats]]:
    """Put an estimator in under its name in ``Algorithm.advantage``."""

    def put(function: Callable[..., Floats]) -> Callable[..., Floats]:
        estimators.add(name, Estimator(name, words, settings_of(function), function))
        return function

    return put


__all__ = ["Estimator", "estimator", "estimators"]
