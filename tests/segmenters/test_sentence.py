"""Sentences in any script; the answer and markup apart; nothing lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from credit_inspector.segmenters import segmenters

cut = segmenters["sentence"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("让我想想。先试试看。Okay.", ["让我想想。", "先试试看。", "Okay."]),
        ("Pi is 3.14. Good!", ["Pi is 3.14.", " Good!"]),
        ("3*5=15. No.", ["3*5=15.", " No."]),
        ('He said "no." Then left', ['He said "no."', " Then left"]),
        ("one\ntwo", ["one\n", "two"]),
    ],
)
def test_sentences(text: str, wanted: list[str]) -> None:
    assert [text[s.start : s.end] for s in cut(text)] == wanted


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("So. <answer>9+(4+6)</answer><eos>", "9+(4+6)"),
        (r"Thus \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        ("24.\n#### 72", " 72"),
        ("<answer>1</answer> no <answer>2</answer>", "2"),
    ],
)
def test_the_last_answer_is_the_answer(text: str, answer: str) -> None:
    assert [text[s.start : s.end] for s in cut(text) if s.label == "answer"] == [answer]


@given(st.text(alphabet="ab.。!? \n<>/answer{}\\boxed#1", max_size=60))
def test_spans_cover_the_text_in_order(text: str) -> None:
    spans = cut(text)
    assert "".join(text[s.start : s.end] for s in spans) == text
    assert all(s.end > s.start for s in spans)
    assert sum(s.label == "answer" for s in spans) <= 1
