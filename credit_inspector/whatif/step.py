"""One step of a what-if: per token, per response, per group, and the remarks that its numbers allow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from credit_inspector.components import Decomposition, decompose_step
from credit_inspector.errors import MissingColumn
from credit_inspector.outcome import right, wrong
from credit_inspector.shaping import Words
from credit_inspector.spans import SpanTable
from credit_inspector.table import Floats, TokenTable
from credit_inspector.whatif.changed import with_rewards
from credit_inspector.whatif.plan import Plan
from credit_inspector.whatif.recompute import SHOWN, Sides, advantages, two_sides

MEASURES: Final[Mapping[str, str]] = {"credit/delivered": "delivered credit", "credit/coefficient": "assigned credit"}
SNIPPET: Final = 120
"""Characters of a response that are kept to know it by."""
ERASED: Final = 0.1
"""Twice the change moves advantages by less than this share of what they moved: its size is erased."""


class Pair(NamedTuple):
    """The same quantity before and after."""

    before: Floats
    after: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSums:
    """``[N]`` each: one measure summed over the tokens of each response, on one side; NaN counts as nothing paid."""

    up: Floats
    down: Floats
    """Sum of negative values, 0 or below."""
    up_unearned: Floats
    up_answer: Floats
    squares: Floats

    @property
    def absolute(self) -> Floats:
        """``[N]`` Σ|c|."""
        return self.up - self.down


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenChange:
    """One token whose push changed much."""

    sample_id: str
    position: int
    text: str
    before: float
    after: float


@dataclass(frozen=True, kw_only=True)
class StepWhatIf:
    """One step before and after. Arrays are ``[N]``, one a response, unless said otherwise."""

    step: int
    sample_ids: tuple[str, ...]
    group: NDArray[np.int64]
    group_names: tuple[str, ...]
    """``[groups]``"""
    right: NDArray[np.bool_]
    """By the recorded reward, on both sides."""
    wrong: NDArray[np.bool_]
    length: Floats
    """Response tokens."""
    trained: Pair
    reward: Pair
    advantage: Pair
    """Mean over the response's trained tokens; NaN where there is none."""
    signal: Pair
    """1 where any token of the response has an advantage and a weight, 0 where none has."""
    sums: Mapping[str, tuple[RowSums, RowSums]]
    """By measure: before and after. A measure that one side lacks is not there."""
    contribution: Floats | None
    """What the change of the reward gives to the advantage after it; ``None`` where rewards do not change or the rule does not
    split."""
    flips: Mapping[str, int]
    """Tokens by what became of the sign of their coefficient: ``up to down``, ``down to up``, ``gained``, ``lost``, ``same``."""
    clipped: tuple[int, int] | None
    changed: tuple[str, ...]
    """The columns of which any trained token's value differs, and ``loss_mask`` where that does."""
    doubling: float
    """How much further twice the change of the reward would move the advantages, as a part of how far it moved them: 1 where its
    size counts in full, 0 where a standard deviation erases it; NaN where nothing was added to rewards."""
    columns: Mapping[str, Pair] = field(default_factory=dict)
    """``[T]`` each of ``advantage weight clip credit/coefficient credit/delivered``; empty where only sums were asked for."""
    top_rows: tuple[int, ...] = ()
    """The responses that changed most, by Σ|Δ coefficient|."""
    snippets: Mapping[int, str] = field(default_factory=dict)
    """How the text of each of them begins."""
    top_tokens: tuple[TokenChange, ...] = ()
    unearned_known: bool = False
    answer_known: bool = False
    notes: tuple[str, ...] = ()

    def by_group(self, values: Floats) -> Floats:
        """``[N]`` → ``[groups]``: sums over each group's responses; those without a group are left out."""
        inside = self.group >= 0
        return np.bincount(self.group[inside], weights=np.nan_to_num(values[inside]), minlength=len(self.group_names)).astype(
            np.float64
        )

    def live_groups(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """``[groups]`` before and after: whether any response of the group has a signal."""
        return self.by_group(self.signal.before) > 0, self.by_group(self.signal.after) > 0

    @property
    def turned(self) -> NDArray[np.bool_]:
        """``[N]`` right answers that were not pushed down and now are."""
        with np.errstate(invalid="ignore"):
            found: NDArray[np.bool_] = self.right & ~(self.advantage.before < 0) & (self.advantage.after < 0)
        return found


def step_what_if(
    table: TokenTable, plan: Plan, spans: SpanTable | None, words: Words | None, *, tokens: bool, top: int
) -> StepWhatIf:
    """Change one step.

    Raises:
        MissingColumn: what changes cannot be recomputed.
    """
    sides = two_sides(table, plan, spans, words)
    before, after = sides.before, sides.after
    pairs = {name: Pair(*both) for name in SHOWN if (both := sides.both(name)) is not None}
    if "credit/coefficient" not in pairs:
        raise MissingColumn(f"step {table.step}: {_reason(sides, 'credit/coefficient')}")
    unearned = table.values("credit/unearned") == 1 if table.has("credit/unearned") else None
    answer = _answer(table, spans)
    names: dict[str, int] = {}
    for rollout in table.rollouts:
        if rollout.group_id is not None:
            names.setdefault(rollout.group_id, len(names))
    measure = next(name for name in MEASURES if name in pairs)
    top_rows = _top_rows(table, pairs["credit/coefficient"], top)
    split, (doubling, erased) = _split(sides), _doubled(sides)
    return StepWhatIf(
        step=table.step,
        sample_ids=tuple(rollout.sample_id for rollout in table.rollouts),
        group=table.group,
        group_names=tuple(names),
        right=right(table),
        wrong=wrong(table),
        length=table.lengths.astype(np.float64),
        trained=Pair(before.trained_lengths.astype(np.float64), after.trained_lengths.astype(np.float64)),
        reward=Pair(before.reward, after.reward),
        advantage=Pair(_row_mean(before), _row_mean(after)),
        signal=Pair(_signal(before), _signal(after)),
        sums={
            name: (_sums(table, pairs[name].before, unearned, answer), _sums(table, pairs[name].after, unearned, answer))
            for name in MEASURES
            if name in pairs
        },
        contribution=None if split is None else split.of(CHANGE),
        flips=_flips(sides, pairs["credit/coefficient"]),
        clipped=_clipped(pairs.get("clip")),
        changed=_changed(sides, pairs),
        doubling=doubling,
        columns=pairs if tokens else {},
        top_rows=top_rows,
        snippets={row: _snippet(table, row, words) for row in top_rows},
        top_tokens=tuple(_top(table, pairs[measure], words, top)),
        unearned_known=unearned is not None,
        answer_known=answer is not None,
        notes=tuple(dict.fromkeys([*sides.notes, *_remarks(sides, split), *erased])),
    )


# ── per token, per response ─────────────────────────────────────────────────────────────────────────────────────────


def _sums(table: TokenTable, values: Floats, unearned: NDArray[np.bool_] | None, answer: NDArray[np.bool_] | None) -> RowSums:
    known = np.where(np.isfinite(values), values, 0.0)
    up = np.maximum(known, 0.0)
    nowhere = np.zeros(table.n_rows)
    return RowSums(
        up=table.sum_by_row(up),
        down=table.sum_by_row(np.minimum(known, 0.0)),
        up_unearned=nowhere if unearned is None else table.sum_by_row(np.where(unearned, up, 0.0)),
        up_answer=nowhere if answer is None else table.sum_by_row(np.where(answer, up, 0.0)),
        squares=table.sum_by_row(known**2),
    )


def _row_mean(table: TokenTable) -> Floats:
    if not table.has("advantage"):
        return np.full(table.n_rows, np.nan)
    return table.mean_by_row(table.values("advantage"), table.loss_mask)


def _signal(table: TokenTable) -> Floats:
    if not (table.has("advantage") and table.has("weight")):
        return np.zeros(table.n_rows)
    pushed = np.nan_to_num(table.values("advantage") * table.values("weight"))
    return (table.sum_by_row(pushed != 0) > 0).astype(np.float64)


def _flips(sides: Sides, pair: Pair) -> dict[str, int]:
    """A token that is not trained has no push; a trained one whose push is unknown on one side is left out."""
    unknown = (sides.before.loss_mask & np.isnan(pair.before)) | (sides.after.loss_mask & np.isnan(pair.after))
    was, now = (np.sign(np.nan_to_num(side)) for side in (pair.before[~unknown], pair.after[~unknown]))
    found = {
        "up to down": (was > 0) & (now < 0),
        "down to up": (was < 0) & (now > 0),
        "gained": (was == 0) & (now != 0),
        "lost": (was != 0) & (now == 0),
        "same": (was == now) & (was != 0),
    }
    return {name: int(np.count_nonzero(which)) for name, which in found.items()}


def _clipped(pair: Pair | None) -> tuple[int, int] | None:
    if pair is None:
        return None
    was, now = (int(np.count_nonzero(np.nan_to_num(side) != 0)) for side in pair)
    return was, now


def _changed(sides: Sides, pairs: Mapping[str, Pair]) -> tuple[str, ...]:
    inside = sides.before.loss_mask & sides.after.loss_mask
    found = [name for name, pair in pairs.items() if not np.array_equal(pair.before[inside], pair.after[inside], equal_nan=True)]
    if not np.array_equal(sides.before.loss_mask, sides.after.loss_mask):
        found.append("loss_mask")
    return tuple(found)


def _answer(table: TokenTable, spans: SpanTable | None) -> NDArray[np.bool_] | None:
    if spans is None or "answer" not in spans.label:
        return None
    found = np.zeros(table.n_tokens, np.bool_)
    for i, label in enumerate(spans.label):
        if label == "answer":
            found[spans.start[i] : spans.end[i]] = True
    return found


def _top_rows(table: TokenTable, pair: Pair, count: int) -> tuple[int, ...]:
    moved = table.sum_by_row(np.abs(np.nan_to_num(pair.after) - np.nan_to_num(pair.before)))
    best = np.argsort(-moved, kind="stable")[:count]
    return tuple(int(row) for row in best if moved[row] > 0)


def _snippet(table: TokenTable, row: int, words: Words | None) -> str:
    text = table.rollouts[row].response
    if text is None:
        text = "" if words is None else "".join(words(row)[:SNIPPET])
    return text[:SNIPPET]


def _top(table: TokenTable, pair: Pair, words: Words | None, count: int) -> Iterator[TokenChange]:
    moved = np.abs(np.nan_to_num(pair.after) - np.nan_to_num(pair.before))
    count = min(count, int(np.count_nonzero(moved)))
    if count <= 0:
        return
    best = np.argpartition(-moved, count - 1)[:count]
    for token in best[np.argsort(-moved[best], kind="stable")]:
        row = int(table.row[token])
        place = int(token - table.offsets[row])
        text = f"<id {table.token_ids[token]}>" if words is None else words(row)[place]
        before, after = float(pair.before[token]), float(pair.after[token])
        yield TokenChange(sample_id=table.rollouts[row].sample_id, position=place, text=text, before=before, after=after)


# ── remarks ─────────────────────────────────────────────────────────────────────────────────────────────────────────

BASE, CHANGE = "the reward before", "the change"


def _split(sides: Sides) -> Decomposition | None:
    """The advantages after, split into what the former reward and what the change gives."""
    before, after, rule = sides.before, sides.after, sides.after.algorithm
    if rule is None or np.array_equal(before.reward, after.reward, equal_nan=True):
        return None
    try:
        return decompose_step(after, rule, {BASE: before.reward, CHANGE: after.reward - before.reward})
    except MissingColumn:
        return None


def _remarks(sides: Sides, split: Decomposition | None) -> Iterator[str]:
    before, after = sides.before, sides.after
    if sides.both("credit/delivered") is None:
        yield f"delivered credit is not known ({_reason(sides, 'credit/delivered')}): figures are of the coefficient"
    if not before.has("credit/unearned"):
        yield "which tokens earned nothing is not known: analyze with a checkpoint (--policy) to see what filler is paid"
    if split is not None:
        yield from _constant(split, after)
    unscored = int(np.count_nonzero(~np.isfinite(after.reward) & np.isfinite(before.reward)))
    if unscored:
        yield f"{unscored} {'response has' if unscored == 1 else 'responses have'} no reward after the change: no advantage"


def _constant(split: Decomposition, after: TokenTable) -> Iterator[str]:
    change = split.centred[split.names.index(CHANGE)]
    moved = np.abs(split.reward[split.names.index(CHANGE)])
    groups = np.unique(after.group[after.group >= 0])
    size = max(float(np.nan_to_num(moved).max(initial=0.0)), 1.0)
    flat = [g for g in groups if np.nan_to_num(np.abs(change[after.group == g])).max(initial=0.0) <= 1e-9 * size]
    if len(flat) == len(groups) and len(groups):
        yield "the change of the reward is constant inside every group: the baseline takes it out and advantages stay"
    elif flat:
        yield f"in {len(flat)} of {len(groups)} groups the change of the reward is the same for all responses and has no effect"


def _doubled(sides: Sides) -> tuple[float, tuple[str, ...]]:
    """Compare the change of the reward with one twice as large: where advantages hardly differ, a deviation erases its size."""
    before, after, rule = sides.before, sides.after, sides.after.algorithm
    if rule is None or not sides.adds or rule.advantage == "gdpo":  # GDPO gives each component a deviation of its own
        return np.nan, ()
    more = before.reward + 2 * (after.reward - before.reward)
    twice = advantages(with_rewards(after, "twice", more, rule), rule)
    was = advantages(with_rewards(after, "none", before.reward, rule), rule)
    if was is None or twice is None or not after.has("advantage"):
        return np.nan, ()
    none, first, second = (after.mean_by_row(values) for values in (was, after.values("advantage"), twice))
    known = np.isfinite(none) & np.isfinite(first) & np.isfinite(second)
    moved = np.linalg.norm((first - none)[known])
    ratio = float(np.linalg.norm((second - first)[known]) / moved) if moved > 0 else np.nan
    return ratio, tuple(_erased(after.group, before.reward, first, second))


def _erased(group: NDArray[np.int64], reward: Floats, first: Floats, second: Floats) -> Iterator[str]:
    """Groups that had no spread of their own and whose advantages do not care how large the change is."""
    alone = erased = 0
    known = np.isfinite(reward) & np.isfinite(first) & np.isfinite(second)
    for number in np.unique(group[group >= 0]):
        rows = (group == number) & known
        size = np.abs(first[rows]).max(initial=0.0)
        if size > 0 and np.ptp(reward[rows]) == 0:
            alone += 1
            erased += bool(np.abs(second[rows] - first[rows]).max() <= ERASED * size)
    if erased:
        yield (
            f"{erased} of {alone} groups without spread before now differ by the change alone, and twice the change gives them "
            "the same advantages: the standard deviation erases its size, and a tiny penalty ranks them as hard as a large one"
        )


def _reason(sides: Sides, name: str) -> str:
    for side in (sides.before, sides.after):
        column = side.columns.get(name)
        if column is not None and column.values is None and column.note:
            return column.note
    return f"{name} is missing"
