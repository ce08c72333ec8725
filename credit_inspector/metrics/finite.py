"""The edges that every column of numbers shares; no column of its own.

Nothing stands where a token is not trained, a number that is not finite is left out and counted, and a finite one that
a stored column (float32) cannot hold is held at its end and counted: infinity is never shown.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from credit_inspector.columns import Made
from credit_inspector.table import Floats, Provenance, TokenTable

LARGEST = float(np.finfo(np.float32).max)


def finite_where_trained(table: TokenTable, values: Floats, *notes: str, provenance: Provenance | None = None) -> Made:
    """``[T]`` → a column: NaN outside the loss mask and where not finite; ``notes`` and the counts in one line."""
    said = [note for note in notes if note]
    if (settled := _all_fit(table, values)) is not None:
        return Made(settled, "; ".join(said), provenance)
    finite = np.isfinite(values)
    kept = np.where(table.loss_mask & finite, values, np.nan)
    if left_out := int(np.count_nonzero(table.loss_mask & ~finite)):
        said.append(f"{left_out} trained {_tokens(left_out)} left out: no finite value")
    beyond = np.abs(kept) > LARGEST
    if held := int(np.count_nonzero(beyond)):
        largest = np.abs(kept[beyond]).max()
        said.append(f"{held} trained {_tokens(held)} held at ±{LARGEST:.4g}: the largest is {largest:.4g}")
        np.clip(kept, -LARGEST, LARGEST, out=kept)
    return Made(kept, "; ".join(said), provenance)


def _all_fit(table: TokenTable, values: Floats) -> NDArray[np.float32] | None:
    """The column where every trained token has a number that float32 holds, which is nearly always; in few passes."""
    with np.errstate(over="ignore", invalid="ignore"):
        settled: NDArray[np.float32] = values.astype(np.float32)
        settled += table.nan_outside_32
    return settled if np.count_nonzero(np.isfinite(settled)) == table.n_trained else None


def _tokens(count: int) -> str:
    return "token" if count == 1 else "tokens"
