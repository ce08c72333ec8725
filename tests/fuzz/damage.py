"""Damaged copies of a sample: bytes changed, cut and repeated, and values of its rows exchanged for what nobody expects.

Everything is drawn from one ``random.Random``, so that an input is found again by its number.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 7, 2**31, -(2**31), 2**40, 2**63, 10**30, 0.5, -0.0, 1e308, math.nan, math.inf, -math.inf,
    "", "a", "NaN", "np.float64(0.5)", "[1 2]", "False", "{}", "007", "\x00", "\ud800", "\u2028", "\u202e😀", "x" * 300,
    "1_0", "../../etc",
    [], {}, [[]], [None], [1, "a"], [0] * 40, [[1, 2], [3]], {"role": "user"}, {"a": {"b": []}}, [{"role": 1, "content": [{}]}],
    [{"role": "assistant", "content": None}], [-100, 5, 6], [math.nan], {"score": "x", "weight": None},
]  # fmt: skip
BYTES = [
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\\",
    b"\n",
    b"\x00",
    b"\xff",
    b"NaN",
    b"-",
    b"1e999",
    b"null",
    b"\xed\xa0\x80",
]


def damaged(file: str, raw: bytes, rng: Random) -> bytes:
    """Another content for a sample's file."""
    structured, share = _BY_ENDING.get(Path(file).suffix, (_bytes, 1.0))
    return structured(raw, rng) if rng.random() < share else _bytes(raw, rng)


# ── bytes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _bytes(raw: bytes, rng: Random) -> bytes:
    changed = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        place = rng.randrange(len(changed) + 1)
        end = min(len(changed), place + rng.choice((1, 2, 8, 100)))
        match rng.randrange(7):
            case 0:
                changed[place:end] = rng.randbytes(end - place)
            case 1:
                del changed[place:end]
            case 2:
                changed[place:place] = rng.choice(BYTES)
            case 3:
                changed[place:place] = changed[rng.randrange(len(changed) + 1) :][: rng.choice((4, 50))]
            case 4 if rng.random() < 0.3:
                del changed[place:]
            case 5 if place < len(changed):
                changed[place] ^= 1 << rng.randrange(8)
            case _:
                changed[place:end] = rng.choice(BYTES) * (end - place)
    return bytes(changed)


# ── values ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def tree(value: Any, rng: Random) -> Any:
    """A copy in which one value, somewhere inside, is another."""
    deeper = isinstance(value, dict | list) and value and rng.random() < 0.85
    if not deeper:
        return _other(value, rng)
    if isinstance(value, dict):
        key = rng.choice(list(value))
        changed = dict(value)
        if rng.random() < 0.12:
            del changed[key]
        elif rng.random() < 0.05:
            changed[rng.choice([key + "s", "", "response", "step"])] = changed.pop(key)
        else:
            changed[key] = tree(value[key], rng)
        return changed
    place = rng.randrange(len(value))
    action = rng.random()
    if action < 0.1:
        return value[:place] + value[place + 1 :]
    if action < 0.2:
        return value[: place + 1] + value[place:]
    return [*value[:place], tree(value[place], rng), *value[place + 1 :]]


def _other(value: Any, rng: Random) -> Any:
    match rng.randrange(8):
        case 0:
            return [value]
        case 1:
            return str(value)
        case 2 if isinstance(value, int | float):
            return rng.choice((-value, value + 1, float(value), value * 1000))
        case 3:
            deep: Any = value
            for _ in range(rng.choice((3, 60, 600))):
                deep = [deep] if rng.random() < 0.5 else {"content": deep}
            return deep
        case _:
            return rng.choice(ODD)


def _lines(raw: bytes, rng: Random) -> bytes:
    lines = raw.split(b"\n")
    if rng.random() < 0.7:
        begin = rng.randrange(len(lines))
        lines = [*lines[begin : begin + 3], b""]
    for _ in range(rng.choice((1, 1, 3))):
        place = rng.randrange(len(lines))
        try:
            lines[place] = _json(lines[place], rng)
        except (ValueError, RecursionError):
            lines[place] = _bytes(lines[place], rng)
    if rng.random() < 0.1:
        rng.shuffle(lines)
    return b"\n".join(lines)


def _json(raw: bytes, rng: Random) -> bytes:
    return json.dumps(tree(json.loads(raw), rng)).encode("utf-8", "surrogatepass")


def _whole(raw: bytes, rng: Random) -> bytes:
    try:
        return _json(raw, rng)
    except (ValueError, RecursionError):
        return _bytes(raw, rng)


def _parquet(raw: bytes, rng: Random) -> bytes:
    file = BytesIO()
    try:
        rows = pq.read_table(BytesIO(raw)).to_pylist()
        changed = [tree(row, rng) if rng.random() < 0.5 else row for row in rows]
        pq.write_table(pa.Table.from_pylist([row for row in changed if isinstance(row, dict)]), file)
    except (pa.ArrowException, OSError, ValueError, TypeError, OverflowError, RecursionError):  # it was damaged before, or is odd
        return _bytes(raw, rng)
    return file.getvalue()


def _torch(raw: bytes, rng: Random) -> bytes:
    import torch

    from credit_inspector.errors import CreditInspectorError
    from credit_inspector.pickles import load_torch

    try:
        found = load_torch(raw)
    except CreditInspectorError:
        return _bytes(raw, rng)
    file = BytesIO()
    try:
        torch.save(_tensors(found, rng), file)
    except (RecursionError, RuntimeError):  # nested more deeply than torch writes
        return _bytes(raw, rng)
    return file.getvalue()


def _tensors(value: Any, rng: Random) -> Any:
    """As ``tree``, where a value may also become a tensor of another shape or kind."""
    import torch

    changed = tree(value, rng) if isinstance(value, dict | list) else value
    if rng.random() < 0.5 or not isinstance(changed, dict) or not changed:
        return changed
    odd = [
        torch.zeros(0),
        torch.zeros(2, 3),
        torch.tensor(1.0),
        torch.full((3,), math.nan),
        torch.arange(3),
        torch.zeros(2, dtype=torch.bool),
    ]
    key = rng.choice(list(changed))
    inner = changed[key]
    if isinstance(inner, list) and inner and isinstance(inner[0], dict):
        place = rng.randrange(len(inner))
        row = dict(inner[place]) if isinstance(inner[place], dict) else {}
        row[rng.choice(list(row) or ["tokens"])] = rng.choice([*odd, *ODD[:30]])
        return {**changed, key: [*inner[:place], row, *inner[place + 1 :]]}
    return {**changed, key: rng.choice(odd)}


_BY_ENDING: dict[str, tuple[Callable[[bytes, Random], bytes], float]] = {
    ".jsonl": (_lines, 0.7),
    ".json": (_whole, 0.7),
    ".parquet": (_parquet, 0.25),
    ".pt": (_torch, 0.35),
}
"""How a file is taken apart, and how often; writing Parquet and torch files anew takes longer than reading them."""
