"""Backward elimination: which spans can be taken out, all together, without making the rest less likely.

Taking one span out while all else stays misjudges two things. Of two copies neither is missed, since the other one is still
there; and a step that is taken back ("3*5=15. No.") looks needed in each of its halves and is not as a whole. So spans go one
after another, from the last before the answer to the first, and stay out once spared::

    gone = {}
    for j from the last span before the answer to the first:
        loss(j) = what is left loses when j goes too          nats
        if loss(j) < spare:   gone += {j}
        elif loss({j−1, j}) < spare:   gone += {j−1, j}        a step and its retraction go together

What is left is the answer and the spans that were not spared. The answer counts with the whole drop of its log-prob; a span
that stays, with the drop of its tokens weighted by how much each matters to the answer (|gradient × input|, 1 for the
largest of the span), without its first token when it comes right after the gap: that one says how the seam reads. Later copies
go first, so that the first one is the one that is missed; filler does not count for the filler before it, since it is
gone by then. Drops are measured against the text without what is already gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from credit_inspector.scoring.answers import answers, opening
from credit_inspector.scoring.models import Models
from credit_inspector.scoring.occlusion import Removal, removals
from credit_inspector.scoring.saliency import saliency
from credit_inspector.spans import SpanTable
from credit_inspector.table import Floats, TokenTable


RUN = 3
STYLE = 1.0


@dataclass(frozen=True, slots=True)
class Elimination:
    """What backward elimination found."""

    loss: Floats
    """``[S]`` nats that the rest loses with the span (of a pair that goes together, half each); NaN where not tested."""
    spared: NDArray[np.bool_]
    """``[S]`` true where the span went."""


@dataclass(slots=True)
class _Response:
    """One response on its way: what is gone, what that did to the rest, and where it is."""

    row: int
    body: list[int]
    answer: int
    gone: set[int] = field(default_factory=set)
    drops: Floats = field(default_factory=lambda: np.zeros(0))
    at: int = 0

    def with_(self, *more: int) -> tuple[int, ...]:
        return tuple(sorted(self.gone | set(more)))


def eliminate(models: Models, table: TokenTable, spans: SpanTable, spare: float, role: str = "policy") -> Elimination:
    """Run backward elimination on every response that has an answer span and can be run.

    One forward for each span, one more where it is not spared alone; all responses run side by side.

    Args:
        models: the checkpoints.
        table: the step.
        spans: its spans, with the answer labelled.
        spare: nats below which a loss is none.
        role: the model asked.
    """
    weights = _weights(spans, np.abs(saliency(models, table, spans)))
    loss, spared = np.full(len(spans), np.nan), np.zeros(len(spans), np.bool_)
    runnable = set(models.lines(role, table)[0])
    waiting = [
        _Response(row, list(range(spans.of_row(row).start, opening(spans, int(answer)))), int(answer))
        for row, answer in enumerate(answers(spans, table.n_rows))
        if answer >= 0 and row in runnable
    ]
    for response in waiting:
        response.at = len(response.body) - 1
        response.drops = np.zeros(int(table.lengths[response.row]))
    while waiting := [response for response in waiting if response.at >= 0]:
        stuck = waiting
        for length in range(1, RUN + 1):
            stuck = _try_runs(models, table, spans, weights, spare, role, length, stuck, loss, spared)
        for response in stuck:
            response.at -= 1
    return Elimination(loss, spared)


def _try_runs(
    models: Models,
    table: TokenTable,
    spans: SpanTable,
    weights: Floats,
    spare: float,
    role: str,
    length: int,
    stuck: Sequence[_Response],
    loss: Floats,
    spared: NDArray[np.bool_],
) -> list[_Response]:
    """Try the run of ``length`` spans that ends where each response is; those that it did not spare."""
    runs = [response.body[max(response.at + 1 - length, 0) : response.at + 1] for response in stuck]
    able = [(response, run) for response, run in zip(stuck, runs, strict=True) if len(run) == length]
    tried = [response.with_(*run) for response, run in able]
    left = [response for response, run in zip(stuck, runs, strict=True) if len(run) < length]
    for (response, run), removal in zip(able, removals(models, table, spans, tried, role), strict=True):
        drops = _laid(table, response.row, removal)
        together = _loss(table, spans, weights, response, drops, *run)
        if length == 1 or together < spare:
            loss[run] = together / length
        if together < spare:
            _go(response, spared, drops, *run)
        else:
            left.append(response)
    return left


def _go(response: _Response, spared: NDArray[np.bool_], drops: Floats, *members: int) -> None:
    response.gone |= set(members)
    response.drops = drops
    response.at -= len(members)
    spared[list(members)] = True


def _laid(table: TokenTable, row: int, removal: Removal | None) -> Floats:
    """``[L]`` drops over the response's own tokens; 0 before the first token that went and where there is no value."""
    drops = np.zeros(int(table.lengths[row]))
    if removal is not None:
        drops[removal.first - int(table.offsets[row]) :] = np.nan_to_num(removal.drops.astype(np.float64))
    return drops


def _loss(
    table: TokenTable, spans: SpanTable, weights: Floats, response: _Response, drops: Floats, *members: int
) -> float:
    """What is left loses when ``members`` go too, against the text without what is gone already."""
    begin = int(table.offsets[response.row])
    more = drops - response.drops

    def part(span: int, first: int = 0) -> Floats:
        return more[spans.start[span] + first - begin : spans.end[span] - begin]

    total = float(part(response.answer).sum())
    last = max(members)
    for span in response.body:
        if span <= last or span in response.gone:
            continue
        weighted = part(span) * weights[spans.start[span] : spans.end[span]]
        if all(between in response.gone for between in range(last + 1, span)):
            opening_word = int(spans.leads[span])
            weighted[opening_word] = max(part(span)[opening_word] - STYLE, 0.0)
        total += max(float(weighted.sum()), 0.0)
    return total


def _weights(spans: SpanTable, size: NDArray[np.floating]) -> Floats:
    """``[T]`` how much a token matters to the answer within its span: 1 for the largest; 1 everywhere where none does."""
    weights = np.ones(len(size))
    known = np.nan_to_num(size.astype(np.float64))
    for start, end in zip(spans.start, spans.end, strict=True):
        if (most := known[start:end].max(initial=0.0)) > 0:
            weights[start:end] = known[start:end] / most
    return weights
