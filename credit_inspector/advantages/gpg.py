"""GPG: each reward against its group's mean, scaled up where few responses have a reward at all."""

from __future__ import annotations

from credit_inspector.advantages import estimator
from credit_inspector.advantages.reinforce import scalar_reward
from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms import against_group
from credit_inspector.algorithms.words import in_words
from credit_inspector.table import Floats, TokenTable


@estimator("gpg", words=in_words("gpg"))
def gpg(table: TokenTable, algorithm: Algorithm, *, f_norm: float = 1.0) -> Floats:
    """``[T]`` α (R − group mean) / f_norm, α = responses / responses whose reward is not 0.

    Chu et al. 2025; verl 0.9.1, ``compute_gpg_outcome_advantage``. α is one number for the batch.
    """
    rewards = scalar_reward(table, algorithm)
    return table.to_tokens(against_group.gpg(rewards, table.group, f_norm=f_norm, singleton=algorithm.singleton))
