"""What every number rests on: where each column is from, what was wrong with the data, what had to be assumed."""

from __future__ import annotations

from collections.abc import Sequence

from credit_inspector.checks import recorded_fits
from credit_inspector.integrity import examine, numbers, problems
from credit_inspector.panel import Block, Finding, Grid, Panel, Prose
from credit_inspector.store import Store
from credit_inspector.strips import known
from credit_inspector.table import Provenance
from credit_inspector.views import Place, view


@view("integrity", title="Integrity", order=9)
def integrity(store: Store, place: Place) -> Panel:
    """Provenance of every column, problems of the data with their counts, and how well recorded numbers fit the checkpoints."""
    meta = store.meta()
    source = f"{meta.source}, read as {meta.trainer}; {len(store.steps)} steps"
    blocks: list[Block] = [Prose(source, "lead"), *(Prose(note, "note") for note in meta.notes)]
    if store.steps:
        step = place.step if place.step is not None else store.steps[0]
        blocks += [*basis(store, store.findings()), _columns(store, step)]
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


_ORIGINS = [*map(str, Provenance)]


def _by_origin(entry: tuple[tuple[str, str], list[str]]) -> int:
    """Recorded numbers first, missing ones last; else in the order they came."""
    return _ORIGINS.index(entry[0][0].partition(" or ")[0])


def basis(store: Store, findings: Sequence[Finding]) -> list[Block]:
    """What the numbers rest on, in three small tables; ``check`` prints them too."""
    origins: dict[tuple[str, str], list[str]] = {}
    for one in numbers(store):
        origins.setdefault((one.origin, one.note), []).append(one.name)
    wrong = tuple((kind, message, count) for (kind, message), count in problems(store).most_common())
    return [
        Grid(
            "Tests of the data",
            ("test", "outcome", "what was found, or what it would need"),
            tuple((one.name, one.outcome, one.said) for one in examine(store, findings)),
        ),
        Grid(
            "Where the numbers are from",
            ("from", "numbers", "note"),
            tuple((origin, ", ".join(names), note) for (origin, note), names in sorted(origins.items(), key=_by_origin)),
        ),
        Grid("Problems found in the data", ("kind", "what", "times"), wrong or (("none", "no problem was found", 0),)),
    ]
