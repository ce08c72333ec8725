"""Which ratios are outside the rule's interval, whatever the sign of the advantage.

Half of these tokens usually keep their gradient: only one bound can cut, the one that the advantage pushes towards. What is
really cut is the column ``clip``.
"""

from __future__ import annotations

import numpy as np

from credit_inspector.algorithm import Algorithm
from credit_inspector.columns import Made
from credit_inspector.metrics import metric
from credit_inspector.metrics.finite import finite_where_trained
from credit_inspector.metrics.ratio import update_log_ratio
from credit_inspector.metrics.sequence_ratio import sequence_mean, sequence_sum
from credit_inspector.table import Floats, TokenTable

_LEVELS = {"token": "token", "sequence": "geometric mean", "sequence-token": "geometric mean", "product": "product"}


@metric(
    "outside",
    label="ratio outside",
    needs=("table", "algorithm"),
    after=("logprob/policy", "logprob/old"),
    unit="code",
    scope="rollout",
    family="policy",
)
def outside(table: TokenTable, algorithm: Algorithm) -> Made:
    """Whether the ratio is outside the rule's interval: +1 above, −1 below, 0 inside; the advantage's sign plays no part.

    The share of tokens that are not 0 is the classic clip fraction mean(|ρ − 1| > ε) of PPO code (OpenAI baselines).
    """
    known = update_log_ratio(table, algorithm)
    low, high = algorithm.ratio_bounds
    log_ratio = _at_level(table, algorithm, known.values)
    with np.errstate(over="ignore"):
        ratio = np.exp(log_ratio)
    codes = np.where(np.isnan(ratio), np.nan, (ratio > high).astype(np.float64) - (ratio < low))
    rule = f"interval {low:g} to {high:g}, ratio by {_LEVELS[algorithm.ratio_level]}"
    return finite_where_trained(table, codes, rule, known.note)


def _at_level(table: TokenTable, algorithm: Algorithm, log_ratio: Floats) -> Floats:
    match algorithm.ratio_level:
        case "token":
            return log_ratio
        case "product":
            return table.to_tokens(sequence_sum(table, log_ratio))
        case "sequence" | "sequence-token":
            return table.to_tokens(sequence_mean(table, log_ratio))
