"""The importance ratio between the policy that an update starts from and the one that sampled.

With one update per batch the two are the same weights: their log-probs are equal, whoever recorded which, and the
ratio is 1 by construction. Trainers rely on this too (TRL 1.16.0 then leaves ``old_per_token_logps`` out), so a
missing log-prob is there taken from the other one, and said; with more updates it is missing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from credit_inspector.algorithm import Algorithm
from credit_inspector.columns import Made
from credit_inspector.errors import MissingColumn
from credit_inspector.metrics import metric
from credit_inspector.metrics.finite import finite_where_trained
from credit_inspector.table import Floats, TokenTable

_POLICY, _OLD, _ENGINE = "logprob/policy", "logprob/old", "logprob/rollout"


class Known(NamedTuple):
    """``[T]`` values and what had to be assumed for them."""

    values: Floats
    note: str = ""


def policy_logprob(table: TokenTable, algorithm: Algorithm | None) -> Known:
    """Log-probs under the weights that the update started from.

    Raises:
        MissingColumn: nobody recorded them and they do not follow from the others.
    """
    return _either(table, algorithm, _POLICY, _OLD)


def old_logprob(table: TokenTable, algorithm: Algorithm | None) -> Known:
    """Log-probs under the weights that sampled, by the trainer's own forward.

    Raises:
        MissingColumn: nobody recorded them and they do not follow from the others.
    """
    return _either(table, algorithm, _OLD, _POLICY)


def reference_logprob(table: TokenTable, algorithm: Algorithm | None) -> Known:
    """Log-probs under the policy that the rule's ratio refers to: the trainer's own before the update, or the sampling
    engine's where the rule says so (``Algorithm.ratio_from``: prime-rl, verl's bypass mode).

    Raises:
        MissingColumn: nobody recorded them and they do not follow from the others.
    """
    if not _from_engine(algorithm):
        return old_logprob(table, algorithm)
    if not table.has(_ENGINE):
        name = algorithm.name if algorithm else ""
        raise MissingColumn(f"{_ENGINE} is not there, and {name} takes the ratio to the sampling engine's log-probs")
    return Known(table.values(_ENGINE), "ratio to the sampling engine's log-probs")


def update_log_ratio(table: TokenTable, algorithm: Algorithm | None) -> Known:
    """The log-ratio of every token: log π − log π_old, or to the sampling engine where the rule says so.

    Raises:
        MissingColumn: one of the two is missing and the rule does not make them equal.
    """
    if _from_engine(algorithm):
        policy, engine = policy_logprob(table, algorithm), reference_logprob(table, algorithm)
        with np.errstate(invalid="ignore"):
            return Known(policy.values - engine.values, "; ".join(note for note in (engine.note, policy.note) if note))
    if table.has(_POLICY) and table.has(_OLD):
        with np.errstate(invalid="ignore"):
            difference = table.values(_POLICY) - table.values(_OLD)
        return Known(difference, _on_policy(table, algorithm, difference))
    if not _one_update(algorithm):
        raise _missing(table, algorithm, _OLD if table.has(_POLICY) else _POLICY)
    return Known(np.zeros(table.n_tokens), f"ratio 1 by construction: {_rule(algorithm)}, so the policy is the one that sampled")


@metric(
    "log_ratio",
    label="log ratio",
    needs=("table",),
    after=("logprob/policy", "logprob/old"),
    unit="nats",
    scope="token",
    family="policy",
    sign="+ more likely than when it was sampled, − less likely",
)
def log_ratio(table: TokenTable) -> Made:
    """Log-ratio log π − log π_old of the sampled token: how far the updates on this batch have moved it so far."""
    known = update_log_ratio(table, table.algorithm)
    return finite_where_trained(table, known.values, known.note)


@metric(
    "ratio",
    label="ratio",
    needs=("table",),
    after=("logprob/policy", "logprob/old"),
    unit="1",
    scope="token",
    family="policy",
)
def ratio(table: TokenTable) -> Made:
    """Importance ratio π/π_old of the sampled token, unclipped; 1 at a batch's first update (Schulman et al. 2017)."""
    known = update_log_ratio(table, table.algorithm)
    # A log-prob of minus infinity is a missing one (a sampler's cut-off), and no ratio of 0.
    with np.errstate(over="ignore"):
        values = np.where(np.isfinite(known.values), np.exp(known.values), np.nan)
    return finite_where_trained(table, values, known.note)


def _either(table: TokenTable, algorithm: Algorithm | None, wanted: str, other: str) -> Known:
    if table.has(wanted):
        return Known(table.values(wanted))
    if _one_update(algorithm) and table.has(other):
        return Known(table.values(other), f"{wanted} is {other}: {_rule(algorithm)}, so they are equal")
    raise _missing(table, algorithm, wanted)


def _rule(algorithm: Algorithm | None) -> str:
    return f"one update per batch ({algorithm.name}, {algorithm.source})" if algorithm else ""


def _from_engine(algorithm: Algorithm | None) -> bool:
    return algorithm is not None and algorithm.ratio_from == "rollout"


def _one_update(algorithm: Algorithm | None) -> bool:
    return algorithm is not None and algorithm.updates_per_batch == 1


def _on_policy(table: TokenTable, algorithm: Algorithm | None, difference: Floats) -> str:
    if _one_update(algorithm) and not difference[table.loss_mask].any():
        return "on-policy step: one update per batch, so the ratio is 1 and clipping cannot act"
    return ""


def _missing(table: TokenTable, algorithm: Algorithm | None, name: str) -> MissingColumn:
    column = table.columns.get(name)
    why = f" ({column.note})" if column is not None and column.note else ""
    if algorithm is None:
        rule = "the run does not say how many updates it takes per batch"
    else:
        rule = f"with {algorithm.updates_per_batch} updates per batch the ratio is not 1 by construction"
    return MissingColumn(f"{name} is not there{why}, and {rule}")
