"""Steps in which every response was cut off at the length cap."""

from __future__ import annotations

import numpy as np

from credit_inspector.checks import check
from credit_inspector.panel import Finding, Severity, TokenLink
from credit_inspector.shares import percent
from credit_inspector.store import Store

CODE = "all-cut-at-cap"
NOTE = 0.25
"""Share of responses cut off from which on it is worth a note, although no step lost all of them."""


@check(CODE)
def all_cut(store: Store) -> list[Finding]:
    """How many responses hit the length cap, and in which steps all did.

    Only responses of which the run says whether they were cut off are counted.
    """
    cut, told, ended, trained = 0, 0, 0, 0
    whole: list[TokenLink] = []
    for step in store.steps:
        table, _ = store.read_step(step, [])
        known = np.array([rollout.truncated is not None for rollout in table.rollouts], np.bool_)
        over = np.array([bool(rollout.truncated) for rollout in table.rollouts], np.bool_)
        cut += int(over.sum())
        told += int(known.sum())
        ended += int(table.lengths[known & ~over].sum())
        if known.any() and over[known].all():
            trained += int(table.trained_lengths[over].sum())
            whole.append(TokenLink(step, table.rollouts[int(np.argmax(over))].sample_id))
    if not told or (cut / told < NOTE and not whole):
        return []
    length = f"{ended / (told - cut):.0f} tokens" if told > cut else "n/a"
    steps = f"In {len(whole)} of {len(store.steps)} steps all responses hit the cap; rewards there say nothing about correctness"
    return [
        Finding(
            code=CODE,
            severity=Severity.WARNING if whole else Severity.INFO,
            sentence=f"{steps if whole else 'Many responses hit the cap'}: {cut} of {told} truncated ({percent(cut / told)}), "
            f"mean length of terminated responses {length}.",
            how_sure=f"counted over {told} responses with a known end; {trained} trained tokens in the steps where all were cut",
            why="A cut answer is scored before it is given. Where truncated responses are masked too, nothing is trained.",
            do="Raise the length cap, or ask for less in the prompt; look at whether long answers loop.",
            links=tuple(whole[:10]),
            numbers={
                "share": cut / told,
                "truncated": cut,
                "of": told,
                "steps": len(whole),
                "terminated_length": ended / (told - cut) if told > cut else np.nan,
                "trained_tokens": trained,
            },
        )
    ]
