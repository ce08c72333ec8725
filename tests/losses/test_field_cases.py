"""Worked numbers of single losses, and what users once saw instead of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from credit_inspector.errors import MissingColumn, UsageError
from credit_inspector.losses import Push
from losses.batches import Batch, of_ratio, one_row
from losses.batches import push as pushed


def push(batch: Batch, **fields: Any) -> Push:
    return pushed(batch, **fields).push


def test_clip_counts_only_tokens_whose_gradient_is_cut() -> None:
    """Ratio 1.5, 1.5, .5, .5 with A +, −, +, −: all four are outside the interval, two are cut."""
    found = push(of_ratio([1.5, 1.5, 0.5, 0.5], [1, -1, 1, -1]))
    np.testing.assert_array_equal(found.clipped, [1, 0, 0, -1])
    np.testing.assert_allclose(found.coefficient, [0, 1.5, -0.5, 0])


def test_separate_bounds() -> None:
    """Low .2, high .28: of ratios 1.25, 1.3, .85, .75 half are cut; one bound on both sides would cut three."""
    batch = of_ratio([1.25, 1.3, 0.85, 0.75], [1, 1, -1, -1])
    np.testing.assert_array_equal(push(batch, clip_high=0.28).clipped != 0, [0, 1, 0, 1])
    np.testing.assert_array_equal(push(batch).clipped != 0, [1, 1, 0, 1])


def test_dual_clip() -> None:
    """(A, ratio) of (−1, 10), (−1, 2.5), (1, 10) with c = 3: cut by dual clip, not cut, cut at the upper bound."""
    found = push(of_ratio([10, 2.5, 10], [-1, -1, 1]), dual_clip=3.0)
    np.testing.assert_array_equal(found.clipped, [2, 0, 1])
    np.testing.assert_allclose(found.coefficient, [0, 2.5, 0])


def test_a_bound_is_a_gate_in_ppo_and_a_limit_in_cispo() -> None:
    """Ratio 3 and A > 0 is "counted as 1.2 at most" only in CISPO; PPO gives the token no push at all."""
    batch = of_ratio([3.0, 3.0], [1, -1])
    np.testing.assert_allclose(push(batch).coefficient, [0, 3])
    np.testing.assert_allclose(push(batch, loss="cispo").coefficient, [-1.2, 1.2])


def test_a_bound_itself_does_not_cut_and_advantage_0_is_never_clipped() -> None:
    found = push(one_row([-9.0] * 4, [-9.0, -9.0, -18.0, 0.0], [1, -1, 0, 0]), clip_low=0.0, clip_high=0.0)
    np.testing.assert_array_equal(found.clipped, [0, 0, 0, 0])
    np.testing.assert_array_equal(found.coefficient, [-1, 1, 0, 0])


def test_the_log_ratio_clamp_cuts_where_nothing_else_does() -> None:
    found = push(one_row([-25.0] * 4, [-46.0, -46.0, -4.0, -4.0], [1, -1, 1, -1]), log_ratio_clamp=20.0)
    np.testing.assert_array_equal(found.clipped, [1, 3, 3, -1])
    np.testing.assert_array_equal(found.coefficient, [0, 0, 0, 0])


def test_delta_bounds_the_ratio_for_both_signs() -> None:
    found = push(of_ratio([5.0, 3.5, 2.5], -1.0), delta=3.0)
    np.testing.assert_array_equal(found.clipped, [2, 2, 0])
    np.testing.assert_allclose(found.coefficient, [0, 0, 2.5])


def test_cispo_holds_and_never_cuts() -> None:
    around = push(of_ratio([3.0, 0.1, 1.0, 3.0], [1, 1, -1, 0]), loss="cispo", clip_high=0.28)
    np.testing.assert_allclose(around.coefficient, [-1.28, -0.8, 1, 0])
    np.testing.assert_array_equal(around.clipped, [1, -1, 0, 0])
    absolute = push(of_ratio([9.0, 0.1, 1.0], [1, 1, -1]), loss="cispo", clip_bounds="absolute", clip_low=0.0, clip_high=5.0)
    np.testing.assert_allclose(absolute.coefficient, [-5, -0.1, 1])
    np.testing.assert_array_equal(absolute.clipped, [1, 0, 0])


def test_sapo_fades_without_a_bound() -> None:
    """4 s (1 − s) ρ at ρ = 1 and 3 with τ = 1: 1, and 3 · 4 · .8808 · .1192."""
    found = push(of_ratio([1.0, 3.0, 1e9], 1.0), loss="sapo")
    np.testing.assert_allclose(found.coefficient, [-1, -1.2599, 0], atol=1e-4)
    assert not found.clipped.any()


def test_gspo_averages_a_response_s_credit_and_its_token_form_does_not() -> None:
    """Ratios e^.1 and e^−.1: one ratio 1. Advantages 1 and −1 cancel in the true gradient and stay in verl's form."""
    batch = one_row([-1.0, -1.0], [-1.1, -0.9], [1, -1])
    np.testing.assert_allclose(push(batch, ratio_level="sequence").coefficient, [0, 0], atol=1e-12)
    np.testing.assert_allclose(push(batch, ratio_level="sequence-token").coefficient, [-1, 1])
    same = one_row([-1.0, -1.0], [-1.1, -0.8], [2, 2])
    forms = [push(same, ratio_level=level).coefficient for level in ("sequence", "sequence-token")]
    np.testing.assert_allclose(forms[0], forms[1])


def test_one_ratio_for_a_response_cuts_all_of_it_or_nothing() -> None:
    """Log-ratios 1 and −.9: the first token alone is far outside, the mean of .05 and the sum of .1 are not."""
    batch = one_row([-1.0, -2.0], [-2.0, -1.1], 1.0)
    np.testing.assert_array_equal(push(batch).clipped, [1, 0])
    np.testing.assert_allclose(push(batch, ratio_level="sequence").coefficient, -np.exp([0.05, 0.05]))
    np.testing.assert_allclose(push(batch, ratio_level="product").coefficient, -2 * np.exp([0.1, 0.1]))
    np.testing.assert_array_equal(push(batch, ratio_level="product", clip_high=0.1).clipped, [1, 1])


def test_gspo_s_clamp_on_the_mean() -> None:
    """verl holds the mean log-ratio at 10: no gradient beyond, where A < 0 and nothing else cuts."""
    batch = one_row([-1.0], [-12.0], -1.0)
    found = push(batch, ratio_level="sequence-token", settings={"log_ratio_max": 10.0})
    np.testing.assert_array_equal([found.coefficient[0], found.clipped[0]], [0, 3])
    assert push(batch, ratio_level="sequence-token").coefficient == pytest.approx(np.exp(11))


def test_dppo_looks_at_probabilities_and_not_at_ratios() -> None:
    """A rare token may double, a common one may not rise by .3; the cap holds a ratio and still pushes."""
    policy, old = np.log([2e-4, 0.9, 0.3, 2e-4]), np.log([1e-4, 0.6, 0.6, 1e-5])
    found = push(one_row(policy, old, [1, 1, -1, 1]), loss="dppo_tv", dual_clip=3.0)
    np.testing.assert_array_equal(found.clipped, [0, 1, -1, 2])
    np.testing.assert_allclose(found.coefficient, [-2, 0, 0, -3])


def test_prime_takes_the_ratio_to_the_sampling_engine() -> None:
    batch = one_row(np.log([0.5, 0.9]), np.log([0.5, 0.9]), 1.0)
    engine = np.log([0.4, 0.5])
    found = push(
        Batch(batch.mask, batch.policy, engine[None], batch.advantage, batch.weight), loss="prime", settings={"kl_tau": 0.1}
    )
    np.testing.assert_array_equal(found.clipped, [0, 1])
    np.testing.assert_allclose(found.coefficient, [-1.25 + 0.2 * np.log(1.25), 0.2 * np.log(1.8)])


def test_vespo_weighs_a_whole_response() -> None:
    """φ(1) = 1; with k 2 and λ 3, φ(2) = e³ · 4 · e^−6."""
    found = push(of_ratio([1.0, 2.0], 1.0), loss="vespo")
    np.testing.assert_allclose(found.coefficient, np.full(2, -4 * np.exp(-3)))
    np.testing.assert_allclose(push(of_ratio([1.0, 1.0], [1, -1]), loss="vespo").coefficient, [-1, 1])


def test_reinforce_needs_no_ratio() -> None:
    found = push(one_row([np.nan, -9.0], [-1.0, np.nan], [2, -1]), loss="reinforce")
    np.testing.assert_array_equal(found.coefficient, [-2, 1])


@pytest.mark.parametrize("loss", ["gmpo", "dppo_tv", "dppo_kl", "prime", "prime_ipo", "dro", "vespo", "kl_cov"])
def test_a_loss_of_tokens_is_not_taken_at_the_level_of_responses(loss: str) -> None:
    with pytest.raises(UsageError, match=f"loss {loss} with ratio_level sequence; wanted ratio_level token"):
        push(of_ratio([1.0], 1.0), loss=loss, ratio_level="sequence")


def test_what_cannot_be_computed_is_refused_in_one_line() -> None:
    with pytest.raises(MissingColumn, match="clip_cov cuts tokens at random"):
        push(of_ratio([1.0], 1.0), loss="clip_cov")
    with pytest.raises(UsageError, match="a positive beta"):
        push(of_ratio([1.0], 1.0), loss="dro")
