"""Realised credit: what training did to each token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from credit_inspector.columns import Made
from credit_inspector.credit import credit
from credit_inspector.metrics.finite import finite_where_trained
from credit_inspector.table import Provenance, TokenTable

if TYPE_CHECKING:
    from credit_inspector.scoring import Models


@credit(
    "credit/realised",
    label="realised",
    needs=("table", "models"),
    unit="nats",
    scope="token",
    family="realised",
    sign="+ became more likely, − less likely",
    provenance=Provenance.RECOMPUTED,
    cost="one forward of each checkpoint",
)
def realised(table: TokenTable, models: Models) -> Made:
    """Change of the sampled token's log-prob from the last checkpoint before the update to the first one after it.

    Both are computed again by the same code, so that a difference is the weights' and not a kernel's.
    """
    before, after = (models.scores(role, table).logprob.astype("float64") for role in ("before", "after"))
    note = f"from {models.note('before')} to {models.note('after')}"
    return finite_where_trained(table, after - before, note, models.temperature_note(table))
