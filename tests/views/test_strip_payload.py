"""What the strip component is given: values bit for bit, text that any host can carry, JSON without NaN."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from credit_inspector.errors import AlignmentError, UsageError
from credit_inspector.panel import Signal, Strip, StripSpan
from credit_inspector.text import whole
from credit_inspector.views.strip import assets, payload

HALF = re.compile("[\ud800-\udfff]")
HOSTILE = ("<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>", "\x00\x1b[31m", "\u2028", "\ud83d", "")


def signal(values: np.ndarray[Any, Any], *, name: str = "credit/delivered", limit: float = 0.1) -> Signal:
    return Signal(
        name=name,
        label="delivered",
        family="assigned",
        unit="nats",
        sign="− pushed down, + pushed up",
        diverging=True,
        doc="how far the update moved this token's logits",
        provenance="derived",
        values=np.asarray(values, np.float32),
        limit=limit,
    )


def strip(pieces: tuple[str, ...] = HOSTILE, **changes: Any) -> Strip:
    n = len(pieces)
    made = Strip(
        id="150/s-7",
        title="Response s-7",
        pieces=pieces,
        clusters=np.arange(n, dtype=np.int32),
        token_ids=np.arange(n, dtype=np.int32),
        kinds=("response",) * n,
        signals=(signal(np.zeros(n)),),
        fill="credit/delivered",
    )
    return replace(made, **changes)


def floats(text: object) -> np.ndarray[Any, Any]:
    return np.frombuffer(base64.b64decode(str(text)), "<f4")


@given(st_numpy.arrays(np.float32, st.integers(0, 40), elements=st.floats(width=32)))
def test_values_arrive_bit_for_bit(values: np.ndarray[Any, Any]) -> None:
    written = payload(strip(("x",) * len(values), signals=(signal(values),)))
    read = json.loads(json.dumps(written, allow_nan=False))
    assert floats(read["signals"][0]["values"]).tobytes() == values.tobytes()


@given(st.lists(st.text(st.characters(), max_size=6), max_size=20))
def test_text_arrives_or_is_marked_as_broken(pieces: list[str]) -> None:
    written = json.dumps(payload(strip(tuple(pieces))), allow_nan=False)
    read = json.loads(written)["pieces"]
    written.encode()
    assert read == [whole(piece) for piece in pieces]
    encodable = [(one, piece) for one, piece in zip(read, pieces, strict=True) if not HALF.search(piece)]
    assert all(one == piece for one, piece in encodable)


def test_half_a_surrogate_pair_is_a_mark_and_a_whole_one_a_character() -> None:
    assert whole("a\ud83d") == "a\ufffd"
    assert whole("\ud83d\ude00") == "😀"


def test_kinds_are_runs() -> None:
    kinds = ("prompt", "prompt", "response", "masked", "response", "end")
    assert payload(strip(kinds=kinds))["kinds"] == [
        ["prompt", 2],
        ["response", 1],
        ["masked", 1],
        ["response", 1],
        ["end", 1],
    ]


@pytest.mark.parametrize("limit", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_limit_that_is_no_scale_is_left_to_the_component(limit: float) -> None:
    values = np.zeros(len(HOSTILE))
    written: Any = payload(strip(signals=(signal(values, limit=limit),)))
    assert written["signals"][0]["limit"] is None


def test_spans_are_in_reading_order() -> None:
    written: Any = payload(strip(spans=(StripSpan(3, 5, "earned", ""), StripSpan(0, 2, "unearned", "paid +0.31"))))
    assert [span["label"] for span in written["spans"]] == ["unearned", "earned"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kinds": ("response",)}, "kinds has 1 values for 6 tokens"),
        ({"signals": (signal(np.zeros(5)),)}, "credit/delivered has 5 values for 6 tokens"),
        ({"clusters": np.array([0, 1, 2, 3, 4, 6], np.int32)}, "starts after its own token"),
        ({"spans": (StripSpan(0, 3, "a", ""), StripSpan(2, 4, "b", ""))}, "without overlap"),
        ({"spans": (StripSpan(2, 9, "a", ""),)}, "within 6 tokens"),
    ],
)
def test_what_does_not_belong_to_the_tokens_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(AlignmentError, match=words):
        payload(strip(**changes))


def test_an_unknown_first_signal_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"no signal kl/k3 .* credit/delivered"):
        payload(strip(underline="kl/k3"))


def test_the_component_is_many_lines_without_an_end_of_script() -> None:
    component = assets()
    assert "export function mount(root, payload" in component.js
    assert "</script" not in component.js
    assert "innerHTML" not in component.js
    assert component.js.count("\n") > 100
    assert component.css.count("\n") > 100
