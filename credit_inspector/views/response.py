"""One response: its tokens, its credit by position, its siblings."""

from __future__ import annotations

import numpy as np

from credit_inspector.checks.filler_paid import pay_column
from credit_inspector.outcome import right
from credit_inspector.panel import Block, Chart, Grid, Panel, Prose, Series, Strip, TokenLink
from credit_inspector.spans import SpanTable
from credit_inspector.store import Store
from credit_inspector.strips import strip
from credit_inspector.table import TokenTable
from credit_inspector.views import Place, view

HEAD = ("response", "reward", "tokens", "advantage", "credit", "on unearned tokens", "text")


@view("response", title="Response", order=1, in_report=False)
def response(store: Store, place: Place) -> Panel:
    """The token strip of one response, what it was paid by position, and the other answers to its prompt."""
    if not store.steps:
        return Panel("Response", (Prose("The analysis has no step yet.", "lead"),))
    step = place.step if place.step is not None else store.steps[0]
    table, spans = store.read_step(step)
    if not table.n_rows:
        return Panel("Response", (Prose(f"Step {step} has no response.", "lead"),))
    row = table.row_of(place.sample_id) if place.sample_id else ranked(table)[0]
    shown = strip(store, table, spans, row)
    blocks: list[Block] = [*_missing(table), shown]
    if shown.fill:
        blocks.append(_by_position(shown, table, spans, row))
    blocks.append(_siblings(table, row))
    return Panel("Response", tuple(blocks))


def ranked(table: TokenTable) -> list[int]:
    """Rows in the order in which they are worth reading: right answers with the most paid on unearned tokens first."""
    column = pay_column(table)
    if not column or not table.has("credit/unearned"):
        return sorted(range(table.n_rows), key=lambda row: (np.isnan(table.reward[row]), -table.reward[row], row))
    pay = table.values(column)
    on_unearned = np.where((table.values("credit/unearned") == 1) & (pay > 0), pay, 0.0)
    paid = table.sum_by_row(on_unearned) * right(table)
    return sorted(range(table.n_rows), key=lambda row: (-paid[row], row))


def _missing(table: TokenTable) -> list[Block]:
    gone = [f"{name}: {column.note}" for name, column in table.columns.items() if column.values is None]
    wanted = [line for line in gone if line.startswith(("credit/delivered", "credit/earned", "credit/coefficient"))]
    return [Prose("Not shown, " + "; ".join(wanted), "note")] if wanted else []


def _by_position(shown: Strip, table: TokenTable, spans: SpanTable, row: int) -> Chart:
    signal = next(signal for signal in shown.signals if signal.name == shown.fill)
    start = len(shown.pieces) - int(table.lengths[row])
    bands = [(float(span.start - start), float(span.end - start), span.label) for span in shown.spans]
    values = signal.values[start:]
    return Chart(
        f"{signal.label} by position",
        "token of the response",
        signal.unit or signal.label,
        (Series(signal.label, [float(i) for i in range(len(values))], [float(v) for v in values], "bar"),),
        tuple(bands),
    )


def _siblings(table: TokenTable, row: int) -> Grid:
    group = table.group[row]
    rows = [i for i in range(table.n_rows) if i == row or (group >= 0 and table.group[i] == group)]
    column = pay_column(table)
    return Grid(
        f"Answers to this prompt ({table.rollouts[row].group_source})",
        HEAD,
        tuple(line(table, i, column) for i in rows),
        tuple(TokenLink(table.step, table.rollouts[i].sample_id) for i in rows),
    )


def line(table: TokenTable, row: int, column: str) -> tuple[str | float | int | None, ...]:
    """One response as a row of a grid: id, reward, tokens, advantage, credit, credit on unearned tokens, text."""
    here = table.slice(row)
    rollout = table.rollouts[row]
    pay = table.values(column)[here] if column else np.zeros(0)
    total = float(np.nansum(pay)) if np.isfinite(pay).any() else None
    unearned = None
    if table.has("credit/unearned") and total is not None:
        unearned = float(np.nansum(np.where(table.values("credit/unearned")[here] == 1, pay, 0.0)))
    advantage = table.values("advantage")[here] if table.has("advantage") else np.zeros(0)
    mean = float(np.nanmean(advantage)) if np.isfinite(advantage).any() else rollout.advantage
    return rollout.sample_id, rollout.reward, int(table.lengths[row]), mean, total, unearned, rollout.response
