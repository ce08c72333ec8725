"""REINFORCE: the reward itself, on every token of its response."""

from __future__ import annotations

import numpy as np

from credit_inspector.advantages import estimator
from credit_inspector.advantages.token_rewards import SUMMED, reward_kl
from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.words import in_words
from credit_inspector.table import Floats, TokenTable


def scalar_reward(table: TokenTable, algorithm: Algorithm) -> Floats:
    """``[N]`` the scalar reward that an estimator of one number a response starts from; NaN where none was recorded.

    Where the rule folds the KL term into the reward before the group's statistic, the response's whole KL is taken off:
    R − β Σ kl. That is what verl's GRPO does (it sums token rewards first) and TRL's RLOO; token rewards that were
    recorded with the KL term in them are summed as they are. A KL term that enters later is not in it. A trained token
    whose KL is not known leaves the response's sum unknown: NaN.

    Raises:
        MissingColumn: the KL term needs log-probs that nobody recorded.
    """
    if not algorithm.kl_in_reward or algorithm.kl_in_reward_as not in ("scalar", "token-rewards"):
        return table.reward
    stored = table.values(SUMMED) if table.has(SUMMED) else np.full(table.n_tokens, np.nan)
    finite = np.isfinite(stored)
    recorded = table.sum_by_row(finite) > 0
    if recorded[table.lengths > 0].all() and table.n_tokens:
        taken_off = np.zeros(table.n_rows)
    else:
        taken_off = table.sum_by_row(reward_kl(table, algorithm))
    return np.where(recorded, table.sum_by_row(np.where(finite, stored, 0.0)), table.reward - taken_off)


@estimator("reinforce", words=in_words("reinforce"))
def reinforce(table: TokenTable, algorithm: Algorithm) -> Floats:
    """``[T]`` A = R (Williams 1992): no baseline and no group."""
    return table.to_tokens(scalar_reward(table, algorithm))
