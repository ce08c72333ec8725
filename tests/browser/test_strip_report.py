"""The strip in a real browser, opened from a file: what a reader sees, points at, types and copies."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from credit_inspector.panel import (
    Finding,
    Findings,
    Panel,
    Prose,
    Severity,
    Signal,
    Strip,
    StripSpan,
    TokenKind,
    TokenLink,
)
from credit_inspector.reports import html
from credit_inspector.views.strip import assets, payload

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="no Chromium: apt-get install chromium"),
]

ARGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
NAN = float("nan")
IMAGE, SCRIPT = "<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>"
PIECES = (
    "Use",
    " 9",
    "\n",
    "让",
    "我",
    " think",
    "😀",
    "",
    "",
    "",
    "",
    "\n\n",
    " ",
    "\t",
    IMAGE,
    SCRIPT,
    " tool",
    "<eos>",
)
EMOJI, EMPTY, BREAK, SPACE, TAB, TOOL, EOS = 6, 10, 11, 12, 13, 16, 17
DELIVERED = (
    NAN, NAN, NAN, 0.05, -0.05, 0.0, 0.02, 0.02, 0.02, 0.02, 0.1, 0.03, 0.03, 0.03, NAN, 5.0, NAN, -0.02,
)  # fmt: skip


def signal(name: str, values: Any, **changes: Any) -> Signal:
    made = Signal(
        name=name,
        label=name,
        family="assigned",
        unit="",
        sign="− pushed down, + pushed up",
        diverging=True,
        doc=name,
        provenance="derived",
        values=np.asarray(values, np.float32),
        limit=0.1,
    )
    return replace(made, **changes)


def small() -> Strip:
    n = len(PIECES)
    clusters = np.arange(n, dtype=np.int32)
    clusters[EMOJI : EMOJI + 4] = EMOJI
    kinds: list[TokenKind] = ["prompt"] * 3 + ["response"] * (n - 3)
    kinds[TOOL], kinds[EOS] = "masked", "end"
    earned = np.linspace(-2, 2, n)
    earned[:3] = NAN
    return Strip(
        id="small",
        title="Response s-7",
        pieces=PIECES,
        clusters=clusters,
        token_ids=np.arange(100, 100 + n, dtype=np.int32),
        kinds=tuple(kinds),
        signals=(
            signal("delivered", DELIVERED),
            signal("earned", earned, family="earned", unit="nats", provenance="estimated, ±0.01", limit=2.0),
            signal("entropy", np.abs(earned), family="policy", diverging=False, sign="", limit=2.0),
            *(signal(f"extra {k}", earned) for k in range(6)),
        ),
        spans=(StripSpan(3, 6, "unearned", "paid +0.31 · earned 0.00"), StripSpan(6, 11, "earned", "paid +0.05")),
        fill="delivered",
        underline="earned",
        link=TokenLink(150, "s-7"),
    )


def large(n: int = 8192) -> Strip:
    values = np.random.default_rng(0).normal(0, 0.04, n)
    words = (" the", " 因为", " x", "=", "4", ".\n", " so")
    return Strip(
        id="large",
        title="Response s-8",
        pieces=tuple(words[k % len(words)] for k in range(n)),
        clusters=np.arange(n, dtype=np.int32),
        token_ids=np.arange(n, dtype=np.int32),
        kinds=("response",) * n,
        signals=(signal("delivered", values), signal("entropy", np.abs(values), diverging=False)),
        fill="delivered",
        link=TokenLink(150, "s-8"),
    )


@dataclass
class Reader:
    """A page with a report, and what the browser said and asked for meanwhile."""

    page: Any
    folder: Path
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def open(self, *blocks: Any) -> Any:
        file = self.folder / "report.html"
        file.write_text(html.render("Report", [Panel("Panel", blocks)]), "utf-8")
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.said.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(file.as_uri())
        self.page.wait_for_selector(".ci-is-response")
        return self.page

    def token(self, i: int) -> Any:
        return self.page.locator(f'.strip [data-i="{i}"]').first

    def row(self, name: str) -> list[str]:
        found: list[str] = self.page.locator(f'.ci-tip tr[data-signal="{name}"] > *').all_inner_texts()
        return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(ARGS))
        yield running
        running.close()


@pytest.fixture(params=["light", "dark"])
def theme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def reader(browser: Any, tmp_path: Path) -> Iterator[Reader]:
    context = browser.new_context(viewport={"width": 1000, "height": 800})
    made = Reader(context.new_page(), tmp_path)
    yield made
    assert made.said == []
    assert [url for url in made.asked if not url.startswith("file://")] == []
    context.close()


def test_hostile_text_is_inert_and_whole(reader: Reader) -> None:
    page = reader.open(small())
    assert page.locator("img, iframe, object, svg").count() == 0
    assert page.locator("script").count() == 2
    assert page.locator(".ci-text > .ci-block").evaluate("block => block.textContent") == "".join(PIECES[3:])
    assert reader.token(14).evaluate("e => e.textContent") == IMAGE
    assert reader.token(15).evaluate("e => e.textContent") == SCRIPT


def test_pointing_at_a_token_shows_every_value(reader: Reader) -> None:
    page = reader.open(small())
    reader.token(3).hover()
    assert page.locator(".ci-tip").is_visible()
    assert page.locator(".ci-tip-head").inner_text().split("\n") == ["“让”", "#3", "id 103", "trained"]
    assert reader.row("delivered") == ["delivered", "+0.0500", "", "derived"]
    assert reader.row("earned") == ["earned", "−1.29", "nats", "estimated, ±0.01"]
    assert page.locator(".ci-tip tr[data-signal]").count() == 9
    assert "unearned" in page.locator(".ci-tip-span").inner_text()
    assert "delivered: sum 0, mean 0 over 3 of 3 tokens" in page.locator(".ci-tip-span").inner_text()


def test_a_missing_value_is_hatched_and_in_words(reader: Reader) -> None:
    page = reader.open(small())
    assert "ci-na" in reader.token(14).get_attribute("class")
    reader.token(14).hover()
    assert reader.row("delivered")[1] == "n/a"
    assert "1 n/a" in page.locator(".ci-legend").inner_text()


def test_zero_has_no_colour_and_a_value_beyond_the_limit_is_marked(reader: Reader) -> None:
    page = reader.open(small())
    colours = [reader.token(i).evaluate("e => getComputedStyle(e).backgroundColor") for i in (5, 3, 4)]
    assert colours[0] == "rgba(0, 0, 0, 0)"
    assert len(set(colours)) == 3
    assert "ci-beyond" in reader.token(15).get_attribute("class")
    legend = page.locator(".ci-legend").inner_text()
    assert "1 beyond the limit" in legend
    assert "−0.1" in legend
    assert "+0.1" in legend


def test_a_masked_token_is_neutral_and_said_not_to_be_trained(reader: Reader) -> None:
    page = reader.open(small())
    assert reader.token(TOOL).get_attribute("class") == "ci-t ci-is-masked"
    assert page.locator(".ci-tone-masked").get_attribute("data-label") == "not trained"
    reader.token(TOOL).hover()
    assert "not trained" in page.locator(".ci-tip-head").inner_text()
    page.get_by_role("button", name="all", exact=True).click()
    assert "ci-na" in reader.token(TOOL).get_attribute("class")


def test_the_end_is_a_token_with_text(reader: Reader) -> None:
    reader.open(small())
    assert reader.token(EOS).inner_text() == "<eos>"
    assert "ci-is-end" in reader.token(EOS).get_attribute("class")


def test_tokens_without_ink_are_seen_as_boxes(reader: Reader) -> None:
    page = reader.open(small())
    for i in (7, 8, 9, EMPTY, BREAK, SPACE, TAB):
        box = reader.token(i).bounding_box()
        assert box["width"] > 2, i
        assert box["height"] > 10, i
    reader.token(8).click()
    assert "part 3 of 4 of this character" in page.locator(".ci-tip-head").inner_text()
    assert "😀" in page.locator(".ci-tip-head").inner_text()


def test_copied_text_is_the_text(reader: Reader) -> None:
    page = reader.open(small())
    copied = page.evaluate(
        """() => {
          const text = document.querySelector(".ci-text"), block = text.querySelector(":scope > .ci-block");
          getSelection().selectAllChildren(block);
          const data = new DataTransfer();
          block.dispatchEvent(new ClipboardEvent("copy", { clipboardData: data, bubbles: true, cancelable: true }));
          return data.getData("text/plain");
        }"""
    )
    assert copied == "".join(PIECES[3:])


def test_switching_is_a_repaint_of_the_same_nodes(reader: Reader) -> None:
    page = reader.open(large())
    assert page.locator(".ci-block").count() > 30
    page.evaluate("""() => {
      window.nodes = [...document.querySelectorAll(".ci-t[data-i]")];
      window.changes = 0;
      const count = (records) => (window.changes += records.length);
      new MutationObserver(count).observe(document.querySelector(".ci-text"), { childList: true, subtree: true });
    }""")
    before = reader.token(0).get_attribute("class")
    page.get_by_role("button", name="entropy").click()
    assert reader.token(0).get_attribute("class") != before
    page.get_by_role("button", name="log", exact=True).click()
    page.evaluate("new Promise(requestAnimationFrame)")
    assert page.evaluate("window.changes") == 0
    assert page.evaluate("window.nodes.length") == 8192
    assert page.evaluate("window.nodes.every((node) => node.isConnected)")


def test_keys_move_pin_and_let_go(reader: Reader) -> None:
    page = reader.open(small())
    page.locator(".ci-text").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert reader.token(4).get_attribute("data-cursor") == ""
    assert page.locator(".ci-status").inner_text().startswith("token 4, 我, trained, delivered −0.0500")
    page.keyboard.press("ArrowLeft")
    assert reader.token(3).get_attribute("data-cursor") == ""
    page.keyboard.press("End")
    assert reader.token(EOS).get_attribute("data-cursor") == ""
    page.keyboard.press("?")
    assert page.locator(".ci-help").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator(".ci-help").is_visible()
    assert not page.locator(".ci-tip").is_visible()


def test_find_goes_through_tokens_and_into_the_prompt(reader: Reader) -> None:
    page = reader.open(small())
    page.locator(".ci-text").focus()
    page.keyboard.press("/")
    page.keyboard.type("我 TH")
    assert page.locator(".ci-count").inner_text() == "1 found"
    assert page.locator("[data-hit]").count() == 2
    page.locator(".ci-find input").fill("se 9")
    page.keyboard.press("Enter")
    assert reader.token(0).is_visible()
    assert page.locator(".ci-count").inner_text() == "1 of 1"
    page.locator(".ci-find input").fill("(*")
    assert page.locator(".ci-count").inner_text() == "not in the text"


def test_the_prompt_is_folded_until_asked_for(reader: Reader) -> None:
    page = reader.open(small())
    fold = page.locator(".ci-fold")
    assert "prompt · 3 tokens" in fold.inner_text()
    assert not reader.token(0).is_visible()
    fold.click()
    assert reader.token(0).is_visible()
    assert fold.get_attribute("aria-expanded") == "true"


def test_by_span_every_token_has_the_colour_of_its_span(reader: Reader) -> None:
    page = reader.open(small())
    page.get_by_role("button", name="span mean").click()
    levels = [reader.token(i).evaluate("e => e.style.getPropertyValue('--level')") for i in range(6, 11)]
    assert set(levels) == {"0.36"}
    assert reader.token(BREAK).get_attribute("class") == "ci-t ci-is-response ci-space"
    page.get_by_role("button", name="span sum").click()
    assert "largest span here" in page.locator(".ci-legend").inner_text()
    assert reader.token(6).evaluate("e => e.style.getPropertyValue('--level')") == "1"


def test_signals_beyond_the_buttons_are_in_a_list_by_family(reader: Reader) -> None:
    page = reader.open(small())
    more = page.get_by_label("more signals")
    assert more.locator("option").first.inner_text() == "+4 more"
    more.select_option("extra 5")
    assert "extra 5" in page.locator(".ci-legend").inner_text()
    page.get_by_label("underline", exact=True).select_option("")
    assert "underline" not in page.locator(".ci-legend").inner_text()


def test_a_span_label_is_whole_parts_or_less(reader: Reader) -> None:
    page = reader.open(small())
    labels = page.locator(".ci-seg").evaluate_all("all => all.map((one) => one.dataset.label)")
    whole = {
        "unearned",
        "unearned · paid +0.31",
        "unearned · paid +0.31 · earned 0.00",
        "earned",
        "earned · paid +0.05",
    }
    assert set(labels[:2]) <= whole


def test_a_link_jumps_to_its_tokens_and_marks_them(reader: Reader) -> None:
    finding = Finding(
        code="c", severity=Severity.WARNING, sentence="s", how_sure="h", why="w", do="d",
        links=(TokenLink(150, "s-8", 8000, 8003),),
    )  # fmt: skip
    page = reader.open(Findings((finding,)), small(), large())
    page.locator("a[data-token]").click()
    page.wait_for_selector('#strip-2 [data-i="8000"][data-marked]')
    assert page.locator("[data-marked]").count() == 3
    top = page.locator('#strip-2 [data-i="8000"]').bounding_box()["y"]
    assert 0 < top < 800


def test_the_figures_stay_inside_the_window(reader: Reader) -> None:
    page = reader.open(small())
    for width in (1000, 380):
        page.set_viewport_size({"width": width, "height": 500})
        for i in (3, 15, EOS):
            reader.token(i).scroll_into_view_if_needed()
            reader.token(i).hover()
            box = page.locator(".ci-tip").bounding_box()
            assert box["x"] >= 0
            assert box["y"] >= 0
            assert box["x"] + box["width"] <= width
            assert box["y"] + box["height"] <= 500


@pytest.fixture
def host(browser: Any) -> Iterator[Any]:
    """A page that calls ``mount`` itself, as the app does: again and again on the same root."""
    context = browser.new_context()
    page = context.new_page()
    component = assets()
    page.set_content(
        f"<style>{component.css}</style><div id=outer></div><script type=module>{component.js}\n"
        "window.picked = [];"
        "const root = document.getElementById('outer').attachShadow({ mode: 'open' });"
        "window.draw = (payload, state) => mount(root, payload, { state, onSelect: (i) => window.picked.push(i) });"
        "window.strips = () => root.querySelectorAll('.ci-strip');"
        "</script>"
    )
    page.wait_for_function("window.draw !== undefined")
    yield page
    context.close()


def test_the_same_payload_keeps_the_nodes_and_what_was_chosen(host: Any) -> None:
    host.evaluate("([payload, state]) => draw(payload, state)", [payload(small()), {"signal": "earned"}])
    host.evaluate("window.before = strips()[0].querySelector('[data-i]')")
    host.get_by_role("button", name="entropy").click()
    host.evaluate("([payload, state]) => draw(payload, state)", [payload(small()), {"signal": "earned"}])
    assert host.evaluate("window.before.isConnected")
    assert host.get_by_role("button", name="entropy").get_attribute("aria-pressed") == "true"
    host.evaluate("([payload, state]) => draw(payload, state)", [payload(small()), {"signal": "delivered", "token": 4}])
    assert host.get_by_role("button", name="delivered").get_attribute("aria-pressed") == "true"
    assert host.locator('[data-i="4"][data-marked]').count() == 1


def test_new_values_under_the_same_id_are_shown(host: Any) -> None:
    strip = small()
    host.evaluate("(payload) => draw(payload)", payload(replace(strip, signals=strip.signals[:2])))
    host.evaluate("window.before = strips()[0].querySelector('[data-i]')")
    added = signal("late", np.zeros(len(PIECES)))
    host.evaluate("(payload) => draw(payload)", payload(replace(strip, signals=(*strip.signals[:2], added))))
    assert host.evaluate("window.before.isConnected")
    host.get_by_role("button", name="late").click()
    assert "late" in host.locator(".ci-legend").inner_text()


def test_another_id_is_another_strip(host: Any) -> None:
    host.evaluate("(payload) => draw(payload)", payload(small()))
    host.evaluate("(payload) => draw(payload)", payload(large(300)))
    assert host.evaluate("strips().length") == 1
    assert host.locator(".ci-t[data-i]").count() == 300


def test_a_click_or_enter_tells_the_host_which_token(host: Any) -> None:
    host.evaluate("(payload) => draw(payload)", payload(small()))
    host.locator('[data-i="5"]').click()
    assert host.locator(".ci-tip.ci-pinned").is_visible()
    host.keyboard.press("ArrowRight")
    host.keyboard.press("Enter")
    assert host.evaluate("window.picked") == [5, 6]
    host.locator('[data-i="6"]').click()
    assert not host.locator(".ci-tip").is_visible()


def test_another_version_of_the_payload_is_refused(host: Any) -> None:
    with pytest.raises(sync_api.Error, match="payload version 0"):
        host.evaluate("(payload) => draw(payload)", {**payload(small()), "version": 0})


def test_text_can_be_read_on_every_fill(browser: Any, tmp_path: Path, theme: str) -> None:
    n = 81
    levels = np.linspace(-0.1, 0.1, n)
    strip = replace(
        large(n),
        signals=(signal("delivered", levels), signal("entropy", np.abs(levels), diverging=False)),
        kinds=("prompt", "masked", *("response",) * (n - 2)),
    )
    context = browser.new_context(color_scheme=theme)
    reader = Reader(context.new_page(), tmp_path)
    page = reader.open(Prose("A lead", "note"), strip)
    page.locator(".ci-fold").click()
    assert min(contrasts(page)) >= 4.5
    page.get_by_role("button", name="entropy").click()
    assert min(contrasts(page)) >= 4.5
    context.close()


def contrasts(page: Any) -> list[float]:
    """Of the words on the page and of every token, against what is behind them."""
    pairs: list[list[list[float]]] = page.evaluate("""() => {
      const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
      const paper = getComputedStyle(document.body).backgroundColor;
      const pixel = (...colours) => {
        for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
        return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
      };
      const inked = ".ci-t[data-i], .ci-chip, .ci-cap, .ci-legend span, .ci-legend b, .note, .brand, h2, .ci-fold-what";
      return [...document.querySelectorAll(inked)].map((element) => {
        const style = getComputedStyle(element);
        return [pixel(paper, style.backgroundColor, style.color), pixel(paper, style.backgroundColor)];
      });
    }""")
    return [ratio(luminance(ink), luminance(behind)) for ink, behind in pairs]


def luminance(colour: list[float]) -> float:
    parts = [c / 255 for c in colour]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def ratio(a: float, b: float) -> float:
    return (max(a, b) + 0.05) / (min(a, b) + 0.05)


def test_without_scripts_the_text_is_there(browser: Any, tmp_path: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    file = tmp_path / "report.html"
    file.write_text(html.render("Report", [Panel("Panel", (small(),))]), "utf-8")
    page.goto(file.as_uri())
    assert re.search("让我 think😀", page.locator(".plain pre").inner_text())
    assert IMAGE in page.locator(".plain pre").inner_text()
    context.close()


def test_a_value_far_below_the_limit_has_no_colour(reader: Reader) -> None:
    """Ten thousandths of the limit are nothing to see: they must not fall back to full colour."""
    values = np.full(len(PIECES), NAN)
    values[3:7] = [1e-5, -1e-5, 0.1, 0.0]
    made = small()
    reader.open(replace(made, signals=(signal("delivered", values), *made.signals[1:]), underline=""))
    colours = [reader.token(i).evaluate("e => getComputedStyle(e).backgroundColor") for i in (3, 4, 5, 6)]
    assert colours[0] == colours[1] == colours[3] == "rgba(0, 0, 0, 0)"
    assert colours[2] != colours[0]
