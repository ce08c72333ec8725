"""What if the rule, the reward, the mask or the weights had been others: credit before and after, without any model.

One step's responses stay what they were; what is recomputed is what the loss would have told each token. It is a look at one
update and not a forecast of a training: another rule would have sampled other responses from the next step on.

The settings are pairs as on the command line (``plan.py``)::

    found = what_if(store, {"length_penalty": 0.001, "clip_high": 0.28})
    found.totals.filler["credit/delivered"].after.text          # '27 %'
    found.steps[0].columns["advantage"].after                   # [T]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import isfinite
from typing import Any

from credit_inspector.algorithm import Algorithm
from credit_inspector.errors import MissingColumn
from credit_inspector.shaping import Words
from credit_inspector.spans import SpanTable
from credit_inspector.store import Store
from credit_inspector.table import TokenTable
from credit_inspector.text import plain
from credit_inspector.whatif.plan import Plan, Settings, keys, plan
from credit_inspector.whatif.recompute import SHOWN
from credit_inspector.whatif.step import MEASURES, Pair, StepWhatIf, TokenChange, step_what_if
from credit_inspector.whatif.totals import SharePair, Totals, totals

TOP = 10
"""Tokens kept of each step that changed the most."""


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """A change and what it does."""

    before: Algorithm
    after: Algorithm
    changed: Mapping[str, tuple[Any, Any]]
    """The rule's fields that differ: before and after."""
    shapings: tuple[str, ...]
    """What was shaped, with all settings, in order."""
    steps: tuple[StepWhatIf, ...]
    totals: Totals
    measure: str
    """What figures are of: ``credit/delivered``, or ``credit/coefficient`` where that is not known."""
    notes: tuple[str, ...]

    @property
    def nothing_changes(self) -> bool:
        """Whether every column of every step stays what it was."""
        return not any(step.changed for step in self.steps)

    @property
    def doubling(self) -> float:
        """Mean over steps of ``StepWhatIf.doubling``; NaN where nothing was added to rewards."""
        known = [step.doubling for step in self.steps if isfinite(step.doubling)]
        return sum(known) / len(known) if known else float("nan")

    def to_json(self, top: int = TOP) -> dict[str, Any]:
        """A plain mapping; a number that is not finite is ``None``."""
        document = {
            "schema": 1,
            "rule": {"before": self.before.to_json(), "after": self.after.to_json()},
            "changed": {key: list(pair) for key, pair in self.changed.items()},
            "shapings": list(self.shapings),
            "measure": self.measure,
            "nothing_changes": self.nothing_changes,
            "totals": dataclasses.asdict(self.totals),
            "steps": [_step_json(step, self.measure, top) for step in self.steps],
            "notes": list(self.notes),
        }
        made: dict[str, Any] = plain(document)
        return made


def what_if(
    source: Store | TokenTable,
    settings: Settings,
    *,
    rule: Algorithm | None = None,
    steps: Sequence[int] = (),
    spans: SpanTable | None = None,
    words: Words | None = None,
    tokens: bool = True,
    top: int = TOP,
) -> WhatIf:
    """Recompute an analysis, or one step, under changed settings.

    Args:
        source: the analysis, or a step's table.
        settings: what to change, in order (``plan.py``).
        rule: what stands before the change, where the run does not say it or is to be seen under another one.
        steps: only these; all when empty.
        spans: the table's spans, where the source is a table.
        words: the text of each row's tokens, where the source is a table.
        tokens: whether the columns of every token are kept; without, memory is bounded by one step.
        top: how many of the most changed tokens of each step are kept.

    Raises:
        UsageError: a setting that does not exist, or a value that it does not take.
        MissingColumn: the rule is not known, or what changes cannot be recomputed.
        StoreError: a step that is not there.
    """
    found: list[StepWhatIf] = []
    plans: list[Plan] = []
    for table, of_table, texts, of_run in _tables(source, steps, spans, words):
        before = rule or of_run
        if before is None:
            raise MissingColumn(
                f"step {table.step}: the run does not say which rule it optimised, so there is no credit to compare with",
                do="name one with --algorithm, such as trl-1.16.0/dapo",
            )
        plans.append(plan(settings, before))
        found.append(step_what_if(table, plans[-1], of_table, texts, tokens=tokens, top=top))
    if not found:
        raise MissingColumn("the analysis has no steps", do="analyze the run again")
    first = plans[0]
    notes = [*first.notes, *(note for step in found for note in _of_step(step, len(found)))]
    if any(other.before != first.before for other in plans):
        notes.append("steps differ in their rule: the rule shown is that of the first")
    if not any(step.changed for step in found):
        notes.insert(0, "nothing changes: advantages, weights, clipping and pushes are what they were")
    return WhatIf(
        before=first.before,
        after=first.after,
        changed=first.changed,
        shapings=tuple(shaped.text for shaped in first.shapings),
        steps=tuple(found),
        totals=totals(found),
        measure=next(name for name in MEASURES if all(name in step.sums for step in found)),
        notes=tuple(dict.fromkeys(notes)),
    )


def _tables(
    source: Store | TokenTable, steps: Sequence[int], spans: SpanTable | None, words: Words | None
) -> Iterator[tuple[TokenTable, SpanTable | None, Words | None, Algorithm | None]]:
    if isinstance(source, TokenTable):
        yield source, spans, words, source.algorithm
        return
    rule = source.meta().algorithm
    for step in steps or source.steps:
        table, of_table = source.read_step(step)
        texts = _words(source, table) if source.has_tokenizer else None
        yield table, of_table if len(of_table) else None, texts, table.algorithm or rule


def _words(store: Store, table: TokenTable) -> Callable[[int], Sequence[str]]:
    @cache
    def words(row: int) -> tuple[str, ...]:
        return store.pieces(table.token_ids[table.slice(row)]).text

    return words


def _of_step(step: StepWhatIf, steps: int) -> Iterator[str]:
    for note in step.notes:
        yield note if steps == 1 else f"step {step.step}: {note}"


# ── JSON ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _step_json(step: StepWhatIf, measure: str, top: int) -> dict[str, Any]:
    before, after = step.sums[measure]
    rows = [
        {
            "sample_id": name,
            "group": step.group_names[step.group[i]] if step.group[i] >= 0 else None,
            "right": bool(step.right[i]),
            "tokens": int(step.length[i]),
            "trained": [int(step.trained.before[i]), int(step.trained.after[i])],
            "reward": [step.reward.before[i], step.reward.after[i]],
            "advantage": [step.advantage.before[i], step.advantage.after[i]],
            "of_the_change": None if step.contribution is None else step.contribution[i],
            "up": [before.up[i], after.up[i]],
            "down": [before.down[i], after.down[i]],
        }
        for i, name in enumerate(step.sample_ids)
    ]
    pushes = [step.by_group(side.up + side.down) for side in (before, after)]
    live = step.live_groups()
    groups = [
        {"group": name, "push": [pushes[0][i], pushes[1][i]], "signal": [bool(live[0][i]), bool(live[1][i])]}
        for i, name in enumerate(step.group_names)
    ]
    return {
        "step": step.step,
        "changed_columns": list(step.changed),
        "responses": rows,
        "groups": groups,
        "flips": dict(step.flips),
        "doubling": step.doubling,
        "top_tokens": [dataclasses.asdict(token) for token in step.top_tokens[:top]],
        "notes": list(step.notes),
    }


__all__ = [
    "MEASURES",
    "SHOWN",
    "Pair",
    "Plan",
    "SharePair",
    "StepWhatIf",
    "TokenChange",
    "Totals",
    "WhatIf",
    "keys",
    "plan",
    "what_if",
]
