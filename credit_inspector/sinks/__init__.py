"""Sinks: where figures go during training.

To add one, drop a file in that decorates a function with ``@sink``. It gets the run's folder and returns something with
``scalars(step, values)`` and ``close()``. Its client is imported inside the function, so that a missing one costs one line and
nothing else. A sink that raises is switched off; training goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from credit_inspector.registry import Registry


class Sink(Protocol):
    """An open sink."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write the figures of one optimizer step; all of them are finite."""

    def close(self) -> None:
        """Flush and close."""


OpenSink = Callable[[Path], Sink]

sinks: Registry[OpenSink] = Registry("sinks", __name__)


def sink(name: str) -> Callable[[OpenSink], OpenSink]:
    """Put a sink in under a name."""
    return lambda function: sinks.add(name, function)


__all__ = ["OpenSink", "Sink", "sink", "sinks"]
