"""Blocks of a panel → Streamlit elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch

import pandas as pd
import plotly.graph_objects as go
import streamlit as st
from strip import show_strip
from words import headline, safe

from credit_inspector.panel import Chart, Finding, Findings, Grid, Panel, Prose, Severity, Strip, Tiles, TokenLink

COLOURS = ("#b35806", "#542788", "#1b7837", "#666666")
_MARKS = {Severity.ERROR: "🟠", Severity.WARNING: "🟣", Severity.INFO: "⚪"}


@dataclass(frozen=True, slots=True)
class Navigator:
    """How to get to a place: a page and the query that names it."""

    to: Callable[[TokenLink], tuple[st.Page, dict[str, str]]]


def draw(panel: Panel, navigator: Navigator) -> None:
    """Draw a panel's blocks in order."""
    for number, block in enumerate(panel.blocks):
        _draw(block, f"{panel.title}-{number}", navigator)


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
    for column, tile in zip(st.columns(len(block.tiles)), block.tiles, strict=True):
        with column.container(border=True, height="stretch"):
            st.markdown(f"### {safe(tile.value)}")
            st.markdown(safe(tile.label))
            st.caption(safe(tile.detail))


@_draw.register
def _(block: Findings, key: str, navigator: Navigator) -> None:
    for number, finding in enumerate(block.findings):
        with st.container(border=True):
            _finding(finding, f"{key}-{number}", navigator)


def _finding(finding: Finding, key: str, navigator: Navigator) -> None:
    st.markdown(f"{_MARKS[finding.severity]} **{safe(finding.sentence)}**")
    st.caption(safe(f"{finding.severity.name.lower()} · {finding.code} · {finding.how_sure}"))
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
        figure.add_trace(_trace(series.mark, series.name, list(series.x), [_gap(y) for y in series.y], colour))
    for start, end, label in block.bands:
        figure.add_vrect(
            start - 0.5,
            end - 0.5,
            fillcolor="#888888",
            opacity=0.12 if label == "unearned" else 0.03,
            line_width=0.5,
            annotation_text=label,
            annotation_position="top left",
            annotation_font_size=10,
        )
    figure.update_layout(
        title=block.title,
        xaxis_title=block.x_label,
        yaxis_title=block.y_label,
        height=320,
        showlegend=len(block.series) > 1,
        margin={"l": 10, "r": 10, "t": 50, "b": 10},
    )
    st.plotly_chart(figure, key=key, config={"displaylogo": False})


def _trace(mark: str, name: str, x: list[object], y: list[float | None], colour: str) -> go.Bar | go.Scatter:
    if mark == "bar":
        signs = [COLOURS[1] if (value or 0) < 0 else COLOURS[0] for value in y]
        return go.Bar(x=x, y=y, name=name, marker_color=signs)
    return go.Scatter(x=x, y=y, name=name, mode="lines+markers" if mark == "line" else "markers", line_color=colour)


def _gap(value: float) -> float | None:
    return value if math.isfinite(value) else None


@_draw.register
def _(block: Grid, key: str, navigator: Navigator) -> None:
    st.markdown(f"**{safe(block.title)}**")
    frame = pd.DataFrame(list(block.rows), columns=list(block.head))
    if not block.links:
        st.dataframe(frame, hide_index=True, key=key)
        return
    chosen = st.dataframe(frame, hide_index=True, key=key, on_select="rerun", selection_mode="single-row")
    rows = chosen["selection"]["rows"]
    if rows and (link := block.links[rows[0]]):
        page, query = navigator.to(link)
        st.page_link(page, label=safe(f"Open response {link.sample_id}"), query_params=query)


@_draw.register
def _(block: Strip, key: str, navigator: Navigator) -> None:
    if block.link is not None:
        page, query = navigator.to(block.link)
        st.page_link(page, label=safe(block.title), query_params=query)
    show_strip(block, key)
