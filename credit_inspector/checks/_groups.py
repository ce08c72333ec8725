"""Whether a run's rule compares a response with the others of its group."""

from __future__ import annotations

from credit_inspector.algorithm import Algorithm

_OF_A_GROUP = frozenset({"grpo", "rloo", "gpg", "maxrl", "opo", "grpo_passk", "gdpo", "reinforce_pp_baseline"})


def compares_in_groups(rule: Algorithm | None) -> bool:
    """True where equal rewards in a group leave no signal: a group's own baseline, whatever it is divided by.

    False for a critic, for the reward itself, for a baseline over the batch, and where the rule is not known.
    """
    return rule is not None and rule.advantage in _OF_A_GROUP and rule.baseline != "batch"
