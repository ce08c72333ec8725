"""Credit that stops at a masked span."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from credit_inspector.advantages import estimators
from credit_inspector.checks import check
from credit_inspector.checks._stored import COLUMNS, by_token, differing, unlike
from credit_inspector.checks._walks import WALK_COLUMNS, follows
from credit_inspector.errors import CreditInspectorError
from credit_inspector.panel import Finding, Severity, TokenLink
from credit_inspector.store import Store
from credit_inspector.table import TokenTable

CODE = "credit-stops-at-mask"


@check(CODE)
def credit_stops(store: Store) -> list[Finding]:
    """Whether what comes after tool output reaches the actions before it.

    A backward pass that sets its running return to 0 at each masked token takes the span for the end of an episode. Found
    in stored advantages, and in a rule that says so itself (``observation = reset``).
    """
    cut, trained, links = 0, 0, []
    for step in store.steps:
        table, _ = store.read_step(step, [*COLUMNS, *WALK_COLUMNS])
        lost = _lost(table)
        cut += int(np.count_nonzero(lost))
        trained += table.n_trained
        links += [TokenLink(step, table.rollouts[row].sample_id, *_range(table, row, lost)) for row in np.unique(table.row[lost])]
    if not cut:
        return []
    return [
        Finding(
            code=CODE,
            severity=Severity.WARNING,
            sentence=f"Credit stops at a masked span: {cut} of {trained} trained tokens get nothing from what comes after it.",
            how_sure="the advantages follow exactly from a return that is set to 0 at each masked token",
            why="Tool output is not the end of an episode: the call that led to the reward learns nothing from it.",
            do="Carry the running return over masked tokens unchanged.",
            links=tuple(links[:10]),
            numbers={"tokens": cut, "trained": trained},
        )
    ]


def _lost(table: TokenTable) -> NDArray[np.bool_]:
    """``[T]`` trained tokens whose advantage lacks what comes after a masked span."""
    rule = table.algorithm
    if follows(table, "stops-at-mask"):
        return differing(table)
    if rule is None or rule.observation != "reset" or table.loss_mask.all() or differing(table).any():
        return np.zeros(table.n_tokens, np.bool_)
    try:
        stops, carries = (
            table.trained(estimators[rule.advantage](table, replace(rule, observation=way))) for way in ("reset", "skip")
        )
    except CreditInspectorError:
        # Advantages that cannot be computed are shown as missing with the reason; nothing can be compared here.
        return np.zeros(table.n_tokens, np.bool_)
    stored = by_token(table)
    return unlike(np.where(np.isfinite(stored), stored, stops), carries)


def _range(table: TokenTable, row: int, which: NDArray[np.bool_]) -> tuple[int, int]:
    places = np.flatnonzero(which[table.slice(row)])
    return int(places[0]), int(places[-1]) + 1
