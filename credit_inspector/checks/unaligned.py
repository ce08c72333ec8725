"""Recorded values that cannot be put beside their tokens."""

from __future__ import annotations

from credit_inspector.checks import check
from credit_inspector.panel import Finding, Severity, TokenLink
from credit_inspector.rollout import Problem
from credit_inspector.store import Store

CODE = "length-mismatch"


@check(CODE)
def unaligned(store: Store) -> list[Finding]:
    """Responses with more or fewer values than tokens: the reader left these values out, the rewards stay."""
    found: list[tuple[int, Problem]] = []
    links: list[TokenLink] = []
    for step in store.steps:
        table, _ = store.read_step(step, [])
        here = [problem for problem in table.problems if problem.kind == CODE]
        found += [(step, problem) for problem in here]
        rows = {rollout.sample_id for rollout in table.rollouts} & {problem.where for problem in here}
        links += [TokenLink(step, name) for name in sorted(rows)]
    if not found:
        return []
    step, first = found[0]
    responses = len({(at, problem.where) for at, problem in found})
    return [
        Finding(
            code=CODE,
            severity=Severity.ERROR,
            sentence=f"{responses} responses have recorded values that do not fit their tokens; "
            f"step {step}, {first.where}: {first.message}.",
            how_sure=f"counted while reading; {len(found)} columns of {responses} responses",
            why="Which value belongs to which token is not known; any way of lining them up gives wrong ratios without an error.",
            do="Write ids and log-probs from one list, stop tokens in both or in neither.",
            cannot_tell="These responses keep their rewards. Without log-probs they have no ratio and no KL; where the loss mask "
            "does not fit, no token of theirs counts as trained.",
            links=tuple(links[:10]),
            numbers={"responses": responses, "columns": len(found)},
        )
    ]
