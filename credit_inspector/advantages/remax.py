"""ReMax: the reward against what the policy's greedy answer to the same prompt got."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from credit_inspector.advantages import estimator
from credit_inspector.advantages.returns import discounted
from credit_inspector.advantages.token_rewards import token_rewards
from credit_inspector.algorithm import Algorithm
from credit_inspector.errors import MissingColumn
from credit_inspector.rollout import Rollout
from credit_inspector.table import Floats, TokenTable

_IN_EXTRA = ("reward_baseline", "reward_baselines", "greedy_reward")
_IN_REWARDS = ("greedy", "baseline")


@estimator("remax", words="reward still to come − reward of the greedy response")
def remax(table: TokenTable, algorithm: Algorithm) -> Floats:
    """``[T]`` G_t − R(greedy response) (Li et al. 2024, arXiv 2310.10505); NaN where not trained.

    verl 0.9.1 (``compute_remax_outcome_advantage``): the return is not discounted, whatever ``Algorithm.gamma`` says. The
    greedy reward is the rollout's ``reward_baseline`` (what verl calls ``reward_baselines``), or a reward named ``greedy``
    or ``baseline``; a response without it has no advantage.

    Raises:
        MissingColumn: no response has a greedy reward, or the KL term needs log-probs that nobody recorded.
    """
    baseline = np.array([next(_greedy(rollout), np.nan) for rollout in table.rollouts], np.float64)
    if table.n_rows and not np.isfinite(baseline).any():
        raise MissingColumn(
            "the rule is remax, and no response has the reward of its prompt's greedy response",
            wanted=f"a number named {' or '.join((*_IN_EXTRA, *_IN_REWARDS))} in each response",
        )
    rewards = token_rewards(table, algorithm)
    returns = discounted(table, rewards.values, gamma=1.0, observation=algorithm.observation, acts=rewards.acts)
    return returns - table.to_tokens(np.where(np.isfinite(baseline), baseline, np.nan))


def _greedy(rollout: Rollout) -> Iterator[float]:
    """What the rollout says of it, the surest first."""
    found = [rollout.extra.get(name) for name in _IN_EXTRA] + [rollout.rewards.get(name) for name in _IN_REWARDS]
    for value in found:
        if isinstance(value, int | float | np.number) and not isinstance(value, bool):
            yield float(value)
