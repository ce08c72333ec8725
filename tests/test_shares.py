"""A share and its interval."""

from __future__ import annotations

import numpy as np
import pytest

from credit_inspector.shares import percent, share


def test_a_share_is_a_ratio_of_sums_and_its_interval_holds_it() -> None:
    rng = np.random.default_rng(1)
    whole = rng.uniform(1, 2, 200)
    part = whole * rng.uniform(0.2, 0.6, 200)
    found = share(part, whole, [str(i) for i in range(200)])
    assert found.value == pytest.approx(part.sum() / whole.sum())
    assert found.low < found.value < found.high
    assert found.responses == 200


def test_the_interval_covers_at_its_rate() -> None:
    """Of 200 samples with true share 0.4, about 95 % of the intervals hold it (binomial: 0.90 is 3 σ away)."""
    rng = np.random.default_rng(2)
    held = 0
    for _ in range(200):
        whole = rng.exponential(1, 80)
        part = whole * rng.binomial(1, 0.4, 80)
        found = share(part, whole, [str(i) for i in range(80)])
        held += found.low <= 0.4 <= found.high
    assert held / 200 > 0.90


def test_two_steps_on_one_response_are_one_response() -> None:
    once = share(np.array([1.0, 0.0]), np.array([1.0, 1.0]), ["a", "b"])
    twice = share(np.array([1.0, 0.0] * 2), np.array([1.0, 1.0] * 2), ["a", "b"] * 2)
    assert (twice.value, twice.low, twice.high) == (once.value, once.low, once.high)


def test_nothing_paid_is_no_share() -> None:
    assert np.isnan(share(np.zeros(2), np.zeros(2), ["a", "b"]).value)
    assert percent(float("nan")) == "n/a"
