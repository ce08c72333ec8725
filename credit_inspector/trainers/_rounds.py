"""Batches that stand twice in an appended file → told apart.

A run that goes on from a checkpoint counts on from there: it appends the same step, or the same task number, once more, with
other responses. Under one id the groups of both would be compared with one another.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any


class Rounds:
    """Counts how often each batch was written, by the samples that stand there again."""

    def __init__(self) -> None:
        self._seen: defaultdict[str, set[str]] = defaultdict(set)
        self._round: Counter[str] = Counter()

    def of(self, batch: Any, sample: Any) -> int:
        """From 0: the writing of ``batch`` that a sample belongs to, asked in the file's order. ``None`` repeats nothing."""
        name, key = str(batch), str(sample)
        if sample is not None and key in self._seen[name]:
            self._round[name] += 1
            self._seen[name] = set()
        self._seen[name].add(key)
        return self._round[name]

    @property
    def repeated(self) -> int:
        """Writings beyond the first."""
        return self._round.total()


def marked(name: str, again: int) -> str:
    """The name in a later writing: ``7`` → ``7#2``."""
    return f"{name}#{again + 1}" if again else name
