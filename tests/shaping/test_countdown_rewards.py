"""Countdown rewards and the two readers of arithmetic, against Python's own ``eval`` and fractions."""

from __future__ import annotations

import re
import time
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from credit_inspector.algorithm import Algorithm
from credit_inspector.errors import MissingColumn
from credit_inspector.rollout import Rollout
from credit_inspector.shaping import ShapingInputs, wanted
from credit_inspector.shaping.countdown import Task, process_of, task_of, tinyzero_score
from credit_inspector.shaping.expressions import as_python, exact
from credit_inspector.shaping.format import format_of
from credit_inspector.table import TokenTable

NUMBER = st.integers(0, 12).map(str)
WHOLE = st.recursive(
    NUMBER,
    lambda part: st.one_of(
        st.tuples(part, st.sampled_from(["+", "-", "*", "/", " - ", "\n+"]), part).map("".join),
        part.map(lambda text: f"({text})"),
        part.map(lambda text: f"-{text}"),
    ),
    max_leaves=8,
)
SCRAPS = st.text(alphabet="0123456789+-*/(). ", max_size=9)


@given(WHOLE)
def test_exact_is_the_fraction_that_python_gives(text: str) -> None:
    spelled = re.sub(r"\d+", lambda run: f"Fraction({run[0]})", text.replace("\n", " "))
    try:
        theirs = eval(spelled, {"Fraction": Fraction})  # noqa: S307 - digits and signs that this test wrote
    except ZeroDivisionError:
        theirs = None
    assert exact(text) == theirs


@given(SCRAPS)
def test_exact_takes_nothing_that_python_does_not(text: str) -> None:
    ours = exact(text)
    if ours is None:
        return
    spelled = re.sub(r"\d+", lambda run: f"Fraction({int(run[0])})", text.strip())
    assert eval(spelled, {"Fraction": Fraction}) == ours  # noqa: S307 - digits and signs that this test wrote


@pytest.mark.parametrize("text", ["", "1+", "2**3", "7//2", "1.5", "(1", "1)", "2 3", "()", "x", "1_0", "٣", "1/0", "9" * 5000])
def test_exact_refuses(text: str) -> None:
    assert exact(text) is None


# TinyZero's scorer calls eval on this very alphabet; powers are left out, which eval could not finish.
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@given(SCRAPS)
def test_as_python_is_eval(text: str) -> None:
    if "**" in text:
        return
    theirs: Any
    try:
        theirs = eval(text, {"__builtins__": None}, {})  # noqa: S307 - the alphabet has no names
    except Exception:
        theirs = None
    if not isinstance(theirs, int | float | complex):
        theirs = None
    ours = as_python(text)
    assert ours == theirs
    assert type(ours) is type(theirs)


@given(st.integers(-20, 20), st.integers(-20, 20), st.sampled_from(["**", "//"]))
def test_powers_and_floors_are_python_s(left: int, right: int, sign: str) -> None:
    text = f"({left}){sign}({right})"
    try:
        theirs = left**right if sign == "**" else left // right
    except ZeroDivisionError:
        theirs = None
    assert as_python(text) == theirs


@pytest.mark.parametrize(
    "text",
    ["9**9**9", "9**9**9**9", "(" * 5000 + "1" + ")" * 5000, "-" * 4000 + "1", "9" * 5000, "1+" * 2000 + "1", "...", "(1)(2)"],
)
def test_as_python_cannot_hang(text: str) -> None:
    began = time.process_time()
    as_python(text)
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("no marker <answer>3*4*2*1</answer>", 0.0),
        ("Assistant: <answer>3*4*2*1</answer>", 1.0),
        ("<|im_start|>assistant <answer>3*4*2*1</answer>", 1.0),
        ("Assistant: <answer>3*4*2*1</answer>\n", 0.0),
        ("Assistant: <answer>3*4\n*2*1</answer>", 0.0),
        ("Assistant: <answer>hello</answer>", 0.1),
        ("Assistant: <answer>3*4*2*1=24</answer>", 0.1),
        ("Assistant: <answer>1</answer> and <answer>3*4*2*1</answer> words", 1.0),
        ("Assistant: <answer>(3*4*2*1</answer>", 0.1),
        ("Assistant: no tags", 0.0),
        ("Assistant: <answer></answer>", 0.1),
    ],
)
def test_tinyzero_truth_table(text: str, score: float) -> None:
    assert tinyzero_score(text, Task((3, 1, 4, 2), 24)) == score


def test_process_of_an_answer_that_is_near() -> None:
    found = process_of("<answer>(3+1)*(4-2)</answer>", Task((3, 1, 4, 2), 24))
    assert (found.parsable, found.all_used, found.each_once, found.correct) == (True, True, True, False)
    assert found.closeness == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    "extra",
    [
        {"numbers": [1, 2], "target": 3},
        {"nums": (1, 2), "target": 3.0},
        {"ground_truth": {"numbers": [1, 2], "target": 3}},
        {"reward_model": {"style": "rule", "ground_truth": '{"numbers": [1, 2], "target": 3}'}},
    ],
)
def test_the_task_is_found_beside_the_response(extra: dict[str, Any]) -> None:
    assert task_of(extra) == Task((1, 2), 3)


@pytest.mark.parametrize("extra", [{}, {"numbers": "12", "target": 3}, {"numbers": [1], "target": None}, {"ground_truth": "{"}])
def test_no_task_is_none(extra: dict[str, Any]) -> None:
    assert task_of(extra) is None


def step(texts: list[str | None], extras: list[dict[str, Any]]) -> ShapingInputs:
    rollouts = [
        Rollout(sample_id=str(i), response_ids=np.zeros(1, np.int32), reward=0.0, response=text, extra=extra)
        for i, (text, extra) in enumerate(zip(texts, extras, strict=True))
    ]
    table = TokenTable.from_rollouts(1, rollouts)
    rule = Algorithm(name="t", source="t")
    return ShapingInputs(table=table, algorithm=rule, right=np.zeros(len(texts), bool), named="process_reward")


def test_process_reward_leaves_what_it_could_not_judge_without_a_reward() -> None:
    task = {"numbers": [2, 3], "target": 6}
    asked = wanted("process_reward", {}, "1.0")
    assert asked is not None
    found = asked(step(["<answer>2*3</answer>", "<answer>2+2</answer>", "<answer>2*3</answer>", None], [task, task, {}, task]))
    near = float(1 - Fraction(2, 6))
    np.testing.assert_allclose(found.reward, [1.0, near / 3, np.nan, np.nan])
    assert found.note == "1 of 4 responses name no numbers and target"
    with pytest.raises(MissingColumn, match="numbers and target"):
        asked(step(["<answer>2*3</answer>"], [{}]))


def test_an_end_of_sequence_mark_is_nothing_after_the_answer() -> None:
    for end in ("<eos>", "</s>", "<|im_end|>\n", "<|endoftext|><|endoftext|>"):
        assert format_of(f"a <answer>1</answer>{end}").nothing_after
    assert not format_of("<answer>1</answer><b>").nothing_after
