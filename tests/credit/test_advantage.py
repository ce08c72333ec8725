"""The advantage column and the one made to be held against what was recorded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from credit_inspector.advantages import estimator, estimators
from credit_inspector.algorithm import Algorithm
from credit_inspector.columns import Inputs, compute
from credit_inspector.credit import credits
from credit_inspector.rollout import Rollout
from credit_inspector.table import Column, Floats, Provenance, TokenTable

RULE = Algorithm(name="test", source="test", std="none")


def table_of(
    rewards: Any, stored: Any = None, tokens: Any = None, rule: Algorithm | None = RULE, n: int = 2, **fields: Any
) -> TokenTable:
    """One group; ``stored`` is one advantage a response, ``tokens`` one a token."""
    rollouts = [
        Rollout(
            sample_id=str(i),
            group_id="g",
            reward=reward,
            response_ids=np.zeros(n, np.int32),
            advantage=None if stored is None else stored[i],
            columns={} if tokens is None else {"advantage": np.array(tokens[i], np.float32)},
            **fields,
        )
        for i, reward in enumerate(rewards)
    ]
    return TokenTable.from_rollouts(0, rollouts, algorithm=rule)


def column(table: TokenTable, name: str) -> Column:
    compute(Inputs(table, table.algorithm), [name], {spec.name: spec for spec in credits.members()})
    return table.columns[name]


@pytest.fixture
def ramp() -> Iterator[Algorithm]:
    """A rule that gives every token of a response another advantage: 1, 2, 3, ... times the reward."""
    iter(estimators)

    @estimator("ramp", words="the reward times the place")
    def make(table: TokenTable, algorithm: Algorithm) -> Floats:
        return table.to_tokens(table.reward) * (table.position + 1)

    yield replace(RULE, advantage="ramp")
    del estimators._members["ramp"]


def test_a_recorded_token_column_stands_and_the_recomputed_one_is_held_against_it() -> None:
    table = table_of([1, 0], tokens=[[0.5, 0.5], [-0.5, 3.0]])
    stands, ours = column(table, "advantage"), column(table, "advantage/recomputed")
    assert stands.provenance is Provenance.RECORDED
    np.testing.assert_array_equal(stands.values, [0.5, 0.5, -0.5, 3])
    assert ours.provenance is Provenance.DERIVED
    np.testing.assert_array_equal(ours.values, [0.5, 0.5, -0.5, -0.5])
    assert "differs from the recorded advantages of 1 of 4 trained tokens, by up to 3.5" in ours.note


def test_recorded_tokens_that_follow_from_the_rewards_agree() -> None:
    table = table_of([1, 0], tokens=[[0.5, 0.5], [-0.5, -0.5]])
    assert "agrees with the recorded advantages" in column(table, "advantage/recomputed").note


def test_the_made_column_is_not_held_against_itself() -> None:
    table = table_of([1, 0])
    assert "recorded" not in column(table, "advantage").note
    assert "recorded" not in column(table, "advantage/recomputed").note


def test_what_was_recorded_on_masked_tokens_is_not_compared() -> None:
    table = table_of([1, 0], tokens=[[0.5, 77], [-0.5, np.nan]], loss_mask=np.array([True, False]))
    ours = column(table, "advantage/recomputed")
    np.testing.assert_array_equal(ours.values, [0.5, np.nan, -0.5, np.nan])
    assert "agrees with the recorded advantages" in ours.note


def test_one_recorded_number_is_not_compared_with_many(ramp: Algorithm) -> None:
    table = table_of([1, 0], stored=[1.0, 0.0], rule=ramp)
    found = column(table, "advantage")
    np.testing.assert_array_equal(found.values, [1, 2, 0, 0])
    assert "the reward times the place; rule test (test)" in found.note
    assert "1 response not compared: one recorded advantage, and the rule gives every token its own" in found.note
    assert "agrees with the recorded advantages" in found.note, "the other response has one value"


def test_many_recorded_numbers_are_compared_with_many(ramp: Algorithm) -> None:
    table = table_of([1, 1], tokens=[[1, 2], [1, 1]], rule=ramp)
    note = column(table, "advantage/recomputed").note
    assert "differs from the recorded advantages of 1 of 4 trained tokens, by up to 1" in note


def test_groups_whose_tokens_differ_are_not_called_dead(ramp: Algorithm) -> None:
    assert "no policy signal" not in column(table_of([1, 1], rule=ramp), "advantage").note
    assert "1 of 1 groups have no spread: no policy signal" in column(table_of([1, 1]), "advantage").note


def test_recomputed_never_stands_in_for_recorded_numbers() -> None:
    without_rule = column(table_of([1, 0], stored=[2.0, 3.0], rule=None), "advantage/recomputed")
    assert without_rule.values is None
    assert without_rule.note == "the run does not say which rule it optimised"
    unscored = column(table_of([1, None, 0], stored=[0.5, 9.0, -0.5]), "advantage/recomputed")
    np.testing.assert_array_equal(unscored.values, [0.5, 0.5, np.nan, np.nan, -0.5, -0.5])
    assert "1 response without a reward" in unscored.note


def test_a_recorded_number_that_stands_in_for_one_response_is_said() -> None:
    found = column(table_of([1, None, 0], stored=[0.5, 9.0, -0.5]), "advantage")
    np.testing.assert_array_equal(found.values, [0.5, 0.5, 9, 9, -0.5, -0.5])
    assert "1 response as recorded" in found.note


def test_the_note_names_the_whole_rule() -> None:
    nemo = replace(RULE, baseline="leave-one-out", std="leave-one-out", std_eps=1e-6)
    said = "(reward − mean of the others in the group) / (std of the others in the group with ddof 1 + 1e-06)"
    assert said in column(table_of([1, 0, 0], rule=nemo), "advantage").note
    batch = replace(RULE, baseline="batch", std="batch", std_eps=1e-5)
    alone = column(table_of([0.0], rule=batch), "advantage")
    assert "(reward − batch mean) / (batch std with ddof 1 + 1e-05)" in alone.note
    assert "alone in a group" not in alone.note, "the batch is its baseline"
    rloo = replace(RULE, advantage="rloo")
    assert "reward − mean of the others in the group; rule test" in column(table_of([1, 0], rule=rloo), "advantage").note


def test_a_step_without_a_trained_token_has_no_advantage_and_says_so() -> None:
    found = column(table_of([1, 0], loss_mask=np.zeros(2, bool)), "advantage")
    assert found.values is None
    assert "no token is trained" in found.note


def test_recorded_advantages_of_another_rule_are_explained() -> None:
    note = column(table_of([1, 0, 0, 0], stored=[1.5, -0.5, -0.5, -0.5]), "advantage").note
    assert "differs from the recorded advantages of 4 of 4 responses, by up to 0.75" in note
    assert "(reward − group mean) / (group std with ddof 1" in note
    unknown = column(table_of([1, 0], tokens=[[5, 5], [1, 1]]), "advantage/recomputed").note
    assert "stored advantages do not match a known rule" in unknown


def test_groups_by_place_instead_of_by_id_are_noticed() -> None:
    stored = [0.7071, -0.7071, 0.7071, -0.7071]
    rollouts = [
        Rollout(sample_id=str(i), group_id=g, reward=r, advantage=a, response_ids=np.zeros(1, np.int32))
        for i, (g, r, a) in enumerate(zip("pqpq", [1, 0, 1, 0], stored, strict=True))
    ]
    found = column(TokenTable.from_rollouts(0, rollouts, algorithm=RULE), "advantage")
    np.testing.assert_array_equal(found.values, [0, 0, 0, 0])
    assert "stored advantages match blocks of 2 consecutive rows, not the group ids" in found.note


@pytest.mark.parametrize(("stored", "said"), [(0.7, "stored value equals the raw reward"), (0.0, "agrees with")])
def test_a_group_of_one_against_what_was_stored(stored: float, said: str) -> None:
    found = column(table_of([0.7], stored=[stored]), "advantage")
    np.testing.assert_array_equal(found.values, [0, 0])
    assert "1 response alone in a group, so without a baseline: advantage 0" in found.note
    assert said in found.note


def test_a_kl_that_is_not_known_leaves_its_response_out_and_is_said() -> None:
    logprobs = {"logprob/old": np.array([-1, -1], np.float32), "logprob/ref": np.array([-2, -1], np.float32)}
    rule = replace(RULE, kl_in_reward=0.5, kl_in_reward_as="scalar")
    rollouts = list(table_of([1, 0, 1]).rollouts)
    broken = {**logprobs, "logprob/ref": np.array([-np.inf, -1], np.float32)}
    table = TokenTable.from_rollouts(
        0, [replace(rollout, columns=broken if i == 2 else logprobs) for i, rollout in enumerate(rollouts)], algorithm=rule
    )
    found = column(table, "advantage")
    np.testing.assert_array_equal(found.values, [0.5, 0.5, -0.5, -0.5, np.nan, np.nan])
    assert "1 response with a token whose KL is not known: not computed" in found.note
    assert "KL of the response taken off its reward with weight 0.5" in found.note
