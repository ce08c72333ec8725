"""Panels as one HTML file that needs nothing else: no network, no server, no second file.

Text from the run is written by an escaping template or stands in JSON without ``<``, ``>`` and ``&``; the page forbids
every source but its own style and the one script whose hash it names. Without a script the strips are plain text.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from math import isfinite
from typing import Final

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from credit_inspector.panel import Block, Chart, Finding, Findings, Grid, Panel, Prose, Strip, Tiles, TokenLink
from credit_inspector.reports import charts
from credit_inspector.reports.wording import cell, line, number, place, printable
from credit_inspector.views.strip import assets, payload

LINKS: Final = 8
"""Places that a finding lists; the rest is counted."""

_FIGURE: Final = re.compile(r"[−-]?\d[\d.,]*\s?%")


def render(title: str, panels: Sequence[Panel], *, subtitle: str = "", language: str = "en") -> str:
    """The whole file. A ``TokenLink`` to a response with a strip on the page jumps to its tokens, any other is text."""
    page = _Page(_strips(panels))
    here = files("credit_inspector.reports")
    component = assets()
    script = component.js + "\n" + here.joinpath("report.js").read_text("utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(here.joinpath("report.html.jinja").read_text("utf-8"))
    return template.render(
        title=line(title),
        subtitle=line(subtitle),
        language=language,
        panels=[{"title": line(panel.title), "blocks": [page.block(block) for block in panel.blocks]} for panel in panels],
        place=page.place,
        style=here.joinpath("report.css").read_text("utf-8") + (component.css if page.strips else ""),
        script=script,
        script_source=_source(script) if page.strips else "'none'",
        has_strip=bool(page.strips),
    )


def _source(script: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() + "'"


def _strips(panels: Sequence[Panel]) -> list[Strip]:
    return [block for panel in panels for block in panel.blocks if isinstance(block, Strip)]


@dataclass(frozen=True, slots=True)
class _Page:
    """What the blocks of one file share: the strips, by their number on the page."""

    strips: list[Strip]

    def anchor(self, strip: Strip) -> str:
        return f"strip-{next(k for k, other in enumerate(self.strips, 1) if other is strip)}"

    def place(self, link: TokenLink) -> Markup:
        """A link as an anchor where its response is drawn, else as words."""
        for strip in self.strips:
            if strip.link and (strip.link.step, strip.link.sample_id) == (link.step, link.sample_id):
                start, end = _positions(strip, link)
                return Markup('<a href="#{}" data-token="{}" data-until="{}">{}</a>').format(
                    self.anchor(strip), start, end, place(link)
                )
        return Markup("<span>{}</span>").format(place(link))

    def block(self, block: Block) -> Mapping[str, object]:
        """A block as the template reads it."""
        write: Mapping[type, Callable[..., Mapping[str, object]]] = {
            Prose: _prose,
            Tiles: _tiles,
            Findings: _findings,
            Chart: _chart,
            Grid: _grid,
            Strip: self.strip,
        }
        return write[type(block)](block)

    def strip(self, strip: Strip) -> Mapping[str, object]:
        return {
            "kind": "strip",
            "id": self.anchor(strip),
            "title": line(strip.title),
            "text": printable("".join(strip.pieces)),
            "json": _inert(json.dumps(payload(strip), allow_nan=False, separators=(",", ":"))),
            "height": min(4000, 220 + len(strip.pieces)),
        }


def _positions(strip: Strip, link: TokenLink) -> tuple[int, int]:
    """A link counts the tokens of the response, a strip those of the prompt before them too."""
    prompt = strip.kinds.count("prompt")
    return prompt + link.start, prompt + link.end


def _inert(text: str) -> str:
    """JSON in which no character can end the element that it stands in."""
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _prose(prose: Prose) -> Mapping[str, object]:
    text = printable(prose.text)
    found = _FIGURE.search(text) if prose.style == "headline" else None
    start, end = found.span() if found else (len(text), len(text))
    return {
        "kind": "prose",
        "style": prose.style,
        "before": text[:start],
        "figure": text[start:end],
        "after": text[end:],
    }


def _tiles(tiles: Tiles) -> Mapping[str, object]:
    said = [{"value": line(tile.value), "label": line(tile.label), "detail": line(tile.detail)} for tile in tiles.tiles]
    return {"kind": "tiles", "tiles": said}


def _findings(findings: Findings) -> Mapping[str, object]:
    return {"kind": "findings", "findings": [_finding(finding) for finding in findings.findings]}


def _finding(finding: Finding) -> Mapping[str, object]:
    return {
        "code": line(finding.code),
        "severity": finding.severity.name.lower(),
        "sentence": line(finding.sentence),
        "how_sure": line(finding.how_sure),
        "why": line(finding.why),
        "do": line(finding.do),
        "cannot_tell": line(finding.cannot_tell),
        "links": finding.links[:LINKS],
        "more": max(0, len(finding.links) - LINKS),
        "numbers": [(line(name), number(value)) for name, value in finding.numbers.items() if isfinite(value)],
    }


def _chart(chart: Chart) -> Mapping[str, object]:
    return {"kind": "chart", "figure": charts.figure(chart)}


def _grid(grid: Grid) -> Mapping[str, object]:
    links = [*grid.links, *[None] * (len(grid.rows) - len(grid.links))]
    return {
        "kind": "grid",
        "title": line(grid.title),
        "head": [line(name) for name in grid.head],
        "numeric": [all(not isinstance(row[k], str) for row in grid.rows) for k in range(len(grid.head))],
        "rows": [{"cells": [cell(value) for value in row], "link": link} for row, link in zip(grid.rows, links, strict=True)],
        "linked": any(link is not None for link in links),
    }
