"""Group estimators: what the field reported, worked by hand, and the laws of a mean baseline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from credit_inspector.advantages import estimators
from credit_inspector.algorithm import Algorithm
from credit_inspector.errors import MissingColumn, UsageError
from credit_inspector.rollout import Rollout
from credit_inspector.table import TokenTable

MISSING = None
SCALAR = ("grpo", "rloo", "reinforce", "opo", "gpg", "grpo_passk", "maxrl", "gdpo")
NEMO: dict[str, Any] = {"baseline": "leave-one-out", "std": "leave-one-out"}


def advantages(rewards: Any, groups: Any = None, name: str = "grpo", lengths: Any = None, **fields: Any) -> np.ndarray:
    """``[N]`` the first token's; one token a response and all in one group unless said otherwise. eps is 0 unless given."""
    groups = ["g"] * len(rewards) if groups is None else groups
    lengths = [1] * len(rewards) if lengths is None else lengths
    rollouts = [
        Rollout(sample_id=str(i), group_id=g, reward=r, response_ids=np.zeros(n, np.int32), rewards={"only": r})
        for i, (r, g, n) in enumerate(zip(rewards, groups, lengths, strict=True))
    ]
    table = TokenTable.from_rollouts(0, rollouts)
    algorithm = Algorithm(name="test", source="test", advantage=name, **{"std_eps": 0.0, **fields})
    return estimators[name](table, algorithm)[table.offsets[:-1]]


def test_a_group_with_one_reward_gives_0_and_not_nan() -> None:
    groups = [*"aaaabbbbcccc"]
    found = advantages([1, 1, 1, 1, 0, 0, 0, 0, 1, 0, 1, 0], groups)
    np.testing.assert_allclose(found, [0] * 8 + [0.8660, -0.8660, 0.8660, -0.8660], atol=5e-5)


def test_equal_rewards_that_no_float_can_average_exactly_give_exactly_0() -> None:
    for name, fields in (("grpo", {}), ("grpo", {"std": "none"}), ("rloo", {})):
        np.testing.assert_array_equal(advantages([0.1] * 3, name=name, **fields), [0, 0, 0])


def test_groups_come_from_ids_and_not_from_places() -> None:
    np.testing.assert_array_equal(advantages([1, 0, 1, 0], ["p", "q", "p", "q"]), [0, 0, 0, 0])


@pytest.mark.parametrize(
    ("name", "fields", "right", "wrong"),
    [
        ("grpo", {"std": "none"}, 0.6250, -0.3750),
        ("grpo", {"std_ddof": 1}, 1.2076, -0.7246),
        ("grpo", {"std_ddof": 0}, 1.2910, -0.7746),
        ("rloo", {}, 0.7143, -0.4286),
        ("reinforce", {}, 1.0, 0.0),
    ],
)
def test_the_normalisers_that_people_compare(name: str, fields: dict[str, Any], right: float, wrong: float) -> None:
    found = advantages([1, 1, 1, 0, 0, 0, 0, 0], name=name, **fields)
    np.testing.assert_allclose(found, [right] * 3 + [wrong] * 5, atol=5e-5)


def test_a_missing_reward_is_missing_and_leaves_the_baseline_alone() -> None:
    np.testing.assert_allclose(advantages([1, 0, MISSING, 1]), [0.5774, -1.1547, np.nan, 0.5774], atol=5e-5)
    np.testing.assert_array_equal(advantages([MISSING, MISSING, 1]), [np.nan, np.nan, 0])
    np.testing.assert_array_equal(advantages([float("inf"), 1, 1]), [np.nan, 0, 0])


def test_a_response_without_a_group_has_no_advantage() -> None:
    found = advantages([1, 0, 1, 0], ["p", "p", None, None])
    np.testing.assert_allclose(found, [0.7071, -0.7071, np.nan, np.nan], atol=5e-5)
    np.testing.assert_array_equal(advantages([1, 0], [None, None], name="reinforce"), [1, 0])


def test_a_group_of_one() -> None:
    assert advantages([0.7]) == [0]
    assert advantages([0.7], name="rloo") == [0]
    assert advantages([0.7], singleton="reward") == [0.7]
    assert advantages([0.7], singleton="reward", std_eps=1e-6) == pytest.approx(0.7 / (1 + 1e-6))
    assert advantages([0.7], singleton="reward", std="none") == [0.7]
    assert advantages([0.7], singleton="reward", name="rloo") == [0.7]


def test_the_batch_deviation_spans_groups_of_different_level() -> None:
    found = advantages([2, 2, -8, -6], ["p", "p", "q", "q"], std="batch")
    np.testing.assert_allclose(found, np.array([0, 0, -1, 1]) / np.std([2, 2, -8, -6], ddof=1))
    np.testing.assert_array_equal(advantages([3.0], std="batch"), [0])


def test_no_responses() -> None:
    for name in SCALAR:
        assert advantages([], name=name).shape == (0,)


# ── baselines and deviations of others and of the batch ─────────────────────────────────────────────────────────────


def test_where_the_others_are_equal_nemo_leaves_the_distance_as_it_is() -> None:
    found = advantages([1, 0, 0, 0], **NEMO)
    np.testing.assert_allclose(found, [1, *[-1 / np.sqrt(3)] * 3])
    np.testing.assert_array_equal(advantages([1, 0], **NEMO, std_eps=1e-6), [1, -1])
    outlier = advantages([1e9, 0.1, 0.1, 0.1], **NEMO, std_eps=1e-6)
    assert outlier[0] == pytest.approx(1e9 - 0.1), "rounding is no spread"


def test_the_batch_is_a_baseline_without_groups() -> None:
    rewards = [1.0, 0.0, 0.1, 1.0]
    expected = (np.array(rewards) - np.mean(rewards)) / (np.std(rewards, ddof=1) + 1e-5)
    for groups in ([None] * 4, [*"ppqq"], [*"pqrs"]):
        found = advantages(rewards, groups, baseline="batch", std="batch", std_eps=1e-5)
        np.testing.assert_allclose(found, expected)
    np.testing.assert_array_equal(advantages([0.1] * 3, [None] * 3, baseline="batch", std="batch"), [0, 0, 0])


def test_a_group_without_spread_is_never_divided_by_its_own_deviation() -> None:
    found = advantages([1, 1, 0, 2], [*"ppqq"], baseline="batch", std="group", std_eps=1e-5)
    np.testing.assert_allclose(found, [0, 0, -1 / (np.sqrt(2) + 1e-5), 1 / (np.sqrt(2) + 1e-5)])


def test_dropped_groups_are_not_in_the_batch() -> None:
    rewards, groups = [9, 9, 1, 0, 4], [*"ppqqr"]
    kept = advantages(rewards, groups, std="batch")
    dropped = advantages(rewards, groups, std="batch", drop_dead_groups=True)
    np.testing.assert_allclose(dropped, np.array([0, 0, 0.5, -0.5, 0]) / np.std([1, 0, 4], ddof=1))
    assert not np.allclose(kept, dropped)
    np.testing.assert_array_equal(advantages([1, 0], std="batch", drop_dead_groups=True), advantages([1, 0], std="batch"))


# ── the other ways to compare with a group ──────────────────────────────────────────────────────────────────────────


def test_opo_weighs_the_baseline_by_length() -> None:
    found = advantages([1, 0, 0.5], name="opo", lengths=[2, 6, 2])
    np.testing.assert_allclose(found, np.array([1, 0, 0.5]) - 3 / 10)
    np.testing.assert_array_equal(advantages([0.1] * 3, name="opo", lengths=[1, 7, 3]), [0, 0, 0])


def test_opo_counts_trained_tokens_only() -> None:
    rollouts = [
        Rollout(sample_id="a", group_id="g", reward=1.0, response_ids=np.zeros(9, np.int32), loss_mask=np.arange(9) < 2),
        Rollout(sample_id="b", group_id="g", reward=0.0, response_ids=np.zeros(6, np.int32)),
    ]
    found = estimators["opo"](TokenTable.from_rollouts(0, rollouts), Algorithm(name="t", source="t", advantage="opo"))
    assert found[0] == pytest.approx(1 - 2 / 8)


def test_gpg_scales_by_how_few_responses_have_a_reward() -> None:
    rewards, groups = [1, 0, 0, 0, 0, 0], [*"pppqqq"]
    np.testing.assert_allclose(advantages(rewards, groups, name="gpg"), 6 * np.array([2 / 3, -1 / 3, -1 / 3, 0, 0, 0]))
    halved = advantages(rewards, groups, name="gpg", settings={"f_norm": 2.0})
    np.testing.assert_allclose(halved, advantages(rewards, groups, name="gpg") / 2)
    np.testing.assert_array_equal(advantages([0, 0], name="gpg"), [0, 0])


def test_passk_pays_only_a_clear_best() -> None:
    found = advantages([1, 5, 3, 2, 2], [*"pppqq"], name="grpo_passk", std="none")
    np.testing.assert_array_equal(found, [0, 2, 0, 0, 0])
    np.testing.assert_allclose(advantages([1, 5, 3], name="grpo_passk"), np.array([0, 2, 0]) / np.std([1, 5, 3], ddof=1))
    np.testing.assert_array_equal(advantages([MISSING, 5, 3], name="grpo_passk", std="none"), [np.nan, 2, 0])


def test_maxrl_pays_a_rare_success_most() -> None:
    rewards, groups = [1, 0, 0, 0, 1, 1, 1, 0, 0, 0], [*"ppppqqqqrr"]
    np.testing.assert_allclose(advantages(rewards, groups, name="maxrl"), [3, -1, -1, -1, *[1 / 3] * 3, -1, 0, 0])
    np.testing.assert_array_equal(advantages([-1, -2], name="maxrl"), [0, 0])
    np.testing.assert_allclose(advantages([1, 0], name="maxrl", std_eps=0.5), [0.5, -0.5])


def by_function(values: list[dict[str, float | None]], groups: str, **fields: Any) -> np.ndarray:
    rollouts = [
        Rollout(sample_id=str(i), group_id=g, response_ids=np.zeros(1, np.int32), rewards=each)
        for i, (each, g) in enumerate(zip(values, groups, strict=True))
    ]
    rule = Algorithm(name="t", source="t", advantage="gdpo", **{"std_eps": 0.0, **fields})
    return estimators["gdpo"](TokenTable.from_rollouts(0, rollouts), rule)


def test_gdpo_lets_no_reward_function_drown_another() -> None:
    values: list[dict[str, float | None]] = [{"a": 100, "b": 0}, {"a": 0, "b": 1}, {"a": 0, "b": 0}]
    z = np.array([2, -1, -1]) / np.sqrt(3)
    np.testing.assert_allclose(by_function(values, "ggg"), z + np.roll(z, 1), atol=1e-12)
    np.testing.assert_allclose(by_function(values, "ggg", reward_weights={"a": 1.0, "b": 0.5}), z + np.roll(z, 1) / 2, atol=1e-12)
    np.testing.assert_allclose(by_function(values, "ggg", reward_weights={"b": 2.0}), 2 * np.roll(z, 1))


def test_gdpo_leaves_out_what_a_function_did_not_score() -> None:
    values: list[dict[str, float | None]] = [{"a": 1, "b": MISSING}, {"a": 0, "b": 1}, {"b": 0}, {"a": MISSING}, {"a": 0, "b": 0}]
    a, b = np.array([2, -1, -1]) / np.sqrt(3), np.array([2, -1, -1]) / np.sqrt(3)
    np.testing.assert_allclose(by_function(values, "ggggg"), [a[0], a[1] + b[0], b[1], np.nan, a[2] + b[2]])


def test_gdpo_says_which_reward_function_is_missing() -> None:
    with pytest.raises(MissingColumn, match="reward_weights names 'c', which was not recorded; wanted one of a, b"):
        by_function([{"a": 1, "b": 0}], "g", reward_weights={"a": 1.0, "c": 1.0})
    with pytest.raises(MissingColumn, match="no reward function's own values were recorded"):
        by_function([{}], "g")
    with pytest.raises(UsageError, match="gdpo reads each reward function's own values"):
        by_function([{"a": 1}], "g", kl_in_reward=0.1)


# ── the KL term in the reward ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("entered", ["scalar", "token-rewards"])
def test_the_kl_of_a_response_is_taken_off_before_the_group_is_looked_at(entered: Any) -> None:
    """KL sums of 3 and 1 nats over trained tokens; what is masked may be anything."""
    old = ([-1, -2, np.nan], [-1, np.inf, -1])
    ref = ([-2, -4, 9], [-1.5, 1, -1.5])
    rollouts = [
        Rollout(
            sample_id=str(i),
            group_id="g",
            reward=1.0 - i,
            response_ids=np.zeros(3, np.int32),
            loss_mask=np.array(mask, bool),
            columns={"logprob/old": np.array(old[i], np.float32), "logprob/ref": np.array(ref[i], np.float32)},
        )
        for i, mask in enumerate(([1, 1, 0], [1, 0, 1]))
    ]
    table = TokenTable.from_rollouts(0, rollouts)
    rule = Algorithm(name="t", source="t", advantage="rloo", kl_in_reward=0.25, kl_in_reward_as=entered)
    found = table.mean_by_row(table.trained(estimators["rloo"](table, rule)))
    np.testing.assert_allclose(found, [0.5, -0.5])
    bare = TokenTable.from_rollouts(0, [replace(rollout, columns={}) for rollout in rollouts])
    with pytest.raises(MissingColumn):
        estimators["rloo"](bare, rule)


def test_recorded_token_rewards_with_the_kl_in_them_are_summed() -> None:
    """No log-probs are needed, and what stands on a token that is not trained counts too, as verl sums it."""
    rollouts = [
        Rollout(
            sample_id=str(i),
            group_id="g",
            reward=9.0,
            response_ids=np.zeros(2, np.int32),
            loss_mask=np.array([True, False]),
            columns={"reward/token": np.array(values, np.float32)},
        )
        for i, values in enumerate([(-0.25, 1.0), (0.5, np.nan)])
    ]
    table = TokenTable.from_rollouts(0, rollouts)
    rule = Algorithm(name="t", source="t", advantage="reinforce", kl_in_reward=0.1)
    np.testing.assert_array_equal(estimators["reinforce"](table, rule)[table.offsets[:-1]], [0.75, 0.5])


# ── laws ────────────────────────────────────────────────────────────────────────────────────────────────────────────


SCORED = st.lists(st.tuples(st.sampled_from("pqr"), st.floats(-1e6, 1e6)), min_size=1, max_size=24)
GRID = st.lists(st.tuples(st.sampled_from("pqr"), st.integers(-2000, 2000).map(lambda n: n / 8)), min_size=1, max_size=24)
MEAN_BASELINES = [("grpo", {"std": std, "std_ddof": ddof}) for std in ("group", "batch", "none") for ddof in (0, 1)]


@pytest.mark.parametrize(("name", "fields"), [*MEAN_BASELINES, ("rloo", {}), ("gpg", {}), ("gdpo", {})])
@settings(max_examples=40, deadline=None)
@given(scored=SCORED)
def test_advantages_of_a_group_sum_to_0(name: str, fields: dict[str, Any], scored: list[tuple[str, float]]) -> None:
    groups, rewards = zip(*scored, strict=True)
    found = advantages(rewards, groups, name=name, std_eps=1e-6, **fields)
    for group in set(groups):
        part = found[np.array(groups) == group]
        assert abs(part.sum()) <= 1e-9 * max(np.abs(part).sum(), np.abs(rewards).max(), 1)


OF_THE_GROUP: list[tuple[str, dict[str, Any]]] = [
    *(("grpo", {"std": std}) for std in ("group", "leave-one-out", "none")),
    ("grpo", NEMO),
    *((name, {}) for name in ("rloo", "reinforce", "opo", "maxrl", "grpo_passk", "gdpo")),
]


@pytest.mark.parametrize(("name", "fields"), OF_THE_GROUP)
@settings(max_examples=40, deadline=None)
@given(scored=SCORED, order=st.randoms())
def test_a_group_alone_equals_the_group_among_others(
    name: str, fields: dict[str, Any], scored: list[tuple[str, float]], order: Any
) -> None:
    order.shuffle(scored)
    groups, rewards = zip(*scored, strict=True)
    among = advantages(rewards, groups, name=name, std_eps=1e-6, **fields)
    for group in set(groups):
        rows = [i for i, g in enumerate(groups) if g == group]
        alone = advantages([rewards[i] for i in rows], name=name, std_eps=1e-6, **fields)
        np.testing.assert_array_equal(among[rows], alone)


@settings(max_examples=40, deadline=None)
@given(scored=SCORED, shift=st.sampled_from([-0.45, 1.0, 64.0]))
def test_a_constant_on_all_rewards_of_a_group_changes_nothing(scored: list[tuple[str, float]], shift: float) -> None:
    groups, rewards = zip(*[(g, round(r)) for g, r in scored], strict=True)
    moved = [r + shift for r in rewards]
    first, second = (advantages(r, groups, std_eps=1e-4) for r in (rewards, moved))
    np.testing.assert_allclose(first, second, atol=1e-6)


def test_nemo_by_default_does_not_sum_to_0() -> None:
    assert advantages([1, 0, 0, 0], **NEMO).sum() == pytest.approx(1 - np.sqrt(3))


@settings(max_examples=40, deadline=None)
@given(scored=GRID)
def test_the_spread_of_the_others_is_what_numpy_gives_without_the_response(scored: list[tuple[str, float]]) -> None:
    groups, rewards = (list(part) for part in zip(*scored, strict=True))
    found = advantages(rewards, groups, **NEMO, std_eps=1e-6)
    for i, (group, reward) in enumerate(scored):
        others = [r for j, (g, r) in enumerate(scored) if g == group and j != i]
        expected = reward - np.mean(others) if others else 0.0
        if len(set(others)) > 1:
            expected /= np.std(others, ddof=1) + 1e-6
        assert found[i] == pytest.approx(expected, rel=1e-9, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(scored=GRID, data=st.data())
def test_length_weighted_advantages_of_opo_sum_to_0(scored: list[tuple[str, float]], data: st.DataObject) -> None:
    groups, rewards = (np.array(part) for part in zip(*scored, strict=True))
    lengths = np.array(data.draw(st.lists(st.integers(1, 9), min_size=len(scored), max_size=len(scored))))
    found = advantages(rewards, groups, name="opo", lengths=lengths)
    for group in set(groups):
        assert (lengths * found)[groups == group].sum() == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize("name", SCALAR)
@settings(max_examples=25, deadline=None)
@given(scored=GRID, order=st.randoms(), data=st.data())
def test_the_order_of_rows_changes_nothing(name: str, scored: list[tuple[str, float]], order: Any, data: Any) -> None:
    lengths = data.draw(st.lists(st.integers(1, 4), min_size=len(scored), max_size=len(scored)))
    rows = list(range(len(scored)))
    order.shuffle(rows)
    groups, rewards = zip(*scored, strict=True)
    first = advantages(rewards, groups, name=name, lengths=lengths)
    second = advantages([rewards[i] for i in rows], [groups[i] for i in rows], name, [lengths[i] for i in rows])
    np.testing.assert_allclose(second, first[rows], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", SCALAR)
def test_masked_tokens_change_nothing(name: str) -> None:
    def found(padding: int) -> np.ndarray:
        rollouts = [
            Rollout(
                sample_id=str(i),
                group_id="g",
                reward=r,
                rewards={"only": r},
                response_ids=np.zeros(n + padding, np.int32),
                loss_mask=np.arange(n + padding) < n,
            )
            for i, (r, n) in enumerate([(1.0, 2), (0.0, 3), (0.5, 1)])
        ]
        table = TokenTable.from_rollouts(0, rollouts)
        return estimators[name](table, Algorithm(name="t", source="t", advantage=name))[table.loss_mask]

    np.testing.assert_array_equal(found(0), found(5))


SCALES = [
    ("grpo", {}, 1),
    ("grpo", {"std": "batch"}, 1),
    ("grpo", {"baseline": "batch", "std": "batch"}, 1),
    ("grpo_passk", {}, 1),
    ("gdpo", {}, 1),
    ("maxrl", {}, 1),
    ("grpo", {"std": "none"}, 8),
    ("rloo", {}, 8),
    ("opo", {}, 8),
    ("gpg", {}, 8),
    ("grpo_passk", {"std": "none"}, 8),
]


@pytest.mark.parametrize(("name", "fields", "power"), SCALES)
@settings(max_examples=25, deadline=None)
@given(scored=GRID)
def test_rewards_times_8_scale_advantages_or_change_nothing(
    name: str, fields: dict[str, Any], power: int, scored: list[tuple[str, float]]
) -> None:
    groups, rewards = zip(*scored, strict=True)
    first = advantages(rewards, groups, name=name, **fields)
    second = advantages([8 * r for r in rewards], groups, name=name, **fields)
    np.testing.assert_allclose(second, power * first, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("name", "fields", "reaches"),
    [
        *((name, fields, False) for name, fields in OF_THE_GROUP),
        ("grpo", {"std": "batch"}, True),
        ("grpo", {"baseline": "batch", "std": "none"}, True),
        ("gpg", {}, True),
    ],
)
def test_whether_another_group_reaches_over(name: str, fields: dict[str, Any], reaches: bool) -> None:
    groups = [*"ppppqq"]
    first = advantages([1, 0, 2, 1, 0, 0], groups, name=name, **fields)
    second = advantages([1, 0, 2, 1, 5, 9], groups, name=name, **fields)
    assert np.array_equal(first[:4], second[:4]) is not reaches
