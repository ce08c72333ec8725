"""Plug-ins of one kind: the modules of an open folder, and entry points of the same name.

Each open folder states its kind once, in its ``__init__.py``::

    metrics = Registry[ColumnSpec]("metrics", __name__)

and each file in the folder puts its members in with ``@metrics.member``-like decorators of that folder. Another package adds
members through the entry point group ``credit_inspector.metrics``, by naming a module that does the same. Modules are imported
at the first look-up and not before, so that nothing heavy loads for ``--help``.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from credit_inspector.errors import UsageError

T = TypeVar("T")


def settings_of(function: Callable[..., Any]) -> dict[str, float]:
    """A plug-in's own settings with their defaults: the keyword-only parameters of its function."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY}


def chosen(settings: Mapping[str, float], known: Mapping[str, float]) -> dict[str, float]:
    """Those of the given settings that a plug-in knows."""
    return {name: value for name, value in settings.items() if name in known}


class Registry(Generic[T]):
    """Named members of one kind."""

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self._package = package
        self._members: dict[str, T] = {}
        self._loaded = False

    def add(self, name: str, member: T) -> T:
        """Put a member in.

        Raises:
            UsageError: the name is taken by another member.
        """
        if name in self._members:
            raise UsageError(f"two {self.kind} are named {name!r}", do="rename one of them")
        self._members[name] = member
        return member

    def __getitem__(self, name: str) -> T:
        """The member of that name.

        Raises:
            UsageError: there is none; the message names the nearest ones.
        """
        self._load()
        if name not in self._members:
            near = difflib.get_close_matches(name, self._members, n=3, cutoff=0.4)
            hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(sorted(self._members))}"
            raise UsageError(f"no {self.kind} named {name!r}", do=hint)
        return self._members[name]

    def __contains__(self, name: str) -> bool:
        self._load()
        return name in self._members

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(sorted(self._members))

    def __len__(self) -> int:
        self._load()
        return len(self._members)

    def members(self) -> list[T]:
        """All members, by name."""
        return [self._members[name] for name in self]

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        package = importlib.import_module(self._package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self._package}.{module.name}")
        for point in entry_points(group=f"credit_inspector.{self.kind}"):
            point.load()
