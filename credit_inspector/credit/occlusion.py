"""Occlusion: what the answer owes to each span, by taking the span out and by adding it.

The two answer different questions, and a copy tells them apart. Where a later span repeats an earlier one, deleting
either changes nothing, so ``credit/deletion`` gives about 0 to both; ``credit/prefix_gain`` gives everything to the
one that came first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from credit_inspector.columns import Made
from credit_inspector.credit import credit
from credit_inspector.spans import SpanTable
from credit_inspector.table import Floats, Provenance, TokenTable

if TYPE_CHECKING:
    from credit_inspector.scoring import Models


@credit(
    "credit/deletion",
    label="deletion",
    needs=("table", "spans", "models"),
    unit="nats",
    scope="rollout",
    family="earned",
    sign="+ the answer is less likely without the span, − more likely",
    provenance=Provenance.RECOMPUTED,
    cost="one forward for each span",
)
def deletion(table: TokenTable, spans: SpanTable, models: Models) -> Made:
    """Drop of log p(answer) when the span is deleted and the rest is forced: its direct effect.

    Work that a later span repeats or builds on gets little here, or less than nothing (see ``credit/influence``). The
    answer and its opening markup have no value; a span after the answer has exactly 0.
    """
    from credit_inspector.scoring.answers import answers, opening
    from credit_inspector.scoring.occlusion import delete_each, influence_matrix

    deleted = delete_each(models, table, spans)
    by_span = np.full(len(spans), np.nan)
    for row, answer in enumerate(answers(spans, table.n_rows)):
        if answer < 0:
            continue
        numbers = spans.of_row(row)
        direct = influence_matrix(spans, deleted, row)[:, answer - numbers.start]
        before = range(numbers.start, opening(spans, int(answer)))
        by_span[before.start : before.stop] = direct[: len(before)]
        _nothing_after(by_span, numbers, int(answer), known=deleted[numbers.start] is not None)
    return by_span_column(table, spans, models, by_span)


@credit(
    "credit/prefix_gain",
    label="prefix gain",
    needs=("table", "spans", "models"),
    unit="nats",
    scope="rollout",
    family="earned",
    sign="+ the answer became more likely with the span, − less likely",
    provenance=Provenance.RECOMPUTED,
    cost="one forward for each span",
)
def prefix_gain(table: TokenTable, spans: SpanTable, models: Models) -> Made:
    """Gain of log p(answer) from before the span to after it, the answer being forced right there.

    Summed over a response's spans it is log p(answer | all before it) − log p(answer | prompt). A step that only a
    later one makes use of gets little: the answer cannot be read off yet. Opening markup is forced with the answer
    and has no value; a span after the answer has exactly 0.
    """
    from credit_inspector.scoring.answers import answers
    from credit_inspector.scoring.occlusion import prefix_values

    values = prefix_values(models, table, spans)
    by_span = np.full(len(spans), np.nan)
    for row, answer in enumerate(answers(spans, table.n_rows)):
        reached = values[row]
        if reached is not None:
            numbers = spans.of_row(row)
            by_span[numbers.start : numbers.start + len(reached) - 1] = np.diff(reached)
            _nothing_after(by_span, numbers, int(answer), known=True)
    return by_span_column(table, spans, models, by_span)


def by_span_column(table: TokenTable, spans: SpanTable, models: Models, by_span: Floats, *notes: str) -> Made:
    """``[S]`` → a column: each span's value on its tokens, and what it was made with."""
    from credit_inspector.scoring.answers import answers, without_answer

    missing = without_answer(answers(spans, table.n_rows))
    said = (models.note("policy"), models.temperature_note(table), *notes, missing)
    # No count of tokens without a value here: an answer and its markup have none on purpose.
    values = table.trained(spans.to_tokens(by_span, table.n_tokens))
    return Made(values, "; ".join(note for note in said if note))


def _nothing_after(by_span: Floats, numbers: range, answer: int, *, known: bool) -> None:
    """What comes after the answer cannot have helped it: that 0 is a value and not a missing one."""
    if known:
        by_span[answer + 1 : numbers.stop] = 0.0
