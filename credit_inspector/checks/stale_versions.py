"""Tokens sampled by older weights than the update starts from."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from credit_inspector.algorithm import Algorithm
from credit_inspector.checks import check
from credit_inspector.panel import Finding, Severity, TokenLink
from credit_inspector.store import Store

CODE = "stale-versions"


class Stale(NamedTuple):
    """One step's staleness beyond the updates that its batch takes anyway."""

    step: int
    mean: float
    largest: float
    mixed: int
    """Responses whose tokens are of several versions."""
    link: TokenLink
    corrected: bool


@check(CODE)
def stale_versions(store: Store) -> list[Finding]:
    """Steps whose samples are older than updates on one batch explain, or whose responses mix versions."""
    found = measure(store)
    if not found:
        return []
    worst = max(found, key=lambda stale: (stale.mean, stale.largest))
    bare = sum(not stale.corrected for stale in found)
    mixed = sum(stale.mixed for stale in found)
    return [
        Finding(
            code=CODE,
            severity=Severity.WARNING if bare else Severity.INFO,
            sentence=f"Step {worst.step}: tokens were sampled {worst.mean:.3g} updates before, {worst.largest:g} at most; "
            f"{mixed} responses of the run hold tokens of several versions.",
            how_sure=f"recorded versions; {len(found)} of {len(store.steps)} steps, {bare} of them under a rule that does not "
            "correct for it",
            why="The update's ratio starts from the trainer's own log-probs and says nothing of this: the behaviour weight does.",
            do="Correct by the behaviour weight π_old / π_rollout (rollout_weight), bound staleness, or drop what is too old.",
            links=tuple(stale.link for stale in found[:10]),
            numbers={"mean": worst.mean, "largest": worst.largest, "mixed": mixed, "steps": len(found), "uncorrected": bare},
        )
    ]


def measure(store: Store) -> list[Stale]:
    """The steps with such samples, from ``staleness``."""
    found = []
    for step in store.steps:
        table, _ = store.read_step(step, ["staleness"])
        if not table.has("staleness"):
            continue
        age = table.trained(table.values("staleness"))
        low, high = table.range_by_row(age)
        mixed = high > low
        rule = table.algorithm
        due = rule.updates_per_batch - 1 if rule else 0
        old = np.isfinite(high) & (high > due)
        if not (mixed.any() or old.any()):
            continue
        row = int(np.nanargmax(np.where(mixed | old, high, np.nan)))
        link = TokenLink(step, table.rollouts[row].sample_id, 0, int(table.lengths[row]))
        found.append(Stale(step, float(np.nanmean(age)), float(np.nanmax(age)), int(mixed.sum()), link, _corrected(rule)))
    return found


def _corrected(rule: Algorithm | None) -> bool:
    return rule is not None and (rule.rollout_weight != "none" or rule.ratio_from == "rollout" or bool(rule.rollout_reject))
