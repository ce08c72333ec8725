"""A what-if as panels: rule, sums, the responses and tokens that changed most, remarks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from credit_inspector.advantages import estimators
from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.presets import presets
from credit_inspector.losses import losses
from credit_inspector.panel import Block, Grid, Panel, Prose, TokenLink
from credit_inspector.shaping import shapings
from credit_inspector.shaping.values import in_words
from credit_inspector.shares import percent
from credit_inspector.whatif import MEASURES, SharePair, StepWhatIf, WhatIf
from credit_inspector.whatif.plan import field_types, plug_ins

Row = tuple[str | float | int | None, ...]
_BEFORE_AFTER = ("", "before", "after", "change")


def panels(found: WhatIf, top: int = 10) -> list[Panel]:
    """What a what-if shows, in reading order."""
    blocks: list[Block] = [Prose(_headline(found), "headline"), Grid("Rule", ("", "before", "after"), tuple(_rule(found)))]
    blocks.append(Grid("In sum", _BEFORE_AFTER, tuple(row for row in _sums(found) if any(row[1:3]))))
    blocks += _groups(found, top)
    blocks += _responses(found, top)
    blocks += _tokens(found, top)
    blocks += [Prose(note, "note") for note in found.notes]
    return [Panel("What if", tuple(blocks))]


def _headline(found: WhatIf) -> str:
    fields = [f"{key} {_said(after)}" for key, (_, after) in found.changed.items()]
    asked = [*([found.after.name] if found.after.name != found.before.name else fields), *found.shapings]
    what = ", ".join(asked) or "nothing is changed"
    steps = ", ".join(str(step.step) for step in found.steps[:6]) + (" …" if len(found.steps) > 6 else "")
    return f"{what} · {found.before.name} · {'step' if len(found.steps) == 1 else 'steps'} {steps}"


def _rule(found: WhatIf) -> Iterator[Row]:
    if found.before.name != found.after.name:
        yield "algorithm", found.before.name, found.after.name
    for key, (before, after) in found.changed.items():
        yield key, _said(before), _said(after)
    for shaping in found.shapings:
        yield shaping.split(" ")[0], "none", shaping.partition(" ")[2] or "on"


def _said(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_said(one)}" for key, one in value.items()) or "none"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


# ── in sum ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _sums(found: WhatIf) -> Iterator[Row]:
    totals, measure = found.totals, found.measure
    word = MEASURES[measure]
    if measure in totals.filler:
        yield _share(f"right answers: {word} on unearned tokens", totals.filler[measure])
    if measure in totals.answer:
        yield _share(f"right answers: {word} on the answer", totals.answer[measure])
    for kind, (before, after) in totals.push[measure].items():
        yield f"Σ {word}, {kind} answers", before, after, after - before
    absolute, root = totals.size[measure]
    yield f"size of the step, Σ|{word}|", *_times(absolute)
    yield "size of the step, root of Σ of squares", *_times(root)
    yield "mean length of what is pushed up, tokens", *_numbers(totals.up_length)
    yield "mean length of what is pushed down, tokens", *_numbers(totals.down_length)
    yield "responses with a signal", *_counts(totals.responses, found.totals.responses.all)
    yield "groups with a signal", *_counts(totals.groups, found.totals.groups.all)
    if totals.clipped is not None:
        yield "clipped tokens", *_numbers(totals.clipped)
    yield from _flips(found)
    if np.isfinite(found.doubling):
        yield "twice the change would move advantages further by", "", percent(found.doubling), "of what it moved them"


def _share(label: str, pair: SharePair) -> Row:
    change = "n/a"
    if np.isfinite(pair.change):
        change = f"{_points(pair.change)} points (95 % {_points(pair.low)} to {_points(pair.high)})"
    return label, pair.before.text, pair.after.text, change


def _points(value: float) -> str:
    return f"{round(100 * value, 1) + 0.0:+.1f}".replace("-", "−")


def _times(value: float) -> tuple[str | float, str | float, str]:
    return (1.0, value, f"× {value:.3g}") if np.isfinite(value) else (0.0, "above 0", "from nothing")


def _numbers(pair: tuple[float, float]) -> tuple[float, float, float]:
    return pair[0], pair[1], pair[1] - pair[0]


def _counts(counts: Any, total: int) -> tuple[str, str, str]:
    return f"{counts.before} of {total}", f"{counts.after} of {total}", f"{counts.gained} gained, {counts.lost} lost"


def _flips(found: WhatIf) -> Iterator[Row]:
    totals, flips = found.totals, found.totals.flips
    turned = flips["up to down"] + flips["down to up"]
    yield "tokens that changed sign", "", turned, f"{flips['up to down']} up to down, {flips['down to up']} down to up"
    gained, lost = flips["gained"], flips["lost"]
    yield "tokens that gained or lost a push", "", gained + lost, f"{gained} gained, {lost} lost"
    fallen, risen = totals.responses_up_to_down, totals.responses_down_to_up
    yield "responses that changed sign", "", fallen + risen, f"{fallen} up to down, {risen} down to up"
    yield "right answers that are now pushed down", "", len(totals.turned), ""


# ── what changed most ───────────────────────────────────────────────────────────────────────────────────────────────


def _groups(found: WhatIf, top: int) -> Iterator[Grid]:
    rows: list[tuple[float, Row]] = []
    for step in found.steps:
        before, after = step.sums[found.measure]
        sums = [step.by_group(side.up + side.down) for side in (before, after)]
        sizes = [step.by_group(side.absolute) for side in (before, after)]
        live = step.live_groups()
        for i, name in enumerate(step.group_names):
            if (moved := abs(sizes[1][i] - sizes[0][i]) + abs(sums[1][i] - sums[0][i])) > 0:
                state = "gained a signal" if live[1][i] > live[0][i] else "lost its signal" if live[0][i] > live[1][i] else ""
                row = (step.step, name, float(sizes[0][i]), float(sizes[1][i]), float(sums[0][i]), float(sums[1][i]), state)
                rows.append((moved, row))
    if rows:
        rows.sort(key=lambda pair: -pair[0])
        head = ("step", "group", "size", "after", "push", "after", "")
        yield Grid(f"Groups that changed most, {MEASURES[found.measure]}", head, tuple(row for _, row in rows[:top]))


def _responses(found: WhatIf, top: int) -> Iterator[Grid]:
    rows = [(moved, step, row) for step in found.steps for row, moved in _moved(step)]
    rows.sort(key=lambda each: -each[0])
    split = any(step.contribution is not None for step in found.steps)
    head = (
        "step",
        "response",
        "",
        "tokens",
        "reward",
        "after",
        "advantage",
        "after",
        *(("of the change",) if split else ()),
        "text",
    )
    if rows:
        kept = rows[:top]
        links = tuple(TokenLink(step.step, step.sample_ids[row], 0, int(step.length[row])) for _, step, row in kept)
        yield Grid("Responses that changed most", head, tuple(_response(step, row, split=split) for _, step, row in kept), links)


def _moved(step: StepWhatIf) -> Iterator[tuple[int, float]]:
    before, after = step.sums["credit/coefficient"]
    for row in step.top_rows:
        yield row, float(abs(after.up[row] - before.up[row]) + abs(after.down[row] - before.down[row]))


def _response(step: StepWhatIf, row: int, *, split: bool) -> Row:
    outcome = "right" if step.right[row] else "wrong" if step.wrong[row] else "no reward"
    part = () if not split else (None if step.contribution is None else float(step.contribution[row]),)
    return (
        step.step,
        step.sample_ids[row],
        f"{outcome}, now pushed down" if step.turned[row] else outcome,
        int(step.length[row]),
        float(step.reward.before[row]),
        float(step.reward.after[row]),
        float(step.advantage.before[row]),
        float(step.advantage.after[row]),
        *part,
        step.snippets.get(row, ""),
    )


def _tokens(found: WhatIf, top: int) -> Iterator[Grid]:
    rows = [(step.step, token) for step in found.steps for token in step.top_tokens]
    rows.sort(key=lambda pair: -abs(np.nan_to_num(pair[1].after) - np.nan_to_num(pair[1].before)))
    if rows:
        kept = rows[:top]
        yield Grid(
            f"Tokens that changed most, {MEASURES[found.measure]}",
            ("step", "response", "token", "text", "before", "after"),
            tuple((step, each.sample_id, each.position, repr(each.text), each.before, each.after) for step, each in kept),
            tuple(TokenLink(step, each.sample_id, each.position, each.position + 1) for step, each in kept),
        )


# ── what can be set ─────────────────────────────────────────────────────────────────────────────────────────────────


def settable(rule: Algorithm | None) -> list[Panel]:
    """Every key that ``--set`` takes, with its current value."""
    now = rule.to_json() if rule else {}
    fields = tuple((key, _said(now[key]) if rule else "n/a", _takes(key, hint)) for key, hint in field_types().items())
    chosen = rule.settings if rule else {}
    own = tuple(
        (key, name, _said(chosen.get(key, default))) for name, settings in plug_ins() for key, default in settings.items()
    )
    shaped = tuple(
        (each.name, " ".join(_default(each.main, key, value) for key, value in each.settings.items()), each.doc.split("\n")[0])
        for each in shapings.members()
    )
    blocks = (
        Prose(f"Rule: {rule.name} ({rule.source})" if rule else "The run does not say which rule it optimised.", "headline"),
        Grid("Fields of the rule", ("key", "now", "takes"), fields),
        Grid("Own settings of an estimator or a loss", ("key", "of", "now"), own),
        Grid("Shapings: NAME=VALUE gives the setting marked with *, NAME.SETTING=VALUE any", ("name", "settings", ""), shaped),
        Prose(f"algorithm=NAME takes a whole rule: {', '.join(presets())}", "note"),
    )
    return [Panel("What can be set", blocks)]


def _takes(key: str, hint: Any) -> str:
    names: Mapping[str, Iterable[str]] = {"advantage": estimators, "loss": losses}
    return f"one of {', '.join(names[key])}" if key in names else in_words(hint)


def _default(main: str, key: str, value: Any) -> str:
    return f"{key}{'*' if key == main else ''}={_said(value)}"
