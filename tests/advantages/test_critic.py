"""The critic's side: PPO's value loss against autograd, and the KL controller."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from credit_inspector.advantages.critic import adapted_kl_weight, value_loss


@given(numbers=arrays(float, (3, 12), elements=st.floats(-2, 2).map(lambda x: round(x, 3))), seed=st.integers(0, 99))
def test_value_gradient_is_autograd_of_the_loss(numbers: np.ndarray, seed: int) -> None:
    rng = np.random.default_rng(seed)
    # A thousandth of noise, so that no value lies on the edge of the clip, where a maximum has two slopes.
    predicted, targets, old = numbers + rng.uniform(0, 1e-3, numbers.shape)
    weight = rng.random(12) * (rng.random(12) > 0.3)
    value = torch.tensor(predicted, requires_grad=True)
    held = torch.minimum(torch.maximum(value, torch.tensor(old - 0.2)), torch.tensor(old + 0.2))
    worse = torch.maximum((value - torch.tensor(targets)) ** 2, (held - torch.tensor(targets)) ** 2)
    loss = 0.5 * (torch.tensor(weight) * worse).sum()
    loss.backward()
    found = value_loss(predicted, targets, old, weight, clip=0.2)
    np.testing.assert_allclose(found.loss, loss.item(), atol=1e-12)
    np.testing.assert_allclose(found.gradient, value.grad.numpy(), atol=1e-12)


@pytest.mark.parametrize("nothing", [0.0, float("nan")])
def test_what_has_no_weight_is_not_read(nothing: float) -> None:
    one = value_loss(np.array([1.0]), np.array([0.0]), np.array([0.9]), np.array([1.0]), clip=0.2)
    odd = [np.array([first, np.nan]) for first in (1.0, 0.0, 0.9)]
    two = value_loss(*odd, np.array([1.0, nothing]), clip=0.2)
    assert two.loss == one.loss == 0.5
    np.testing.assert_array_equal(two.gradient, [1, 0])
    np.testing.assert_array_equal(two.clipped, [False, False])


def test_the_kl_weight_follows_the_kl_by_a_fifth_at_most() -> None:
    fixed = {"target": 2.0, "horizon": 100.0, "responses": 10}
    assert adapted_kl_weight(1.0, 2.0, **fixed) == 1
    assert adapted_kl_weight(1.0, 2.2, **fixed) == pytest.approx(1.01)
    assert adapted_kl_weight(1.0, 50.0, **fixed) == pytest.approx(1.02)
    assert adapted_kl_weight(1.0, 0.0, **fixed) == pytest.approx(0.98)
