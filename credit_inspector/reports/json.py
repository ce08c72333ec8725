"""Panels as JSON, for programs.

The document::

    {
      "schema": 1,
      "title": str,
      "panels": [{"title": str, "blocks": [BLOCK, …]}, …]
    }

A BLOCK has a ``kind`` and the fields of that block in ``panel.py``, under the same names:

=========  ===========================================================================================================
prose      ``text``, ``style``
tiles      ``tiles``: [{``value``, ``label``, ``detail``}]
findings   ``findings``: [{``code``, ``severity``: "info" | "warning" | "error", ``sentence``, ``how_sure``, ``why``,
           ``do``, ``cannot_tell``, ``links``: [LINK], ``numbers``: {name: number | null}}]
chart      ``title``, ``x_label``, ``y_label``, ``series``: [{``name``, ``mark``, ``x``: [number | str],
           ``y``: [number | null]}], ``bands``: [[from, to, label]]
grid       ``title``, ``head``: [str], ``rows``: [[str | number | null]], ``links``: [LINK | null]
strip      ``id``, ``title``, ``pieces``: [str], ``clusters``: [int], ``token_ids``: [int], ``kinds``: [str],
           ``signals``: [{``name``, ``label``, ``family``, ``unit``, ``sign``, ``diverging``, ``doc``, ``provenance``,
           ``limit``: number | null, ``values``: [number | null]}], ``spans``: [{``start``, ``end``, ``label``,
           ``detail``}], ``fill``, ``underline``, ``link``: LINK | null
=========  ===========================================================================================================

A LINK is {``step``, ``sample_id``, ``start``, ``end``}. A value that is missing or infinite is ``null``. Half a
surrogate pair is U+FFFD. A later version may add fields; ``schema`` grows when one changes its meaning or goes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import isfinite
from typing import Any, Final

import numpy as np

from credit_inspector.panel import (
    Block,
    Chart,
    Finding,
    Findings,
    Grid,
    Panel,
    Prose,
    Series,
    Severity,
    Signal,
    Strip,
    StripSpan,
    Tile,
    Tiles,
    TokenLink,
)
from credit_inspector.text import whole

SCHEMA: Final = 1

_KINDS: Final[dict[type, str]] = {
    Prose: "prose",
    Tiles: "tiles",
    Findings: "findings",
    Chart: "chart",
    Grid: "grid",
    Strip: "strip",
}
Part = Tile | Finding | Series | TokenLink | Signal | StripSpan
"""What stands inside a block."""


def render(title: str, panels: Sequence[Panel]) -> str:
    """The whole document."""
    document = {
        "schema": SCHEMA,
        "title": whole(title),
        "panels": [{"title": whole(panel.title), "blocks": [_block(block) for block in panel.blocks]} for panel in panels],
    }
    return json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n"


def _block(block: Block) -> dict[str, object]:
    return {"kind": _KINDS[type(block)], **_fields(block)}


def _fields(part: Block | Part) -> dict[str, object]:
    return {field.name: _plain(getattr(part, field.name)) for field in fields(part)}


def _plain(value: object) -> object:
    """``value`` in the types that JSON has."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, Severity):
        return value.name.lower()
    if isinstance(value, int | float | np.number):
        return _number(value)
    if isinstance(value, Mapping):
        return {whole(str(name)): _plain(one) for name, one in value.items()}
    if isinstance(value, Part):
        return _fields(value)
    if isinstance(value, Sequence | np.ndarray):
        return [_plain(one) for one in value]
    raise TypeError(f"no JSON for {type(value).__name__}")


def _number(value: float | np.number[Any]) -> int | float | None:
    if isinstance(value, int | np.integer):
        return int(value)
    if not isfinite(value):
        return None
    # A float32 through its own shortest digits: 0.1 and not 0.10000000149011612.
    return float(str(value)) if isinstance(value, np.float32) else float(value)
