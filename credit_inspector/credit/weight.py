"""The weight of each token in the loss: how the loss is averaged decides how much of an advantage one token gets."""

from __future__ import annotations

import numpy as np

from credit_inspector.algorithm import Algorithm
from credit_inspector.columns import Made
from credit_inspector.credit import credit
from credit_inspector.errors import MissingColumn
from credit_inspector.metrics.finite import finite_where_trained
from credit_inspector.table import Floats, TokenTable


def token_weights(table: TokenTable, algorithm: Algorithm) -> Floats:
    """``[T]`` each trained token's weight, NaN elsewhere.

    N trained tokens of the step, n of the response, B responses, H the horizon:

    =========================  =============  =======================================================================
    aggregation                weight         trainer
    =========================  =============  =======================================================================
    token-mean                 1 / N          TRL ``dapo``, ``cispo``, ``bnpo`` with one micro-batch; verl's default
    token-sum                  1              verl
    seq-mean-token-mean        1 / (B n)      TRL ``grpo``, verl
    seq-mean-token-sum, luspo  1 / B          verl, TRL ``luspo``
    seq-mean-token-sum-norm    1 / (B H)      Dr. GRPO (Liu et al. 2025): TRL ``dr_grpo``, verl
    =========================  =============  =======================================================================

    B counts responses without a trained token only where ``Algorithm.count_empty`` says so. The step is the batch: what
    a trainer cuts into micro-batches for memory is put together again.

    Raises:
        MissingColumn: the rule divides by a horizon that is not known.
    """
    lengths = table.trained_lengths
    responses = table.n_rows if algorithm.count_empty else np.count_nonzero(lengths)
    each = np.maximum(responses, 1) * np.ones(table.n_rows)
    match algorithm.aggregation:
        case "token-mean":
            each = np.full(table.n_rows, max(int(lengths.sum()), 1), np.float64)
        case "token-sum":
            each = np.ones(table.n_rows)
        case "seq-mean-token-mean":
            each *= np.maximum(lengths, 1)
        case "seq-mean-token-sum-norm":
            each *= _horizon(algorithm)
        case "seq-mean-token-sum" | "luspo":
            pass
    return table.trained(table.to_tokens(1 / each))


@credit(
    "weight",
    label="weight in the loss",
    needs=("table", "algorithm"),
    unit="1 / tokens",
    scope="batch",
    family="assigned",
)
def weight(table: TokenTable, algorithm: Algorithm) -> Made:
    """The token's weight in the loss under the rule's aggregation: what multiplies its advantage, for + and − alike."""
    tokens, rows = int(table.trained_lengths.sum()), int(np.count_nonzero(table.trained_lengths))
    note = f"{algorithm.name} ({algorithm.source}): {algorithm.aggregation}, {tokens} trained tokens of {rows} responses"
    if empty := table.n_rows - rows:
        note += f"; {empty} without a trained token {'count' if algorithm.count_empty else 'do not count'}"
    return finite_where_trained(table, token_weights(table, algorithm), note)


def _horizon(algorithm: Algorithm) -> float:
    if not algorithm.horizon or algorithm.horizon < 0:
        raise MissingColumn(
            f"{algorithm.name} divides by a constant length that is not known",
            do="give the run's setting as horizon (TRL: max_completion_length; verl: loss_scale_factor)",
        )
    return algorithm.horizon
