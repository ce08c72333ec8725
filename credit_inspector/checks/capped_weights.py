"""Importance weights that pile up at their cap."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from credit_inspector.checks import check
from credit_inspector.checks._own import read_own
from credit_inspector.errors import MissingColumn
from credit_inspector.metrics.ratio import old_logprob
from credit_inspector.metrics.statistics import truncated
from credit_inspector.panel import Finding, Severity
from credit_inspector.shares import percent
from credit_inspector.store import Store
from credit_inspector.table import Floats, Provenance, TokenTable

CODE = "weights-at-cap"
COLUMNS = ("rollout_weight", "logprob/old", "logprob/policy", "logprob/rollout")
WARN = 0.01
"""Share of tokens at the cap from which on the cap, and not the weight, decides."""
FEW = 5


class Capped(NamedTuple):
    """One step's weights."""

    step: int
    cap: float
    share: float
    """Of tokens whose weight is above the cap, or equal to it where only used weights are stored."""
    tokens: int
    used_mean: float
    raw_max: float
    """NaN where only used weights are stored."""
    raw_mean: float


@check(CODE)
def capped_weights(store: Store) -> list[Finding]:
    """How many correction weights were held at their cap, with the figures before and after; a maximum after it says nothing."""
    found = measure(store)
    if not found:
        return []
    worst = max(found, key=lambda capped: capped.share)
    known = np.isfinite(worst.raw_max)
    raw = (
        f"raw maximum {worst.raw_max:.4g}, mean {worst.raw_mean:.5g}; used mean {worst.used_mean:.5g}"
        if known
        else f"raw maximum unknown, used mean {worst.used_mean:.5g}"
    )
    return [
        Finding(
            code=CODE,
            severity=Severity.WARNING if worst.share > WARN else Severity.INFO,
            sentence=f"Step {worst.step}: values pile up at {worst.cap:g}: {percent(worst.share)} of the correction weights are "
            f"held there ({raw}).",
            how_sure=f"{worst.tokens} trained tokens of step {worst.step}; {len(found)} of {len(store.steps)} steps have any",
            why="A maximum that is logged after truncation always equals the cap and hides how far engine and trainer are apart.",
            do="Log weights before truncation, and look at log_ratio/rollout for the tokens that are cut.",
            numbers={
                "cap": worst.cap,
                "share": worst.share,
                "raw_max": worst.raw_max,
                "raw_mean": worst.raw_mean,
                "used_mean": worst.used_mean,
                "steps": len(found),
            },
        )
    ]


def measure(store: Store) -> list[Capped]:
    """The steps with a token at the cap."""
    found = (_capped(read_own(store, step, COLUMNS)) for step in store.steps)
    return [capped for capped in found if capped is not None]


def _capped(table: TokenTable) -> Capped | None:
    used, cap = _stored(table), _cap(table)
    if cap is None:
        cap = _pile(table)
    if cap is None:
        return None
    raw = _log_weights(table)
    if raw is not None:
        figures = truncated(raw, cap)
        share, tokens, mean = figures.share, len(raw), figures.used_mean
        raw_max, raw_mean = figures.raw_max, figures.raw_mean
    elif len(used):
        share, tokens, mean = float((used >= cap * (1 - 1e-6)).mean()), len(used), float(used.mean())
        raw_max = raw_mean = np.nan
    else:
        return None
    return Capped(table.step, cap, share, tokens, mean, raw_max, raw_mean) if share > 0 else None


def _cap(table: TokenTable) -> float | None:
    """The bound at which the rule holds weights of single tokens."""
    rule = table.algorithm
    if rule is None or rule.rollout_outside != "truncate" or rule.rollout_weight != "token":
        return None
    return rule.rollout_high


def _pile(table: TokenTable) -> float | None:
    """The largest stored weight where many tokens have exactly it, not all of one response, and it is no weight of 1."""
    used = _stored(table)
    if not len(used) or not used.max() > 1:
        return None
    at_top = table.trained(table.values(COLUMNS[0])) == used.max()
    count, responses = int(np.count_nonzero(at_top)), int(np.count_nonzero(table.sum_by_row(at_top)))
    if responses == 1 and np.count_nonzero(table.trained_lengths) > 1:
        # One response with one weight for all of its tokens has the largest by itself.
        return None
    return float(used.max()) if count >= FEW and count > WARN * len(used) and count < len(used) else None


def _stored(table: TokenTable) -> Floats:
    """``[n]`` correction weights as the trainer stored them; empty where it did not."""
    column = table.columns.get("rollout_weight")
    if column is None or column.values is None or column.provenance is not Provenance.RECORDED:
        return np.zeros(0)
    values = column.values[table.loss_mask].astype(np.float64)
    return values[np.isfinite(values)]


def _log_weights(table: TokenTable) -> Floats | None:
    """``[n]`` logs of the weights before any cap; ``None`` where one of the log-probs is not recorded."""
    if not table.has("logprob/rollout"):
        return None
    try:
        old = old_logprob(table, table.algorithm).values
    except MissingColumn:
        return None
    with np.errstate(invalid="ignore"):
        apart = (old - table.values("logprob/rollout"))[table.loss_mask]
    return apart[np.isfinite(apart)]
