"""Numbers, lists and texts as trainers spell them; what is none is missing and never 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from credit_inspector.trainers._values import (
    Number,
    as_mapping,
    cut_off,
    flags,
    floats,
    from_numpy_text,
    integers,
    number,
    text,
    whole,
)

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (0.5, Number(0.5, "finite")),
        (True, Number(1.0, "finite")),
        (np.float32(2), Number(2.0, "finite")),
        ("0.5", Number(0.5, "finite", True)),
        ("False", Number(0.0, "finite", True)),
        ("np.float64(0.5)", Number(0.5, "finite", True)),
        ("array(0.5, dtype=float32)", Number(0.5, "finite", True)),
        ([0.5], Number(0.5, "finite")),
        (None, Number(None, "missing")),
        (NAN, Number(None, "missing")),
        ("NaN", Number(None, "missing")),
        ("", Number(None, "missing")),
        (-INF, Number(None, "infinite")),
        ("-inf", Number(None, "infinite")),
        (10**400, Number(None, "infinite")),
        ("high", Number(None, "unreadable")),
        ("1_000", Number(None, "unreadable")),
        ([1, 2], Number(None, "unreadable")),
        ({}, Number(None, "unreadable")),
    ],
)
def test_number(value: Any, read: Number) -> None:
    assert number(value) == read


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ("3", 3),
        ("0.5", 0.5),
        ("True", True),
        ("[1 2]", [1, 2]),
        ("[ 0.1 -2.]", [0.1, -2.0]),
        ("[[1, 2], [3]]", [[1, 2], [3]]),
        ("np.float32(2.0)", 2.0),
    ],
)
def test_numpy_text(value: str, read: Any) -> None:
    assert from_numpy_text(value) == read


@pytest.mark.parametrize("value", ["007", "hello", "[a b]", "[1 2 ... 3]", "1" * 40, "[see above]", "١"])
def test_other_text_stays_text(value: str) -> None:
    assert from_numpy_text(value) is value


def test_floats_counts_what_is_missing_g02() -> None:
    read = floats([-1.0, NAN, None, "NaN", -INF])
    assert read is not None
    assert np.isfinite(read.values).tolist() == [True, False, False, False, False]
    assert (read.infinite, read.unreadable) == (1, 0)
    assert np.nanmean(read.values) == -1.0


def test_floats_of_odd_lists() -> None:
    mixed = floats([1, "high", "0.5"])
    assert mixed is not None
    assert (mixed.values[0], mixed.values[2], mixed.unreadable) == (1.0, 0.5, 1)
    beyond = floats([1e300])
    assert beyond is not None
    assert (beyond.infinite, bool(np.isnan(beyond.values[0]))) == (1, True)
    assert floats("[1 2]") is not None
    assert floats([[1, 2], [3, 4]]) is None
    assert floats(["a", "b"]) is None
    assert floats(3) is None


def test_integers_are_token_ids_or_nothing() -> None:
    assert integers([1, 2.0]) is not None
    assert integers(np.array([1, 2])) is not None
    for bad in ([1, None], [1.5], [-1], [2**40], ["1"], [True], [[1]], 5):
        assert integers(bad) is None


def test_flags_of_every_spelling() -> None:
    for spelling in ([True, False, True], [1, 0, 1], [11, -100, 12], [1.0, 0.0, 0.5], "[1 0 1]", np.array([1, 0, 1])):
        found = flags(spelling)
        assert found is not None
        assert found.tolist() == [True, False, True]
    assert flags([1, None]) is None


def test_cut_off() -> None:
    assert cut_off("length") is True
    assert cut_off("stop") is False
    assert cut_off("True") is True
    assert cut_off(0) is False
    assert cut_off("tool failed") is None
    assert cut_off(None) is None


def test_text_of_chats_g08() -> None:
    assert text([{"role": "user", "content": "hi"}]) == "hi"
    assert text(np.array([{"role": "user", "content": "hi"}], dtype=object)) == "hi"
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    assert text(chat) == "system\nbe brief\nuser\nhi"
    assert text([{"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}]) == '[{"name": "f"}]'
    assert text(None) is None


def test_whole_and_mapping() -> None:
    assert [whole(value) for value in (3, "3", 3.0, 3.5, None, "x")] == [3, 3, 3, None, None, None]
    assert as_mapping('{"a": 1}') == {"a": 1}
    assert as_mapping("{broken") is None
    assert as_mapping([1]) is None


def test_what_is_nested_without_end_is_no_text() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    for value in (deep, [deep, deep], {"content": deep}, {"tool_calls": deep}, [{"role": "user", "content": [deep]}]):
        assert (text(value) or "").strip() in ("", "user")
