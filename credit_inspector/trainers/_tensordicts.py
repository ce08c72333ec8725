"""TensorDicts as torch saved them → arrays by name, without the package ``tensordict``.

verl and ROLL save their batches so. A consolidated TensorDict is one block of bytes and a table of what lies where; a plain
one is its tensors, one by one. Both name functions of ``tensordict`` that would rebuild them; here stubs stand for these,
and what the table says is checked against the block before a value is taken.

A column comes out as an array ``[B, …]``, or as a list of ``B`` rows where they differ in length (jagged tensors) or are
no tensors at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from credit_inspector.errors import FormatError
from credit_inspector.pickles import Stub, load_torch, stub

_CONSOLIDATED = "tensordict._reductions._rebuild_tensordict_files_consolidated"
_MADE = "tensordict._reductions._make_td"
_STUBBED = (
    _CONSOLIDATED,
    _MADE,
    "tensordict._td.TensorDict",
    "tensordict._lazy.LazyStackedTensorDict",
    "tensordict.tensorclass.NonTensorStack",
    "tensordict.tensorclass.NonTensorData",
    "torch._dynamo.decorators._DimRange",
)
_STUBS: dict[str, type[Stub]] = {name: stub(name) for name in _STUBBED}
_STUBS["credit_inspector.DimRange"] = _STUBS[_STUBBED[-1]]
"""A second name, since torch may put its own class under the first one as it rebuilds a jagged tensor."""

_DTYPES = {
    "float64": "<f8",
    "float32": "<f4",
    "float16": "<f2",
    "int64": "<i8",
    "int32": "<i4",
    "int16": "<i2",
    "int8": "|i1",
    "uint8": "|u1",
    "bool": "|u1",
    "bfloat16": "<u2",
}
"""How torch's dtypes lie in memory."""

_SMALLEST_LIMIT = 1_000_000
_MOST_PARTS = 100_000


@dataclass(slots=True)
class Budget:
    """How much a file may unfold to: a tensor may repeat its storage without end."""

    size: int
    """Bytes of the file."""
    used: int = 0

    def take(self, count: int) -> None:
        """Count what is about to be used.

        Raises:
            FormatError: more than a file of this size could mean.
        """
        self.used += count
        if count < 0 or self.used > max(64 * self.size, _SMALLEST_LIMIT):
            raise FormatError(f"tensors of {self.used} bytes in a file of {self.size}", wanted="what the trainer wrote")

    def rows(self, count: int) -> int:
        """A number of rows that the file can hold: each takes at least a byte.

        Raises:
            FormatError: more rows than bytes.
        """
        if not 0 <= count <= self.size:
            raise FormatError(f"{count} rows in a file of {self.size} bytes", wanted="what the trainer wrote")
        return count


def load(source: Path | bytes) -> Any:
    """Read a torch file that holds TensorDicts; they are stubs in it, for ``columns``.

    Raises:
        FormatError: no torch file, or one that asks for anything else.
    """
    return load_torch(source, allow=_STUBS)


def columns(found: Any, budget: Budget) -> dict[str, Any]:
    """The columns of a TensorDict that ``load`` gave, or of a mapping of tensors; what cannot be read is left out.

    Raises:
        FormatError: no TensorDict, or one that claims to be larger than its file.
    """
    if isinstance(found, Stub) and found.name == _CONSOLIDATED:
        return _consolidated(found, budget)
    inner = _state(found).get("_tensordict") if isinstance(found, Stub) else found
    if not isinstance(inner, Mapping):
        raise FormatError(f"a {type(found).__name__}", wanted="a TensorDict")
    values = {name: _value(value, budget) for name, value in inner.items() if isinstance(name, str)}
    return {name: value for name, value in values.items() if value is not None}


def at(column: Any, row: int) -> Any:
    """A column's value in one row; ``None`` where it has none."""
    if isinstance(column, list) or (isinstance(column, np.ndarray) and column.ndim > 0):
        return column[row] if row < len(column) else None
    return None


def decoded(raw: Any, dtype: Any, shape: Any, budget: Budget) -> NDArray[Any] | None:
    """An array from its bytes; ``None`` where dtype, shape and bytes do not belong together."""
    kind = _DTYPES.get(dtype.removeprefix("torch.")) if isinstance(dtype, str) else None
    flat = _bytes(raw)
    if kind is None or flat is None or not _is_shape(shape):
        return None
    needed = math.prod(shape) * np.dtype(kind).itemsize
    if needed > len(flat):
        return None
    budget.take(needed)
    budget.rows(shape[0] if shape else 0)
    values = np.frombuffer(flat[:needed].tobytes(), kind).reshape(shape)
    if dtype.endswith("bfloat16"):
        return (values.astype("<u4") << 16).view("<f4")
    return values != 0 if dtype.endswith("bool") else values


def _bytes(raw: Any) -> NDArray[np.uint8] | None:
    if isinstance(raw, bytes | bytearray):
        return np.frombuffer(raw, np.uint8)
    if isinstance(raw, np.ndarray) and raw.dtype == np.uint8 and raw.ndim == 1:
        return raw
    return None


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, list | tuple) and len(shape) < 8 and all(type(size) is int and 0 <= size < 2**48 for size in shape)


# ── consolidated ────────────────────────────────────────────────────────────────────────────────────────────────────


def _consolidated(found: Stub, budget: Budget) -> dict[str, Any]:
    """``(metadata, storage)``: ``leaves`` says of each column its dtype, shape, first byte, end and padding."""
    table, storage = found.args if len(found.args) == 2 else (None, None)
    leaves = table.get("leaves") if isinstance(table, Mapping) else None
    block = _array(storage, budget)
    if not isinstance(leaves, Mapping) or block is None or block.dtype != np.uint8 or block.ndim != 1:
        raise FormatError("a TensorDict without its table", wanted="what torch.save wrote of a consolidated TensorDict")
    read = {name: _leaf(leaf, block, budget) for name, leaf in leaves.items() if isinstance(name, str)}
    found_columns: dict[str, Any] = {name: array for name, array in read.items() if array is not None and name[:4] != "<NJT"}
    for name, values in read.items():
        if name.startswith("<NJT_VALUES>"):
            column = name.removeprefix("<NJT_VALUES>")
            offsets, lengths = read.get(f"<NJT_OFFSETS>{column}"), read.get(f"<NJT_LENGTHS>{column}")
            if (rows := _rows(values, offsets, lengths, budget)) is not None:
                found_columns[column] = rows
    return found_columns


def _leaf(leaf: Any, block: NDArray[np.uint8], budget: Budget) -> NDArray[Any] | None:
    if not isinstance(leaf, tuple | list) or len(leaf) not in (5, 6):
        return None
    dtype, shape, start, stop = leaf[:4]
    if type(start) is not int or type(stop) is not int or not 0 <= start <= stop <= len(block):
        return None
    return decoded(block[start:stop], dtype, shape, budget)


def _rows(values: Any, offsets: Any, lengths: Any, budget: Budget) -> list[NDArray[Any]] | None:
    """The rows of a jagged tensor; ``None`` where its offsets do not lie in its values."""
    if values is None or offsets is None or offsets.ndim != 1 or len(offsets) == 0 or offsets.dtype.kind != "i":
        return None
    begins = offsets[:-1].astype(np.int64)
    if lengths is not None and (lengths.shape != begins.shape or lengths.dtype.kind != "i"):
        return None
    sizes = np.diff(offsets.astype(np.int64)) if lengths is None else lengths.astype(np.int64)
    budget.rows(len(begins))
    within = (begins >= 0) & (sizes >= 0) & (begins <= len(values)) & (sizes <= len(values) - begins)
    if values.ndim == 0 or not within.all():
        return None
    budget.take(int(sizes.sum()))
    return [values[begin : begin + size] for begin, size in zip(begins.tolist(), sizes.tolist(), strict=True)]


# ── plain ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _state(found: Any) -> Mapping[str, Any]:
    """What an object was made from: ``_make_td(class, state)``, or a state that was set later."""
    args: tuple[Any, ...] = getattr(found, "args", ())
    state = args[1] if found.name == _MADE and len(args) == 2 else getattr(found, "state", None)
    return state if isinstance(state, Mapping) else {}


def _value(value: Any, budget: Budget) -> Any:
    if isinstance(value, Stub):
        return _objects(value)
    if getattr(value, "is_nested", False):
        return _jagged(value, budget)
    return _array(value, budget)


def _objects(value: Stub) -> list[Any] | None:
    """A ``NonTensorStack``: one ``NonTensorData`` a row."""
    stack = _state(value).get("tensordicts")
    if not isinstance(stack, list):
        return None
    return [_object(each) for each in stack]


def _object(value: Any) -> Any:
    held = _state(value).get("non_tensordict") if isinstance(value, Stub) else None
    return held.get("data") if isinstance(held, Mapping) else None


def _jagged(value: Any, budget: Budget) -> list[NDArray[Any]] | None:
    """A nested tensor of the jagged layout; the older layout holds no column that is read here."""
    try:
        parts = value.values(), value.offsets(), value.lengths()
    except (RuntimeError, AttributeError, TypeError):
        return None
    values, offsets, lengths = (None if part is None else _array(part, budget) for part in parts)
    return _rows(values, offsets, lengths, budget)


def _array(value: Any, budget: Budget) -> NDArray[Any] | None:
    """A tensor's values: floats of less than 32 bits as 32, and no complex ones."""
    import torch

    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_complex() or value.is_meta:
        return None
    budget.take(value.numel() * max(value.element_size(), 1))
    if value.ndim:
        budget.rows(len(value))
    with torch.no_grad():
        plain = value.detach()
        if plain.is_floating_point() and plain.dtype not in (torch.float32, torch.float64):
            plain = plain.to(torch.float32)
        try:
            found: NDArray[Any] = plain.numpy()
        except (RuntimeError, TypeError):
            return None
    return found


# ── what is no tensor ───────────────────────────────────────────────────────────────────────────────────────────────


def plain(value: Any) -> Any:
    """A value without foreign objects: numpy's as Python's, stubs and tensors left out, without end to an end."""
    return _Plain().of(value, 0)


class _Plain:
    """A pickle may hold one list many times; the copy would hold it as often."""

    def __init__(self) -> None:
        self.parts = 0

    def of(self, value: Any, depth: int) -> Any:
        self.parts += 1
        if depth > 12 or self.parts > _MOST_PARTS:
            return None
        if isinstance(value, np.ndarray):
            value = value.tolist() if value.size <= _MOST_PARTS else None
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, Mapping):
            return {key: self.of(inner, depth + 1) for key, inner in value.items() if isinstance(key, str)}
        if isinstance(value, list | tuple):
            return [self.of(inner, depth + 1) for inner in value]
        return value if value is None or isinstance(value, str | bool | int | float) else None
