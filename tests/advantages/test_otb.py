"""The optimal token baseline against loops over places, ReMax's greedy reward, and the least-variance claim."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from credit_inspector.advantages import estimators
from credit_inspector.algorithm import Algorithm
from credit_inspector.errors import MissingColumn, UsageError
from credit_inspector.rollout import Rollout
from credit_inspector.table import TokenTable

NAN = float("nan")


def advantage(table: TokenTable, name: str, **fields: Any) -> np.ndarray:
    return estimators[name](table, Algorithm(name="test", source="test", advantage=name, **fields))


def table_of(masks: list[list[bool]], groups: list[str | None], seed: int = 0, old: str = "old") -> TokenTable:
    rng = np.random.default_rng(seed)
    rollouts = []
    for i, (mask, group) in enumerate(zip(masks, groups, strict=True)):
        logits = rng.standard_normal((len(mask), 5))
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        columns = {
            f"logprob/{old}": np.log(p[:, 0]),
            f"sum_p2/{old}": (p**2).sum(1),
            "reward/token": rng.standard_normal(len(mask)),
        }
        rollouts.append(
            Rollout(
                sample_id=str(i),
                group_id=group,
                response_ids=np.zeros(len(mask), np.int32),
                loss_mask=np.array(mask, bool),
                columns={name: values.astype(np.float32) for name, values in columns.items()},
            )
        )
    return TokenTable.from_rollouts(0, rollouts)


def looped(table: TokenTable, *, by_trained: bool, zero_tail: bool, alone_keeps: bool) -> np.ndarray:
    """The definition, token by token: no arrays over the batch, no sorting."""
    values = {name: table.values(name) for name in table.columns}
    answer = np.full(table.n_tokens, NAN)
    trained = [[t for t in range(table.offsets[i], table.offsets[i + 1]) if table.loss_mask[t]] for i in range(table.n_rows)]
    weight, returns, place = {}, {}, {}
    for i, row in enumerate(trained):
        for k, t in enumerate(row):
            so_far = [1 - 2 * np.exp(values["logprob/old"][s]) + values["sum_p2/old"][s] for s in row[: k + 1]]
            weight[t], returns[t] = sum(so_far), sum(values["reward/token"][s] for s in row[k:])
            place[t] = k if by_trained else t - table.offsets[i]
    for i, row in enumerate(trained):
        mates = [j for j in range(table.n_rows) if table.group[j] == table.group[i] and trained[j]]
        others = max((len(trained[j]) for j in mates if j != i), default=0)
        for t in row:
            same = [s for j in mates for s in trained[j] if place[s] == place[t]]
            baseline = sum(returns[s] * weight[s] for s in same) / (sum(weight[s] for s in same) + 1e-8)
            if zero_tail and len(row) > others and place[t] >= others:
                baseline = 0.0
            if len(mates) == 1:
                baseline = 0.0 if alone_keeps else returns[t]
            answer[t] = returns[t] - baseline
    return answer


@given(
    masks=st.lists(st.lists(st.booleans(), max_size=6), min_size=1, max_size=6),
    groups=st.lists(st.sampled_from("ab"), min_size=6, max_size=6),
    switches=st.tuples(st.booleans(), st.booleans()),
    seed=st.integers(0, 9),
)
@pytest.mark.parametrize("name", ["otb", "tir_otb"])
def test_it_is_the_definition(name: str, masks: list[list[bool]], groups: list[str], switches: Any, seed: int) -> None:
    zero_tail, alone_keeps = switches
    table = table_of(masks, groups[: len(masks)], seed)
    ours = advantage(table, name, settings={"handle_zero_tail": float(zero_tail)}, singleton="reward" if alone_keeps else "zero")
    twin = looped(table, by_trained=name == "tir_otb", zero_tail=zero_tail, alone_keeps=alone_keeps)
    np.testing.assert_allclose(ours, twin, atol=1e-6)


def test_tool_output_does_not_shift_a_response_where_trained_tokens_are_counted() -> None:
    straight, shifted = [True, True, True], [False, False, True, True, True]
    both = [table_of([straight, mask], ["a", "a"]) for mask in (straight, shifted)]
    for name in ("logprob/old", "sum_p2/old", "reward/token"):
        at = both[1].loss_mask
        both[1].columns[name].values[at] = both[0].columns[name].values
    plain, later = (advantage(table, "tir_otb")[table.loss_mask] for table in both)
    np.testing.assert_array_equal(plain, later)
    assert not np.allclose(advantage(both[1], "otb")[both[1].loss_mask], plain)


def test_a_response_without_a_group_has_none_and_an_unknown_weight_has_no_say() -> None:
    table = table_of([[True] * 3] * 3, ["a", "a", None])
    whole = advantage(table, "otb")
    assert np.isnan(whole[6:]).all()
    table.columns["sum_p2/old"].values[1] = NAN
    found = advantage(table, "otb")
    np.testing.assert_array_equal(np.isnan(found), [False, True, True, False, False, False, True, True, True])
    np.testing.assert_array_equal(found[[0, 3]], whole[[0, 3]])
    np.testing.assert_allclose(found[4:6], 0, atol=1e-6)


def test_the_policy_stands_in_where_one_update_is_taken() -> None:
    table, twin = (table_of([[True] * 3] * 2, ["a", "a"], old=old) for old in ("policy", "old"))
    np.testing.assert_array_equal(advantage(table, "otb"), advantage(twin, "otb"))
    with pytest.raises(MissingColumn, match="logprob/old is not there, and with 4 updates"):
        advantage(table, "otb", updates_per_batch=4)
    del twin.columns["sum_p2/old"]
    with pytest.raises(MissingColumn, match="sum_p2/old is not there, nor sum_p2/policy"):
        advantage(twin, "otb")


def test_what_would_change_its_weights_is_refused() -> None:
    with pytest.raises(UsageError, match="scales its weights"):
        advantage(table_of([[True]] * 2, ["a", "a"]), "otb", rollout_weight="token")


def test_no_other_baseline_leaves_less_variance() -> None:
    """Two places with their own score lengths: Σ_i W (G − b)² is least at the baseline taken."""
    table = table_of([[True] * 4] * 5, ["a"] * 5)
    advantages = advantage(table, "otb")
    returns = advantage(table, "reinforce_pp")
    p2, p = table.values("sum_p2/old"), np.exp(table.values("logprob/old"))
    weight = np.cumsum((1 - 2 * p + p2).reshape(5, 4), axis=1)
    left = (weight * advantages.reshape(5, 4) ** 2).sum(0)
    for shift in (-0.01, 0.01):
        baseline = (returns - advantages).reshape(5, 4) + shift
        assert ((weight * (returns.reshape(5, 4) - baseline) ** 2).sum(0) > left).all()


# ── ReMax ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "fields",
    [
        {"extra": {"reward_baselines": 0.25}},
        {"extra": {"reward_baseline": np.float32(0.25), "reward_baselines": 9.0}},
        {"extra": {"reward_baseline": "none"}, "rewards": {"greedy": 0.25}},
        {"rewards": {"greedy": None, "baseline": 0.25}},
    ],
)
def test_the_greedy_reward_is_found_by_its_names(fields: Any) -> None:
    with_it = Rollout(sample_id="0", response_ids=np.zeros(2, np.int32), reward=1.0, **fields)
    without = Rollout(sample_id="1", response_ids=np.zeros(1, np.int32), reward=1.0)
    found = advantage(TokenTable.from_rollouts(0, [with_it, without]), "remax", gamma=0.5)
    np.testing.assert_array_equal(found, [0.75, 0.75, NAN])
