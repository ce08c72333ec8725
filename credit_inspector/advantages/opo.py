"""OPO: each reward against the mean of its group in which long responses count more."""

from __future__ import annotations

from credit_inspector.advantages import estimator
from credit_inspector.advantages.reinforce import scalar_reward
from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms import against_group
from credit_inspector.algorithms.words import in_words
from credit_inspector.table import Floats, TokenTable


@estimator("opo", words=in_words("opo"))
def opo(table: TokenTable, algorithm: Algorithm) -> Floats:
    """``[T]`` R − Σ length · R / Σ length over the group (Hao et al. 2025; verl 0.9.1, ``compute_opo_outcome_advantage``).

    Lengths are trained tokens. The baseline of least variance where a response's gradient grows with its length.
    """
    rewards = scalar_reward(table, algorithm)
    found = against_group.opo(rewards, table.group, table.trained_lengths, singleton=algorithm.singleton)
    return table.to_tokens(found)
