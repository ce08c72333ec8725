"""What a rule leaves out of its loss, and why."""

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
from credit_inspector.credit.kept import kept
from credit_inspector.errors import MissingColumn, UsageError
from credit_inspector.metrics import metrics
from credit_inspector.rollout import Rollout
from credit_inspector.table import Column, TokenTable

SPECS = {spec.name: spec for registry in (metrics, credit_columns) for spec in registry.members()}
RULE = Algorithm(name="test", source="test")


def table_of(rows: list[dict[str, Any]]) -> TokenTable:
    """Each row: ``mask``, ``delta`` (log π_old − log π_rollout, with log π_rollout −1) and fields of ``Rollout``."""
    rollouts = []
    for i, row in enumerate(rows):
        fields = dict(row)
        mask = np.array(fields.pop("mask"), bool)
        if "delta" in fields:
            delta = np.asarray(fields.pop("delta"), np.float32)
            fields["columns"] = {"logprob/old": delta, "logprob/rollout": np.zeros(len(mask), np.float32)}
        rollouts.append(Rollout(sample_id=str(i), response_ids=np.zeros(len(mask), np.int32), loss_mask=mask, **fields))
    return TokenTable.from_rollouts(0, rollouts)


def column(table: TokenTable, rule: Algorithm, name: str = "kept") -> Column:
    compute(Inputs(table, algorithm=rule), [name], SPECS)
    return table.columns[name]


def test_a_rule_that_leaves_nothing_out_keeps_every_trained_token() -> None:
    found = column(table_of([{"mask": [1, 0, 1]}]), RULE)
    np.testing.assert_array_equal(found.values, [1, np.nan, 1])
    assert found.note == "the rule leaves no token out"


def test_groups_without_spread_are_dropped_and_a_group_of_one_is_not() -> None:
    rewards = {"dead": [1, 1], "alive": [1, 0], "alone": [1], "unscored": [1, None, 0], None: [1, 1]}
    rows = [{"mask": [1], "group_id": name, "reward": r} for name, values in rewards.items() for r in values]
    found = kept(table_of(rows), replace(RULE, drop_dead_groups=True))
    np.testing.assert_array_equal(found, [False, False] + [True] * 8)


def test_truncated_responses_are_masked_and_an_unknown_end_is_not() -> None:
    table = table_of([{"mask": [1, 0], "truncated": True}, {"mask": [1], "truncated": False}, {"mask": [1], "truncated": None}])
    found = column(table, replace(RULE, mask_truncated=True))
    np.testing.assert_array_equal(found.values, [0, np.nan, 1, 1])
    assert found.note == "1 of 3 trained tokens left out: 1 of truncated responses"


def test_each_reason_counts_the_tokens_that_were_still_there() -> None:
    dead = {"group_id": "a", "reward": 1.0}
    rows = [
        {"mask": [1, 1], "delta": [0.0, 0.0], "truncated": True, **dead},
        {"mask": [1], "delta": [9.0], **dead},
        {"mask": [1, 1, 1], "delta": [0.0, 0.0, 0.0], "truncated": True, "group_id": "b", "reward": 0.0},
        {"mask": [1, 1, 0], "delta": [9.0, 0.0, 9.0], "group_id": "b", "reward": 1.0},
    ]
    rule = replace(RULE, drop_dead_groups=True, mask_truncated=True, rollout_reject={"token_k2": "2"})
    found = column(table_of(rows), rule)
    np.testing.assert_array_equal(found.values, [0, 0, 0, 0, 0, 0, 0, 1, np.nan])
    assert found.note == (
        "7 of 8 trained tokens left out: 3 in groups with one reward for all, 3 of truncated responses, 1 rejected by token_k2 2"
    )


# ── rejection ───────────────────────────────────────────────────────────────────────────────────────────────────────


def rejected_long_way(rows: list[tuple[list[bool], list[float]]], name: str, low: float, high: float) -> list[bool]:
    """One response and one token after another."""
    level, kind = name.rsplit("_", 1)
    statistic = {"k1": lambda d: -d, "k2": lambda d: d * d / 2, "k3": lambda d: np.exp(d) - 1 - d}[kind]
    of_row = {"seq_sum": sum, "seq_mean": lambda v: sum(v) / len(v), "seq_max": max}
    keep = []
    for mask, deltas in rows:
        values = [statistic(min(max(d, -20.0), 20.0)) for d in deltas]
        if level != "token":
            trained = [v for v, inside in zip(values, mask, strict=True) if inside]
            values = [of_row[level](trained)] * len(values) if trained else values
        keep += [inside and low <= v <= high for v, inside in zip(values, mask, strict=True)]
    return keep


NAMES = [f"{level}_{kind}" for level in ("token", "seq_sum", "seq_mean", "seq_max") for kind in ("k1", "k2", "k3")]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "seq_max_k1"])
@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.lists(st.tuples(st.booleans(), st.floats(-3, 3) | st.floats(-40, 40)), max_size=5), min_size=1, max_size=4),
    high=st.floats(0.05, 4),
    factor=st.floats(0.1, 1),
)
def test_rejection_token_by_token(name: str, rows: Any, high: float, factor: float) -> None:
    deltas = [[float(np.float32(d)) for _, d in row] for row in rows]
    split = [([inside for inside, _ in row], delta) for row, delta in zip(rows, deltas, strict=True)]
    two = name.endswith("k1")
    text = f"{factor * high!r}_{high!r}" if two else f"{high!r}"
    bounds = (np.log(factor * high), np.log(high)) if two else (-np.inf, high)
    table = table_of([{"mask": mask, "delta": delta} for mask, delta in split])
    ours = kept(table, replace(RULE, rollout_reject={name: text}))
    np.testing.assert_array_equal(ours, rejected_long_way(split, name, *bounds))


def test_bounds_of_k1_are_those_of_rollout_over_trainer() -> None:
    table = table_of([{"mask": [1, 1], "delta": np.log([1.5, 0.65])}])
    np.testing.assert_array_equal(kept(table, replace(RULE, rollout_reject={"token_k1": "0.6_1.4"})), [True, False])


def test_one_bound_of_k1_stands_for_two() -> None:
    table = table_of([{"mask": [1, 1, 1], "delta": np.log([1.9, 0.51, 2.1])}])
    np.testing.assert_array_equal(kept(table, replace(RULE, rollout_reject={"token_k1": "2"})), [True, True, False])


def test_all_of_several_statistics_have_to_pass() -> None:
    table = table_of([{"mask": [1, 1], "delta": [0.1, 1.0]}, {"mask": [1, 1], "delta": [0.1, 0.1]}])
    rule = replace(RULE, rollout_reject={"token_k2": "0.4", "seq_max_k3": "0.1"})
    np.testing.assert_array_equal(kept(table, rule), [False, False, True, True])


@pytest.mark.parametrize("delta", [np.nan, np.inf])
def test_a_token_without_a_log_prob_is_not_held_against_its_response(delta: float) -> None:
    table = table_of([{"mask": [1, 1, 0], "delta": [0.1, np.nan, delta]}])
    for name in ("token_k3", "seq_sum_k2", "seq_max_k2"):
        np.testing.assert_array_equal(kept(table, replace(RULE, rollout_reject={name: "0.1"})), [True, True, False])


@pytest.mark.parametrize(
    "reject", [{"token_k4": "1"}, {"seq_max_k1": "1"}, {"token_k2": "0.5_1"}, {"token_k1": "0_1"}, {"token_k3": "much"}]
)
def test_what_verl_does_not_know_is_refused(reject: dict[str, str]) -> None:
    table = table_of([{"mask": [1], "delta": [0.0]}])
    with pytest.raises(UsageError, match="rollout_reject"):
        kept(table, replace(RULE, rollout_reject=reject))


def test_rejection_without_log_probs_is_a_reason_for_every_column_that_it_decides() -> None:
    rule, table = replace(RULE, rollout_reject={"token_k2": "1"}), table_of([{"mask": [1], "advantage": 1.0}])
    with pytest.raises(MissingColumn, match="logprob/rollout is not there, and test rejects tokens"):
        kept(table, rule)
    for name in ("kept", "weight", "credit/coefficient"):
        found = column(table, rule, name)
        assert found.values is None
        assert "logprob/rollout" in found.note
