"""Which trained tokens stay in the loss: what a rule drops, filters or rejects before it takes a mean."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.normalise import dead
from credit_inspector.columns import Made
from credit_inspector.credit import credit
from credit_inspector.credit.rejection import rejections
from credit_inspector.metrics.finite import finite_where_trained
from credit_inspector.table import TokenTable

Mask = NDArray[np.bool_]


def kept(table: TokenTable, algorithm: Algorithm) -> Mask:
    """``[T]`` trained, and not left out by the rule: what weights count.

    ``drop_dead_groups``: two or more responses with the same reward (DAPO, Yu et al. 2025; a group of one stays, as in
    verl's recipe). ``mask_truncated``: responses cut off at their length limit (TRL ``mask_truncated_completions``).
    ``rollout_reject``: see ``rejection.py``. A missing reward and an unknown end leave nothing out.

    Raises:
        UsageError: a rejection that is not known.
        MissingColumn: a rejection needs log-probs that are not there.
    """
    inside = table.loss_mask
    for _, out in _left_out(table, algorithm):
        inside = inside & ~out
    return inside


def in_batch(table: TokenTable, algorithm: Algorithm) -> Mask:
    """``[N]`` responses that the rule's batch contains: all but those of dropped groups, which no mean ever counts."""
    if not algorithm.drop_dead_groups:
        return np.ones(table.n_rows, np.bool_)
    return ~dead(table.reward, table.group)


@credit(
    "kept",
    label="kept in the loss",
    needs=("table", "algorithm"),
    after=("logprob/policy", "logprob/old", "logprob/rollout"),
    unit="1",
    scope="batch",
    family="assigned",
)
def kept_column(table: TokenTable, algorithm: Algorithm) -> Made:
    """Whether a trained token stays in the loss: 1, or 0 where the rule drops its group, masks its response or rejects it."""
    inside, said = table.loss_mask, []
    for reason, out in _left_out(table, algorithm):
        if count := int(np.count_nonzero(inside & out)):
            said.append(f"{count} {reason}")
        inside = inside & ~out
    lost = table.n_trained - int(np.count_nonzero(inside))
    note = f"{lost} of {table.n_trained} trained tokens left out: {', '.join(said)}" if lost else "the rule leaves no token out"
    return finite_where_trained(table, inside.astype(np.float64), note)


def _left_out(table: TokenTable, algorithm: Algorithm) -> Iterator[tuple[str, Mask]]:
    if algorithm.drop_dead_groups:
        yield "in groups with one reward for all", _on_tokens(table, ~in_batch(table, algorithm))
    if algorithm.mask_truncated:
        yield "of truncated responses", _on_tokens(table, np.array([bool(each.truncated) for each in table.rollouts], np.bool_))
    for name, out in rejections(table, algorithm):
        yield f"rejected by {name} {algorithm.rollout_reject[name]}", out


def _on_tokens(table: TokenTable, rows: Mask) -> Mask:
    spread: Mask = np.repeat(rows, table.lengths)
    return spread
