"""Reward components that undo each other."""

from __future__ import annotations

from collections import Counter

from credit_inspector.checks import check
from credit_inspector.checks._parts import named, parts
from credit_inspector.panel import Finding, Severity
from credit_inspector.store import Store

CODE = "reward-components-cancel"


@check(CODE)
def cancelling_components(store: Store) -> list[Finding]:
    """Pairs of components of which one goes down by what the other goes up, inside every group of a step."""
    pairs, spread, steps = measure(store)
    return [
        Finding(
            code=CODE,
            severity=Severity.WARNING,
            sentence=f"Reward components {named(one)} and {named(other)} cancel (correlation -1) in {count} of {steps} steps: "
            f"std inside groups {spread[one, other]:.4g} each, and their sum moves no advantage.",
            how_sure="exact: their sum is constant inside every group",
            why="Each looks alive in the log, and together they say nothing about which response is better.",
            do="Change their weights, or drop one of them.",
            numbers={"steps": count, "correlation": -1.0, "std": spread[one, other]},
        )
        for (one, other), count in pairs.items()
    ]


def measure(store: Store) -> tuple[Counter[tuple[str, str]], dict[tuple[str, str], float], int]:
    """``(in how many steps each pair cancels, their largest deviation inside groups, steps with components)``."""
    pairs: Counter[tuple[str, str]] = Counter()
    spread: dict[tuple[str, str], float] = {}
    steps = 0
    for _, split in parts(store):
        steps += 1
        for pair in split.cancelling():
            pairs[pair] += 1
            spread[pair] = max(spread.get(pair, 0.0), float(split.inside[split.names.index(pair[0])]))
    return pairs, spread, steps
