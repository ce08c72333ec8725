"""What is written is what is read; half a file is never met; one writes at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from credit_inspector.errors import StoreError
from credit_inspector.panel import Finding, Severity, TokenLink
from credit_inspector.rollout import Problem, Rollout
from credit_inspector.spans import SpanTable
from credit_inspector.store import Meta, Store
from credit_inspector.table import Column, Provenance, TokenTable

texts = st.text(max_size=8)
floats = st.floats(width=32) | st.just(float("nan"))


@st.composite
def tables(draw: st.DrawFn) -> tuple[TokenTable, SpanTable]:
    lengths = draw(st.lists(st.integers(0, 4), max_size=4))
    rollouts = []
    for i, n in enumerate(lengths):
        with_ids = draw(st.booleans()) or n > 0
        rollouts.append(
            Rollout(
                sample_id=str(i),
                group_id=draw(st.none() | texts),
                prompt=draw(st.none() | texts),
                response=draw(texts),
                prompt_ids=draw(st.none() | st.just(np.array([1, 2], np.int32))),
                response_ids=np.arange(n, dtype=np.int32) if with_ids else None,
                loss_mask=np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)), bool) if with_ids else None,
                reward=draw(st.none() | st.floats(-2, 2)),
                rewards={"f": draw(st.none() | st.floats(-2, 2))},
                truncated=draw(st.none() | st.booleans()),
                policy_version=draw(st.none() | st.integers(0, 9)),
                extra={"gold": draw(texts)},
            )
        )
    table = TokenTable.from_rollouts(7, rollouts, problems=(Problem("kind", "what", "where"),))
    values = draw(st.lists(floats, min_size=table.n_tokens, max_size=table.n_tokens))
    table.add("x", np.array(values, np.float32), Provenance.DERIVED, "by hand")
    table.columns["y"] = Column.missing("no reason given")
    starts = table.offsets[:-1][table.lengths > 0]
    rows = np.flatnonzero(table.lengths > 0)
    spans = SpanTable(row=rows, start=starts, end=starts + 1, label=("a",) * len(rows), text=("t",) * len(rows))
    return table, spans


@given(pair=tables())
def test_a_step_comes_back_to_the_last_bit(tmp_path_factory: pytest.TempPathFactory, pair: tuple[TokenTable, SpanTable]) -> None:
    table, spans = pair
    store = Store(tmp_path_factory.mktemp("store"))
    store.write_step(table, spans)
    back, back_spans = store.read_step(7)
    np.testing.assert_array_equal(back.offsets, table.offsets)
    np.testing.assert_array_equal(back.token_ids, table.token_ids)
    np.testing.assert_array_equal(back.loss_mask, table.loss_mask)
    there = ~np.isnan(table.columns["x"].values)
    np.testing.assert_array_equal(~np.isnan(back.columns["x"].values), there)
    assert back.columns["x"].values[there].tobytes() == table.columns["x"].values[there].tobytes()
    assert (back.columns["x"].provenance, back.columns["x"].note) == (Provenance.DERIVED, "by hand")
    assert back.columns["y"] == table.columns["y"]
    assert back.problems == table.problems
    for a, b in zip(back.rollouts, table.rollouts, strict=True):
        for name in (
            "sample_id",
            "group_id",
            "prompt",
            "response",
            "reward",
            "rewards",
            "truncated",
            "policy_version",
            "extra",
        ):
            assert getattr(a, name) == getattr(b, name)
        assert (a.response_ids is None) == (b.response_ids is None)
        assert (a.prompt_ids is None) == (b.prompt_ids is None)
    np.testing.assert_array_equal(back_spans.start, spans.start)
    assert back_spans.label == spans.label


def test_half_a_surrogate_pair_does_not_stop_the_writing(tmp_path: Path) -> None:
    table = TokenTable.from_rollouts(1, [Rollout(sample_id="a", response="x\ud83dy")])
    Store(tmp_path).write_step(table, None)
    assert Store(tmp_path).read_step(1)[0].rollouts[0].response == "x\ufffdy"


def test_findings_come_back(tmp_path: Path) -> None:
    finding = Finding(
        code="c",
        severity=Severity.WARNING,
        sentence="s",
        how_sure="h",
        why="w",
        do="d",
        links=(TokenLink(1, "a", 0, 2),),
        numbers={"x": 0.5, "y": float("nan")},
    )
    store = Store(tmp_path)
    store.write_findings([finding])
    assert "NaN" not in (tmp_path / "findings.json").read_text()
    (back,) = store.findings()
    assert back.links == finding.links
    assert np.isnan(back.numbers["y"])


def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)

    def full(_: object, where: Path, **__: object) -> None:
        Path(where).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(StoreError, match="No space left"):
        store.write_step(TokenTable.from_rollouts(1, []), None)
    assert store.steps == ()
    assert list((tmp_path / "steps").iterdir()) == []


def test_a_second_writer_is_refused_and_a_reader_is_not(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write_meta(Meta(source="r", trainer="t"), None)
    code = (
        f"from pathlib import Path; from credit_inspector.store import Store\nwith Store(Path({str(tmp_path)!r})).writing(): pass"
    )
    with store.writing():
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=dict(os.environ))
        assert "another analysis is writing" in other.stderr
        assert Store(tmp_path).meta().source == "r"


def test_what_is_no_analysis_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no analysis"):
        Store(tmp_path).meta()
    with pytest.raises(StoreError, match="step 3 is not in"):
        Store(tmp_path).read_step(3)
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "step_000003.parquet").write_bytes(b"torn")
    with pytest.raises(StoreError, match="is not readable"):
        Store(tmp_path).read_step(3)


def test_what_is_missing_is_null_on_disk_and_no_bare_nan(tmp_path: Path) -> None:
    """Other readers of Parquet then leave it out of means, and JSON inside has no NaN that a strict parser refuses."""
    rollout = Rollout(
        sample_id="a",
        response_ids=np.array([1, 2, 3], np.int32),
        rewards={"f": float("nan")},
        extra={"x": [1.0, float("inf")]},
        columns={"logprob/old": np.array([-1, np.nan, -2], np.float32)},
    )
    store = Store(tmp_path)
    store.write_step(TokenTable.from_rollouts(1, [rollout]), None)
    row = pq.read_table(store._file(1)).to_pylist()[0]
    assert row["column:logprob/old"] == [-1, None, -2]
    assert (row["rewards"], row["extra"]) == ('{"f": null}', '{"x": [1.0, null]}')
    assert np.isnan(store.read_step(1)[0].values("logprob/old")[1])
