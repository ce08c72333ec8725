"""Assigned credit: what the whole loss tells each token."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from credit_inspector.algorithm import Algorithm
from credit_inspector.columns import Made
from credit_inspector.credit import credit
from credit_inspector.credit.kept import kept
from credit_inspector.metrics.finite import finite_where_trained
from credit_inspector.table import Floats, TokenTable


@credit(
    "credit/coefficient",
    label="assigned credit",
    needs=("table", "algorithm", "credit/policy_push", "credit/kl_push"),
    after=("logprob/policy", "logprob/old", "logprob/rollout"),
    unit="1 / nat",
    scope="batch",
    family="assigned",
    sign="+ pushed up, − pushed down",
)
def coefficient(table: TokenTable, algorithm: Algorithm, policy: Floats, kl: Floats) -> Made:
    """−dL/dlogπ of the sampled token: the run's loss has the gradient −Σ coefficient · ∇logπ over trained tokens.

    A part without a finite number leaves the token without one: half a coefficient would look like a whole one.
    """
    return finite_where_trained(table, policy + kl, *_notes(table, algorithm, policy, kl))


def _notes(table: TokenTable, algorithm: Algorithm, policy: Floats, kl: Floats) -> Iterator[str]:
    yield algorithm.name
    if algorithm.kl_beta and (only_kl := int(np.count_nonzero((policy == 0) & (kl != 0) & ~np.isnan(kl)))):
        yield f"only the KL term acts on {_tokens(only_kl)}"
    if out := table.n_trained - int(np.count_nonzero(kept(table, algorithm))):
        yield f"the rule leaves {_tokens(out)} out, coefficient 0"
    if algorithm.entropy_bonus:
        yield f"the entropy bonus ({algorithm.entropy_bonus:g}) is not in it: credit/entropy_push"


def _tokens(count: int) -> str:
    return f"{count} {'token' if count == 1 else 'tokens'}"
