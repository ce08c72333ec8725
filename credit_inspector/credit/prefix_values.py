"""Credit from prefix values: what a step changed in the chance of a right answer.

The value V(s) of a prefix s is the mean reward of K fresh completions of it. A step that leads from one prefix to the next is
worth the jump between their values::

    V       = [0.5, 0.5, 0.9, 0.4]        four prefixes
    credit  = [0.0, 0.4, −0.5]            three steps
    pivotal = [no,  yes, yes]             jumps of at least 0.2

With the observed reward behind the last prefix, credits add up to R − V(s_0). VinePPO (Kazemnejad et al. 2024) trains on these
jumps; Phi-4 (Abdin et al. 2024) calls tokens with large ones pivotal; thought anchors (Bogdan et al. 2025) ranks sentences by
them. Every jump comes with its error: nine completions leave one of up to 0.24.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from credit_inspector.errors import AlignmentError, UsageError
from credit_inspector.table import Floats

PIVOTAL = 0.2
"""The jump from which on a step is pivotal: the default of codelion/pts, as in Phi-4."""


class Jumps(NamedTuple):
    """What ``S`` steps changed."""

    credit: Floats
    """``[S]`` V after the step − V before it; NaN where one of the two is unknown."""
    error: Floats
    """``[S]`` its standard error."""
    pivotal: NDArray[np.bool_]
    """``[S]`` where |credit| reaches the threshold."""


def standard_error(values: ArrayLike, samples: ArrayLike) -> Floats:
    """``[P]`` √(V (1 − V) / K) of a mean over K completions that are right or wrong; NaN without completions.

    It is 0 where all completions agree, which is no certainty: with K of them a chance of 3 / K may still be missed.

    Args:
        values: ``[P]`` between 0 and 1.
        samples: ``[P]`` or one number, the completions of each prefix.

    Raises:
        UsageError: a value outside 0 to 1, whose error needs the completions' own rewards.
    """
    mean, count = np.broadcast_arrays(np.asarray(values, np.float64), np.asarray(samples, np.float64))
    known = np.isfinite(mean)
    if (outside := known & ((mean < 0) | (mean > 1))).any():
        raise UsageError(f"a prefix value of {mean[outside][0]:g}", wanted="mean rewards between 0 and 1")
    variance = np.where(known, mean * (1 - mean), np.nan)
    error: Floats = np.sqrt(np.divide(variance, count, out=np.full(mean.shape, np.nan), where=count > 0))
    return error


def jumps(values: ArrayLike, samples: ArrayLike, *, outcome: float | None = None, threshold: float = PIVOTAL) -> Jumps:
    """The credit of the steps between the prefixes of one response.

    Args:
        values: ``[P]`` prefix values, between 0 and 1.
        samples: ``[P]`` or one number, the completions behind each.
        outcome: the response's own reward, which stands behind its last step without any error (VinePPO: V is 0 at the end and
            the last step is paid R); then there are P steps, and without it P − 1.
        threshold: the size of a pivotal jump.

    Raises:
        AlignmentError: values that are no row.
        UsageError: a value outside 0 to 1.
    """
    value = np.asarray(values, np.float64)
    if value.ndim != 1:
        raise AlignmentError(f"prefix values of shape {value.shape}", wanted="(P,), those of one response")
    error = standard_error(value, samples)
    if outcome is not None:
        value, error = np.append(value, outcome), np.append(error, 0.0)
    credit = np.diff(value)
    # The two values come from completions of their own, so their errors are independent.
    return Jumps(credit, np.hypot(error[1:], error[:-1]), _reaches(credit, threshold))


def to_tokens(by_step: ArrayLike, starts: ArrayLike, length: int) -> Floats:
    """``[S]`` → ``[L]``: each step's value on its tokens, as VinePPO spreads it; the last step's up to the end.

    Args:
        by_step: ``[S]`` one value a step.
        starts: ``[S]`` the token with which each step begins, ascending. Tokens before the first are NaN.
        length: tokens of the response.

    Raises:
        AlignmentError: not one start a step, or starts that do not ascend within the response.
    """
    values, first = np.asarray(by_step, np.float64), np.asarray(starts, np.int64)
    if values.shape != first.shape:
        raise AlignmentError(f"{len(first)} steps begin, {len(values)} have a value")
    bounds = np.concatenate([[0], first, [length]])
    if (np.diff(bounds) < 0).any():
        raise AlignmentError(f"steps begin at {first.tolist()} of {length} tokens", wanted="ascending places within them")
    return np.repeat(np.concatenate([[np.nan], values]), np.diff(bounds))


def _reaches(credit: Floats, threshold: float) -> NDArray[np.bool_]:
    """Values are shares of K, so that a jump is at the threshold or not up to rounding alone."""
    reached: NDArray[np.bool_] = np.abs(credit) >= threshold - 1e-12
    return reached
