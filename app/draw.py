"""Blocks of a panel → Streamlit elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from html import escape
from itertools import groupby

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from credit_inspector.panel import Chart, Finding, Findings, Grid, Panel, Prose, Severity, Strip, Tiles, TokenLink
from strip import show_strip
from words import headline, safe

COLOURS = ("#e08214", "#8073ac", "#1b9e58", "#3f8fbf", "#888888")
"""Of lines and clouds; they are seen on white and on black."""
UP, DOWN = "#ee9332", "#9486c2"
"""Of bars above and below zero, as in the strip."""
BANDS = {"unearned": ("#ee9332", 0.16), "earned": ("#1b9e58", 0.14), "answer": ("#3f8fbf", 0.14)}
SHOWN = 3
"""Strips drawn at once where several follow each other; the others wait behind a fold."""
LETTER, WIDTH = 6, 1000
"""Pixels of a letter of a band's label and of a chart, roughly: a label has to fit into its band."""
ROW, MOST_ROWS = 35, 20
"""Pixels of a row of a grid, and how many rows are seen without scrolling."""
OPEN = ":material/arrow_forward:"
_BADGES = {Severity.ERROR: "red", Severity.WARNING: "orange", Severity.INFO: "gray"}


@dataclass(frozen=True, slots=True)
class Navigator:
    """How to get from here to a place: a page and the query that names it."""

    to: Callable[[TokenLink], tuple[st.Page, dict[str, str]]]
    here: TokenLink | None = None
    """The response that the page is about, and the tokens of it that the reader asked for."""
    select: Callable[[int], None] | None = None
    """Told the token that the reader selected on this page, counted from the first token of the response."""

    def is_here(self, link: TokenLink | None) -> bool:
        """Whether a link leads to the response that the page is about."""
        return bool(link and self.here and (link.step, link.sample_id) == (self.here.step, self.here.sample_id))


def draw(panel: Panel, navigator: Navigator) -> None:
    """Draw a panel's blocks in order."""
    number = 0
    for is_strip, run in groupby(panel.blocks, key=lambda block: isinstance(block, Strip)):
        blocks = list(run)
        at_once = SHOWN if is_strip else len(blocks)
        for block in blocks[:at_once]:
            _draw(block, f"{panel.title}-{number}", navigator)
            number += 1
        if blocks[at_once:]:
            with st.expander(f"{len(blocks) - at_once} more"):
                for block in blocks[at_once:]:
                    _draw(block, f"{panel.title}-{number}", navigator)
                    number += 1


@singledispatch
def _draw(block: object, key: str, navigator: Navigator) -> None:
    raise TypeError(f"no way to draw a {type(block).__name__}")


@_draw.register
def _(block: Prose, key: str, navigator: Navigator) -> None:
    match block.style:
        case "headline":
            st.title(headline(block.text), anchor=False)
        case "lead":
            st.markdown(safe(block.text))
        case "body":
            st.markdown(f"**{safe(block.text)}**")
        case "note":
            st.caption(safe(block.text))


@_draw.register
def _(block: Tiles, key: str, navigator: Navigator) -> None:
    for column, tile in zip(st.columns(max(1, len(block.tiles))), block.tiles, strict=False):
        with column.container(border=True, height="stretch", gap="xxsmall"):
            st.markdown(f"### {safe(tile.value)}")
            st.markdown(f"**{safe(tile.label)}**")
            st.caption(safe(tile.detail))


@_draw.register
def _(block: Findings, key: str, navigator: Navigator) -> None:
    for number, finding in enumerate(block.findings):
        with st.container(border=True):
            _finding(finding, f"{key}-{number}", navigator)


def _finding(finding: Finding, key: str, navigator: Navigator) -> None:
    badge = f":{_BADGES[finding.severity]}-badge[{finding.severity.name.lower()}]"
    st.markdown(f"{badge} **{safe(finding.sentence)}**")
    st.caption(safe(f"{finding.code} · {finding.how_sure}"))
    st.markdown(safe(finding.why))
    st.markdown(f"**To do:** {safe(finding.do)}")
    if finding.cannot_tell:
        st.caption(f"It cannot tell: {safe(finding.cannot_tell)}")
    if finding.links:
        with st.expander(f"The worst {len(finding.links)}"):
            for link in finding.links:
                page, query = navigator.to(link)
                label = safe(f"step {link.step}, response {link.sample_id}, tokens {link.start}–{link.end}")
                st.page_link(page, label=label, query_params=query)


@_draw.register
def _(block: Chart, key: str, navigator: Navigator) -> None:
    figure = go.Figure()
    for series, colour in zip(block.series, COLOURS * len(block.series), strict=False):
        figure.add_trace(_trace(series.mark, escape(series.name), list(series.x), [_gap(y) for y in series.y], colour))
    longest = max((len(series.x) for series in block.series), default=0)
    for start, end, label in block.bands:
        colour, opacity = BANDS.get(label, ("#888888", 0.08))
        fits = (end - start) / max(longest, 1) * WIDTH > LETTER * len(label)
        named = (
            {"annotation_text": escape(label), "annotation_position": "top left", "annotation_yanchor": "bottom"} if fits else {}
        )
        figure.add_vrect(
            start - 0.5,
            end - 0.5,
            fillcolor=colour,
            opacity=opacity,
            line_width=0,
            annotation_font_size=11,
            layer="below",
            **named,
        )
    figure.update_layout(
        title=escape(block.title),
        xaxis_title=escape(block.x_label),
        yaxis_title=escape(block.y_label),
        height=320,
        showlegend=len(block.series) > 1,
        margin={"l": 10, "r": 10, "t": 70 if block.bands else 50, "b": 10},
    )
    figure.update_xaxes(showgrid=False, zeroline=False)
    st.plotly_chart(figure, key=key, config={"displayModeBar": False})


def _trace(mark: str, name: str, x: list[object], y: list[float | None], colour: str) -> go.Bar | go.Scatter:
    if mark == "bar":
        signs = [DOWN if (value or 0) < 0 else UP for value in y]
        return go.Bar(x=x, y=y, name=name, marker_color=signs)
    return go.Scatter(
        x=x, y=y, name=name, mode="lines+markers" if mark == "line" else "markers", line_color=colour, marker_size=7
    )


def _gap(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


@_draw.register
def _(block: Grid, key: str, navigator: Navigator) -> None:
    st.markdown(f"**{safe(block.title)}**")
    frame = pd.DataFrame(list(block.rows), columns=list(block.head))
    height = ROW * (1 + min(len(block.rows), MOST_ROWS)) + 2
    if not block.links:
        st.dataframe(frame, hide_index=True, key=key, height=height)
        return
    above = st.container()
    chosen = st.dataframe(frame, hide_index=True, key=key, height=height, on_select="rerun", selection_mode="single-row")
    rows = chosen["selection"]["rows"]
    link = block.links[rows[0]] if rows and rows[0] < len(block.links) else None
    if link is None or navigator.is_here(link):
        above.caption("Tick a row to open its response.")
        return
    page, query = navigator.to(link)
    above.page_link(page, label=safe(f"Open response {link.sample_id}"), query_params=query, icon=OPEN)


@_draw.register
def _(block: Strip, key: str, navigator: Navigator) -> None:
    if navigator.here is None or not navigator.is_here(block.link):
        show_strip(block, f"{key}-{block.id}")
        if block.link is not None:
            page, query = navigator.to(block.link)
            st.page_link(page, label=safe(f"Open response {block.link.sample_id}"), query_params=query, icon=OPEN)
        return
    prompt, asked = block.kinds.count("prompt"), navigator.here
    state = {"token": prompt + asked.start, "until": prompt + asked.end} if asked.end > asked.start else {}
    select = navigator.select
    show_strip(block, f"{key}-{block.id}", state, None if select is None else lambda token: select(token - prompt))
