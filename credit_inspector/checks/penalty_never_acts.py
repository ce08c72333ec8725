"""A length penalty that is 0 on responses that must have one."""

from __future__ import annotations

import re
from collections import defaultdict

from credit_inspector.checks import check
from credit_inspector.panel import Finding, Severity, TokenLink
from credit_inspector.store import Store

CODE = "penalty-never-acts"
_LENGTH = re.compile(r"overlong|too_?long|length|len_", re.IGNORECASE)


@check(CODE)
def penalty_never_acts(store: Store) -> list[Finding]:
    """Whether a reward component named after length is 0 everywhere, also on responses that were cut off at the cap.

    Those are as long as a response can be: whatever the penalty's threshold is, they are over it.
    """
    alive: set[str] = set()
    cut: defaultdict[str, list[TokenLink]] = defaultdict(list)
    for step in store.steps:
        table, _ = store.read_step(step, [])
        for row, rollout in enumerate(table.rollouts):
            for name, value in rollout.rewards.items():
                if not _LENGTH.search(name):
                    continue
                if value:
                    alive.add(name)
                elif rollout.truncated:
                    cut[name].append(TokenLink(step, rollout.sample_id, 0, int(table.lengths[row])))
    return [_finding(name, links) for name, links in cut.items() if name not in alive]


def _finding(name: str, links: list[TokenLink]) -> Finding:
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        sentence=f"Reward component {name!r} is 0 on every response, although {len(links)} were cut off at the length cap.",
        how_sure="counted over all responses of the run",
        why="A penalty that is skipped in silence leaves the reward as it was, and the run trains without it.",
        do="Check that the penalty is switched on, and that it gets lengths in tokens and the cap that the sampler has.",
        cannot_tell="What the component is meant to do: it is known by its name alone.",
        links=tuple(links[:10]),
        numbers={"cut_off": len(links)},
    )
