"""Length penalties against numbers worked out by hand and against the trainers' own words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from credit_inspector.algorithm import Algorithm
from credit_inspector.errors import MissingColumn, UsageError
from credit_inspector.rollout import Rollout
from credit_inspector.shaping import Change, ShapingInputs, wanted
from credit_inspector.table import TokenTable

RULE = Algorithm(name="t", source="t")


def table_of(
    lengths: list[int], rewards: list[float | None], groups: list[str | None] | None = None, **fields: Any
) -> TokenTable:
    rollouts = [
        Rollout(
            sample_id=f"s{i}",
            group_id="g" if groups is None else groups[i],
            response_ids=np.zeros(lengths[i], np.int32),
            reward=rewards[i],
            **{name: values[i] for name, values in fields.items()},
        )
        for i in range(len(lengths))
    ]
    return TokenTable.from_rollouts(1, rollouts)


def change(table: TokenTable, name: str, is_right: list[bool] | None = None, /, **settings: Any) -> Change:
    asked = wanted(name, settings)
    assert asked is not None
    correct = np.array(is_right if is_right is not None else [False] * table.n_rows)
    return asked(ShapingInputs(table=table, algorithm=RULE, right=correct, named=name))


def reward(*arguments: Any, **settings: Any) -> np.ndarray:
    found = change(*arguments, **settings).reward
    assert found is not None
    return found


def test_linear_penalty_counts_trained_tokens_and_spares_the_unscored() -> None:
    masks = [np.array([True, False, True]), None, None]
    table = table_of([3, 4, 2], [1.0, 0.0, None], loss_mask=masks)
    np.testing.assert_allclose(reward(table, "length_penalty", alpha=0.1), [0.8, -0.4, np.nan])
    np.testing.assert_allclose(reward(table, "length_penalty", [True, False, False], alpha=0.1, only="right"), [0.8, 0, np.nan])


def test_overlong_field_case() -> None:
    """Cap 100, buffer 20: 60, 90, 100 tokens give 0, −0.5, −1; beyond the cap only the unfloored form goes on."""
    table = table_of([60, 90, 100, 120], [1.0, 1.0, 1.0, -1.0])
    np.testing.assert_allclose(reward(table, "overlong", max=100.0, buffer=20.0), [1, 0.5, 0, -2])
    np.testing.assert_allclose(reward(table, "overlong", max=100.0, buffer=20.0, floor=False), [1, 0.5, 0, -3])


@pytest.mark.parametrize("floor", [True, False])
def test_overlong_against_the_trainers_formulas(floor: bool) -> None:
    lengths = list(range(60, 131))
    ours = reward(table_of(lengths, [0.0] * len(lengths)), "overlong", max=110.0, buffer=30.0, factor=0.7, floor=floor)
    over = [length - 80 for length in lengths]
    if floor:
        theirs = [-min(each, 30) / 30 * 0.7 if each > 0 else 0.0 for each in over]
    else:
        theirs = [min(-each / 30 * 0.7, 0) for each in over]
    np.testing.assert_allclose(ours, theirs, atol=1e-12)


@pytest.mark.parametrize("settings", [{}, {"max": 100.0}, {"max": 10.0, "buffer": 20.0}, {"max": -1.0, "buffer": 5.0}])
def test_overlong_says_what_it_needs(settings: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=r"overlong\.(max|buffer)"):
        change(table_of([3], [1.0]), "overlong", **settings)


def test_kimi_in_groups_of_equal_length_and_without_a_group() -> None:
    table = table_of([5, 5, 9, 1, 7], [1.0] * 5, ["a", "a", "b", "b", None])
    np.testing.assert_allclose(reward(table, "kimi_length", [True] * 5), [1, 1, 0.5, 1.5, 1])


def test_prime_penalty_against_its_own_words_in_torch() -> None:
    out, prompt, tool = [4, 6, 2], [3, 5, 1], [2, 0, 4]
    masks = [np.array([True] * 4 + [False] * 2), np.ones(6, bool), np.array([True, False, False, True, False, False])]
    table = table_of(
        [a + b for a, b in zip(out, tool, strict=True)],
        [1.0, 0.0, 0.5],
        prompt_ids=[np.zeros(n, np.int32) for n in prompt],
        loss_mask=masks,
    )
    rewards = torch.tensor([1.0, 0.0, 0.5], dtype=torch.float64)
    output, turns = torch.tensor(out, dtype=torch.float64), torch.tensor([1.0, 1.0, 2.0])
    entered = torch.tensor(prompt, dtype=torch.float64) + torch.tensor(tool)
    share = (
        0.3 * (output / output.max().clamp(min=1))
        + 0.2 * (entered / entered.max().clamp(min=1))
        + 0.1 * (turns / turns.max().clamp(min=1))
    )
    ours = reward(table, "prime_length", output=0.3, input=0.2, turns=0.1)
    np.testing.assert_allclose(ours, (rewards - rewards.mean() * share).numpy(), atol=1e-12)


def test_concise_replaces_the_reward() -> None:
    found = change(table_of([10, 40, 10], [5.0, 5.0, None]), "concise", [True, True, False], alpha=0.5, length=20.0)
    np.testing.assert_allclose(found.reward, [0.75, 0.5, np.nan])
    assert found.replaces


def test_stop_properly_scales_or_sets_truncated_rewards() -> None:
    table = table_of([1, 1, 1], [1.0, 0.8, None], truncated=[False, True, True])
    np.testing.assert_allclose(reward(table, "stop_properly", coef=0.25), [1, 0.2, np.nan])
    np.testing.assert_allclose(reward(table, "stop_properly", coef=-0.5), [1, -0.5, np.nan])
    with pytest.raises(UsageError, match="0 to 1"):
        change(table, "stop_properly", coef=1.5)
    with pytest.raises(MissingColumn, match="truncated"):
        change(table_of([1], [1.0]), "stop_properly")


def test_constants() -> None:
    table = table_of([1, 1, 1], [1.0, 0.0, None])
    np.testing.assert_allclose(reward(table, "reward_shift", by=-0.45), [0.55, -0.45, np.nan])
    np.testing.assert_allclose(reward(table, "reward_scale", by=2.0), [2, 0, np.nan])
    np.testing.assert_allclose(reward(table, "outcome_reward", [True, False, False], right=3.0, wrong=-1.0), [3, -1, np.nan])


@pytest.mark.parametrize("name", ["length_penalty", "overlong", "kimi_length", "prime_length", "concise"])
def test_a_response_whose_tokens_are_not_known_has_no_length_and_so_no_reward(name: str) -> None:
    """Length 0 would make it the shortest of its group, and pay it."""
    known = [
        Rollout(sample_id=str(i), group_id="g", response_ids=np.zeros(n, np.int32), reward=1.0) for i, n in enumerate((4, 8))
    ]
    unknown = Rollout(sample_id="text", group_id="g", response="a b", reward=1.0)
    settings = {"overlong": {"max": 10, "buffer": 5}, "concise": {"length": 10}}.get(name, {})
    alone = change(TokenTable.from_rollouts(0, known), name, [True, True], **settings).reward
    beside = change(TokenTable.from_rollouts(0, [*known, unknown]), name, [True, True, True], **settings).reward
    np.testing.assert_allclose(beside, [*alone, np.nan])
