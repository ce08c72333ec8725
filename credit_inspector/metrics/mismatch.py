"""How far the trainer's log-probs stand from those of the engine that sampled, with the same weights.

This is no policy change and is kept apart from the update's ratio (``ratio.py``): kernels, precision, the temperature
or renormalised sampling cause it.
"""

from __future__ import annotations

import numpy as np

from credit_inspector.columns import Made
from credit_inspector.metrics import metric
from credit_inspector.metrics.finite import finite_where_trained
from credit_inspector.metrics.ratio import old_logprob
from credit_inspector.table import TokenTable


@metric(
    "log_ratio/rollout",
    label="trainer − engine",
    needs=("table",),
    after=("logprob/policy", "logprob/old"),
    unit="nats",
    scope="token",
    family="policy",
    sign="+ the trainer finds the token more likely than the engine did, − less likely",
)
def rollout_log_ratio(table: TokenTable) -> Made:
    """Log-prob of the sampled token in the trainer's forward minus that of the engine; 0 where both compute alike."""
    rollout, old = table.values("logprob/rollout"), old_logprob(table, table.algorithm)
    with np.errstate(invalid="ignore"):
        return finite_where_trained(table, old.values - rollout, old.note)
