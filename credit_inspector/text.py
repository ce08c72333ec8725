"""Text that may come from anywhere, made fit to be written."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def whole(text: str) -> str:
    """``text`` as text that can be encoded: surrogate pairs joined, halves of one replaced by U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON without NaN or infinity, which become null, and without half surrogate pairs."""
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False, indent=indent)


def plain(value: Any) -> Any:
    """The value in what JSON has words for; a number that is not finite is ``None``, anything unknown becomes text."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {whole(str(key)): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if value is None or isinstance(value, bool | int):
        return value
    return whole(str(value))
