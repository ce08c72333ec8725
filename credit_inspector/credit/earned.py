"""Earned credit, the default: what the rest of a response would lose without a span, and whether that is nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from credit_inspector.columns import Made
from credit_inspector.credit import credit
from credit_inspector.credit.occlusion import by_span_column
from credit_inspector.spans import SpanTable
from credit_inspector.table import Floats, Provenance, TokenTable

if TYPE_CHECKING:
    from credit_inspector.scoring import Models
    from credit_inspector.scoring.elimination import Elimination

ALIKE, OFTENER = 0.25, 0.5
"""Rate differences: right siblings have a span no more often than wrong ones below the first (about one standard error with
four of each), and more often from the second on (two)."""


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
    from credit_inspector.scoring.elimination import SPARE

    found = _eliminated(table, spans, models)
    return by_span_column(table, spans, models, found.loss, f"spared below {SPARE:.2f} nats")


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
    """1 where a span earned nothing, 0 where it earned, NaN where the evidence is at odds.

    The intervention decides (``credit/earned``: the span was spared). Two witnesses are heard: whether its tokens share less
    gradient with the answer than the best earning span of the response, and whether right siblings do not have them more often
    than wrong ones. Where siblings speak against it and the gradient does not speak for it, there is no verdict; the note counts
    the spans for which at least one witness agrees. Markup and the answer have no value.
    """
    found = _eliminated(table, spans, models)
    gradient, siblings = spans.means(np.abs(alignment)), spans.means(contrast)
    low = gradient < _best_earning(spans, np.where(found.spared, np.nan, gradient), ~np.isnan(found.loss))
    against = (siblings >= OFTENER) & ~low
    verdict = np.where(found.spared, np.where(against, np.nan, 1.0), np.where(np.isnan(found.loss), np.nan, 0.0))
    seconded, odd = (low | (siblings < ALIKE)) & (verdict == 1), int((found.spared & against).sum())
    notes = (
        f"{int(seconded.sum())} of {int((verdict == 1).sum())} unearned spans have a second kind of evidence",
        f"{odd} spans with evidence at odds" if odd else "",
    )
    return by_span_column(table, spans, models, verdict, *notes)


def _best_earning(spans: SpanTable, gradient: Floats, tested: NDArray[np.bool_]) -> Floats:
    """``[S]`` the largest gradient share among the earning spans of the same response; NaN where there is none."""
    known = np.where(tested & np.isfinite(gradient), gradient, -np.inf)
    best = np.full(int(spans.row.max(initial=-1)) + 1, -np.inf)
    np.maximum.at(best, spans.row, known)
    return np.where(np.isfinite(best[spans.row]), best[spans.row], np.nan)


def _eliminated(table: TokenTable, spans: SpanTable, models: Models) -> Elimination:
    from credit_inspector.scoring.elimination import eliminate

    return models.once(("eliminate", models.checkpoint("policy").path), lambda: eliminate(models, table, spans), table, spans)
