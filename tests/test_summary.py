"""The figures of a step: worked numbers under stable names, what is left out, and what is never printed."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from credit_inspector.algorithm import Algorithm
from credit_inspector.rollout import Rollout
from credit_inspector.summary import figures
from credit_inspector.table import Provenance, TokenTable

RULE = Algorithm(name="test", source="test", updates_per_batch=2, std="none")


def table_of(
    *,
    rule: Algorithm | None = RULE,
    rewards: tuple[float, ...] = (1.0, 0.0),
    lengths: tuple[int, ...] | None = None,
    mask: Any = None,
    advantage: Any = None,
    versions: tuple[int | None, ...] = (None, None),
    step: int = 1,
    **columns: Any,
) -> TokenTable:
    """Two responses of one group; flat columns by the log-probs' names."""
    n = len(next(iter(columns.values()), np.zeros(4)))
    cuts = np.cumsum(lengths or (n // 2, n - n // 2))[:-1]
    flat = {name.replace("__", "/"): np.asarray(values, np.float32) for name, values in columns.items()}
    flat = {name if "/" in name else f"logprob/{name}": values for name, values in flat.items()}
    split = {name: np.split(values, cuts) for name, values in flat.items()}
    masks = np.split(np.ones(n, bool) if mask is None else np.array(mask, bool), cuts)
    rollouts = [
        Rollout(
            sample_id=str(i),
            group_id="g",
            response_ids=np.zeros(len(masks[i]), np.int32),
            loss_mask=masks[i],
            reward=rewards[i],
            columns={name: parts[i] for name, parts in split.items()},
            policy_version=versions[i],
        )
        for i in range(2)
    ]
    table = TokenTable.from_rollouts(step, rollouts, algorithm=rule)
    if advantage is not None:
        table.add("advantage", advantage, Provenance.RECORDED)
    return table


def found_in(table: TokenTable) -> dict[str, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return figures(table)


def test_clipped_and_outside_are_two_figures_and_bounds_are_told_apart() -> None:
    ratio = np.log([1.5, 1.5, 0.5, 0.5])
    found = found_in(table_of(policy=ratio, old=np.zeros(4), advantage=[1, -1, 1, -1]))
    assert found["clip/fraction"] == 0.5
    assert found["clip/unsigned_fraction"] == 1
    assert (found["clip/high_fraction"], found["clip/low_fraction"]) == (0.25, 0.25)
    assert (found["clip/dual_fraction"], found["clip/clamp_fraction"]) == (0, 0)


def test_dual_clip_and_clamp_have_their_own_figures() -> None:
    rule = replace(RULE, dual_clip=3.0, log_ratio_clamp=20.0)
    found = found_in(table_of(rule=rule, policy=[2.0, 25.0, 0, 0], old=np.zeros(4), advantage=[-1, -1, -1, -1]))
    assert found["clip/fraction"] == pytest.approx(found["clip/dual_fraction"] + found["clip/clamp_fraction"])
    assert found["clip/dual_fraction"] >= 0.25


def test_the_ratio_is_told_by_token_and_by_response() -> None:
    found = found_in(table_of(policy=np.log([2.0, 1.0, 0.5, 1.0]), old=np.zeros(4)))
    assert found["ratio/mean"] == pytest.approx(4.5 / 4)
    assert (found["ratio/min"], found["ratio/max"]) == pytest.approx((0.5, 2))
    assert found["ratio/ess"] == pytest.approx(4.5**2 / 6.25 / 4)
    assert found["ratio/sequence_mean_max"] == pytest.approx(2**0.5)
    assert found["log_ratio/sequence_sum_abs_max"] == pytest.approx(np.log(2))
    assert found["ratio/left_out"] == 0


def test_a_trained_token_without_a_number_is_counted_and_in_no_mean() -> None:
    found = found_in(table_of(policy=[-1, -np.inf, -1, np.nan], old=[-1, -1, -1, -1], mask=[1, 1, 1, 0]))
    assert found["ratio/left_out"] == 1
    assert found["ratio/mean"] == 1


def test_one_astronomic_k3_is_exact_and_infinity_never_printed() -> None:
    found = found_in(table_of(policy=[-1, -100, -2], ref=[-1, -1, -2], old=[-1, -100, -2]))
    assert found["kl/k3_mean"] == pytest.approx(9.8890e42 / 3, rel=1e-4)
    assert found["kl/k3_median"] == 0
    assert found["kl/top_token_share"] == 1
    assert found["kl/k1_mean"] == -33
    assert all(np.isfinite(value) for value in found.values())
    beyond = found_in(table_of(policy=[-1, -2000, -2], ref=[-1, -1, -2], old=[-1, -2000, -2]))
    assert beyond["kl/k3_mean"] == 0
    assert beyond["kl/k1_mean"] == pytest.approx(-1999 / 3)


def test_a_negative_mean_k1_is_a_figure_like_others() -> None:
    found = found_in(table_of(policy=[-2, -1], ref=[-1, -1.5], old=[-2, -1]))
    assert found["kl/k1_mean"] == pytest.approx(-0.25)
    assert found["kl/k3_mean"] == pytest.approx(0.41241, abs=5e-6)


def test_fill_values_under_the_mask_are_in_no_figure() -> None:
    values = {"policy": [-1, -2, 1, 1], "ref": [-1.5, -2, 1, 1], "old": [-1, -2, 1, 1], "rollout": [-1, -2, 9, 9]}
    found = found_in(table_of(mask=[1, 1, 0, 0], **values))
    assert found["kl/k1_mean"] == pytest.approx(0.25)
    assert found["surprisal/mean"] == pytest.approx(1.5)
    assert found["rollout/kl_k3"] == 0
    nothing = dict.fromkeys(values, np.array([-1, -2, np.nan, np.inf]))
    assert found_in(table_of(mask=[1, 1, 0, 0], **{**nothing, "ref": [-1.5, -2, -np.inf, 1e30]})) == pytest.approx(found)


def test_weights_are_told_before_and_after_truncation() -> None:
    rule = replace(RULE, rollout_weight="token", rollout_high=2.0)
    log_weight = np.log([5, 0.5, 1])
    known = {"policy": log_weight, "old": log_weight, "rollout": np.zeros(3)}
    found = found_in(table_of(rule=rule, **known))
    assert found["rollout/weight_max"] == pytest.approx(5)
    assert found["rollout/weight_mean"] == pytest.approx(2.1667, abs=5e-5)
    assert found["rollout/weight_used_mean"] == pytest.approx(1.1667, abs=5e-5)
    assert found["rollout/weight_truncated_share"] == pytest.approx(1 / 3)
    assert found["ess/raw"] == pytest.approx(6.5**2 / 26.25 / 3)
    assert found["ess/truncated"] == pytest.approx(3.5**2 / 5.25 / 3)
    assert "ess/truncated" not in found_in(table_of(**known)), "the rule truncates nothing"
    assert "ess/truncated" not in found_in(table_of(rule=replace(rule, rollout_outside="mask"), **known))


def test_the_engine_is_no_part_of_the_update() -> None:
    found = found_in(table_of(policy=[-1.1, -1, -1, -1], old=[-1.1, -1, -1, -1], rollout=[-1, -1, -1, -1]))
    assert found["ratio/max"] == 1
    assert found["rollout/kl_k1"] == pytest.approx(0.025, abs=1e-6)
    assert found["rollout/ppl_ratio"] == pytest.approx((np.exp(0.05) + 1) / 2, abs=1e-6)
    assert found["rollout/mult_prob_error"] == pytest.approx((np.exp(0.1) + 3) / 4, abs=1e-6)


def test_staleness_is_told_where_versions_are_known() -> None:
    found = found_in(table_of(policy=np.zeros(4), old=np.zeros(4), step=6, versions=(3, 4)))
    assert (found["staleness/mean"], found["staleness/max"]) == (1.5, 2)


def test_entropy_and_surprisal_have_their_own_names() -> None:
    found = found_in(table_of(policy=[-1, -2, -3, -2], entropy__policy=[0.5, 0.5, 1.5, 1.5]))
    assert found["entropy/mean"] == 1
    assert found["surprisal/mean"] == 2
    assert "entropy/mean" not in found_in(table_of(policy=[-1, -2, -3, -2]))


def test_credit_and_rewards_are_told_as_ever() -> None:
    rule = replace(RULE, updates_per_batch=1)
    found = found_in(table_of(rule=rule, policy=np.full(4, -1.0), lengths=(1, 3)))
    assert found["reward/mean"] == 0.5
    assert (found["length/mean"], found["length/right"], found["length/wrong"]) == (2, 1, 3)
    assert found["group/dead_share"] == 0
    assert found["credit/push_total"] == pytest.approx(0.5)
    assert found["credit/push_up_share"] == pytest.approx(0.25)


def test_what_the_data_cannot_give_is_left_out() -> None:
    found = found_in(table_of(rule=None))
    assert set(found) == {"reward/mean", "length/mean", "length/right", "length/wrong", "group/dead_share"}
    empty = found_in(TokenTable.from_rollouts(1, [], algorithm=RULE))
    assert all(np.isfinite(value) for value in empty.values())
    assert not {"ratio/mean", "kl/k3_mean", "ess/raw", "staleness/mean", "clip/fraction"} & set(empty)
