"""Spans hold whole tokens: every token of covered text is in exactly one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from credit_inspector.rollout import Rollout
from credit_inspector.segmenters import segmenters
from credit_inspector.spans import SpanTable
from credit_inspector.table import TokenTable

WORDS = st.sampled_from(
    ["Let", " me", " think", ".", "。", "让我", "想", "", " <answer>", "1", "+", "2", "</answer>", "\n", ".5", "!"]
)


def spans_of(rows: list[list[str]]) -> tuple[TokenTable, SpanTable]:
    rollouts = [Rollout(sample_id=str(i), response_ids=np.zeros(len(r), np.int32)) for i, r in enumerate(rows)]
    table = TokenTable.from_rollouts(1, rollouts)
    return table, SpanTable.from_text(table, rows, segmenters["sentence"])


@given(st.lists(st.lists(WORDS, max_size=12), max_size=3))
def test_spans_are_ordered_do_not_overlap_and_stay_in_their_row(rows: list[list[str]]) -> None:
    table, spans = spans_of(rows)
    assert (spans.start < spans.end).all()
    assert (spans.start[1:] >= spans.end[:-1]).all()
    assert (table.offsets[spans.row] <= spans.start).all()
    assert (spans.end <= table.offsets[spans.row + 1]).all()
    assert (table.row[spans.start] == spans.row).all()


@given(st.lists(st.lists(WORDS.filter(bool), min_size=1, max_size=12), min_size=1, max_size=3))
def test_every_token_with_text_is_in_a_span(rows: list[list[str]]) -> None:
    table, spans = spans_of(rows)
    assert (spans.number(table.n_tokens) >= 0).all()


def test_sums_means_and_back() -> None:
    table, spans = spans_of([["Hi", ".", " <answer>", "7", "</answer>"]])
    assert spans.label == ("sentence", "markup", "answer", "markup")
    values = np.array([1, 2, np.nan, 4, np.nan])
    np.testing.assert_array_equal(spans.sums(values), [3, np.nan, 4, np.nan])
    np.testing.assert_array_equal(spans.means(values), [1.5, np.nan, 4, np.nan])
    np.testing.assert_array_equal(spans.to_tokens([1, 2, 3, 4], table.n_tokens), [1, 1, 2, 3, 4])
    assert list(spans.of_row(0)) == [0, 1, 2, 3]
