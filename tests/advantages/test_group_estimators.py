"""Group estimators: what the field reported, worked by hand, and the laws of a mean baseline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from credit_inspector.advantages import estimators
from credit_inspector.algorithm import Algorithm
from credit_inspector.errors import UsageError
from credit_inspector.rollout import Rollout
from credit_inspector.table import TokenTable

MISSING = None


def advantages(rewards: Any, groups: Any = None, name: str = "grpo", **fields: Any) -> np.ndarray:
    """``[N]`` with one token a response; all in one group unless said otherwise. eps is 0 unless given."""
    groups = ["g"] * len(rewards) if groups is None else groups
    rollouts = [
        Rollout(sample_id=str(i), group_id=g, reward=r, response_ids=np.zeros(1, np.int32))
        for i, (r, g) in enumerate(zip(rewards, groups, strict=True))
    ]
    algorithm = Algorithm(name="test", source="test", **{"std_eps": 0.0, **fields})
    return estimators[name](TokenTable.from_rollouts(0, rollouts), algorithm)


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


def test_kl_in_the_reward_is_refused() -> None:
    for name in estimators:
        with pytest.raises(UsageError, match="KL term is in the reward"):
            advantages([1, 0], name=name, kl_in_reward=0.1)


def test_no_responses() -> None:
    for name in estimators:
        assert advantages([], name=name).shape == (0,)


SCORED = st.lists(st.tuples(st.sampled_from("pqr"), st.floats(-1e6, 1e6)), min_size=1, max_size=24)
MEAN_BASELINES = [("grpo", {"std": std, "std_ddof": ddof}) for std in ("group", "batch", "none") for ddof in (0, 1)]


@pytest.mark.parametrize(("name", "fields"), [*MEAN_BASELINES, ("rloo", {})])
@settings(max_examples=40, deadline=None)
@given(scored=SCORED)
def test_advantages_of_a_group_sum_to_0(name: str, fields: dict[str, Any], scored: list[tuple[str, float]]) -> None:
    groups, rewards = zip(*scored, strict=True)
    found = advantages(rewards, groups, name=name, std_eps=1e-6, **fields)
    for group in set(groups):
        part = found[np.array(groups) == group]
        assert abs(part.sum()) <= 1e-9 * max(np.abs(part).sum(), np.abs(rewards).max(), 1)


@pytest.mark.parametrize(("name", "fields"), [("grpo", {}), ("grpo", {"std": "none"}), ("rloo", {}), ("reinforce", {})])
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
