"""The app out of the wheel in a real browser: what a user of the package gets."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from credit_inspector.store import Store

sync_api = pytest.importorskip("playwright.sync_api")
pytest.importorskip("streamlit")
from browser.pictures import ARGS, CHROMIUM, ROOT, UNEARNED, Visit, serving, settled, visiting  # noqa: E402

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="no Chromium: apt-get install chromium"),
]
PAGES = ("/", "/response", "/responses", "/integrity")


@pytest.fixture(scope="module")
def address(analysis: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    wheels = sorted((ROOT / "dist").glob("credit_inspector-*.whl"))
    if not wheels:
        pytest.fail("no wheel in dist/: run make wheel")
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheels[-1]) as wheel:
        wheel.extractall(folder)
    where = "import credit_inspector.cli as c; print(c.__file__); print(c._app_script())"
    environment = {"PYTHONPATH": str(folder)}
    found = subprocess.run(
        [sys.executable, "-c", where], cwd=folder, env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert [Path(line).is_relative_to(folder) for line in found.stdout.split()] == [True, True]
    with serving(analysis.folder, folder, environment) as served:
        yield served


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(ARGS))
        yield running
        running.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Visit]:
    with visiting(browser) as made:
        yield made
        # Streamlit asks for its own addresses below a page's first; it finds them at the root then.
        assert [text for text in made.said if "404" not in text] == []
        assert made.strangers() == []


def test_the_first_page_answers_and_its_strip_works(visit: Visit, address: str) -> None:
    page = visit.open(address)
    settled(page)
    assert "%" in page.locator("h1").first.inner_text()
    strip = page.locator(".ci-strip").first
    chip = strip.get_by_role("button", name="advantage", exact=True)
    chip.click()
    assert chip.get_attribute("aria-pressed") == "true"
    assert "advantage" in strip.locator(".ci-legend").inner_text()

    strip.locator(".ci-is-response").nth(3).hover()
    row = strip.locator('.ci-tip.ci-open tr[data-signal="credit/delivered"] .ci-num')
    row.wait_for()
    assert any(letter.isdigit() for letter in row.inner_text())

    strip.locator(".ci-is-response").nth(3).click()
    settled(page)
    assert strip.locator(".ci-tip.ci-pinned").count() == 1
    assert chip.get_attribute("aria-pressed") == "true"
    assert visit.said == []


def test_a_link_leads_to_the_response_and_a_click_into_the_address(visit: Visit, address: str) -> None:
    page = visit.open(address)
    settled(page)
    page.get_by_role("link", name="Open response").first.click()
    page.wait_for_url("**/response?*r=*")
    page.locator(UNEARNED).first.wait_for()
    settled(page)
    page.locator(".ci-strip .ci-is-response").nth(4).click()
    page.wait_for_url("**t=4-5*")
    assert page.locator(".ci-tip.ci-pinned").count() == 1
    page.reload()
    page.locator(".ci-strip [data-marked]").first.wait_for()
    assert page.locator(".ci-strip [data-marked]").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_opens_by_its_address(browser: Any, address: str, scheme: str) -> None:
    for path in PAGES:
        with visiting(browser, scheme=scheme) as visit:
            page = visit.open(address + path, ".ci-strip .ci-is-response, [data-testid=stDataFrame]")
            settled(page)
            assert page.locator("[data-testid=stException]").count() == 0
            assert [text for text in visit.said if "404" not in text] == []
            assert visit.strangers() == []
            shade = page.evaluate("() => getComputedStyle(document.querySelector('.stApp')).backgroundColor.match(/\\d+/g)[0]")
            assert (int(shade) > 128) == (scheme == "light")
