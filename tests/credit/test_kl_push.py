"""The KL term of the loss against autograd of it, as each trainer writes it down."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from credit_inspector.algorithm import Algorithm
from credit_inspector.columns import Inputs, compute
from credit_inspector.credit import credits as credit_columns
from credit_inspector.credit.kl_push import kl_coefficient, kl_gradient
from credit_inspector.metrics import metrics
from credit_inspector.rollout import Rollout
from credit_inspector.table import Column, TokenTable

SPECS = {spec.name: spec for registry in (metrics, credit_columns) for spec in registry.members()}
RULE = Algorithm(name="test", source="test", aggregation="token-sum", kl_beta=1.0, updates_per_batch=2)
ESTIMATORS = ("k1", "abs", "k2", "k3", "low_var_kl")
GRADIENTS = ("autograd", "ratio-weighted", "score-weighted", "ratio-capped", "straight-through")


def held(x: torch.Tensor, clamp: float | None) -> torch.Tensor:
    return x if clamp is None else x.clamp(-clamp, clamp)


def value(estimator: str, d: torch.Tensor) -> torch.Tensor:
    if estimator == "low_var_kl":
        d = d.clamp(-20, 20)
        return ((-d).exp() - 1 + d).clamp(-10, 10)
    return {"k1": d, "abs": d.abs(), "k2": d**2 / 2, "k3": (-d).exp() - 1 + d}[estimator]


def term(rule: Algorithm, d: torch.Tensor, ratio: torch.Tensor) -> torch.Tensor:
    """The term of the loss for each token."""
    estimator, gradient = rule.kl_estimator, rule.kl_gradient
    near, low = rule.kl_input_clamp, rule.kl_output_clamp
    inner = held(d, near)
    k = value(estimator, inner)
    if gradient == "autograd":
        return held(k, low)
    if gradient == "ratio-weighted":  # TRL 1.16.0, slime
        return held(ratio * k, low)
    if gradient == "score-weighted":  # NeMo-RL calculate_kl
        factor = (d - d.detach()).exp()
        return held(torch.where(inner == d, factor, factor.detach()) * k, low)
    scale = ratio.clamp(max=10).detach() if gradient == "ratio-capped" else 1.0
    straight = scale * d**2 / 2  # OpenRLHF compute_approx_kl, verl kl_penalty
    return held(k, low).detach() + straight - straight.detach()


@pytest.mark.parametrize(("estimator", "gradient"), list(itertools.product(ESTIMATORS, GRADIENTS)))
@settings(max_examples=40, deadline=None)
@given(
    tokens=st.lists(st.tuples(st.floats(-15, 24), st.floats(-3, 4)), min_size=1, max_size=20),
    near=st.none() | st.floats(0.5, 22),
    low=st.none() | st.floats(0.5, 12),
)
def test_the_gradient_is_that_of_autograd(estimator: Any, gradient: Any, tokens: Any, near: Any, low: Any) -> None:
    distance, log_ratio = np.array(tokens).T
    leaf = torch.tensor(distance, requires_grad=True)
    ratio = (leaf - leaf.detach() + torch.tensor(log_ratio)).exp()
    rule = replace(RULE, kl_estimator=estimator, kl_gradient=gradient, kl_input_clamp=near, kl_output_clamp=low)
    term(rule, leaf, ratio).sum().backward()
    assert leaf.grad is not None
    ours = kl_gradient(estimator, gradient, distance, np.exp(log_ratio), input_clamp=near, output_clamp=low)
    # torch subtracts e^-d from e^-d: what is left has the rounding of both.
    size = np.exp(log_ratio) * np.exp(np.maximum(-distance, 0))
    assert (np.abs(ours - leaf.grad.numpy()) <= 1e-9 * (1 + np.abs(ours)) + 1e-14 * size).all()


@pytest.mark.parametrize(
    ("gradient", "at", "beyond"),
    [("autograd", (3.0, -3.0), 0.0), ("ratio-weighted", (11.25, 2.25), 6.75), ("score-weighted", (7.5, 1.5), 0.0)],
)
def test_a_clamp_itself_still_has_a_slope(gradient: Any, at: tuple[float, float], beyond: float) -> None:
    """k2 at 3 is 4.5 and the ratio 1.5; TRL's ratio carries a gradient wherever the distance is."""
    distance, ratio = np.array([3.0, -3.0, 3.0000001, -3.0000001]), np.full(4, 1.5)
    np.testing.assert_allclose(kl_gradient("k2", gradient, distance, ratio, input_clamp=3.0), [*at, beyond, beyond])
    value = 6.75 if gradient == "ratio-weighted" else 4.5
    np.testing.assert_allclose(kl_gradient("k2", gradient, distance, ratio, output_clamp=value), [*at, 0, 0])


@pytest.mark.parametrize(("estimator", "gradient"), list(itertools.product(ESTIMATORS, GRADIENTS)))
@pytest.mark.parametrize("clamp", [None, 10.0])
def test_an_unknown_distance_stays_unknown(estimator: Any, gradient: Any, clamp: float | None) -> None:
    back = kl_gradient(estimator, gradient, np.array([np.nan, 0.5]), np.ones(2), input_clamp=clamp, output_clamp=clamp)
    assert np.isnan(back[0])
    assert np.isfinite(back[1])


def test_closed_forms_of_k3() -> None:
    """k3 + 1 − e^{−d} is d, also where e^{−d} alone is 5e21 and hides it."""
    distance, ratio = np.array([-50.0, 0.25]), np.array([1e-3, 2.0])
    np.testing.assert_array_equal(kl_gradient("k3", "score-weighted", distance, ratio), distance)
    np.testing.assert_array_equal(kl_gradient("k3", "ratio-weighted", distance, ratio), ratio * distance)


# ── one ratio for a response ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("level", ["token", "sequence", "sequence-token", "product"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), low=st.none() | st.floats(0.5, 12))
def test_a_shared_ratio_sends_the_term_to_all_tokens_of_the_response(level: Any, estimator: Any, seed: int, low: Any) -> None:
    random = np.random.default_rng(seed)
    mask = random.random((3, 5)) < 0.7
    distance, log_ratio, weight = (random.normal(0, s, mask.shape) for s in (1.5, 0.3, 0.2))
    leaf = torch.tensor(distance, requires_grad=True)
    inside, moved = torch.tensor(mask), leaf - leaf.detach() + torch.tensor(log_ratio)
    total = torch.where(inside, moved, 0.0).sum(1, keepdim=True)
    mean = total / inside.sum(1, keepdim=True).clamp(min=1)
    log = {"token": moved, "sequence": mean, "product": total, "sequence-token": mean.detach() + moved - moved.detach()}[level]
    rule = replace(RULE, kl_estimator=estimator, kl_gradient="ratio-weighted", kl_output_clamp=low, ratio_level=level)
    loss = torch.tensor(weight) * term(rule, leaf, log.exp())
    torch.where(inside, loss, 0.0).sum().backward()
    assert leaf.grad is not None
    table = TokenTable.from_rollouts(
        0, [Rollout(sample_id=str(i), response_ids=np.zeros(5, np.int32), loss_mask=row) for i, row in enumerate(mask)]
    )
    seen = (np.where(mask, each, np.nan).ravel() for each in (weight, distance, log_ratio))
    ours = kl_coefficient(table, rule, *seen)
    np.testing.assert_allclose(ours[mask.ravel()], leaf.grad.numpy()[mask], rtol=1e-9, atol=1e-12)
    assert np.isnan(ours[~mask.ravel()]).all()


# ── the column ──────────────────────────────────────────────────────────────────────────────────────────────────────


def column(rule: Algorithm, masks: Any, policy: Any, reference: Any, **fields: Any) -> Column:
    offsets = np.cumsum([0, *map(len, masks)])
    rollouts = [
        Rollout(
            sample_id=str(i),
            response_ids=np.zeros(len(mask), np.int32),
            loss_mask=np.asarray(mask, bool),
            columns={
                name: np.asarray(values[offsets[i] : offsets[i + 1]], np.float32)
                for name, values in {"logprob/policy": policy, "logprob/old": policy, "logprob/ref": reference}.items()
            },
            **{name: values[i] for name, values in fields.items()},
        )
        for i, mask in enumerate(masks)
    ]
    table = TokenTable.from_rollouts(0, rollouts, algorithm=rule)
    compute(Inputs(table, algorithm=rule), ["credit/kl_push"], SPECS)
    return table.columns["credit/kl_push"]


def test_a_token_that_the_rule_leaves_out_is_not_pulled() -> None:
    rule = replace(RULE, mask_truncated=True, kl_estimator="k2")
    found = column(rule, [[1, 1], [1, 0]], [-1.0, -1, -1, -1], [-2.0, np.nan, -2, -2], truncated=[True, False])
    np.testing.assert_array_equal(found.values, [0, 0, -1, np.nan])
    assert "left out: no finite value" not in found.note, "it is left out by the rule, and not for want of a number"


def test_a_trained_token_without_a_reference_is_counted() -> None:
    found = column(replace(RULE, kl_estimator="k2"), [[1, 1, 0]], [-1.0, -1, np.nan], [-2.0, np.nan, np.inf])
    np.testing.assert_array_equal(found.values, [-1, np.nan, np.nan])
    assert "1 trained token left out: no finite value" in found.note


def test_the_clamps_are_said_where_they_hold() -> None:
    rule = replace(RULE, kl_gradient="score-weighted", kl_input_clamp=20.0, kl_output_clamp=10.0)
    assert (
        "beta 1, k3, gradient score-weighted, distance within ±20, value within ±10" in column(rule, [[1]], [-1.0], [-1.0]).note
    )
    capped = replace(rule, kl_gradient="ratio-capped")
    assert "within" not in column(capped, [[1]], [-1.0], [-1.0]).note
