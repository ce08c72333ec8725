"""Backward elimination on texts whose dependence is planted: what a set of missing spans costs the answer is given."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from credit_inspector.scoring import elimination
from credit_inspector.scoring.occlusion import Removal
from credit_inspector.spans import SpanTable
from credit_inspector.table import TokenTable

Cost = Callable[[set[int]], float]


@pytest.fixture
def eliminate(monkeypatch: pytest.MonkeyPatch, make_table) -> Callable[..., list[bool]]:
    """Spans of two tokens each and an answer of one; ``cost`` is the answer's drop, ``to`` what a span's tokens lose."""

    def run(n: int, cost: Cost, to: dict[int, Cost] | None = None) -> list[bool]:
        table: TokenTable = make_table([list(range(2 * n + 1))], [1.0])
        spans = SpanTable(
            row=np.zeros(n + 1, np.int64),
            start=np.arange(n + 1) * 2,
            end=np.append(np.arange(1, n + 1) * 2, 2 * n + 1),
            label=("sentence",) * n + ("answer",),
            text=("a.",) * (n + 1),
        )

        def removals(_models, _table, _spans, sets, _role):
            found = []
            for members in sets:
                gone = set(members)
                drops = np.zeros(2 * n + 1, np.float32)
                drops[-1] = cost(gone)
                for span, lost in (to or {}).items():
                    drops[2 * span + 1] = lost(gone)
                first = 2 * min(members)
                found.append(Removal(0, tuple(sorted(members)), first, drops[first:]))
            return found

        class Runnable:
            @staticmethod
            def lines(_role, _table):
                return [0], []

        monkeypatch.setattr(elimination, "removals", removals)
        monkeypatch.setattr(elimination, "saliency", lambda *_: np.ones(table.n_tokens, np.float32))
        return elimination.eliminate(Runnable(), table, spans).spared[:n].tolist()

    return run


def test_filler_goes_and_work_stays(eliminate) -> None:
    assert eliminate(3, lambda gone: 9.0 * (1 in gone)) == [True, False, True]


def test_the_first_of_two_copies_is_the_one_that_earned(eliminate) -> None:
    assert eliminate(3, lambda gone: 9.0 * ({0, 2} <= gone)) == [False, True, True]


def test_a_step_and_its_retraction_go_together(eliminate) -> None:
    half_a_retraction = lambda gone: 8.0 * (len({0, 1} & gone) == 1)  # noqa: E731
    assert eliminate(3, lambda gone: half_a_retraction(gone) + 9.0 * (2 in gone)) == [True, True, False]


def test_a_plan_stays_for_the_work_that_it_informs(eliminate) -> None:
    informed = {1: lambda gone: 2.0 * (0 in gone)}
    assert eliminate(2, lambda gone: 9.0 * (1 in gone), informed) == [False, False]


def test_filler_that_only_brings_on_more_filler_goes(eliminate) -> None:
    chain = {1: lambda gone: 14.0 * (0 in gone)}
    assert eliminate(3, lambda gone: 9.0 * (2 in gone), chain) == [True, True, False]


def test_a_loss_of_half_a_bit_is_none(eliminate) -> None:
    assert eliminate(1, lambda gone: 0.3 * (0 in gone)) == [True]
    assert eliminate(1, lambda gone: 0.4 * (0 in gone)) == [False]
