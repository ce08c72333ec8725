"""Log-probs that stand beside the wrong token, or where none was stored."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from credit_inspector.checks import check
from credit_inspector.checks._own import read_own
from credit_inspector.checks.recorded_fits import NOISE
from credit_inspector.panel import Finding, Severity
from credit_inspector.shares import percent
from credit_inspector.store import Store
from credit_inspector.table import Floats, TokenTable

SHIFTED, ZERO = "logprobs-shifted", "logprobs-zero-filled"
PAIRS = (
    ("logprob/old", "logprob/recomputed"),
    ("logprob/policy", "logprob/recomputed"),
    ("logprob/rollout", "logprob/old"),
    ("logprob/rollout", "logprob/policy"),
    ("logprob/rollout", "logprob/recomputed"),
    ("logprob/old", "logprob/policy"),
    ("logprob/ref", "logprob/old"),
    ("logprob/ref", "logprob/policy"),
)
"""What is held against what."""
NAMES = tuple(dict.fromkeys(name for pair in PAIRS for name in pair))
SAME = tuple(name for name in NAMES if name != "logprob/ref")
"""Columns of nearly the same weights."""
FEW = 8
TENTH = 0.1
"""Beside the neighbour's token the two must differ by less than this part of what they differ beside their own."""
SEEN = 0.5
"""Nats: a log-prob of exactly 0 beside one below −0.5 is a fill value and no certainty."""


class Shift(NamedTuple):
    """One column of one step that fits another one token further on."""

    step: int
    name: str
    against: str
    by: int
    """+1: each value stands one token too early."""
    own: float
    """Mean |difference| in nats token by token, and after moving."""
    moved: float
    tokens: int


@check(SHIFTED)
def shifted(store: Store) -> list[Finding]:
    """Recorded log-probs that agree with those of the neighbouring token and not with those of their own."""
    found = [shift for step in store.steps for shift in _shifts(store.read_step(step, NAMES)[0])]
    if not found:
        return []
    worst = max(found, key=lambda shift: shift.own)
    place = "early" if worst.by > 0 else "late"
    return [
        Finding(
            code=SHIFTED,
            severity=Severity.ERROR,
            sentence=f"Step {worst.step}: {worst.name} stands one token too {place}: it differs from {worst.against} by "
            f"{worst.own:.3f} nats token by token, and by {worst.moved:.3f} from the neighbour's.",
            how_sure=f"{len({shift.step for shift in found})} of {len(store.steps)} steps; {worst.tokens} tokens",
            why="A token is scored by the logits of the position before it; one off, and every ratio is of two other tokens.",
            do="Take the logits at t − 1 for token t; the first token has those of the prompt's last position.",
            numbers={"own": worst.own, "moved": worst.moved, "by": worst.by, "steps": len({s.step for s in found})},
        )
    ]


@check(ZERO)
def zero_filled(store: Store) -> list[Finding]:
    """Log-probs of exactly 0 where another column of the same token is far from 0: a default where none was known.

    The reference takes no part: a policy may well be certain where its reference is not.
    """
    count: dict[str, int] = {}
    tokens = 0
    for step in store.steps:
        table = read_own(store, step, SAME)
        tokens += table.n_trained
        for name, filled in _zeros(table).items():
            count[name] = count.get(name, 0) + filled
    total = sum(count.values())
    if not total:
        return []
    name = max(count, key=lambda name: count[name])
    return [
        Finding(
            code=ZERO,
            severity=Severity.ERROR,
            sentence=f"{total} log-probs of trained tokens are exactly 0 where another column is below -{SEEN:g}, most in {name}:"
            " they look filled in.",
            how_sure=f"{percent(count[name] / tokens)} of {tokens} trained tokens in {name}; all steps",
            why="A log-prob of 0 says certainty: the ratio of such a token is its whole probability.",
            do="Write a missing log-prob as null or NaN; it is then left out and counted.",
            numbers={"zeros": total, "share": count[name] / tokens},
        )
    ]


def _shifts(table: TokenTable) -> list[Shift]:
    found = []
    for name, against in PAIRS:
        if not (table.has(name) and table.has(against)):
            continue
        one, other = table.trained(table.values(name)), table.trained(table.values(against))
        own = _distance(one, other)
        if own[0] <= NOISE or own[1] < FEW:
            continue
        for by in (1, -1):
            moved = _distance(one, _neighbour(table, other, by))
            if moved[1] >= FEW and moved[0] <= TENTH * own[0]:
                found.append(Shift(table.step, name, against, by, own[0], moved[0], moved[1]))
    return found


def _distance(one: Floats, other: Floats) -> tuple[float, int]:
    """Mean |difference| where both are finite, and how many are."""
    both = np.isfinite(one) & np.isfinite(other)
    return (float(np.abs(one[both] - other[both]).mean()) if both.any() else np.nan), int(np.count_nonzero(both))


def _neighbour(table: TokenTable, values: Floats, by: int) -> Floats:
    """``[T]`` the value of the next (+1) or the previous (−1) token of the same response; NaN where there is none."""
    moved = np.full(table.n_tokens, np.nan)
    inside = table.row[1:] == table.row[:-1]
    if by > 0:
        moved[:-1] = np.where(inside, values[1:], np.nan)
    else:
        moved[1:] = np.where(inside, values[:-1], np.nan)
    return moved


def _zeros(table: TokenTable) -> dict[str, int]:
    there = {name: table.trained(table.values(name)) for name in SAME if table.has(name)}
    if len(there) < 2:
        return {}
    lowest = np.fmin.reduce(list(there.values()))
    return {name: int(np.count_nonzero((values == 0) & (lowest < -SEEN))) for name, values in there.items()}
