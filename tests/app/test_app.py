"""The app without a browser: every page, the address, and text that tries to be markup."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from credit_inspector import pipeline
from credit_inspector.panel import Block
from credit_inspector.store import Store
from credit_inspector.views import pages

pytest.importorskip("streamlit")
pytest.importorskip("plotly")
from streamlit.testing.v1 import AppTest

APP = Path(__file__).parents[2] / "app"
HOSTILE = "<img src=x onerror=alert(1)>"
Open = Callable[..., Any]


@pytest.fixture(autouse=True)
def app_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(APP))


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Open:
    def opened(folder: Path, page: str = "", **query: str) -> Any:
        """The app at a page with a query, run once."""
        monkeypatch.setenv("CREDIT_INSPECTOR_ANALYSIS", str(folder))
        monkeypatch.setattr(sys, "argv", ["streamlit"])
        at = AppTest.from_file(str(APP / "main.py"), default_timeout=60)
        if page:
            at.run()
            at._page_hash = page_hash(page)
        for name, value in query.items():
            at.query_params[name] = value
        at.run()
        return at

    return opened


def page_hash(name: str) -> str:
    """Streamlit's own name of a page that is a function: the hash of its address."""
    from streamlit.util import calc_hash

    return calc_hash(name)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("hostile")
    lines = [
        {"step": 1, "prompt": f"Say {HOSTILE}", "completion": f"{HOSTILE} $x$ :red[no] {n}", "reward": float(n % 2)}
        for n in range(4)
    ]
    run = folder / f"{HOSTILE.replace('/', '')}.jsonl"
    run.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return pipeline.analyze(run, folder / "analysis", pipeline.Options(score=False))


def shown(at: Any) -> list[str]:
    """Every text of a page that Streamlit reads as Markdown, but for the app's own style."""
    texts = [element.value for kind in ("markdown", "caption", "title", "header", "error") for element in at.get(kind)]
    return texts + [link.label for link in at.get("page_link")]


def strips(at: Any) -> list[Any]:
    return [element for element in at.get("bidi_component") if "credit_inspector_strip" in element.proto.component_name]


@pytest.mark.parametrize("name", [view.name for view in pages()])
def test_every_page_is_drawn(start: Open, analysis: Store, name: str) -> None:
    at = start(analysis.folder, name)
    assert not at.exception
    assert not at.error
    assert shown(at)
    assert len(at.selectbox) == {"verdict": 0, "response": 2}.get(name, 1)


def test_the_first_page_opens_with_the_sentence_and_its_number(start: Open, analysis: Store) -> None:
    at = start(analysis.folder)
    assert not at.exception
    title = at.title[0].value.replace("\\", "")
    assert "%" in title
    assert "of the positive delivered credit went to tokens that earned nothing" in title
    assert ":orange[" in title
    assert strips(at)


def test_the_address_chooses_step_and_response(start: Open, analysis: Store) -> None:
    step = analysis.steps[-1]
    table, _ = analysis.read_step(step)
    sample = table.rollouts[3].sample_id
    at = start(analysis.folder, "response", step=str(step), r=sample, t="2-5")
    assert not at.exception
    assert [box.value for box in at.selectbox] == [step, sample]
    (strip,) = strips(at)
    assert strip.proto.id.endswith(sample) or sample in str(strip.proto)


def test_a_choice_goes_into_the_address(start: Open, analysis: Store) -> None:
    at = start(analysis.folder, "response", step=str(analysis.steps[0]), t="2-5")
    at.selectbox[0].select(analysis.steps[1]).run()
    assert not at.exception
    assert at.query_params["step"] in (str(analysis.steps[1]), [str(analysis.steps[1])])
    assert "t" not in at.query_params


def test_an_address_that_names_nothing_falls_back(start: Open, analysis: Store) -> None:
    at = start(analysis.folder, "response", step="no", r=HOSTILE, t="9-2")
    assert not at.exception
    assert at.selectbox[0].value == analysis.steps[0]


@pytest.mark.parametrize("name", [view.name for view in pages()])
def test_text_of_a_run_is_no_markup(start: Open, hostile: Store, name: str) -> None:
    at = start(hostile.folder, name)
    assert not at.exception
    assert [text for text in shown(at) if "<img" in text.replace("\\<", "")] == []
    assert [text for text in shown(at) if ":red[" in text] == []


def test_a_folder_without_an_analysis_says_what_to_do(start: Open, tmp_path: Path) -> None:
    at = start(tmp_path)
    assert not at.exception
    assert "credit\\-inspector analyze" in at.error[0].value


def test_every_kind_of_block_has_a_way_to_be_drawn(app_modules: None) -> None:
    import draw

    missing = [kind.__name__ for kind in Block.__args__ if draw._draw.dispatch(kind) is draw._draw.dispatch(object)]
    assert missing == []


def test_odd_blocks_are_drawn_and_hostile_words_of_a_chart_are_text() -> None:
    def page(folder: str, hostile: str) -> None:
        import sys

        sys.path.insert(0, folder)
        from credit_inspector.panel import Chart, Grid, Panel, Series, Tiles
        from draw import Navigator, draw

        series = Series(hostile, [1.0, 2.0, 3.0], [1.0, None, float("nan")])
        chart = Chart(hostile, hostile, hostile, (series, series), ((0.0, 30.0, hostile),))
        draw(Panel("Odd", (Tiles(()), Grid(hostile, ("a",), ()), chart)), Navigator(lambda link: (None, {})))

    at = AppTest.from_function(page, args=(str(APP), HOSTILE), default_timeout=60).run()
    assert not at.exception
    (chart,) = at.get("plotly_chart")
    assert "&lt;img" in chart.proto.spec.replace("\\u003c", "<")
    assert "<img" not in chart.proto.spec.replace("\\u003c", "<")


def test_safe_text_reads_the_same(app_modules: None) -> None:
    from words import headline, safe

    text = r"a\b `c` *d* _e_ [f](g) <h> $i$ :red[j] k|l # m"
    assert safe(text).replace("\\", "") == text.replace("\\", "")
    assert "<img" not in safe(HOSTILE).replace("\\<", "")
    assert headline("34 % of it") == ":orange[34 %] of it"
    assert ":orange" not in headline("nothing")
