"""What each reward component gives to the advantage: the field cases in numbers, and the law that parts add up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from credit_inspector.algorithm import Algorithm
from credit_inspector.components import REST, components, decompose, decompose_step
from credit_inspector.errors import MissingColumn
from credit_inspector.rollout import Rollout
from credit_inspector.table import TokenTable


def table_of(
    parts: dict[str, list[float | None]], groups: list[str | None], rewards: list[float | None] | None = None
) -> TokenTable:
    rows = list(zip(*parts.values(), strict=True))
    rollouts = [
        Rollout(
            sample_id=f"s{i}",
            group_id=groups[i],
            response_ids=np.zeros(2, np.int32),
            reward=sum(value for value in row if value is not None) if rewards is None else rewards[i],
            rewards=dict(zip(parts, row, strict=True)),
        )
        for i, row in enumerate(rows)
    ]
    return TokenTable.from_rollouts(1, rollouts)


def rule(**fields: Any) -> Algorithm:
    return Algorithm(name="t", source="t", **{"std_eps": 0.0, **fields})


def test_a_penalty_that_pushes_a_right_answer_down() -> None:
    """Base 1, 1, 1, −1 and penalties 0, −0.5, −1, 0: the third is right and has −0.1464; without the penalty it had +0.5."""
    table = table_of({"right": [1, 1, 1, -1], "penalty": [0, -0.5, -1, 0]}, ["g"] * 4)
    found = decompose_step(table, rule())
    np.testing.assert_allclose(found.advantage, [1.0247, 0.4392, -0.1464, -1.3175], atol=1e-4)
    np.testing.assert_allclose(found.contribution.sum(axis=0), found.advantage, atol=1e-12)
    assert found.of("right")[2] == pytest.approx(0.5 / 0.85391, abs=1e-4)
    assert found.of("penalty")[2] == pytest.approx(-0.625 / 0.85391, abs=1e-4)
    assert not found.idle.any()


def test_a_component_that_varies_only_between_prompts() -> None:
    found = decompose_step(table_of({"f": [2, 2, -8, -8]}, ["p", "p", "q", "q"]), rule())
    assert found.across[0] == pytest.approx(5.7735, abs=1e-4)
    assert found.inside[0] == 0
    assert found.only_across.tolist() == [True]
    assert not found.advantage.any()


def test_two_components_that_cancel() -> None:
    found = decompose_step(table_of({"f1": [1, 0, 1, 0], "f2": [0, 1, 0, 1]}, ["g"] * 4), rule())
    np.testing.assert_allclose(found.across, 0.5774, atol=1e-4)
    assert found.correlation[0, 1] == pytest.approx(-1)
    assert found.cancelling() == [("f1", "f2")]
    assert not found.contribution.any()
    assert not found.idle.any()


def test_a_constant_is_idle_under_a_group_baseline_alone() -> None:
    table = table_of({"base": [1, 0, 0, 1], "term": [-0.45] * 4}, ["g"] * 4)
    found = decompose_step(table, rule())
    np.testing.assert_allclose(found.advantage, [0.8660, -0.8660, -0.8660, 0.8660], atol=1e-4)
    assert found.idle.tolist() == [False, True]
    group = np.array([0, 0, 1, 1])
    parts = {"base": np.array([1.0, 0, 0, 1]), "term": np.array([-0.4, -0.4, 0.2, 0.2])}
    total = sum(parts.values())
    batch = decompose(parts, group, (total - total.mean()) / total.std(ddof=1), baseline="batch")
    assert batch.idle.tolist() == [False, False]
    np.testing.assert_allclose(batch.contribution.sum(axis=0), batch.advantage, atol=1e-12)


@given(
    arrays(np.float64, (3, 8), elements=st.floats(-5, 5, width=16)),
    st.lists(st.integers(0, 2), min_size=8, max_size=8),
    st.sampled_from(
        [
            {"advantage": "grpo", "std": "group"},
            {"advantage": "grpo", "std": "batch"},
            {"advantage": "grpo", "std": "none"},
            {"advantage": "grpo", "std_ddof": 0, "singleton": "reward"},
            {"advantage": "rloo"},
            {"advantage": "rloo", "singleton": "reward"},
            {"advantage": "reinforce"},
        ]
    ),
)
def test_contributions_add_up_to_the_advantage(values: np.ndarray, groups: list[int], fields: dict[str, Any]) -> None:
    table = table_of({f"f{k}": row.tolist() for k, row in enumerate(values)}, [str(g) for g in groups])
    found = decompose_step(table, rule(**{"std_eps": 1e-4, **fields}))
    scale = max(1.0, float(np.abs(found.contribution).max()))
    np.testing.assert_allclose(found.contribution.sum(axis=0), found.advantage, atol=1e-6 * scale)


def test_components_are_weighted_and_the_rest_is_named() -> None:
    table = table_of({"a": [1, None, 1], "b": [1, 1, 0]}, ["g"] * 3, rewards=[3.0, 2.0, None])
    found = components(table, rule(reward_weights={"b": 2.0}))
    np.testing.assert_allclose(found["a"], [1, 0, np.nan])
    np.testing.assert_allclose(found["b"], [2, 2, np.nan])
    assert REST not in found
    assert REST in components(table, rule())
    assert components(TokenTable.from_rollouts(1, [Rollout(sample_id="x")])) == {}


def test_what_does_not_split_says_so() -> None:
    table = table_of({"a": [1, 0]}, ["g", "g"])
    with pytest.raises(MissingColumn, match="does not split"):
        decompose_step(table, rule(whiten="tokens"))
    with pytest.raises(MissingColumn, match="no reward components"):
        decompose_step(TokenTable.from_rollouts(1, [Rollout(sample_id="x")]), rule())
