r"""Sentences in any script, with the answer and the markup around it kept apart.

Labels: ``sentence``; ``answer`` for what a grader reads (inside ``<answer>…</answer>`` or ``\boxed{…}``, or after ``####``);
``markup`` for tags and special tokens. Only the last answer of a response is labelled so, earlier ones are sentences.
White space before a sentence belongs to it, as tokenizers have it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from credit_inspector.segmenters import segmenter
from credit_inspector.spans import TextSpan

_TAG = r"\s*</?[A-Za-z_][\w.-]{0,30}>|\s*<\|[^|<>]{1,40}\|>"
_BOXED = r"\s*\\boxed\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"
_HASHES = r"\s*####[^\n]*"
_MARKUP = re.compile(f"(?P<tag>{_TAG})|(?P<boxed>{_BOXED})|(?P<hashes>{_HASHES})")

# A full stop between digits ("3.5") ends nothing; one after a closing quote or bracket does.
_END = re.compile(r"""[.!?…]+["'”’)\]]*(?=\s|$)|[。！？｡]+["'”’」』）]*|\n+""")


@segmenter("sentence")
def sentences(text: str) -> list[TextSpan]:
    """Cut a response into sentences, the answer and markup; the spans cover the text."""
    spans: list[TextSpan] = []
    at, in_answer = 0, False
    for mark in _MARKUP.finditer(text):
        spans += _plain(text, at, mark.start(), answer=in_answer)
        tag = mark.group("tag")
        in_answer = bool(tag) and tag.strip().lower() == "<answer>"
        spans += [TextSpan(mark.start(), mark.end(), "markup")] if tag else _marked(mark)
        at = mark.end()
    spans += _plain(text, at, len(text), answer=in_answer)
    return _only_last_answer(spans)


def _plain(text: str, start: int, end: int, *, answer: bool) -> Iterator[TextSpan]:
    if answer:
        if end > start:
            yield TextSpan(start, end, "answer")
        return
    at = start
    for stop in _END.finditer(text, start, end):
        if text[at : stop.end()].strip():
            yield TextSpan(at, stop.end(), "sentence")
            at = stop.end()
    if at < end:
        yield TextSpan(at, end, "sentence" if text[at:end].strip() else "markup")


def _marked(mark: re.Match[str]) -> list[TextSpan]:
    """An opening, the answer and (for a box) the closing brace."""
    whole = mark.group()
    opening = whole.index("{") + 1 if mark.group("boxed") else whole.index("####") + 4
    inner_end = mark.end() - 1 if mark.group("boxed") else mark.end()
    inner = TextSpan(mark.start() + opening, inner_end, "answer")
    spans = [TextSpan(mark.start(), inner.start, "markup"), inner, TextSpan(inner_end, mark.end(), "markup")]
    return [span for span in spans if span.end > span.start]


def _only_last_answer(spans: list[TextSpan]) -> list[TextSpan]:
    answers = [i for i, span in enumerate(spans) if span.label == "answer"]
    return [
        span._replace(label="sentence") if span.label == "answer" and i != answers[-1] else span for i, span in enumerate(spans)
    ]
