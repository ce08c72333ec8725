"""REINFORCE++ with a baseline: the reward against its group's mean, to be whitened over the batch's tokens."""

from __future__ import annotations

from credit_inspector.advantages import estimator
from credit_inspector.advantages.reinforce import scalar_reward
from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.normalise import normalise
from credit_inspector.table import Floats, TokenTable


@estimator("reinforce_pp_baseline", words="reward − the rule's baseline")
def reinforce_pp_baseline(table: TokenTable, algorithm: Algorithm) -> Floats:
    """``[T]`` R − baseline, one value on all tokens of a response, and no standard deviation of the group.

    verl 0.9.1 (``compute_reinforce_plus_plus_baseline_outcome_advantage``), NeMo-RL 7ea279a
    (``ReinforcePlusPlusAdvantageEstimator``, ``minus_baseline``) and OpenRLHF's ``reinforce_baseline`` whiten it over tokens
    next: ``Algorithm.whiten``. ``Algorithm.std`` is not looked at. NaN where a response has no reward or no group.

    Raises:
        MissingColumn: the KL term needs log-probs that nobody recorded.
    """
    by_response = normalise(
        scalar_reward(table, algorithm),
        table.group,
        baseline=algorithm.baseline,
        std="none",
        ddof=algorithm.std_ddof,
        eps=algorithm.std_eps,
        singleton=algorithm.singleton,
    )
    return table.to_tokens(by_response)
