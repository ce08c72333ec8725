"""Log-ratios of whole responses, and ratios outside the interval."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from credit_inspector.algorithm import Algorithm
from credit_inspector.columns import Inputs, compute
from credit_inspector.credit import credits
from credit_inspector.metrics import metrics
from credit_inspector.metrics.sequence_ratio import sequence_mean, sequence_sum
from credit_inspector.rollout import Rollout
from credit_inspector.table import Column, TokenTable

SPECS = {spec.name: spec for registry in (metrics, credits) for spec in registry.members()}


def table_of(*rows: Any, masks: Any = None, **fields: Any) -> TokenTable:
    """Rows of log-ratios → a table whose old log-probs are 0."""
    rollouts = [
        Rollout(
            sample_id=str(i),
            response_ids=np.zeros(len(row), np.int32),
            loss_mask=None if masks is None else np.array(masks[i], bool),
            columns={"logprob/policy": np.array(row, np.float32), "logprob/old": np.zeros(len(row), np.float32)},
        )
        for i, row in enumerate(rows)
    ]
    rule = Algorithm(**{"name": "test", "source": "test", "updates_per_batch": 2, **fields})
    return TokenTable.from_rollouts(1, rollouts, algorithm=rule)


def column(table: TokenTable, name: str) -> Column:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compute(Inputs(table, algorithm=table.algorithm), [name], SPECS)
    return table.columns[name]


# ── mean and sum ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("tokens", "total"), [(5_000, 50), (71_000, 710)])
def test_the_mean_stays_and_the_sum_grows_with_length(tokens, total):
    table = table_of(np.zeros(tokens))
    log_ratio = np.full(tokens, 0.01)
    assert np.exp(sequence_mean(table, log_ratio)[0]) == pytest.approx(1.01005, abs=5e-6)
    assert sequence_sum(table, log_ratio)[0] == pytest.approx(total)


def test_a_sum_beyond_exp_is_a_finite_column():
    found = column(table_of(np.full(71_000, 0.01)), "log_ratio/sequence_sum")
    np.testing.assert_allclose(found.values, 710, rtol=1e-5)


def test_every_trained_token_has_its_responses_value():
    table = table_of([0.1, 9.0, 0.3], [-0.5], masks=[[1, 0, 1], [1]])
    np.testing.assert_allclose(column(table, "log_ratio/sequence_mean").values, [0.2, np.nan, 0.2, -0.5])
    np.testing.assert_allclose(column(table, "log_ratio/sequence_sum").values, [0.4, np.nan, 0.4, -0.5], rtol=1e-6)


def test_a_token_without_a_log_ratio_is_left_out_and_counted():
    table = table_of([0.1, np.nan, 0.3], [np.inf])
    mean = column(table, "log_ratio/sequence_mean")
    np.testing.assert_allclose(mean.values, [0.2, 0.2, 0.2, np.nan])
    assert "2 trained tokens without a log-ratio not in it" in mean.note


def test_one_update_per_batch_needs_no_log_probs():
    table = TokenTable.from_rollouts(
        1,
        [Rollout(sample_id="0", response_ids=np.zeros(2, np.int32))],
        algorithm=Algorithm(name="test", source="test"),
    )
    found = column(table, "log_ratio/sequence_sum")
    np.testing.assert_array_equal(found.values, [0, 0])
    assert "by construction" in found.note


@given(st.lists(st.lists(st.tuples(st.floats(-3, 3), st.booleans()), max_size=6), max_size=5))
def test_they_are_the_loops_over_responses(rows):
    table = table_of(*[[v for v, _ in row] for row in rows], masks=[[m for _, m in row] for row in rows])
    flat = np.array([v for row in rows for v, _ in row])
    kept = [[v for v, m in row if m] for row in rows]
    np.testing.assert_allclose(sequence_mean(table, flat), [np.mean(row) if row else np.nan for row in kept], atol=1e-12)
    np.testing.assert_allclose(sequence_sum(table, flat), [sum(row) if row else np.nan for row in kept], atol=1e-12)


def test_the_engines_distance_has_a_mean_of_its_own():
    table = table_of([0.0, 0.0], [0.0])
    table.columns["logprob/rollout"] = Column(np.array([0.1, 0.3, -1.0], np.float32), table.columns["logprob/old"].provenance)
    np.testing.assert_allclose(column(table, "log_ratio/rollout_sequence_mean").values, [-0.2, -0.2, 1.0], rtol=1e-6)
    np.testing.assert_array_equal(column(table, "log_ratio/sequence_mean").values, [0, 0, 0])


# ── outside the interval ────────────────────────────────────────────────────────────────────────────────────────────


def test_outside_is_not_clipped():
    """Half of the tokens outside keep their gradient."""
    table = table_of(np.log([1.5, 1.5, 0.5, 0.5]))
    table.columns["advantage"] = Column(np.array([1, -1, 1, -1], np.float32), table.columns["logprob/old"].provenance)
    np.testing.assert_array_equal(column(table, "outside").values, [1, 1, -1, -1])
    np.testing.assert_array_equal(column(table, "clip").values, [1, 0, 0, -1])


def test_the_interval_is_the_rules():
    table = table_of(np.log([1.25, 0.75, 1.0]), clip_low=0.3, clip_high=0.2)
    found = column(table, "outside")
    np.testing.assert_array_equal(found.values, [1, 0, 0])
    assert "interval 0.7 to 1.2, ratio by token" in found.note
    capped = table_of(np.log([6.0, 0.001]), clip_bounds="absolute", clip_low=0.0, clip_high=5.0)
    np.testing.assert_array_equal(column(capped, "outside").values, [1, 0])


@pytest.mark.parametrize(
    ("level", "codes"), [("token", [1, 0]), ("sequence", [0, 0]), ("sequence-token", [0, 0]), ("product", [1, 1])]
)
def test_the_ratio_is_at_the_rules_level(level, codes):
    table = table_of([0.25, 0.05], ratio_level=level)
    np.testing.assert_array_equal(column(table, "outside").values, codes)


def test_a_product_beyond_any_float_is_outside():
    table = table_of([900.0, 900.0], [-900.0, -900.0], ratio_level="product")
    np.testing.assert_array_equal(column(table, "outside").values, [1, 1, -1, -1])
