"""How rewards become advantages inside a group, as arrays: what estimators apply and what ``detect`` tries.

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

Floats = NDArray[np.float64]
Std = Literal["group", "batch", "none"]
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


def normalise(rewards: ArrayLike, group: ArrayLike, *, std: Std, ddof: int, eps: float, singleton: Singleton = "zero") -> Floats:
    """``[N]`` (reward − mean of the group) / (standard deviation + eps): GRPO (Shao et al. 2024) and its scalings.

    TRL 1.16.0 (``GRPOTrainer._generate_and_score_completions``): ddof 1, eps 1e-4, over the group, the batch or none.
    verl 0.9.1 (``compute_grpo_outcome_advantage``): ddof 1, eps 1e-6; a group of one keeps its reward.
    A group without spread gets 0.
    """
    found = grouped(rewards, group)
    baseline_free = (found.size == 1) & (singleton == "reward")
    centred = np.where(baseline_free, found.reward, found.centred)
    if std == "none":
        return centred
    if std == "batch":
        deviation = np.full_like(centred, _batch_deviation(rewards, ddof))
    else:
        enough = np.where(found.size > ddof, found.size - ddof, np.nan)
        deviation = np.where(found.size == 1, 1.0, np.sqrt(found.squares / enough))
    with np.errstate(divide="ignore"):
        return np.divide(centred, deviation + eps, out=np.zeros_like(centred), where=centred != 0)


def leave_one_out(rewards: ArrayLike, group: ArrayLike, *, singleton: Singleton = "zero") -> Floats:
    """``[N]`` reward − mean of the group's other rewards: RLOO (Ahmadian et al. 2024), n / (n − 1) · (reward − mean).

    A group of one: 0 (TRL 1.16.0 and verl's ``rloo_vectorized``) or its reward (verl's ``rloo``).
    """
    found = grouped(rewards, group)
    others = np.where(found.size > 1, found.size - 1, 1.0)
    alone = found.reward if singleton == "reward" else np.zeros_like(found.reward)
    return np.where(found.size == 1, alone, found.centred * found.size / others)


def in_words(advantage: str, *, std: Std, ddof: int, eps: float) -> str:
    """The rule as a line for a person, to stand beside every advantage."""
    if advantage == "rloo":
        return "reward − mean of the others in the group"
    if advantage == "reinforce":
        return "the reward itself"
    if advantage != "grpo":
        return advantage
    if std == "none":
        return "reward − group mean"
    return f"(reward − group mean) / ({std} std with ddof {ddof} + {eps:g})"


def _batch_deviation(rewards: ArrayLike, ddof: int) -> float:
    reward = np.asarray(rewards, np.float64)
    scored = reward[np.isfinite(reward)]
    return float(scored.std(ddof=ddof)) if len(scored) > ddof else 0.0


def _spread(values: Floats, where: NDArray[np.bool_], fill: float) -> Floats:
    flat = np.full(len(where), fill)
    flat[where] = values
    return flat
