"""Rules as a line for a person, to stand beside every advantage."""

from __future__ import annotations

from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.normalise import Baseline, Std

_FIXED = {
    "rloo": "reward − mean of the others in the group",
    "reinforce": "the reward itself",
    "opo": "reward − group mean weighted by length",
    "gpg": "(reward − group mean) × responses / responses with a reward other than 0",
}
_BASELINES = {"group": "group mean", "leave-one-out": "mean of the others in the group", "batch": "batch mean"}
_DEVIATIONS = {"group": "group std", "leave-one-out": "std of the others in the group", "batch": "batch std"}
_TOKEN_LEVEL = frozenset({"returns", "gae", "reinforce_pp", "traces"})
_SLOTS = {"last-trained": "last trained", "last": "last", "after-last": "first untrained"}
_KL = {
    "token-rewards": "KL of each token taken off its reward",
    "scalar": "KL of the response taken off its reward",
    "to-go": "KL still to come taken off",
    "same-token": "KL of the token taken off",
}


def in_words(advantage: str, *, std: Std = "none", ddof: int = 1, eps: float = 0.0, baseline: Baseline = "group") -> str:
    """What an estimator does, from the fields of ``Algorithm`` that it looks at; its name where that is all there is."""
    if advantage == "maxrl":
        return f"(reward − group mean) / {_plus('group mean', eps) if eps else 'group mean'}"
    if advantage not in ("grpo", "grpo_passk", "gdpo"):
        return _FIXED.get(advantage, advantage)
    over = "" if std == "none" else f" / {_plus(f'{_DEVIATIONS[std]} with ddof {ddof}', eps)}"
    if advantage == "grpo_passk":
        lead = "its reward − the second best"
        return f"only the best of a group: ({lead}){over}" if over else f"only the best of a group: {lead}"
    distance = f"reward − {_BASELINES[baseline]}"
    against = f"({distance}){over}" if over else distance
    return against if advantage == "grpo" else f"{against}, for each reward function, weighted and summed"


def whole_in_words(algorithm: Algorithm, words: str = "") -> str:
    """A run's whole way from rewards to advantages: the estimator (or ``words`` for it), the KL term, the whitening."""
    said = words or in_words(
        algorithm.advantage,
        baseline=algorithm.baseline,
        std=algorithm.std,
        ddof=algorithm.std_ddof,
        eps=algorithm.std_eps,
    )
    if algorithm.advantage in _TOKEN_LEVEL:
        said += f"; γ {algorithm.gamma:g}, λ {algorithm.lam:g}, reward on the {_SLOTS[algorithm.terminal]} token"
        said += f", tokens that are not trained: {algorithm.observation}"
    if algorithm.kl_in_reward:
        said += f"; {_KL[algorithm.kl_in_reward_as]} with weight {algorithm.kl_in_reward:g}"
    if algorithm.whiten != "none":
        said += f"; whitened over {algorithm.whiten}"
    return said


def _plus(what: str, eps: float) -> str:
    return f"({what} + {eps:g})"
