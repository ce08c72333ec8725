"""The JSON report: what its docstring says, and numbers that any reader takes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from credit_inspector.panel import (
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
from credit_inspector.reports import json as report

NAN, INF = float("nan"), float("inf")


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def read(*blocks: Any, title: str = "t") -> list[dict[str, Any]]:
    text = report.render(title, [Panel("p", blocks)])
    text.encode()
    document = json.loads(text, parse_constant=refuse)
    assert document["schema"] == report.SCHEMA
    assert document["title"]
    (panel,) = document["panels"]
    found: list[dict[str, Any]] = panel["blocks"]
    return found


def test_words_and_tiles() -> None:
    assert read(Prose("a <b>", "lead"), Tiles((Tile("41 %", "paid"),))) == [
        {"kind": "prose", "text": "a <b>", "style": "lead"},
        {"kind": "tiles", "tiles": [{"value": "41 %", "label": "paid", "detail": ""}]},
    ]


def test_findings_keep_their_numbers_and_places() -> None:
    finding = Finding(
        code="filler-paid",
        severity=Severity.WARNING,
        sentence="s",
        how_sure="h",
        why="w",
        do="d",
        links=(TokenLink(3, "a", 1, 4),),
        numbers={"share": 0.41, "high": INF, "count": np.int64(3)},  # type: ignore[dict-item]
    )
    (block,) = read(Findings((finding,)))
    (found,) = block["findings"]
    assert found["severity"] == "warning"
    assert found["links"] == [{"step": 3, "sample_id": "a", "start": 1, "end": 4}]
    assert found["numbers"] == {"share": 0.41, "high": None, "count": 3}


def test_missing_and_infinite_values_are_null() -> None:
    chart = Chart("c", "x", "y", (Series("s", [0, 1], [NAN, np.float32(0.1)], "bar"),), ((0, 1, "warm-up"),))
    grid = Grid("g", ("a", "b", "c"), ((None, NAN, "x"),), (None,))
    drawn, table = read(chart, grid)
    assert drawn["series"] == [{"name": "s", "x": [0, 1], "y": [None, 0.1], "mark": "bar"}]
    assert drawn["bands"] == [[0, 1, "warm-up"]]
    assert table["rows"] == [[None, None, "x"]]
    assert table["links"] == [None]


def test_a_strip_has_its_values_in_short_digits() -> None:
    signal = Signal(
        name="credit/delivered",
        label="delivered",
        family="assigned",
        unit="",
        sign="",
        diverging=True,
        doc="",
        provenance="derived",
        values=np.array([NAN, 0.1, -INF], np.float32),
        limit=NAN,
    )
    strip = Strip(
        id="1",
        title="t",
        pieces=("a\ud83d", "让", "\x00"),
        clusters=np.array([0, 1, 2], np.int32),
        token_ids=np.array([5, 6, 7], np.int32),
        kinds=("prompt", "response", "end"),
        signals=(signal,),
        spans=(StripSpan(1, 3, "earned", ""),),
    )
    (block,) = read(strip)
    assert block["pieces"] == ["a\ufffd", "让", "\x00"]
    assert block["token_ids"] == [5, 6, 7]
    assert block["signals"][0]["values"] == [None, 0.1, None]
    assert block["signals"][0]["limit"] is None
    assert block["spans"] == [{"start": 1, "end": 3, "label": "earned", "detail": ""}]
    assert block["link"] is None


def test_every_field_is_in_the_description() -> None:
    for part in (Prose, Tiles, Tile, Findings, Finding, Chart, Series, Grid, Strip, Signal, StripSpan, TokenLink):
        for name in part.__slots__:
            assert f"``{name}``" in str(report.__doc__), f"{part.__name__}.{name}"


def test_an_unknown_thing_is_named() -> None:
    with pytest.raises(TypeError, match="no JSON for object"):
        read(Grid("g", ("a",), ((object(),),)))  # type: ignore[arg-type]
