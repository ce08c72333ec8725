"""Trained tokens that the policy did not sample."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from credit_inspector.checks import check
from credit_inspector.panel import Finding, Severity, TokenLink
from credit_inspector.shares import percent
from credit_inspector.store import Store
from credit_inspector.table import Provenance, TokenTable

CODE = "unsampled-tokens-trained"
_SAMPLED = ("logprob/rollout", "logprob/old")


@check(CODE)
def unsampled_tokens(store: Store) -> list[Finding]:
    """Whether tokens of tool output are trained: those without a recorded log-prob between others of the response that have one.

    A sampler gives a log-prob for what it sampled and none for what a tool or the environment wrote.
    """
    tokens, trained, links = 0, 0, []
    for step in store.steps:
        table, _ = store.read_step(step, _SAMPLED)
        foreign = _foreign(table)
        tokens += int(np.count_nonzero(foreign))
        trained += table.n_trained
        for row in np.unique(table.row[foreign]):
            start, end = _first_run(foreign[table.slice(row)])
            links.append(TokenLink(step, table.rollouts[row].sample_id, start, end))
    if not tokens:
        return []
    return [
        Finding(
            code=CODE,
            severity=Severity.WARNING,
            sentence=f"{tokens} of {trained} trained tokens ({percent(tokens / trained)}) have no log-prob from the sampler, in "
            f"{len(links)} responses: tool or environment output is trained as if it were the policy's.",
            how_sure="counted; other trained tokens of the same responses have one",
            why="Loss, KL and discount then count tokens that the policy never chose, and earlier actions lose credit.",
            do="Leave tool and environment tokens out of the loss mask.",
            cannot_tell="A sampled token whose log-prob was lost or not finite looks the same.",
            links=tuple(links[:10]),
            numbers={"tokens": tokens, "trained": trained, "responses": len(links)},
        )
    ]


def _foreign(table: TokenTable) -> NDArray[np.bool_]:
    """``[T]`` trained tokens without a recorded log-prob, in responses where other trained tokens have one."""
    for name in _SAMPLED:
        column = table.columns.get(name)
        if column is not None and column.values is not None and column.provenance is Provenance.RECORDED:
            there = np.isfinite(column.values) & table.loss_mask
            partly = table.sum_by_row(there) > 0
            found: NDArray[np.bool_] = table.loss_mask & ~there & partly[table.row]
            return found
    return np.zeros(table.n_tokens, np.bool_)


def _first_run(which: NDArray[np.bool_]) -> tuple[int, int]:
    start = int(np.argmax(which))
    rest = ~which[start:]
    return start, start + int(np.argmax(rest)) if rest.any() else len(which)
