"""One step's assigned credit, before and after: the same columns, made twice by the same functions.

Both sides are recomputed from what does not depend on the rule (log-probs, entropies, texts), so that a difference is the
change's and not that of a stored number. No model runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from credit_inspector.advantages.token_rewards import SUMMED
from credit_inspector.algorithm import Algorithm
from credit_inspector.columns import ColumnSpec, Inputs, compute
from credit_inspector.credit import credits
from credit_inspector.credit.kept import kept
from credit_inspector.errors import MissingColumn
from credit_inspector.metrics import metrics
from credit_inspector.outcome import right
from credit_inspector.shaping import Change, ShapingInputs, Words
from credit_inspector.spans import SpanTable
from credit_inspector.table import Column, Floats, Provenance, TokenTable
from credit_inspector.whatif.changed import with_mask, with_rewards
from credit_inspector.whatif.plan import Plan

SHOWN = ("advantage", "weight", "clip", "credit/coefficient", "credit/delivered")
_FIRST, _PUSHES = ("advantage", "weight"), ("credit/policy_push", "credit/kl_push")


@dataclass(kw_only=True)
class Sides:
    """A step before and after the change, with its recomputed columns."""

    before: TokenTable
    after: TokenTable
    adds: bool
    """Whether the reward is the former one with something added, so that half or twice of it has a meaning."""
    notes: list[str]

    def both(self, name: str) -> tuple[Floats, Floats] | None:
        """``[T]`` a column of both, or ``None`` where one of them lacks it."""
        if not (self.before.has(name) and self.after.has(name)):
            return None
        return self.before.values(name), self.after.values(name)


def two_sides(table: TokenTable, plan: Plan, spans: SpanTable | None = None, words: Words | None = None) -> Sides:
    """Recompute a step under both rules.

    Raises:
        MissingColumn: what changes cannot be recomputed, with what is missing.
    """
    if not table.n_tokens:
        raise MissingColumn(
            f"step {table.step}: no response has tokens",
            do="analyze again with --tokenizer or a checkpoint: the text is tokenised",
        )
    shaped = _shape(table, plan, spans, words)
    fresh = plan.advantage_changes or shaped.reward_changed
    # A mask alone changes advantages only where they follow from rewards; recorded ones stay what they were.
    follows = (fresh or shaped.mask_changed) and _recomputes(table, plan.before)
    again = fresh or (shaped.mask_changed and follows)
    if fresh and not follows and not _rewarded_now(table, shaped, plan):
        raise MissingColumn(
            f"step {table.step}: advantages are only recorded and do not follow from rewards ({_why(table, plan.before)})",
            wanted="rewards, groups and the rule, to recompute them",
        )
    before = _base(table, plan.before, recorded=not (again and follows))
    _keep_weights(table, before)
    if any(key.startswith("kl_in_reward") for key in plan.changed):
        shaped.table.columns.pop(SUMMED, None)  # the former KL term is in it
    after = _base(shaped.table, _after_rule(plan, table, shaped.table), recorded=not again)
    if not any(key.startswith("rollout_") for key in plan.changed):
        _keep_weights(table, after)
    _make(before, spans, None, None)
    _make(after, spans, shaped.weight, shaped.kl)
    notes = [*shaped.notes, *_scaled(plan, after), *_against_stored(table, before)]
    if fresh and not follows:
        notes.append(
            "no reward was recorded: advantages before the change are the recorded ones, after it they follow from new rewards"
        )
    return Sides(before=before, after=after, adds=shaped.reward_changed and shaped.adds, notes=notes)


# ── the changed step ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(kw_only=True)
class _Shaped:
    table: TokenTable
    weight: Floats | None = None
    kl: Floats | None = None
    reward_changed: bool = False
    adds: bool = True
    mask_changed: bool = False
    notes: list[str]


def _shape(table: TokenTable, plan: Plan, spans: SpanTable | None, words: Words | None) -> _Shaped:
    shaped = _Shaped(table=replace(table, columns=dict(table.columns)), notes=[])
    was_right = right(table)
    for asked in plan.shapings:
        name = asked.shaping.name
        change = asked(
            ShapingInputs(table=shaped.table, algorithm=plan.after, right=was_right, spans=spans, words=words, named=name)
        )
        _apply(shaped, name, change, plan.after)
    return shaped


def _apply(shaped: _Shaped, name: str, change: Change, rule: Algorithm) -> None:
    if change.reward is not None and not np.isfinite(change.reward).any():
        raise MissingColumn(
            f"step {shaped.table.step}: {name} changes rewards, and no response has one", wanted="recorded rewards"
        )
    if change.reward is not None and not np.array_equal(change.reward, shaped.table.reward, equal_nan=True):
        shaped.table = with_rewards(shaped.table, name, change.reward, rule, replaces=change.replaces)
        shaped.reward_changed = True
        shaped.adds &= not change.replaces
    if change.loss_mask is not None and not np.array_equal(change.loss_mask, shaped.table.loss_mask):
        shaped.table = with_mask(shaped.table, change.loss_mask, rule)
        shaped.mask_changed = True
    if change.weight is not None:
        shaped.weight = change.weight if shaped.weight is None else shaped.weight * change.weight
    if change.kl is not None:
        shaped.kl = change.kl if shaped.kl is None else shaped.kl * change.kl
    if change.note:
        shaped.notes.append(change.note)


def _after_rule(plan: Plan, before: TokenTable, after: TokenTable) -> Algorithm:
    """The changed rule; counts of a larger batch shrink with the part of it that is here."""
    rule = plan.after
    if rule.batch_tokens and rule.batch_tokens == plan.before.batch_tokens:
        now, was = int(kept(after, rule).sum()), int(kept(before, plan.before).sum())
        if was and now != was:
            rule = replace(rule, batch_tokens=rule.batch_tokens * now / was)
    if rule.reward_weights and (new := _new_components(before, after)):
        rule = replace(rule, reward_weights={**rule.reward_weights, **dict.fromkeys(new, 1.0)})
    return rule


def _new_components(before: TokenTable, after: TokenTable) -> list[str]:
    former = {name for rollout in before.rollouts for name in rollout.rewards}
    return sorted({name for rollout in after.rollouts for name in rollout.rewards} - former)


def _scaled(plan: Plan, after: TokenTable) -> list[str]:
    rule = after.algorithm
    if rule is None or rule.batch_tokens == plan.after.batch_tokens:
        return []
    return [f"batch_tokens {plan.after.batch_tokens:g} → {rule.batch_tokens:g}: as if the rest of the batch lost as large a part"]


# ── columns ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@cache
def _specs() -> dict[str, ColumnSpec]:
    return {spec.name: spec for registry in (metrics, credits) for spec in registry.members()}


@cache
def _of_the_rule() -> frozenset[str]:
    """Columns that the rule decides: assigned credit, and what follows from it or from the rule without a model."""
    specs = _specs()
    found = {name for name, spec in specs.items() if spec.family == "assigned"}
    while True:
        more = {
            name
            for name, spec in specs.items()
            if name not in found
            and not {"models", "spans"} & set(spec.needs)
            and ("algorithm" in spec.needs or found & set(spec.needs))
        }
        if not more:
            return frozenset(found)
        found |= more


def _base(table: TokenTable, rule: Algorithm, *, recorded: bool) -> TokenTable:
    """The step with what does not depend on the rule, and the recorded advantages where they stay."""
    stays = {name: column for name, column in table.columns.items() if name not in _of_the_rule()}
    advantage = table.columns.get("advantage")
    if recorded and advantage is not None and advantage.provenance is Provenance.RECORDED:
        stays["advantage"] = advantage
    rollouts = table.rollouts if recorded else tuple(replace(rollout, advantage=None) for rollout in table.rollouts)
    return replace(table, rollouts=rollouts, columns=stays, algorithm=rule)


def _keep_weights(table: TokenTable, to: TokenTable) -> None:
    """Rollout weights that the trainer wrote stay what they were."""
    column = table.columns.get("rollout_weight")
    if column is not None and column.provenance is Provenance.RECORDED:
        to.columns["rollout_weight"] = column


def _make(table: TokenTable, spans: SpanTable | None, weight: Floats | None, kl: Floats | None) -> None:
    inputs, specs = Inputs(table, algorithm=table.algorithm, spans=spans), _specs()
    compute(inputs, _FIRST, specs)
    _multiply(table, "weight", weight)
    compute(inputs, _PUSHES, specs)
    _multiply(table, "credit/kl_push", kl)
    compute(inputs, SHOWN, specs)


def _multiply(table: TokenTable, name: str, factor: Floats | None) -> None:
    column = table.columns[name]
    if factor is None or column.values is None:
        return
    values = np.where(np.isfinite(column.values), column.values * factor, np.nan).astype(np.float32)
    table.columns[name] = Column(values, Provenance.DERIVED, column.note)


def advantages(table: TokenTable, rule: Algorithm) -> Floats | None:
    """``[T]`` what the rule makes of a step's rewards; ``None`` where it makes nothing."""
    made = _base(table, rule, recorded=False)
    compute(Inputs(made, algorithm=rule), ["advantage"], _specs())
    return made.values("advantage") if made.has("advantage") else None


def _recomputes(table: TokenTable, rule: Algorithm) -> bool:
    found = advantages(table, rule)
    return found is not None and bool(np.isfinite(found).any())


def _rewarded_now(table: TokenTable, shaped: _Shaped, plan: Plan) -> bool:
    """Whether rewards came in where none were, so that recorded advantages can be held against those that follow from them."""
    return shaped.reward_changed and not np.isfinite(table.reward).any() and _recomputes(shaped.table, plan.after)


def _why(table: TokenTable, rule: Algorithm) -> str:
    made = _base(table, rule, recorded=False)
    compute(Inputs(made, algorithm=rule), ["advantage"], _specs())
    return made.columns["advantage"].note


def _against_stored(stored: TokenTable, before: TokenTable) -> list[str]:
    """A word where what is recomputed before the change is not what the analysis shows."""
    if not (stored.has("advantage") and before.has("advantage")):
        return []
    was, now = stored.values("advantage"), before.values("advantage")
    both = np.isfinite(was) & np.isfinite(now) & stored.loss_mask
    apart = np.abs(was - now)[both]
    if not apart.size or apart.max() <= 1e-3 * max(1.0, float(np.abs(was[both]).max())):
        return []
    said = f"advantages recomputed before the change differ from the analysis' by up to {apart.max():.3g}"
    return [f"{said}: the comparison is between recomputed ones"]
