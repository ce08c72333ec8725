"""Responses counted as cut off that ended by themselves."""

from __future__ import annotations

from collections import Counter

from credit_inspector.checks import check
from credit_inspector.panel import Finding, Severity, TokenLink
from credit_inspector.shares import percent
from credit_inspector.store import Store
from credit_inspector.tokens import has_end

CODE = "ended-counted-as-cut"


@check(CODE)
def ended_yet_cut(store: Store) -> list[Finding]:
    """Whether responses that the run calls truncated end with one of the model's end tokens.

    A model may stop on any of several ids (``eos_token_id`` in ``generation_config.json`` is often a list); code that knows one
    of them takes all other ends for the length cap, and masks or penalises answers that were complete.
    """
    ends = store.meta().ends
    links: list[TokenLink] = []
    last: Counter[int] = Counter()
    told = stored = 0
    for step in store.steps if ends else ():
        table, _ = store.read_step(step, [])
        for one in table.rollouts:
            told += one.truncated is not None
            stored += one.truncated is True
            ids = one.response_ids
            if one.truncated is True and ids is not None and len(ids) and has_end(ids[-1:], ends):
                last[int(ids[-1])] += 1
                links.append(TokenLink(step, one.sample_id, len(ids) - 1, len(ids)))
    if not links:
        return []
    seen = ", ".join(str(one) for one, _ in last.most_common())
    share = percent((stored - len(links)) / told)
    return [
        Finding(
            code=CODE,
            severity=Severity.WARNING,
            sentence=f"{len(links)} of {stored} responses that count as truncated end with an end token (id {seen}): "
            f"by the model's end ids {share} are truncated, not {percent(stored / told)}.",
            how_sure=f"counted over {told} responses; the checkpoint or tokenizer names the end ids {', '.join(map(str, ends))}",
            why="A response that ended was not cut off. Where truncated ones are masked or penalised, complete answers lose "
            "their credit, and the token that ends them its own.",
            do="Give the trainer all ids of generation_config.json's eos_token_id.",
            links=tuple(links[:10]),
            numbers={"responses": len(links), "stored": stored, "of": told},
        )
    ]
