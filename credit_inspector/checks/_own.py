"""Log-probs of the very weights that a step used.

Where none were recorded, a column may come from the checkpoint nearest to a step. That is good to look at, and no evidence
that something is wrong with what was recorded: the weights moved between the two.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from credit_inspector.store import Store
from credit_inspector.table import Provenance, TokenTable

_AT = re.compile(r"(?:step|checkpoint)[-_]0*(\d+)", re.IGNORECASE)
"""The optimizer steps that a checkpoint has taken, from its folder's name in a column's note."""


def read_own(store: Store, step: int, columns: Sequence[str]) -> TokenTable:
    """One step with those of the columns that are recorded, derived, or of a checkpoint that holds the step's weights."""
    table, _ = store.read_step(step, columns)
    table.columns = {name: column for name, column in table.columns.items() if is_own(table, name)}
    return table


def is_own(table: TokenTable, name: str) -> bool:
    """False for a column that a checkpoint gave which is another than, or cannot be told to be, that of the step's weights.

    The policy has the weights that the step updates; every other column those that sampled its responses.
    """
    column = table.columns[name]
    if column.provenance is not Provenance.RECOMPUTED:
        return True
    found = _AT.search(column.note)
    if name == "logprob/ref" or found is None:
        return name == "logprob/ref"
    weights = {table.step - 1} if name == "logprob/policy" else {rollout.policy_version for rollout in table.rollouts}
    return weights == {int(found[1])}
