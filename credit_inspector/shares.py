"""Shares of credit with an interval: how much of what was paid went where.

A share is a ratio of sums over tokens. Its interval resamples whole responses (with both optimizer steps that trained on one),
since the tokens of a response stand and fall together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from credit_inspector.table import Floats

RESAMPLES = 1000
SEED = 0


@dataclass(frozen=True, slots=True)
class Share:
    """A ratio of sums with its 95 % bootstrap interval; NaN where nothing was paid."""

    value: float
    low: float
    high: float
    responses: int

    @property
    def text(self) -> str:
        """``41 %``, or ``n/a`` where nothing was paid."""
        return percent(self.value)

    @property
    def interval(self) -> str:
        """``95 % interval 37–45 %``."""
        return f"95 % interval {100 * self.low:.0f}–{100 * self.high:.0f} %" if np.isfinite(self.low) else "no interval"


def percent(value: float) -> str:
    """A share for a sentence; below 10 % with one decimal."""
    if not np.isfinite(value):
        return "n/a"
    return f"{100 * value:.1f} %" if 0 < abs(value) < 0.1 else f"{100 * value:.0f} %"


def share(part: Floats, whole: Floats, responses: Sequence[str]) -> Share:
    """The share ``Σ part / Σ whole`` of per-response sums, each array ``[n]``, with responses named for resampling.

    Entries of one name are resampled together.
    """
    n, ratios = resampled([(part, whole)], responses)
    if n == 0 or whole.sum() <= 0:
        return Share(np.nan, np.nan, np.nan, n)
    low, high = np.nanpercentile(ratios[0], [2.5, 97.5])
    return Share(float(part.sum() / whole.sum()), float(low), float(high), n)


def resampled(sums: Sequence[tuple[Floats, Floats]], responses: Sequence[str]) -> tuple[int, list[Floats]]:
    """How many responses there are, and for each ``(part, whole)`` its ``[RESAMPLES]`` shares.

    All from the same draws, so that two shares may be compared draw by draw; NaN where a draw has nothing paid.
    """
    names, member = np.unique(np.asarray(responses, dtype=object).astype(str), return_inverse=True)
    n = len(names)
    if not n:
        return 0, [np.full(RESAMPLES, np.nan) for _ in sums]
    drawn = np.random.default_rng(SEED).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    ratios = []
    for part, whole in sums:
        top, bottom = (drawn @ np.bincount(member, weights=values, minlength=n) for values in (part, whole))
        ratios.append(np.divide(top, bottom, out=np.full(RESAMPLES, np.nan), where=bottom > 0))
    return n, ratios
