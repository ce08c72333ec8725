"""Right, wrong, dead."""

from __future__ import annotations

import pytest

from credit_inspector.outcome import dead_groups, right, wrong


@pytest.mark.parametrize(
    ("rewards", "wanted"),
    [
        ([1, 0, 1], [True, False, True]),
        ([1, 0.1, 0], [True, False, False]),
        ([1, 1], [True, True]),
        ([0, 0], [False, False]),
        ([-1, 1, None], [False, True, False]),
        ([None], [False]),
    ],
)
def test_right(make_table, rewards: list[float | None], wanted: list[bool]) -> None:
    table = make_table([[1]] * len(rewards), rewards)
    assert right(table).tolist() == wanted
    assert wrong(table).tolist() == [r is not None and not w for r, w in zip(rewards, wanted, strict=True)]


def test_dead_groups(make_table) -> None:
    rewards = [1, 1, 0, 0, 1, 0]
    table = make_table([[1]] * 6, rewards, ["a", "a", "b", "b", "c", "c"])
    assert dead_groups(table) == (1, 1, 0, 3)


def test_a_group_of_one_is_neither_dead_nor_counted(make_table) -> None:
    table = make_table([[1]] * 4, [1, 0, None, 0], ["a", "b", "c", "c"])
    assert dead_groups(table) == (0, 0, 0, 0)
