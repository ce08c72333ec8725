"""Delivered credit: what of a push reaches the logits."""

from __future__ import annotations

import numpy as np

from credit_inspector.algorithm import Algorithm
from credit_inspector.columns import Made
from credit_inspector.credit import credit
from credit_inspector.errors import MissingColumn
from credit_inspector.metrics.finite import finite_where_trained
from credit_inspector.table import Floats, TokenTable


def logit_share(logprob: Floats, sum_p2: Floats) -> Floats:
    """``[T]`` ‖onehot − p‖ = √(1 − 2p + Σp²) from the sampled token's log-prob and the sum of squared probabilities.

    Written as √((1 − p)² + Σ_{v≠y} p_v²) with the last sum held within 0 and (1 − p)²: it cannot be larger, and a Σp²
    stored in float32 would otherwise give a sure token (1 − p = 1e-8) a share of 2e-4.
    """
    probability, rest = np.exp(logprob), -np.expm1(logprob)
    others = np.clip(sum_p2 - probability**2, 0.0, rest**2)
    share: Floats = np.sqrt(rest**2 + others)
    return share


@credit(
    "credit/delivered",
    label="delivered credit",
    needs=("table", "algorithm", "credit/coefficient", "logprob/policy", "sum_p2/policy"),
    unit="1 / logit",
    scope="batch",
    family="assigned",
    sign="+ pushed up, − pushed down",
)
def delivered(table: TokenTable, algorithm: Algorithm, coefficient: Floats, logprob: Floats, sum_p2: Floats) -> Made:
    """The size of the loss's gradient at the token's logits, |coefficient| · ‖onehot − p‖ / temperature, with its sign.

    A token that the policy was sure of receives almost nothing, however large its advantage.
    """
    if algorithm.temperature <= 0:
        raise MissingColumn(
            f"at temperature {algorithm.temperature:g} there is no distribution to send credit to",
            wanted="a temperature above 0",
        )
    known = table.loss_mask & np.isfinite(logprob) & np.isfinite(sum_p2)
    share = logit_share(np.where(known, logprob, np.nan), np.where(known, sum_p2, np.nan))
    return finite_where_trained(table, coefficient * share / algorithm.temperature)
