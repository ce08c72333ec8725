"""The order in which responses are worth reading."""

from __future__ import annotations

from credit_inspector.views.response import ranked


def test_a_response_without_a_reward_comes_last_and_not_as_a_zero(make_table) -> None:
    assert ranked(make_table([[1]] * 4, [-1.0, None, 2.0, -3.0])) == [2, 0, 3, 1]
