"""REINFORCE: the reward itself, on every token of its response."""

from __future__ import annotations

from credit_inspector.advantages import estimator
from credit_inspector.algorithm import Algorithm
from credit_inspector.errors import UsageError
from credit_inspector.table import Floats, TokenTable


def scalar_reward(table: TokenTable, algorithm: Algorithm) -> Floats:
    """``[N]`` the scalar reward that an estimator starts from; NaN where none was recorded.

    Raises:
        UsageError: the rule folds the KL term into the reward. Trainers do that in four ways (before or after the
            group's statistic, summed, to go, or token by token), and recorded rewards do not say which.
    """
    if algorithm.kl_in_reward:
        raise UsageError(
            f"the KL term is in the reward (weight {algorithm.kl_in_reward:g}): rewards alone do not give advantages",
            do="record the advantages",
        )
    return table.reward


@estimator("reinforce")
def reinforce(table: TokenTable, algorithm: Algorithm) -> Floats:
    """``[T]`` A = R (Williams 1992): no baseline and no group."""
    return table.to_tokens(scalar_reward(table, algorithm))
