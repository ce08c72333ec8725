"""What every number rests on: where each column is from, what was wrong with the data, what had to be assumed."""

from __future__ import annotations

from collections import Counter

from credit_inspector.checks import recorded_fits
from credit_inspector.panel import Block, Grid, Panel, Prose
from credit_inspector.store import Store
from credit_inspector.strips import known
from credit_inspector.views import Place, view


@view("integrity", title="Integrity", order=9)
def integrity(store: Store, place: Place) -> Panel:
    """Provenance of every column, problems of the data with their counts, and how well recorded numbers fit the checkpoints."""
    meta = store.meta()
    source = f"{meta.source}, read as {meta.trainer}; {len(store.steps)} steps"
    blocks: list[Block] = [Prose(source, "lead"), *(Prose(note, "note") for note in meta.notes)]
    if store.steps:
        step = place.step if place.step is not None else store.steps[0]
        blocks += [_columns(store, step), _problems(store)]
    if apart := recorded_fits.measure(store):
        rows = tuple((step, value) for step, value in apart.items())
        blocks.append(Grid("Recorded against recomputed log-probs, mean |difference| in nats", ("step", "nats"), rows))
    return Panel("Integrity", tuple(blocks))


def _columns(store: Store, step: int) -> Grid:
    table, _ = store.read_step(step)
    specs = known()
    rows = tuple(
        (
            name,
            str(column.provenance),
            column.note,
            specs[name].unit if name in specs else "",
            specs[name].doc if name in specs else "",
        )
        for name, column in sorted(table.columns.items())
    )
    return Grid(f"Columns of step {step}", ("column", "from", "note", "unit", "what it is"), rows)


def _problems(store: Store) -> Grid:
    counts: Counter[tuple[str, str]] = Counter()
    for step in store.steps:
        table, _ = store.read_step(step, [])
        counts.update((problem.kind, problem.message) for problem in table.problems)
    rows = tuple((kind, message, count) for (kind, message), count in counts.most_common())
    return Grid("Problems found in the data", ("kind", "what", "times"), rows or (("none", "no problem was found", 0),))
