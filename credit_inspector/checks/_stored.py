"""The advantages that a trainer stored, held against what the run's rule gives for the rewards."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from credit_inspector.algorithms.detect import Detection, explain
from credit_inspector.store import Store
from credit_inspector.table import Floats, Provenance, TokenTable

RECOMPUTED = "advantage/recomputed"
COLUMNS = ("advantage", RECOMPUTED)
"""What a check reads to compare."""

TOLERANCE = 1e-3
"""Of the largest stored advantage, at least 1: dumps round to three or four digits (as in ``algorithms/detect.py``)."""


def by_token(table: TokenTable) -> Floats:
    """``[T]`` the stored advantage of each trained token; NaN where none was stored."""
    column = _column(table)
    return table.trained(table.to_tokens(_given(table)) if column is None else column)


def by_response(table: TokenTable) -> Floats:
    """``[N]`` the one stored advantage of each response; NaN where its tokens have several or none was stored."""
    given = _given(table)
    return np.where(np.isfinite(given), given, _shared(table, by_token(table)))


def differing(table: TokenTable) -> NDArray[np.bool_]:
    """``[T]`` where a stored advantage is not what the run's rule gives.

    One number a response says nothing against a rule that gives each of its tokens another.
    """
    if not table.has(RECOMPUTED):
        return np.zeros(table.n_tokens, np.bool_)
    ours = table.values(RECOMPUTED)
    if _column(table) is None:
        ours = np.where(np.isnan(table.to_tokens(_shared(table, ours))), np.nan, ours)
    return unlike(by_token(table), ours)


def unlike(stored: Floats, ours: Floats) -> NDArray[np.bool_]:
    """Where both are numbers, and not the same one."""
    both: NDArray[np.bool_] = np.isfinite(stored) & np.isfinite(ours)
    allowed = TOLERANCE * max(1.0, float(np.abs(stored[both]).max(initial=0.0)))
    apart: NDArray[np.bool_] = np.abs(np.where(both, stored, 0.0) - np.where(both, ours, 0.0)) > allowed
    return both & apart


def explained(table: TokenTable) -> Detection:
    """The known rule that the stored advantages follow, or why none is found."""
    return explain(table.reward, table.group, by_response(table), lengths=table.trained_lengths)


def unexplained_steps(store: Store) -> Iterator[tuple[TokenTable, Detection]]:
    """Steps that stored one advantage a response which the run's rule does not give, with what is known about them.

    Steps without a known rule are among them; steps whose stored advantages agree with the rule are not.
    """
    for step in store.steps:
        table, _ = store.read_step(step, COLUMNS)
        if not np.isfinite(by_response(table)).any() or not table.loss_mask.any():
            continue
        if differing(table).any() or not table.has(RECOMPUTED):
            yield table, explained(table)


def _column(table: TokenTable) -> Floats | None:
    """``[T]`` the advantage that was stored for every token, if one was."""
    column = table.columns.get("advantage")
    if column is None or column.values is None or column.provenance is not Provenance.RECORDED:
        return None
    return table.values("advantage")


def _shared(table: TokenTable, values: Floats) -> Floats:
    """``[T]`` → ``[N]`` the value of all trained tokens of a response, NaN where they differ or there is none."""
    low, high = table.range_by_row(table.trained(values))
    with np.errstate(invalid="ignore"):
        return np.where(high - low > TOLERANCE * np.maximum(np.abs(high), 1.0), np.nan, high)


def _given(table: TokenTable) -> Floats:
    return np.array([np.nan if r.advantage is None else r.advantage for r in table.rollouts], dtype=np.float64)
