"""Configuration files as plain mappings: YAML, JSON and TOML, wandb's wrapping taken off.

Nothing in them is executed: YAML is read by PyYAML's safe loader, pickles (``training_args.bin``) are never opened.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from credit_inspector.errors import FormatError

_LARGEST = 4 * 2**20

# As safe as the other and ten times as fast; PyYAML may have been built without it.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load(path: Path) -> dict[str, Any]:
    """What a configuration file holds; nothing where it is no mapping.

    Raises:
        FormatError: it is too large or cannot be read.
    """
    try:
        if (size := path.stat().st_size) > _LARGEST:
            raise FormatError(f"{path.name} has {size} bytes", wanted=f"a configuration of at most {_LARGEST}")
        data = _parsed(path.suffix, path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise FormatError(f"{path.name} cannot be read: {type(error).__name__}: {_first_line(error)}") from error
    return unwrapped({str(name): value for name, value in data.items()}) if isinstance(data, dict) else {}


def _parsed(suffix: str, text: str) -> Any:
    if suffix == ".json":
        return json.loads(text)
    return tomllib.loads(text) if suffix == ".toml" else yaml.load(text, _Loader)  # noqa: S506


def unwrapped(data: dict[str, Any]) -> dict[str, Any]:
    """The values of wandb's ``{name: {desc: …, value: …}}`` as ``{name: value}``; its own entries are left out."""
    own = {name: value for name, value in data.items() if name not in ("wandb_version", "_wandb")}
    if not own or not all(_is_wrapped(value) for value in own.values()):
        return data
    return {name: value["value"] for name, value in own.items()}


def _is_wrapped(value: Any) -> bool:
    return isinstance(value, Mapping) and "value" in value and set(value) <= {"value", "desc"}


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:160]
