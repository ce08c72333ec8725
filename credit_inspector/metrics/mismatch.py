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
from credit_inspector.table import Floats, TokenTable

NOTABLE = 1.05
"""Mean of exp|difference| above which the two are looked at (NeMo-RL's advice on ``token_mult_prob_error``)."""


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
        apart = old.values - rollout
    return finite_where_trained(table, apart, old.note, _looked_at(table, apart))


def _looked_at(table: TokenTable, apart: Floats) -> str:
    """Where the two are further apart than kernels and precision make them: how far, and on which token most."""
    known = np.where(table.loss_mask & np.isfinite(apart), np.abs(apart), -1.0)
    with np.errstate(over="ignore"):
        error = float(np.exp(known[known >= 0]).mean()) if (known >= 0).any() else 1.0
    if error <= NOTABLE:
        return ""
    worst = int(known.argmax())
    where = f"token {table.position[worst]} of {table.rollouts[table.row[worst]].sample_id}"
    far = f"{error:.4g}" if np.isfinite(error) else "beyond any float"
    return f"mean exp|difference| {far}, above {NOTABLE:g}; largest difference {apart[worst]:.3g} at {where}"
