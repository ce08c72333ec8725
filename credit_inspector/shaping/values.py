"""A setting's value as typed on a command line → the type that it has to have; no shaping of its own."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from credit_inspector.errors import UsageError

ON, OFF = ("1", "true", "on", "yes"), ("0", "false", "off", "no")
NOTHING = ("none", "null")


def read(key: str, value: object, hint: Any) -> Any:
    """The value in the type of ``hint``; what is no text is checked and taken as it is.

    ``none`` and ``null`` are nothing where the setting can be nothing, else they are text. A mapping is read as JSON.

    Raises:
        UsageError: the setting does not take it.
    """
    found = _from_text(value.strip(), hint) if isinstance(value, str) else value
    if isinstance(found, int) and not isinstance(found, bool) and float in _parts(hint):
        found = float(found)
    if not _fits(found, hint) and isinstance(found, int | float):
        found = _from_text(f"{found:g}", hint)  # 1 for a switch, from Python
    if not _fits(found, hint):
        raise UsageError(f"{key} is {value!r}", wanted=in_words(hint))
    return found


def in_words(hint: Any) -> str:
    """What a setting takes, for a person."""
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    if get_origin(hint) is Mapping:
        return "a JSON object"
    names = {str: "text", float: "a finite number", int: "a whole number", bool: "1 or 0", NoneType: "none"}
    return " or ".join(names.get(part, str(part)) for part in _parts(hint))


def is_on(key: str, value: object) -> bool:
    """Whether a shaping without a main setting is switched on."""
    return bool(read(key, value, bool))


def _parts(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)


def _from_text(text: str, hint: Any) -> object:
    parts = _parts(hint)
    if NoneType in parts and text.lower() in NOTHING:
        return None
    for part in parts:
        found = _one(text, part)
        if found is not None:
            return found
    return text


def _one(text: str, part: Any) -> object:
    if part is bool:
        return True if text.lower() in ON else False if text.lower() in OFF else None
    if part in (int, float):
        try:
            return part(text)
        except ValueError:
            return None
    if get_origin(part) is Mapping:
        try:
            return json.loads(text)
        except ValueError:
            return None
    return None


def _fits(value: object, hint: Any) -> bool:
    return any(_is(value, part) for part in _parts(hint))


def _is(value: object, part: Any) -> bool:
    if get_origin(part) is Literal:
        return value in get_args(part)
    if get_origin(part) is Mapping:
        return isinstance(value, Mapping)
    if part is float:
        return isinstance(value, float) and math.isfinite(value)
    if part is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, part)
