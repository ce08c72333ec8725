"""OAR's weights: laws, edges, and the release's own loop as a twin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from credit_inspector.credit.reshape import oar_weights, reshaped
from credit_inspector.errors import AlignmentError, UsageError

scores = st.lists(st.floats(0, 1e6), min_size=1, max_size=20).map(np.array)
quantiles = st.floats(0, 1)


@given(scores, quantiles, st.floats(0, 3))
def test_the_whole_advantage_stays_the_same(score, quantile, beta):
    weights = oar_weights(score, quantile=quantile, beta=beta)
    assert weights.sum() == pytest.approx(len(score), rel=1e-6)
    assert (weights > 0).all()


@given(scores, quantiles)
def test_a_larger_score_never_gets_a_smaller_weight(score, quantile):
    weights = oar_weights(score, quantile=quantile)
    assert (np.diff(weights[np.argsort(score, kind="stable")]) >= -1e-9).all()


@given(scores, quantiles, st.randoms())
def test_the_order_of_tokens_does_not_matter(score, quantile, random):
    order = list(range(len(score)))
    random.shuffle(order)
    np.testing.assert_allclose(oar_weights(score[order], quantile=quantile), oar_weights(score, quantile=quantile)[order])


@given(scores, quantiles, st.floats(0, 3))
def test_before_the_sum_is_set_weights_lie_between_the_floor_and_one_plus_beta(score, quantile, beta):
    weights = oar_weights(score, quantile=quantile, beta=beta, keep_sum=False)
    assert weights.min() >= 0.1
    assert weights.max() <= 1 + beta + 1e-9
    gate = np.quantile(score, quantile)
    assert (weights[score > gate * (1 + 1e-6) + 1e-6] >= 1).all()


@pytest.mark.parametrize("score", [[0.0, 0.0, 0.0], [3.0, 3.0], [5.0]])
def test_equal_scores_leave_the_advantage_as_it_is(score):
    np.testing.assert_allclose(oar_weights(np.array(score)), 1, atol=1e-7)


def test_a_token_without_a_score_keeps_its_advantage():
    weights = oar_weights(np.array([0.1, np.nan, 2.0, 0.5]))
    assert weights[1] == 1
    np.testing.assert_allclose(np.delete(weights, 1), oar_weights(np.array([0.1, 2.0, 0.5])))
    np.testing.assert_array_equal(oar_weights(np.full(3, np.nan)), 1)
    assert len(oar_weights(np.zeros(0))) == 0


@pytest.mark.parametrize("score", [-0.1, np.inf])
def test_a_score_that_is_none_is_refused(score):
    with pytest.raises(UsageError, match="finite and not negative"):
        oar_weights(np.array([0.5, score]))


def test_a_quantile_that_is_none_is_refused():
    with pytest.raises(UsageError, match=r"a quantile of 1.5; wanted a number between 0 and 1"):
        oar_weights(np.array([0.5]), quantile=1.5)


def test_each_response_has_its_own_gate_and_masked_scores_are_not_read(make_table):
    table = make_table([[1, 2, 3], [4, 5, 6]], masks=[[True, True, False], [True, True, True]])
    score = np.array([0.1, 0.4, -np.inf, 10.0, 20.0, 40.0])
    found = reshaped(table, np.array([2.0, 2, np.nan, -1, -1, -1]), score, beta=0.5)
    np.testing.assert_allclose(found[:2], 2 * oar_weights(score[:2], beta=0.5))
    assert np.isnan(found[2])
    np.testing.assert_allclose(found[3:], -oar_weights(score[3:], beta=0.5))
    with pytest.raises(AlignmentError, match="one for each token"):
        reshaped(table, np.ones(6), np.ones(5))
