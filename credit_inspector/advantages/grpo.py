"""GRPO: each reward against its group, divided by a standard deviation or not."""

from __future__ import annotations

from credit_inspector.advantages import estimator
from credit_inspector.advantages.reinforce import scalar_reward
from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.normalise import normalise
from credit_inspector.table import Floats, TokenTable


@estimator("grpo")
def grpo(table: TokenTable, algorithm: Algorithm) -> Floats:
    """``[T]`` (R − mean) / (std + eps), one value on all tokens of a response (Shao et al. 2024).

    ``Algorithm.std`` takes the deviation over the group, over the batch (TRL's ``scale_rewards="batch"``) or leaves it
    out (Dr. GRPO, Liu et al. 2025). NaN where a response has no reward or no group, 0 in a group without spread.
    """
    return table.to_tokens(
        normalise(
            scalar_reward(table, algorithm),
            table.group,
            std=algorithm.std,
            ddof=algorithm.std_ddof,
            eps=algorithm.std_eps,
            singleton=algorithm.singleton,
        )
    )
