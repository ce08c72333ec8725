"""Lines that begin alike, without padding and with their common beginning computed once.

The G responses to a prompt all begin with it, and the answers forced after every prefix of a response begin with that
prefix. Sorted by their tokens, each line shares its beginning with the line before it and owns the rest; the owned
tokens of all lines lie end to end in one row::

    line 0    prompt A             owns  prompt A     row = prompt A B C
    line 1    prompt B             owns  B            line 1 attends to row[0:|prompt|] and to B
    line 2    prompt C             owns  C            line 2 attends to row[0:|prompt|] and to C

Everything but attention treats tokens one by one, so only attention has to know who sees whom. It is put in by
transformers' public ``AttentionInterface`` for the time of a forward pass, and goes through the lines: owned tokens
ask, the line's beginning and the owned tokens answer. The work of attention is that of the causal triangle, not of the
square of the row.

Not every model can be run so (state spaces mix along the row, some layers know tricks of their own). ``refusal`` runs
three short lines both ways and says why where the hidden states differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from transformers import AttentionInterface

SHARED = 8
"""A common beginning shorter than this is computed again."""
BLOCK = 256
"""Asking tokens of one attention call: what they do not see of each other is computed in vain."""
PROBED = 1024
"""Sliding windows up to this long are probed; lines that are longer than a longer window run padded."""

NAME = "credit_inspector_shared"

Ids = NDArray[np.int64]


class Piece(NamedTuple):
    """One line's part of the row."""

    seen: tuple[tuple[int, int], ...]
    """Stretches of the row that hold the line's tokens, in order; the last one ends with the owned tokens."""
    start: int
    stop: int
    """Its owned tokens."""


class Layout(NamedTuple):
    """Some lines as one row."""

    lines: list[int]
    """Their numbers, in the order of the row."""
    ids: Ids
    """``[W]`` the tokens of the row."""
    position: Ids
    """``[W]`` the place of each in its line."""
    places: list[Ids]
    """For each line the places of its tokens in the row."""
    pieces: list[Piece]
    """For each line that owns tokens."""


# ── which lines lie together ──────────────────────────────────────────────────────────────────────────────────────────


def layouts(lines: Sequence[Ids], tokens: int) -> Iterator[Layout]:
    """Rows of at most ``tokens`` tokens, unless a single line is longer.

    Lines that begin alike stay together where they fit, the largest families first, so that a row too large for the
    memory fails at once and not after an hour.
    """
    chosen: list[int] = []
    common: list[int] = []
    used = 0
    for family, begins in _families(lines):
        if used + sum(len(lines[i]) for i in family) - sum(begins) > tokens and chosen:
            yield _layout(lines, chosen, common)
            chosen, common, used = [], [], 0
        for i, begin in zip(family, begins, strict=True):
            if chosen and used + len(lines[i]) - begin > tokens:
                yield _layout(lines, chosen, common)
                chosen, common, used = [], [], 0
            # What a line shares with the line before it is there only if that line is in the row.
            common.append(begin if chosen else 0)
            chosen.append(i)
            used += len(lines[i]) - common[-1]
    if chosen:
        yield _layout(lines, chosen, common)


def own_tokens(lines: Sequence[Ids]) -> int:
    """Tokens that are left to compute when common beginnings are computed once."""
    return sum(sum(len(lines[i]) for i in family) - sum(begins) for family, begins in _families(lines))


def _families(lines: Sequence[Ids]) -> list[tuple[list[int], list[int]]]:
    """Lines that begin alike, each with the number of tokens it has in common with the line before it."""
    # Big-endian bytes sort as the numbers do; ids are never negative.
    order = sorted(range(len(lines)), key=lambda i: lines[i].astype(">u4").tobytes())
    families: list[tuple[list[int], list[int]]] = []
    before: Ids = np.zeros(0, np.int64)
    for i in order:
        begin = _common(before, lines[i])
        if begin < SHARED:
            begin = 0
            families.append(([], []))
        families[-1][0].append(i)
        families[-1][1].append(begin)
        before = lines[i]
    return sorted(families, key=lambda family: -sum(len(lines[i]) for i in family[0]) + sum(family[1]))


def _common(a: Ids, b: Ids) -> int:
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if len(differs) else n


def _layout(lines: Sequence[Ids], chosen: list[int], common: list[int]) -> Layout:
    places: list[Ids] = []
    pieces: list[Piece] = []
    stretches: tuple[tuple[int, int], ...] = ()
    end = 0
    for i, begin in zip(chosen, common, strict=True):
        start, end = end, end + len(lines[i]) - begin
        place = np.concatenate([places[-1][:begin] if places else np.zeros(0, np.int64), np.arange(start, end)])
        stretches = _joined((*_cut(stretches, begin), (start, end)))
        places.append(place)
        if end > start:
            pieces.append(Piece(stretches, start, end))
    ids = np.concatenate([lines[i][begin:] for i, begin in zip(chosen, common, strict=True)])
    position = np.concatenate([np.arange(begin, len(lines[i])) for i, begin in zip(chosen, common, strict=True)])
    return Layout(chosen, ids, position, places, pieces)


def _cut(stretches: tuple[tuple[int, int], ...], n: int) -> Iterator[tuple[int, int]]:
    """The first ``n`` places of the stretches."""
    for start, stop in stretches:
        if n > 0:
            yield start, min(stop, start + n)
        n -= stop - start


def _joined(stretches: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Stretches that touch as one; empty ones left out."""
    out: list[tuple[int, int]] = []
    for start, stop in stretches:
        if start == stop:
            continue
        if out and out[-1][1] == start:
            out[-1] = (out[-1][0], stop)
        else:
            out.append((start, stop))
    return tuple(out)


# ── attention ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_PIECES: ContextVar[Sequence[Piece]] = ContextVar("pieces")


@contextmanager
def attending(model: Any, pieces: Sequence[Piece]) -> Iterator[None]:
    """Have a model's attention follow the pieces of a row; its own attention is back afterwards."""
    own = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    token = _PIECES.set(pieces)
    try:
        yield
    finally:
        _PIECES.reset(token)
        model.set_attn_implementation(own)


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, **given: Any
) -> tuple[Tensor, None]:
    """Attention of one row ``[1, heads, W, D]``, piece by piece."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
    answer = torch.empty((*query.shape[:3], value.shape[-1]), dtype=query.dtype, device=query.device)
    for piece in _PIECES.get():
        keys, values = _seen(key, piece), _seen(value, piece)
        for start in range(piece.start, piece.stop, BLOCK):
            stop = min(start + BLOCK, piece.stop)
            sees = keys.shape[2] - (piece.stop - stop)
            answer[:, :, start:stop] = _block(query[:, :, start:stop], keys[:, :, :sees], values[:, :, :sees], given)
    return answer.transpose(1, 2), None


def _seen(tensor: Tensor, piece: Piece) -> Tensor:
    parts = [tensor[:, :, start:stop] for start, stop in piece.seen]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _block(query: Tensor, key: Tensor, value: Tensor, given: dict[str, Any]) -> Tensor:
    """Attention of the last tokens to all of them."""
    asks, sees = query.shape[2], key.shape[2]
    mask = torch.ones(asks, sees, dtype=torch.bool, device=query.device).tril(sees - asks)
    if window := given.get("sliding_window"):
        mask = mask.triu(sees - asks - window + 1)
    scale, cap = given.get("scaling"), given.get("softcap")
    if cap is None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    logits = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scale is None else scale)
    logits = (cap * torch.tanh(logits / cap)).masked_fill(~mask, float("-inf"))
    return logits.softmax(-1, dtype=torch.float32).to(query.dtype) @ value


AttentionInterface.register(NAME, _attend)


# ── which models can ──────────────────────────────────────────────────────────────────────────────────────────────────


def refusal(model: Any, hidden: Callable[[Tensor, Tensor], Tensor], vocabulary: int) -> str | None:
    """Why a model's lines cannot lie in one row, or None where they can.

    Args:
        model: a causal language model of transformers, in ``eval()`` mode.
        hidden: from ids and positions ``[1, W]`` to last hidden states ``[1, W, H]``.
        vocabulary: ids below it have an embedding.
    """
    if not hasattr(model, "set_attn_implementation"):
        return "its attention cannot be replaced"
    if _scales_with_length(model.config.get_text_config()):
        return "its positions depend on the longest line"
    window = longest(model)
    beyond = min(window, PROBED) + 9 if window is not None and window <= PROBED else 0
    lines = _probe(vocabulary, max(SHARED + 5, beyond))
    try:
        with torch.no_grad():
            off = _off(model, hidden, lines)
    # Whatever a model that was not made for this raises, it runs the plain way.
    except Exception as error:
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"
    dtype = next(model.parameters()).dtype
    tolerance = 1e-4 if dtype == torch.float32 else 3e-2
    return None if off <= tolerance else f"its hidden states would be off by {off:.2g} of their size"


def longest(model: Any) -> int | None:
    """The shortest attention window among a model's layers, where it has any."""
    text = model.config.get_text_config()
    found = [getattr(text, name, None) for name in ("sliding_window", "attention_chunk_size", "local_attention", "window_size")]
    return min((size for size in found if isinstance(size, int) and size > 0), default=None)


def too_long(model: Any) -> int | None:
    """Lines longer than this reach beyond what was probed."""
    window = longest(model)
    return window if window is not None and window > PROBED else None


def _scales_with_length(text: Any) -> bool:
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    everything = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    return any(str(one.get("rope_type", one.get("type"))) in {"dynamic", "longrope"} for one in everything)


def _probe(vocabulary: int, length: int) -> list[Ids]:
    """Three lines with a common beginning: two short ones and one that is ``length`` long."""
    random = np.random.default_rng(0)
    begin = random.integers(0, vocabulary, SHARED)
    return [np.concatenate([begin, random.integers(0, vocabulary, n)]) for n in (3, length - SHARED, 4)]


def _off(model: Any, hidden: Callable[[Tensor, Tensor], Tensor], lines: list[Ids]) -> float:
    """The largest distance of a hidden state from what it is when its line runs alone, as a share of the largest one."""
    device = next(model.parameters()).device
    (layout,) = layouts(lines, sum(map(len, lines)))
    ids, position = (torch.from_numpy(array).to(device)[None] for array in (layout.ids, layout.position))
    with attending(model, layout.pieces):
        row = hidden(ids, position)[0].float()
    off, size = 0.0, 1e-6
    for i, place in zip(layout.lines, layout.places, strict=True):
        alone = torch.from_numpy(lines[i]).to(device)[None]
        states = hidden(alone, torch.arange(len(lines[i]), device=device)[None])[0].float()
        off = max(off, float((row[torch.from_numpy(place).to(device)] - states).abs().max()))
        size = max(size, float(states.abs().max()))
    return off / size
