"""Files of JSON-like structures that hypothesis makes up from a reader's own keys: rows and warnings, or one line."""

from __future__ import annotations

import json
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from credit_inspector.trainers import readers
from credit_inspector.trainers._rows import first_rows, kind
from fuzz.test_readers import alarm, contents, copied, read
from places import samples

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["assistant", "user", "tool", "length", "NaN", "[1 2]", "np.float64(0.5)"])
)


@lru_cache
def files(name: str) -> list[tuple[Path, Path, st.SearchStrategy[Any]]]:
    """The samples of a reader that are text: the sample, one of its files, and rows like those in it."""
    texts = [(path, file) for path in samples(name) for file in contents(path) if kind(file) in ("jsonl", "json")]
    found = [(path, file, [dict(row) for row in first_rows(file)]) for path, file in texts]
    return [(path, file, _rows_like(rows)) for path, file, rows in found if rows]


def _rows_like(rows: list[Any]) -> st.SearchStrategy[Any]:
    values = structures(rows)
    return st.one_of([_like(base, values) for base in rows[:4]])


def structures(rows: list[Any]) -> st.SearchStrategy[Any]:
    """Values like those of some rows: their own parts, and containers with their own keys around anything."""
    keys, parts = set[str](), list[Any]()
    rest = list(rows)
    while rest and len(parts) < 200:
        each = rest.pop()
        parts.append(each)
        if isinstance(each, dict):
            keys.update(each)
            rest.extend(each.values())
        elif isinstance(each, list):
            rest.extend(each[:5])
    anything = LEAVES | st.sampled_from(parts)
    names = st.sampled_from(sorted(keys)) | st.text(max_size=3)
    return st.recursive(
        anything, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=5), max_leaves=8
    )


def _like(base: dict[str, Any], values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A row with some of its values exchanged."""
    changed = st.dictionaries(st.sampled_from(list(base)), values, max_size=3)
    return changed.map(lambda change: {**base, **change}) | values


TEXTS = [name for name in readers if files(name)]


@pytest.mark.parametrize("name", TEXTS)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_structure_gives_rows_or_one_line(name: str, data: st.DataObject) -> None:
    sample, file, row = data.draw(st.sampled_from(files(name)))
    made = data.draw(st.lists(row, max_size=3))
    whole = "\n".join(json.dumps(each) for each in made) if kind(file) == "jsonl" else json.dumps(made[0] if made else made)
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(sample, Path(folder) / "x")
        target = copy if copy.is_file() else copy / file.relative_to(sample)
        target.write_text(whole, "utf-8", "surrogatepass")
        try:
            with alarm():
                read(name, copy)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
