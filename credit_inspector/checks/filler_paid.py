"""Filler that was paid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from credit_inspector.checks import check
from credit_inspector.outcome import right
from credit_inspector.panel import Finding, Severity, TokenLink
from credit_inspector.shares import Share, share
from credit_inspector.spans import SpanTable
from credit_inspector.store import Store
from credit_inspector.table import Floats, TokenTable

CODE = "filler-paid"
WARN, ALARM = 0.10, 0.30
WORST = 10


@dataclass(frozen=True, slots=True)
class PaidSpan:
    """A span of a right answer that earned nothing and was paid."""

    link: TokenLink
    paid: float
    text: str


@dataclass(frozen=True, slots=True)
class Paid:
    """What the right answers of a run were paid, and how much of it went to unearned spans."""

    share: Share
    by_step: dict[int, float]
    worst: tuple[PaidSpan, ...]
    measure: str
    """The column that was summed."""
    tokens: int
    """Trained tokens in right answers."""


@check(CODE)
def filler_paid(store: Store) -> list[Finding]:
    """In right answers, how much of the positive credit went to spans that earned nothing.

    Counts a span as unearned by ``credit/unearned``: at least two kinds of evidence, of which one is an intervention.
    """
    paid = measure(store)
    if paid is None or not paid.share.value > WARN:
        return []
    first, *_, last = [*paid.by_step.values(), *paid.by_step.values()]
    numbers = {
        "share": paid.share.value,
        "low": paid.share.low,
        "high": paid.share.high,
        "first_step": first,
        "last_step": last,
    }
    return [
        Finding(
            code=CODE,
            severity=Severity.ERROR if paid.share.low > ALARM else Severity.WARNING,
            sentence=f"In right answers, {paid.share.text} of the positive {paid.measure} went to tokens that earned nothing.",
            how_sure=f"{paid.share.interval}; {paid.share.responses} right answers, {paid.tokens} trained tokens; "
            "evidence: occlusion, gradient alignment, siblings",
            why="Every token of a right answer is pushed up alike, so what only surrounds the solution is learned like it.",
            do="Try a length penalty, an answer-span loss or a process reward, and look at what it does to these spans.",
            cannot_tell="Whether the words help the model in a way that taking them out of this text does not show, "
            "for example by giving it time to compute.",
            links=tuple(span.link for span in paid.worst),
            numbers=numbers,
        )
    ]


def measure(store: Store) -> Paid | None:
    """The figures of the check, also where they are no cause for alarm; ``None`` without earned credit."""
    parts: list[Floats] = []
    wholes: list[Floats] = []
    names: list[str] = []
    spans_paid: list[PaidSpan] = []
    by_step: dict[int, float] = {}
    tokens, column = 0, ""
    for table, spans in _steps(store):
        column = pay_column(table)
        rows = np.flatnonzero(right(table))
        pay = _positive(table, column)
        unearned = table.values("credit/unearned") == 1
        part = table.sum_by_row(np.where(unearned, pay, 0.0))[rows]
        whole = table.sum_by_row(pay)[rows]
        by_step[table.step] = float(part.sum() / whole.sum()) if whole.sum() > 0 else np.nan
        parts.append(part)
        wholes.append(whole)
        names += [table.rollouts[row].sample_id for row in rows]
        tokens += int(table.trained_lengths[rows].sum())
        spans_paid += _paid_spans(table, spans, pay, unearned, right(table))
    if not by_step:
        return None
    worst = sorted(spans_paid, key=lambda span: -span.paid)[:WORST]
    total = share(np.concatenate(parts), np.concatenate(wholes), names)
    return Paid(total, by_step, tuple(worst), LABELS[column], tokens)


LABELS = {"credit/delivered": "delivered credit", "credit/coefficient": "credit"}


def pay_column(table: TokenTable) -> str:
    """What is summed as pay: delivered credit where it is known, else the coefficient."""
    return next((name for name in LABELS if table.has(name)), "")


def _steps(store: Store) -> Iterator[tuple[TokenTable, SpanTable]]:
    for step in store.steps:
        table, spans = store.read_step(step, [*LABELS, "credit/unearned"])
        if table.has("credit/unearned") and pay_column(table):
            yield table, spans


def _positive(table: TokenTable, column: str) -> Floats:
    values = table.values(column)
    return np.where(np.isfinite(values) & (values > 0), values, 0.0)


def _paid_spans(
    table: TokenTable, spans: SpanTable, pay: Floats, unearned: np.ndarray, is_right: np.ndarray
) -> Iterator[PaidSpan]:
    sums = spans.sums(pay)
    for i in range(len(spans)):
        row = int(spans.row[i])
        if is_right[row] and unearned[spans.start[i]] and sums[i] > 0:
            start, end = int(spans.start[i] - table.offsets[row]), int(spans.end[i] - table.offsets[row])
            yield PaidSpan(
                TokenLink(table.step, table.rollouts[row].sample_id, start, end), float(sums[i]), spans.text[i].strip()
            )
