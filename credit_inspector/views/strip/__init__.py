"""The token strip: one response drawn token by token, the same in the app and in every HTML document.

``strip.js`` and ``strip.css`` are the whole component; ``mount(root, payload, {onSelect, state})`` is its only entry.
``payload`` writes a ``Strip`` in the form that ``mount`` reads: JSON without NaN, the numbers as base64 of
little-endian 32-bit values, so that NaN and the infinities arrive as they are. One encoding serves both hosts.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from importlib.resources import files
from itertools import groupby
from math import isfinite
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from credit_inspector.errors import AlignmentError, UsageError
from credit_inspector.panel import Signal, Strip, StripSpan
from credit_inspector.text import whole

VERSION: Final = 1
"""Of the payload; ``mount`` refuses another one."""


class Assets(NamedTuple):
    """The text of the component's two files. Both have many lines, so no host takes them for a path."""

    js: str
    css: str


def assets() -> Assets:
    """The component as text: an ES module that exports ``mount``, and its style sheet."""
    here = files(__name__)
    return Assets(here.joinpath("strip.js").read_text("utf-8"), here.joinpath("strip.css").read_text("utf-8"))


def payload(strip: Strip) -> dict[str, object]:
    """What ``mount`` reads: metadata that any JSON writer takes, numbers in base64.

    Values that do not belong to the tokens raise ``AlignmentError``, a first signal that is not there ``UsageError``.
    Half a surrogate pair becomes U+FFFD, since no host can send it.
    """
    _check(strip)
    return {
        "version": VERSION,
        "id": whole(strip.id),
        "title": whole(strip.title),
        "pieces": [whole(piece) for piece in strip.pieces],
        "clusters": _packed(strip.clusters, "<i4"),
        "token_ids": _packed(strip.token_ids, "<i4"),
        "kinds": [[kind, len(list(run))] for kind, run in groupby(strip.kinds)],
        "signals": [_signal(signal) for signal in strip.signals],
        "spans": [_span(span) for span in sorted(strip.spans, key=_place)],
        "fill": whole(strip.fill),
        "underline": whole(strip.underline),
    }


def _signal(signal: Signal) -> dict[str, object]:
    limit = float(signal.limit)
    return {
        "name": whole(signal.name),
        "label": whole(signal.label),
        "family": signal.family,
        "unit": whole(signal.unit),
        "sign": whole(signal.sign),
        "diverging": bool(signal.diverging),
        "doc": whole(signal.doc),
        "provenance": whole(signal.provenance),
        "limit": limit if isfinite(limit) and limit > 0 else None,
        "values": _packed(signal.values, "<f4"),
    }


def _span(span: StripSpan) -> dict[str, object]:
    return {"start": int(span.start), "end": int(span.end), "label": whole(span.label), "detail": whole(span.detail)}


def _packed(values: NDArray[np.float32] | NDArray[np.int32], dtype: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype=dtype).tobytes()).decode("ascii")


def _place(span: StripSpan) -> tuple[int, int]:
    return span.start, span.end


def _check(strip: Strip) -> None:
    n = len(strip.pieces)
    arrays: list[tuple[str, Sequence[object] | NDArray[np.float32] | NDArray[np.int32]]] = [
        ("clusters", strip.clusters),
        ("token_ids", strip.token_ids),
        ("kinds", strip.kinds),
        *((signal.name, signal.values) for signal in strip.signals),
    ]
    for name, values in arrays:
        if len(values) != n:
            raise AlignmentError(f"{name} has {len(values)} values for {n} tokens of {strip.id}", wanted="one a token")
    _check_clusters(strip)
    _check_spans(strip)
    names = {signal.name for signal in strip.signals}
    for chosen in (strip.fill, strip.underline):
        if chosen and chosen not in names:
            raise UsageError(f"no signal {chosen} in {strip.id}", wanted="one of " + ", ".join(sorted(names)))


def _check_clusters(strip: Strip) -> None:
    clusters = np.asarray(strip.clusters)
    if np.any(clusters < 0) or np.any(clusters > np.arange(len(clusters))):
        raise AlignmentError(f"a cluster of {strip.id} starts after its own token", wanted="the position of its first token")


def _check_spans(strip: Strip) -> None:
    end = 0
    for span in sorted(strip.spans, key=_place):
        if not end <= span.start < span.end <= len(strip.pieces):
            place = f"span {span.label} at tokens {span.start} to {span.end} of {strip.id}"
            raise AlignmentError(place, wanted=f"spans without overlap within {len(strip.pieces)} tokens")
        end = span.end
