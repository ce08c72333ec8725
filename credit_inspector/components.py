"""What each reward component does to the advantage.

A reward is often a sum: right or wrong, a length penalty, a format bonus. A baseline takes from each component its own
mean, so that an advantage is the sum of what its components give, all divided by the deviation of the *total*. Example,
a soft overlong penalty beside right and wrong, one group (GRPO, ddof 1)::

    right      = [1,      1,      1,      -1]
    penalty    = [0,     -0.5,   -1,       0]
    advantage  = [1.025,  0.439, -0.146,  -1.318]     # the third is right, and pushed down
    of right   = [0.586,  0.586,  0.586,  -1.757]
    of penalty = [0.439, -0.146, -0.732,   0.439]

Letters: ``K`` components, ``N`` responses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from credit_inspector.advantages import estimators
from credit_inspector.algorithm import Algorithm
from credit_inspector.errors import MissingColumn
from credit_inspector.table import Floats, TokenTable

REST = "(rest)"
"""The component that holds what of a reward its recorded components do not add up to."""

_BASELINES: Mapping[str, str] = {"rloo": "leave-one-out", "reinforce": "none"}
_CLOSE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Decomposition:
    """Reward components and what each gives to the advantages; NaN where a response has no advantage."""

    names: tuple[str, ...]
    reward: Floats
    """``[K, N]`` weighted values; they add up to the reward."""
    centred: Floats
    """``[K, N]`` less the baseline, before any deviation."""
    contribution: Floats
    """``[K, N]`` to the advantage; they add up to it. 0 in a group whose total has no spread, whatever its components do."""
    advantage: Floats
    """``[N]``"""
    inside: Floats
    """``[K]`` standard deviation inside groups (pooled, each group's own mean taken off; ddof 1 a group)."""
    across: Floats
    """``[K]`` standard deviation over all responses, groups not looked at (ddof 1): what trainers log."""
    correlation: Floats
    """``[K, K]`` inside groups; NaN beside a component without spread there."""

    @property
    def idle(self) -> NDArray[np.bool_]:
        """``[K]`` true for a component that the baseline takes out everywhere, such as a constant penalty."""
        size = np.nan_to_num(np.abs(self.reward)).max(axis=1, initial=0.0)
        left = np.nan_to_num(np.abs(self.centred)).max(axis=1, initial=0.0)
        found: NDArray[np.bool_] = left <= _CLOSE * np.maximum(size, 1.0)
        return found

    @property
    def only_across(self) -> NDArray[np.bool_]:
        """``[K]`` true for a component that differs between prompts and never between responses to one."""
        found: NDArray[np.bool_] = self.idle & (self.across > _CLOSE)
        return found

    def cancelling(self) -> list[tuple[str, str]]:
        """Pairs of components that undo each other inside every group: correlation −1, with a sum that has no spread."""
        pairs = []
        for i in range(len(self.names)):
            for j in range(i + 1, len(self.names)):
                both = np.nan_to_num(np.abs(self.centred[i] + self.centred[j])).max(initial=0.0)
                alive = np.nan_to_num(np.abs(self.centred[i])).max(initial=0.0)
                if alive > _CLOSE and both <= _CLOSE * max(alive, 1.0):
                    pairs.append((self.names[i], self.names[j]))
        return pairs

    def of(self, name: str) -> Floats:
        """``[N]`` the contribution of one component."""
        found: Floats = self.contribution[self.names.index(name)]
        return found


def components(table: TokenTable, algorithm: Algorithm | None = None) -> dict[str, Floats]:
    """``{name: [N]}`` each recorded reward function times its weight, in the order of the records.

    A function that did not apply to a response (``None``) adds 0 to it, as in TRL (``nansum``). What is missing between
    their sum and the recorded reward stands under ``(rest)``: weights that nobody recorded, or shaping after the sum.
    Empty where no response has components.
    """
    names = list(dict.fromkeys(name for rollout in table.rollouts for name in rollout.rewards))
    if not names:
        return {}
    weights = algorithm.reward_weights if algorithm else {}
    scored = np.isfinite(table.reward)
    found = {}
    for name in names:
        raw = [rollout.rewards.get(name) for rollout in table.rollouts]
        values = np.array([np.nan if value is None else value for value in raw], dtype=np.float64)
        found[name] = np.where(scored, weights.get(name, 1.0) * np.where(np.isfinite(values), values, 0.0), np.nan)
    rest = table.reward - np.sum(list(found.values()), axis=0)
    if (np.abs(rest[scored]) > 1e-6 * np.maximum(np.abs(table.reward[scored]), 1.0)).any():
        found[REST] = rest
    return found


def decompose(
    parts: Mapping[str, Floats],
    group: NDArray[np.int64],
    advantage: Floats,
    *,
    baseline: Literal["group", "leave-one-out", "batch", "none"] = "group",
) -> Decomposition:
    """Split advantages over the components of the rewards that gave them.

    Args:
        parts: ``{name: [N]}`` weighted components; their sum is the reward.
        group: ``[N]`` group numbers; −1 where there is none.
        advantage: ``[N]`` what an estimator made of the sum: (sum − baseline) × a factor of the group's or the response's own.
        baseline: what a reward is compared with. The leave-one-out mean differs from the group's by n / (n − 1) alone.
    """
    reward = np.array(list(parts.values()), dtype=np.float64).reshape(len(parts), len(group))
    scored = np.isfinite(reward).all(axis=0) & ((group >= 0) | (baseline in ("batch", "none")))
    pool = np.zeros(len(group), np.int64) if baseline == "batch" else group
    centred = reward.copy() if baseline == "none" else _centred(reward, pool, scored)
    if baseline == "leave-one-out":
        size = _spread(np.bincount(pool[scored]), pool, scored)
        centred *= np.divide(size, size - 1, out=np.ones_like(size), where=size > 1)
    # A group of one has no siblings: its advantage is the reward itself or 0, as the estimator had it.
    alone = scored & (_spread(np.bincount(pool[scored], minlength=1), pool, scored) == 1)
    centred[:, alone] = reward[:, alone]
    centred[:, ~scored] = np.nan
    inside = _centred(reward, group, scored & (group >= 0))
    return Decomposition(
        names=tuple(parts),
        reward=reward,
        centred=centred,
        contribution=centred * _factor(centred.sum(axis=0), np.asarray(advantage, np.float64), pool, scored),
        advantage=np.asarray(advantage, np.float64),
        inside=_pooled(inside, group, scored & (group >= 0)),
        across=np.array([_deviation(row[scored]) for row in reward]),
        correlation=_correlation(inside[:, scored & (group >= 0)]),
    )


def decompose_step(table: TokenTable, algorithm: Algorithm, parts: Mapping[str, Floats] | None = None) -> Decomposition:
    """Split a step's advantages, recomputed by its rule, over recorded reward components (or over ``parts``).

    Raises:
        MissingColumn: no components are recorded, or the rule is not linear in them before one common factor (whitening, a
            critic, GDPO's own deviation for each reward).
    """
    found = dict(parts) if parts is not None else components(table, algorithm)
    if not found:
        raise MissingColumn(f"step {table.step} has no reward components", wanted="the value of each reward function")
    linear = algorithm.advantage in ("grpo", *_BASELINES) and algorithm.whiten == "none" and not algorithm.kl_in_reward
    if not linear:
        raise MissingColumn(
            f"{algorithm.name} ({algorithm.advantage}) does not split over reward components",
            wanted="grpo, rloo or reinforce without whitening and without the KL term in the reward",
        )
    total = np.sum(list(found.values()), axis=0)
    baseline = _BASELINES.get(algorithm.advantage, algorithm.baseline)
    return decompose(found, table.group, advantages(table, algorithm, total), baseline=baseline)  # type: ignore[arg-type]


def advantages(table: TokenTable, algorithm: Algorithm, reward: Floats) -> Floats:
    """``[N]`` what the rule makes of other rewards: the mean over each response's trained tokens (one value for most rules)."""
    rollouts = tuple(
        replace(rollout, reward=float(value) if np.isfinite(value) else None)
        for rollout, value in zip(table.rollouts, reward, strict=True)
    )
    changed = replace(table, rollouts=rollouts, algorithm=algorithm, columns=dict(table.columns))
    return changed.mean_by_row(estimators[algorithm.advantage](changed, algorithm))


def _centred(reward: Floats, pool: NDArray[np.int64], scored: NDArray[np.bool_]) -> Floats:
    """``[K, N]`` less the mean of its pool, exactly 0 where all of a pool are equal."""
    found = np.full_like(reward, np.nan)
    inside = pool[scored]
    size = np.bincount(inside)
    for row, values in zip(found, reward, strict=True):
        low, high = np.full(len(size), np.inf), np.full(len(size), -np.inf)
        np.minimum.at(low, inside, values[scored])
        np.maximum.at(high, inside, values[scored])
        mean = np.bincount(inside, weights=values[scored]) / np.maximum(size, 1)
        row[scored] = np.where(low[inside] == high[inside], 0.0, values[scored] - mean[inside])
    return found


def _factor(total: Floats, advantage: Floats, pool: NDArray[np.int64], scored: NDArray[np.bool_]) -> Floats:
    """``[N]`` what multiplied the centred total; where that is 0, the mean factor of the pool's others, else 0."""
    known = scored & np.isfinite(advantage) & (total != 0) & (np.abs(total) > _CLOSE * np.abs(total[scored]).max(initial=0.0))
    factor = np.divide(advantage, total, out=np.zeros_like(total), where=known)
    numbers = np.where(scored, pool, -1)
    count = np.bincount(numbers[known], minlength=int(numbers.max(initial=-1)) + 1)
    sums = np.bincount(numbers[known], weights=factor[known], minlength=len(count))
    mean = np.divide(sums, count, out=np.zeros(len(count)), where=count > 0)
    filled = np.where(known, factor, np.append(mean, 0.0)[numbers])
    return np.where(scored & np.isfinite(advantage), filled, np.nan)


def _spread(by_pool: NDArray[np.int64], pool: NDArray[np.int64], scored: NDArray[np.bool_]) -> Floats:
    return np.where(scored, np.append(by_pool, 0)[np.where(scored, pool, -1)], 0).astype(np.float64)


def _pooled(centred: Floats, group: NDArray[np.int64], scored: NDArray[np.bool_]) -> Floats:
    freedom = int(scored.sum()) - len(np.unique(group[scored]))
    squares: Floats = np.sum(centred[:, scored] ** 2, axis=1)
    return np.sqrt(squares / freedom) if freedom > 0 else np.full(len(centred), np.nan)


def _deviation(values: Floats) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else np.nan


def _correlation(centred: Floats) -> Floats:
    length = np.sqrt((centred**2).sum(axis=1))
    size = np.outer(length, length)
    found: Floats = np.divide(centred @ centred.T, size, out=np.full(size.shape, np.nan), where=size > 0)
    return found
