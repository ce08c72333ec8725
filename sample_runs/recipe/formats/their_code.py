"""Functions and classes of a trainer, taken out of its source and run without the rest of it.

A trainer's module asks for engines and clusters as it is imported; the few lines that write a file do not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def taken(file: Path, *names: str, **around: Any) -> SimpleNamespace:
    """Run the definitions of these names (``Class.method`` for one method alone) with ``around`` as their module."""
    tree = ast.parse(file.read_text("utf-8"))
    found = {name: node for name, node in _named(tree) if name in names}
    if missing := [name for name in names if name not in found]:
        raise LookupError(f"{file} has no {missing[0]}")
    space: dict[str, Any] = {"__name__": file.stem, **around}
    for name in names:
        module = ast.Module([found[name]], type_ignores=[])
        exec(compile(module, str(file), "exec", dont_inherit=True), space)  # noqa: S102
    return SimpleNamespace(**{name.rpartition(".")[2]: space[name.rpartition(".")[2]] for name in names})


def _named(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node
        if isinstance(node, ast.ClassDef):
            inner = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
            yield from ((f"{node.name}.{each.name}", each) for each in inner)
