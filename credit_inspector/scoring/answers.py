"""Which span is a response's answer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from credit_inspector.spans import SpanTable

LABEL = "answer"
FRAME = "markup"
"""The label of what stands around an answer, such as ``<answer>``."""


class Place(NamedTuple):
    """Tokens ``start`` to ``end`` (exclusive), counted over the whole table."""

    start: int
    end: int


def answers(spans: SpanTable, n_rows: int) -> NDArray[np.int64]:
    """``[N]`` the number of each response's answer span; −1 where there is none.

    Of several, the last: it is the one that verifiers read.
    """
    found = np.full(n_rows, -1, np.int64)
    for number, label in enumerate(spans.label):
        if label == LABEL:
            found[spans.row[number]] = number
    return found


def opening(spans: SpanTable, answer: int) -> int:
    """The first span of the markup that runs right up to an answer span; the answer itself where there is none.

    Where an answer has a frame, ``<answer>`` say, that it comes *here* is the frame's news and what it says is the
    answer's.
    """
    first = answer
    while (
        first > 0
        and spans.label[first - 1] == FRAME
        and spans.row[first - 1] == spans.row[answer]
        and spans.end[first - 1] == spans.start[first]
    ):
        first -= 1
    return first


def place(spans: SpanTable, span: int) -> Place:
    """Where a span lies."""
    return Place(int(spans.start[span]), int(spans.end[span]))


def without_answer(found: NDArray[np.int64]) -> str:
    """A sentence for a column's note where responses lack an answer, else nothing."""
    missing = int((found < 0).sum())
    return f"{missing} of {len(found)} responses have no answer span and no value" if missing else ""
