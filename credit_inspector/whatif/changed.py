"""A step with other rewards or another loss mask, everything that hangs on them with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from credit_inspector.advantages.token_rewards import SCORED, SUMMED, terminal
from credit_inspector.algorithm import Algorithm
from credit_inspector.rollout import Rollout
from credit_inspector.table import Column, Floats, TokenTable


def with_rewards(table: TokenTable, name: str, reward: Floats, rule: Algorithm, *, replaces: bool = False) -> TokenTable:
    """The step with other rewards.

    What was added stands as a component of its own beside recorded ones, for rules that take rewards one by one; with
    ``replaces`` it is the only component. Recorded token rewards get the difference where the rule places a response's reward.
    Recorded advantages of responses go: they belong to the former rewards.
    """
    rollouts = tuple(
        _rewarded(rollout, name, float(value), replaces=replaces) for rollout, value in zip(table.rollouts, reward, strict=True)
    )
    columns = dict(table.columns)
    # Without a reward before, all of the new one is added; without one now, what stands there is unknown.
    added = reward - np.where(np.isfinite(table.reward), table.reward, 0.0)
    slot = terminal(table, rule)
    rows = np.flatnonzero(slot >= 0)
    for column in (SCORED, SUMMED):
        if table.has(column):
            values = table.values(column)
            values[slot[rows]] = _rewards_at(table, values, slot[rows]) + added[rows]
            columns[column] = _like(columns[column], values)
    return replace(table, rollouts=rollouts, columns=columns)


def with_mask(table: TokenTable, mask: NDArray[np.bool_], rule: Algorithm) -> TokenTable:
    """The step with another loss mask; a recorded token reward on a response's reward token moves to the new one."""
    rollouts = tuple(
        rollout if rollout.response_ids is None else replace(rollout, loss_mask=mask[table.slice(row)])
        for row, rollout in enumerate(table.rollouts)
    )
    after = replace(table, rollouts=rollouts, loss_mask=mask, columns=dict(table.columns))
    was, now = terminal(table, rule), terminal(after, rule)
    rows = np.flatnonzero((was >= 0) & (now >= 0) & (was != now))
    for column in (SCORED, SUMMED):
        if table.has(column):
            values = table.values(column)
            moved = _rewards_at(table, values, was[rows])
            values[was[rows]] = 0.0
            values[now[rows]] = _rewards_at(table, values, now[rows]) + moved
            after.columns[column] = _like(table.columns[column], values)
    return after


def _rewards_at(table: TokenTable, values: Floats, at: NDArray[np.int64]) -> Floats:
    """What stands on these tokens: nothing recorded is no reward where the token is not trained, and unknown where it is."""
    stored = values[at]
    return np.where(np.isnan(stored) & ~table.loss_mask[at], 0.0, stored)


def _rewarded(rollout: Rollout, name: str, value: float, *, replaces: bool) -> Rollout:
    known = np.isfinite(value)
    rewards = dict(rollout.rewards)
    if rewards and replaces:
        rewards = {name: value if known else None}
    elif rewards:
        former = 0.0 if rollout.reward is None else rollout.reward
        own = f"{name} (what-if)"  # the run may have a function of that name
        rewards[own] = (rewards.get(own) or 0.0) + value - former if known else None
    return replace(rollout, reward=value if known else None, rewards=rewards, advantage=None)


def _like(column: Column, values: Floats) -> Column:
    return Column(values.astype(np.float32), column.provenance, column.note)
