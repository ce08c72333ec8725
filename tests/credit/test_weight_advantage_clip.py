"""The parts of assigned credit: weights by aggregation, advantages with their notes, clip codes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from credit_inspector.algorithm import Algorithm
from credit_inspector.columns import Inputs, compute
from credit_inspector.credit import credits as credit_columns
from credit_inspector.credit.weight import token_weights
from credit_inspector.metrics import metrics
from credit_inspector.rollout import Rollout
from credit_inspector.table import Column, Provenance, TokenTable

SPECS = {spec.name: spec for registry in (metrics, credit_columns) for spec in registry.members()}
RULE = Algorithm(name="test", source="test", std_eps=0.0)


def table_of(rows: list[dict[str, Any]], rule: Algorithm | None = RULE) -> TokenTable:
    """Each row: ``mask`` or ``n`` tokens, and fields of ``Rollout``."""
    rollouts = []
    for i, row in enumerate(rows):
        fields = dict(row)
        mask = np.array(fields.pop("mask", np.ones(fields.pop("n", 1))), bool)
        ids = np.zeros(len(mask), np.int32)
        rollouts.append(Rollout(sample_id=str(i), response_ids=ids, loss_mask=mask, **fields))
    return TokenTable.from_rollouts(0, rollouts, algorithm=rule)


def column(table: TokenTable, name: str) -> Column:
    compute(Inputs(table, algorithm=table.algorithm), [name], SPECS)
    return table.columns[name]


def group(rewards: list[Any], stored: list[Any] | None = None, group_id: str | None = "g") -> list[dict[str, Any]]:
    return [
        {"reward": r, "group_id": group_id, "advantage": None if stored is None else stored[i]} for i, r in enumerate(rewards)
    ]


# ── weight ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("seq-mean-token-mean", (0.2500, -0.0625)),
        ("token-mean", (0.1000, -0.1000)),
        ("seq-mean-token-sum-norm", (0.0500, -0.0500)),
    ],
)
def test_aggregation_decides_how_much_credit_one_token_gets(aggregation: Any, expected: tuple[float, float]) -> None:
    """Lengths 2 and 8, advantages +1 and −1, ratio 1, horizon 10."""
    rule = replace(RULE, aggregation=aggregation, horizon=10.0)
    table = table_of([{"n": 2, "advantage": 1.0}, {"n": 8, "advantage": -1.0}], rule)
    np.testing.assert_allclose(column(table, "credit/coefficient").values, np.repeat(expected, [2, 8]), rtol=1e-6)
    assert f"test (test): {aggregation}, 10 trained tokens of 2 responses" in column(table, "weight").note


def test_a_dropped_response_is_in_neither_part_of_the_mean() -> None:
    """30 tokens with loss 1 each, 5 of them in a dropped response: 25/25, and not 25/30."""
    table = table_of([{"n": 25}, {"mask": [0] * 5}])
    weights = token_weights(table, RULE)
    assert np.nansum(weights * 1.0) == pytest.approx(1.0)
    assert np.isnan(weights[25:]).all()


def test_responses_without_a_trained_token_count_only_where_the_rule_says_so() -> None:
    table = table_of([{"n": 2}, {"mask": [0, 0]}, {"n": 1}, {"mask": []}])
    each = [[0.25, 0.25, np.nan, np.nan, 0.5], [0.125, 0.125, np.nan, np.nan, 0.25]]
    for counted, expected in zip((False, True), each, strict=True):
        rule = replace(RULE, aggregation="seq-mean-token-mean", count_empty=counted)
        np.testing.assert_allclose(token_weights(table, rule), expected)


def test_a_horizon_that_nobody_knows_is_a_reason_and_not_a_number() -> None:
    found = column(table_of([{"n": 2}], replace(RULE, aggregation="seq-mean-token-sum-norm")), "weight")
    assert found.values is None
    assert "horizon" in found.note


def test_no_trained_tokens_at_all() -> None:
    for rows in ([], [{"mask": [0, 0]}]):
        assert np.isnan(token_weights(table_of(rows), RULE)).all()


@settings(max_examples=40, deadline=None)
@given(masks=st.lists(st.lists(st.booleans(), max_size=6), min_size=1, max_size=6), counted=st.booleans())
def test_weights_sum_to_what_their_mode_promises(masks: list[list[bool]], counted: bool) -> None:
    table = table_of([{"mask": mask} for mask in masks])
    tokens, busy = sum(map(sum, masks)), sum(map(any, masks))
    responses = len(masks) if counted else busy
    horizon = 7.0
    if not tokens:
        return
    promised = {
        "token-mean": 1,
        "token-sum": tokens,
        "seq-mean-token-mean": busy / responses,
        "seq-mean-token-sum": tokens / responses,
        "luspo": tokens / responses,
        "seq-mean-token-sum-norm": tokens / responses / horizon,
    }
    for aggregation, total in promised.items():
        rule = Algorithm(name="t", source="t", aggregation=aggregation, horizon=horizon, count_empty=counted)  # type: ignore[arg-type]
        assert np.nansum(token_weights(table, rule)) == pytest.approx(total)


# ── advantage ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_dead_groups_are_counted() -> None:
    rewards = {"a": [1, 1, 1, 1], "b": [0, 0, 0, 0], "c": [1, 0, 1, 0]}
    table = table_of([row for name, values in rewards.items() for row in group(values, group_id=name)])
    found = column(table, "advantage")
    np.testing.assert_allclose(found.values, [0] * 8 + [0.8660, -0.8660] * 2, atol=5e-5)
    assert "2 of 3 groups have no spread: no policy signal" in found.note
    assert "(reward − group mean) / (group std with ddof 1 + 0); rule test (test)" in found.note


def test_stored_advantages_that_do_not_follow_are_said_with_the_residual() -> None:
    """Rows of two prompts in turn whose stored advantages were made of consecutive rows."""
    stored = [0.7071, -0.7071, 0.7071, -0.7071]
    rows = [{"reward": r, "group_id": g, "advantage": a} for r, g, a in zip([1, 0, 1, 0], "pqpq", stored, strict=True)]
    found = column(table_of(rows), "advantage")
    np.testing.assert_array_equal(found.values, [0, 0, 0, 0])
    assert "differs from the recorded advantages of 4 of 4 responses, by up to 0.7071" in found.note
    agreeing = column(table_of(group([1, 0, 1, 0], [0.866, -0.866, 0.866, -0.866])), "advantage")
    assert "agrees with the recorded advantages" in agreeing.note


def test_a_group_of_one_has_no_baseline() -> None:
    found = column(table_of(group([0.7], [0.7])), "advantage")
    assert found.values == [0]
    assert "1 response alone in a group, so without a baseline: advantage 0" in found.note
    assert "by up to 0.7" in found.note
    kept = column(table_of(group([0.7], [0.7]), replace(RULE, singleton="reward")), "advantage")
    np.testing.assert_allclose(kept.values, [0.7], rtol=1e-6)


def test_a_missing_reward_is_missing_and_counted() -> None:
    found = column(table_of(group([1, 0, None, 1])), "advantage")
    np.testing.assert_allclose(found.values, [0.5774, -1.1547, np.nan, 0.5774], atol=5e-5)
    assert "1 response without a reward" in found.note
    filled = column(table_of(group([1, 0, None, 1], [0.5774, -1.1547, 0.0, 0.5774])), "advantage")
    np.testing.assert_allclose(filled.values, [0.5774, -1.1547, 0, 0.5774], atol=5e-5)


def test_rows_without_a_group_are_not_one_group() -> None:
    found = column(table_of([*group([1, 0]), *group([1, 0], group_id=None)]), "advantage")
    np.testing.assert_allclose(found.values, [0.7071, -0.7071, np.nan, np.nan], atol=5e-5)
    assert "2 responses without a group: not computed" in found.note


@pytest.mark.parametrize("rule", [None, replace(RULE, advantage="gdpo"), replace(RULE, kl_in_reward=0.1)])
def test_recorded_advantages_stand_in_where_the_rule_cannot_be_applied(rule: Algorithm | None) -> None:
    found = column(table_of(group([1, 0], [2.0, -3.0]), rule), "advantage")
    np.testing.assert_array_equal(found.values, [2, -3])
    assert found.provenance is Provenance.RECORDED
    assert "not recomputed: " in found.note
    assert column(table_of(group([1, 0]), rule), "advantage").values is None


def test_nothing_to_make_an_advantage_of_is_said() -> None:
    assert "no response has a reward" in column(table_of(group([None])), "advantage").note
    assert "neither a group id nor a prompt" in column(table_of(group([1, 0], group_id=None)), "advantage").note


def test_a_recorded_token_column_is_never_overwritten() -> None:
    row = {"reward": 1.0, "group_id": "g", "columns": {"advantage": np.array([3.0], np.float32)}}
    found = column(table_of([row]), "advantage")
    assert found.values == [3]
    assert found.provenance is Provenance.RECORDED


def test_masked_tokens_have_no_advantage() -> None:
    rows = [{"mask": [1, 0], "reward": 1.0, "group_id": "g"}, {"mask": [1], "reward": 0.0, "group_id": "g"}]
    np.testing.assert_allclose(column(table_of(rows), "advantage").values, [0.7071, np.nan, -0.7071], atol=5e-5)


# ── clip ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_clip_codes_and_their_counts() -> None:
    ratios = np.array([1.5, 1.5, 0.5, 0.5, 9.0, 9.0])
    names = {"logprob/policy": np.log(ratios) - 9, "logprob/old": np.full(6, -9.0), "advantage": [1, -1, 1, -1, 1, -1]}
    columns = {name: np.asarray(values, np.float32) for name, values in names.items()}
    rule = replace(RULE, updates_per_batch=4, dual_clip=3.0)
    table = table_of([{"mask": [1, 1, 1, 1, 0, 1], "columns": columns}], rule)
    found = column(table, "clip")
    np.testing.assert_array_equal(found.values, [1, 0, 0, -1, np.nan, 2])
    assert "of 5 tokens 1 at the upper bound, 1 at the lower bound, 1 by dual clip, delta or a cap" in found.note
    outside = np.abs(table.values("logprob/policy") - table.values("logprob/old")) > np.log(1.2)
    assert outside[[0, 1, 2, 3]].all(), "outside the interval is another thing than clipped"


def test_clipping_needs_log_probs_and_reinforce_does_not() -> None:
    rule = replace(RULE, updates_per_batch=4)
    assert column(table_of([{"n": 1, "advantage": 1.0}], rule), "clip").values is None
    plain = column(table_of([{"n": 1, "advantage": 1.0}], replace(rule, loss="reinforce")), "credit/policy_push")
    assert plain.values == [1]
