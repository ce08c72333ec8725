"""The token strip as a Streamlit component: the same file that a report holds, with a click that reaches Python."""

from __future__ import annotations

import streamlit as st

from credit_inspector.panel import Strip
from credit_inspector.views.strip import assets, payload

_HOST = """
export default function (component) {
  const { data, parentElement, setStateValue } = component;
  const root = parentElement.querySelector(".strip-host");
  mount(root, data.payload, { onSelect: (token) => setStateValue("token", token) });
}
"""

_js, _css = assets()
_component = st.components.v2.component(
    "credit_inspector_strip", html='<div class="strip-host"></div>\n', css=_css, js=f"{_js}\n{_HOST}"
)


def show_strip(strip: Strip, key: str) -> int | None:
    """Show a strip; the token that the reader selected, where there is one."""
    state = _component(key=key, data={"payload": payload(strip)}, on_token_change=lambda: None)
    token = state.get("token")
    return None if token is None else int(token)
