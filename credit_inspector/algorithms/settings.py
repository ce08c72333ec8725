"""A trainer's settings as they lie in a file, looked up by dotted name.

Trainers nest them (verl, NeMo-RL), leave the dots in the keys (OpenRLHF's arguments) or print the whole namespace as one
text (what wandb makes of it); ``None`` may have become ``"None"``. References such as ``${data.train_batch_size}`` are
followed within the file. Nothing is evaluated.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from credit_inspector.errors import UsageError

_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?([A-Za-z_][\w.]*)(?:,\s*([^{}]*))?\}")
_REFERENCES_DEEP = 8
_LONGEST = 100_000

ABSENT: Any = object()


class Settings:
    """Settings by dotted name, and what has to be said about them."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self.notes: list[str] = []
        """What a reader of a rule could not take into account, one sentence each."""

    def __contains__(self, name: str) -> bool:
        return any(True for _ in _found(self._values, name))

    def value(self, name: str, default: Any = ABSENT) -> Any:
        """The setting of that name; ``default`` where the file has none.

        Raises:
            UsageError: it is not there and there is no default, or it refers to what the file does not hold.
        """
        value = self._value(name)
        if value is not ABSENT:
            return value
        if default is ABSENT:
            raise UsageError(f"there is no setting {name}")
        return default

    def number(self, name: str, default: float = ABSENT) -> float:
        """A number.

        Raises:
            UsageError: see ``value``; or it is none.
        """
        number = self.optional(name, default)
        if number is None:
            raise UsageError(f"{name} is nothing", wanted="a number")
        return number

    def optional(self, name: str, default: float | None = None) -> float | None:
        """A number, or ``None`` where the setting is off."""
        value = self.value(name, default)
        return None if value is None else _number(name, value)

    def whole(self, name: str, default: int = ABSENT) -> int:
        """A whole number."""
        number = self.number(name, default)
        if number != int(number):
            raise UsageError(f"{name} is {number}", wanted="a whole number")
        return int(number)

    def flag(self, name: str, default: bool = ABSENT) -> bool:
        """Whether something is on; ``None`` is off."""
        value = self.value(name, default)
        known = {True: True, False: False, None: False, "true": True, "false": False}
        key = value.lower() if isinstance(value, str) else value
        if not isinstance(key, bool | str | None) or key not in known:
            raise UsageError(f"{name} is {value!r}", wanted="true or false")
        return known[key]

    def text(self, name: str, default: str = ABSENT) -> str:
        """A word, in lower case; of an enum that was printed (``Kind.NAME``) the name alone."""
        return str(self.value(name, default)).rpartition(".")[2].lower()

    def items(self, name: str) -> list[Any]:
        """A list, empty where there is none."""
        value = self.value(name, None)
        value = _literal(value) if isinstance(value, str) else value
        if value is None:
            return []
        if not isinstance(value, list | tuple):
            raise UsageError(f"{name} is {value!r}", wanted="a list")
        return list(value)

    def note(self, sentence: str) -> None:
        """Say something that the reader of the numbers should know."""
        self.notes.append(sentence)

    def _value(self, name: str, deep: int = 0) -> Any:
        value = next(_found(self._values, name), ABSENT)
        if isinstance(value, str) and "${" in value:
            return self._followed(name, value, deep)
        return None if value in ("None", "null", "") else value

    def _followed(self, name: str, value: str, deep: int) -> Any:
        reference = _REFERENCE.fullmatch(value.strip())
        if reference is not None and deep < _REFERENCES_DEEP:
            found = self._value(reference[1], deep + 1)
            if found is ABSENT and reference[2] is not None:
                found = _literal(reference[2])
            if found is not ABSENT:
                return found
        raise UsageError(f"{name} is unknown: {value} is not in the file")


def _found(values: Any, name: str) -> Iterator[Any]:
    """The value of a dotted name: nested, with dots in the keys, or inside a printed namespace."""
    inside = namespace(values) if isinstance(values, str) else values
    if not isinstance(inside, Mapping):
        return
    if name in inside:
        yield inside[name]
    parts = name.split(".")
    for count in range(1, len(parts)):
        head, rest = ".".join(parts[:count]), ".".join(parts[count:])
        if head in inside:
            yield from _found(inside[head], rest)


def namespace(text: str) -> dict[str, Any] | None:
    """What ``namespace(a=1, b=namespace(c=None))`` prints, as a mapping; ``None`` where the text is nothing of the kind."""
    if not text.startswith(("namespace(", "Namespace(")) or len(text) > _LONGEST:
        return None
    try:
        found: dict[str, Any] = _namespace(ast.parse(text, mode="eval").body)
        return found
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _namespace(node: ast.expr) -> Any:
    if isinstance(node, ast.Call):
        if not isinstance(node.func, ast.Name) or node.func.id.lower() != "namespace" or node.args:
            raise ValueError
        return {each.arg: _namespace(each.value) for each in node.keywords if each.arg}
    return ast.literal_eval(node)


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {"true": True, "false": False, "null": None}.get(text.lower(), text)


def _number(name: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{name} is {value!r}", wanted="a finite number")
    return number
