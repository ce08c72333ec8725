"""Tokens that leave the loss because the trainer's policy and the engine's stand too far apart (verl's ``rollout_rs``)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from credit_inspector.algorithm import Algorithm
from credit_inspector.credit.engine import engine
from credit_inspector.errors import UsageError
from credit_inspector.table import Floats, TokenTable

BOUND = 20.0
"""log κ is held within ± this first (``SAFETY_BOUND``)."""

_STATISTICS = (
    *(f"{level}_{kind}" for level in ("token", "seq_sum", "seq_mean") for kind in ("k1", "k2", "k3")),
    "seq_max_k2",
    "seq_max_k3",
)


def rejections(table: TokenTable, algorithm: Algorithm) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Each of the rule's statistics with the tokens ``[T]`` that it rejects (``compute_rollout_rejection_mask``, verl 0.9.1).

    With δ = log κ = log π_old − log π_rollout: k1 = −δ, k2 = δ² / 2, k3 = e^δ − 1 − δ; of each token, or their sum, mean
    or maximum over the response's trained tokens. k1 is kept within the logs of its two bounds, so these are bounds of
    rollout / trainer: ``0.6_1.4`` keeps a κ of 1.5 and rejects one of 0.65. One number b for k1 means ``1/b_b``; k2 and k3
    have an upper bound alone. A bound itself is kept.

    A token without one of the two log-probs counts with δ = 0: nothing speaks against it.

    Raises:
        UsageError: a statistic or a bound that verl does not know.
        MissingColumn: the log-probs are not there.
    """
    if not algorithm.rollout_reject:
        return
    bounds = {name: _bounds(name, text) for name, text in algorithm.rollout_reject.items()}
    known = engine(table, algorithm, "rejects tokens by how far trainer and engine are apart (rollout_reject)")
    delta = np.clip(known.log_kappa, -BOUND, BOUND)
    for name, (low, high) in bounds.items():
        value = _statistic(table, name, delta)
        yield name, (value < low) | (value > high)


def _statistic(table: TokenTable, name: str, delta: Floats) -> Floats:
    level, _, kind = name.rpartition("_")
    value = _OF_TOKEN[kind](delta)
    return value if level == "token" else table.to_tokens(_BY_ROW[level](table, value))


def _k1(delta: Floats) -> Floats:
    return -delta


def _k2(delta: Floats) -> Floats:
    return 0.5 * delta**2


def _k3(delta: Floats) -> Floats:
    return np.expm1(delta) - delta


def _sum(table: TokenTable, values: Floats) -> Floats:
    return table.sum_by_row(values)


def _mean(table: TokenTable, values: Floats) -> Floats:
    return table.sum_by_row(values) / np.maximum(table.trained_lengths, 1)


def _max(table: TokenTable, values: Floats) -> Floats:
    """k2 and k3 are 0 where δ is, so tokens that are not trained never are the largest."""
    largest, filled = np.zeros(table.n_rows), table.lengths > 0
    if filled.any():
        largest[filled] = np.maximum.reduceat(values, table.offsets[:-1][filled])
    return largest


_OF_TOKEN = {"k1": _k1, "k2": _k2, "k3": _k3}
_BY_ROW = {"seq_sum": _sum, "seq_mean": _mean, "seq_max": _max}


def _bounds(name: str, text: str) -> tuple[float, float]:
    if name not in _STATISTICS:
        raise UsageError(f"rollout_reject has {name!r}", wanted=f"one of {', '.join(_STATISTICS)}")
    two = name.endswith("k1")
    numbers = [float(part) for part in text.split("_")] if re.fullmatch(r"[\d.eE+-]+(_[\d.eE+-]+)?", text) else []
    if not numbers or len(numbers) > 1 + two or min(numbers) <= 0:
        raise UsageError(f"rollout_reject {name} has the bounds {text!r}", wanted="0.6_1.4" if two else "one number above 0")
    if not two:
        return -math.inf, numbers[0]
    low, high = numbers if len(numbers) > 1 else (1 / numbers[0], numbers[0])
    return math.log(low), math.log(high)
