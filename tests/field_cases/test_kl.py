"""What users reported about the KL to a reference, each as a small input with the answer that can be worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from credit_inspector.algorithms.kl import kl_value
from credit_inspector.panel import Severity
from field_cases.tables import codes, response, rule, said, table_of, the

# ── one token ───────────────────────────────────────────────────────────────────────────────────────────────────────

POLICY, REFERENCE = [-1.0, -100.0, -2.0], [-1.0, -1.0, -2.0]


def test_b01_one_token_has_all_of_the_kl_and_is_named(tmp_path: Path) -> None:
    np.testing.assert_allclose(kl_value("k3", np.subtract(POLICY, REFERENCE)), [0, 9.8890e42, 0], rtol=1e-4)
    table = table_of(response(policy=POLICY, ref=REFERENCE), algorithm=rule())
    np.testing.assert_array_equal(table.values("kl/k1"), [0, -99, 0])
    assert np.isfinite(table.values("kl/k3")).all()
    finding = the("kl-owned-by-one-token", tmp_path, table)
    assert "token 1 of s0 has 100 % of the KL to the reference (k3 9.889e+42; the median token has 0)" in finding.sentence
    assert finding.numbers["value"] == pytest.approx(9.8890e42, rel=1e-4)
    assert (finding.numbers["share"], finding.numbers["median"]) == (1, 0)
    assert (finding.links[0].start, finding.links[0].end) == (1, 2)


def test_b01_a_stored_infinity_is_told_with_its_value(tmp_path: Path) -> None:
    table = table_of(response(policy=POLICY, ref=REFERENCE, k3=[0, np.inf, 0]), algorithm=rule())
    finding = the("kl-owned-by-one-token", tmp_path, table)
    assert "inf stored, recomputed 9.889e+42" in finding.sentence
    assert np.isfinite(list(finding.numbers.values())).all()


def test_b01_beyond_float64_nothing_infinite_is_said(tmp_path: Path) -> None:
    table = table_of(response(policy=[-1, -2000.0], ref=[-1, -1]), algorithm=rule())
    finding = the("kl-owned-by-one-token", tmp_path, table)
    assert "inf" not in finding.sentence.replace("infinite", "")
    assert np.isfinite(list(finding.numbers.values())).all()


@pytest.mark.parametrize("policy", [[-1.0, -3.5, -2.0], [-1, -4, -2]])
def test_b01_is_silent_on_a_token_within_what_trainers_let_it_have(tmp_path: Path, policy: list[float]) -> None:
    """k3 at 2.5 nats is 8.7."""
    quiet = table_of(response(policy=policy, ref=[-1, -1, -2]), algorithm=rule())
    assert len(said("kl-owned-by-one-token", tmp_path, quiet)) == (policy[1] == -4)


# ── the reference ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_b02_a_reference_that_is_not_the_start_is_told(tmp_path: Path) -> None:
    sampled = [-1.0, -2, -0.5]
    table = table_of(
        response(policy=sampled, old=sampled, ref=[-1.2, -2.2, -0.7], policy_version=0), algorithm=rule(updates_per_batch=2)
    )
    np.testing.assert_allclose(table.values("kl/k1"), 0.2, rtol=1e-6)
    np.testing.assert_allclose(table.values("kl/k3"), 0.01873, rtol=1e-3)
    finding = the("reference-differs-at-start", tmp_path, table)
    assert finding.severity is Severity.WARNING
    assert "the policy equals the sampling policy but differs from the reference" in finding.sentence
    assert finding.numbers["k3"] == pytest.approx(0.01873, rel=1e-3)
    assert finding.numbers["k1"] == pytest.approx(0.2, rel=1e-6)


def test_b02_one_step_of_bfloat16_is_no_difference(tmp_path: Path) -> None:
    sampled = [-4.0, -5.5, -7.5]
    table = table_of(response(policy=sampled, old=sampled, ref=np.add(sampled, 1 / 32)), algorithm=rule())
    np.testing.assert_allclose(table.values("kl/k3"), 0.000493, rtol=2e-3)
    assert said("reference-differs-at-start", tmp_path, table) == []


@pytest.mark.parametrize(
    ("old", "version"),
    [([-1.0, -2, -0.5], 3), ([-1.5, -2, -0.5], 0)],
    ids=["a later step", "a policy that has moved"],
)
def test_b02_looks_at_the_start_alone(tmp_path: Path, old: list[float], version: int) -> None:
    table = table_of(
        response(policy=[-1.0, -2, -0.5], old=old, ref=[-1.2, -2.2, -0.7], policy_version=version),
        algorithm=rule(updates_per_batch=2),
    )
    assert said("reference-differs-at-start", tmp_path, table) == []


# ── estimators ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_b03_k1_is_negative_on_single_tokens(tmp_path: Path) -> None:
    table = table_of(response(policy=[-2.0, -1], ref=[-1, -1.5]), algorithm=rule())
    np.testing.assert_allclose(table.values("kl/k1"), [-1, 0.5])
    np.testing.assert_allclose(table.values("kl/k3"), [0.71828, 0.10653], atol=5e-6)
    means = [table.values(f"kl/{name}").mean() for name in ("k1", "k2", "k3")]
    np.testing.assert_allclose(means, [-0.25, 0.3125, 0.41241], atol=5e-6)
    assert "estimator k1" in table.columns["kl/k1"].note
    assert said("kl-mean-negative", tmp_path, table) == []


def test_b03_a_clearly_negative_mean_is_told(tmp_path: Path) -> None:
    table = table_of(response(policy=[-2.0] * 200, ref=[-1.5] * 200), algorithm=rule())
    finding = the("kl-mean-negative", tmp_path, table)
    assert "mean k1 is -0.5 nats over 200 tokens: the policy scores its own samples below the reference" in finding.sentence
    assert "sampling settings" in finding.do
    assert "temperature" in finding.do
    assert finding.numbers["mean_k1"] == pytest.approx(-0.5)


def test_b03_a_mean_within_its_error_is_not(tmp_path: Path) -> None:
    reference = -2 + np.random.default_rng(0).normal(0.1, 3, 200)
    assert said("kl-mean-negative", tmp_path, table_of(response(policy=[-2.0] * 200, ref=reference))) == []


def test_b03_the_weights_that_sampled_count_and_not_those_that_moved(tmp_path: Path) -> None:
    moved = table_of(response(policy=[-4.0] * 200, old=[-1.5] * 200, ref=[-1.5] * 200))
    assert said("kl-mean-negative", tmp_path, moved) == []


def test_b04_fill_values_are_left_out_and_told(tmp_path: Path) -> None:
    table = table_of(response(policy=[-1.0, -2, 1, 1], ref=[-1.5, -2, 1, 1], mask=[1, 1, 0, 0]), algorithm=rule())
    k1 = table.values("kl/k1")
    assert (np.nansum(k1), np.nanmean(k1)) == (0.5, 0.25)
    assert np.nansum(table.values("surprisal")) == 3
    finding = the("logprob-above-zero", tmp_path, table)
    assert finding.severity is Severity.WARNING
    assert "log-prob > 0 at masked positions looks like a fill value" in finding.sentence
    assert finding.numbers["masked"] == 4


def test_b04_a_trained_one_is_an_error_and_linked(tmp_path: Path) -> None:
    finding = the("logprob-above-zero", tmp_path, table_of(response(policy=[-1.0, 2, 0.0])))
    assert finding.severity is Severity.ERROR
    assert "1 stored log-probs of trained tokens are above 0, most in logprob/policy" in finding.sentence
    assert (finding.links[0].start, finding.links[0].end) == (1, 2)


# ── in the reward or in the loss ────────────────────────────────────────────────────────────────────────────────────


def test_b05_in_the_reward_or_in_the_loss_and_both_at_once_is_told(tmp_path: Path) -> None:
    kl = np.array([0.2, 0.3, 0.1])
    one = response(policy=[-1.0] * 3, old=[-1.0] * 3, ref=-1 - kl, reward=1.0, group_id="g")
    in_reward = table_of(one, algorithm=rule(advantage="reinforce_pp", kl_in_reward=0.1))
    np.testing.assert_allclose(in_reward.values("advantage"), [0.94, 0.96, 0.99], rtol=1e-6)
    np.testing.assert_array_equal(in_reward.values("credit/kl_push"), 0)
    in_loss = table_of(one, algorithm=rule(advantage="reinforce_pp", kl_beta=0.1, kl_estimator="k1", aggregation="token-sum"))
    np.testing.assert_allclose(in_loss.values("advantage"), 1)
    np.testing.assert_allclose(0.1 * in_loss.values("kl/k1"), [0.02, 0.03, 0.01], rtol=1e-6)
    np.testing.assert_allclose(in_loss.values("credit/kl_push"), -0.1, rtol=1e-6)
    for n, table in enumerate((in_reward, in_loss)):
        assert said("kl-in-reward-and-loss", tmp_path / str(n), table) == []
    both = table_of(one, algorithm=rule(advantage="reinforce_pp", kl_in_reward=0.1, kl_beta=0.04))
    finding = the("kl-in-reward-and-loss", tmp_path / "both", both)
    assert "has the KL term in the reward (0.1) and in the loss (0.04) at once" in finding.sentence


def test_b05_the_update_s_distance_and_the_reference_s_are_two_columns() -> None:
    table = table_of(response(policy=[-1.0], old=[-1.25], ref=[-1.5]), algorithm=rule(updates_per_batch=2))
    assert (table.values("log_ratio")[0], table.values("kl/k1")[0]) == (0.25, 0.5)


def test_a_clean_step_gives_no_word_about_its_kl(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    old = -rng.exponential(1.0, 400)
    table = table_of(
        response(policy=old, old=old, ref=old + rng.normal(0, 1e-3, 400), reward=1.0, group_id="g", policy_version=0),
        algorithm=rule(kl_beta=0.04, updates_per_batch=2),
    )
    assert not {code for code in codes(tmp_path, table) if code.startswith(("kl-", "reference-", "logprob-"))}
