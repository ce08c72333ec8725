"""Wanted columns → order of work; what cannot be made is missing with its reason."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from credit_inspector.columns import ColumnSpec, Inputs, Made, compute, declare, order
from credit_inspector.errors import MissingColumn
from credit_inspector.registry import Registry
from credit_inspector.table import Provenance


def specs(**columns: tuple[tuple[str, ...], object]) -> dict[str, ColumnSpec]:
    registry: Registry[ColumnSpec] = Registry("test", "credit_inspector.sinks")
    for name, (needs, make) in columns.items():
        declare(registry, name, label=name, needs=needs, unit="", scope="token", family="policy")(make)
    return dict(registry._members)


def test_needs_come_first_and_recorded_columns_are_not_made(make_table) -> None:
    table = make_table([[5, 6]])
    table.add("a", [1, 2], Provenance.RECORDED)

    def never(*_: object) -> None:
        raise AssertionError("a recorded column was made again")

    known = specs(a=((), never), b=(("a",), lambda a: a + 1), c=(("b", "table"), lambda b, table: b * table.n_tokens))
    assert [spec.name for spec in order(["c"], known, table.columns)] == ["b", "c"]
    compute(Inputs(table), ["c"], known)
    assert table.values("c").tolist() == [4, 6]


def test_what_is_missing_says_why_and_so_does_what_needs_it(make_table) -> None:
    table = make_table([[5]])
    known = specs(a=(("models",), lambda models: models), b=(("a",), lambda a: a))
    compute(Inputs(table), ["b"], known)
    assert "--policy" in table.columns["a"].note
    assert "--policy" in table.columns["b"].note
    assert table.columns["b"].values is None


def test_a_note_and_another_provenance_are_kept(make_table) -> None:
    table = make_table([[5]])
    compute(Inputs(table), ["a"], specs(a=((), lambda: Made([1.0], "by hand", Provenance.ESTIMATED))))
    assert (table.columns["a"].note, table.columns["a"].provenance) == ("by hand", Provenance.ESTIMATED)


def test_unknown_names_and_circles_are_refused() -> None:
    with pytest.raises(MissingColumn, match="no column named 'x'"):
        order(["x"], {})
    with pytest.raises(MissingColumn, match="a → b → a"):
        order(["a"], specs(a=(("b",), np.abs), b=(("a",), np.abs)))


def test_what_costs_a_forward_comes_first_only_for_rules_that_read_it(make_table) -> None:
    registry: Registry[ColumnSpec] = Registry("test", "credit_inspector.sinks")
    plain = {"unit": "", "scope": "token", "family": "policy"}
    declare(registry, "costly", label="costly", needs=(), **plain)(lambda: [1.0, 2.0])
    reads = {"costly": lambda rule: rule.gamma < 1}
    declare(registry, "a", label="a", needs=("table",), after_where=reads, **plain)(
        lambda table: [float(table.has("costly"))] * 2
    )
    known = dict(registry._members)
    for gamma, first in ((1.0, 0.0), (0.9, 1.0)):
        table = make_table([[5, 6]])
        rule = replace(table.algorithm, gamma=gamma)
        compute(Inputs(table, algorithm=rule), ["a"], known)
        assert table.values("a").tolist() == [first] * 2
    assert [spec.name for spec in order(["a"], known)] == ["a"], "an unknown rule reads nothing"
