"""Who owns the KL."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from credit_inspector.checks import check
from credit_inspector.panel import Finding, Severity
from credit_inspector.shares import percent
from credit_inspector.store import Store

CODE = "kl-owned-by-few"
TOP = 5
WARN = 0.5


@check(CODE)
def kl_bill(store: Store) -> list[Finding]:
    """Whether a few strings own most of the KL to the reference."""
    owners = measure(store)
    total = sum(owners.values())
    if not total > 0 or len(owners) <= 2 * TOP:
        return []
    top = sorted(owners.items(), key=lambda item: -item[1])[:TOP]
    part = sum(value for _, value in top) / total
    if part < WARN:
        return []
    names = ", ".join(f"{text!r}" for text, _ in top)
    return [
        Finding(
            code=CODE,
            severity=Severity.INFO,
            sentence=f"{percent(part)} of the KL to the reference is owned by {TOP} of {len(owners)} tokens: {names}.",
            how_sure="summed k3 over all trained tokens; k3 is never negative, so shares are meaningful",
            why="A KL term then mostly holds these strings in place, and a KL figure mostly reports on them.",
            do="If they are markup or the end of the sequence, leave them out of the KL term and see what remains.",
            numbers={"share": part, "strings": len(owners)},
        )
    ]


def measure(store: Store) -> dict[str, float]:
    """From token text to its summed k3; empty without a reference."""
    by_id: defaultdict[int, float] = defaultdict(float)
    for step in store.steps:
        table, _ = store.read_step(step, ["kl/k3"])
        if not table.has("kl/k3"):
            continue
        values = table.values("kl/k3")
        there = np.isfinite(values) & table.loss_mask
        ids, member = np.unique(table.token_ids[there], return_inverse=True)
        for token, total in zip(ids, np.bincount(member, weights=values[there]), strict=True):
            by_id[int(token)] += float(total)
    if not store.has_tokenizer:
        return {f"<id {token}>": total for token, total in by_id.items()}
    owners: defaultdict[str, float] = defaultdict(float)
    for token, total in by_id.items():
        owners["".join(store.pieces([token]).text)] += total
    return dict(owners)
