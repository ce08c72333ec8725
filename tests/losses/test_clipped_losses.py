"""The closed forms of the clipped losses against autograd of the loss written the long way, and worked numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from credit_inspector.algorithm import Algorithm
from credit_inspector.credit.kl_push import kl_gradient
from credit_inspector.losses import LossInputs, Push, losses
from credit_inspector.metrics.kl import kl_value
from credit_inspector.rollout import Rollout
from credit_inspector.table import TokenTable


def rule(**fields: Any) -> Algorithm:
    return Algorithm(name="test", source="test", **fields)


def push(ratio: Any, advantage: Any, **fields: Any) -> Push:
    return push_of_log_ratio(np.log(np.asarray(ratio, float)), advantage, **fields)


def push_of_log_ratio(log_ratio: Any, advantage: Any, **fields: Any) -> Push:
    log_ratio, advantage = np.asarray(log_ratio, float), np.asarray(advantage, float)
    n, algorithm = len(log_ratio), rule(**fields)
    table = TokenTable.from_rollouts(0, [Rollout(sample_id="0", response_ids=np.zeros(n, np.int32))])
    logprob = np.full(n, -50.0)
    inputs = LossInputs(
        table=table,
        algorithm=algorithm,
        logprob=logprob,
        old=logprob - log_ratio,
        log_ratio=log_ratio,
        advantage=advantage,
        weight=np.ones(n),
        rollout=np.full(n, np.nan),
        kept=table.loss_mask,
    )
    return losses[algorithm.loss](inputs)


def test_clip_counts_only_tokens_whose_gradient_is_cut() -> None:
    """Ratio 1.5, 1.5, .5, .5 with A +, −, +, −: all four are outside the interval, two are cut."""
    found = push([1.5, 1.5, 0.5, 0.5], [1, -1, 1, -1])
    np.testing.assert_array_equal(found.clipped, [1, 0, 0, -1])
    np.testing.assert_allclose(found.coefficient, [0, 1.5, -0.5, 0])


def test_separate_bounds() -> None:
    """Low .2, high .28: of ratios 1.25, 1.3, .85, .75 half are cut; one bound on both sides would cut three."""
    ratios, advantages = [1.25, 1.3, 0.85, 0.75], [1, 1, -1, -1]
    np.testing.assert_array_equal(push(ratios, advantages, clip_high=0.28).clipped != 0, [0, 1, 0, 1])
    np.testing.assert_array_equal(push(ratios, advantages).clipped != 0, [1, 1, 0, 1])


def test_dual_clip() -> None:
    """(A, ratio) of (−1, 10), (−1, 2.5), (1, 10) with c = 3: cut by dual clip, not cut, cut at the upper bound."""
    found = push([10, 2.5, 10], [-1, -1, 1], dual_clip=3.0)
    np.testing.assert_array_equal(found.clipped, [2, 0, 1])
    np.testing.assert_allclose(found.coefficient, [0, 2.5, 0])


def test_a_bound_itself_does_not_cut_and_advantage_0_is_never_clipped() -> None:
    found = push_of_log_ratio([0.0, 0.0, 9.0, -9.0], [1, -1, 0, 0], clip_low=0.0, clip_high=0.0)
    np.testing.assert_array_equal(found.clipped, [0, 0, 0, 0])
    np.testing.assert_array_equal(found.coefficient, [-1, 1, 0, 0])


def test_the_log_ratio_clamp_cuts_where_nothing_else_does() -> None:
    found = push_of_log_ratio([21, 21, -21, -21], [1, -1, 1, -1], log_ratio_clamp=20.0)
    np.testing.assert_array_equal(found.clipped, [1, 3, 3, -1])
    np.testing.assert_array_equal(found.coefficient, [0, 0, 0, 0])


def test_an_infinite_ratio_is_cut_or_infinite_but_never_a_false_number() -> None:
    found = push_of_log_ratio([800.0, 800.0], [1, -1])
    np.testing.assert_array_equal(found.coefficient, [0, np.inf])


def test_nan_gives_no_coefficient_and_no_code() -> None:
    for name in ("ppo_clip", "cispo"):
        found = push([np.nan, 5.0], [1, np.nan], loss=name)
        assert np.isnan(found.coefficient).all()
        np.testing.assert_array_equal(found.clipped, [0, 0])


def test_cispo_holds_and_never_cuts() -> None:
    around = push([3.0, 0.1, 1.0, 3.0], [1, 1, -1, 0], loss="cispo", clip_high=0.28)
    np.testing.assert_allclose(around.coefficient, [-1.28, -0.8, 1, 0])
    np.testing.assert_array_equal(around.clipped, [1, -1, 0, 0])
    absolute = push([9.0, 0.1, 1.0], [1, 1, -1], loss="cispo", clip_bounds="absolute", clip_low=0.0, clip_high=5.0)
    np.testing.assert_allclose(absolute.coefficient, [-5, -0.1, 1])
    np.testing.assert_array_equal(absolute.clipped, [1, 0, 0])


def test_reinforce_needs_no_ratio() -> None:
    np.testing.assert_array_equal(push([np.nan, 9.0], [2, -1], loss="reinforce").coefficient, [-2, 1])


FINITE = st.lists(st.tuples(st.floats(-25, 25), st.sampled_from([-2.5, -1.0, 0.0, 0.5, 3.0])), min_size=1, max_size=20)


@pytest.mark.parametrize("dual_clip", [None, 1.05, 3.0])
@pytest.mark.parametrize("clamp", [None, 20.0])
@settings(max_examples=40, deadline=None)
@given(tokens=FINITE)
def test_ppo_clip_is_autograd_of_the_surrogate(dual_clip: float | None, clamp: float | None, tokens: Any) -> None:
    log_ratio, advantage = np.array(tokens).T
    leaf = torch.tensor(log_ratio, requires_grad=True)
    gain = torch.tensor(advantage)
    ratio = torch.exp(leaf if clamp is None else leaf.clamp(-clamp, clamp))
    worse = torch.maximum(-gain * ratio, -gain * ratio.clamp(0.8, 1.28))
    bounded = worse if dual_clip is None else torch.minimum(-gain * dual_clip, worse)
    torch.where(gain < 0, bounded, worse).sum().backward()
    found = push_of_log_ratio(log_ratio, advantage, clip_high=0.28, dual_clip=dual_clip, log_ratio_clamp=clamp)
    assert leaf.grad is not None
    np.testing.assert_allclose(found.coefficient, leaf.grad.numpy(), rtol=1e-12)
    np.testing.assert_array_equal(found.coefficient == 0, (found.clipped != 0) | (advantage == 0))


def long_way(estimator: str, distance: torch.Tensor) -> torch.Tensor:
    if estimator == "low_var_kl":
        held = (-distance).clamp(-20, 20)
        return (held.exp() - held - 1).clamp(-10, 10)
    k3 = (-distance).exp() + distance - 1
    return {"k1": distance, "abs": distance.abs(), "k2": 0.5 * distance**2, "k3": k3}[estimator]


@pytest.mark.parametrize("estimator", ["k1", "abs", "k2", "k3", "low_var_kl"])
@settings(max_examples=40, deadline=None)
@given(tokens=st.lists(st.tuples(st.floats(-15, 24), st.floats(-2, 2)), min_size=1, max_size=20))
def test_kl_gradients_are_autograd_of_the_estimator(estimator: Any, tokens: Any) -> None:
    distance, log_ratio = np.array(tokens).T
    for weighted in (False, True):
        leaf = torch.tensor(distance, requires_grad=True)
        value = long_way(estimator, leaf)
        np.testing.assert_allclose(kl_value(estimator, distance), value.detach().numpy(), rtol=1e-9, atol=1e-12)
        ratio = (leaf - leaf.detach() + torch.tensor(log_ratio)).exp()
        (value * ratio if weighted else value).sum().backward()
        ours = kl_gradient(estimator, "ratio-weighted" if weighted else "autograd", distance, np.exp(log_ratio))
        assert leaf.grad is not None
        np.testing.assert_allclose(ours, leaf.grad.numpy(), rtol=1e-8, atol=1e-9)
    np.testing.assert_array_equal(kl_gradient(estimator, "straight-through", distance, np.exp(log_ratio)), distance)
