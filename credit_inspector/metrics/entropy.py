"""Entropy of the policy where each token was sampled: how open the choice was."""

from __future__ import annotations

from typing import TYPE_CHECKING

from credit_inspector.columns import Made
from credit_inspector.metrics import metric
from credit_inspector.metrics.finite import finite_where_trained
from credit_inspector.table import Provenance, TokenTable

if TYPE_CHECKING:
    from credit_inspector.scoring import Models


@metric(
    "entropy/policy",
    label="entropy",
    needs=("table", "models"),
    unit="nats",
    scope="token",
    family="policy",
    provenance=Provenance.RECOMPUTED,
    cost="one forward",
)
def entropy(table: TokenTable, models: Models) -> Made:
    """Entropy −Σ p log p of the policy over the vocabulary where the token was sampled, at the sampling temperature.

    High at forks, where few tokens decide the rest (Wang et al. 2025, "Beyond the 80/20 rule").
    """
    values = models.scores("policy", table).entropy
    return finite_where_trained(table, values.astype("float64"), models.note("policy"), models.temperature_note(table))
