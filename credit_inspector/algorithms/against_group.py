"""Rules that compare a reward with its group in their own way, as arrays: OPO, GPG, pass@k, MaxRL.

Letters and missing values as in ``normalise``: ``N`` responses, NaN for a response without a group or a finite reward.

Example, one success in four::

    rewards = [1,  0,  0,  0]
    maxrl   = [3, -1, -1, -1]
    passk   = [2,  0,  0,  0]      # ddof 1, eps 0
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from credit_inspector.algorithms.normalise import Floats, Grouped, Singleton, Std, grouped, scaled


def maxrl(rewards: ArrayLike, group: ArrayLike, *, eps: float = 0.0, singleton: Singleton = "zero") -> Floats:
    """``[N]`` (reward − group mean) / (group mean + eps), 0 where the mean is not above 0.

    prime-rl 559b447 (``max_rl.py``): no eps. SkyRL a956457 (``compute_maxrl_advantage``): eps 1e-6, and a group of one
    keeps its reward; it divides by a negative mean as well, which turns every sign around.
    """
    found = grouped(rewards, group)
    mean = found.reward - found.centred
    answer = np.divide(found.centred, mean + eps, out=np.where(np.isnan(mean), np.nan, 0.0), where=mean > 0)
    return _alone(found, answer, singleton)


def opo(rewards: ArrayLike, group: ArrayLike, lengths: ArrayLike, *, singleton: Singleton = "zero") -> Floats:
    """``[N]`` reward − Σ length · reward / Σ length over the group (Hao et al. 2025, arXiv 2505.23585).

    ``lengths`` ``[N]`` are trained tokens. verl 0.9.1 (``compute_opo_outcome_advantage``): a group of one keeps its
    reward. NaN for a group without a trained token: it has no baseline, and nothing to train.
    """
    number = np.asarray(group, np.int64)
    found = grouped(rewards, group)
    takes_part = found.size > 0
    inside, weight = number[takes_part], np.asarray(lengths, np.float64)[takes_part]
    total = np.bincount(inside, weights=weight)
    pulled = np.bincount(inside, weights=weight * found.centred[takes_part])
    # How far the weighted mean stands from the plain one; 0 exactly where the group has no spread.
    shift = np.divide(pulled, total, out=np.full(len(total), np.nan), where=total > 0)
    answer = np.full(len(number), np.nan)
    answer[takes_part] = found.centred[takes_part] - shift[inside]
    return _alone(found, answer, singleton)


def gpg(rewards: ArrayLike, group: ArrayLike, *, f_norm: float = 1.0, singleton: Singleton = "zero") -> Floats:
    """``[N]`` α (reward − group mean) / f_norm with α = responses / responses whose reward is not 0 (Chu et al. 2025).

    verl 0.9.1 (``compute_gpg_outcome_advantage``): α is over the batch; a group of one has the mean 0 and so keeps α
    times its reward.
    """
    found = grouped(rewards, group)
    reward = np.asarray(rewards, np.float64)
    scored = reward[np.isfinite(reward)]
    alpha = len(scored) / max(int(np.count_nonzero(scored)), 1)
    return alpha * _alone(found, found.centred, singleton) / f_norm


def passk(rewards: ArrayLike, group: ArrayLike, *, std: Std, ddof: int, eps: float, singleton: Singleton = "zero") -> Floats:
    """``[N]`` only a group's best: (its reward − the second best) / (standard deviation + eps); 0 for all others.

    verl 0.9.1 (``compute_grpo_passk_outcome_advantage``, after arXiv 2503.19595), where a group of one is an error. Two
    best ones get 0 both.
    """
    found = grouped(rewards, group)
    number = np.asarray(group, np.int64)
    rows = np.flatnonzero(found.size > 0)
    # By group, the best first: each group's first row leads its second by the gap.
    rows = rows[np.lexsort((-found.reward[rows], number[rows]))]
    first = np.flatnonzero(np.diff(number[rows], prepend=-1))
    first = first[found.size[rows[first]] > 1]
    best, second = rows[first], rows[first + 1]
    answer = np.where(found.size > 0, 0.0, np.nan)
    answer[best] = found.reward[best] - found.reward[second]
    return _alone(found, scaled(answer, found, number, std=std, ddof=ddof, eps=eps), singleton)


def _alone(found: Grouped, values: Floats, singleton: Singleton) -> Floats:
    """``[N]`` with what a group of one gets: 0, or its reward."""
    alone: NDArray[np.bool_] = found.size == 1
    return np.where(alone, found.reward if singleton == "reward" else 0.0, values)
