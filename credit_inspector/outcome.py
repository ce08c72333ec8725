"""Right and wrong answers, and groups without a signal."""

from __future__ import annotations

from typing import NamedTuple

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


class DeadGroups(NamedTuple):
    """Groups of a step whose rewards are all equal."""

    best: int
    """All at the step's best reward."""
    lowest: int
    """All at its lowest."""
    between: int
    groups: int
    """All groups of two or more scored responses, dead or not."""

    @property
    def dead(self) -> int:
        """How many carry no policy signal under a baseline inside groups."""
        return self.best + self.lowest + self.between


def dead_groups(table: TokenTable) -> DeadGroups:
    """Count groups without spread. A group of one response has nothing to be compared with and is not counted.

    Where all rewards of a step are equal, they are the best ones if positive and the lowest otherwise, as in ``right``.
    """
    known = np.isfinite(table.reward) & (table.group >= 0)
    if not known.any():
        return DeadGroups(0, 0, 0, 0)
    rewards, member = table.reward[known], table.group[known]
    low, high = np.full(member.max() + 1, np.inf), np.full(member.max() + 1, -np.inf)
    np.minimum.at(low, member, rewards)
    np.maximum.at(high, member, rewards)
    several = np.bincount(member) > 1
    level = high[(low == high) & several]
    floor, ceiling = (rewards.min(), rewards.max()) if np.ptp(rewards) else (min(rewards[0], 0.0), max(rewards[0], 0.0))
    best = int(np.count_nonzero((level == ceiling) & (level > floor)))
    lowest = int(np.count_nonzero(level == floor))
    return DeadGroups(best, lowest, len(level) - best - lowest, int(several.sum()))
