"""Groups without a signal."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.normalise import dead as without_spread
from credit_inspector.checks import check
from credit_inspector.checks._groups import compares_in_groups
from credit_inspector.outcome import dead_groups
from credit_inspector.panel import Finding, Severity
from credit_inspector.shares import percent
from credit_inspector.store import Store
from credit_inspector.table import Floats, TokenTable

CODE = "dead-groups"
WARN = 0.5
ENOUGH = 8
"""From so many groups on a share is more than chance: with half of all groups dead, 7 of 7 come up once in 128 times."""
_KL = {"k1": "kl/k1", "k2": "kl/k2", "k3": "kl/k3", "low_var_kl": "kl/k3"}


class Count(NamedTuple):
    """Groups over all steps, and what the KL term in the loss does to the tokens of dead ones."""

    best: int
    """All at their step's best reward."""
    lowest: int
    """All at their step's lowest reward."""
    between: int
    groups: int
    beta: float
    """The KL term's largest weight; 0 without the term."""
    term: float
    """β · KL, the mean over dead groups' tokens; NaN where no KL is known."""


@check(CODE)
def dead(store: Store) -> list[Finding]:
    """How many groups have one reward for all: nothing is learned from them but the KL term.

    Silent under rules to which a group's equal rewards do not matter: a critic, a baseline over the batch.
    """
    found = count(store)
    dead_ones = found.best + found.lowest + found.between
    if not dead_ones:
        return []
    part = dead_ones / found.groups
    between = f", {found.between} all in between" if found.between else ""
    acts = "; only KL acts here" if found.beta else ""
    if np.isfinite(found.term):
        acts += f", {found.term:.4g} a token (β {found.beta:g})"
    return [
        Finding(
            code=CODE,
            severity=Severity.WARNING if part > WARN and found.groups >= ENOUGH else Severity.INFO,
            sentence=f"{dead_ones} of {found.groups} groups ({percent(part)}) carry no policy signal: "
            f"{found.best} all-max, {found.lowest} all-min{between}{acts}.",
            how_sure=f"counted over {found.groups} groups, each at every optimizer step that trained on it",
            why="With a group baseline, equal rewards give every advantage 0; only the KL term moves these tokens.",
            do="Sample harder prompts where all are right, easier ones where all are wrong, or drop such groups (DAPO).",
            numbers={
                "share": part,
                "all_best": found.best,
                "all_below": found.lowest + found.between,
                "all_min": found.lowest,
                "groups": found.groups,
                "kl_beta": found.beta,
                "kl_term": found.term,
            },
        )
    ]


def measure(store: Store) -> tuple[int, int, int]:
    """``(all at the best reward, dead below it, groups)`` over all steps."""
    found = count(store)
    return found.best, found.lowest + found.between, found.groups


def count(store: Store) -> Count:
    """Dead groups of all steps whose rule compares inside groups."""
    best = lowest = between = groups = tokens = 0
    beta = pulled = 0.0
    for step in store.steps:
        table, _ = store.read_step(step, list(_KL.values()))
        rule = table.algorithm
        if rule is not None and not _matters(rule):
            continue
        here = dead_groups(table)
        best, lowest, between = best + here.best, lowest + here.lowest, between + here.between
        groups += here.groups
        if rule is not None and rule.kl_beta:
            beta = max(beta, rule.kl_beta)
            terms = rule.kl_beta * _kl_on_dead(table, rule)
            pulled, tokens = pulled + float(terms.sum()), tokens + len(terms)
    return Count(best, lowest, between, groups, beta, pulled / tokens if tokens else np.nan)


def _matters(rule: Algorithm) -> bool:
    """Whether equal rewards in a group mean equal advantages: not where the KL joins the reward before the baseline."""
    return compares_in_groups(rule) and not (rule.kl_in_reward and rule.kl_in_reward_as == "scalar")


def _kl_on_dead(table: TokenTable, rule: Algorithm) -> Floats:
    """The KL of each trained token in dead groups by the rule's estimator, where it is a number."""
    column = _KL.get(rule.kl_estimator, "")
    if not table.has(column):
        return np.zeros(0)
    values = table.values(column)[table.loss_mask & without_spread(table.reward, table.group)[table.row]]
    return values[np.isfinite(values)]
