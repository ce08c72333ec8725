"""Whitening: mean 0 and deviation 1 by every convention, and nothing from outside the mask."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from credit_inspector.advantages.whiten import whiten, whitened
from credit_inspector.algorithm import Algorithm
from credit_inspector.rollout import Rollout
from credit_inspector.table import TokenTable

RULE = Algorithm(name="test", source="test", whiten="tokens")
NAN = float("nan")
VALUES = arrays(float, st.integers(2, 20), elements=st.floats(-100, 100).map(lambda value: round(value, 3)))


def everywhere(values: Any, **fields: Any) -> np.ndarray:
    flat = np.asarray(values, float)
    return whitened(flat, np.ones(len(flat), bool), replace(RULE, **fields))


@given(values=VALUES, ddof=st.sampled_from([0, 1]))
def test_mean_0_and_deviation_1(values: np.ndarray, ddof: int) -> None:
    found = everywhere(values, whiten_ddof=ddof, whiten_eps=0.0)
    spread = values.min() < values.max()
    np.testing.assert_allclose([found.mean(), found.std(ddof=ddof)], [0, spread], atol=1e-9)


@pytest.mark.parametrize(
    ("place", "divisor"),
    [
        ("variance", lambda x: np.sqrt(x.var(ddof=1) + 0.01)),
        ("deviation", lambda x: x.std(ddof=1) + 0.01),
        ("floor", lambda x: np.sqrt(max(x.var(ddof=1), 0.01))),
    ],
)
@given(values=VALUES)
def test_where_the_epsilon_stands(place: str, divisor: Any, values: np.ndarray) -> None:
    found = everywhere(values, whiten_eps=0.01, whiten_eps_in=place)
    np.testing.assert_allclose(found, (values - values.mean()) / divisor(values), atol=1e-9)


@pytest.mark.parametrize("eps", [0.0, 1e-8])
@pytest.mark.parametrize("place", ["variance", "deviation", "floor"])
@pytest.mark.parametrize("values", [[0.7], [0.1] * 3, [0.1, NAN, 0.1]])
def test_one_value_and_equal_values_become_exactly_0(values: list[float], place: str, eps: float) -> None:
    found = everywhere(values, whiten_eps=eps, whiten_eps_in=place)
    np.testing.assert_array_equal(found, np.where(np.isnan(values), NAN, 0.0))


def test_two_values_and_a_divisor_that_takes_off_two() -> None:
    np.testing.assert_array_equal(everywhere([0, 1], whiten_ddof=2), [0, 0])


def test_values_whose_squares_no_float_holds() -> None:
    np.testing.assert_allclose(everywhere([1e200, -1e200]), [2**-0.5, -(2**-0.5)])


@given(values=VALUES)
def test_the_mean_can_stay(values: np.ndarray) -> None:
    mask = np.ones(len(values), bool)
    kept = whitened(values, mask, RULE, keep_mean=True)
    np.testing.assert_allclose(kept, whitened(values, mask, RULE) + values.mean(), atol=1e-9)


@given(values=VALUES, outside=st.sampled_from([NAN, np.inf, -np.inf, 1e30]))
def test_what_is_outside_the_mask_changes_nothing_and_is_nothing(values: np.ndarray, outside: float) -> None:
    mask = np.arange(len(values)) % 2 == 0
    found = whitened(np.where(mask, values, outside), mask, RULE)
    np.testing.assert_array_equal(found[mask], everywhere(values[mask]))
    assert np.isnan(found[~mask]).all()


def table_of(lengths: list[int], trained: list[bool]) -> TokenTable:
    return TokenTable.from_rollouts(
        0,
        [
            Rollout(sample_id=str(i), response_ids=np.zeros(n, np.int32), loss_mask=np.full(n, on))
            for i, (n, on) in enumerate(zip(lengths, trained, strict=True))
        ],
    )


def test_over_responses_each_counts_once_and_over_tokens_by_its_length() -> None:
    table = table_of([3, 1], [True, True])
    advantages = np.array([1.0, 1, 1, 0])
    fields = {"whiten_eps": 0.0, "whiten_ddof": 0}
    np.testing.assert_allclose(whiten(table, advantages, replace(RULE, whiten="responses", **fields)), [1, 1, 1, -1])
    np.testing.assert_allclose(whiten(table, advantages, replace(RULE, **fields)), [3**-0.5] * 3 + [-(3**0.5)])
    assert whiten(table, advantages, replace(RULE, whiten="none")) is advantages


def test_over_responses_one_without_a_trained_token_counts_too_as_in_trl() -> None:
    table = table_of([1, 1, 1], [True, True, False])
    found = whiten(table, np.array([1.0, 0, -4]), replace(RULE, whiten="responses", whiten_eps=0.0))
    np.testing.assert_allclose(found[:2], (np.array([1, 0]) + 1) / np.std([1, 0, -4], ddof=1))


@pytest.mark.parametrize("over", ["tokens", "responses"])
def test_a_missing_advantage_stays_missing_and_has_no_say(over: Any) -> None:
    table = table_of([1, 1, 1], [True, True, True])
    found = whiten(table, np.array([1.0, 0, NAN]), replace(RULE, whiten=over))
    two = whiten(table_of([1, 1], [True, True]), np.array([1.0, 0]), replace(RULE, whiten=over))
    np.testing.assert_array_equal(found, [*two, NAN])
