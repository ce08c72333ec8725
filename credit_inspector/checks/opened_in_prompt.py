"""A block of thinking that the prompt opens and the response only closes."""

from __future__ import annotations

from credit_inspector.checks import check
from credit_inspector.panel import Finding, Severity, TokenLink
from credit_inspector.segmenters.thinking import OPEN, opened_before
from credit_inspector.shares import percent
from credit_inspector.store import Store

CODE = "thinking-opened-in-prompt"


@check(CODE)
def opened_in_prompt(store: Store) -> list[Finding]:
    """Whether responses close a block of thinking that stands open at the end of their prompts.

    It is what many chat templates do, and nothing is wrong with it; but a format reward that asks for both tags in the response
    is then 0 for all, and a grader that cuts the answer out by both finds none.
    """
    links: list[TokenLink] = []
    responses = found = 0
    for step in store.steps:
        table, _ = store.read_step(step, [])
        for one in table.rollouts:
            responses += 1
            if one.prompt and one.response and OPEN.search(one.prompt) and opened_before(one.response):
                found += 1
                links.append(TokenLink(step, one.sample_id))
    if not found:
        return []
    return [
        Finding(
            code=CODE,
            severity=Severity.INFO,
            sentence=f"The opening tag is in the prompt in {found} of {responses} responses ({percent(found / responses)}): "
            "their thinking begins with the response.",
            how_sure="read off the end of each prompt and the first tag of its response",
            why="A format reward that asks the response for both tags gives all the same, and the baseline takes it out.",
            do="Let the format reward ask for the closing tag alone, or put the opening one before the response as it is graded.",
            links=tuple(links[:10]),
            numbers={"responses": found, "of": responses},
        )
    ]
