"""Panels on a terminal: what a run has written is printed and gives the terminal no orders."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

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
)
from credit_inspector.reports import terminal

NAN = float("nan")
HOSTILE = ["[bold red]x[/]", "[link=http://example.org]x[/link]", ":smile:", "a\x1b[31mb\x07c", "half \ud83d", "[/]"]


def shown(*blocks: Block, title: str = "p", colour: bool = False) -> str:
    out = io.StringIO()
    terminal.show(
        [Panel(title, blocks)],
        Console(file=out, width=100, force_terminal=colour, color_system="truecolor" if colour else None),
    )
    return out.getvalue()


def strip(text: str) -> Strip:
    signal = Signal(
        name="s",
        label=text,
        family="assigned",
        unit="",
        sign=text,
        diverging=True,
        doc="",
        provenance=text,
        values=np.array([NAN, 1.0, -1.0, 0.0], np.float32),
        limit=1.0,
    )
    return Strip(
        id="1",
        title=text,
        pieces=("prompt", text, "B", "C"),
        clusters=np.arange(4, dtype=np.int32),
        token_ids=np.arange(4, dtype=np.int32),
        kinds=("prompt", "response", "response", "end"),
        signals=(signal,),
        spans=(StripSpan(1, 2, text, text),),
        fill="s",
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_data_is_printed_as_it_is(text: str) -> None:
    finding = Finding(code=text, severity=Severity.ERROR, sentence=text, how_sure=text, why=text, do=text)
    out = shown(
        Prose(text),
        Tiles((Tile(text, text, text),)),
        Findings((finding,)),
        Chart(text, text, text, (Series(text, [text], [1.0], "bar"),)),
        Chart(text, text, text, (Series(text, [0, 1], [1.0, NAN]),)),
        Grid(text, (text,), ((text,),)),
        strip(text),
        title=text,
    )
    assert "\x1b" not in out
    assert "\x07" not in out
    out.encode()
    if text.isprintable():
        assert out.count(text) >= 20


def test_a_missing_value_is_words_and_a_gap_is_a_gap() -> None:
    assert "n/a" in shown(Grid("g", ("a",), ((NAN,),)))
    assert "▁ █" in shown(Chart("c", "x", "y", (Series("s", [0, 1, 2], [0.0, NAN, 1.0]),)))


def test_tokens_have_the_colour_of_their_value() -> None:
    out = shown(strip("A"), colour=True)
    assert "\x1b[30;48;2;238;147;50mA\x1b[0m" in out
    assert "\x1b[30;48;2;148;134;194mB\x1b[0m" in out
    assert "prompt, 1 tokens" in out
