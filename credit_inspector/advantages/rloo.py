"""RLOO: each reward against the mean of its group's other rewards."""

from __future__ import annotations

from credit_inspector.advantages import estimator
from credit_inspector.advantages.reinforce import scalar_reward
from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.normalise import leave_one_out
from credit_inspector.algorithms.words import in_words
from credit_inspector.table import Floats, TokenTable


@estimator("rloo", words=in_words("rloo"))
def rloo(table: TokenTable, algorithm: Algorithm) -> Floats:
    """``[T]`` R − mean of the others (Ahmadian et al. 2024, eq. 9), one value on all tokens of a response.

    NaN where a response has no reward or no group; ``Algorithm.singleton`` decides on a group of one.
    """
    rewards = scalar_reward(table, algorithm)
    return table.to_tokens(leave_one_out(rewards, table.group, singleton=algorithm.singleton))
