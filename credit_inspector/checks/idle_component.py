"""Reward components that the baseline takes out."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from credit_inspector.checks import check
from credit_inspector.checks._parts import named, parts
from credit_inspector.components import Decomposition
from credit_inspector.panel import Finding, Severity
from credit_inspector.store import Store

CODE = "reward-component-idle"


class Idle(NamedTuple):
    """A component in the steps that have it."""

    steps: int
    mean: float
    across: float
    """Its largest standard deviation over all responses of a step."""


@check(CODE)
def idle_component(store: Store) -> list[Finding]:
    """Components that are the same for all responses to a prompt, in every step: a baseline takes them out whole.

    One whose value differs between prompts looks alive in a trainer's log and does nothing; that is a warning. One that is the
    same everywhere, such as a format reward that all have learned, is only noted.
    """
    return [_finding(name, idle) for name, idle in measure(store).items()]


def measure(store: Store) -> dict[str, Idle]:
    """By name the components that moved no advantage in any step."""
    seen: defaultdict[str, list[Idle]] = defaultdict(list)
    alive: set[str] = set()
    for table, split in parts(store):
        if not _compares(table.group, split):
            continue
        for k, name in enumerate(split.names):
            if not split.idle[k]:
                alive.add(name)
            # A component alone is the reward itself; where that is one number for all, the groups are dead.
            elif len(split.names) > 1 or split.only_across[k]:
                seen[name].append(Idle(1, float(np.nanmean(split.reward[k])), float(split.across[k])))
    return {
        name: Idle(len(each), float(np.mean([one.mean for one in each])), max(one.across for one in each))
        for name, each in seen.items()
        if name not in alive and any(one.mean != 0 or one.across > 0 for one in each)
    }


def _compares(group: np.ndarray, split: Decomposition) -> bool:
    """Whether any two responses are compared with one another."""
    scored = group[np.isfinite(split.reward).all(axis=0)]
    return len(scored) > len(np.unique(scored))


def _finding(name: str, idle: Idle) -> Finding:
    varies = idle.across > 1e-9
    what = (
        f"varies only between prompts (batch std {idle.across:.5g}, 0 inside every group)"
        if varies
        else f"is constant inside every group ({idle.mean:.4g})"
    )
    return Finding(
        code=CODE,
        severity=Severity.WARNING if varies else Severity.INFO,
        sentence=f"Reward component {named(name)} {what}: its contribution to every advantage is 0.",
        how_sure=f"counted over all responses of {idle.steps} steps",
        why="The mean of a group takes out whatever all of its responses share; a log of the batch still shows it.",
        do="Make it depend on the response, or compare over the batch (baseline = batch) if prompts are to compete.",
        numbers={"steps": idle.steps, "mean": idle.mean, "across": idle.across, "inside": 0.0},
    )
