"""Saliency: gradient × input of the answer's log-prob at each token's embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from credit_inspector.columns import Made
from credit_inspector.credit import credit
from credit_inspector.metrics.finite import finite_where_trained
from credit_inspector.spans import SpanTable
from credit_inspector.table import Provenance, TokenTable

if TYPE_CHECKING:
    from credit_inspector.scoring import Models


@credit(
    "credit/saliency",
    label="saliency",
    needs=("table", "spans", "models"),
    unit="nats",
    scope="rollout",
    family="earned",
    sign="+ the token's embedding speaks for the answer, − against it",
    provenance=Provenance.RECOMPUTED,
    cost="one forward and one backward",
)
def saliency(table: TokenTable, spans: SpanTable, models: Models) -> Made:
    """⟨e, ∂ log p(answer)/∂e⟩ at each token's embedding e (gradient × input; Shrikumar et al. 2016), signed.

    To first order what the answer would lose without the token's embedding. Its size says which tokens the answer
    looks at and weighs them in ``credit/influence``; by itself it tells filler from work badly. 0 after the answer.
    """
    from credit_inspector.scoring.answers import answers, without_answer
    from credit_inspector.scoring.saliency import saliency as products

    values = products(models, table, spans).astype("float64")
    missing = without_answer(answers(spans, table.n_rows))
    return finite_where_trained(table, values, models.note("policy"), models.temperature_note(table), missing)
