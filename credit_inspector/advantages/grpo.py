"""GRPO: each reward against its group or its batch, divided by a standard deviation or not."""

from __future__ import annotations

import numpy as np

from credit_inspector.advantages import estimator
from credit_inspector.advantages.reinforce import scalar_reward
from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.normalise import dead, normalise
from credit_inspector.table import Floats, TokenTable


@estimator("grpo")
def grpo(table: TokenTable, algorithm: Algorithm) -> Floats:
    """``[T]`` (R − baseline) / (std + eps), one value on all tokens of a response (Shao et al. 2024).

    ``Algorithm.baseline`` and ``Algorithm.std`` say over whom mean and deviation are taken: the group, the others in it
    (NeMo-RL), the batch (AReaL; TRL's ``scale_rewards="batch"``), or no deviation at all (Dr. GRPO, Liu et al. 2025).
    NaN where a response has no reward or no group, 0 in a group without spread. With ``Algorithm.drop_dead_groups`` such
    groups are gone before the batch's mean and deviation are taken, and get 0.
    """
    rewards = scalar_reward(table, algorithm)
    dropped = dead(rewards, table.group) & algorithm.drop_dead_groups
    by_response = normalise(
        np.where(dropped, np.nan, rewards),
        table.group,
        baseline=algorithm.baseline,
        std=algorithm.std,
        ddof=algorithm.std_ddof,
        eps=algorithm.std_eps,
        singleton=algorithm.singleton,
    )
    return table.to_tokens(np.where(dropped, 0.0, by_response))
