"""Influence: what the answer owes to a span, also through the later spans that would not have been written without it.

Deleting a span while forcing the rest measures its direct effect only. Work that the next sentence carries on is then
worth nothing, or less: the answer can be read off the next sentence. So a span is taken out here *together with what
it caused*.

**What it caused.** Deleting j lowers the log-prob of each token t of a later span k by drop_t. With weights w_t that
say how much the tokens of k matter to the answer (|gradient × input|, in sum 1 within k)::

    dep(j→k)  = 1 − exp(−max(0, Σ_{t∈k} w_t drop_t))          the chance that what matters of k would not be there
    lost(j,k) = max over chains j→…→k of the product of dep    lost(j,j) = 1

The weights keep style out: a filler makes the next filler likely, and a sentence its own first word, but not the
numbers that the answer is made of.

**What the answer owes to it.** With F(·) = log p(answer) after deleting spans and forcing the rest::

    E(j) = ∫₀¹ [F(nothing) − F(every k with lost(j,k) ≥ u)] du        nats

by the midpoint rule with four points. Written along the spans it lets go, E(j) = D(j) + Σ_k flow(j→k) · share(k): the
direct effect D, and for each later span the part of it that is lost times what the answer loses *then*, with j and
everything lost before k already gone. A span that does not matter to the answer carries nothing on, however strongly
it depends on j.

**Copies.** Where c merely repeats o, deletion gives about 0 to both and a sum over paths would, too. Here c goes with
o, so that o has all of the credit, and c, deleted alone, none.
"""

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

LEVELS = (0.125, 0.375, 0.625, 0.875)
"""Midpoints of four equal parts of [0, 1]. A dependence below the first one moves nothing: that much is noise."""


@credit(
    "credit/influence",
    label="influence",
    needs=("table", "spans", "models"),
    unit="nats",
    scope="rollout",
    family="earned",
    sign="+ the answer is less likely without the span and what came of it, − more likely",
    provenance=Provenance.RECOMPUTED,
    cost="two to five forwards for each span, one backward",
)
def influence(table: TokenTable, spans: SpanTable, models: Models) -> Made:
    """Drop of log p(answer) when the span is deleted together with what would not have been written without it.

    Later spans go with the share in which the tokens that matter to the answer (by gradient × input) depend on the
    span, in one hop or several. The first of two copies has the credit. A span after the answer has exactly 0; the
    answer and its opening markup have no value.
    """
    from credit_inspector.scoring.answers import answers, opening
    from credit_inspector.scoring.occlusion import answer_drops, delete_each, influence_matrix
    from credit_inspector.scoring.saliency import saliency

    deleted = delete_each(models, table, spans)
    weights = weights_within(spans, saliency(models, table, spans))
    by_span = np.full(len(spans), np.nan)
    sets: list[tuple[int, ...]] = []
    for row, answer in enumerate(answers(spans, table.n_rows)):
        numbers = spans.of_row(row)
        if answer < 0 or deleted[numbers.start] is None:
            continue
        by_span[answer + 1 : numbers.stop] = 0.0
        before = opening(spans, int(answer)) - numbers.start
        lost = lost_with(influence_matrix(spans, deleted, row, weights)[:before, :before])
        for j in range(before):
            sets += [tuple(numbers.start + np.flatnonzero(lost[j] >= level)) for level in LEVELS]
    drops = np.reshape(answer_drops(models, table, spans, sets), (-1, len(LEVELS)))
    # The first member of a set is the span it was made for: only later ones go with it.
    by_span[[members[0] for members in sets[:: len(LEVELS)]]] = drops.mean(1)
    return by_span_column(table, spans, models, by_span, f"{len(LEVELS)} levels of dependence")


def weights_within(spans: SpanTable, saliency: NDArray[np.float32]) -> Floats:
    """``[T]`` |saliency| in sum 1 within each span; equal within a span where all of it is 0 or missing."""
    size = np.nan_to_num(np.abs(saliency.astype(np.float64)))
    weights = np.zeros(len(size))
    for start, end in zip(spans.start, spans.end, strict=True):
        total = size[start:end].sum()
        weights[start:end] = size[start:end] / total if total > 0 else 1 / (end - start)
    return weights


def lost_with(drops: Floats) -> Floats:
    """From weighted drops to lost(j, k), both ``[n, n]``: row = span deleted, column = later span."""
    depends = -np.expm1(-np.maximum(np.nan_to_num(drops), 0.0))
    lost = np.eye(len(drops))
    for k in range(len(drops)):
        lost[:k, k] = (lost[:k, :k] * depends[:k, k]).max(axis=1, initial=0.0)
    return lost
