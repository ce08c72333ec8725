"""The HTML report: one file that sends nothing anywhere and runs nothing that a run has written."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

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
    Tile,
    Tiles,
    TokenLink,
)
from credit_inspector.reports import html

NAN, INF = float("nan"), float("inf")
HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    "'\"><svg onload=alert(3)>",
    "{{ 7 * 7 }}",
    "a\x00b\x1b[31mc",
    "half \ud83d pair",
    "line\u2028end",
]


class Elements(HTMLParser):
    """The elements of a page, with their attributes and the text right inside them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[int, str] = {}
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        at = len(self.found) - 1
        self.text[at] = self.text.get(at, "") + data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def strip(*, text: str = "ok", link: TokenLink | None = None) -> Strip:
    values = np.array([NAN, 0.1, -INF, 0.0], np.float32)
    return Strip(
        id=text,
        title=text,
        pieces=("prompt", text, text, "<eos>"),
        clusters=np.arange(4, dtype=np.int32),
        token_ids=np.arange(4, dtype=np.int32),
        kinds=("prompt", "response", "response", "end"),
        signals=(
            Signal(
                name=text, label=text, family="earned", unit=text, sign=text, diverging=True, doc=text, provenance=text,
                values=values, limit=0.1,
            ),
        ),
        link=link,
    )  # fmt: skip


def finding(text: str, *links: TokenLink) -> Finding:
    return Finding(
        code=text, severity=Severity.WARNING, sentence=text, how_sure=text, why=text, do=text, cannot_tell=text,
        links=links, numbers={text: 0.5},
    )  # fmt: skip


def blocks(text: str) -> tuple[Block, ...]:
    return (
        Prose(text, "headline"),
        Prose(text),
        Tiles((Tile(text, text, text),)),
        Findings((finding(text, TokenLink(1, text, 0, 2)),)),
        Chart(text, text, text, (Series(text, [0, 1], [1, 2]), Series(text, [0, 1], [1, 2], "point")), ((0, 1, text),)),
        Chart(text, text, text, (Series(text, [text], [1.0], "bar"),)),
        Chart(text, text, text, (Series(text, [text], [1.0], "line"),)),
        Grid(text, (text, text), ((text, 1.0),), (TokenLink(1, text),)),
        strip(text=text),
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_text_from_a_run_is_text(text: str) -> None:
    quiet = html.render("title", [Panel("panel", blocks("ok"))], subtitle="sub")
    page = html.render(text, [Panel(text, blocks(text))], subtitle=text)
    names = [name for name, _ in Elements(page).found]
    assert names == [name for name, _ in Elements(quiet).found]
    attributes = [sorted(found) for _, found in Elements(page).found]
    assert attributes == [sorted(found) for _, found in Elements(quiet).found]
    assert "\x00" not in page
    assert "\x1b" not in page
    assert "{{ 7" in page or "{{" not in text
    page.encode()


def test_a_data_script_cannot_end_before_its_end() -> None:
    page = Elements(html.render("t", [Panel("p", (strip(text=HOSTILE[1]),))]))
    at = next(k for k, (_, found) in enumerate(page.found) if found.get("type") == "application/json")
    assert json.loads(page.text[at])["pieces"][1] == HOSTILE[1]
    assert not set("<>&") & set(page.text[at])


def test_the_policy_allows_the_one_script_and_no_source() -> None:
    page = html.render("t", [Panel("p", (strip(),))])
    policy = next(str(meta["content"]) for meta in Elements(page).all("meta") if meta.get("http-equiv"))
    (script,) = re.findall(r'<script type="module">(.*?)</script>', page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy
    assert not [found for _, found in Elements(page).found if found.keys() & {"src", "srcset"}]
    assert all(str(anchor["href"]).startswith("#") for anchor in Elements(page).all("a"))
    assert "url(" not in page
    assert "@import" not in page


def test_a_page_without_a_strip_has_no_script() -> None:
    page = html.render("t", [Panel("p", (Prose("x"),))])
    assert not Elements(page).all("script")
    assert "script-src 'none'" in page


def test_the_text_of_a_strip_can_be_read_without_a_script() -> None:
    page = html.render("t", [Panel("p", (strip(text="让我想想"),))])
    (plain,) = re.findall(r"<noscript>(.*?)</noscript>", page, re.DOTALL)
    assert "prompt让我想想让我想想&lt;eos&gt;" in plain


def test_a_link_goes_to_the_tokens_on_the_page_else_it_is_words() -> None:
    here, elsewhere = TokenLink(150, "s-7", 1, 3), TokenLink(150, "s-8", 1, 3)
    drawn = strip(link=TokenLink(150, "s-7"))
    page = html.render("t", [Panel("p", (Findings((finding("x", here, elsewhere),)), strip(text="other"), drawn))])
    (anchor,) = Elements(page).all("a")
    # one prompt token stands before the response in the strip
    assert anchor == {"href": "#strip-2", "data-token": "2", "data-until": "4"}
    assert 'id="strip-2"' in page
    assert "<span>step 150 · s-8 · tokens 1–2</span>" in page


def test_missing_values_are_words_and_never_zero() -> None:
    grid = Grid("g", ("a", "b"), ((None, NAN), (INF, 0.0)))
    page = html.render("t", [Panel("p", (grid,))])
    assert re.findall(r"<td[^>]*>(.*?)</td>", page) == ["n/a", "n/a", "∞", "0"]


def test_a_gap_in_a_line_is_a_gap() -> None:
    chart = Chart("c", "x", "y", (Series("s", [0, 1, 2, 3, 4], [1.0, 2.0, NAN, 3.0, 4.0]),))
    page = html.render("t", [Panel("p", (chart,))])
    assert page.count('<path class="line') == 2


def test_a_value_between_two_gaps_is_seen() -> None:
    chart = Chart("c", "x", "y", (Series("s", [0, 1, 2], [NAN, 2.0, NAN]), Series("o", [0, 2], [1.0, 3.0])))
    strokes = re.findall(r'<path class="line c0" d="(M[^"]*L[^"]*)"', html.render("t", [Panel("p", (chart,))]))
    assert any(stroke.count("L") == 1 for stroke in strokes)


@pytest.mark.parametrize("mark", ["line", "bar", "point"])
@pytest.mark.parametrize("y", [[], [NAN], [0.0], [5.0, 5.0], [-3.0, 4.0], [1e-12, 1e12], [INF, 1.0]])
@pytest.mark.parametrize("named", [True, False])
def test_any_chart_is_drawn_within_its_picture(mark: str, y: list[float], named: bool) -> None:
    x = [str(k) for k in range(len(y))] if named else list(range(len(y)))
    chart = Chart("c", "x", "y", (Series("s", x, y, mark),))  # type: ignore[arg-type]
    page = html.render("t", [Panel("p", (chart,))])
    assert "nan" not in page[page.index("<figure") : page.index("</figure")]
    places = [float(place) for place in re.findall(r'\sx="([-\d.]+)"', page)]
    assert all(-1 <= place <= 760 for place in places)
    assert ("no values" in page) == (not any(np.isfinite(y)))


def test_thousands_of_bars_are_a_bar_a_pixel() -> None:
    n = 8192
    y = np.where(np.arange(n) == 4000, -7.0, 1.0)
    page = html.render("t", [Panel("p", (Chart("c", "x", "y", (Series("s", list(range(n)), list(y), "bar"),)),))])
    assert page.count('<rect class="bar') < 800
    heights = [float(height) for height in re.findall(r'<rect class="bar[^>]*height="([\d.]+)"', page)]
    assert max(heights) > 6 * sorted(heights)[len(heights) // 2]


def test_bands_are_cut_to_the_chart_and_named() -> None:
    chart = Chart("c", "step", "y", (Series("s", [0, 10], [1, 2]),), ((-5, 5, "warm-up"), (20, 30, "later")))
    page = html.render("t", [Panel("p", (chart,))])
    assert page.count('class="band"') == 1
    assert "warm-up" in page


def test_twenty_thousand_tokens_stay_below_two_megabytes() -> None:
    n = 20_000
    values = np.random.default_rng(0).normal(size=n).astype(np.float32)
    signals = tuple(replace(strip().signals[0], name=str(k), values=values) for k in range(8))
    big = Strip(
        id="big", title="big", pieces=(" token",) * n, clusters=np.arange(n, dtype=np.int32),
        token_ids=np.arange(n, dtype=np.int32), kinds=("response",) * n, fill="0",
        signals=signals,
    )  # fmt: skip
    assert len(html.render("t", [Panel("p", (big,))]).encode()) < 2_000_000
