"""Log-probs of the sampled tokens, computed again from the checkpoints.

A log-prob that the trainer recorded stands as it is; these columns are made only where there is none. The exception
is ``logprob/recomputed``, which is made to be held against the recorded one: where the two differ, the checkpoint,
the temperature, the tokens or the alignment is not what the trainer had.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from credit_inspector.columns import Made
from credit_inspector.metrics import metric
from credit_inspector.metrics.finite import finite_where_trained
from credit_inspector.table import Provenance, TokenTable

if TYPE_CHECKING:
    from credit_inspector.scoring import Models

_logprob = partial(
    metric,
    needs=("table", "models"),
    unit="nats",
    scope="token",
    family="policy",
    provenance=Provenance.RECOMPUTED,
    cost="one forward",
)


@_logprob("logprob/policy", label="log-prob")
def policy(table: TokenTable, models: Models) -> Made:
    """Log-prob of the sampled token under the policy that was trained on it, at the sampling temperature."""
    return _by(table, models, "policy")


@_logprob("logprob/old", label="log-prob, old")
def old(table: TokenTable, models: Models) -> Made:
    """Log-prob of the sampled token under the policy that importance ratios refer to."""
    return _by(table, models, "old")


@_logprob("logprob/ref", label="log-prob, reference")
def ref(table: TokenTable, models: Models) -> Made:
    """Log-prob of the sampled token under the reference that the KL term holds on to."""
    return _by(table, models, "ref")


@_logprob("logprob/after", label="log-prob, after")
def after(table: TokenTable, models: Models) -> Made:
    """Log-prob of the sampled token under a policy some optimizer steps later."""
    return _by(table, models, "after")


@_logprob("logprob/recomputed", label="log-prob, recomputed")
def recomputed(table: TokenTable, models: Models) -> Made:
    """Log-prob of the sampled token under the policy checkpoint, to be held against the recorded one."""
    return _by(table, models, "policy")


def _by(table: TokenTable, models: Models, role: str) -> Made:
    values = models.scores(role, table).logprob
    return finite_where_trained(table, values.astype("float64"), models.note(role), models.temperature_note(table))
