"""Attribution of plain functions: games with known values, paths with known integrals, gradients by autograd."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from credit_inspector.errors import AlignmentError, UsageError
from credit_inspector.scoring.attribution import (
    gram,
    inner_products,
    input_gradients,
    integrated_gradients,
    leave_one_out,
    loss_share,
    pulled_back,
    shapley,
)

# ── players ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def any_game(players, seed):
    """A value drawn for every coalition."""
    drawn = np.random.default_rng(seed).normal(size=2**players)
    return lambda there: drawn[there @ (1 << np.arange(players))]


def additive(worth):
    return lambda there: there @ np.asarray(worth, float)


def copies(there):
    """1 as long as one of the first two is there; the third is worth 2."""
    return there[:, :2].any(1) + 2.0 * there[:, 2]


def by_all_orders(game, players):
    total = np.zeros(players)
    orders = list(permutations(range(players)))
    for order in orders:
        there = np.zeros(players, bool)
        for player in order:
            before = game(there[None])[0]
            there[player] = True
            total[player] += game(there[None])[0] - before
    return total / len(orders)


@given(st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_shapley_is_the_mean_over_all_orders_and_adds_up(players, seed):
    game = any_game(players, seed)
    found = shapley(game, players)
    np.testing.assert_allclose(found, by_all_orders(game, players), atol=1e-12)
    none, everyone = game(np.array([[False] * players, [True] * players]))
    assert found.sum() == pytest.approx(everyone - none)


def test_two_copies_share_and_leaving_one_out_sees_neither():
    np.testing.assert_allclose(shapley(copies, 3), [0.5, 0.5, 2])
    np.testing.assert_allclose(leave_one_out(copies, 3), [0, 0, 2])


def test_where_players_only_add_all_ways_agree():
    worth = np.linspace(-1, 2, 12)
    for found in (shapley(additive(worth), 12), leave_one_out(additive(worth), 12)):
        np.testing.assert_allclose(found, worth, atol=1e-12)


def test_more_players_than_can_be_enumerated_are_refused_with_the_way_out():
    with pytest.raises(UsageError, match="at most 12; sample orders with captum"):
        shapley(additive(np.ones(13)), 13)


def test_a_game_without_players_and_a_game_that_forgets_coalitions():
    assert len(leave_one_out(lambda there: np.zeros(len(there)), 0)) == 0
    assert len(shapley(lambda there: np.zeros(len(there)), 0)) == 0
    with pytest.raises(AlignmentError, match="one for each coalition"):
        leave_one_out(lambda there: np.zeros(1), 2)


# ── inputs ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def bent(inputs):
    """``[K, 3, 2]`` → ``[K]``, with products of inputs."""
    return torch.tanh(inputs[:, 0] * inputs[:, 1]).sum(-1) + inputs[:, 2].pow(3).sum(-1)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_parts_add_up_to_the_whole_way():
    inputs, baseline = draw(3, 2), draw(3, 2, seed=1)
    path = integrated_gradients(bent, inputs, baseline)
    end, start = bent(torch.stack([inputs, baseline]))
    assert path.gap == pytest.approx(0, abs=1e-9)
    assert float(path.by_input.sum()) == pytest.approx(float(end - start))


def test_too_few_points_show_in_the_gap():
    assert abs(integrated_gradients(bent, 3 * draw(3, 2), torch.zeros(3, 2, dtype=torch.float64), points=2).gap) > 1e-3


@pytest.mark.parametrize("together", [1, 3, 50, 1000])
def test_points_may_go_together_or_alone(together):
    inputs, baseline = draw(3, 2), torch.zeros(3, 2, dtype=torch.float64)
    whole = integrated_gradients(bent, inputs, baseline).by_input
    torch.testing.assert_close(integrated_gradients(bent, inputs, baseline, together=together).by_input, whole)


def test_a_linear_value_gives_weight_times_way():
    weight, inputs, baseline = draw(3, 2, seed=5), draw(3, 2), draw(3, 2, seed=1)
    path = integrated_gradients(lambda given: (given * weight).sum((1, 2)), inputs, baseline, points=1)
    torch.testing.assert_close(path.by_input, (weight * (inputs - baseline)).sum(-1))


def test_slopes_are_autograds_and_an_input_without_influence_has_none():
    inputs = draw(4, 3, 2)
    leaf = inputs.clone().requires_grad_()
    bent(leaf).sum().backward()
    torch.testing.assert_close(input_gradients(bent, inputs), leaf.grad)
    deaf = input_gradients(lambda given: (given[:, 0] ** 2).sum(-1), inputs)
    assert (deaf[:, 1:] == 0).all()
    assert not inputs.requires_grad


def test_a_baseline_of_another_shape_and_no_points_are_refused():
    inputs = draw(3, 2)
    with pytest.raises(AlignmentError, match="that of the inputs"):
        integrated_gradients(bent, inputs, torch.zeros(2))
    with pytest.raises(UsageError, match="at least 1"):
        integrated_gradients(bent, inputs, inputs, points=0)


# ── parameters ──────────────────────────────────────────────────────────────────────────────────────────────────────

STATES = draw(5, 3, seed=8)
PARAMETERS = {"W": draw(4, 3, seed=9), "b": draw(4, seed=10)}


def logprobs(given):
    """A softmax of four words over fixed states; token t is word t modulo 4."""
    return (STATES @ given["W"].T + given["b"]).log_softmax(-1)[torch.arange(5), torch.arange(5) % 4]


def slopes():
    """``[T, P]`` by one backward pass for each token."""
    leaves = {name: value.clone().requires_grad_() for name, value in PARAMETERS.items()}
    values = logprobs(leaves)
    grads = [torch.autograd.grad(value, list(leaves.values()), retain_graph=True) for value in values]
    return torch.stack([torch.cat([part.flatten() for part in each]) for each in grads])


def flat(direction):
    return torch.cat([direction[name].flatten() for name in PARAMETERS])


def test_one_pass_gives_the_inner_products_of_the_backward_loop():
    v = {"W": draw(4, 3, seed=11), "b": draw(4, seed=12)}
    found = inner_products(logprobs, PARAMETERS, v)
    torch.testing.assert_close(found, slopes() @ flat(v))
    torch.testing.assert_close(inner_products(logprobs, PARAMETERS, {name: -2 * part for name, part in v.items()}), -2 * found)


def test_the_gram_matrix_is_that_of_the_backward_loop():
    found = gram(logprobs, PARAMETERS)
    torch.testing.assert_close(found, slopes() @ slopes().T)
    torch.testing.assert_close(found, found.T)
    assert torch.linalg.eigvalsh(found).min() > -1e-10


def test_a_loss_gradient_is_the_weighted_sum_and_its_shares_add_up_to_1():
    c = draw(5, seed=13)
    g = pulled_back(logprobs, PARAMETERS, c)
    torch.testing.assert_close(flat(g), c @ slopes())
    inner = inner_products(logprobs, PARAMETERS, g)
    shares = loss_share(c, inner)
    assert float(shares.sum()) == pytest.approx(1)
    torch.testing.assert_close(shares, c * inner / flat(g).square().sum())
    assert torch.isnan(loss_share(torch.zeros(5), inner)).all()


def test_a_step_along_a_direction_moves_log_probs_by_the_inner_products():
    c = draw(5, seed=13)
    v = pulled_back(logprobs, PARAMETERS, c)
    inner, eta = inner_products(logprobs, PARAMETERS, v), 1e-6
    moved = logprobs({name: value + eta * v[name] for name, value in PARAMETERS.items()})
    torch.testing.assert_close((moved - logprobs(PARAMETERS)) / eta, inner, atol=1e-4, rtol=1e-4)
