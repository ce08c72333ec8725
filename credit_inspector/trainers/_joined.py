"""Sequences that hold prompt and response in one list → prompt, response and what belongs to each response token.

NeMo-RL, prime-rl, SkyRL, Atropos and PipelineRL write them so. Where the response begins is the first trained token, unless
the file says it; what follows stays whole, so that tool turns between model turns are response tokens outside the mask.

Example, two prompt tokens, a model turn, a tool token, a model turn, and one place of padding::

    ids    = [7, 8, 11, 12, 90, 13,  0]
    mask   = [0, 0,  1,  1,  0,  1,  0]    with end = 6
    prompt = [7, 8]    response = [11, 12, 90, 13]    loss_mask = [1, 1, 0, 1]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from credit_inspector.rollout import Problem
from credit_inspector.trainers._rollouts import mismatch
from credit_inspector.trainers._values import flags, floats, integers


def split(
    ids: Any,
    mask: Any,
    columns: Mapping[str, Any] | None = None,
    *,
    begin: int | None = None,
    end: int | None = None,
    trained_only: tuple[str, ...] = (),
    where: str = "",
) -> tuple[dict[str, Any], list[Problem]]:
    """Split one joined sequence.

    Args:
        ids: ``[S]`` token ids, as a list or an array.
        mask: ``[S]`` trained places: truth values, 0 and 1, weights, or labels with -100; ``None`` where none was recorded.
        columns: ``[S]`` values each, under this project's names; ``None`` ones are left out.
        begin: place of the first response token, where the file says it; by default the first trained one.
        end: length without the padding on the right.
        trained_only: names among ``columns`` whose values mean nothing outside the mask; there they become NaN.
        where: the row's name, for the problems.

    Returns:
        ``prompt_ids``, ``response_ids``, ``loss_mask`` and the columns cut to the response, and what did not fit. Ids
        that are none leave all out.
    """
    read = integers(ids)
    if read is None:
        return {}, [Problem("bad-ids", "no list of token ids, left out", where)]
    problems: list[Problem] = []
    end = len(read) if end is None or not 0 <= end <= len(read) else end
    trained = _mask(mask, len(read), problems, where)
    first = _begin(trained, begin, end)
    found: dict[str, Any] = {"prompt_ids": read[:first], "response_ids": read[first:end]}
    if trained is not None:
        found["loss_mask"] = trained[first:end]
    for name, values in (columns or {}).items():
        if values is None:
            continue
        numbers = _column(values, len(read), name, problems, where)
        if numbers is not None:
            cut = numbers[first:end].copy()
            if name in trained_only and trained is not None:
                cut[~trained[first:end]] = np.nan
            found[name] = cut
    return found, problems


def _begin(trained: NDArray[np.bool_] | None, begin: int | None, end: int) -> int:
    if begin is not None and 0 <= begin <= end:
        return begin
    if trained is None:
        return 0
    places = np.flatnonzero(trained[:end])
    return int(places[0]) if len(places) else end


def _mask(value: Any, length: int, problems: list[Problem], where: str) -> NDArray[np.bool_] | None:
    """A mask that does not fit leaves nothing trained: which tokens are is then not known."""
    if value is None:
        return None
    read = flags(value)
    if read is None:
        problems.append(Problem("bad-column", "loss_mask is no list of truth values: none counts as trained", where))
        return np.zeros(length, np.bool_)
    if len(read) != length:
        said = f"{mismatch(length, len(read), 'loss_mask')}: which are trained is not known, so none counts as trained"
        problems.append(Problem("length-mismatch", said, where))
        return np.zeros(length, np.bool_)
    return read


def _column(value: Any, length: int, name: str, problems: list[Problem], where: str) -> NDArray[np.float32] | None:
    read = floats(value)
    if read is None:
        problems.append(Problem("bad-column", f"{name} is no list of numbers, left out", where))
        return None
    if len(read.values) != length:
        problems.append(Problem("length-mismatch", mismatch(length, len(read.values), name), where))
        return None
    return read.values
