"""All responses of a step, the ones worth reading first."""

from __future__ import annotations

from credit_inspector.checks.filler_paid import pay_column
from credit_inspector.panel import Grid, Panel, Prose, TokenLink
from credit_inspector.store import Store
from credit_inspector.views import Place, view
from credit_inspector.views.response import HEAD, line, ranked


@view("responses", title="Data", order=2, in_report=False)
def responses(store: Store, place: Place) -> Panel:
    """Every response of a step with its reward, length, credit and text; right answers with paid filler come first."""
    if not store.steps:
        return Panel("Data", (Prose("The analysis has no step yet.", "lead"),))
    step = place.step if place.step is not None else store.steps[0]
    table, _ = store.read_step(step)
    rows, column = ranked(table), pay_column(table)
    grid = Grid(
        f"Step {step}: {table.n_rows} responses",
        HEAD,
        tuple(line(table, row, column) for row in rows),
        tuple(TokenLink(step, table.rollouts[row].sample_id) for row in rows),
    )
    return Panel("Data", (grid,))
