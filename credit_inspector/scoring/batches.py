"""Lines of tokens → right-padded batches, and which hidden state scores which token.

Logits at position k−1 score token k. Example, a prompt of two and a response of three tokens::

    ids    = [ 5, 6, | 7, 8, 2 ]      first = 2
    states =      [1,  2, 3 ]         the hidden states used
    target =      [7,  8, 2 ]         the tokens they score

Padding is on the right: causal models never look there, and no position shifts (left padding moves a GPT-2's
log-probs by tens of nats when positions are not passed along).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

TOKENS = 4096
"""Padded tokens of one batch, unless a single line is longer."""


@dataclass(frozen=True, slots=True)
class Line:
    """One sequence to run; its tokens from ``first`` on are scored."""

    ids: NDArray[np.int64]
    """``[n]`` prompt and response."""
    first: int
    """At least 1, since nothing precedes the first token."""

    @property
    def scored(self) -> int:
        """How many tokens are scored."""
        return max(len(self.ids) - self.first, 0)


@dataclass(frozen=True, slots=True)
class Batch:
    """Some lines as tensors."""

    lines: list[int]
    """``[B]`` the numbers of its lines."""
    ids: Tensor
    """``[B, W]``"""
    mask: Tensor
    """``[B, W]`` int64, 1 on real tokens."""
    position: Tensor
    """``[B, W]``"""
    row: Tensor
    """``[M]`` the line within the batch of each scored token."""
    state: Tensor
    """``[M]`` the position whose hidden state scores it."""
    target: Tensor
    """``[M]`` its id."""
    lengths: list[int]
    """``[B]`` scored tokens of each line; they lie end to end in ``[M]``."""


def distinct(lines: Sequence[Line]) -> tuple[list[Line], list[int]]:
    """Each different line once, and for every given line the number of its twin there."""
    numbers: dict[tuple[bytes, int], int] = {}
    twins = [numbers.setdefault((line.ids.tobytes(), line.first), len(numbers)) for line in lines]
    firsts: dict[int, Line] = {}
    for line, twin in zip(lines, twins, strict=True):
        firsts.setdefault(twin, line)
    return list(firsts.values()), twins


def pack(lengths: Sequence[int], tokens: int = TOKENS) -> Iterator[list[int]]:
    """Numbers of lines that go into one batch: at most ``tokens`` padded tokens, at most a quarter of padding.

    Longest first, so that a batch too large for the memory fails at once and not after an hour.
    """
    batch: list[int] = []
    width = 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        # 8: among very short lines a few pads cost less than one more batch.
        if batch and ((len(batch) + 1) * width > tokens or 4 * lengths[i] < 3 * width - 8):
            yield batch
            batch = []
        width = width if batch else lengths[i]
        batch.append(i)
    if batch:
        yield batch


def batches(lines: Sequence[Line], device: torch.device, tokens: int = TOKENS) -> Iterator[Batch]:
    """The lines that have something to score, in batches."""
    wanted = [i for i, line in enumerate(lines) if line.scored]
    for chosen in pack([len(lines[i].ids) for i in wanted], tokens):
        yield to_batch(lines, [wanted[i] for i in chosen], device)


def to_batch(lines: Sequence[Line], chosen: list[int], device: torch.device) -> Batch:
    """The chosen lines side by side, padded on the right."""
    width = max(len(lines[i].ids) for i in chosen)
    ids = np.zeros((len(chosen), width), np.int64)
    mask = np.zeros((len(chosen), width), np.int64)
    for at, i in enumerate(chosen):
        ids[at, : len(lines[i].ids)] = lines[i].ids
        mask[at, : len(lines[i].ids)] = 1
    scored = [lines[i].scored for i in chosen]
    place = np.concatenate([np.arange(lines[i].first, len(lines[i].ids)) for i in chosen])
    row = np.repeat(np.arange(len(chosen)), scored)
    tensors = [torch.from_numpy(array).to(device) for array in (ids, mask, row, place - 1, ids[row, place])]
    position = torch.arange(width, device=device).expand(len(chosen), width)
    return Batch(chosen, tensors[0], tensors[1], position, tensors[2], tensors[3], tensors[4], scored)
