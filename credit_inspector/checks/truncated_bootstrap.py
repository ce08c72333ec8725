"""Responses that were cut off, under a critic."""

from __future__ import annotations

from credit_inspector.checks import check
from credit_inspector.panel import Finding, Severity, TokenLink
from credit_inspector.shares import percent
from credit_inspector.store import Store

CODE = "truncated-bootstrapped-with-zero"
WARN = 0.1


@check(CODE)
def truncated_bootstrap(store: Store) -> list[Finding]:
    """Whether a rule with a critic trains on truncated responses: behind their last token it puts the value 0.

    Every trainer read for this takes V = 0 behind the end, also where the end is a length limit (verl, OpenRLHF, NeMo-RL,
    slime, TRL's PPO).
    """
    cut, told = [], 0
    for step in store.steps:
        table, _ = store.read_step(step, [])
        rule = table.algorithm
        if rule is None or rule.advantage != "gae" or rule.mask_truncated:
            continue
        trained = table.trained_lengths > 0
        known = [i for i, rollout in enumerate(table.rollouts) if rollout.truncated is not None and trained[i]]
        told += len(known)
        ends = ((i, int(table.lengths[i])) for i in known if table.rollouts[i].truncated)
        cut += [TokenLink(step, table.rollouts[i].sample_id, end - 1, end) for i, end in ends]
    if not cut:
        return []
    part = len(cut) / told
    return [
        Finding(
            code=CODE,
            severity=Severity.WARNING if part > WARN else Severity.INFO,
            sentence=f"{len(cut)} of {told} responses ({percent(part)}) were cut off, and GAE puts the value 0 behind their end.",
            how_sure=f"counted over {told} trained responses with a known end",
            why="The critic's value of the unfinished answer is lost there, so that the last tokens are told that it went badly.",
            do="Leave truncated responses out of the loss, raise the length limit, or let the last value stand behind the cut.",
            links=tuple(cut[:10]),
            numbers={"truncated": len(cut), "responses": told, "share": part},
        )
    ]
