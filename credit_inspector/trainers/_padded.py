"""Batches padded to one length → the tokens that are real, and what belongs to each.

A place of a batch is real or padding; that is said by the attention mask and never by the ids, since the padding id may be
the one that ends a sequence. Trainers fill places with 0 where they have no value: outside the mask a log-probability, a
critic's value or an entropy of exactly 0 is such a fill, and what an estimator says there means nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from credit_inspector.rollout import Problem
from credit_inspector.trainers._rollouts import mismatch
from credit_inspector.trainers._values import flags, floats

Flags = NDArray[np.bool_]

_MASKED = frozenset({"advantage", "rollout_weight"})
"""Columns that mean nothing where no token is trained."""
_FILLED = ("logprob/", "value/", "entropy/")
"""Columns in which 0 outside the mask is a fill."""


def places(mask: Any, length: int) -> Flags | None:
    """A mask as truth values; ``None`` where it is none or of another length."""
    read = None if mask is None else flags(mask)
    return read if read is not None and len(read) == length else None


def cut(
    columns: Mapping[str, Any], real: Flags, trained: Flags | None, where: str = ""
) -> tuple[dict[str, NDArray[np.float32]], list[Problem]]:
    """Cut columns to the response.

    Args:
        columns: ``[R]`` values each, under this project's names; ``None`` ones are left out.
        real: ``[R]`` places that hold response tokens.
        trained: ``[R]`` places in the loss, where that is known.
        where: the row's name, for the problems.

    Returns:
        The columns ``[L]``, NaN where a fill stood, and what did not fit.
    """
    found: dict[str, NDArray[np.float32]] = {}
    problems = []
    for name, value in columns.items():
        read = None if value is None else floats(value)
        if value is None:
            continue
        if read is None:
            problems.append(Problem("bad-column", f"{name} is no list of numbers, left out", where))
        elif len(read.values) != len(real):
            problems.append(Problem("length-mismatch", mismatch(len(real), len(read.values), name), where))
        else:
            kept = read.values[real]
            found[name] = kept if trained is None else without_fill(name, kept, trained[real])
    return found, problems


def without_fill(name: str, values: NDArray[np.float32], trained: Flags) -> NDArray[np.float32]:
    """A response's values with NaN in place of what the trainer filled in outside the mask."""
    if name in _MASKED:
        return np.where(trained, values, np.nan).astype(np.float32)
    if name.startswith(_FILLED):
        return np.where(trained | (values != 0), values, np.nan).astype(np.float32)
    return values


def drop_fill_columns(rows: Sequence[dict[str, Any]]) -> list[Problem]:
    """Take out log-probabilities that are 0 for every token of the step: they were not computed."""
    names = dict.fromkeys(name for row in rows for name in row if name.startswith("logprob/"))
    problems = []
    for name in names:
        held = [row[name] for row in rows if name in row]
        if sum(map(len, held)) and all(np.all(np.isnan(values) | (values == 0)) for values in held):
            problems.append(Problem("fill-values", f"{name} is 0 for every token: not computed, left out"))
            for row in rows:
                row.pop(name, None)
    return problems
