"""Surprisal: what stands for the entropy where only the sampled token's log-prob is known."""

from __future__ import annotations

import numpy as np

from credit_inspector.columns import Made
from credit_inspector.metrics import metric
from credit_inspector.metrics.finite import finite_where_trained
from credit_inspector.metrics.ratio import policy_logprob
from credit_inspector.table import Floats, TokenTable

ROUNDING = 1e-3
"""Nats above 0 that a log-prob may have by rounding."""


@metric(
    "surprisal",
    label="surprisal −log p",
    needs=("table",),
    after=("logprob/policy", "logprob/old"),
    unit="nats",
    scope="token",
    family="policy",
)
def surprisal(table: TokenTable) -> Made:
    """−log π of the sampled token. Only its average over samples of the policy is the entropy; no single value is.

    Trainers log its mean as entropy where they have no logits (tinker, TRL's PPO).
    """
    known = policy_logprob(table, table.algorithm)
    return finite_where_trained(table, 0.0 - known.values, known.note, *_above_zero(table, known.values))


def _above_zero(table: TokenTable, logprob: Floats) -> tuple[str, str]:
    """No probability is above 1: such numbers are fill values, or no log-probs."""
    above = logprob > ROUNDING
    filled, trained = int(np.count_nonzero(above & ~table.loss_mask)), int(np.count_nonzero(above & table.loss_mask))
    return (
        f"log-prob > 0 at masked positions ({filled}) looks like a fill value" if filled else "",
        f"log-prob > 0 at trained positions ({trained}) is no log-prob" if trained else "",
    )
