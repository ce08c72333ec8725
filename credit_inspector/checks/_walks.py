"""Ways in which a trainer's backward pass over tokens goes wrong at masked ones, each put to the test on stored advantages.

Where stored advantages are not those of the run's rule, the rule is run again with the fault in it. If that gives what is
stored, the fault is the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from credit_inspector.advantages import estimators
from credit_inspector.advantages.gae import VALUES
from credit_inspector.advantages.returns import steps, to_go
from credit_inspector.advantages.token_rewards import SCORED, SUMMED, token_rewards
from credit_inspector.algorithm import Algorithm
from credit_inspector.checks._stored import by_token, differing, unlike
from credit_inspector.errors import CreditInspectorError
from credit_inspector.table import Floats, TokenTable

WALK_COLUMNS = (VALUES, SUMMED, SCORED, "logprob/old", "logprob/policy", "logprob/ref")
"""What a pass over tokens reads, beside the advantages."""

Reason = Literal["masked-values", "stops-at-mask", "masked-reward"]
REASONS: tuple[Reason, ...] = ("masked-values", "stops-at-mask", "masked-reward")


def follows(table: TokenTable, reason: Reason) -> bool:
    """Whether the stored advantages of a step differ from the rule's and are those of the rule with this fault."""
    rule = table.algorithm
    if rule is None or bool(table.loss_mask.all()) or not differing(table).any():
        return False
    stored = by_token(table)
    # A fault that changes nothing on these tokens explains nothing: the stored values differ from the rule's, so this
    # one must, too.
    return any(np.isfinite(ours).any() and not unlike(stored, ours).any() for ours in _faulty(table, rule, reason))


def _faulty(table: TokenTable, rule: Algorithm, reason: Reason) -> Iterator[Floats]:
    try:
        if reason == "stops-at-mask":
            yield _with(table, replace(rule, observation="reset"))
        elif reason == "masked-reward":
            yield _with(table, replace(rule, terminal="after-last"))
        elif rule.advantage == "gae" and table.has(VALUES):
            yield _with(table, replace(rule, observation="ignore"))
            yield _neighbour(table, rule)
    except CreditInspectorError:
        # What the rule itself lacks, such as log-probs for its KL term, its faulty twin lacks as well.
        return


def _with(table: TokenTable, rule: Algorithm) -> Floats:
    return table.trained(estimators[rule.advantage](table, rule))


def _neighbour(table: TokenTable, rule: Algorithm) -> Floats:
    """``[T]`` GAE over trained tokens, where the next token's value is that of the next slot, masked or not."""
    values = table.values(VALUES)
    known = np.where(np.isfinite(values), values, 0.0)
    rewards = token_rewards(table, rule, np.isfinite(values))
    way = steps(table, "skip", rewards.acts)
    inside = np.append(table.row[1:] == table.row[:-1], [False] * min(table.n_tokens, 1))
    following = np.where(inside, np.append(known[1:], [0.0] * min(table.n_tokens, 1)), 0.0)
    errors = np.where(rewards.acts, rewards.values, 0.0) + rule.gamma * following - known
    flat = np.full(table.n_tokens, np.nan)
    decay = np.full(len(way.token), rule.gamma * rule.lam)
    flat[way.token] = to_go(errors[way.token], decay, way.after)
    return table.trained(flat)


def reached(table: TokenTable) -> NDArray[np.int64]:
    """``[n]`` the rows whose stored advantages differ from the rule's."""
    return np.unique(table.row[differing(table)])
