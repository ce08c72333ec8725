"""The line that stands beside every advantage says what was done to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.words import in_words, whole_in_words


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "(reward − group mean) / (group std with ddof 1 + 1e-06)"),
        ({"std": "none"}, "reward − group mean"),
        ({"baseline": "batch", "std": "batch", "std_eps": 1e-5}, "(reward − batch mean) / (batch std with ddof 1 + 1e-05)"),
        ({"advantage": "maxrl", "std_eps": 0.0}, "(reward − group mean) / group mean"),
        ({"advantage": "maxrl"}, "(reward − group mean) / (group mean + 1e-06)"),
        ({"advantage": "grpo_passk", "std": "none"}, "only the best of a group: its reward − the second best"),
        (
            {"advantage": "grpo_passk"},
            "only the best of a group: (its reward − the second best) / (group std with ddof 1 + 1e-06)",
        ),
        ({"advantage": "gdpo", "std": "none"}, "reward − group mean, for each reward function, weighted and summed"),
        ({"advantage": "plugged-in"}, "plugged-in"),
        (
            {"advantage": "reinforce", "kl_in_reward": 0.1, "kl_in_reward_as": "scalar", "whiten": "tokens"},
            "the reward itself; KL of the response taken off its reward with weight 0.1; whitened over tokens",
        ),
    ],
)
def test_a_rule_in_words(fields: dict[str, Any], said: str) -> None:
    assert whole_in_words(Algorithm(name="t", source="t", **fields)) == said


def test_an_estimators_own_words_come_first() -> None:
    rule = Algorithm(name="t", source="t", advantage="mine", whiten="tokens")
    assert whole_in_words(rule, "reward by the moon") == "reward by the moon; whitened over tokens"
    assert in_words("reinforce") == "the reward itself"


def test_a_rule_over_tokens_says_how_it_discounts() -> None:
    one = Algorithm(name="a", source="t", advantage="gae", gamma=0.99, lam=0.95, observation="count", terminal="last")
    other = replace(one, lam=1.0)
    assert whole_in_words(one) == "gae; γ 0.99, λ 0.95, reward on the last token, tokens that are not trained: count"
    assert whole_in_words(one) != whole_in_words(other)
