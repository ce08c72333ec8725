"""One token that owns the KL."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from credit_inspector.algorithms.kl import kl_value
from credit_inspector.checks import check
from credit_inspector.errors import MissingColumn
from credit_inspector.metrics.kl import reference_distance
from credit_inspector.panel import Finding, Severity, TokenLink
from credit_inspector.shares import percent
from credit_inspector.store import Store
from credit_inspector.table import Floats, Provenance, TokenTable

CODE = "kl-owned-by-one-token"
HELD = 10.0
"""Nats of k3 from which on trainers hold a token's value (verl's ``low_var_kl``, OpenRLHF, NeMo-RL)."""
OWNED, WARN = 0.5, 0.9
"""Share of a step's KL from which on one token is told, and from which on the others hardly count."""


class Owner(NamedTuple):
    """The token with the largest k3 of a step."""

    link: TokenLink
    value: float
    """Its k3, recomputed in float64."""
    share: float
    """Of the step's sum."""
    median: float
    stored_infinite: int
    """How many stored values of the step are infinite where a number follows from the log-probs."""


@check(CODE)
def one_token(store: Store) -> list[Finding]:
    """Steps where a single token has more than half of the KL to the reference, and more than trainers let a token have.

    k3 is exp(log π_ref − log π) and so on: one token of which the policy is nearly sure it should not be there, and which
    was sampled all the same, outweighs all others, and beyond 88.7 nats it is infinite in float32.
    """
    owners = sorted(measure(store), key=lambda owner: -owner.value)
    if not owners:
        return []
    worst = owners[0]
    stored = sum(owner.stored_infinite for owner in owners)
    values = f"inf stored, recomputed {worst.value:.4g}" if worst.stored_infinite else f"k3 {worst.value:.4g}"
    place = f"token {worst.link.start} of {worst.link.sample_id}"
    return [
        Finding(
            code=CODE,
            severity=Severity.WARNING if worst.share > WARN or stored else Severity.INFO,
            sentence=f"Step {worst.link.step}: {place} has {percent(worst.share)} of the KL to the reference "
            f"({values}; the median token has {worst.median:.3g}).",
            how_sure=f"{len(owners)} of {len(store.steps)} steps; k3 recomputed from both log-probs in float64",
            why="A mean of KL over the step then reports on this token alone, and so does its gradient.",
            do="Look at the token; hold the log-ratio or the value (kl_input_clamp, kl_output_clamp), or use k1 or k2 as metric.",
            links=tuple(owner.link for owner in owners[:10]),
            numbers={
                "value": worst.value,
                "share": worst.share,
                "median": worst.median,
                "steps": len(owners),
                "stored_infinite": stored,
            },
        )
    ]


def measure(store: Store) -> list[Owner]:
    """One for each step in which one token has more than half of the sum of k3."""
    found = []
    for step in store.steps:
        table, _ = store.read_step(step, ["logprob/policy", "logprob/old", "logprob/ref", "kl/k3"])
        if (owner := _owner(table)) is not None:
            found.append(owner)
    return found


def _owner(table: TokenTable) -> Owner | None:
    try:
        distance = table.trained(reference_distance(table).values)
    except MissingColumn:
        return None
    known = np.isfinite(distance)
    if not known.any():
        return None
    # Beyond 709 nats the value leaves float64 as well; it is held there, which changes no conclusion.
    k3 = np.where(known, kl_value("k3", np.maximum(np.where(known, distance, 0.0), -709.0)), np.nan)
    place = int(np.nanargmax(k3))
    value, total = float(k3[place]), float(np.nansum(k3))
    if value <= HELD or value / total <= OWNED:
        return None
    row, at = int(table.row[place]), int(table.position[place])
    link = TokenLink(table.step, table.rollouts[row].sample_id, at, at + 1)
    infinite = int(np.count_nonzero(np.isinf(_stored(table)) & known))
    return Owner(link, value, value / total, float(np.nanmedian(k3)), infinite)


def _stored(table: TokenTable) -> Floats:
    """``[T]`` k3 as the trainer wrote it."""
    column = table.columns.get("kl/k3")
    if column is None or column.values is None or column.provenance is not Provenance.RECORDED:
        return np.full(table.n_tokens, np.nan)
    return column.values.astype(np.float64)
