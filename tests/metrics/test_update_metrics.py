"""Ratio, engine mismatch and KL estimators: worked numbers, what is missing, and what is never printed."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from credit_inspector.algorithm import Algorithm
from credit_inspector.columns import Inputs, compute
from credit_inspector.metrics import metrics
from credit_inspector.metrics.kl import kl_value
from credit_inspector.rollout import Rollout
from credit_inspector.table import Column, Provenance, TokenTable

SPECS = {spec.name: spec for spec in metrics.members()}


def table_of(*, mask: Any = None, updates: int | None = 2, **columns: Any) -> TokenTable:
    named = {f"logprob/{name}": np.asarray(values, np.float32) for name, values in columns.items()}
    n = len(next(iter(named.values()), np.zeros(2)))
    rollout = Rollout(
        sample_id="0",
        response_ids=np.zeros(n, np.int32),
        loss_mask=None if mask is None else np.array(mask, bool),
        columns=named,
    )
    rule = None if updates is None else Algorithm(name="test", source="test", updates_per_batch=updates)
    return TokenTable.from_rollouts(0, [rollout], algorithm=rule)


def column(table: TokenTable, name: str) -> Column:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compute(Inputs(table, algorithm=table.algorithm), [name], SPECS)
    return table.columns[name]


# ── ratio ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_ratio_and_its_log() -> None:
    table = table_of(policy=[-1.0, -2.0, -9.0], old=[-1.5, -2.0, 0.0], mask=[1, 1, 0])
    np.testing.assert_allclose(column(table, "log_ratio").values, [0.5, 0, np.nan])
    np.testing.assert_allclose(column(table, "ratio").values, [np.exp(0.5), 1, np.nan], rtol=1e-6)
    assert table.columns["ratio"].provenance is Provenance.DERIVED


def test_ratio_1_is_expected_with_one_update_per_batch() -> None:
    table = table_of(policy=[-1, -2], old=[-1, -2], updates=1)
    assert "on-policy step" in column(table, "ratio").note
    assert "on-policy" not in column(table_of(policy=[-1, -2], old=[-1, -2], updates=4), "ratio").note


@pytest.mark.parametrize("recorded", [{"old": [-1, -2]}, {"policy": [-1, -2]}, {}])
def test_ratio_is_1_by_construction_only_with_one_update_per_batch(recorded: dict[str, Any]) -> None:
    table = table_of(**recorded, updates=1)
    np.testing.assert_array_equal(column(table, "ratio").values, [1, 1])
    np.testing.assert_array_equal(column(table, "log_ratio").values, [0, 0])
    assert "by construction: one update per batch (test, test)" in table.columns["ratio"].note

    several = column(table_of(**recorded, updates=4), "ratio")
    assert several.values is None
    assert "4 updates per batch" in several.note

    unknown = column(table_of(**recorded, updates=None), "ratio")
    assert unknown.values is None
    assert "does not say how many updates" in unknown.note


def test_a_missing_log_prob_carries_its_own_reason_on() -> None:
    table = table_of(old=[-1, -2], updates=2)
    table.columns["logprob/policy"] = Column.missing("no checkpoint is at hand")
    assert "no checkpoint is at hand" in column(table, "ratio").note


def test_a_ratio_beyond_float32_is_held_and_said_and_its_log_is_exact() -> None:
    table = table_of(policy=[-1.0, 0.0], old=[-1.0, -200.0])
    held = column(table, "ratio")
    assert held.values is not None
    assert np.isfinite(held.values).all()
    assert "1 trained token held at" in held.note
    assert "7.226e+86" in held.note
    np.testing.assert_array_equal(column(table, "log_ratio").values, [0, 200])


def test_infinite_log_probs_are_left_out_and_counted() -> None:
    table = table_of(policy=[-1.0, -np.inf, -1.0, -np.inf], old=[-np.inf, -np.inf, -1.0, -1.0])
    ratio = column(table, "ratio")
    np.testing.assert_array_equal(ratio.values, [np.nan, np.nan, 1, np.nan])
    assert "3 trained tokens left out" in ratio.note


# ── engine mismatch ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_engine_mismatch_is_kept_apart_from_the_update() -> None:
    """An engine that scored token 0 by .1 higher; the weights have not moved since."""
    table = table_of(policy=[-1.1, -1, -1, -1], old=[-1.1, -1, -1, -1], rollout=[-1, -1, -1, -1])
    np.testing.assert_array_equal(column(table, "ratio").values, [1, 1, 1, 1])
    np.testing.assert_allclose(np.exp(column(table, "log_ratio/rollout").values), [0.9048, 1, 1, 1], atol=5e-5)


def test_engine_mismatch_takes_the_policy_where_it_is_the_one_that_sampled() -> None:
    table = table_of(policy=[-1.02, -1.9, -0.1], rollout=[-1, -2, -0.1], updates=1)
    found = column(table, "log_ratio/rollout")
    np.testing.assert_allclose(found.values, [-0.02, 0.10, 0], atol=1e-6)
    assert "logprob/old is logprob/policy" in found.note
    assert column(table_of(policy=[-1], updates=1), "log_ratio/rollout").values is None


def test_a_mismatch_that_matters_is_named_with_its_worst_token() -> None:
    near = table_of(policy=[-1.02, -1.9, -0.1], old=[-1.02, -1.9, -0.1], rollout=[-1, -2, -0.1])
    assert "above" not in column(near, "log_ratio/rollout").note
    assert np.exp(near.columns["log_ratio/rollout"].values).mean() == pytest.approx(1.02846, abs=1e-5)
    far = table_of(policy=[-1.02, -1.7, -0.1, 0], old=[-1.02, -1.7, -0.1, 0], rollout=[-1, -2, -0.1, -99], mask=[1, 1, 1, 0])
    note = column(far, "log_ratio/rollout").note
    assert "mean exp|difference| 1.123, above 1.05; largest difference 0.3 at token 1 of 0" in note
    wild = column(table_of(policy=[0, 0], old=[-1000, 0], rollout=[0, 0]), "log_ratio/rollout").note
    assert "mean exp|difference| beyond any float" in wild


# ── KL ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_k1_may_be_negative_on_a_token() -> None:
    table = table_of(policy=[-2, -1], ref=[-1, -1.5], old=[-2, -1])
    np.testing.assert_allclose(column(table, "kl/k1").values, [-1, 0.5])
    assert np.mean(table.columns["kl/k1"].values) == pytest.approx(-0.25)
    assert np.mean(column(table, "kl/k2").values) == pytest.approx(0.3125)
    np.testing.assert_allclose(column(table, "kl/k3").values, [0.71828, 0.10653], atol=5e-6)
    assert np.mean(table.columns["kl/k3"].values) == pytest.approx(0.41241, abs=5e-6)
    assert "estimator k1" in table.columns["kl/k1"].note


def test_one_token_with_an_astronomic_kl_is_finite_and_named() -> None:
    policy, reference = np.array([-1.0, -100.0, -2.0]), np.array([-1.0, -1.0, -2.0])
    exact = kl_value("k3", policy - reference)
    np.testing.assert_allclose(exact, [0, 9.8890e42, 0], rtol=1e-4)
    table = table_of(policy=policy, ref=reference)
    np.testing.assert_array_equal(column(table, "kl/k1").values, [0, -99, 0])
    found = column(table, "kl/k3")
    assert found.values is not None
    assert np.isfinite(found.values).all()
    assert "the largest is 9.889e+42" in found.note
    assert np.median(found.values) == 0
    assert found.values[1] / found.values.sum() == 1


def test_a_clearly_negative_mean_k1_is_said() -> None:
    many = column(table_of(policy=[-2.0] * 200, ref=[-1.5] * 200), "kl/k1")
    assert "mean -0.5 over 200 tokens: the policy scores its own samples below the reference" in many.note
    rng = np.random.default_rng(0)
    noisy = table_of(policy=np.full(200, -2.0), ref=-2 + rng.normal(0, 3, 200))
    for table in (table_of(policy=[-2, -1], ref=[-1, -1.5]), noisy, table_of(policy=[-2.0] * 200, ref=[-2.01] * 200)):
        assert "below the reference" not in column(table, "kl/k1").note


def test_the_policy_is_the_one_that_sampled_where_only_that_was_recorded() -> None:
    found = column(table_of(old=[-2, -1], ref=[-1, -1.5], updates=1), "kl/k1")
    np.testing.assert_allclose(found.values, [-1, 0.5])
    assert "logprob/policy is logprob/old" in found.note
    assert column(table_of(old=[-2, -1], ref=[-1, -1.5], updates=4), "kl/k1").values is None


def test_k3_of_a_small_distance_keeps_its_digits() -> None:
    distance = np.array([1e-4, -1e-4])
    np.testing.assert_allclose(kl_value("k3", distance), distance**2 / 2, rtol=1e-4)


def test_kl_without_a_reference_is_missing_with_the_reason() -> None:
    found = column(table_of(policy=[-1.0]), "kl/k3")
    assert found.values is None
    assert "logprob/ref is missing: no checkpoint is at hand" in found.note


# ── surprisal ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_fill_values_are_in_no_sum_and_said() -> None:
    table = table_of(policy=[-1, -2, 1, 1], ref=[-1.5, -2, 1, 1], mask=[1, 1, 0, 0])
    assert np.nansum(column(table, "kl/k1").values) == pytest.approx(0.5)
    assert np.nanmean(table.columns["kl/k1"].values) == pytest.approx(0.25)
    found = column(table, "surprisal")
    assert np.nansum(found.values) == pytest.approx(3)
    assert "log-prob > 0 at masked positions (2) looks like a fill value" in found.note
    assert "trained positions" not in found.note


def test_a_trained_log_prob_above_0_is_said_and_rounding_is_not() -> None:
    assert "log-prob > 0 at trained positions (1)" in column(table_of(policy=[-1, 0.5, 1e-6]), "surprisal").note
    assert "log-prob > 0" not in column(table_of(policy=[-1, 0, 1e-6]), "surprisal").note


def test_surprisal_is_the_entropy_only_on_average() -> None:
    p = np.array([0.5, 0.3, 0.2])
    values = column(table_of(policy=np.log(p)), "surprisal").values
    assert values is not None
    assert p @ values == pytest.approx(-(p @ np.log(p)), rel=1e-6)
    assert len(set(values.tolist())) == 3
