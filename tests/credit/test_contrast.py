"""Sibling contrast against a count by hand, and where there is nothing to compare."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from credit_inspector.columns import Inputs, compute
from credit_inspector.credit import credits as credit_columns
from credit_inspector.credit.contrast import WINDOW
from credit_inspector.rollout import Rollout
from credit_inspector.table import TokenTable


def contrast(rows: list[list[int]], rewards: list[float], groups: list[str | None]) -> np.ndarray:
    rollouts = [
        Rollout(sample_id=str(i), group_id=groups[i], response_ids=np.array(ids, np.int32), reward=rewards[i])
        for i, ids in enumerate(rows)
    ]
    table = TokenTable.from_rollouts(1, rollouts)
    compute(Inputs(table), ["credit/contrast"], {spec.name: spec for spec in credit_columns.members()})
    return table.values("credit/contrast")


def by_hand(rows: list[list[int]], rewards: list[float], groups: list[str | None]) -> list[float]:
    """The definition, run by run."""
    runs = [[tuple(ids[i : i + WINDOW]) for i in range(len(ids) - WINDOW + 1)] for ids in rows]
    values = []
    for own, ids in enumerate(rows):
        of_run = []
        for run in runs[own]:
            rates = []
            for kind in (1.0, 0.0):
                others = [j for j in range(len(rows)) if j != own and groups[j] == groups[own] and rewards[j] == kind]
                rates.append(np.mean([run in runs[j] for j in others]) if others and groups[own] else np.nan)
            of_run.append(rates[0] - rates[1] if runs[own].count(run) == 1 else np.nan)
        for place in range(len(ids)):
            covering = [of_run[i] for i in range(max(0, place - WINDOW + 1), min(place + 1, len(of_run)))]
            covering = [value for value in covering if not np.isnan(value)]
            values.append(float(np.mean(covering)) if covering else np.nan)
    return values


ROWS = st.lists(
    st.tuples(
        st.lists(st.integers(1, 4), min_size=1, max_size=7), st.sampled_from([0.0, 1.0]), st.sampled_from(["a", "b", None])
    ),
    min_size=2,
    max_size=7,
).filter(lambda rows: len({reward for _, reward, _ in rows}) == 2)


@given(ROWS)
def test_it_is_the_difference_of_two_rates(drawn: list[tuple[list[int], float, str | None]]) -> None:
    rows, rewards, groups = ([one[i] for one in drawn] for i in range(3))
    np.testing.assert_allclose(contrast(rows, rewards, groups), by_hand(rows, rewards, groups), atol=1e-6)


def test_a_run_without_groups_has_none_and_does_not_stop() -> None:
    assert np.isnan(contrast([[1, 2, 3], [1, 2, 4]], [1.0, 0.0], [None, None])).all()
