"""Checkpoint formats: a folder on disk → a Hugging Face model.

To add a format, drop a file in that decorates a function with ``@checkpoint_format``. It gets a path and what the user said of
it, and answers ``None`` when that is not its format, or a ``Checkpoint`` that says what is there and loads when asked. No code of
the checkpoint's ever runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from credit_inspector.registry import Registry

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOptions:
    """What the user says of a checkpoint that its files may not say."""

    base: Path | None = None
    """The folder of the model that an adapter was trained on, or whose config belongs to shards that come without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A recognised checkpoint, not yet in memory."""

    path: Path
    format: str
    summary: str
    """What it is, in a line: ``Llama, 1.4 M parameters, vocabulary 512``."""
    vocabulary: int
    tokenizer: Path | None
    load: Callable[[torch.device, torch.dtype], PreTrainedModel]
    """Load in ``eval()`` mode without gradients.

    Raises:
        CheckpointError: weights are missing or do not fit.
    """
    base: Checkpoint | None = None
    """Of an adapter: the same model with the adapter off, which is the reference where none is named. None where more than the
    adapter was trained (biases, added words)."""


Opener = Callable[[Path, CheckpointOptions], Checkpoint | None]

checkpoint_formats: Registry[Opener] = Registry("checkpoints", __name__)


def checkpoint_format(name: str) -> Callable[[Opener], Opener]:
    """Put a format in."""
    return lambda function: checkpoint_formats.add(name, function)


__all__ = ["Checkpoint", "CheckpointOptions", "Opener", "checkpoint_format", "checkpoint_formats"]
