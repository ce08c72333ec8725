"""The Markdown report: what a run has written is read and does not act."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

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
)
from credit_inspector.reports import markdown
from credit_inspector.reports.wording import line

GITHUB = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    "a | b | c",
    "`code` ``more``",
    "**bold** __bold__ *it* _it_ ~~gone~~",
    "cost $119.6 and $5, $$x$$",
    "![leak](http://example.org/x.png) [link](javascript:alert(1))",
    "# no", "1. no", "- no", "> no", "---", "===", "    four spaces",
    "&lt;b&gt; &amp;", "\\*", "<!-- hidden -->", "a\\", "https://example.org www.example.org <https://example.org>",
]  # fmt: skip


class Words(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.mark.parametrize("text", HOSTILE)
def test_data_reads_as_it_is(text: str) -> None:
    page = Words(GITHUB.render(markdown.escape(text)))
    assert page.tags == ["p"]
    assert page.words.strip() == line(text)


@given(st.text(st.characters(codec="utf-8"), max_size=30))
def test_any_text_reads_as_it_is(text: str) -> None:
    page = Words(GITHUB.render(markdown.escape(text)))
    assert set(page.tags) <= {"p"}
    assert " ".join(page.words.split()) == line(text)


@given(st.text(st.sampled_from("ab|`*_\\<&$\n"), max_size=20))
def test_a_cell_stays_one_cell(text: str) -> None:
    document = markdown.render("t", [Panel("p", (Grid("g", ("one", "two"), ((text, 1),)),))])
    page = GITHUB.render(document)
    assert page.count("<td>") == 2
    assert Words(page).tags.count("tr") == 2


def test_formulas_mentions_numbers_and_emoji_are_parted() -> None:
    assert markdown.escape("$x$") == r"\$x\$"
    assert markdown.escape("@someone #12 :+1:") == "@<!-- -->someone #<!-- -->12 :<!-- -->+1:"
    assert markdown.escape("https://example.org") == r"https:\//example.org"
    assert markdown.escape("www.example.org") == r"www\.example.org"


def strip(text: str) -> Strip:
    values = np.array([np.nan, 0.5], np.float32)
    one = Signal(
        name="s", label=text, family="earned", unit="", sign="", diverging=True, doc="", provenance=text, values=values,
        limit=1.0,
    )  # fmt: skip
    return Strip(
        id="1", title=text, pieces=(text, text), clusters=np.arange(2, dtype=np.int32),
        token_ids=np.arange(2, dtype=np.int32), kinds=("response", "end"), signals=(one,),
        spans=(StripSpan(0, 2, text, text),),
    )  # fmt: skip


def panel(text: str) -> Panel:
    finding = Finding(code=text, severity=Severity.ERROR, sentence=text, how_sure=text, why=text, do=text)
    chart = Chart(text, text, text, (Series(text, [text], [float("nan")], "bar"),))
    blocks = (Prose(text, "headline"), Tiles((Tile(text, text, text),)), Findings((finding,)), chart, strip(text))
    return Panel(text, blocks)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_whole_document_has_no_element_from_data(text: str) -> None:
    page = Words(GITHUB.render(markdown.render(text, [panel(text)])))
    quiet = Words(GITHUB.render(markdown.render("ok", [panel("ok")])))
    assert page.tags == quiet.tags


def test_a_fence_is_longer_than_any_in_the_text() -> None:
    document = markdown.render("t", [Panel("p", (strip("\n```\n<b>out</b>\n`````\n"),))])
    assert re.search(r"^`{6}text$", document, re.MULTILINE)
    assert "<b>" not in GITHUB.render(document)


def test_missing_values_are_words() -> None:
    document = markdown.render("t", [Panel("p", (Grid("g", ("a", "b"), ((None, float("nan")),)),))])
    assert "| n/a | n/a |" in document


def test_a_long_chart_is_summed_up() -> None:
    y = [float("nan"), *range(99)]
    document = markdown.render("t", [Panel("p", (Chart("c", "step", "loss", (Series("s", list(range(100)), y),)),))])
    assert "| s | 99 | 0 | 98 | 0 | 98 |" in document
