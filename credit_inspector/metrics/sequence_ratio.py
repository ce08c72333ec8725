"""Log-ratios of whole responses: the mean over trained tokens, and the sum.

"Sequence ratio" means two things. The geometric one, exp(mean log-ratio), is GSPO's and stays near 1; the product,
exp(sum), is TRL's RLOO's and leaves every float as responses grow: 71,000 tokens of 0.01 make e^710. Both are kept as logs
here, and no sum is ever exponentiated.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from credit_inspector.columns import Made
from credit_inspector.metrics import metric
from credit_inspector.metrics.finite import finite_where_trained
from credit_inspector.metrics.ratio import old_logprob, update_log_ratio
from credit_inspector.table import Floats, TokenTable

_by_row = partial(
    metric,
    needs=("table",),
    after=("logprob/policy", "logprob/old"),
    unit="nats",
    scope="rollout",
    family="policy",
)


def sequence_mean(table: TokenTable, log_ratio: Floats) -> Floats:
    """``[T]`` → ``[N]`` the mean over each response's trained tokens that have one; NaN where none has.

    The log of GSPO's ratio (Zheng et al. 2025, eq. 7); slime's ``compute_gspo_kl`` is its negative.
    """
    return table.mean_by_row(log_ratio, table.loss_mask)


def sequence_sum(table: TokenTable, log_ratio: Floats) -> Floats:
    """``[T]`` → ``[N]`` the sum over each response's trained tokens that have one; NaN where none has."""
    known = table.loss_mask & np.isfinite(log_ratio)
    total = table.sum_by_row(np.where(known, log_ratio, 0.0))
    return np.where(table.sum_by_row(known) > 0, total, np.nan)


@_by_row(
    "log_ratio/sequence_mean",
    label="log ratio, response mean",
    sign="+ the response is more likely than when it was sampled, − less likely",
)
def mean_log_ratio(table: TokenTable) -> Made:
    """Mean of log π − log π_old over the response's trained tokens; its exponential is GSPO's geometric sequence ratio."""
    known = update_log_ratio(table, table.algorithm)
    return _laid(table, sequence_mean(table, known.values), known.values, known.note)


@_by_row(
    "log_ratio/sequence_sum",
    label="log ratio, response sum",
    sign="+ the response is more likely than when it was sampled, − less likely",
)
def sum_log_ratio(table: TokenTable) -> Made:
    """Sum of log π − log π_old over the response's trained tokens: the log of the product ratio, which grows with length."""
    known = update_log_ratio(table, table.algorithm)
    return _laid(table, sequence_sum(table, known.values), known.values, known.note)


@_by_row(
    "log_ratio/rollout_sequence_mean",
    label="trainer − engine, response mean",
    sign="+ the trainer finds the response more likely than the engine did, − less likely",
)
def mean_rollout_log_ratio(table: TokenTable) -> Made:
    """Mean of the trainer's minus the engine's log-prob over the response's trained tokens; 0 where both compute alike."""
    engine, old = table.values("logprob/rollout"), old_logprob(table, table.algorithm)
    with np.errstate(invalid="ignore"):
        apart = old.values - engine
    return _laid(table, sequence_mean(table, apart), apart, old.note)


def _laid(table: TokenTable, by_row: Floats, log_ratio: Floats, note: str) -> Made:
    absent = int(np.count_nonzero(table.loss_mask & ~np.isfinite(log_ratio)))
    said = f"{absent} trained {'token' if absent == 1 else 'tokens'} without a log-ratio not in it" if absent else ""
    return finite_where_trained(table, table.to_tokens(by_row), note, said)
