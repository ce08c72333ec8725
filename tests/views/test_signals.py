"""Which columns a strip shows: those that tell tokens apart, under words that a person reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from credit_inspector.spans import SpanTable
from credit_inspector.store import Meta, Store
from credit_inspector.strips import strip
from credit_inspector.table import Provenance, TokenTable


def shown(tmp_path: Path, table: TokenTable) -> dict[str, str]:
    store = Store(tmp_path)
    store.write_meta(Meta(source="r", trainer="t"), None)
    none = np.zeros(0, np.int64)
    spans = SpanTable(row=none, start=none, end=none, label=(), text=())
    return {signal.name: signal.label for signal in strip(store, table, spans, 0).signals}


def test_a_column_with_one_number_for_all_tokens_is_left_out_but_for_those_people_look_for(make_table, tmp_path: Path) -> None:
    table = make_table([[1, 2], [3, 4]], [1.0, 0.0])
    for name in ("weight", "clip", "kept", "staleness"):
        table.add(name, np.ones(4), Provenance.DERIVED)
    table.add("outside", np.array([0, 0, 0, 1]), Provenance.DERIVED)
    assert sorted(shown(tmp_path, table)) == ["clip", "outside", "weight"]


def test_what_says_the_same_as_another_column_is_left_out(make_table, tmp_path: Path) -> None:
    table = make_table([[1, 2]], [1.0])
    table.add("logprob/policy", np.array([-1, -2]), Provenance.RECORDED)
    table.add("surprisal", np.array([1, 2]), Provenance.DERIVED)
    table.add("advantage", np.array([0.5, -0.5]), Provenance.RECORDED)
    table.add("advantage/recomputed", np.array([0.5, -0.5]), Provenance.DERIVED)
    assert sorted(shown(tmp_path, table)) == ["advantage", "logprob/policy"]
    table.add("advantage/recomputed", np.array([0.7, -0.5]), Provenance.DERIVED)
    assert "advantage/recomputed" in shown(tmp_path, table)


def test_a_column_that_only_a_trainer_writes_has_a_name_too(make_table, tmp_path: Path) -> None:
    table = make_table([[1, 2]], [1.0])
    table.add("logprob/rollout", np.array([-1, -2]), Provenance.RECORDED)
    assert shown(tmp_path, table) == {"logprob/rollout": "log-prob, engine"}
