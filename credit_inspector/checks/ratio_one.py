"""Ratios of exactly 1, expected and not, and ratios that should be 1."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from credit_inspector.checks import check
from credit_inspector.checks._updates import updates
from credit_inspector.checks.recorded_fits import NOISE
from credit_inspector.panel import Finding, Severity
from credit_inspector.store import Store
from credit_inspector.table import TokenTable

BY_CONSTRUCTION, EXACT, NOT_ONE = "ratio-one-by-construction", "ratio-exactly-one", "ratio-not-one-at-start"
COLUMNS = ("logprob/policy", "logprob/old")


class Update(NamedTuple):
    """What the recorded ratios of one step are."""

    step: int
    number: int
    """Which update of its batch it is at least, from 1; 0 where that is not known."""
    of: int
    """Updates that the rule takes from a batch."""
    tokens: int
    mean: float
    """Mean |log ratio| in nats."""
    largest: float


@check(BY_CONSTRUCTION)
def by_construction(store: Store) -> list[Finding]:
    """With one update per batch the policy is the one that sampled: that is no fault, and clipping does nothing."""
    found = measure(store)
    if not found or not all(update.of == 1 and update.largest == 0 for update in found):
        return []
    tokens = sum(update.tokens for update in found)
    return [
        Finding(
            code=BY_CONSTRUCTION,
            severity=Severity.INFO,
            sentence=f"On-policy: the ratio is exactly 1 on all {tokens} tokens, clipping inactive by construction.",
            how_sure=f"one update per batch by the rule, in {len(found)} of {len(store.steps)} steps with both log-probs",
            why="The policy that an update starts from is the one that sampled, so the bounds of the ratio never cut.",
            do="Nothing. A clip rate above 0 needs several updates per batch.",
            numbers={"tokens": tokens, "steps": len(found)},
        )
    ]


@check(EXACT)
def exactly_one(store: Store) -> list[Finding]:
    """From a batch's second update on the policy has moved; a ratio of exactly 1 everywhere says that it has not."""
    found = [update for update in measure(store) if 1 < update.number <= update.of and update.largest == 0]
    if not found:
        return []
    first = found[0]
    return [
        Finding(
            code=EXACT,
            severity=Severity.WARNING,
            sentence=f"Step {first.step}: ratio exactly 1 at update {first.number} of {first.of}: weights did not change or old "
            "log-probs were recomputed.",
            how_sure=f"all {first.tokens} tokens of the step; {len(found)} such steps",
            why="Without a ratio the clip rule cannot act, and further updates on a batch are not held back.",
            do="Take old log-probs once, before the batch's first update, and look at the learning rate and its schedule.",
            numbers={"update": first.number, "updates": first.of, "steps": len(found)},
        )
    ]


@check(NOT_ONE)
def not_one(store: Store) -> list[Finding]:
    """At a batch's first update policy and old policy are the same weights; their log-probs must agree."""
    found = [update for update in measure(store) if update.number == 1 and update.mean > NOISE]
    if not found:
        return []
    worst = max(found, key=lambda update: update.mean)
    return [
        Finding(
            code=NOT_ONE,
            severity=Severity.WARNING,
            sentence=f"Step {worst.step}: ratio is not 1 at update 1 of {worst.of}: old and current log-probs differ by "
            f"{worst.mean:.3g} nats on average.",
            how_sure=f"{len(found)} steps; noise of precision and kernels is below {NOISE}",
            why="The weights have not moved yet, so the difference is noise or a fault, and clipping acts on it.",
            do="Compute old log-probs by the trainer's own forward, with its temperature, precision and padding.",
            cannot_tell="Old log-probs that are those of an older version of the weights differ in the same way.",
            numbers={"mean_abs_log_ratio": worst.mean, "largest": worst.largest, "steps": len(found)},
        )
    ]


def measure(store: Store) -> list[Update]:
    """Steps with both log-probs recorded, under a rule that says how many updates it takes from a batch."""
    found = (_update(table, number) for table, number in updates(store, COLUMNS))
    return [update for update in found if update is not None]


def _update(table: TokenTable, number: int) -> Update | None:
    rule = table.algorithm
    if rule is None or not all(map(table.has, COLUMNS)):
        return None
    policy, old = (table.values(name)[table.loss_mask] for name in COLUMNS)
    both = np.isfinite(policy) & np.isfinite(old)
    apart = np.abs(policy[both] - old[both])
    if not len(apart):
        return None
    number = 1 if rule.updates_per_batch == 1 and _fresh(table) else number
    return Update(table.step, number, rule.updates_per_batch, len(apart), float(apart.mean()), float(apart.max()))


def _fresh(table: TokenTable) -> bool:
    """Whether nothing says that the responses are older than the weights that the step starts from."""
    return all(r.policy_version is None or r.policy_version >= table.step - 1 for r in table.rollouts)
