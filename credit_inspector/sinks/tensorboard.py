"""Figures for TensorBoard: event files in ``tensorboard/`` under the run's folder."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from credit_inspector.errors import MissingExtra
from credit_inspector.sinks import sink

FOLDER = "tensorboard"


class TensorBoard:
    """Writes scalars under their own names (``kl/…``, ``ratio/…``)."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write one step's figures."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


@sink("tensorboard")
def open_tensorboard(folder: Path) -> TensorBoard:
    """Open an event file.

    Raises:
        MissingExtra: tensorboard or torch is not installed.
    """
    if find_spec("tensorboard") is None or find_spec("torch") is None:
        raise MissingExtra("tensorboard", "tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    return TensorBoard(SummaryWriter(str(folder / FOLDER)))
