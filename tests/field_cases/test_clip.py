"""What users reported about clipping and ratios of an update, as small inputs with answers that can be worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from credit_inspector.losses import losses
from credit_inspector.panel import Severity
from credit_inspector.table import TokenTable
from field_cases.tables import codes, response, rule, said, table_of, the

FOUR = [-1.0, -2.0, -0.5, -3.0]


def step(ratio: list[float], advantage: list[float], **fields: object) -> TokenTable:
    """One response with these ratios and advantages, token by token."""
    old = np.full(len(ratio), -3.0)
    one = response(policy=old + np.log(ratio), old=old, advantage=advantage)
    return table_of(one, algorithm=rule(updates_per_batch=2, **fields))


# ── ratio 1 ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_c01_with_one_update_a_batch_a_ratio_of_1_is_by_construction(tmp_path: Path) -> None:
    one = response(policy=FOUR, old=FOUR, advantage=[1.0] * 4, policy_version=0)
    table = table_of(one, algorithm=rule(updates_per_batch=1))
    np.testing.assert_array_equal(table.values("ratio"), 1)
    np.testing.assert_array_equal(table.values("clip"), 0)
    finding = the("ratio-one-by-construction", tmp_path / "info", table)
    assert finding.severity is Severity.INFO
    assert "clipping inactive by construction" in finding.sentence
    assert codes(tmp_path / "all", table) == {"ratio-one-by-construction"}


def test_c01_at_a_second_update_a_ratio_of_exactly_1_is_told(tmp_path: Path) -> None:
    several = rule(updates_per_batch=4)
    one = response(policy=FOUR, old=FOUR, policy_version=0)
    steps = [table_of(one, algorithm=several, step=number) for number in (1, 2)]
    finding = the("ratio-exactly-one", tmp_path, *steps)
    assert finding.severity is Severity.WARNING
    assert "Step 2: ratio exactly 1 at update 2 of 4: weights did not change or old log-probs were recomputed" in finding.sentence
    assert (finding.numbers["update"], finding.numbers["updates"]) == (2, 4)


def test_c01_the_same_responses_are_one_batch_where_no_version_is_recorded(tmp_path: Path) -> None:
    steps = [table_of(response(policy=FOUR, old=FOUR), algorithm=rule(updates_per_batch=4), step=n) for n in (7, 8)]
    finding = the("ratio-exactly-one", tmp_path, *steps)
    assert "Step 8: ratio exactly 1 at update 2 of 4" in finding.sentence


@pytest.mark.parametrize(
    ("policy", "ids"),
    [(FOUR, [5, 6, 7, 8]), ([-1.1, -2.0, -0.5, -3.0], [1, 2, 3, 4])],
    ids=["another batch's first update", "an update that moved one token"],
)
def test_c01_is_silent_where_a_step_may_be_as_it_is(tmp_path: Path, policy: list[float], ids: list[int]) -> None:
    several = rule(updates_per_batch=4)
    first = table_of(response(policy=FOUR, old=FOUR, policy_version=0), algorithm=several, step=1)
    second = response(policy=policy, old=FOUR, response_ids=ids, policy_version=0 if ids[0] == 1 else 1)
    assert said("ratio-exactly-one", tmp_path, first, table_of(second, algorithm=several, step=2)) == []


@pytest.mark.parametrize(("updates", "apart", "told"), [(1, 0.3, True), (4, 0.3, True), (1, 0.001, False)])
def test_c01_the_reverse_a_first_update_whose_ratio_is_not_1(tmp_path: Path, updates: int, apart: float, told: bool) -> None:
    one = response(policy=np.subtract(FOUR, apart), old=FOUR, policy_version=0)
    found = said("ratio-not-one-at-start", tmp_path, table_of(one, algorithm=rule(updates_per_batch=updates)))
    assert bool(found) == told
    if found:
        assert f"ratio is not 1 at update 1 of {updates}" in found[0].sentence
        assert found[0].numbers["mean_abs_log_ratio"] == pytest.approx(apart, rel=1e-5)


def test_c01_minibatches_of_one_batch_without_versions_are_not_taken_for_first_updates(tmp_path: Path) -> None:
    """Step 2 trains on other responses of the same batch: its ratio may be anything."""
    several = rule(updates_per_batch=4)
    first = table_of(response(policy=FOUR, old=FOUR), algorithm=several, step=1)
    second = response(policy=np.subtract(FOUR, 0.3), old=FOUR, response_ids=[5, 6, 7, 8])
    assert said("ratio-not-one-at-start", tmp_path, first, table_of(second, algorithm=several, step=2)) == []


# ── what is cut ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_c04_cut_and_outside_are_two_things() -> None:
    table = step([1.5, 1.5, 0.5, 0.5], [1, -1, 1, -1])
    clipped, outside = table.values("clip"), table.values("outside")
    np.testing.assert_array_equal(clipped, [1, 0, 0, -1])
    np.testing.assert_array_equal(outside, [1, 1, -1, -1])
    assert ((clipped != 0).mean(), (outside != 0).mean()) == (0.5, 1)
    np.testing.assert_array_equal(table.values("credit/policy_push") == 0, [True, False, False, True])


def test_c07_dual_clip_is_counted_apart() -> None:
    table = step([10, 2.5, 10], [-1, -1, 1], dual_clip=3.0)
    clipped = table.values("clip")
    np.testing.assert_array_equal(clipped, [2, 0, 1])
    assert (np.sum(clipped == 2), np.sum(clipped == 1)) == (1, 1)
    np.testing.assert_array_equal(table.values("credit/policy_push") == 0, [True, False, True])
    assert "1 at the upper bound" in table.columns["clip"].note
    assert "1 by dual clip" in table.columns["clip"].note


def test_c12_each_side_has_its_own_bound() -> None:
    ratio, advantage = [1.25, 1.3, 0.85, 0.75], [1.0, 1, -1, -1]
    np.testing.assert_array_equal(step(ratio, advantage, clip_low=0.2, clip_high=0.28).values("clip"), [0, 1, 0, -1])
    np.testing.assert_array_equal(step(ratio, advantage, clip_low=0.2, clip_high=0.2).values("clip") != 0, [1, 1, 0, 1])


# ── ratios of a response ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("tokens", "total", "shown"), [(5_000, 50, "exp(50) = 5.185e+21"), (71_000, 710, "is exp(710); the geometric")]
)
def test_c06_the_mean_stays_and_the_product_is_shown_as_a_power(tmp_path: Path, tokens: int, total: int, shown: str) -> None:
    # Exact in float32, so that the sum over 71,000 tokens is the sum of what was meant.
    old = np.zeros(tokens)
    one = response(policy=old + 0.01, old=old - 0.0)
    table = table_of(one, algorithm=rule(updates_per_batch=2, loss="reinforce", ratio_level="product"))
    np.testing.assert_allclose(np.exp(table.values("log_ratio/sequence_mean")), 1.01005, atol=5e-6)
    np.testing.assert_allclose(table.values("log_ratio/sequence_sum"), total, rtol=1e-6)
    finding = the("product-ratio-explodes", tmp_path, table)
    assert shown in finding.sentence
    assert "inf" not in finding.sentence
    assert finding.numbers["geometric"] == pytest.approx(1.01005, abs=5e-6)


def test_c06_nothing_is_said_of_a_rule_that_does_not_multiply(tmp_path: Path) -> None:
    old = np.zeros(5_000)
    for level in ("token", "sequence"):
        table = table_of(response(policy=old + 0.01, old=old), algorithm=rule(updates_per_batch=2, ratio_level=level))
        assert said("product-ratio-explodes", tmp_path / level, table) == []


def test_losses_named_here_are_there() -> None:
    assert {"ppo_clip", "reinforce"} <= set(losses)
