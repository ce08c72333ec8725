"""What trainers write where a number, a list or a text should stand → that number, list or text.

Dumps hold bare ``NaN``, ``null``, the word ``"NaN"``, and numpy scalars that ``json.dumps(default=str)`` turned into
text (verl V0: ``"True"``, ``"0.5"``, ``"[1 2]"``, ``"np.float64(0.5)"``). What is no finite number is missing, never
0.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

State = Literal["finite", "missing", "infinite", "unreadable"]

HALF_PAIR = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair: JSON may spell it, no UTF-8 text can hold it."""

_WRAPPED = re.compile(r"(?:np\.|numpy\.)?(?:float|int|uint|bool)\w*\((.*)\)|(?:array|tensor)\((.*?)(?:, *\w+=.*)?\)", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_CODE = re.compile(r"[+-]?0\d")
"""Leading zeros: a code such as ``007``, which is no number."""
_MISSING = frozenset({"", "nan", "-nan", "none", "null", "<na>"})
_INFINITE = frozenset({"inf", "+inf", "-inf", "infinity", "+infinity", "-infinity"})
_CUT = frozenset({"length", "max_tokens", "max_length", "truncated"})
_ENDED = frozenset({"stop", "eos", "end", "completed", "finished", "end_turn", "stop_sequence", "tool_calls"})


class Number(NamedTuple):
    """A value read as a number."""

    value: float | None
    state: State
    converted: bool = False
    """Whether it stood there as text."""


def number(value: Any) -> Number:
    """Read one number; truth values are 1 and 0, a list of one is its element."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.size == 1):
        value = value.item()
    if value is None:
        return Number(None, "missing")
    if isinstance(value, str):
        return _from_text(value)
    if isinstance(value, list | tuple) and len(value) == 1:
        return number(value[0])
    if not isinstance(value, bool | int | float):
        return Number(None, "unreadable")
    try:
        return _finite(float(value))
    except OverflowError:
        return Number(None, "infinite")


def whole(value: Any) -> int | None:
    """A step or a version: a whole number, else ``None``."""
    read = number(value).value
    return None if read is None or read != int(read) else int(read)


def _finite(value: float, converted: bool = False) -> Number:
    if math.isnan(value):
        return Number(None, "missing")
    if math.isinf(value):
        return Number(None, "infinite")
    return Number(value, "finite", converted)


def _from_text(value: str) -> Number:
    word = unwrapped(value)
    lower = word.lower()
    if lower in _MISSING:
        return Number(None, "missing")
    if lower in _INFINITE:
        return Number(None, "infinite")
    if lower in ("true", "false"):
        return Number(float(lower == "true"), "finite", True)
    return _finite(float(word), True) if _NUMBER.fullmatch(word) else Number(None, "unreadable")


def unwrapped(value: str) -> str:
    """``np.float64(0.5)`` → ``0.5``."""
    found = _WRAPPED.fullmatch(value.strip())
    return (found[1] or found[2] or "").strip() if found else value.strip()


def from_numpy_text(value: str) -> Any:
    """What ``str()`` of a numpy value stood for; the text itself where it is none. ``007`` stays text."""
    word = unwrapped(value)
    if word.startswith("["):
        found = _list(word)
        return value if found is None else found
    if word in ("True", "False"):
        return word == "True"
    if not _NUMBER.fullmatch(word) or _CODE.match(word):
        return value
    return float(word) if any(sign in word for sign in ".eE") else int(word) if len(word) < 20 else value


def _list(word: str) -> list[Any] | None:
    """``[1 2]`` or ``[1, 2]`` → its elements; ``None`` if one is no number (numpy cuts long arrays with ``...``)."""
    if not word.endswith("]") or "[" in word[1:]:
        return _json_list(word)
    elements = [from_numpy_text(part) for part in re.split(r"[\s,]+", word[1:-1].strip()) if part]
    return None if any(isinstance(element, str) for element in elements) else elements


def _json_list(word: str) -> list[Any] | None:
    try:
        found = json.loads(word)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) else None


class Floats(NamedTuple):
    """A list read as numbers."""

    values: NDArray[np.float32]
    """NaN where no finite number stood."""
    infinite: int
    unreadable: int


def floats(value: Any) -> Floats | None:
    """Read a flat list of numbers; ``None`` where it is no such list."""
    listed = _listed(value)
    if listed is None:
        return None
    if isinstance(listed, np.ndarray) and listed.dtype.kind in "fiub":
        with np.errstate(invalid="ignore"):  # a signalling NaN
            return _checked(listed.astype(np.float64), 0)
    try:
        array = np.array(listed, dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        read = [number(element) for element in listed]
        unreadable = sum(one.state == "unreadable" for one in read)
        infinite = sum(one.state == "infinite" for one in read)
        if unreadable == len(read):
            return None
        values = np.array([np.nan if one.value is None else one.value for one in read])
        return _checked(values, unreadable, infinite)
    return _checked(array, 0) if array.ndim == 1 else None


def _checked(values: NDArray[np.float64], unreadable: int, infinite: int = 0) -> Floats | None:
    if values.ndim != 1:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        single = values.astype(np.float32)
    outside = np.isinf(single)
    single[outside] = np.nan
    return Floats(single, infinite + int(outside.sum()), unreadable)


def _listed(value: Any) -> list[Any] | NDArray[Any] | None:
    if isinstance(value, str):
        return _list(unwrapped(value))
    if isinstance(value, tuple):
        return list(value)
    return value if isinstance(value, list | np.ndarray) else None


def integers(value: Any) -> NDArray[np.int32] | None:
    """Read a list of token ids; ``None`` where one of them is no whole number from 0 up that an int32 holds."""
    listed = _listed(value)
    if listed is None:
        return None
    if isinstance(listed, list) and any(isinstance(element, bool | str) for element in listed):
        return None
    try:
        array = np.array(listed, dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        return None
    whole = array.ndim == 1 and bool(np.all((array >= 0) & (array < 2**31) & (array == np.floor(array))))
    return array.astype(np.int32) if whole else None


def flags(value: Any) -> NDArray[np.bool_] | None:
    """Read a mask: truth values, 0 and 1 or weights (true above 0), or labels with -100 for tokens not trained."""
    read = floats(value)
    if read is None or not np.all(np.isfinite(read.values)):
        return None
    labels = bool(np.any(read.values == -100))
    return read.values != -100 if labels else read.values > 0


def as_mapping(value: Any) -> Mapping[str, Any] | None:
    """A mapping, or the one that a text of JSON spells."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, Mapping) else None


def cut_off(value: Any) -> bool | None:
    """Whether a response was cut: a truth value, or why it ended (``length``, ``stop``)."""
    if isinstance(value, str) and (word := value.strip().lower()) in _CUT | _ENDED:
        return word in _CUT
    read = number(value).value
    return None if read is None else bool(read)


_LEVELS = 50
"""So deep the parts of a message are followed; what is nested further is no text."""


def text(value: Any, level: int = 0) -> str | None:
    """The text of a string, a chat, or a message.

    One message is its content. Of several, each stands under its role in a line of its own, as verl's dumps have it.
    """
    if value is None or isinstance(value, str):
        return value
    if level > _LEVELS:
        return None
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return _message(value, level)
    if isinstance(value, list | tuple):
        return _chat(list(value), level)
    return str(value)


def _chat(messages: list[Any], level: int) -> str:
    if len(messages) == 1:
        return text(messages[0], level + 1) or ""
    parts = []
    for message in messages:
        role = message.get("role") if isinstance(message, Mapping) else None
        said = text(message, level + 1) or ""
        parts.append(f"{role}\n{said}" if isinstance(role, str) else said)
    return "\n".join(parts)


def _message(message: Mapping[str, Any], level: int) -> str:
    for key in ("content", "text", "output", "summary", "question", "Q"):
        if message.get(key) is not None:
            return text(message[key], level + 1) or ""
    call = {key: message[key] for key in ("name", "arguments") if key in message}
    calls = message.get("tool_calls") or call or {key: value for key, value in message.items() if key != "role"}
    try:
        return json.dumps(calls, ensure_ascii=False, default=str) if calls else ""
    except RecursionError:
        return ""
