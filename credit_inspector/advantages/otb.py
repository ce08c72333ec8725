"""The optimal token baseline: at each place of a group, the mean return weighted by how much a response was moved so far."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from credit_inspector.advantages import estimator
from credit_inspector.advantages.returns import discounted
from credit_inspector.advantages.token_rewards import old_or_policy, token_rewards
from credit_inspector.algorithm import Algorithm
from credit_inspector.errors import UsageError
from credit_inspector.table import Floats, TokenTable

_EPS = 1e-8


@estimator("otb", words="reward still to come − optimal token baseline of the group")
def otb(table: TokenTable, algorithm: Algorithm, *, handle_zero_tail: float = 1.0) -> Floats:
    """``[T]`` G_t − Σ_i G_it W_it / (Σ_i W_it + 1e-8) over the group's responses trained at the same place.

    arXiv 2602.07078; verl 0.9.1 (``compute_optimal_token_baseline_advantage``). W_t is the running sum of
    1 − 2π(y) + Σ_v π(v)², the squared length of the score at the logits, over trained tokens up to t. A place is the token's
    position in the response. Returns are not discounted, whatever ``Algorithm.gamma`` says. ``handle_zero_tail``: where
    the longest response of a group goes on alone it would be its own baseline; 1 gives it none there, 0 leaves it. A
    group of one: ``Algorithm.singleton``, with its return for the reward. A token whose Σπ² or log-prob is not finite has
    no advantage from there on, and no say in its group.

    Raises:
        MissingColumn: Σπ² or the log-probs of the policy that sampled were not recorded.
        UsageError: the rule corrects for the sampling engine, whose weights verl would put into W.
    """
    return _against_places(table, algorithm, table.position, bool(handle_zero_tail))


@estimator("tir_otb", words="reward still to come − optimal token baseline of the group, by trained tokens")
def tir_otb(table: TokenTable, algorithm: Algorithm, *, handle_zero_tail: float = 1.0) -> Floats:
    """``[T]`` as ``otb``, where a place is how many trained tokens came before it: tool output does not shift a response.

    verl 0.9.1 (``compute_multi_turn_optimal_token_baseline_advantage``).

    Raises:
        MissingColumn: as ``otb``.
        UsageError: as ``otb``.
    """
    return _against_places(table, algorithm, _trained_before(table), bool(handle_zero_tail))


def _against_places(table: TokenTable, algorithm: Algorithm, place: NDArray[np.int64], zero_tail: bool) -> Floats:
    if algorithm.rollout_weight != "none":
        raise UsageError(
            f"otb with rollout_weight {algorithm.rollout_weight!r}: verl scales its weights by that correction, squared",
            wanted='rollout_weight = "none"',
        )
    rewards = token_rewards(table, algorithm)
    returns = discounted(table, rewards.values, gamma=1.0, observation=algorithm.observation, acts=rewards.acts)
    energy = _energy(table, algorithm)
    group = table.group[table.row]
    takes_part = table.loss_mask & (group >= 0) & np.isfinite(returns) & np.isfinite(energy)
    baseline = np.full(table.n_tokens, np.nan)
    baseline[takes_part] = _weighted_mean(group[takes_part], place[takes_part], returns[takes_part], energy[takes_part])
    size = _responses(table, takes_part)[table.row]
    if zero_tail:
        baseline[takes_part & (place >= _second_longest(table, takes_part)[table.row])] = 0.0
    alone = 0.0 if algorithm.singleton == "reward" else returns
    return returns - np.where(takes_part & (size == 1), alone, baseline)


def _energy(table: TokenTable, algorithm: Algorithm) -> Floats:
    """``[T]`` W: the running sum of ‖onehot − π‖² over trained tokens; NaN from an unknown one on."""
    logprob, squares = old_or_policy(table, algorithm, "logprob"), old_or_policy(table, algorithm, "sum_p2")
    known = np.isfinite(logprob) & np.isfinite(squares)
    at_token = np.where(
        known & table.loss_mask, 1 - 2 * np.exp(np.where(known, logprob, 0.0)) + np.where(known, squares, 0.0), 0.0
    )
    lost = _so_far(table, (table.loss_mask & ~known).astype(np.float64)) > 0
    return np.where(lost, np.nan, _so_far(table, at_token))


def _so_far(table: TokenTable, values: Floats) -> Floats:
    """``[T]`` → ``[T]`` running sums within each response."""
    total = np.empty(table.n_tokens)
    for start, end in zip(table.offsets[:-1], table.offsets[1:], strict=True):
        np.cumsum(values[start:end], out=total[start:end])
    return total


def _weighted_mean(group: NDArray[np.int64], place: NDArray[np.int64], returns: Floats, energy: Floats) -> Floats:
    """``[K]`` Σ G W / (Σ W + eps) over the tokens of one group at one place."""
    widths = np.zeros(int(group.max(initial=-1)) + 1, np.int64)
    np.maximum.at(widths, group, place + 1)
    cell = np.append(0, np.cumsum(widths))[group] + place
    weighted, weights = (np.bincount(cell, weights=each) for each in (returns * energy, energy))
    mean: Floats = (weighted / (weights + _EPS))[cell]
    return mean


def _responses(table: TokenTable, takes_part: NDArray[np.bool_]) -> NDArray[np.int64]:
    """``[N]`` how many responses of the row's group have a token that takes part; 0 without a group."""
    has = table.sum_by_row(takes_part) > 0
    count = np.bincount(table.group[has], minlength=int(table.group.max(initial=-1)) + 1)
    return np.where(table.group >= 0, np.append(count, 0)[table.group], 0)


def _second_longest(table: TokenTable, takes_part: NDArray[np.bool_]) -> NDArray[np.int64]:
    """``[N]`` where a response begins to go on alone: the second greatest count of trained tokens in its group.

    Only for the one longest response of a group; for all others beyond any place.
    """
    beyond = np.full(table.n_rows, np.iinfo(np.int64).max)
    rows = np.flatnonzero((table.group >= 0) & (table.sum_by_row(takes_part) > 0))
    rows = rows[np.lexsort((table.trained_lengths[rows], table.group[rows]))]
    group, length = table.group[rows], table.trained_lengths[rows]
    longest = np.flatnonzero(np.append(np.diff(group) != 0, True)[: len(rows)])
    longest = longest[(longest > 0) & (group[longest - 1] == group[longest]) & (length[longest - 1] < length[longest])]
    beyond[rows[longest]] = length[longest - 1]
    return beyond


def _trained_before(table: TokenTable) -> NDArray[np.int64]:
    total = np.cumsum(table.loss_mask)
    before = np.append(0, total)[table.offsets[:-1]]
    return total - table.loss_mask - np.repeat(before, table.lengths)
