"""Jumps of prefix values: worked numbers, errors against simulation, what is unknown."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from credit_inspector.credit.prefix_values import jumps, standard_error, to_tokens
from credit_inspector.errors import AlignmentError, UsageError

values = st.lists(st.floats(0, 1), min_size=1, max_size=8)


@given(values, st.sampled_from([0.0, 1.0]), st.integers(1, 100))
def test_credits_add_up_to_the_reward_minus_the_first_value(prefixes, reward, samples):
    found = jumps(prefixes, samples, outcome=reward)
    assert len(found.credit) == len(prefixes)
    assert found.credit.sum() == pytest.approx(reward - prefixes[0])
    assert jumps(prefixes, samples).credit.sum() == pytest.approx(prefixes[-1] - prefixes[0])


def test_the_errors_are_those_of_drawn_completions():
    rng = np.random.default_rng(0)
    chances, counts = np.array([0.2, 0.7, 0.9]), np.array([9, 30, 16])
    drawn = rng.binomial(counts, chances, (20_000, 3)) / counts
    assert np.diff(drawn, axis=1).std(axis=0) == pytest.approx(jumps(chances, counts).error, rel=0.02)
    assert drawn.std(axis=0) == pytest.approx(standard_error(chances, counts), rel=0.02)


def test_the_observed_reward_has_no_error():
    found = jumps([0.5], 16, outcome=1.0)
    assert found.credit.tolist() == [0.5]
    assert found.error.tolist() == [0.125]
    assert found.pivotal.tolist() == [True]


def test_a_jump_of_exactly_the_threshold_is_pivotal():
    found = jumps([0.5, 0.7, 0.9, 0.75], 20)
    assert found.pivotal.tolist() == [True, True, False]


def test_an_unknown_value_makes_its_two_jumps_unknown_and_not_pivotal():
    found = jumps([0.5, np.nan, 0.9, 0.1], [9, 0, 9, 9])
    np.testing.assert_allclose(found.credit, [np.nan, np.nan, -0.8])
    assert np.isnan(found.error).tolist() == [True, True, False]
    assert found.pivotal.tolist() == [False, False, True]


def test_values_without_completions_have_no_error():
    assert np.isnan(standard_error([0.5, 0.5], [0, np.nan])).all()


@pytest.mark.parametrize("value", [1.5, -0.1])
def test_a_value_that_is_no_share_is_refused(value):
    with pytest.raises(UsageError, match=f"a prefix value of {value}; wanted mean rewards between 0 and 1"):
        jumps([0.5, value], 9)


def test_values_of_several_responses_are_refused():
    with pytest.raises(AlignmentError, match="those of one response"):
        jumps([[0.5, 0.6]], 9)


def test_each_token_has_its_steps_value():
    np.testing.assert_array_equal(to_tokens([0.4, -0.5], [1, 3], 6), [np.nan, 0.4, 0.4, -0.5, -0.5, -0.5])
    np.testing.assert_array_equal(to_tokens([], [], 2), [np.nan, np.nan])
    np.testing.assert_array_equal(to_tokens([1, 2, 3], [0, 1, 1], 2), [1, 3])


@pytest.mark.parametrize(("steps", "starts"), [([1], [0, 1]), ([1, 2], [1, 0]), ([1], [7])])
def test_steps_that_do_not_fit_the_response_are_refused(steps, starts):
    with pytest.raises(AlignmentError):
        to_tokens(steps, starts, 5)
