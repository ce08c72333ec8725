"""Prompt and response in one list come apart at the first trained token, and every value stays with its token."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from credit_inspector.trainers._joined import split


def test_tool_turns_stay_in_the_response_and_padding_goes() -> None:
    ids, mask = [7, 8, 11, 12, 90, 13, 0], [0, 0, 1, 1, 0, 1, 0]
    found, problems = split(
        ids, mask, {"logprob/old": [0, 0, -1, -2, 0, -3, 0], "none": None}, end=6, trained_only=("logprob/old",)
    )
    assert problems == []
    assert found["prompt_ids"].tolist() == [7, 8]
    assert found["response_ids"].tolist() == [11, 12, 90, 13]
    assert found["loss_mask"].tolist() == [True, True, False, True]
    np.testing.assert_equal(found["logprob/old"], np.array([-1, -2, np.nan, -3], np.float32))
    assert "none" not in found


def test_labels_with_minus_100_are_a_mask() -> None:
    found, _ = split([7, 11, 12], [-100, 11, 12])
    assert found["response_ids"].tolist() == [11, 12]
    assert found["loss_mask"].all()


def test_where_the_file_says_where_the_response_begins_it_begins_there() -> None:
    found, _ = split([7, 8, 9, 11], [0, 0, 0, 1], begin=1)
    assert found["response_ids"].tolist() == [8, 9, 11]
    assert found["loss_mask"].tolist() == [False, False, True]
    for impossible in (-1, 9):
        found, _ = split([7, 8, 9, 11], [0, 0, 0, 1], begin=impossible, end=impossible)
        assert found["response_ids"].tolist() == [11]


def test_nothing_trained_leaves_an_empty_response_and_no_mask_a_whole_one() -> None:
    assert split([7, 8], [0, 0])[0]["response_ids"].tolist() == []
    found, _ = split([7, 8], None)
    assert found["response_ids"].tolist() == [7, 8]
    assert "loss_mask" not in found


def test_what_does_not_fit_is_left_out_and_said() -> None:
    found, problems = split([7, 8, 9], [0, 1, 1], {"logprob/old": [-1.0] * 4, "entropy/policy": "high"}, where="r1")
    assert set(found) == {"prompt_ids", "response_ids", "loss_mask"}
    assert [(problem.kind, problem.message, problem.where) for problem in problems] == [
        ("length-mismatch", "3 tokens, 4 log-probs", "r1"),
        ("bad-column", "entropy/policy is no list of numbers, left out", "r1"),
    ]


def test_a_mask_that_does_not_fit_trains_nothing() -> None:
    for mask, kind in (([0, 1], "length-mismatch"), ("on", "bad-column"), ([0, 1, None], "bad-column")):
        found, problems = split([7, 8, 9], mask, begin=1)
        assert not found["loss_mask"].any()
        assert [problem.kind for problem in problems] == [kind]


def test_ids_that_are_none_leave_all_out() -> None:
    found, problems = split([7, -1], [0, 1], {"logprob/old": [0, -1]})
    assert found == {}
    assert problems[0].kind == "bad-ids"


@given(st.lists(st.booleans(), max_size=12), st.integers(0, 12))
def test_it_is_the_loop_over_places(mask: list[bool], padding: int) -> None:
    places = list(range(len(mask) + padding))
    found, _ = split(places, [*mask, *[False] * padding], {"value/old": places}, end=len(mask), trained_only=("value/old",))
    first = next((place for place, trained in enumerate(mask) if trained), len(mask))
    assert found["prompt_ids"].tolist() == places[:first]
    assert found["response_ids"].tolist() == places[first : len(mask)]
    expected = [place if mask[place] else np.nan for place in places[first : len(mask)]]
    np.testing.assert_equal(found["value/old"], np.array(expected, np.float32))
