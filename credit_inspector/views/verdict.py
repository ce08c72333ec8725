"""The first page: the answer in a sentence, how sure, and where to look."""

from __future__ import annotations

import numpy as np

from credit_inspector.checks import dead_groups, filler_paid, kl_bill, punished_work
from credit_inspector.panel import Block, Chart, Findings, Panel, Prose, Series, Strip, Tile, Tiles
from credit_inspector.shares import percent
from credit_inspector.store import Store
from credit_inspector.strips import strip
from credit_inspector.views import Place, view


@view("verdict", title="Verdict", order=0)
def verdict(store: Store, place: Place) -> Panel:
    """What the reward is teaching: filler that was paid, good work that was punished, and the worst ten answers."""
    paid = filler_paid.measure(store)
    blocks: list[Block] = [Prose(_headline(paid), "headline"), Prose(_lead(store, paid), "lead"), _tiles(store, paid)]
    blocks += _worst(store, paid)
    if findings := store.findings():
        blocks.append(Findings(tuple(findings)))
    if paid and len(paid.by_step) > 1:
        blocks.append(_over_steps(paid))
    blocks += [Prose(note, "note") for note in store.meta().notes]
    return Panel("Verdict", tuple(blocks))


def _headline(paid: filler_paid.Paid | None) -> str:
    if paid is None:
        return "What the tokens earned is not known: no checkpoint was run on these answers."
    if not np.isfinite(paid.share.value):
        return "No right answer was paid in these steps."
    return f"In right answers, {paid.share.text} of the positive {paid.measure} went to tokens that earned nothing."


def _lead(store: Store, paid: filler_paid.Paid | None) -> str:
    rule = store.meta().algorithm
    named = f"rule {rule.name}, {rule.source}" if rule else "rule unknown"
    if paid is None:
        return f"Give a checkpoint with --policy to measure it. {named}."
    return (
        f"{paid.share.interval} · {paid.share.responses} right answers, {paid.tokens:,} trained tokens · "
        f"evidence: occlusion, gradient alignment, siblings · {named}"
    )


def _tiles(store: Store, paid: filler_paid.Paid | None) -> Tiles:
    punished, _, _ = punished_work.measure(store)
    best, other, groups = dead_groups.measure(store)
    owners = sorted(kl_bill.measure(store).items(), key=lambda item: -item[1])
    total = sum(value for _, value in owners)
    tiles = [
        Tile(punished.text, "good work that was punished", f"{punished.interval}, {punished.responses} wrong answers"),
        Tile(
            percent((best + other) / groups) if groups else "n/a",
            "groups without signal",
            f"{best} all best, {other} below",
        ),
    ]
    if paid:
        steps = list(paid.by_step.items())
        detail = f"step {steps[0][0]}: {percent(steps[0][1])} · step {steps[-1][0]}: {percent(steps[-1][1])}"
        tiles.insert(0, Tile(paid.share.text, "filler that was paid", detail))
    if total > 0:
        top = owners[: kl_bill.TOP]
        names = " ".join(f"“{text.strip() or repr(text)}”" for text, _ in top)
        tiles.insert(-1, Tile(percent(sum(v for _, v in top) / total), f"of the KL owned by {len(top)} strings", names))
    return Tiles(tuple(tiles))


def _worst(store: Store, paid: filler_paid.Paid | None) -> list[Block]:
    """Strips of the right answers whose unearned spans were paid most; each answer once."""
    if paid is None or not paid.worst:
        return []
    blocks: list[Block] = [Prose("Right answers with the most credit on unearned spans", "body")]
    strips: dict[str, Strip] = {}
    for span in paid.worst:
        if span.link.sample_id not in strips:
            table, spans = store.read_step(span.link.step)
            strips[span.link.sample_id] = strip(store, table, spans, table.row_of(span.link.sample_id))
    return [*blocks, *strips.values()]


def _over_steps(paid: filler_paid.Paid) -> Chart:
    steps = list(paid.by_step)
    share = [100 * value for value in paid.by_step.values()]
    return Chart(
        "Share of positive credit in right answers that went to unearned tokens",
        "optimizer step",
        "% of credit",
        (Series("unearned", [float(step) for step in steps], share, "line"),),
    )
