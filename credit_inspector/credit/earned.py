"""Earned credit, the default: what the rest of a response would lose without a span, and whether that is nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from credit_inspector.columns import Made
from credit_inspector.credit import credit
from credit_inspector.credit.occlusion import by_span_column
from credit_inspector.spans import SpanTable
from credit_inspector.table import Floats, Provenance, TokenTable

if TYPE_CHECKING:
    from credit_inspector.scoring import Models
    from credit_inspector.scoring.elimination import Elimination

SPARE = 0.7
"""Nats. A span whose loss stays below it makes the rest at most twice as unlikely, in sum over all of its tokens."""
SHARED = 0.25
"""Rate difference from which right siblings are said to have something more often than wrong ones (one standard error)."""
ALIGNED = 1.0
"""Mean |alignment| a token: as much of the answer's gradient as the whole answer has of itself."""


@credit(
    "credit/earned",
    label="earned",
    needs=("table", "spans", "models"),
    unit="nats",
    scope="rollout",
    family="earned",
    sign="+ the answer and the steps that lead to it lose that much without the span",
    provenance=Provenance.RECOMPUTED,
    cost="one to two forwards for each span, one backward",
)
def earned(table: TokenTable, spans: SpanTable, models: Models) -> Made:
    """What the answer and the steps that are needed lose in log-prob when the span goes, on each of its tokens.

    By backward elimination: what can be spared later in the response is gone already, so that the first of two copies is the
    one that earned, and a step and its retraction are judged together. The answer itself has no value.
    """
    found = _eliminated(table, spans, models)
    return by_span_column(table, spans, models, found.loss, f"spared below {SPARE} nats")


@credit(
    "credit/unearned",
    label="unearned",
    needs=("table", "spans", "models", "credit/alignment", "credit/contrast"),
    unit="1 unearned, 0 earned",
    scope="group",
    family="earned",
    provenance=Provenance.ESTIMATED,
)
def unearned(table: TokenTable, spans: SpanTable, models: Models, alignment: Floats, contrast: Floats) -> Made:
    """1 where a span earned nothing by at least two kinds of evidence, 0 where it earned, NaN where the evidence is at odds.

    The intervention decides (``credit/earned`` below its bar), and one witness has to agree: its tokens share little gradient
    with the answer, or right siblings do not have them more often than wrong ones. Markup and the answer have no value.
    """
    found = _eliminated(table, spans, models)
    gradient = spans.means(np.abs(alignment))
    siblings = spans.means(contrast)
    agrees = (gradient < ALIGNED) | (siblings < SHARED) | (np.isnan(gradient) & np.isnan(siblings))
    verdict = np.where(found.spared, np.where(agrees, 1.0, np.nan), np.where(np.isnan(found.loss), np.nan, 0.0))
    odd = int((found.spared & ~agrees).sum())
    return by_span_column(table, spans, models, verdict, f"{odd} spans with evidence at odds" if odd else "")


def _eliminated(table: TokenTable, spans: SpanTable, models: Models) -> Elimination:
    from credit_inspector.scoring.elimination import eliminate

    return models.once(
        ("eliminate", models.checkpoint("policy").path), lambda: eliminate(models, table, spans, SPARE), table, spans
    )
