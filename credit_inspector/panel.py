"""What is shown and concluded, before anything draws it.

A view gives a ``Panel``: a title and blocks. A check gives ``Finding``s. The app, the report and the log sinks draw the same
blocks in their own way; no block knows Streamlit, HTML or a terminal. Text in a block is data and reaches markup only escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray


class Severity(IntEnum):
    """How much a finding asks for; ``check --fail-on`` compares them."""

    INFO = 0
    WARNING = 1
    ERROR = 2


@dataclass(frozen=True, slots=True, order=True)
class TokenLink:
    """A place in a run: tokens ``start`` to ``end`` (exclusive) of one response, counted from its first token."""

    step: int
    sample_id: str
    start: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A conclusion with its number, its evidence and its limits."""

    code: str
    """Stable, such as ``filler-paid``."""
    severity: Severity
    sentence: str
    """The conclusion, with its number in it."""
    how_sure: str
    """Interval, sample size, kinds of evidence."""
    why: str
    do: str
    cannot_tell: str = ""
    links: tuple[TokenLink, ...] = ()
    """Worst first."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """The figures behind the sentence, for programs."""


# ── blocks ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Prose:
    """A paragraph; ``style`` says how loud."""

    text: str
    style: Literal["headline", "lead", "body", "note"] = "body"


@dataclass(frozen=True, slots=True)
class Tile:
    """One number with what it is."""

    value: str
    label: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Tiles:
    """A row of numbers."""

    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True)
class Findings:
    """The findings, as cards."""

    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Series:
    """One line, set of bars or cloud of points of a chart. ``None`` or NaN is a gap, never a zero."""

    name: str
    x: Sequence[float] | Sequence[str]
    y: Sequence[float | None]
    mark: Literal["line", "bar", "point"] = "line"


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with named axes; bands are shaded stretches of x with a label."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    bands: tuple[tuple[float, float, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Grid:
    """A small table: column heads and rows of text or numbers."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str | float | int | None, ...], ...]
    links: tuple[TokenLink | None, ...] = ()
    """One a row, where the row has a place to go to."""


TokenKind = Literal["prompt", "response", "masked", "end"]
"""``masked``: part of the response but not trained; ``end``: the trained end-of-sequence token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """One column over the tokens of a strip."""

    name: str
    """The column's name, such as ``credit/delivered``."""
    label: str
    family: Literal["assigned", "realised", "earned", "policy"]
    unit: str
    sign: str
    """What plus and minus mean, in words; empty for a column without a sign."""
    diverging: bool
    """Whether zero is the middle of the scale."""
    doc: str
    provenance: str
    """``recorded``, ``recomputed``, ``derived``, ``estimated`` or ``missing``, with what a reader has to know."""
    values: NDArray[np.float32]
    """``[P + L]``; NaN where there is no value (the prompt, masked tokens)."""
    limit: float
    """The value with full colour: the 99th percentile of ``|v|`` over all responses compared, so that colours compare.
    0 or NaN: no scale over responses, each strip takes its own."""


@dataclass(frozen=True, slots=True)
class StripSpan:
    """A labelled stretch of the strip, in token positions."""

    start: int
    end: int
    label: str
    """What it is, in words: ``unearned``, ``earned``, ``answer``, ``unsure``."""
    detail: str
    """Its figures, joined by " · "; parts that find no room are left out whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """The tokens of one response with every signal: what the token strip draws."""

    id: str
    title: str
    pieces: tuple[str, ...]
    """``[P + L]`` text of each token; a character that spans several tokens stands on its first one."""
    clusters: NDArray[np.int32]
    """``[P + L]`` position of the first token of the character that a token is part of (its own position, mostly)."""
    token_ids: NDArray[np.int32]
    kinds: tuple[TokenKind, ...]
    signals: tuple[Signal, ...]
    spans: tuple[StripSpan, ...] = ()
    """Without overlap."""
    fill: str = ""
    """The signal shown first."""
    underline: str = ""
    """The signal drawn under the text first."""
    link: TokenLink | None = None


Block = Prose | Tiles | Findings | Chart | Grid | Strip


@dataclass(frozen=True, slots=True)
class Panel:
    """What a view gives: a title and its blocks, in reading order."""

    title: str
    blocks: tuple[Block, ...]
