"""The token strip as a Streamlit component: the same file that a report holds, with a click that reaches Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import streamlit as st

from credit_inspector.panel import Strip
from credit_inspector.views.strip import assets, payload

# The host element stays over reruns, so that what the reader chose in the strip stays too.
_HOST = """
export default function (component) {
  const { data, parentElement, setStateValue } = component;
  const root = parentElement.querySelector(".strip-host");
  mount(root, data.payload, { onSelect: (token) => setStateValue("token", token), state: data.state });
}
"""

_js, _css = assets()
_component = st.components.v2.component(
    "credit_inspector_strip", html='<div class="strip-host"></div>\n', css=_css, js=f"{_js}\n{_HOST}"
)


@st.fragment
def show_strip(
    strip: Strip, key: str, state: Mapping[str, object] | None = None, on_select: Callable[[int], None] | None = None
) -> None:
    """Show a strip. ``state`` is what ``mount`` shows first, ``on_select`` gets the position of a token that was clicked.

    A fragment: a click runs this again and not the page.
    """
    found = _component(key=key, data={"payload": payload(strip), "state": dict(state or {})}, on_token_change=lambda: None)
    token = found.get("token")
    if token is not None and on_select is not None:
        on_select(int(token))
