"""Reading the presets beside this file.

A preset's file name carries the trainer with its version and the rule; its keys are fields of ``Algorithm``.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from credit_inspector.algorithm import Algorithm
from credit_inspector.errors import FormatError, UsageError


def presets() -> tuple[str, ...]:
    """The names of all presets, sorted, such as ``trl-1.16.0/grpo``."""
    return tuple(sorted(_files()))


def preset(name: str, **changes: Any) -> Algorithm:
    """The preset of that name, with fields changed where the run differs from the trainer's defaults.

    Raises:
        UsageError: there is none, or a change that ``Algorithm`` does not take; the message names what there is.
        FormatError: the preset's file cannot be read.
    """
    known = _files()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(sorted(known))}"
        raise UsageError(f"no algorithm named {name!r}", do=hint)
    try:
        fields = tomllib.loads(known[name].read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise FormatError(f"{known[name].name} is no TOML: {error}") from error
    source = "preset" if not changes else f"preset, with {', '.join(sorted(changes))} set"
    return Algorithm.from_json({"name": name, "source": source, **fields, **changes})


@cache
def _files() -> dict[str, Traversable]:
    return dict(_found())


def _found() -> Iterator[tuple[str, Traversable]]:
    for file in files(__package__).iterdir():
        if file.name.endswith(".toml"):
            trainer, _, rule = file.name.removesuffix(".toml").rpartition("-")
            yield f"{trainer}/{rule}", file
