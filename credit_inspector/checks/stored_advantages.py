"""Stored advantages that the run's rule does not give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from credit_inspector.checks import check
from credit_inspector.checks._stored import COLUMNS, RECOMPUTED, by_response, by_token, differing, explained
from credit_inspector.checks._walks import REASONS, WALK_COLUMNS, follows
from credit_inspector.panel import Finding, Severity, TokenLink
from credit_inspector.store import Store
from credit_inspector.table import Floats, TokenTable

CODE = "stored-advantages-differ"


class Difference(NamedTuple):
    """What one step's stored advantages say against the rule."""

    link: TokenLink
    """The response that is farthest from the rule."""
    rule: str
    """The run's, in words."""
    message: str
    residual: float
    """The largest distance to the run's rule, or to the nearest known one where the run's is not known."""
    known: bool
    """Whether they follow another known rule."""


@check(CODE)
def stored_advantages(store: Store) -> list[Finding]:
    """Whether the trainer's advantages follow from its rewards by the rule that every figure here is computed with.

    Silent where groups cut by position, or a pass over tokens that goes wrong at masked ones, explain the difference: other
    checks say so.
    """
    steps = list(differences(store))
    if not steps:
        return []
    worst = max(steps, key=lambda step: step.residual)
    return [
        Finding(
            code=CODE,
            severity=Severity.WARNING,
            sentence=f"Step {worst.link.step}: stored advantages differ from {worst.rule} by up to {worst.residual:.4g}; "
            f"{worst.message}.",
            how_sure=f"{len(steps)} of {len(store.steps)} steps differ; rounding of a dump stays below 0.1 %",
            why="Either the rule, the groups or the rewards are not what the trainer had; credit computed here follows the rule.",
            do="Name that rule with --algorithm." if worst.known else "Compare the trainer's normaliser, group size and rewards.",
            cannot_tell="" if worst.known else "Shaping after the recorded reward looks the same as an unknown rule.",
            links=tuple(step.link for step in steps[:10]),
            numbers={"residual": worst.residual, "steps": len(steps)},
        )
    ]


def differences(store: Store) -> Iterator[Difference]:
    """Steps whose stored advantages are not those of the run's rule, or of no known rule where the run's is not known."""
    for step in store.steps:
        table, _ = store.read_step(step, COLUMNS)
        of_response = bool(np.isfinite(by_response(table)).any())
        if not differing(table).any():
            found = _by_response(table) if of_response and not table.has(RECOMPUTED) else None
        elif _broken_walk(store, step):
            found = None
        else:
            found = _by_response(table) if of_response else _by_token(table)
        if found is not None:
            yield found


def _broken_walk(store: Store, step: int) -> bool:
    table, _ = store.read_step(step, [*COLUMNS, *WALK_COLUMNS])
    return any(follows(table, reason) for reason in REASONS)


def _by_response(table: TokenTable) -> Difference | None:
    detection = explained(table)
    if detection.blocks is not None:
        return None
    if table.has(RECOMPUTED):
        known = detection.rule is not None
        message = f"they follow {detection.message}" if known else detection.message
        return _difference(table, message, _distance(table), known=known)
    if detection.rule is None and detection.residual > 0:
        return _difference(table, detection.message, detection.residual, known=False)
    return None


def _by_token(table: TokenTable) -> Difference:
    count, of = int(np.count_nonzero(differing(table))), int(np.count_nonzero(np.isfinite(by_token(table))))
    return _difference(table, f"{count} of {of} trained tokens differ", _distance(table), known=False)


def _difference(table: TokenTable, message: str, residual: float, *, known: bool) -> Difference:
    rule = f"the run's rule {table.algorithm.name}" if table.algorithm else "any known rule"
    return Difference(TokenLink(table.step, table.rollouts[_worst(table)].sample_id), rule, message, residual, known)


def _apart(table: TokenTable) -> Floats:
    """``[T]`` the distance to the run's rule where the two differ, else 0."""
    return np.where(differing(table), np.abs(by_token(table) - table.values(RECOMPUTED)), 0.0)


def _distance(table: TokenTable) -> float:
    return float(_apart(table).max())


def _worst(table: TokenTable) -> int:
    return int(table.row[np.argmax(_apart(table))]) if table.has(RECOMPUTED) else 0
