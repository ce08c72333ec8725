"""Which rule made the stored advantages: the variants people meet, and what cannot be told."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from credit_inspector.advantages import estimators
from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.detect import Detection, Rule, detect, explain, explain_rollouts
from credit_inspector.algorithms.normalise import normalise
from credit_inspector.rollout import Rollout
from credit_inspector.table import TokenTable

REWARDS = [1, 1, 1, 0, 0, 0, 0, 0]
ONE = [0] * 8


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        (0.6250, -0.3750, "reward − group mean"),
        (1.2076, -0.7246, "(reward − group mean) / (group std with ddof 1"),
        (1.2910, -0.7746, "(reward − group mean) / (group std with ddof 0"),
        (0.7143, -0.4286, "reward − mean of the others in the group"),
        (1.0, 0.0, "the reward itself"),
        (1.4639, -0.8018, "(reward − mean of the others in the group) / (std of the others in the group with ddof 1 + 1e-06)"),
    ],
)
def test_each_known_normaliser_is_named_with_its_residual(right: float, wrong: float, words: str) -> None:
    found = explain(REWARDS, ONE, [right] * 3 + [wrong] * 5)
    assert found.rule is not None
    assert found.rule.words.startswith(words)
    assert found.residual < 1e-4
    assert "residual" in found.message
    assert found.message.startswith(words)


def test_anything_else_is_no_known_rule_and_says_by_how_much() -> None:
    found = explain(REWARDS, ONE, [2.0] * 3 + [-1.2] * 5)
    assert found.rule is None
    assert found.message.startswith("stored advantages do not match a known rule; the nearest, ")
    assert found.residual > 0.1


def test_blocks_of_consecutive_rows_are_told_from_group_ids() -> None:
    found = explain([1, 0, 1, 0], [0, 1, 0, 1], [0.7071, -0.7071, 0.7071, -0.7071])
    assert found.blocks == 2
    assert found.message.startswith("stored advantages match blocks of 2 consecutive rows, not the group ids: ")
    assert found.rule is not None
    assert (found.rule.std, found.rule.ddof) == ("group", 1)


def test_blocks_are_found_where_there_are_no_ids() -> None:
    rewards = [1, 0, 0, 1, 1, 0]
    stored = normalise(rewards, [0, 0, 0, 1, 1, 1], std="group", ddof=1, eps=1e-4)
    found = explain(rewards, [-1] * 6, stored)
    assert found.blocks == 3
    assert "and there are no group ids" in found.message


@pytest.mark.parametrize("eps", [1e-4, 1e-6])
def test_eps_is_read_from_float32_advantages(eps: float) -> None:
    stored = normalise(REWARDS, ONE, std="group", ddof=1, eps=eps).astype(np.float32)
    found = explain(REWARDS, ONE, stored)
    assert found.rule is not None
    assert found.rule.eps == eps


def test_an_eps_below_the_stored_digits_is_not_claimed() -> None:
    assert "cannot be told apart" in explain(REWARDS, ONE, [1.2076] * 3 + [-0.7246] * 5).message


def named(found: Detection) -> set[str]:
    assert found.rule is not None
    return {rule.words.split(" + ")[0] for rule in (found.rule, *found.also)}


def test_rules_that_agree_on_these_rewards_are_all_named() -> None:
    found = explain([1, 0], [0, 0], [1.0, -1.0])
    assert named(found) == {
        "(reward − group mean) / (group std with ddof 0",
        "(reward − group mean) / (batch std with ddof 0",
        "(reward − batch mean) / (batch std with ddof 0",
        "reward − mean of the others in the group",
        "(reward − mean of the others in the group) / (std of the others in the group with ddof 1",
        "(reward − group mean) / group mean",
        "(reward − group mean) × responses / responses with a reward other than 0",
    }
    assert all(rule.words in found.message for rule in found.also)


def test_what_one_group_cannot_tell_a_second_one_does() -> None:
    """One success in four: MaxRL and GPG are the same, until another group has another mean."""
    alone = explain([1, 0, 0, 0], [0] * 4, [3, -1, -1, -1])
    assert named(alone) == {
        "(reward − group mean) / group mean",
        "(reward − group mean) × responses / responses with a reward other than 0",
    }
    stored = [3, -1, -1, -1, 1 / 3, 1 / 3, 1 / 3, -1]
    both = explain([1, 0, 0, 0, 1, 1, 1, 0], [0] * 4 + [1] * 4, stored)
    assert named(both) == {"(reward − group mean) / group mean"}
    assert "the same as" not in both.message


TWO_GROUPS = ([1.0, 0.0, 0.0, 0.5, 2.0, 1.0, 0.0, 0.0], [0, 0, 0, 0, 1, 1, 1, 1])
LENGTHS = [3, 5, 9, 2, 4, 4, 1, 6]


@pytest.mark.parametrize(
    "rule",
    [
        Rule("grpo", "none"),
        Rule("grpo", "group", 1, 1e-6),
        Rule("grpo", "group", 0, 1e-4),
        Rule("grpo", "batch", 1, 1e-4),
        Rule("grpo", "leave-one-out", 1, 1e-6, baseline="leave-one-out"),
        Rule("grpo", "none", baseline="batch"),
        Rule("grpo", "batch", 1, 1e-5, baseline="batch"),
        Rule("rloo"),
        Rule("reinforce"),
        Rule("maxrl"),
        Rule("maxrl", eps=1e-6),
        Rule("gpg"),
        Rule("opo"),
        Rule("grpo_passk", "none"),
        Rule("grpo_passk", "group", 1, 1e-6),
    ],
    ids=lambda rule: rule.words,
)
def test_every_rule_is_found_again_and_alone(rule: Rule) -> None:
    rewards, groups = TWO_GROUPS
    found = explain(rewards, groups, rule.apply(rewards, groups, LENGTHS), lengths=LENGTHS)
    assert found.rule == rule
    assert found.also == ()


def test_a_rule_that_says_0_everywhere_explains_no_zeros() -> None:
    found = explain([1, 1, 0, 0], [0] * 4, [0, 0, 0, 0])
    assert found.rule is None
    assert "do not match a known rule" in found.message


def test_no_spread_tells_nothing() -> None:
    found = explain([1, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 0])
    assert found.rule is None
    assert "no group has spread" in found.message


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        (0.7, "stored value equals the raw reward"),
        (0.0, "no group has spread"),
        (0.0, "zeroed"),
        (np.nan, "no response has both a reward and a stored advantage"),
    ],
)
def test_a_group_of_one(stored: float, said: str) -> None:
    assert said in explain([0.7], [0], [stored]).message


@pytest.mark.parametrize(("stored", "said"), [(0.7, "groups of one keep their reward"), (0.0, "groups of one get 0")])
def test_a_group_of_one_among_others(stored: float, said: str) -> None:
    assert said in explain([0.7, 1, 0, 1], [0, 1, 1, 1], [stored, 0.5774, -1.1547, 0.5774]).message


def test_groups_of_one_against_the_batch() -> None:
    rewards = np.array([0.7, 0.1, 0.4])
    found = explain(rewards, [0, 1, 2], rewards - rewards.mean())
    assert found.rule == Rule("grpo", baseline="batch")
    assert "groups of one" not in found.message


def test_missing_values_are_left_out() -> None:
    found = explain([1, 0, np.nan, 1], [0, 0, 0, 0], [0.5774, -1.1547, np.nan, 0.5774])
    assert found.rule is not None
    assert found.rule.ddof == 1
    nothing = explain([np.nan], [0], [1.0])
    assert nothing.rule is None
    assert np.isnan(nothing.residual)


@settings(max_examples=40, deadline=None)
@given(
    rewards=st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.5]), min_size=8, max_size=8).filter(lambda r: len(set(r)) > 2),
    std=st.sampled_from(["group", "batch", "none"]),
    ddof=st.sampled_from([0, 1]),
)
def test_what_was_found_reproduces_what_was_stored(rewards: list[float], std: str, ddof: int) -> None:
    groups = [0, 0, 0, 0, 1, 1, 1, 1]
    stored = normalise(rewards, groups, std=std, ddof=ddof, eps=1e-6)  # type: ignore[arg-type]
    found = explain(rewards, groups, stored)
    if found.rule is None:
        assert not stored.any()
        return
    np.testing.assert_allclose(found.rule.apply(rewards, groups), stored, atol=1e-8)


def rollouts(rewards: list[float], stored: list[float | None]) -> list[Rollout]:
    return [
        Rollout(sample_id=str(i), group_id="g", reward=r, advantage=a)
        for i, (r, a) in enumerate(zip(rewards, stored, strict=True))
    ]


def test_the_rule_of_rollouts_is_an_algorithm_that_says_how_it_is_known() -> None:
    rewards = [1.0, 0.0, 0.0, 0.0]
    found = detect(rollouts(rewards, [1.4997000599, -0.4999000199, -0.4999000199, -0.4999000199]))
    assert found is not None
    assert (found.name, found.std, found.std_ddof, found.std_eps) == ("detected/grpo", "group", 1, 1e-4)
    assert found.source == "detected from advantages; loss and weights are assumed"


@pytest.mark.parametrize("stored", [[None] * 4, [9.0, 1.0, 2.0, 3.0], [0.0] * 4])
def test_no_rule_is_claimed_where_none_fits(stored: list[float | None]) -> None:
    assert detect(rollouts([1.0, 0.0, 0.0, 0.0], stored)) is None


@pytest.mark.parametrize("name", ["rloo", "grpo", "reinforce", "maxrl", "gpg", "opo", "grpo_passk"])
def test_what_is_tried_here_is_what_the_estimators_do(name: str) -> None:
    """Detection works on arrays and estimators on a table: the same numbers, and the same words."""
    rewards, groups = TWO_GROUPS
    rows = [
        Rollout(sample_id=str(i), group_id=str(g), reward=r, response_ids=np.zeros(n, np.int32))
        for i, (r, g, n) in enumerate(zip(rewards, groups, LENGTHS, strict=True))
    ]
    rule = Rule(name, "group" if name.startswith("grpo") else "none", eps=1e-6)
    table = TokenTable.from_rollouts(0, rows)
    ours = estimators[name](table, Algorithm(name="t", source="t", **rule.settings))
    np.testing.assert_array_equal(ours[table.offsets[:-1]], rule.apply(rewards, groups, LENGTHS))
    assert estimators[name].words in ("", rule.words)


def test_advantages_of_tokens_count_where_a_response_has_one_value() -> None:
    def rows(second: list[float]) -> list[Rollout]:
        return [
            Rollout(
                sample_id=str(i),
                group_id="g",
                reward=reward,
                response_ids=np.zeros(3, np.int32),
                loss_mask=np.array([True, False, True]),
                columns={"advantage": np.array(values, np.float32)},
            )
            for i, (reward, values) in enumerate([(1.0, [0.75, np.nan, 0.75]), (0.0, second), (0.0, second), (0.0, second)])
        ]

    found = detect(rows([-0.25, 9.0, -0.25]))
    assert found is not None
    assert (found.advantage, found.std) == ("grpo", "none")
    varied = rows([-0.25, 9.0, 0.25])
    assert detect(varied) is None
    assert "differ between the tokens of 3 of 4 responses" in explain_rollouts(varied).message
