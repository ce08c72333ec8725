"""The pictures of the documentation, taken of the app as it is: ``pictures.py OUT_DIR [--analysis FOLDER]``."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from credit_inspector import pipeline

ROOT = Path(__file__).parents[2]
CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
ARGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
START = 60.0
"""Seconds for the server to answer."""
WAIT = 30_000
"""Milliseconds for anything to appear on a page."""
UNEARNED = ".ci-strip .ci-tone-unearned .ci-t.ci-beyond:not(.ci-part)"


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])


@contextmanager
def serving(analysis: Path, folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """The app's address while ``credit-inspector app`` runs in a folder; its log is ``server.log`` there."""
    port = free_port()
    main = "from credit_inspector.cli import main; main()"
    command = [sys.executable, "-c", main, "app", str(analysis), "--port", str(port)]
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **(environment or {})}, stdout=log, stderr=log, start_new_session=True
        )
        try:
            _wait(port, server, folder / "server.log")
            yield f"http://127.0.0.1:{port}"
        finally:
            _end(server)


def _wait(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START
    while time.monotonic() < end and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"the app did not start on port {port}:\n{log.read_text()[-2000:]}")


def _end(server: subprocess.Popen[bytes]) -> None:
    """End the command and the server that it started: they are one process group."""
    if server.poll() is None:
        os.killpg(server.pid, 15)
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, 9)


@dataclass
class Visit:
    """A page of the app, and what the browser said and asked for meanwhile."""

    page: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def open(self, address: str, ready: str = ".ci-strip .ci-is-response") -> Any:
        """Go to an address and wait for what has to be there."""
        self.page.on("console", lambda message: message.type == "error" and self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.said.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(address)
        self.page.locator(ready).first.wait_for(timeout=WAIT)
        return self.page

    def strangers(self) -> list[str]:
        """Requests that went further than this machine."""
        return [url for url in self.asked if not url.startswith(("http://127.0.0.1:", "data:", "blob:http://127.0.0.1:"))]


@contextmanager
def visiting(browser: Any, *, width: int = 1180, height: int = 900, scheme: str = "light") -> Iterator[Visit]:
    """A fresh browser profile; the colour scheme is the reader's."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, locale="en-GB")
    context.set_default_timeout(WAIT)
    try:
        yield Visit(context.new_page())
    finally:
        context.close()


def settled(page: Any) -> None:
    """Wait until nothing runs on the server and nothing moves on the page."""
    page.wait_for_function("() => !document.querySelector('[data-testid=stStatusWidget], [data-stale=true]')", timeout=WAIT)
    page.evaluate("() => document.fonts.ready")
    page.wait_for_timeout(600)


def take(browser: Any, address: str, out: Path, scheme: str) -> None:
    """The first page as it opens, then the page of its first strip with the figures of a token that earned nothing."""
    ending = "" if scheme == "light" else "_dark"
    with visiting(browser, height=1000, scheme=scheme) as visit:
        page = visit.open(address)
        settled(page)
        page.screenshot(path=str(out / f"verdict{ending}.png"))
        page.get_by_role("link", name="Open response").first.click()
        page.wait_for_url("**/response?*")
        page.set_viewport_size({"width": 1180, "height": 1500})
        page.locator(UNEARNED).first.wait_for()
        settled(page)
        page.locator(UNEARNED).last.hover()
        tip = page.locator(".ci-tip.ci-open").first
        tip.wait_for()
        page.wait_for_timeout(300)
        strip, figures = page.locator(".ci-strip").first.bounding_box(), tip.bounding_box()
        left, top = strip["x"] - 12, strip["y"] - 12
        right = max(strip["x"] + strip["width"], figures["x"] + figures["width"]) + 12
        bottom = max(strip["y"] + strip["height"], figures["y"] + figures["height"]) + 12
        clip = {"x": left, "y": top, "width": right - left, "height": bottom - top}
        page.screenshot(path=str(out / f"strip{ending}.png"), clip=clip)


def main() -> None:
    """Analyse the shipped run where no analysis is named, serve the app and take the pictures."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--analysis", type=Path)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        analysis = given.analysis
        if analysis is None:
            analysis = pipeline.analyze(ROOT / "sample_runs" / "countdown", Path(folder) / "countdown", pipeline.Options()).folder
        with serving(analysis.resolve(), Path(folder)) as address, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(ARGS))
            for scheme in ("light", "dark"):
                take(browser, address, given.out, scheme)
            browser.close()


if __name__ == "__main__":
    main()
