"""MaxRL: each reward against its group's mean, divided by that mean: a rare success counts most."""

from __future__ import annotations

from credit_inspector.advantages import estimator
from credit_inspector.advantages.reinforce import scalar_reward
from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms import against_group
from credit_inspector.table import Floats, TokenTable


@estimator("maxrl")
def maxrl(table: TokenTable, algorithm: Algorithm) -> Floats:
    """``[T]`` (R − mean) / (mean + ``std_eps``), 0 where a group's mean is not above 0.

    prime-rl 559b447 (``max_rl.py``) without an eps; SkyRL a956457 with 1e-6.
    """
    rewards = scalar_reward(table, algorithm)
    found = against_group.maxrl(rewards, table.group, eps=algorithm.std_eps, singleton=algorithm.singleton)
    return table.to_tokens(found)
