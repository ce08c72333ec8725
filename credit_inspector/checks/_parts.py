"""What each reward component gives to the advantages, step by step, where the run's rule lets it be told."""

from __future__ import annotations

from collections.abc import Iterator

from credit_inspector.components import REST, Decomposition, decompose_step
from credit_inspector.errors import MissingColumn
from credit_inspector.store import Store
from credit_inspector.table import TokenTable

REST_IN_WORDS = "what the recorded components do not add up to"


def parts(store: Store) -> Iterator[tuple[TokenTable, Decomposition]]:
    """Steps with recorded reward components, a rule that splits over them, and at least one response with a reward."""
    for step in store.steps:
        table, _ = store.read_step(step, [])
        if table.algorithm is None or not any(rollout.rewards for rollout in table.rollouts):
            continue
        try:
            yield table, decompose_step(table, table.algorithm)
        except MissingColumn:
            # The rule does not split (whitening, a critic): nothing can be said about one component.
            continue


def named(name: str) -> str:
    """A component's name for a sentence."""
    return REST_IN_WORDS if name == REST else repr(name)
