"""The short way through plain rows gives what the long way gives, for every row it takes."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from credit_inspector.rollout import Rollout, Step
from credit_inspector.trainers import _rollouts
from credit_inspector.trainers._rollouts import Columns, read_step
from credit_inspector.trainers._rows import Row

TEXT = st.text(max_size=6) | st.sampled_from(["np.float64(0.5)", "True", "[1 2]", "007", "nan"])
VALUE = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | TEXT | st.lists(st.integers(), max_size=2)
PLAIN = {"q": TEXT | VALUE, "a": TEXT, "r": st.floats() | st.integers() | st.booleans()}
ROW = st.fixed_dictionaries(PLAIN, optional={"id": VALUE, "g": VALUE, "acc": VALUE, "note": VALUE, "gold": VALUE})
MAPPINGS = [
    {"prompt": "q", "response": "a", "reward": "r"},
    {"prompt": "q", "response": "a", "reward": "r", "sample_id": "id"},
    {"prompt": "q", "response": "a", "reward": "r", "sample_id": "id", "group_id": "g"},
]


@settings(max_examples=400, deadline=None)
@given(st.lists(ROW, max_size=6), st.sampled_from(MAPPINGS), st.booleans())
def test_it_is_the_long_way(rows: list[dict[str, Any]], mapping: dict[str, str], numpy_text: bool) -> None:
    columns = Columns(mapping=mapping, is_component=lambda name, _: name == "acc", numpy_text=numpy_text)
    items = [Row(number, row) for number, row in enumerate(rows, 1)]
    quick = read_step(1, items, columns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_rollouts._Quick, "fits", False)
        long = read_step(1, items, columns)
    _same(quick, long)


def _same(one: Step, other: Step) -> None:
    assert one.problems == other.problems
    for row, twin in zip(one.rollouts, other.rollouts, strict=True):
        for name in (each.name for each in fields(Rollout)):
            np.testing.assert_equal(getattr(row, name), getattr(twin, name), err_msg=name)


def test_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Rollout:
        raise AssertionError("the long way")

    monkeypatch.setattr(_rollouts, "rollout", fail)
    columns = Columns(mapping=MAPPINGS[0])
    step = read_step(1, [Row(1, {"q": "q", "a": "a", "r": 1, "gts": "4"}), Row(2, {"q": "q", "a": "b", "r": 0.0})], columns)
    assert [(one.reward, one.group_source, one.extra) for one in step.rollouts] == [
        (1.0, "same prompt", {"gts": "4"}),
        (0.0, "same prompt", {}),
    ]
    assert step.rollouts[0].group_id == step.rollouts[1].group_id
