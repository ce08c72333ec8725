"""Which update of its batch a step is."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from credit_inspector.checks._own import read_own
from credit_inspector.store import Store
from credit_inspector.table import TokenTable


def updates(store: Store, columns: tuple[str, ...]) -> Iterator[tuple[TokenTable, int]]:
    """Each step with the number of its update, from 1; 0 where it cannot be told.

    The steps of one batch follow on one another and have responses sampled by the same weights, or the same responses where
    no weights are named: such a step is at least the second. A first update is known as such where its responses were sampled
    by the weights that it starts from. Other responses than the step before had are no sign of it: they may be the next part
    of the batch.
    """
    before: TokenTable | None = None
    number = 0
    for step in store.steps:
        table = read_own(store, step, columns)
        number = _number(table, before, number)
        yield table, number
        before = table


def _number(table: TokenTable, before: TokenTable | None, former: int) -> int:
    if before is not None and table.step == before.step + 1 and _one_batch(before, table):
        return max(former, 1) + 1
    versions = _versions(table)
    # Runs count their steps from 1 or from 0: step n then starts from version n - 1 or n.
    fresh = versions <= {table.step - 1, table.step} and len(versions) == 1
    return 1 if fresh else 0


def _one_batch(one: TokenTable, other: TokenTable) -> bool:
    versions = _versions(one), _versions(other)
    if None not in versions[0] | versions[1]:
        return versions[0] == versions[1]
    return np.array_equal(one.token_ids, other.token_ids) and np.array_equal(one.offsets, other.offsets)


def _versions(table: TokenTable) -> set[int | None]:
    return {rollout.policy_version for rollout in table.rollouts}
