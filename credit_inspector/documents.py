"""An analysis as a document: the report's panels in HTML, Markdown, JSON or on a terminal."""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console

from credit_inspector.errors import StoreError
from credit_inspector.panel import Panel
from credit_inspector.reports import html, json, markdown, terminal
from credit_inspector.store import Store
from credit_inspector.views import Place, pages

_RENDER = {"html": html.render, "markdown": markdown.render, "json": json.render}


def panels(store: Store) -> list[Panel]:
    """The sections of a report, in the order of the app's pages."""
    return [view.build(store, Place()) for view in pages() if view.in_report]


def title(store: Store) -> str:
    """What stands on top: the run's own name."""
    return f"Credit Inspector · {Path(store.meta().source).name}"


def write(store: Store, kind: str, path: Path) -> None:
    """Write a document, whole or not at all.

    Args:
        kind: ``html``, ``markdown`` or ``json``.

    Raises:
        StoreError: the file cannot be written.
    """
    text = _RENDER[kind](title(store), panels(store))
    part = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8", errors="replace")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise StoreError(f"{path} could not be written: {error.strerror}") from error


def show(store: Store, console: Console) -> None:
    """Print the report."""
    terminal.show(panels(store), console)
