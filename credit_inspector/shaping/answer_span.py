r"""Where a response's answer stands, in tokens; no shaping of its own.

The answer is the last one that a grader would read: inside ``<answer>…</answer>`` or ``\boxed{…}``, or after ``####``
(``segmenters/sentence.py``). A token covers the characters of its text; tokens that only continue a character cover none and go
with the token on which the character stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from credit_inspector.errors import MissingColumn
from credit_inspector.segmenters import segmenters
from credit_inspector.shaping import ShapingInputs
from credit_inspector.spans import TextSpan

Fit = Literal["overlap", "contained", "starts-in"]
"""Which tokens belong to a span: that share a character with it, that lie in it whole, or that begin in it."""


def answer_tokens(step: ShapingInputs, fit: Fit, *, tags: bool) -> NDArray[np.bool_]:
    """``[T]`` true on the answer's tokens; ``tags`` takes the markup right around the answer in.

    Raises:
        MissingColumn: the text of the tokens is not known, or no response has an answer.
    """
    found = np.zeros(step.table.n_tokens, np.bool_)
    if step.words is None and step.spans is not None and len(step.spans) and fit == "starts-in":
        for i, label in enumerate(step.spans.label):
            if label == "answer" and not tags:
                found[step.spans.start[i] : step.spans.end[i]] = True
    else:
        for row, words in enumerate(step.token_texts()):
            found[step.table.slice(row)] = _of_response(words, fit, tags=tags)
    if not found.any():
        raise MissingColumn(
            f"{step.named}: no response has an answer", wanted=r"<answer>…</answer>, \boxed{…} or #### in the responses"
        )
    return found


def _of_response(words: Sequence[str], fit: Fit, *, tags: bool) -> NDArray[np.bool_]:
    spans = segmenters["sentence"]("".join(words))
    number = next((i for i, span in enumerate(spans) if span.label == "answer"), None)
    if number is None:
        return np.zeros(len(words), np.bool_)
    low, high = _frame(spans, number) if tags else (number, number)
    return tokens_of(words, spans[low].start, spans[high].end, fit)


def _frame(spans: Sequence[TextSpan], answer: int) -> tuple[int, int]:
    low = answer - 1 if answer > 0 and spans[answer - 1].label == "markup" else answer
    high = answer + 1 if answer + 1 < len(spans) and spans[answer + 1].label == "markup" else answer
    return low, high


def tokens_of(words: Sequence[str], start: int, end: int, fit: Fit) -> NDArray[np.bool_]:
    """``[L]`` which of a response's tokens belong to characters ``start`` to ``end`` (exclusive) of their joined text."""
    ends = np.cumsum([len(word) for word in words], dtype=np.int64)
    begins = ends - np.array([len(word) for word in words], dtype=np.int64)
    some = ends > begins
    if fit == "overlap":
        inside = np.minimum(ends, end) > np.maximum(begins, start)
    elif fit == "contained":
        inside = some & (begins >= start) & (ends <= end)
    else:
        inside = some & (begins >= start) & (begins < end)
    # A token without text of its own goes with the last token before it that has one.
    owner = np.maximum.accumulate(np.where(some, np.arange(len(words)), 0)) if len(words) else np.zeros(0, np.int64)
    found: NDArray[np.bool_] = inside[owner]
    return found
