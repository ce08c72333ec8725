r"""Thinking and the rest, by the tags that reasoning models write.

Labels: ``thinking`` for what stands before ``</think>``, ``markup`` for the tags, ``rest`` for everything else. Many chat
templates open the block themselves, so that a response begins inside it and holds the closing tag alone: then the thinking begins
with the response. A block that is opened and never closed is thinking to its end.
"""

from __future__ import annotations

import re

from credit_inspector.segmenters import segmenter
from credit_inspector.spans import TextSpan

OPEN = re.compile(r"<(?:think|thinking|reasoning)>\s*\Z")
"""A prompt whose template opened the block."""
_TAG = re.compile(r"<(/?)(?:think|thinking|reasoning)>")


def opened_before(response: str) -> bool:
    """Whether a response closes a block that it did not open."""
    first = _TAG.search(response)
    return first is not None and first[1] == "/"


@segmenter("thinking")
def thinking(text: str) -> list[TextSpan]:
    """Cut a response at its tags of thinking; the spans cover the text."""
    spans: list[TextSpan] = []
    at, inside = 0, opened_before(text)
    for tag in _TAG.finditer(text):
        if tag.start() > at:
            spans.append(TextSpan(at, tag.start(), "thinking" if inside else "rest"))
        spans.append(TextSpan(tag.start(), tag.end(), "markup"))
        at, inside = tag.end(), not tag[1]
    if at < len(text):
        spans.append(TextSpan(at, len(text), "thinking" if inside else "rest"))
    return spans
