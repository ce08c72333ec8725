"""How data is worded in every document: text without invisible commands, numbers, places, missing values."""

from __future__ import annotations

from math import isinf, isnan
from typing import Final

from credit_inspector.panel import TokenLink
from credit_inspector.text import whole

MISSING: Final = "n/a"

# Terminal commands, half characters and reading-order overrides would act on the document around the data.
_PICTURES: Final = {
    **{code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"},
    **{code: f"\\u{code:04x}" for code in (0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFEFF)},
}


def printable(text: str) -> str:
    """``text`` with control characters shown instead of obeyed; line ends and tabs stay."""
    return whole(text.replace("\r\n", "\n")).translate(_PICTURES)


def line(text: str) -> str:
    """``text`` as one printable line, for headings and cells."""
    return " ".join(printable(text).split())


def number(value: float | int | None) -> str:
    """``value`` with three or four figures and a true minus; ``n/a`` where there is none."""
    if value is None or isnan(value):
        return MISSING
    if isinf(value):
        return "−∞" if value < 0 else "∞"
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e6):
        return f"{int(value):,}".replace("-", "−")
    size = abs(value)
    text = f"{size:.2e}" if size >= 1e6 or size < 1e-4 else f"{size:,.0f}" if size >= 1e4 else f"{size:.4g}"
    return ("−" if value < 0 else "") + text.replace("e-", "e−").replace("e+", "e")


def cell(value: str | float | int | None, *, most: int = 1000) -> str:
    """A table cell in words, at most so many characters."""
    if not isinstance(value, str):
        return number(value)
    text = line(value)
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def place(link: TokenLink) -> str:
    """Where a link goes, in words."""
    where = f"step {link.step} · {line(link.sample_id)}"
    if link.end <= link.start:
        return where
    if link.end == link.start + 1:
        return f"{where} · token {link.start}"
    return f"{where} · tokens {link.start}–{link.end - 1}"
