"""Views: an analysis and a place in it → a panel of blocks.

To add one, drop a file in that decorates a function with ``@view``; it becomes a page of the app and a section of the report.
A view knows no Streamlit and no HTML.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from credit_inspector.panel import Panel
from credit_inspector.registry import Registry
from credit_inspector.store import Store


@dataclass(frozen=True, slots=True)
class Place:
    """Where the reader is; ``None`` leaves the choice to the view."""

    step: int | None = None
    sample_id: str | None = None


@dataclass(frozen=True, slots=True)
class View:
    """A named view."""

    name: str
    title: str
    order: int
    """Its place among the pages."""
    in_report: bool
    build: Callable[[Store, Place], Panel]
    doc: str


views: Registry[View] = Registry("views", __name__)


def view(
    name: str, *, title: str, order: int, in_report: bool = True
) -> Callable[[Callable[[Store, Place], Panel]], Callable[[Store, Place], Panel]]:
    """Put a view in."""

    def put(build: Callable[[Store, Place], Panel]) -> Callable[[Store, Place], Panel]:
        views.add(name, View(name, title, order, in_report, build, " ".join((build.__doc__ or "").split())))
        return build

    return put


def pages() -> list[View]:
    """All views in the order of their pages."""
    return sorted(views.members(), key=lambda view: (view.order, view.name))


__all__ = ["Place", "View", "pages", "view", "views"]
