"""Σp² of the policy where each token was sampled; with the token's own p, the length of its gradient at the logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from credit_inspector.columns import Made
from credit_inspector.metrics import metric
from credit_inspector.metrics.finite import finite_where_trained
from credit_inspector.table import Provenance, TokenTable

if TYPE_CHECKING:
    from credit_inspector.scoring import Models


@metric(
    "sum_p2/policy",
    label="Σp²",
    needs=("table", "models"),
    unit="1",
    scope="token",
    family="policy",
    provenance=Provenance.RECOMPUTED,
    cost="one forward",
)
def sum_p2(table: TokenTable, models: Models) -> Made:
    """Sum over the vocabulary of the policy's p², between 1/vocabulary and 1 (certain).

    The gradient of a token's log-prob at the logits has the length √(1 − 2p + Σp²) over the temperature.
    """
    values = models.scores("policy", table).sum_p2
    return finite_where_trained(table, values.astype("float64"), models.note("policy"), models.temperature_note(table))
