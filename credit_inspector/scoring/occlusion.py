"""Occlusion: take spans out and see what becomes less likely.

``removals`` deletes spans from a response, forces the rest and gives the drop of every later token's log-prob::

    prompt  A  B  C  answer
    prompt  A     C  answer      drops of C and of the answer are what they owed to B, everything else being kept

``prefix_values`` forces the answer right after every prefix::

    V_0 = log p(answer | prompt)    V_1 = log p(answer | prompt A)    …    V_3 = log p(answer | prompt A B C)

Where markup such as ``<answer>`` opens the answer, it is forced too but not scored: a model that would rather go on
thinking says so at the opening, and the answer's own tokens say what it has found out by then.

Deletion, unlike a pad or a mean embedding, leaves a text that could have been written. The many short lines of all
responses run together, sorted by length; equal ones run once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from credit_inspector.scoring.answers import answers, opening, place
from credit_inspector.scoring.batches import Line
from credit_inspector.scoring.models import Models
from credit_inspector.spans import SpanTable
from credit_inspector.table import Floats, TokenTable


@dataclass(frozen=True, slots=True)
class Removal:
    """What a response's later tokens lose when some of its spans are deleted."""

    row: int
    spans: tuple[int, ...]
    """Numbers in the ``SpanTable``, ascending."""
    first: int
    """The first token deleted, counted over the whole table; ``drops`` runs from it to the end of the response."""
    drops: NDArray[np.float32]
    """log p(token | everything before it) − log p(token | the same without the spans), nats. NaN for deleted tokens."""


def delete_each(models: Models, table: TokenTable, spans: SpanTable, role: str = "policy") -> list[Removal | None]:
    """``[S]``: every span deleted by itself, one forward each; ``None`` for spans of responses that cannot be run."""
    return models.once(
        ("delete_each", models.checkpoint(role).path),
        lambda: removals(models, table, spans, [(span,) for span in range(len(spans))], role),
        table,
        spans,
    )


def removals(
    models: Models, table: TokenTable, spans: SpanTable, sets: Sequence[tuple[int, ...]], role: str = "policy"
) -> list[Removal | None]:
    """For each set of spans of one response: delete them together and force the rest.

    Tokens before the first deleted one do not change and are left out.

    Args:
        models: the checkpoints.
        table: the step.
        spans: its spans.
        sets: numbers of spans, all of one response in each set, not empty.
        role: the model asked.

    Raises:
        MissingColumn: no checkpoint for the role.
    """
    full = models.scores(role, table).logprob
    whole = dict(zip(*models.lines(role, table), strict=True))
    lines: list[Line] = []
    kept: list[NDArray[np.int64]] = []
    for members in sets:
        line, keep = _without(table, spans, members, whole.get(int(spans.row[members[0]])))
        lines.append(line)
        kept.append(keep)
    found = models.logprobs(role, lines, models.temperature(table), "deleting spans")
    answer: list[Removal | None] = []
    for members, keep, values in zip(sets, kept, found, strict=True):
        row = int(spans.row[members[0]])
        first, end = int(spans.start[min(members)]), int(table.offsets[row + 1])
        drops = np.full(end - first, np.nan, np.float32)
        # Without a prompt, the first token that is left has nothing before it and no log-prob.
        scored = keep[len(keep) - len(values) :]
        drops[scored - first] = full[scored] - values
        answer.append(Removal(row, tuple(sorted(members)), first, drops) if row in whole else None)
    return answer


def _without(table: TokenTable, spans: SpanTable, members: Sequence[int], whole: Line | None) -> tuple[Line, NDArray[np.int64]]:
    """The line without the spans, and the tokens (counted over the table) that it scores."""
    row = int(spans.row[members[0]])
    first, end = int(spans.start[min(members)]), int(table.offsets[row + 1])
    keep = np.ones(end - first, bool)
    for span in members:
        keep[spans.start[span] - first : spans.end[span] - first] = False
    _mend_seams(spans, members, keep, first)
    if whole is None:
        return Line(np.zeros(0, np.int64), 1), np.zeros(0, np.int64)
    before = len(whole.ids) - (end - first)
    ids = np.concatenate([whole.ids[:before], whole.ids[before:][keep]])
    return Line(ids, max(before, 1)), first + np.flatnonzero(keep)


class Seam(NamedTuple):
    """How to close a gap so that it reads as text does: whose white space stays between, and whether that worked."""

    keeps_first: bool
    """The white space before the gap stays."""
    drops_next: bool
    """The white space after the gap goes."""
    natural: bool
    """There is white space after the gap where there was before it, and none where there was none."""


def seam(spans: SpanTable, gone: int, follower: int) -> Seam:
    """Let what follows a gap take the gap's place.

    "A. 乙。C" without 乙 reads "A. C" so, and a response whose first sentence is gone does not begin with a space: seams
    that no text has would be blamed on the span. White space that is part of a word's token cannot be taken off it.

    Args:
        spans: the spans.
        gone: the first span of the gap.
        follower: the span after the gap.
    """
    wanted = spans.text[gone][:1].isspace()
    there = spans.text[follower][:1].isspace()
    if there:
        drops = not wanted and bool(spans.leads[follower])
        return Seam(False, drops, wanted or drops)
    keeps = wanted and bool(spans.leads[gone])
    return Seam(keeps, False, keeps or not wanted)


def _mend_seams(spans: SpanTable, members: Sequence[int], keep: NDArray[np.bool_], first: int) -> None:
    """Close every gap that the members make."""
    gone, leads = set(members), spans.leads
    for span in gone:
        if span - 1 in gone:
            continue
        follower = span + 1
        while follower in gone:
            follower += 1
        if follower >= len(spans) or spans.row[follower] != spans.row[span]:
            continue
        closed = seam(spans, span, follower)
        if closed.keeps_first:
            keep[spans.start[span] - first :][: leads[span]] = True
        if closed.drops_next:
            keep[spans.start[follower] - first :][: leads[follower]] = False


def answer_drops(
    models: Models, table: TokenTable, spans: SpanTable, sets: Sequence[tuple[int, ...]], role: str = "policy"
) -> Floats:
    """For each set of spans of one response, all before its answer: the drop of log p(answer) when they are deleted.

    ``[len(sets)]`` in nats; NaN where the response has no answer or cannot be run. The text after the answer is not
    run.
    """
    found = answers(spans, table.n_rows)
    full = models.scores(role, table).logprob.astype(np.float64)
    whole = dict(zip(*models.lines(role, table), strict=True))
    lines: list[Line] = []
    said: list[NDArray[np.int64]] = []
    for members in sets:
        row = int(spans.row[members[0]])
        line, kept = _without(table, spans, members, whole.get(row) if found[row] >= 0 else None)
        start, end = place(spans, int(found[row]))
        # A seam may take white space off the answer's front; what is left of it is held against the same tokens.
        said.append(kept[(kept >= start) & (kept < end)])
        length = len(line.ids) - int((kept >= end).sum())
        lines.append(Line(line.ids[:length], max(length - len(said[-1]), 1)))
    values = models.logprobs(role, lines, models.temperature(table), "deleting spans together")
    drops = [
        full[tokens].sum() - _total(part, len(tokens)) if len(tokens) else np.nan
        for tokens, part in zip(said, values, strict=True)
    ]
    return np.array(drops, dtype=np.float64)


def influence_matrix(
    spans: SpanTable, deleted: Sequence[Removal | None], row: int, weights: NDArray[np.floating] | None = None
) -> Floats:
    """The influence matrix of one response, ``[S_row, S_row]`` in nats: row = span deleted, column = later span.

    A span's loss is the sum of its tokens' drops, each times its weight. NaN on and below the diagonal, where there
    is no later span, and where the response could not be run.

    Args:
        spans: the spans.
        deleted: from ``delete_each``.
        row: the response.
        weights: ``[T]`` for each token; 1 where not given.
    """
    numbers = spans.of_row(row)
    matrix = np.full((len(numbers), len(numbers)), np.nan)
    for i, span in enumerate(numbers):
        removal = deleted[span]
        if removal is None:
            continue
        for k in range(i + 1, len(numbers)):
            start, end = place(spans, numbers[k])
            # White space that the seam took off the next span's front is gone and loses nothing.
            start += int(spans.leads[numbers[k]]) if k == i + 1 else 0
            drops = removal.drops[start - removal.first : end - removal.first].astype(np.float64)
            matrix[i, k] = (drops if weights is None else drops * weights[start:end]).sum()
    return matrix


def prefix_values(models: Models, table: TokenTable, spans: SpanTable, role: str = "policy") -> list[Floats | None]:
    """``[N]``: for each response V_0 … V_a, where a is how many spans come before its answer; ``None`` without one.

    V_k = log p(answer | prompt, the response up to where span k begins, the answer's opening), in nats; V_0 has the
    prompt alone and V_a is what the response itself says. The opening, markup that runs up to the answer, does not
    count among the a spans. Text between two spans counts as the end of the earlier one. One forward for each k.

    Raises:
        MissingColumn: no checkpoint for the role.
    """
    return models.once(
        ("prefix_values", models.checkpoint(role).path),
        lambda: _prefix_values(models, table, spans, role),
        table,
        spans,
    )


def _prefix_values(models: Models, table: TokenTable, spans: SpanTable, role: str) -> list[Floats | None]:
    found = answers(spans, table.n_rows)
    full = models.scores(role, table).logprob.astype(np.float64)
    lines = {
        row: _prefixes(table, spans, row, int(found[row]), line)
        for row, line in zip(*models.lines(role, table), strict=True)
        if found[row] >= 0
    }
    everything = [line for of_row in lines.values() for line in of_row]
    values = iter(models.logprobs(role, everything, models.temperature(table), "answer after every prefix"))
    answer: list[Floats | None] = [None] * table.n_rows
    for row, of_row in lines.items():
        start, end = place(spans, int(found[row]))
        forced = [_total(next(values), end - start) for _ in of_row]
        answer[row] = np.array([*forced, full[start:end].sum()])
    return answer


def _prefixes(table: TokenTable, spans: SpanTable, row: int, answer: int, line: Line) -> list[Line]:
    """The answer after each prefix but the last, which is the response itself."""
    shift = len(line.ids) - int(table.offsets[row + 1])
    first = opening(spans, answer)
    forced = line.ids[spans.start[first] + shift : spans.end[answer] + shift]
    ahead = int(spans.start[answer] - spans.start[first])
    cuts = [int(spans.start[span]) for span in spans.of_row(row) if span < first]
    cuts[:1] = [int(table.offsets[row])] if cuts else []
    return [Line(np.concatenate([line.ids[: cut + shift], forced]), max(cut + shift + ahead, 1)) for cut in cuts]


def _total(values: NDArray[np.float32], wanted: int) -> float:
    """The sum of an answer's log-probs; NaN where its first token had nothing before it."""
    return float(values.astype(np.float64).sum()) if len(values) == wanted else float("nan")
