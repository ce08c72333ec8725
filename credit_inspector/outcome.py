"""Right and wrong answers, and groups without a signal."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from credit_inspector.table import TokenTable


def right(table: TokenTable) -> NDArray[np.bool_]:
    """``[N]`` true for a right answer: its reward is above the middle of the rewards seen in the step.

    With a right/wrong reward these are the right ones; with a graded reward the upper half of the range. Where all rewards of
    a step are equal, they count as right when positive. A response without a reward is not right.
    """
    rewards = table.reward
    scored = np.isfinite(rewards)
    if not scored.any():
        return np.zeros(table.n_rows, np.bool_)
    low, high = rewards[scored].min(), rewards[scored].max()
    bar = 0.0 if low == high else (low + high) / 2
    return scored & (np.where(scored, rewards, bar) > bar)


def wrong(table: TokenTable) -> NDArray[np.bool_]:
    """``[N]`` true for an answer that has a reward and is not right."""
    return np.isfinite(table.reward) & ~right(table)


def dead_groups(table: TokenTable) -> tuple[int, int, int]:
    """``(all at the step's best, dead for another reason, all groups)``: a dead group's rewards are all equal.

    Such a group has no policy signal under any group baseline. Groups of one response are counted too.
    """
    best = np.nanmax(table.reward, initial=-np.inf, where=np.isfinite(table.reward))
    at_best = other = total = 0
    for number in range(int(table.group.max(initial=-1)) + 1):
        rewards = table.reward[table.group == number]
        rewards = rewards[np.isfinite(rewards)]
        total += len(rewards) > 0
        if len(rewards) and np.ptp(rewards) == 0:
            at_best += bool(rewards[0] == best)
            other += bool(rewards[0] != best)
    return at_best, other, total
