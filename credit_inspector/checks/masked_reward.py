"""Rewards that stand on masked tokens."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from credit_inspector.advantages.token_rewards import SCORED, SUMMED, token_rewards
from credit_inspector.checks import check
from credit_inspector.checks._stored import COLUMNS
from credit_inspector.checks._walks import WALK_COLUMNS, follows
from credit_inspector.errors import CreditInspectorError
from credit_inspector.panel import Finding, Severity, TokenLink
from credit_inspector.shares import percent
from credit_inspector.store import Store
from credit_inspector.table import Floats, TokenTable

CODE = "reward-on-masked"
_SUMS_TOKENS = frozenset({"gae", "returns", "reinforce_pp", "remax", "otb", "tir_otb"})
"""Estimators to which the place of a reward matters; the others take a response's one reward."""


class _Masked(NamedTuple):
    """One step's rewards on masked tokens."""

    mass: float
    """Σ |reward| on masked tokens."""
    lost: float
    """The part of it that no trained token gets under the rule."""
    total: float
    links: tuple[TokenLink, ...]
    """Where each would belong: the last trained token of its response."""
    not_reproduced: bool
    """Whether stored advantages contain it all the same."""


@check(CODE)
def masked_reward(store: Store) -> list[Finding]:
    """How much reward stands on tokens that are not trained: padding behind the end, or tool output that ends a response.

    Some trainers put it there on purpose, one slot behind the last token, and count that slot (``terminal = after-last``);
    then it is only noted. Where the rule sums rewards over trained tokens, it reaches none of them.
    """
    steps = [each for step in store.steps if (each := _measure(store, step)).mass > 0]
    if not steps:
        return []
    mass, lost = sum(each.mass for each in steps), sum(each.lost for each in steps)
    part = mass / sum(each.total for each in steps)
    links = [link for each in steps for link in each.links]
    reaches = f"{lost:.4g} of it reaches no trained token" if lost else "the rule counts it all the same"
    stored = (
        "; stored advantages contain it and cannot be reproduced from this mask" if any(s.not_reproduced for s in steps) else ""
    )
    return [
        Finding(
            code=CODE,
            severity=Severity.WARNING if lost else Severity.INFO,
            sentence=f"Reward mass {mass:.4g} ({percent(part)}) on masked positions of {len(links)} responses; {reaches}{stored}."
            f" It would belong on the last trained token: index {links[0].start} in {links[0].sample_id}.",
            how_sure=f"summed over {len(steps)} steps with rewards on tokens that are not trained",
            why="A return over trained tokens starts from 0 where the reward stands outside the mask.",
            do="Put the reward on the last trained token (terminal = last-trained), or let the mask contain its token.",
            cannot_tell="Whether the trainer's own returns run over another mask than the recorded one.",
            links=tuple(links[:10]),
            numbers={"mass": mass, "share": part, "lost": lost, "responses": len(links)},
        )
    ]


def _measure(store: Store, step: int) -> _Masked:
    table, _ = store.read_step(step, [*COLUMNS, *WALK_COLUMNS])
    values = _rewards(table)
    size = np.where(np.isfinite(values), np.abs(values), 0.0)
    outside = np.where(table.loss_mask, 0.0, size)
    # Responses without a trained token (masked whole, on purpose) have no token to which the reward could go.
    outside[table.trained_lengths[table.row] == 0] = 0.0
    mass = float(outside.sum())
    rule = table.algorithm
    counted = rule is not None and (
        rule.terminal == "after-last" or rule.observation == "ignore" or rule.advantage not in _SUMS_TOKENS
    )
    rows = np.flatnonzero(table.sum_by_row(outside) > 0)
    links = tuple(_last_trained(table, int(row)) for row in rows)
    return _Masked(
        mass, 0.0 if counted else mass, float(size.sum()), links, not_reproduced=mass > 0 and follows(table, "masked-reward")
    )


def _rewards(table: TokenTable) -> Floats:
    """``[T]`` token rewards: where the rule puts them, or as recorded where that is not known."""
    rule = table.algorithm
    if rule is not None and rule.advantage in _SUMS_TOKENS:
        try:
            return token_rewards(table, rule).values
        except CreditInspectorError:
            # The KL term lacks its log-probs; where rewards stand can still be told from what was recorded.
            pass
    recorded = next((name for name in (SUMMED, SCORED) if table.has(name)), None)
    return table.values(recorded) if recorded else np.zeros(table.n_tokens)


def _last_trained(table: TokenTable, row: int) -> TokenLink:
    place = int(np.flatnonzero(table.loss_mask[table.slice(row)])[-1])
    return TokenLink(table.step, table.rollouts[row].sample_id, place, place + 1)
