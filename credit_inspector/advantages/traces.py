"""Eligibility traces without a critic: a response's advantage, less for tokens that lie further from its end."""

from __future__ import annotations

import numpy as np

from credit_inspector.advantages import estimator
from credit_inspector.advantages.grpo import grpo
from credit_inspector.advantages.returns import discounted
from credit_inspector.advantages.token_rewards import terminal
from credit_inspector.algorithm import Algorithm
from credit_inspector.table import Floats, TokenTable


@estimator("traces", words="advantage of the response × (γλ)^(tokens after it)")
def traces(table: TokenTable, algorithm: Algorithm) -> Floats:
    """``[T]`` A_t = (γλ)^{n−1−t} A with A of ``grpo`` by the rule's fields; NaN where not trained.

    The λ-return where the only TD error is A, at ``Algorithm.terminal``: the forward view of the trace
    e_t = γλ e_{t−1} + ∇ log π_t, for Σ_t δ_t e_t = Σ_t A_t ∇ log π_t (Sutton & Barto, ch. 12). It is the family of
    GRPO-λ; that paper's own weightings are others. Which tokens count as steps: ``Algorithm.observation``.

    Raises:
        MissingColumn: the KL term needs log-probs that nobody recorded.
    """
    advantage = grpo(table, algorithm)
    slot = terminal(table, algorithm)
    slot = slot[slot >= 0]
    errors = np.zeros(table.n_tokens)
    errors[slot] = advantage[slot]
    acts = table.loss_mask.copy()
    acts[slot] |= algorithm.terminal == "after-last"
    return discounted(table, errors, gamma=algorithm.gamma * algorithm.lam, observation=algorithm.observation, acts=acts)
