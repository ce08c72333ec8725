"""Panels on a terminal.

Text from the run is printed as it is: no console markup, no emoji names, no terminal commands in it act.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite, isnan
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from credit_inspector.panel import (
    Block,
    Chart,
    Finding,
    Findings,
    Grid,
    Panel,
    Prose,
    Series,
    Severity,
    Signal,
    Strip,
    Tiles,
)
from credit_inspector.reports.wording import cell, line, number, place, printable

TOKENS: Final = 600
"""Tokens of a response that are shown; a terminal has no folding."""
CELL: Final = 80
"""Characters of a table cell."""
STEPS: Final = 60
"""Width of the small picture of a series."""

_UP: Final = ("black on #fbd7ad", "black on #f4b26a", "black on #ee9332")
_DOWN: Final = ("black on #d5cfe8", "black on #b4a9d6", "black on #9486c2")
_MUCH: Final = ("black on #cfe5f1", "black on #93c6e0", "black on #57a3cc")
_PROSE: Final[Mapping[str, str]] = {"headline": "bold", "note": "dim"}
_SEVERITY: Final = {Severity.INFO: "bold", Severity.WARNING: "bold yellow", Severity.ERROR: "bold magenta"}


def show(panels: Sequence[Panel], console: Console) -> None:
    """Print the panels in reading order."""
    for panel in panels:
        console.rule(Text(line(panel.title), style="bold"), align="left")
        for block in panel.blocks:
            _block(block, console)
            console.print()


def _block(block: Block, console: Console) -> None:
    match block:
        case Prose():
            console.print(Text(printable(block.text), style=_PROSE.get(block.style, "")))
        case Tiles():
            console.print(_tiles(block))
        case Findings():
            for finding in block.findings:
                _finding(finding, console)
        case Chart():
            _chart(block, console)
        case Grid():
            console.print(_grid(block))
        case Strip():
            _strip(block, console)


def _tiles(tiles: Tiles) -> Table:
    table = Table.grid(padding=(0, 2))
    for tile in tiles.tiles:
        table.add_row(
            Text(line(tile.value), style="bold", justify="right"),
            Text(line(tile.label)),
            Text(line(tile.detail), style="dim"),
        )
    return table


def _finding(finding: Finding, console: Console) -> None:
    head = Text.assemble((finding.severity.name.lower(), _SEVERITY[finding.severity]), "  ", line(finding.sentence))
    console.print(head)
    table = Table.grid(padding=(0, 2))
    said = [
        ("how sure", finding.how_sure),
        ("why", finding.why),
        ("do", finding.do),
        ("cannot tell", finding.cannot_tell),
        ("see", "; ".join(place(link) for link in finding.links[:3])),
        ("code", finding.code),
    ]
    for name, text in said:
        if text:
            table.add_row(Text(name, style="dim"), Text(line(text)))
    console.print(Padding(table, (0, 0, 1, 2)))


def _table(title: str, head: Sequence[str]) -> Table:
    table = Table(title=Text(line(title), style="bold") if title else None, title_justify="left", box=None, pad_edge=False)
    for name in head:
        table.add_column(Text(line(name), style="dim"))
    return table


def _grid(grid: Grid) -> Table:
    table = _table(grid.title, grid.head)
    for row in grid.rows:
        table.add_row(*(Text(cell(value, most=CELL), justify="left" if isinstance(value, str) else "right") for value in row))
    return table


def _chart(chart: Chart, console: Console) -> None:
    names = any(isinstance(x, str) for series in chart.series for x in series.x)
    console.print(_named(chart) if names else _curves(chart))
    bands = "; ".join(f"{line(label)} {number(low)} to {number(high)}" for low, high, label in chart.bands)
    note = f"{line(chart.y_label)} over {line(chart.x_label)}" + (f"; {bands}" if bands else "")
    console.print(Text(note, style="dim"))


def _named(chart: Chart) -> Table:
    table = _table(chart.title, (chart.x_label, *(series.name for series in chart.series)))
    values = [dict(zip(series.x, series.y, strict=True)) for series in chart.series]
    for x in dict.fromkeys(x for series in chart.series for x in series.x):
        table.add_row(Text(cell(x)), *(Text(number(of.get(x)), justify="right") for of in values))
    return table


def _curves(chart: Chart) -> Table:
    table = _table(chart.title, ("", "", "first", "last", "least", "most"))
    for series in chart.series:
        known = [y for y in series.y if y is not None and isfinite(y)]
        ends = (known[0], known[-1], min(known), max(known)) if known else (None,) * 4
        table.add_row(
            Text(line(series.name)),
            Text("" if series.mark == "point" else _spark(series)),
            *(Text(number(end), justify="right") for end in ends),
        )
    return table


def _spark(series: Series) -> str:
    """A small picture of the values in their order; a gap is a space."""
    count = min(STEPS, len(series.y))
    parts = [series.y[k * len(series.y) // count : (k + 1) * len(series.y) // count] for k in range(count)]
    means = [_mean([y for y in part if y is not None and isfinite(y)]) for part in parts]
    known = [mean for mean in means if mean is not None]
    if not known:
        return ""
    low, height = min(known), (max(known) - min(known)) or 1.0
    return "".join(" " if mean is None else "▁▂▃▄▅▆▇█"[round(7 * (mean - low) / height)] for mean in means)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _strip(strip: Strip, console: Console) -> None:
    console.print(Text(line(strip.title), style="bold"))
    fill = next((signal for signal in strip.signals if signal.name == strip.fill), None)
    console.print(Text.assemble(*_tokens(strip, fill)))
    if fill:
        legend = f"{line(fill.label)}: {line(fill.sign)}; full colour at {number(fill.limit)}; {line(fill.provenance)}"
        console.print(Text(legend, style="dim"))
    if strip.spans:
        console.print(_spans(strip))


def _tokens(strip: Strip, fill: Signal | None) -> Iterator[tuple[str, str]]:
    first = strip.kinds.count("prompt")
    if first:
        yield f"prompt, {first} tokens · ", "dim"
    for i in range(first, min(first + TOKENS, len(strip.pieces))):
        trained = strip.kinds[i] in ("response", "end")
        yield (
            printable(strip.pieces[i]),
            _style(fill, float(fill.values[i])) if fill and trained else "" if trained else "dim",
        )
    rest = len(strip.pieces) - first - TOKENS
    if rest > 0:
        yield f" … {rest} more tokens", "dim"


def _style(signal: Signal, value: float) -> str:
    """One of three depths; values below a sixth of the limit stay plain."""
    if isnan(value) or not signal.limit > 0:
        return ""
    depth = min(3, int(3 * min(abs(value) / signal.limit, 1.0) + 0.5))
    colours = _MUCH if not signal.diverging else _UP if value > 0 else _DOWN
    return colours[depth - 1] if depth else ""


def _spans(strip: Strip) -> Table:
    table = _table("", ("span", "figures", "text"))
    for span in strip.spans:
        text = line("".join(strip.pieces[span.start : span.end]))
        table.add_row(Text(line(span.label)), Text(line(span.detail)), Text(text[:80] + ("…" if len(text) > 80 else "")))
    return table
