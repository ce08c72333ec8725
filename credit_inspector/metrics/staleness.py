"""How old the weights were that sampled a token.

Kept apart from the two ratios: with asynchronous and partial rollouts one response may hold tokens of several versions, and a
ratio against "old" log-probs that the trainer computed itself says nothing about it.
"""

from __future__ import annotations

import numpy as np

from credit_inspector.columns import Made
from credit_inspector.errors import MissingColumn
from credit_inspector.metrics import metric
from credit_inspector.metrics.finite import finite_where_trained
from credit_inspector.table import Floats, TokenTable

VERSIONS = "policy_version"
"""A recorded column of this name holds versions token by token."""


@metric("staleness", label="staleness", needs=("table",), unit="optimizer steps", scope="token", family="policy")
def staleness(table: TokenTable) -> Made:
    """Optimizer steps between the weights that sampled the token and the weights that its update started from; 0 on-policy.

    Step n updates the weights of version n − 1. Where a version equals the step's own number, the run counts steps from 0,
    and step n updates version n.
    """
    version = _versions(table)
    known = version[table.loss_mask & np.isfinite(version)]
    newest = known.max(initial=-np.inf)
    if newest > table.step:
        raise MissingColumn(
            f"step {table.step} has tokens of version {newest:g}, so versions do not count optimizer steps",
            wanted="how many optimizer steps the sampling weights had taken",
        )
    trainer = table.step if newest == table.step else table.step - 1
    source = "versions by token" if table.has(VERSIONS) else "versions by response"
    return finite_where_trained(table, trainer - version, f"the step updates version {trainer}; {source}")


def _versions(table: TokenTable) -> Floats:
    """``[T]``; a token's own version before its response's."""
    by_row = np.array([np.nan if r.policy_version is None else r.policy_version for r in table.rollouts], np.float64)
    versions = table.to_tokens(by_row)
    if table.has(VERSIONS):
        own = table.values(VERSIONS)
        versions = np.where(np.isfinite(own), own, versions)
    if not np.isfinite(versions[table.loss_mask]).any():
        raise MissingColumn("the run does not say which weights sampled its tokens", wanted="policy_version")
    return versions
