"""Labelled stretches of responses: sentences, the answer, turns.

A segmenter (``segmenters/``) cuts text into character stretches; ``SpanTable.from_text`` carries them over to tokens. A span
holds whole tokens: a token belongs to the span in which its character begins, so that spans never overlap and, where the
segmenter covers the text, every token is in one.

Letters: ``S`` spans of all rollouts of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from credit_inspector.table import Floats, TokenTable


class TextSpan(NamedTuple):
    """Characters ``start`` to ``end`` (exclusive) of a text, with a label such as ``sentence`` or ``answer``."""

    start: int
    end: int
    label: str


Segmenter = Callable[[str], list[TextSpan]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanTable:
    """All spans of one step, ordered by rollout and then by place."""

    row: NDArray[np.int64]
    """``[S]`` the rollout."""
    start: NDArray[np.int64]
    """``[S]`` first token, counted over the whole table."""
    end: NDArray[np.int64]
    """``[S]`` one past the last token."""
    label: tuple[str, ...]
    text: tuple[str, ...]
    lead: NDArray[np.int64] | None = None
    """``[S]`` how many of its first tokens are white space alone; 0 where not known."""

    @property
    def leads(self) -> NDArray[np.int64]:
        """``lead``, with zeros where it is not known."""
        return np.zeros(len(self), np.int64) if self.lead is None else self.lead

    def __len__(self) -> int:
        return len(self.row)

    def of_row(self, row: int) -> range:
        """The span numbers of one rollout."""
        low, high = np.searchsorted(self.row, [row, row + 1])
        return range(int(low), int(high))

    def number(self, n_tokens: int) -> NDArray[np.int64]:
        """``[T]`` the span of each token; −1 outside every span."""
        numbers = np.full(n_tokens, -1, np.int64)
        for i, (start, end) in enumerate(zip(self.start, self.end, strict=True)):
            numbers[start:end] = i
        return numbers

    def to_tokens(self, by_span: ArrayLike, n_tokens: int) -> Floats:
        """``[S]`` → ``[T]``: each span's value on its tokens; NaN outside every span."""
        values = np.append(np.asarray(by_span, dtype=np.float64), np.nan)
        return values[self.number(n_tokens)]

    def sums(self, by_token: ArrayLike) -> Floats:
        """``[T]`` → ``[S]``: sums over finite values; NaN for a span without any."""
        flat = np.asarray(by_token, dtype=np.float64)
        finite = np.isfinite(flat)
        total = np.concatenate([[0.0], np.cumsum(np.where(finite, flat, 0.0))])
        count = np.concatenate([[0], np.cumsum(finite)])
        return np.where(count[self.end] > count[self.start], total[self.end] - total[self.start], np.nan)

    def means(self, by_token: ArrayLike) -> Floats:
        """``[T]`` → ``[S]``: means over finite values; NaN for a span without any."""
        flat = np.asarray(by_token, dtype=np.float64)
        count = np.concatenate([[0], np.cumsum(np.isfinite(flat))])
        n = (count[self.end] - count[self.start]).astype(np.float64)
        mean: Floats = np.divide(self.sums(flat), n, out=np.full(len(self), np.nan), where=n > 0)
        return mean

    @classmethod
    def from_text(cls, table: TokenTable, pieces: Sequence[Sequence[str]], segment: Segmenter) -> SpanTable:
        """Cut every rollout's text and carry the spans over to tokens.

        Args:
            table: the step.
            pieces: for each rollout the text of each of its tokens (``tokens.pieces``); joined they are the text.
            segment: from text to character spans, in order and without overlap.
        """
        rows: list[int] = []
        starts: list[int] = []
        ends: list[int] = []
        labels: list[str] = []
        texts: list[str] = []
        leads: list[int] = []
        for row, words in enumerate(pieces):
            begins = np.concatenate([[0], np.cumsum([len(word) for word in words], dtype=np.int64)])[:-1]
            text = "".join(words)
            for span in segment(text):
                low, high = np.searchsorted(begins, [span.start, span.end])
                if span.end >= len(text):
                    high = len(words)
                if low >= high:
                    continue
                rows.append(row)
                starts.append(int(table.offsets[row] + low))
                ends.append(int(table.offsets[row] + high))
                labels.append(span.label)
                texts.append(text[span.start : span.end])
                leads.append(_blank(words[low:high]))
        row_, start, end, lead = (np.array(values, dtype=np.int64) for values in (rows, starts, ends, leads))
        return cls(row=row_, start=start, end=end, label=tuple(labels), text=tuple(texts), lead=lead)


def _blank(words: Sequence[str]) -> int:
    """How many of the first words are white space alone; a span of nothing else has none to spare."""
    count = next((i for i, word in enumerate(words) if word.strip() or not word), len(words))
    return count if count < len(words) else 0
