"""Pass@k: only the best response of a group is paid, by how far it leads the second best."""

from __future__ import annotations

from credit_inspector.advantages import estimator
from credit_inspector.advantages.reinforce import scalar_reward
from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.against_group import passk
from credit_inspector.table import Floats, TokenTable


@estimator("grpo_passk")
def grpo_passk(table: TokenTable, algorithm: Algorithm) -> Floats:
    """``[T]`` (R_best − R_second) / (std + eps) on the best response of a group, 0 on all others.

    arXiv 2503.19595; verl 0.9.1, ``compute_grpo_passk_outcome_advantage``. Where two are best, nobody is paid.
    """
    found = passk(
        scalar_reward(table, algorithm),
        table.group,
        std=algorithm.std,
        ddof=algorithm.std_ddof,
        eps=algorithm.std_eps,
        singleton=algorithm.singleton,
    )
    return table.to_tokens(found)
