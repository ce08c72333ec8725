"""Generalised advantage estimation: a critic's value of each prefix against what came after it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from credit_inspector.advantages import estimator
from credit_inspector.advantages.returns import steps, to_go
from credit_inspector.advantages.token_rewards import token_rewards
from credit_inspector.algorithm import Algorithm, Observation
from credit_inspector.errors import MissingColumn
from credit_inspector.table import Floats, TokenTable

VALUES = "value/old"


@estimator("gae", words="GAE: reward and value still to come − value")
def gae(table: TokenTable, algorithm: Algorithm, *, length_adaptive_alpha: float = 0.0) -> Floats:
    """``[T]`` A_t = δ_t + γλ A_{t+1} with δ_t = r_t + γ V_{t+1} − V_t (Schulman et al. 2016), before any whitening.

    V is ``value/old``, the critic's value of the prefix before the token when the batch was sampled. Behind the last token V
    is 0, for a truncated response too: so does every trainer read, and it tells a cut-off response that nothing more was
    to be had. λ = 0 is TD, λ = 1 is return − V. At tokens that are not trained (``Algorithm.observation``):

    - ``skip``: the next trained token is the next step (verl 0.9.1 ``compute_gae_advantage_return``, NeMo-RL).
    - ``count``: they are steps of value and reward 0 (OpenRLHF 0.11.2): the value before tool output is compared with 0.
    - ``reset``: a run of trained tokens ends there with value 0.
    - ``ignore``: they are steps with their own values and rewards (slime 624b824 ``vanilla_gae``, SkyRL).

    With ``length_adaptive_alpha`` > 0 each response has its own λ = 1 − 1 / max(α · trained tokens, 1), whatever
    ``Algorithm.lam`` says (VAPO, Yue et al. 2025; NeMo-RL ``length_adaptive_alpha``).

    Raises:
        MissingColumn: no values were recorded, or the KL term needs log-probs that nobody recorded.
    """
    lam = np.full(table.n_rows, algorithm.lam)
    if length_adaptive_alpha > 0:
        lam = 1 - 1 / np.maximum(length_adaptive_alpha * table.trained_lengths, 1.0)
    return _estimated(table, algorithm, _values(table), lam)


def value_targets(table: TokenTable, algorithm: Algorithm, *, lam: float | None = None) -> Floats:
    """``[T]`` what the critic is trained towards: the advantage before whitening + V; NaN where not trained.

    ``lam`` is the critic's own λ where a rule has two (VAPO; NeMo-RL ``gae_lambda_value``), else ``Algorithm.lam``.

    Raises:
        MissingColumn: as ``gae``.
    """
    values = _values(table)
    return values + _estimated(table, algorithm, values, np.full(table.n_rows, algorithm.lam if lam is None else lam))


def _estimated(table: TokenTable, algorithm: Algorithm, values: Floats, lam: Floats) -> Floats:
    rewards = token_rewards(table, algorithm, np.isfinite(values))
    found = estimate(
        table,
        rewards.values,
        values,
        gamma=algorithm.gamma,
        lam=lam,
        observation=algorithm.observation,
        acts=rewards.acts,
    )
    return table.trained(found)


def estimate(
    table: TokenTable,
    rewards: Floats,
    values: Floats,
    *,
    gamma: float,
    lam: Floats,
    observation: Observation,
    acts: NDArray[np.bool_] | None = None,
) -> Floats:
    """``[T]`` the recursion alone on token rewards and values ``[T]``, with ``lam`` ``[N]``; NaN at what is no step."""
    way = steps(table, observation, acts)
    reward = np.where(way.acts, rewards[way.token], 0.0)
    value = np.where(way.acts, values[way.token], 0.0)
    following = np.where(way.after > 0, np.append(value, 0.0)[1:], 0.0)
    decay = gamma * lam[table.row[way.token]]
    flat = np.full(table.n_tokens, np.nan)
    flat[way.token] = to_go(reward + gamma * following - value, decay, way.after)
    return flat


def _values(table: TokenTable) -> Floats:
    if not table.has(VALUES):
        raise MissingColumn("the rule has a critic (gae), and value/old is not there", wanted="the critic's value of each token")
    values = table.values(VALUES)
    return np.where(np.isfinite(values), values, np.nan)
