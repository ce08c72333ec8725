"""The Streamlit app: one page a view, drawn block by block. A new view is a new page by itself."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import streamlit as st

from credit_inspector.errors import CreditInspectorError
from credit_inspector.panel import Panel, TokenLink
from credit_inspector.store import Store
from credit_inspector.views import Place, View, pages, views
from credit_inspector.views.response import ranked
from draw import Navigator, draw
from words import safe

ANALYSIS = "CREDIT_INSPECTOR_ANALYSIS"
# The page about the whole run, and the one that links lead to. (Streamlit would show a string here.)
FIRST, RESPONSE = "verdict", "response"


# Longer lines of text are hard to read; the top bar is 3.75 rem high.
STYLE = "<style>.stMainBlockContainer { max-width: 76rem; padding-top: 4.5rem; }</style>"

_pages: dict[str, st.Page] = {}


def main() -> None:
    """Open the analysis named in the environment and show its pages."""
    st.set_page_config(page_title="Credit Inspector", layout="wide")
    st.html(STYLE)
    store = Store(Path(os.environ.get(ANALYSIS, "analysis")))
    if not store.exists:
        st.error(safe(f"No analysis in {store.folder}. Make one: credit-inspector analyze RUN"))
        return
    shown = pages()
    by_name = {view.name: st.Page(_page(view, store), title=view.title, url_path=view.name) for view in shown}
    _pages.update(by_name)
    st.navigation(list(by_name.values()), position="top").run()


def _page(view: View, store: Store) -> Callable[[], None]:
    shown = partial(_show, view, store)
    shown.__name__ = view.name  # type: ignore[attr-defined]  # Streamlit tells pages apart by their function's name
    return shown


def _show(view: View, store: Store) -> None:
    meta = store.meta()
    st.caption(
        safe(f"Credit Inspector · {Path(meta.source).name} · {meta.algorithm.name if meta.algorithm else 'rule not known'}")
    )
    try:
        place = _place(view, store)
        panel = _built(view.name, str(store.folder), _written(store), place)
    except CreditInspectorError as error:
        st.error(safe(str(error)))
        return
    if place.step is None or place.sample_id is None:
        draw(panel, Navigator(_to))
        return
    start, end = _asked()
    draw(panel, Navigator(_to, TokenLink(place.step, place.sample_id, start, end), _select))


@st.cache_resource(max_entries=32, show_spinner="Reading the analysis")
def _built(name: str, folder: str, written: int, place: Place) -> Panel:
    """A panel, kept until the analysis is written again."""
    return views[name].build(Store(Path(folder)), place)


def _written(store: Store) -> int:
    return max((file.stat().st_mtime_ns for file in store.folder.iterdir()), default=0)


def _to(link: TokenLink) -> tuple[st.Page, dict[str, str]]:
    query = {"step": str(link.step), "r": link.sample_id}
    return _pages[RESPONSE], query | ({"t": f"{link.start}-{link.end}"} if link.end > link.start else {})


def _asked() -> tuple[int, int]:
    """Tokens named in the address, first and one past the last; none when it names none."""
    found = re.fullmatch(r"(\d{1,9})-(\d{1,9})", st.query_params.get("t", ""))
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _select(token: int) -> None:
    """Put a selected token into the address, so that it can be sent to somebody."""
    if token >= 0:
        st.query_params["t"] = f"{token}-{token + 1}"


def _place(view: View, store: Store) -> Place:
    """Where the reader is: the address, changed by the controls above the page."""
    if not store.steps or view.name == FIRST:
        return Place()
    left, right = st.columns([1, 3])
    with left:
        step = _choose("Optimizer step", list(store.steps), "step", int)
    if view.name != RESPONSE:
        return Place(step)
    table, _ = store.read_step(step)
    rows = [table.rollouts[row] for row in ranked(table)]
    rewards = {r.sample_id: "no reward" if r.reward is None else f"reward {r.reward:g}" for r in rows}
    if not rewards:
        return Place(step)
    with right:
        sample = _choose("Response", list(rewards), "r", str, lambda name: f"{name} · {rewards[name]}")
    return Place(step, sample)


T = TypeVar("T", int, str)


def _choose(label: str, options: list[T], name: str, read: Callable[[str], T], show: Callable[[T], str] = str) -> T:
    """A select box that is also a part of the address."""
    asked = st.query_params.get(name, "")
    at = next((i for i, option in enumerate(options) if str(option) == asked), 0)
    chosen = st.selectbox(label, options, index=at, format_func=show)
    if str(chosen) != asked:
        st.query_params[name] = str(chosen)
        st.query_params.pop("t", None)
    return read(str(chosen))


main()
