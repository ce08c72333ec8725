"""Segment operations against loops, and what a table refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from credit_inspector.errors import AlignmentError, MissingColumn
from credit_inspector.rollout import Rollout
from credit_inspector.table import Column, Provenance, TokenTable


def table_of(lengths: list[int]) -> TokenTable:
    rollouts = [Rollout(sample_id=str(i), response_ids=np.arange(n, dtype=np.int32)) for i, n in enumerate(lengths)]
    return TokenTable.from_rollouts(3, rollouts)


@given(st.lists(st.integers(0, 5), max_size=6), st.data())
def test_segments_equal_loops(lengths: list[int], data: st.DataObject) -> None:
    table = table_of(lengths)
    numbers = st.floats(-9, 9) | st.just(float("nan"))
    values = np.array(data.draw(st.lists(numbers, min_size=sum(lengths), max_size=sum(lengths))))
    rows = [values[table.slice(i)] for i in range(len(lengths))]
    assert table.sum_by_row(np.nan_to_num(values)).tolist() == pytest.approx([np.nan_to_num(r).sum() for r in rows])
    wanted = [r[np.isfinite(r)].mean() if np.isfinite(r).any() else np.nan for r in rows]
    np.testing.assert_allclose(table.mean_by_row(values), wanted)
    assert table.to_tokens(np.arange(len(lengths))).tolist() == table.row.tolist()
    assert table.position.tolist() == [k for n in lengths for k in range(n)]


def test_recorded_columns_lie_end_to_end_and_gaps_are_missing() -> None:
    with_column = Rollout(sample_id="a", response_ids=np.array([7, 8], np.int32), columns={"x": np.array([1, 2], np.float32)})
    without = Rollout(sample_id="b", response_ids=np.array([9], np.int32))
    text_only = Rollout(sample_id="c", response="hi")
    table = TokenTable.from_rollouts(1, [with_column, without, text_only])
    np.testing.assert_array_equal(table.values("x"), [1, 2, np.nan])
    assert table.columns["x"].provenance is Provenance.RECORDED
    assert table.lengths.tolist() == [2, 1, 0]


def test_values_that_do_not_fit_are_refused() -> None:
    bad = Rollout(sample_id="a", response_ids=np.zeros(5, np.int32), columns={"lp": np.zeros(6, np.float32)})
    with pytest.raises(AlignmentError, match="5 tokens, 6 values of lp"):
        TokenTable.from_rollouts(1, [bad])
    with pytest.raises(AlignmentError, match="one value per token"):
        table_of([2]).add("x", [1.0], Provenance.DERIVED)


def test_a_missing_column_says_why() -> None:
    table = table_of([1])
    table.columns["kl/k3"] = Column.missing("no reference")
    with pytest.raises(MissingColumn, match="no reference"):
        table.values("kl/k3")
    assert not table.has("kl/k3")


def test_groups_are_numbered_by_first_appearance() -> None:
    rollouts = [Rollout(sample_id=str(i), group_id=g) for i, g in enumerate(["q", "p", None, "q"])]
    assert TokenTable.from_rollouts(1, rollouts).group.tolist() == [0, 1, -1, 0]
