"""Lines of tokens → batches, and which hidden state scores which token.

Logits at position k−1 score token k. Example, a prompt of two and a response of three tokens::

    ids    = [ 5, 6, | 7, 8, 2 ]      first = 2
    states =      [1,  2, 3 ]         the hidden states used
    target =      [7,  8, 2 ]         the tokens they score

Two forms of a batch. Packed (see ``shared``): one row without padding, common beginnings computed once. Padded: line
under line, for models that cannot be run packed, for gradients, and for very short lines, where the calls of a packed
attention cost more than the padding. Padding is on the right: causal models never look there, and no position shifts
(left padding moves a GPT-2's log-probs by tens of nats when positions are not passed along).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from credit_inspector.scoring.shared import Layout, Piece, layouts, own_tokens

TOKENS = 8192
"""Tokens of one batch, padding included, unless a single line is longer."""
SMALL = 512
"""A padded batch up to this many tokens is small."""
SHORT = 32
"""Lines that own fewer tokens than this on average run padded, unless packing leaves much less to compute."""


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
    pieces: tuple[Piece, ...] = ()
    """Where the lines lie in the only row of a packed batch; empty in a padded one."""


def distinct(lines: Sequence[Line]) -> tuple[list[Line], list[int]]:
    """Each different line once, and for every given line the number of its twin there."""
    numbers: dict[tuple[bytes, int], int] = {}
    twins = [numbers.setdefault((line.ids.tobytes(), line.first), len(numbers)) for line in lines]
    firsts: dict[int, Line] = {}
    for line, twin in zip(lines, twins, strict=True):
        firsts.setdefault(twin, line)
    return list(firsts.values()), twins


def pack(lengths: Sequence[int], tokens: int = TOKENS) -> Iterator[list[int]]:
    """Numbers of lines that go into one padded batch: at most ``tokens`` padded tokens, at most a twentieth of padding.

    Longest first, so that a batch too large for the memory fails at once and not after an hour.
    """
    batch: list[int] = []
    width = real = 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        padded, filled = (len(batch) + 1) * width, real + lengths[i]
        if batch and (padded > tokens or _wasteful(padded, filled)):
            yield batch
            batch, real = [], 0
        width = width if batch else lengths[i]
        batch.append(i)
        real += lengths[i]
    if batch:
        yield batch


def _wasteful(padded: int, real: int) -> bool:
    """Too much padding. A small batch may have a quarter: one more call costs more than the pads."""
    return 20 * (padded - real) > padded if padded > SMALL else 4 * (padded - real) > padded


def batches(lines: Sequence[Line], device: torch.device, tokens: int = TOKENS, *, packed: bool = False) -> Iterator[Batch]:
    """The lines that have something to score, in batches; packed ones where asked for and where that pays."""
    wanted = [i for i, line in enumerate(lines) if line.scored]
    ids = [lines[i].ids for i in wanted]
    if packed and pays(ids):
        for layout in layouts(ids, tokens):
            yield to_packed(lines, layout._replace(lines=[wanted[i] for i in layout.lines]), device)
    else:
        for chosen in pack([len(line) for line in ids], tokens):
            yield to_batch(lines, [wanted[i] for i in chosen], device)


def pays(ids: Sequence[NDArray[np.int64]]) -> bool:
    """Packed lines are less work than padded ones."""
    owned = own_tokens(ids)
    return owned >= SHORT * len(ids) or 2 * owned <= sum(map(len, ids))


def to_packed(lines: Sequence[Line], layout: Layout, device: torch.device) -> Batch:
    """A layout as a batch of one row."""
    scored = [lines[i].scored for i in layout.lines]
    state = np.concatenate([place[lines[i].first - 1 : -1] for i, place in zip(layout.lines, layout.places, strict=True)])
    target = np.concatenate([lines[i].ids[lines[i].first :] for i in layout.lines])
    arrays = (layout.ids[None], np.ones_like(layout.ids)[None], layout.position[None], np.zeros_like(state), state, target)
    ids, mask, position, row, state_, target_ = (torch.from_numpy(array).to(device) for array in arrays)
    return Batch(layout.lines, ids, mask, position, row, state_, target_, scored, tuple(layout.pieces))


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
