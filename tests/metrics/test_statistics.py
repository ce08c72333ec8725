"""Effective sample size, truncated weights, and the trainer against the engine."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from credit_inspector.errors import UsageError
from credit_inspector.metrics.statistics import ess, off_policy, truncated
from credit_inspector.rollout import Rollout
from credit_inspector.table import TokenTable

logs = st.lists(st.floats(-8, 8), min_size=1, max_size=30).map(np.array)


@pytest.fixture(autouse=True)
def _no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def table_of(*masks: list[int]) -> TokenTable:
    return TokenTable.from_rollouts(
        1,
        [
            Rollout(sample_id=str(i), response_ids=np.zeros(len(mask), np.int32), loss_mask=np.array(mask, bool))
            for i, mask in enumerate(masks)
        ],
    )


# ── effective sample size ───────────────────────────────────────────────────────────────────────────────────────────


@given(logs)
def test_the_fraction_is_one_over_one_plus_cv_squared(log_weight):
    weight = np.exp(log_weight)
    size, fraction = ess(log_weight)
    assert fraction == pytest.approx(1 / (1 + weight.var() / weight.mean() ** 2))
    assert size == pytest.approx(fraction * len(weight))
    assert 1 - 1e-9 <= size <= len(weight) + 1e-9


@given(logs, st.floats(-900, 900), st.randoms())
def test_neither_scale_nor_order_matters(log_weight, shift, random):
    mixed = log_weight.copy()
    random.shuffle(mixed)
    assert ess(mixed + shift).size == pytest.approx(ess(log_weight).size, rel=1e-9)


@given(logs, st.floats(0.1, 5))
def test_truncation_never_lowers_it(log_weight, bound):
    weight = np.minimum(np.exp(log_weight), bound)
    found = ess(log_weight, truncate=bound)
    assert found.size == pytest.approx(weight.sum() ** 2 / (weight**2).sum())
    assert found.size >= ess(log_weight).size * (1 - 1e-9)


def test_weights_beyond_any_float_still_have_a_size():
    assert ess(np.array([5000.0, 5000.0, -5000.0])).size == pytest.approx(2)


def test_numbers_that_are_not_finite_take_no_part():
    assert ess(np.array([0.0, np.nan, np.inf, -np.inf, 0.0])) == (2, 1)
    assert np.isnan(ess(np.array([np.nan]))).all()
    assert np.isnan(ess(np.zeros(0))).all()


def test_a_bound_that_is_none():
    with pytest.raises(UsageError, match="a bound above 0"):
        ess(np.zeros(3), truncate=0)


# ── truncated weights ───────────────────────────────────────────────────────────────────────────────────────────────


def test_the_raw_maximum_is_not_the_bound():
    found = truncated(np.log([5, 0.5, 1]), 2)
    assert found.raw_max == pytest.approx(5)
    assert found.raw_mean == pytest.approx(2.1667, abs=5e-5)
    assert found.used_mean == pytest.approx(3.5 / 3)
    assert found.share == pytest.approx(1 / 3)


def test_no_weight_has_no_figures():
    assert np.isnan(truncated(np.array([np.nan]), 2)).all()


# ── trainer against engine ──────────────────────────────────────────────────────────────────────────────────────────


def test_noise_of_kernels_is_small_and_a_jump_is_not():
    table = table_of([1, 1, 1])
    engine = np.array([-1, -2, -0.1])
    near = off_policy(table, np.array([-1.02, -1.9, -0.1]), engine)
    assert near["mult_prob_error"] == pytest.approx(1.04179, abs=1e-5)
    far = off_policy(table, np.array([-1.02, -1.7, -0.1]), engine)
    assert far["mult_prob_error"] == pytest.approx(1.1233, abs=1e-4)
    assert near["kl"] == pytest.approx(-0.08 / 3)


def loop(masks, trainer, engine):
    """The figures token by token and response by response, in Python's floats."""
    tokens, rows, at = [], [], 0
    for mask in masks:
        both = [(trainer[at + t], engine[at + t]) for t in range(len(mask)) if mask[t]]
        both = [pair for pair in both if np.isfinite(pair).all()]
        tokens += [a - b for a, b in both]
        if both:
            rows.append((sum(-a for a, _ in both) / len(both), sum(-b for _, b in both) / len(both), sum(a - b for a, b in both)))
        at += len(mask)

    def mean(values):
        values = list(values)
        return sum(values) / len(values) if values else np.nan

    return {
        "kl": mean(-d for d in tokens),
        "k3_kl": mean(np.exp(d) - 1 - d for d in tokens),
        "chi2_token": mean(np.exp(d) ** 2 for d in tokens) - 1,
        "mult_prob_error": mean(np.exp(abs(d)) for d in tokens),
        "training_ppl": mean(np.exp(a) for a, _, _ in rows),
        "training_log_ppl": mean(a for a, _, _ in rows),
        "rollout_ppl": mean(np.exp(b) for _, b, _ in rows),
        "rollout_log_ppl": mean(b for _, b, _ in rows),
        "log_ppl_diff": mean(a - b for a, b, _ in rows),
        "log_ppl_abs_diff": mean(abs(a - b) for a, b, _ in rows),
        "log_ppl_diff_max": max((a - b for a, b, _ in rows), default=np.nan),
        "log_ppl_diff_min": min((a - b for a, b, _ in rows), default=np.nan),
        "ppl_ratio": mean(np.exp(a - b) for a, b, _ in rows),
        "chi2_seq": mean(np.exp(s) ** 2 for _, _, s in rows) - 1,
    }


@given(st.lists(st.lists(st.integers(0, 1), max_size=6), max_size=5), st.integers(0, 2**32 - 1))
def test_it_is_the_loop_over_tokens(masks, seed):
    rng = np.random.default_rng(seed)
    n = sum(map(len, masks))
    trainer, engine = -rng.exponential(1, n), -rng.exponential(1, n)
    trainer[rng.random(n) < 0.1] = np.nan
    engine[rng.random(n) < 0.1] = -np.inf
    ours, theirs = off_policy(table_of(*masks), trainer, engine), loop(masks, trainer, engine)
    assert set(ours) == set(theirs)
    for name, value in theirs.items():
        assert ours[name] == pytest.approx(value, nan_ok=True, rel=1e-9, abs=1e-9), name


@given(st.integers(0, 4), st.sampled_from([np.nan, np.inf, -np.inf, 1e30]), st.integers(0, 2**32 - 1))
def test_padding_changes_nothing(pads, fill, seed):
    rng = np.random.default_rng(seed)
    masks = [[1] * n for n in (3, 1, 4)]
    padded = [mask + [0] * pads for mask in masks]
    trainer, engine = (-rng.exponential(1, 8) for _ in range(2))

    def pad(values):
        return np.concatenate([np.append(part, [fill] * pads) for part in np.split(values, [3, 4])])

    assert off_policy(table_of(*padded), pad(trainer), pad(engine)) == pytest.approx(
        off_policy(table_of(*masks), trainer, engine)
    )


def test_the_product_over_a_long_response_is_held():
    """71,000 tokens of log-ratio .01 have the product e^710; its square is held at e^40."""
    found = off_policy(table_of([1] * 71_000), np.full(71_000, -0.99), np.full(71_000, -1.0))
    assert found["chi2_seq"] == pytest.approx(np.exp(40) - 1)
    assert found["ppl_ratio"] == pytest.approx(np.exp(-0.01))
