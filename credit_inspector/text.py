"""Text that may come from anywhere, made fit to be written."""

from __future__ import annotations


def whole(text: str) -> str:
    """``text`` as text that can be encoded: surrogate pairs joined, halves of one replaced by U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
