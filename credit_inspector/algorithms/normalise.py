"""How rewards become advantages by a mean and a deviation, as arrays: what estimators apply and what ``detect`` tries.

Letters: ``N`` responses. Responses with group −1 or without a finite reward take no part and get NaN; as in TRL, one
that no reward function scored is left out of its group's mean and standard deviation.

Example, one success in four and a group without spread, with the group's standard deviation (ddof 1, eps 0)::

    rewards    = [1,    0,    0,    0,    1, 1]
    group      = [0,    0,    0,    0,    1, 1]
    advantages = [1.5, -0.5, -0.5, -0.5,  0, 0]
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from credit_inspector.algorithms.others import squares_of_others

Floats = NDArray[np.float64]
Baseline = Literal["group", "leave-one-out", "batch"]
Std = Literal["group", "leave-one-out", "batch", "none"]
Singleton = Literal["zero", "reward"]


class Grouped(NamedTuple):
    """Each response beside its group's figures; NaN (size 0) where it takes no part."""

    reward: Floats
    """``[N]``"""
    size: Floats
    """``[N]`` scored responses of the group."""
    centred: Floats
    """``[N]`` reward − the group's mean; exactly 0 in a group without spread."""
    squares: Floats
    """``[N]`` the group's sum of squared distances from its mean."""


def grouped(rewards: ArrayLike, group: ArrayLike) -> Grouped:
    """``[N]``, ``[N]`` → each response beside its group's figures."""
    reward, number = np.asarray(rewards, np.float64), np.asarray(group, np.int64)
    scored = np.isfinite(reward) & (number >= 0)
    inside, values = number[scored], reward[scored]
    groups = int(inside.max(initial=-1)) + 1
    size = np.bincount(inside, minlength=groups).astype(np.float64)
    low, high = np.full(groups, np.inf), np.full(groups, -np.inf)
    np.minimum.at(low, inside, values)
    np.maximum.at(high, inside, values)
    total = np.bincount(inside, weights=values, minlength=groups)
    mean = np.divide(total, size, out=np.zeros(groups), where=size > 0)
    # A mean of equal rewards may miss them by one rounding step, and a tiny eps would blow that up to a full advantage.
    centred = np.where(low[inside] == high[inside], 0.0, values - mean[inside])
    squares: Floats = np.bincount(inside, weights=centred**2, minlength=groups).astype(np.float64)
    return Grouped(
        np.where(scored, reward, np.nan),
        _spread(size[inside], scored, 0.0),
        _spread(centred, scored, np.nan),
        _spread(squares[inside], scored, np.nan),
    )


def dead(rewards: ArrayLike, group: ArrayLike) -> NDArray[np.bool_]:
    """``[N]`` whether all rewards of the response's group, two or more of them, are the same."""
    found = grouped(rewards, group)
    flat: NDArray[np.bool_] = (found.size > 1) & (found.squares == 0)
    return flat


def normalise(
    rewards: ArrayLike,
    group: ArrayLike,
    *,
    std: Std,
    ddof: int,
    eps: float,
    singleton: Singleton = "zero",
    baseline: Baseline = "group",
) -> Floats:
    """``[N]`` (reward − baseline) / (standard deviation + eps): GRPO (Shao et al. 2024) and its scalings.

    TRL 1.16.0 (``GRPOTrainer._generate_and_score_completions``): ddof 1, eps 1e-4, over the group, the batch or none.
    verl 0.9.1 (``compute_grpo_outcome_advantage``): ddof 1, eps 1e-6; a group of one keeps its reward.
    NeMo-RL 7ea279a (``calculate_baseline_and_std_per_prompt``): mean and deviation of the others in the group, ddof 1,
    eps 1e-6; where the others are all equal or only one, the distance stays as it is.
    AReaL 4aef98d (``NormConfig``): mean and deviation of the batch, ddof 1, eps 1e-5; groups are not asked for.

    A group without spread gets 0 wherever its own mean or its own deviation is used. ``singleton`` decides on a group
    of one, except that the batch is a baseline for it too.
    """
    reward, number = np.asarray(rewards, np.float64), np.asarray(group, np.int64)
    if baseline == "batch" and std in ("batch", "none"):
        number = np.zeros_like(number)
    found = grouped(reward, number)
    return scaled(_distance(found, baseline, singleton), found, number, std=std, ddof=ddof, eps=eps)


def leave_one_out(rewards: ArrayLike, group: ArrayLike, *, singleton: Singleton = "zero") -> Floats:
    """``[N]`` reward − mean of the group's other rewards: RLOO (Ahmadian et al. 2024), n / (n − 1) · (reward − mean).

    A group of one: 0 (TRL 1.16.0 and verl's ``rloo_vectorized``) or its reward (verl's ``rloo``).
    """
    return normalise(rewards, group, baseline="leave-one-out", std="none", ddof=1, eps=0.0, singleton=singleton)


def _distance(found: Grouped, baseline: Baseline, singleton: Singleton) -> Floats:
    """``[N]`` reward − baseline."""
    if baseline == "batch":
        return grouped(found.reward, np.zeros(len(found.reward), np.int64)).centred
    others = np.maximum(found.size - 1, 1.0)
    distance = found.centred * found.size / others if baseline == "leave-one-out" else found.centred
    return np.where((found.size == 1) & (singleton == "reward"), found.reward, distance)


def scaled(distance: Floats, found: Grouped, number: NDArray[np.int64], *, std: Std, ddof: int, eps: float) -> Floats:
    """``[N]`` distances over the rule's standard deviation + eps; 0 where it has none, and NaN stays.

    The deviation of one response is 1, so that nothing is scaled. The same holds for one of others that are all equal
    (NeMo-RL).
    """
    if std == "none":
        return distance
    deviation = _deviation(found, number, std, ddof)
    over = np.where(deviation > 0, deviation + eps, 1.0 if std == "leave-one-out" else 0.0)
    return np.divide(distance, over, out=np.where(np.isnan(distance), np.nan, 0.0), where=over > 0)


def _deviation(found: Grouped, number: NDArray[np.int64], std: Std, ddof: int) -> Floats:
    if std == "batch":
        return np.full_like(found.reward, _batch_deviation(found.reward, ddof))
    if std == "leave-one-out":
        scored = found.size > 0
        squares = _spread(squares_of_others(found.reward[scored], number[scored]), scored, np.nan)
        left = found.size - 1 - ddof
        return np.sqrt(np.divide(squares, left, out=np.zeros_like(squares), where=left > 0))
    enough = np.where(found.size > ddof, found.size - ddof, np.nan)
    return np.where(found.size == 1, 1.0, np.sqrt(found.squares / enough))


def _batch_deviation(reward: Floats, ddof: int) -> float:
    scored = reward[np.isfinite(reward)]
    return float(scored.std(ddof=ddof)) if len(scored) > ddof else 0.0


def _spread(values: Floats, where: NDArray[np.bool_], fill: float) -> Floats:
    flat = np.full(len(where), fill)
    flat[where] = values
    return flat
