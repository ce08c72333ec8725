"""Values of a torch file → plain ones, never more of them than the file has bytes.

A pickle may hold one list in a million places, or in itself. What goes on to a rollout is therefore copied under a budget,
and lists of values per token are looked through before an array is made of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from credit_inspector.pickles import Stub

_SCALARS = frozenset({int, float, bool, type(None)})
_DEPTH = 40


def per_token(value: Any) -> list[Any] | NDArray[Any] | None:
    """A flat list of numbers as list or array; ``None`` for anything else."""
    value = _array(value)
    if isinstance(value, np.ndarray):
        return value if value.ndim == 1 and value.dtype.kind in "fiub" else None
    return _listed(value) if isinstance(value, list | tuple) else None


def _listed(value: list[Any] | tuple[Any, ...]) -> list[Any] | NDArray[Any] | None:
    kinds = set(map(type, value))
    if not kinds <= _SCALARS:
        return None
    kind = {frozenset({int}): np.int64, frozenset({float}): np.float64}.get(frozenset(kinds))
    with suppress(OverflowError):
        return list(value) if kind is None else np.array(value, kind)
    return list(value)  # a number that no int64 holds


def scalar(value: Any) -> Any:
    """The one number in an array or tensor of one; other values as they are."""
    value = _array(value)
    if isinstance(value, np.ndarray | np.generic):
        return value.item() if value.size == 1 else value
    return value


def _array(value: Any) -> Any:
    """A tensor as an array that shares its memory; an array as a plain one; else the value."""
    import torch

    if isinstance(value, np.ndarray):
        return np.asarray(value).view(np.ndarray)
    if not isinstance(value, torch.Tensor):
        return value
    if value.layout is not torch.strided or value.is_nested or value.is_quantized or value.is_complex() or value.is_meta:
        return None
    value = value.detach()
    return (value.float() if value.dtype.is_floating_point and value.element_size() < 4 else value).resolve_neg().numpy()


class Copier:
    """Copies what a file holds; what goes beyond its budget is left out."""

    def __init__(self, budget: int) -> None:
        self._left = budget
        self.left_out = 0

    def copy(self, value: Any, depth: int = 0) -> Any:
        """Containers anew, tensors as arrays, stubs of objects as their state."""
        self._left -= 1
        if self._left < 0 or depth > _DEPTH:
            self.left_out += 1
            return None
        if isinstance(value, str | int | float | bool | type(None)):
            return value
        if isinstance(value, Mapping):
            return {key if isinstance(key, str) else str(key)[:200]: self.copy(one, depth + 1) for key, one in self._items(value)}
        if isinstance(value, list | tuple):
            return [self.copy(one, depth + 1) for one in value[: max(self._left, 0)]]
        return self._other(value, depth)

    def _items(self, value: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
        return list(value.items()) if len(value) <= self._left else []

    def _other(self, value: Any, depth: int) -> Any:
        if isinstance(value, Stub):
            return self.copy(value.state, depth + 1)
        if isinstance(value, set | frozenset):
            return self.copy(sorted(map(str, value)) if len(value) <= self._left else None, depth + 1)
        array = scalar(value)
        if not isinstance(array, np.ndarray):
            return array if isinstance(array, str | int | float | bool | type(None)) else str(type(value).__name__)
        if array.dtype.hasobject:
            return self.copy(array.ravel().tolist(), depth + 1)
        self._left -= array.nbytes
        if self._left < 0:
            self.left_out += 1
            return None
        return array
