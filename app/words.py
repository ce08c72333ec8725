"""Text for Streamlit, whose captions and labels are Markdown: data must not act as markup there."""

from __future__ import annotations

import re

_ACTIVE = re.compile(r"([\\`*_{}\[\]()#+\-.!|<>~$:&@^=])")
_FIGURE = re.compile(r"\d+(?:\.\d+)? ?%")


def safe(text: str) -> str:
    """The text with every character escaped that Markdown, HTML, LaTeX or Streamlit's own marks would act on."""
    return _ACTIVE.sub(r"\\\1", text.replace("\n", " "))


def headline(text: str) -> str:
    """A safe text whose first percentage stands out."""
    found = _FIGURE.search(text)
    if not found:
        return safe(text)
    return f"{safe(text[: found.start()])}:orange[{safe(found.group())}]{safe(text[found.end() :])}"
