"""Returns: what is still to come from each token on, discounted, and the four ways around tokens that are not trained.

G_t = x_t + decay · G_{t+1}. Between the turns of an agent stand tokens that the policy did not sample (tool output). What
the recursion does there is ``Algorithm.observation``. One response, a reward of 1 on its last token, decay 0.9::

    loss_mask = [1,    1,    0,    0,    1,   1]
    skip      = [.729, .81,  -,    -,    .9,  1]     # carried over: verl, NeMo-RL
    count     = [.590, .656, -,    -,    .9,  1]     # the discount ticks: OpenRLHF, slime's REINFORCE++
    reset     = [0,    0,    -,    -,    .9,  1]     # 0 at a gap, so that early turns get nothing: older verl
    ignore    = [.590, .656, -,    -,    .9,  1]     # no mask: rewards and values at the gap count too (slime's PPO)

Every convention is a choice of the tokens that are steps and of where a run of steps ends (``Steps``); the recursion is
the same. A truncated response ends like any other: behind it stands 0, as in every trainer read.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from credit_inspector.algorithm import Observation
from credit_inspector.table import Floats, TokenTable


class Steps(NamedTuple):
    """The tokens that a backward recursion passes."""

    token: NDArray[np.int64]
    """``[K]`` their places in the table, ascending."""
    after: NDArray[np.int64]
    """``[K]`` how many steps follow in the same run."""
    acts: NDArray[np.bool_]
    """``[K]`` whether rewards and values there are the response's own; what stands elsewhere is 0."""


def steps(table: TokenTable, observation: Observation, acts: NDArray[np.bool_] | None = None) -> Steps:
    """The steps under a convention; ``acts`` ``[T]`` are the tokens that count as actions, else the trained ones."""
    acts = table.loss_mask if acts is None else acts
    token = np.flatnonzero(acts) if observation in ("skip", "reset") else np.arange(table.n_tokens)
    if not len(token):
        return Steps(token, token, np.zeros(0, np.bool_))
    ends = np.diff(table.row[token]) != 0
    if observation == "reset":
        ends |= np.diff(token) != 1
    last = np.flatnonzero(np.append(ends, True))
    after = np.repeat(last, np.diff(last, prepend=-1)) - np.arange(len(token))
    return Steps(token, after, np.ones(len(token), np.bool_) if observation == "ignore" else acts[token])


def to_go(values: Floats, decay: Floats | float, after: NDArray[np.int64]) -> Floats:
    """``[K]`` Σ_k decay^k · values[t + k] over what follows in the run (``after``), itself included.

    ``decay`` is one number or one a run, on all of its steps. A value that is NaN makes all sums NaN that contain it.

    By doubling: after pass p each sum reaches 2^p steps ahead, so that a response of 4,096 tokens takes 12 passes over the
    flat array.
    """
    weight = np.broadcast_to(np.asarray(decay, np.float64), values.shape)
    unknown = np.isnan(values)
    total = _doubled(np.where(unknown, 0.0, values), weight, after)
    if unknown.any():
        reached = _doubled(unknown.astype(np.float64), (weight > 0).astype(np.float64), after)
        total[reached > 0] = np.nan
    return total


def _doubled(total: Floats, weight: Floats, after: NDArray[np.int64]) -> Floats:
    ahead, furthest = 1, int(after.max(initial=0))
    while ahead <= furthest and weight.any():
        reaches = after[:-ahead] >= ahead
        total[:-ahead] += np.where(reaches, weight[:-ahead] * total[ahead:], 0.0)
        weight = weight * weight
        ahead *= 2
    return total


def discounted(
    table: TokenTable,
    rewards: Floats,
    *,
    gamma: float,
    observation: Observation,
    acts: NDArray[np.bool_] | None = None,
) -> Floats:
    """``[T]`` the return of token rewards from each trained token on; NaN where not trained (Sutton & Barto, ch. 3).

    Rewards on tokens that do not act are lost, as in verl (``compute_reinforce_plus_plus_outcome_advantage``) and the
    others, unless the convention is ``ignore``.
    """
    way = steps(table, observation, acts)
    flat = np.full(table.n_tokens, np.nan)
    flat[way.token] = to_go(np.where(way.acts, rewards[way.token], 0.0), gamma, way.after)
    return table.trained(flat)
