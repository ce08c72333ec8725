"""The edges that every column of numbers shares; no column of its own.

Nothing stands where a token is not trained, a number that is not finite is left out and counted, and a finite one that
a stored column (float32) cannot hold is held at its end and counted: infinity is never shown.
"""

from __future__ import annotations

import numpy as np

from credit_inspector.columns import Made
from credit_inspector.table import Floats, Provenance, TokenTable

LARGEST = float(np.finfo(np.float32).max)


def finite_where_trained(table: TokenTable, values: Floats, *notes: str, provenance: Provenance | None = None) -> Made:
    """``[T]`` → a column: NaN outside the loss mask and where not finite; ``notes`` and the counts in one line."""
    finite = np.isfinite(values)
    settled = np.where(table.loss_mask & finite, values, np.nan)
    said = [note for note in notes if note]
    if left_out := int(np.count_nonzero(table.loss_mask & ~finite)):
        said.append(f"{left_out} trained {_tokens(left_out)} left out: no finite value")
    beyond = np.abs(settled) > LARGEST
    if held := int(np.count_nonzero(beyond)):
        largest = np.abs(settled[beyond]).max()
        said.append(f"{held} trained {_tokens(held)} held at ±{LARGEST:.4g}: the largest is {largest:.4g}")
        np.clip(settled, -LARGEST, LARGEST, out=settled)
    return Made(settled, "; ".join(said), provenance)


def _tokens(count: int) -> str:
    return "token" if count == 1 else "tokens"
