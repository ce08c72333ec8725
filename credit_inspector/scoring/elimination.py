"""Backward elimination: which spans can be taken out, all together, without making the rest less likely.

Taking one span out while all else stays misjudges two things. Of two copies neither is missed, since the other one is still
there; and a step that is taken back ("3*5=15. No.") looks needed in each of its halves and is not as a whole. So spans go one
after another, from the last before the answer to the first, and stay out once spared::

    gone = {}
    for j from the last span before the answer to the first:
        for run in {j}, {j−1, j}, {j−2, j−1, j}:
            loss(run) = what is left loses when the run goes too          nats
            if loss(run) < SPARE:   gone += run, and on to the span before it

What is left is the answer and the spans that were not spared. The answer counts with the whole drop of its log-prob; a span
that stays, with the drop of its tokens, each weighted by the root of how much it matters to the answer (|gradient × input|, 1
for the largest of the span). The first word after a gap also says which kind of sentence comes next, and that much (STYLE) is
forgiven. Later copies go first, so that the first one is missed; filler does not count for the filler before it, since it is
gone by then. Drops are measured against the text without what is already gone.

The constants are round figures in bits, set on one sample run and checked on another one with its own seed and templates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from credit_inspector.scoring.answers import answers, opening
from credit_inspector.scoring.models import Models
from credit_inspector.scoring.occlusion import Removal, removals, seam
from credit_inspector.scoring.saliency import saliency
from credit_inspector.spans import SpanTable
from credit_inspector.table import Floats, TokenTable

RUN = 3
"""The longest run of spans that is tried as one: a step, its retraction, and a word after it."""
STYLE = math.log(2)
"""Nats, one bit: what the first word after a gap may lose to the question what kind of sentence comes next."""
SPARE = math.log(2) / 2
"""Nats, half a bit: a loss below it is none."""


@dataclass(frozen=True, slots=True)
class Elimination:
    """What backward elimination found."""

    loss: Floats
    """``[S]`` nats that the rest loses with the span (of a run that goes together, an equal part); NaN where not tested."""
    spared: NDArray[np.bool_]
    """``[S]`` true where the span went."""


def eliminate(models: Models, table: TokenTable, spans: SpanTable, role: str = "policy") -> Elimination:
    """Run backward elimination on every response that has an answer span and can be run.

    One to three forwards for each span; all responses run side by side.
    """
    runnable = set(models.lines(role, table)[0])
    waiting = [
        _Response(table, spans, row, int(answer))
        for row, answer in enumerate(answers(spans, table.n_rows))
        if answer >= 0 and row in runnable
    ]
    return _Walk(models, table, spans, role).over(waiting)


@dataclass(slots=True)
class _Response:
    """One response on its way: what is gone, what that did to the rest, and which span is next."""

    table: TokenTable
    spans: SpanTable
    row: int
    answer: int
    gone: set[int] = field(default_factory=set)
    drops: Floats = field(init=False)
    """``[L]`` what the tokens have lost to what is gone."""
    body: range = field(init=False)
    """The spans before the answer's opening."""
    at: int = field(init=False)

    def __post_init__(self) -> None:
        self.drops = np.zeros(int(self.table.lengths[self.row]))
        self.body = range(self.spans.of_row(self.row).start, opening(self.spans, self.answer))
        self.at = self.body.stop - 1

    def run(self, length: int) -> range:
        """The spans that end at the next one; shorter where the response begins."""
        return range(max(self.at + 1 - length, self.body.start), self.at + 1)

    def take(self, run: range, drops: Floats) -> None:
        """Let a run go."""
        self.gone.update(run)
        self.drops = drops
        self.at = run.start - 1


class _Walk:
    """Backward elimination over many responses."""

    def __init__(self, models: Models, table: TokenTable, spans: SpanTable, role: str) -> None:
        self.models, self.table, self.spans, self.role = models, table, spans, role
        self.weights = _weights(spans, saliency(models, table, spans, role))
        self.found = Elimination(np.full(len(spans), np.nan), np.zeros(len(spans), np.bool_))

    def over(self, waiting: Sequence[_Response]) -> Elimination:
        while waiting := [response for response in waiting if response.at >= response.body.start]:
            stuck = list(waiting)
            for length in range(1, RUN + 1):
                stuck = self._try(stuck, length)
            for response in stuck:
                response.at -= 1
        return self.found

    def _try(self, stuck: Sequence[_Response], length: int) -> list[_Response]:
        """Try to let the run of ``length`` spans go from each response; those from which it did not."""
        able = [response for response in stuck if len(response.run(length)) == length]
        left = [response for response in stuck if len(response.run(length)) < length]
        sets = [tuple(sorted({*response.gone, *response.run(length)})) for response in able]
        for response, removal in zip(able, removals(self.models, self.table, self.spans, sets, self.role), strict=True):
            run, drops = response.run(length), self._laid(response, removal)
            loss = self._loss(response, run, drops)
            if length == 1 or loss < SPARE:
                self.found.loss[run.start : run.stop] = loss / length
            if loss < SPARE:
                self.found.spared[run.start : run.stop] = True
                response.take(run, drops)
            else:
                left.append(response)
        return left

    def _laid(self, response: _Response, removal: Removal | None) -> Floats:
        """``[L]`` drops over the response's own tokens; 0 before the first token that went and where there is no value."""
        drops = np.zeros(len(response.drops))
        if removal is not None:
            first = removal.first - int(self.table.offsets[response.row])
            drops[first:] = np.nan_to_num(removal.drops.astype(np.float64))
        return drops

    def _loss(self, response: _Response, run: range, drops: Floats) -> float:
        """What is left loses when the run goes too, against the text without what is gone already."""
        more = drops - response.drops
        total = float(self._of(response, more, response.answer).sum())
        for span in range(run.stop, response.body.stop):
            if span not in response.gone:
                weighted = self._of(response, more, span) * self.weights[self.spans.start[span] : self.spans.end[span]]
                if all(between in response.gone for between in range(run.stop, span)):
                    self._forgive_the_seam(response, run, more, span, weighted)
                total += max(float(weighted.sum()), 0.0)
        return total

    def _forgive_the_seam(self, response: _Response, run: range, more: Floats, span: int, weighted: Floats) -> None:
        """The first word after the gap: what it loses beyond its style; nothing where the seam is not one that text has."""
        gap = run.start
        while gap - 1 in response.gone:
            gap -= 1
        word = min(int(self.spans.leads[span]), len(weighted) - 1)
        lost = float(self._of(response, more, span)[word])
        weighted[word] = max(lost - STYLE, 0.0) if seam(self.spans, gap, span).natural else 0.0

    def _of(self, response: _Response, values: Floats, span: int) -> Floats:
        begin = int(self.table.offsets[response.row])
        return values[self.spans.start[span] - begin : self.spans.end[span] - begin]


def _weights(spans: SpanTable, saliency: NDArray[np.floating]) -> Floats:
    """``[T]`` how much a token matters to the answer within its span: 1 for the largest; 1 everywhere where none does."""
    size = np.sqrt(np.nan_to_num(np.abs(saliency.astype(np.float64))))
    weights = np.ones(len(size))
    for start, end in zip(spans.start, spans.end, strict=True):
        if (most := size[start:end].max(initial=0.0)) > 0:
            weights[start:end] = size[start:end] / most
    return weights
