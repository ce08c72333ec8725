"""The end of a response that is masked out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from credit_inspector.checks import check
from credit_inspector.panel import Finding, Severity, TokenLink
from credit_inspector.store import TOKENIZER, Store
from credit_inspector.table import TokenTable
from credit_inspector.tokens import load_tokenizer, special

CODE = "end-masked-out"


@check(CODE)
def end_masked(store: Store) -> list[Finding]:
    """Whether the token that ends a response is left out of the loss, so that the decision to stop is never trained.

    It happens where padding is found by comparing ids and the padding id is that of the end. Told of a step only if no
    response in it ends its trained part with a special token: then the mask, and not the response, is the reason.
    """
    if not store.has_tokenizer:
        return []
    tokenizer = load_tokenizer(store.folder / TOKENIZER)
    links: list[TokenLink] = []
    responses = 0
    for step in store.steps:
        table, _ = store.read_step(step, [])
        marked = special(tokenizer, table.token_ids)
        last = _last_trained(table)
        trained = last >= 0
        if not trained.any() or marked[last[trained]].any():
            continue
        ended = np.array([rollout.truncated is not True for rollout in table.rollouts], np.bool_)
        rows = np.flatnonzero(trained & ended & _tail_is_special(table, marked, last))
        responses += table.n_rows
        for row in rows:
            place = int(last[row] - table.offsets[row]) + 1
            links.append(TokenLink(step, table.rollouts[row].sample_id, place, place + 1))
    if not links:
        return []
    return [
        Finding(
            code=CODE,
            severity=Severity.WARNING,
            sentence=f"The terminating EOS is masked out in {len(links)} of {responses} responses: stopping is not trained.",
            how_sure="only special tokens follow the last trained one, and no response of these steps ends on a trained one",
            why="The first end token is a sampled action with the response's advantage; only what repeats it is padding. Without "
            "it a model learns what to write and not when to stop.",
            do="Mask by length or up to and with the first end token, not by comparing ids with the padding id.",
            cannot_tell="Whether a response was cut off and filled up with that token, where the run does not say.",
            links=tuple(links[:10]),
            numbers={"responses": len(links), "of": responses},
        )
    ]


def _last_trained(table: TokenTable) -> NDArray[np.int64]:
    """``[N]`` the place in the table of each response's last trained token; −1 without one."""
    trained = np.flatnonzero(table.loss_mask)
    last = np.full(table.n_rows, -1)
    last[table.row[trained]] = trained
    return last


def _tail_is_special(table: TokenTable, marked: NDArray[np.bool_], last: NDArray[np.int64]) -> NDArray[np.bool_]:
    """``[N]`` whether something follows the last trained token, and all of it is special tokens."""
    tail = np.arange(table.n_tokens) > last[table.row]
    found: NDArray[np.bool_] = (table.sum_by_row(tail) > 0) & (table.sum_by_row(tail & ~marked) == 0)
    return found
