"""Exact KL divergence from the policy to the reference at each position, over the whole vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from credit_inspector.columns import Made
from credit_inspector.metrics import metric
from credit_inspector.metrics.finite import finite_where_trained
from credit_inspector.table import Provenance, TokenTable

if TYPE_CHECKING:
    from credit_inspector.scoring import Models


@metric(
    "kl/exact",
    label="KL, exact",
    needs=("table", "models"),
    unit="nats",
    scope="token",
    family="policy",
    provenance=Provenance.RECOMPUTED,
    cost="one forward of policy and reference",
)
def kl_exact(table: TokenTable, models: Models) -> Made:
    """KL(π‖π_ref) = Σ p (log p − log p_ref) over the vocabulary where the token was sampled; never negative.

    What the estimators k1 and k3 (Schulman 2020) hit on average, without their noise.
    """
    values = models.kl("policy", "ref", table)
    notes = (models.note("policy"), models.note("ref"), models.temperature_note(table))
    return finite_where_trained(table, values.astype("float64"), *notes)
