"""Gradient alignment: whether pushing a token up also pushes its response's answer up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from credit_inspector.columns import Made
from credit_inspector.credit import credit
from credit_inspector.metrics.finite import finite_where_trained
from credit_inspector.spans import SpanTable
from credit_inspector.table import Provenance, TokenTable

if TYPE_CHECKING:
    from credit_inspector.scoring import Models


@credit(
    "credit/alignment",
    label="alignment",
    needs=("table", "spans", "models"),
    unit="share of the answer's gradient",
    scope="rollout",
    family="earned",
    sign="+ learning the token also teaches the answer, − it unteaches it",
    provenance=Provenance.RECOMPUTED,
    cost="about ten forwards",
)
def alignment(table: TokenTable, spans: SpanTable, models: Models) -> Made:
    """⟨∇ log π(token), ∇ log p(answer)⟩ / ‖∇ log p(answer)‖², over all parameters; the answer's own tokens sum to 1.

    A small step that raises the token's log-prob along its gradient raises the answer's in this proportion. It tells
    what shares parameters with the answer, not what caused it; look at the answer's tokens and the others on scales
    of their own. Missing where the answer is so certain that its gradient is rounding.
    """
    from credit_inspector.scoring.alignment import align
    from credit_inspector.scoring.answers import answers, without_answer

    found = align(models, table, spans)
    norm2 = np.where(found.certain | (found.norm2 <= 0), np.nan, found.norm2)
    certain = int(found.certain.sum())
    notes = (
        models.note("policy"),
        models.temperature_note(table),
        f"by {found.way}" if found.way else "",
        f"{certain} of {table.n_rows} answers are certain and have no gradient" if certain else "",
        without_answer(answers(spans, table.n_rows)),
    )
    rough = Provenance.ESTIMATED if found.way == "central difference" else None
    return finite_where_trained(table, found.inner / table.to_tokens(norm2), *notes, provenance=rough)
