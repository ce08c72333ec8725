"""Trainers: how each one leaves its rollouts on disk, one file a format.

To add a format, drop a file in that decorates a function with ``@reader``::

    @reader("verl")
    def open_verl(path: Path, options: ReadOptions) -> Run | None:
        '''verl's rollout dump: ``{step}.jsonl`` …'''

It gets a file or folder and answers ``None`` when that is not its format (cheaply: names and the first lines), a ``Run`` when
it is, and raises ``FormatError`` when it is but cannot be read. A trainer's spelling stays inside its file: arrays come out
as response tokens only, unpadded, with the log-probability of token t at place t. Nothing of the data's is ever executed, the
source is never modified, and a bad row among good ones becomes a ``Problem``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from credit_inspector.registry import Registry
from credit_inspector.rollout import Run


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a user may say about a file: ``mapping`` of our names to the file's columns (``--map reward=score``)."""

    mapping: Mapping[str, str] = field(default_factory=dict)


Reader = Callable[[Path, ReadOptions], Run | None]

readers: Registry[Reader] = Registry("trainers", __name__)


def reader(name: str) -> Callable[[Reader], Reader]:
    """Put a reader in under its trainer's name."""
    return lambda function: readers.add(name, function)


__all__ = ["ReadOptions", "Reader", "reader", "readers"]
