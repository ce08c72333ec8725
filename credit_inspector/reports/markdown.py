r"""Panels as GitHub Markdown: for an issue, a pull request, a note beside a run.

Text from the run is escaped so that nothing in it acts: no HTML, emphasis, table cell, formula, picture, link, mention
or emoji. The text of a response stands in a code fence longer than any run of backticks in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from credit_inspector.panel import Block, Chart, Finding, Findings, Grid, Panel, Prose, Signal, Strip, Tiles
from credit_inspector.reports.wording import cell, line, number, place, printable

ROWS: Final = 24
"""A chart with more places along x is summed up instead of listed."""
CELL: Final = 120
"""Characters of a table cell; GitHub breaks a table's lines badly."""

_ACTS: Final = re.compile(
    r"""(?P<entity>[<>&])
      | (?P<mark>[\\`*_\[\]|$~^])
      | (?P<filter>@(?=\w) | \#(?=\w) | :(?=[\w+-]+:))
      | (?P<scheme>:(?=//))
      | (?P<www>www(?=\.))
    """,
    re.VERBOSE | re.IGNORECASE,
)
_STARTS: Final = re.compile(r"^(?:([-+=#])(?=[-+=#\s]|$)|(\d+)([.)])(?=\s|$))")
_ENTITIES: Final = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}


def render(title: str, panels: Sequence[Panel]) -> str:
    """The whole document."""
    parts = [f"# {escape(title)}"]
    for panel in panels:
        parts.append(f"## {escape(panel.title)}")
        parts.extend(_block(block) for block in panel.blocks)
    return "\n\n".join(part for part in parts if part) + "\n"


def escape(text: str) -> str:
    """``text`` on one line, as it is read and not as it would act.

    GitHub looks for mentions, issue numbers and emoji after it has resolved escapes, so these are parted by a comment.
    """
    return _STARTS.sub(_start, _ACTS.sub(_inert, line(text)))


def _inert(found: re.Match[str]) -> str:
    text = found.group()
    if found["entity"]:
        return _ENTITIES[text]
    if found["filter"]:
        return f"{text}<!-- -->"
    return f"{text}\\" if found["www"] else f"\\{text}" if found["mark"] else ":\\"


def _start(found: re.Match[str]) -> str:
    mark, digits, dot = found.groups()
    return f"\\{mark}" if mark else f"{digits}\\{dot}"


def _block(block: Block) -> str:
    match block:
        case Prose():
            return _prose(block)
        case Tiles():
            return _tiles(block)
        case Findings():
            return "\n\n".join(_finding(finding) for finding in block.findings)
        case Chart():
            return _chart(block)
        case Grid():
            return _grid(block)
        case Strip():
            return _strip(block)


def _prose(prose: Prose) -> str:
    text = "  \n".join(escape(part) for part in printable(prose.text).split("\n") if part.strip())
    return f"**{text}**" if prose.style == "headline" and text else text


def _tiles(tiles: Tiles) -> str:
    said = ((f"**{escape(tile.value)}**", escape(tile.label), escape(tile.detail)) for tile in tiles.tiles)
    return "\n".join(f"- {value} {label}" + (f" ({detail})" if detail else "") for value, label, detail in said)


def _finding(finding: Finding) -> str:
    parts = [
        ("How sure", escape(finding.how_sure)),
        ("Why it matters", escape(finding.why)),
        ("What to do", escape(finding.do)),
        ("What this cannot tell", escape(finding.cannot_tell)),
        ("See", "; ".join(escape(place(link)) for link in finding.links[:5])),
        ("Numbers", ", ".join(f"{escape(name)} {number(value)}" for name, value in finding.numbers.items())),
    ]
    head = f"**{finding.severity.name.lower()}: {escape(finding.sentence)}** ({escape(finding.code)})"
    return "\n".join([head, "", *(f"- {name}: {text}" for name, text in parts if text)])


def _grid(grid: Grid) -> str:
    linked = any(grid.links)
    links = [*grid.links, *[None] * (len(grid.rows) - len(grid.links))]
    rows = [
        [*(cell(value, most=CELL) for value in row), *([place(link) if link else ""] if linked else [])]
        for row, link in zip(grid.rows, links, strict=True)
    ]
    return _titled(grid.title, _table([*grid.head, *(["see"] if linked else [])], rows))


def _chart(chart: Chart) -> str:
    places = list(dict.fromkeys(x for series in chart.series for x in series.x))
    listed = _listed(chart, places) if len(places) <= ROWS else _summed(chart)
    bands = "; ".join(f"{line(label)} {number(low)} to {number(high)}" for low, high, label in chart.bands)
    note = escape(f"{chart.y_label} over {chart.x_label}") + (f"; {escape(bands)}" if bands else "")
    return f"{_titled(chart.title, listed)}\n\n{note}"


def _listed(chart: Chart, places: Sequence[float | str]) -> str:
    values = [dict(zip(series.x, series.y, strict=True)) for series in chart.series]
    rows = [[cell(x), *(number(of.get(x)) for of in values)] for x in places]
    return _table([chart.x_label, *(series.name for series in chart.series)], rows)


def _summed(chart: Chart) -> str:
    rows = [[series.name, *_figures(np.asarray(series.y, np.float64))] for series in chart.series]
    return _table(["series", "values", "first", "last", "least", "most"], rows)


def _figures(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Iterator[str]:
    known = values[np.isfinite(values)]
    yield str(len(known))
    ends = (known[0], known[-1], known.min(), known.max()) if len(known) else (None,) * 4
    yield from (number(end) for end in ends)


def _strip(strip: Strip) -> str:
    spans = [
        [
            span.label,
            f"{span.start} to {span.end - 1}",
            span.detail,
            cell("".join(strip.pieces[span.start : span.end]), most=CELL),
        ]
        for span in strip.spans
    ]
    text = printable("".join(strip.pieces))
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    parts = [
        _titled(strip.title, _table(["span", "tokens", "figures", "text"], spans) if spans else ""),
        _table(["signal", "unit", "source", "values", "first", "last", "least", "most"], map(_signal, strip.signals)),
        f"{fence}text\n{text}\n{fence}",
    ]
    return "\n\n".join(part for part in parts if part)


def _signal(signal: Signal) -> list[str]:
    return [signal.label, signal.unit, signal.provenance, *_figures(signal.values.astype(np.float64))]


def _titled(title: str, body: str) -> str:
    return "\n\n".join(part for part in (f"### {escape(title)}" if title else "", body) if part)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join([_row(head), "|" + "---|" * len(head), *map(_row, rows)])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(escape(text) for text in cells) + " |"
