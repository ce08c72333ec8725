"""What the policy loss alone tells each token."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from credit_inspector.algorithm import Algorithm
from credit_inspector.columns import Made
from credit_inspector.credit import credit
from credit_inspector.errors import MissingColumn
from credit_inspector.losses import LossInputs, Push, losses
from credit_inspector.metrics.finite import finite_where_trained
from credit_inspector.metrics.ratio import Known, old_logprob, policy_logprob, update_log_ratio
from credit_inspector.table import Floats, TokenTable


class Pushed(NamedTuple):
    """A policy loss's answer and what had to be assumed for it."""

    push: Push
    note: str


def pushed(table: TokenTable, algorithm: Algorithm, advantage: Floats, weight: Floats) -> Pushed:
    """Run the rule's policy loss over one step; all arrays ``[T]``.

    Raises:
        UsageError: the rule names a loss that does not exist.
        MissingColumn: the loss needs log-probs that nobody recorded.
    """
    loss = losses[algorithm.loss]
    try:
        log_ratio, missing = update_log_ratio(table, algorithm), None
    except MissingColumn as error:
        log_ratio, missing = _unknown(table), error
    inputs = LossInputs(
        table=table,
        algorithm=algorithm,
        logprob=_clean(table, _or_unknown(policy_logprob, table, algorithm)),
        old=_clean(table, _or_unknown(old_logprob, table, algorithm)),
        log_ratio=_clean(table, log_ratio.values),
        advantage=_clean(table, advantage),
        weight=_clean(table, weight),
        rollout=_clean(table, table.values("logprob/rollout") if table.has("logprob/rollout") else _unknown(table).values),
        kept=table.loss_mask,
    )
    push = loss(inputs)
    if missing and not np.isfinite(push.coefficient).any():
        raise missing
    return Pushed(push, log_ratio.note)


@credit(
    "credit/policy_push",
    label="push of the policy loss",
    needs=("table", "algorithm", "advantage", "weight"),
    after=("logprob/policy", "logprob/old"),
    unit="1 / nat",
    scope="batch",
    family="assigned",
    sign="+ pushed up, − pushed down",
)
def policy_push(table: TokenTable, algorithm: Algorithm, advantage: Floats, weight: Floats) -> Made:
    """−dL/dlogπ of the policy loss alone: advantage × weight × what the loss makes of the ratio; 0 where it is cut."""
    found = pushed(table, algorithm, advantage, weight)
    return finite_where_trained(table, 0.0 - found.push.coefficient, f"loss {algorithm.loss}", found.note)


def _clean(table: TokenTable, values: Floats) -> Floats:
    """NaN where not trained or not finite, so that no loss ever sees a masked or an infinite number."""
    return np.where(table.loss_mask & np.isfinite(values), values, np.nan)


def _unknown(table: TokenTable) -> Known:
    return Known(np.full(table.n_tokens, np.nan))


def _or_unknown(look: Callable[[TokenTable, Algorithm], Known], table: TokenTable, algorithm: Algorithm) -> Floats:
    try:
        return look(table, algorithm).values
    except MissingColumn:
        return _unknown(table).values
