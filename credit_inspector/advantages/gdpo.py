"""GDPO: every reward function against its own group first, so that none of them drowns the others."""

from __future__ import annotations

import numpy as np

from credit_inspector.advantages import estimator
from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.normalise import normalise
from credit_inspector.errors import MissingColumn, UsageError
from credit_inspector.table import Floats, TokenTable


@estimator("gdpo")
def gdpo(table: TokenTable, algorithm: Algorithm) -> Floats:
    """``[T]`` Σ_k w_k (r_k − baseline_k) / (std_k + eps) over reward functions k (arXiv 2601.05242).

    Weights are ``Algorithm.reward_weights``, which also choose the functions; without any, all recorded functions have
    weight 1. What one function did not score is left out of that function's statistic and adds nothing to the sum (TRL
    1.16.0, ``normalize_then_sum``); NaN where none did. Trainers whiten the sum last, each in its own way:
    ``Algorithm.whiten``.

    Raises:
        MissingColumn: no reward function's own values were recorded, or not those of one that has a weight.
        UsageError: the KL term is in the scalar reward, which this rule never reads.
    """
    if algorithm.kl_in_reward and algorithm.kl_in_reward_as in ("scalar", "token-rewards"):
        raise UsageError(
            "gdpo reads each reward function's own values and no scalar reward, so a KL term in that is lost",
            wanted='kl_in_reward = 0, or kl_in_reward_as = "to-go" or "same-token"',
        )
    weights = _weights(table, algorithm)
    summed, scored = np.zeros(table.n_rows), np.zeros(table.n_rows, np.bool_)
    for name, weight in weights.items():
        against = normalise(
            _values(table, name),
            table.group,
            baseline=algorithm.baseline,
            std=algorithm.std,
            ddof=algorithm.std_ddof,
            eps=algorithm.std_eps,
            singleton=algorithm.singleton,
        )
        known = np.isfinite(against)
        summed += weight * np.where(known, against, 0.0)
        scored |= known
    return table.to_tokens(np.where(scored, summed, np.nan))


def _weights(table: TokenTable, algorithm: Algorithm) -> dict[str, float]:
    recorded = dict.fromkeys(name for rollout in table.rollouts for name in rollout.rewards)
    if table.n_rows and not recorded:
        raise MissingColumn("no reward function's own values were recorded", wanted="rewards by name for gdpo")
    weights = dict(algorithm.reward_weights) or dict.fromkeys(recorded, 1.0)
    if absent := [name for name in weights if table.n_rows and name not in recorded]:
        raise MissingColumn(f"reward_weights names {absent[0]!r}, which was not recorded", wanted=f"one of {', '.join(recorded)}")
    return weights


def _values(table: TokenTable, name: str) -> Floats:
    values = (rollout.rewards.get(name) for rollout in table.rollouts)
    return np.array([np.nan if value is None else value for value in values], np.float64)
