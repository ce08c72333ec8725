"""Versions of the weights that sampled, by response and by token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from credit_inspector.algorithm import Algorithm
from credit_inspector.columns import Inputs, compute
from credit_inspector.metrics import metrics
from credit_inspector.rollout import Rollout
from credit_inspector.table import Column, TokenTable

SPECS = {spec.name: spec for spec in metrics.members()}


def table_of(step: int, versions: list[int | None], mask: Any = None, **columns: Any) -> TokenTable:
    """One response of four tokens for each version."""
    rollouts = [
        Rollout(
            sample_id=str(i),
            response_ids=np.zeros(4, np.int32),
            loss_mask=None if mask is None else np.array(mask, bool),
            columns={name.replace("__", "/"): np.array(values, np.float32) for name, values in columns.items()},
            policy_version=version,
        )
        for i, version in enumerate(versions)
    ]
    return TokenTable.from_rollouts(step, rollouts, algorithm=Algorithm(name="test", source="test", updates_per_batch=2))


def column(table: TokenTable, name: str = "staleness") -> Column:
    compute(Inputs(table, algorithm=table.algorithm), [name], SPECS)
    return table.columns[name]


def test_the_first_update_on_fresh_samples_is_not_stale():
    found = column(table_of(3, [2, 0]))
    np.testing.assert_array_equal(found.values, [0] * 4 + [2] * 4)
    assert "the step updates version 2; versions by response" in found.note


def test_tokens_of_several_versions_keep_staleness_and_both_ratios_apart():
    """The trainer's weights are version 5; it scored the tokens again before its update, which has not moved them."""
    table = table_of(
        6,
        [3],
        policy_version=[3, 3, 4, 4],
        logprob__rollout=[-1, -1, -1, -1],
        logprob__old=[-1.1, -1, -1, -1],
        logprob__policy=[-1.1, -1, -1, -1],
    )
    stale = column(table).values
    np.testing.assert_array_equal(stale, [2, 2, 1, 1])
    assert (stale.mean(), stale.max()) == (1.5, 2)
    assert "versions by token" in table.columns["staleness"].note
    np.testing.assert_array_equal(column(table, "ratio").values, [1, 1, 1, 1])
    np.testing.assert_allclose(np.exp(column(table, "log_ratio/rollout").values), [0.9048, 1, 1, 1], atol=5e-5)


def test_a_run_that_counts_from_0_updates_the_version_of_its_own_number():
    np.testing.assert_array_equal(column(table_of(5, [5, 3])).values, [0] * 4 + [2] * 4)


def test_a_token_without_a_version_of_its_own_has_its_responses():
    found = column(table_of(6, [4], policy_version=[3, np.nan, np.nan, 5]))
    np.testing.assert_array_equal(found.values, [2, 1, 1, 0])


def test_masked_tokens_have_none_and_do_not_count():
    found = column(table_of(6, [4], mask=[1, 1, 0, 0], policy_version=[4, 5, 99, np.inf]))
    np.testing.assert_array_equal(found.values, [1, 0, np.nan, np.nan])


def test_a_response_of_unknown_version_is_missing_and_not_fresh():
    np.testing.assert_array_equal(column(table_of(3, [1, None])).values, [1] * 4 + [np.nan] * 4)
    unknown = column(table_of(3, [None]))
    assert unknown.values is None
    assert "does not say which weights sampled" in unknown.note


@pytest.mark.parametrize("versions", [[7], [0, 9]])
def test_versions_that_count_something_else_are_refused(versions):
    found = column(table_of(3, versions))
    assert found.values is None
    assert f"tokens of version {max(versions)}" in found.note
