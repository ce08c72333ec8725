"""Sibling contrast: what right answers of a group have and its wrong ones have not."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from credit_inspector.columns import Made
from credit_inspector.credit import credit
from credit_inspector.outcome import right, wrong
from credit_inspector.table import Floats, Provenance, TokenTable

WINDOW = 3
_MIX = np.uint64(0x9E3779B97F4A7C15)


@credit(
    "credit/contrast",
    label="sibling contrast",
    needs=("table",),
    unit="difference of rates, −1 to 1",
    sign="plus: right siblings have these tokens more often than wrong ones",
    scope="group",
    family="earned",
    provenance=Provenance.ESTIMATED,
)
def contrast(table: TokenTable) -> Made:
    """Rate of a token's surroundings among the other right siblings minus among the wrong ones.

    For every run of three tokens: the share of the group's other right responses that contain it anywhere, less the share of
    its wrong responses that do; a token's value is the mean over the runs that cover it. A run that the response itself says
    more than once has no value, since it cannot be told which place siblings share. Needs at least one other right and
    one wrong sibling, else there is no value. It is a correlation over few siblings (its standard error with four of each is
    about 0.3 for one run), so it corroborates other evidence and decides nothing alone.
    """
    runs = _runs(table)
    rate_right, rate_wrong = _rates(table, runs, right(table)), _rates(table, runs, wrong(table))
    difference = np.where(_said_twice(table, runs), np.nan, rate_right - rate_wrong)
    values = _spread(table, difference)
    without = int(np.isnan(values[table.loss_mask]).sum())
    return Made(
        table.trained(values),
        f"{without} trained tokens without a right and a wrong sibling, or said twice" if without else "",
    )


def _runs(table: TokenTable) -> NDArray[np.int64]:
    """``[T]`` number of the (group, run of tokens) that starts at each token; −1 where the response ends before it is full."""
    ids = table.token_ids.astype(np.uint64)
    key = table.to_tokens(table.group).astype(np.int64).astype(np.uint64)
    for shift in range(WINDOW):
        ahead = np.concatenate([ids[shift:], np.zeros(min(shift, len(ids)), np.uint64)])
        key = (key ^ (ahead + _MIX + (key << np.uint64(6)) + (key >> np.uint64(2)))) * _MIX
    full = table.position + WINDOW <= np.repeat(table.lengths, table.lengths)
    numbers = np.full(table.n_tokens, -1, np.int64)
    usable = full & (table.to_tokens(table.group) >= 0)
    numbers[usable] = np.unique(key[usable], return_inverse=True)[1]
    return numbers


def _said_twice(table: TokenTable, runs: NDArray[np.int64]) -> NDArray[np.bool_]:
    """``[T]`` true where the response holds the run starting there more than once."""
    key = runs * table.n_rows + table.row
    _, member, count = np.unique(key, return_inverse=True, return_counts=True)
    twice: NDArray[np.bool_] = (count[member] > 1) & (runs >= 0)
    return twice


def _rates(table: TokenTable, runs: NDArray[np.int64], of: NDArray[np.bool_]) -> Floats:
    """``[T]`` share of the *other* responses of the group, among ``of``, that contain the run starting at each token."""
    usable = runs >= 0
    pairs = np.unique(np.stack([runs[usable], table.row[usable]]), axis=1)
    holders = np.bincount(pairs[0][of[pairs[1]]], minlength=max(int(runs.max(initial=-1)) + 1, 1)).astype(np.float64)
    in_group = np.bincount(table.group[of & (table.group >= 0)], minlength=max(int(table.group.max(initial=-1)) + 1, 1))
    itself = table.to_tokens(of)
    group = table.to_tokens(table.group).astype(np.int64)
    others = np.where(group >= 0, in_group[group] - itself, 0.0)
    found = np.where(usable, holders[runs] - itself, np.nan)
    rates: Floats = np.divide(found, others, out=np.full(table.n_tokens, np.nan), where=usable & (others > 0))
    return rates


def _spread(table: TokenTable, by_run: Floats) -> Floats:
    """``[T]`` runs → tokens: the mean over the runs that cover a token."""
    total, count = np.zeros(table.n_tokens), np.zeros(table.n_tokens)
    for shift in range(WINDOW):
        behind = np.concatenate([np.full(min(shift, table.n_tokens), np.nan), by_run[: max(table.n_tokens - shift, 0)]])
        there = np.isfinite(behind) & (table.position >= shift)
        total += np.where(there, behind, 0.0)
        count += there
    mean: Floats = np.divide(total, count, out=np.full(table.n_tokens, np.nan), where=count > 0)
    return mean
