"""The advantage of every token: from rewards by the run's rule, or as the trainer recorded it.

A token column that the trainer recorded stands as it is. ``advantage/recomputed`` always follows from the rewards and is
made to be held against what was recorded: where the two differ, the rule, the groups or the rewards are not what the
trainer had.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from credit_inspector.advantages import estimators
from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.detect import explain_rollouts
from credit_inspector.algorithms.normalise import grouped
from credit_inspector.algorithms.words import whole_in_words
from credit_inspector.columns import Made
from credit_inspector.credit import credit
from credit_inspector.errors import CreditInspectorError, MissingColumn
from credit_inspector.metrics.finite import finite_where_trained
from credit_inspector.table import Floats, Provenance, TokenTable

# Trainers work in float32 from rewards that a dump may have rounded.
_RELATIVE, _ABSOLUTE = 1e-3, 1e-4

# Values of one response that differ by less are one number.
_CONSTANT = 1e-6


def _has_kl(rule: Algorithm) -> bool:
    return bool(rule.kl_in_reward)


def _has_token_baseline(rule: Algorithm) -> bool:
    return rule.advantage in ("otb", "tir_otb")


_advantage = partial(
    credit,
    needs=("table",),
    after_where={
        "logprob/policy": lambda rule: _has_kl(rule) or _has_token_baseline(rule),
        "logprob/old": lambda rule: _has_kl(rule) or _has_token_baseline(rule),
        "logprob/ref": _has_kl,
        "sum_p2/policy": _has_token_baseline,
    },
    unit="1",
    scope="batch",
    family="assigned",
    sign="+ better than what it is compared with, − worse",
)


class _Recomputed(NamedTuple):
    """What the run's rule makes of the rewards."""

    rule: Algorithm | None
    values: Floats
    """``[T]`` NaN where the rule gives nothing."""
    known: NDArray[np.bool_]
    """``[T]`` where the rule gives a value."""
    by_row: Floats
    """``[N]`` the response's one advantage; NaN where there is none or its trained tokens have different ones."""
    why_not: str
    """What to say where no token has a value."""


@_advantage("advantage", label="advantage")
def advantage(table: TokenTable) -> Made:
    """How much better the response did than its baseline, recomputed from rewards where they and the rule are known.

    Where they are not, the response's recorded advantage stands in; where both are there and disagree, the note says by
    how much, and which known rule the recorded ones follow. A group without spread has 0: it carries no policy signal.
    """
    found, recorded = _recompute(table), _recorded(table)
    if found.rule is not None and found.known.any():
        stands_in = np.isfinite(recorded) & ~_any_by_row(table, found.known)
        values = found.values
        if stands_in.any():
            values = np.where(table.to_tokens(stands_in) > 0, table.to_tokens(recorded), values)
        notes = (*_notes(table, found.rule, found), _count(stands_in, "as recorded"))
        return finite_where_trained(table, values, *notes)
    if not np.isfinite(recorded).any():
        raise MissingColumn(f"{found.why_not}, and no advantage was recorded")
    note = f"as recorded for each response; not recomputed: {found.why_not}"
    return finite_where_trained(table, table.to_tokens(recorded), note, provenance=Provenance.RECORDED)


@_advantage("advantage/recomputed", label="advantage, recomputed")
def recomputed(table: TokenTable) -> Made:
    """The advantage that the run's rule gives for the recorded rewards, to be held against the recorded one."""
    found = _recompute(table)
    if found.rule is None or not found.known.any():
        raise MissingColumn(found.why_not)
    return finite_where_trained(table, found.values, *_notes(table, found.rule, found))


def _recompute(table: TokenTable) -> _Recomputed:
    """Run the estimator of the table's rule; what stops it becomes the reason."""
    rule, values, why_not = table.algorithm, np.full(table.n_tokens, np.nan), "the run does not say which rule it optimised"
    if rule is not None:
        try:
            values, why_not = table.trained(estimators[rule.advantage](table, rule)), _why_nothing(table)
        except CreditInspectorError as error:
            why_not = str(error)
    return _Recomputed(rule, values, np.isfinite(values), _by_row(table, values), why_not)


def _why_nothing(table: TokenTable) -> str:
    if not np.isfinite(table.reward).any():
        return "no response has a reward"
    if not table.n_tokens:
        return "no response has tokens: give a tokenizer or a checkpoint, and the text is tokenised"
    if not table.loss_mask.any():
        return "no token is trained"
    return "no response has both a reward and a group (neither a group id nor a prompt is known)"


def _recorded(table: TokenTable) -> Floats:
    return np.array([np.nan if r.advantage is None else r.advantage for r in table.rollouts], dtype=np.float64)


def _by_row(table: TokenTable, values: Floats) -> Floats:
    """``[T]`` → ``[N]`` the value that all trained tokens of a response share, or NaN."""
    low, high = table.range_by_row(values)
    with np.errstate(invalid="ignore"):
        return np.where(high - low > _CONSTANT * np.maximum(np.abs(high), 1.0), np.nan, high)


def _any_by_row(table: TokenTable, which: NDArray[np.bool_]) -> NDArray[np.bool_]:
    anywhere: NDArray[np.bool_] = table.sum_by_row(which) > 0
    return anywhere


# ── notes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _notes(table: TokenTable, rule: Algorithm, found: _Recomputed) -> Iterator[str]:
    yield f"{whole_in_words(rule, estimators[rule.advantage].words)}; rule {rule.name} ({rule.source})"
    if rule.advantage != "reinforce":
        yield from _group_notes(table, rule, found)
    unscored = ~np.isfinite(table.reward)
    yield _count(unscored, "without a reward")
    nothing = ~_any_by_row(table, found.known) & (table.trained_lengths > 0)
    yield _count(~unscored & (table.group < 0) & nothing, "without a group: not computed")
    lost = ~unscored & (table.group >= 0) & nothing & bool(rule.kl_in_reward)
    yield _count(lost, "with a token whose KL is not known: not computed")
    against = (_against_tokens(table, found.values), _against_rows(table, found))
    yield from against
    if any("differs from" in note for note in against):
        yield explain_rollouts(table.rollouts).message


def _group_notes(table: TokenTable, rule: Algorithm, found: _Recomputed) -> Iterator[str]:
    figures = grouped(table.reward, table.group)
    several = figures.size > 1
    flat = several & (figures.squares == 0)
    moved = set(table.group[flat & (found.by_row != 0) & (table.trained_lengths > 0)])
    if still := set(table.group[flat]) - moved:
        groups = len(set(table.group[several]))
        yield f"{len(still)} of {groups} groups have no spread: no policy signal"
    if rule.baseline != "batch":
        alone = figures.size == 1
        kept = alone & (rule.singleton == "reward") & np.isclose(found.by_row, table.reward, rtol=_RELATIVE)
        yield _count(kept, "alone in a group, so without a baseline: the reward itself")
        yield _count(alone & ~kept & (found.by_row == 0), "alone in a group, so without a baseline: advantage 0")


def _against_tokens(table: TokenTable, values: Floats) -> str:
    """What the recorded advantage of each token says to the recomputed one."""
    column = table.columns.get("advantage")
    if column is None or column.values is None or column.provenance is not Provenance.RECORDED:
        return ""
    stored = table.trained(column.values)
    return _disagreement(values, stored, "trained tokens")


def _against_rows(table: TokenTable, found: _Recomputed) -> str:
    """What the one recorded advantage of each response says, where the recomputed one is one number too."""
    recorded = _recorded(table)
    said = _disagreement(found.by_row, recorded, "responses")
    several = _any_by_row(table, found.known) & ~np.isfinite(found.by_row) & np.isfinite(recorded)
    varies = _count(several, "not compared: one recorded advantage, and the rule gives every token its own")
    return "; ".join(note for note in (said, varies) if note)


def _disagreement(ours: Floats, recorded: Floats, of: str) -> str:
    both = np.isfinite(ours) & np.isfinite(recorded)
    if not both.any():
        return ""
    differs = both & ~np.isclose(ours, recorded, rtol=_RELATIVE, atol=_ABSOLUTE)
    if not differs.any():
        return "agrees with the recorded advantages"
    residual = np.abs(ours[differs] - recorded[differs]).max()
    return (
        f"differs from the recorded advantages of {np.count_nonzero(differs)} of {np.count_nonzero(both)} {of},"
        f" by up to {residual:.4g}"
    )


def _count(which: NDArray[np.bool_], what: str) -> str:
    count = int(np.count_nonzero(which))
    return f"{count} {'response' if count == 1 else 'responses'} {what}" if count else ""
