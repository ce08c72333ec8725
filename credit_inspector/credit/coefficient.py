"""Assigned credit: what the whole loss tells each token."""

from __future__ import annotations

import numpy as np

from credit_inspector.algorithm import Algorithm
from credit_inspector.columns import Made
from credit_inspector.credit import credit
from credit_inspector.metrics.finite import finite_where_trained
from credit_inspector.table import Floats, TokenTable


@credit(
    "credit/coefficient",
    label="assigned credit",
    needs=("table", "algorithm", "credit/policy_push", "credit/kl_push"),
    unit="1 / nat",
    scope="batch",
    family="assigned",
    sign="+ pushed up, − pushed down",
)
def coefficient(table: TokenTable, algorithm: Algorithm, policy: Floats, kl: Floats) -> Made:
    """−dL/dlogπ of the sampled token: the run's loss has the gradient −Σ coefficient · ∇logπ over trained tokens."""
    only_kl = int(np.count_nonzero((policy == 0) & (kl != 0) & ~np.isnan(kl)))
    alone = f"only the KL term acts on {only_kl} tokens" if only_kl else ""
    entropy = f"the entropy bonus ({algorithm.entropy_bonus:g}) is not in it" if algorithm.entropy_bonus else ""
    return finite_where_trained(table, policy + kl, algorithm.name, alone, entropy)
