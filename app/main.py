"""The Streamlit app: one page a view, drawn block by block. It knows no view by name and reads one analysis folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import streamlit as st
from draw import Navigator, draw
from words import safe

from credit_inspector.errors import CreditInspectorError
from credit_inspector.store import Store
from credit_inspector.views import Place, View, pages
from credit_inspector.views.response import ranked

ANALYSIS = "CREDIT_INSPECTOR_ANALYSIS"


def main() -> None:
    """Open the analysis named in the environment and show its pages."""
    st.set_page_config(page_title="Credit Inspector", layout="wide", initial_sidebar_state="expanded")
    store = Store(Path(os.environ.get(ANALYSIS, "analysis")))
    if not store.exists:
        st.error(safe(f"No analysis in {store.folder}. Make one: credit-inspector analyze RUN"))
        return
    views = pages()
    by_name = {view.name: st.Page(_page(view, store), title=view.title, url_path=view.name) for view in views}
    _pages.update(by_name)
    st.navigation(list(by_name.values()), position="top").run()


_pages: dict[str, st.Page] = {}


def _page(view: View, store: Store) -> Callable[[], None]:
    shown = partial(_show, view, store)
    shown.__name__ = view.name  # type: ignore[attr-defined]  # Streamlit tells pages apart by their function's name
    return shown


def _show(view: View, store: Store) -> None:
    try:
        place = _place(view, store)
        panel = view.build(store, place)
    except CreditInspectorError as error:
        st.error(safe(str(error)))
        return
    draw(panel, Navigator(lambda link: (_pages["response"], {"step": str(link.step), "r": link.sample_id})))


def _place(view: View, store: Store) -> Place:
    """Where the reader is: the address, changed by the controls in the sidebar."""
    with st.sidebar:
        st.markdown("**Credit Inspector**")
        meta = store.meta()
        st.caption(safe(f"{Path(meta.source).name} · {meta.algorithm.name if meta.algorithm else 'rule not known'}"))
        if not store.steps or view.name == "verdict":
            return Place()
        step = _choose("Optimizer step", list(store.steps), "step", int)
        if view.name != "response":
            return Place(step)
        table, _ = store.read_step(step)
        rows = [table.rollouts[row] for row in ranked(table)]
        rewards = {r.sample_id: "no reward" if r.reward is None else f"reward {r.reward:g}" for r in rows}
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
    return read(str(chosen))


main()
