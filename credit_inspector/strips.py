"""From a stored response to the token strip: texts, kinds, signals, spans."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from credit_inspector.columns import ColumnSpec
from credit_inspector.credit import credits
from credit_inspector.metrics import metrics
from credit_inspector.panel import Signal, Strip, StripSpan, TokenKind, TokenLink
from credit_inspector.spans import SpanTable
from credit_inspector.store import Store
from credit_inspector.table import Column, TokenTable

FILL = ("credit/delivered", "credit/coefficient", "advantage")
UNDERLINE = ("credit/earned", "credit/influence")
ALWAYS = (*FILL, "weight", "ratio", "clip")
PERCENTILE = 99.0

_ONLY_RECORDED = {
    "logprob/rollout": ("log-prob, engine", "nats", "Log-prob of the sampled token as the sampling engine gave it."),
    "value/old": ("value", "reward", "The critic's value before the token, as the trainer had it."),
    "reward/token": ("token reward", "reward", "The reward of each token that the estimator summed up, KL term included."),
    "reward/token_score": ("token score", "reward", "The reward of each token before any KL term."),
}
"""Label, unit and meaning of columns that nobody but the trainer can make."""


def strip(store: Store, table: TokenTable, spans: SpanTable, row: int) -> Strip:
    """The token strip of one response, with colours that compare over all responses of its step.

    A response of which only text is known is shown in words: without its tokens no value can be placed, but it can be read.
    """
    rollout = table.rollouts[row]
    if rollout.response_ids is None:
        return _in_words(table, row)
    prompt = np.zeros(0, np.int32) if rollout.prompt_ids is None else rollout.prompt_ids
    ids = np.concatenate([prompt, table.token_ids[table.slice(row)]])
    pieces, clusters = _texts(store, prompt, table.token_ids[table.slice(row)])
    signals = tuple(_signals(table, row, len(prompt)))
    names = [signal.name for signal in signals]
    return Strip(
        id=f"{table.step}/{rollout.sample_id}",
        title=_title(table, row),
        pieces=pieces,
        clusters=clusters,
        token_ids=ids.astype(np.int32),
        kinds=_kinds(table, row, len(prompt)),
        signals=signals,
        spans=tuple(_labels(table, spans, row, len(prompt))),
        fill=next((name for name in FILL if name in names), ""),
        underline=next((name for name in UNDERLINE if name in names), ""),
        link=TokenLink(table.step, rollout.sample_id),
    )


_WORD = re.compile(r"\s*\S+|\s+")


def _in_words(table: TokenTable, row: int) -> Strip:
    rollout = table.rollouts[row]
    prompt, response = (_WORD.findall(text or "") for text in (rollout.prompt, rollout.response))
    count = len(prompt) + len(response)
    asked: list[TokenKind] = ["prompt"] * len(prompt)
    said: list[TokenKind] = ["response"] * len(response)
    return Strip(
        id=f"{table.step}/{rollout.sample_id}",
        title=_title(table, row).removesuffix(f"{table.lengths[row]} tokens") + "words of its text: no token ids",
        pieces=(*prompt, *response),
        clusters=np.arange(count, dtype=np.int32),
        token_ids=np.full(count, -1, np.int32),
        kinds=(*asked, *said),
        signals=(),
        link=TokenLink(table.step, rollout.sample_id),
    )


def _texts(store: Store, prompt: np.ndarray, response: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    if not store.has_tokenizer:
        ids = np.concatenate([prompt, response])
        return tuple(f"<id {token}>" for token in ids), np.arange(len(ids), dtype=np.int32)
    first, second = store.pieces(prompt), store.pieces(response)
    return first.text + second.text, np.concatenate([first.clusters, second.clusters + len(prompt)]).astype(np.int32)


def _kinds(table: TokenTable, row: int, prompt: int) -> tuple[TokenKind, ...]:
    trained = table.loss_mask[table.slice(row)]
    kinds: list[TokenKind] = ["prompt" for _ in range(prompt)]
    kinds += ["response" if here else "masked" for here in trained]
    if len(trained) and trained[-1] and table.rollouts[row].truncated is False:
        kinds[-1] = "end"
    return tuple(kinds)


def _title(table: TokenTable, row: int) -> str:
    rollout = table.rollouts[row]
    reward = "no reward" if rollout.reward is None else f"reward {rollout.reward:g}"
    group = f" · group {rollout.group_id}" if rollout.group_id else ""
    return f"step {table.step}{group} · response {rollout.sample_id} · {reward} · {table.lengths[row]} tokens"


# ── signals ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def known() -> Mapping[str, ColumnSpec]:
    """Every column's description, by name."""
    return {spec.name: spec for registry in (credits, metrics) for spec in registry.members()}


def _signals(table: TokenTable, row: int, prompt: int) -> list[Signal]:
    specs = known()
    order = {family: i for i, family in enumerate(("assigned", "earned", "realised", "policy"))}
    there = [(name, column.values) for name, column in table.columns.items() if column.values is not None]
    there = [(name, values) for name, values in there if name in ALWAYS or _tells_tokens_apart(table, name, values)]
    signals = [_signal(table, name, values, specs.get(name), (row, prompt)) for name, values in there]
    return sorted(signals, key=lambda signal: (order[signal.family], signal.name))


def _tells_tokens_apart(table: TokenTable, name: str, values: NDArray[np.float32]) -> bool:
    """Whether a column has more than one number over the step, and says what no other one says: a strip of 40 is not read."""
    inside = values[table.loss_mask]
    inside = inside[np.isfinite(inside)]
    if name == "surprisal" and table.has("logprob/policy"):
        return False
    if name == "advantage/recomputed" and table.has("advantage"):
        return not np.allclose(values, table.values("advantage"), rtol=1e-3, atol=1e-4, equal_nan=True)
    return not inside.size or bool(np.ptp(inside) > 0)


def _signal(table: TokenTable, name: str, stored: NDArray[np.float32], spec: ColumnSpec | None, place: tuple[int, int]) -> Signal:
    row, prompt = place
    values = np.where(table.loss_mask, stored, np.nan).astype(np.float32)
    label, unit, doc = (spec.label, spec.unit, spec.doc) if spec else _ONLY_RECORDED.get(name, (name, "", ""))
    return Signal(
        name=name,
        label=label,
        family=spec.family if spec else "policy",
        unit=unit,
        sign=spec.sign if spec else "",
        diverging=bool(spec and spec.sign) or bool(np.nanmin(values, initial=0.0) < 0 < np.nanmax(values, initial=0.0)),
        doc=doc,
        provenance=_provenance(table.columns[name]),
        values=np.concatenate([np.full(prompt, np.nan, np.float32), values[table.slice(row)]]),
        limit=limit(values),
    )


def limit(values: np.ndarray) -> float:
    """The value with full colour: the 99th percentile of ``|v|``; 0 where there is no value."""
    finite = np.abs(values[np.isfinite(values)])
    if not finite.size:
        return 0.0
    high = float(np.percentile(finite, PERCENTILE, method="lower"))
    return high or float(finite.max())


def _provenance(column: Column) -> str:
    return f"{column.provenance}: {column.note}" if column.note else str(column.provenance)


# ── spans ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _labels(table: TokenTable, spans: SpanTable, row: int, prompt: int) -> list[StripSpan]:
    labels = []
    for i in spans.of_row(row):
        if spans.label[i] == "markup":
            continue
        start, end = int(spans.start[i]), int(spans.end[i])
        at = int(table.offsets[row]) - prompt
        labels.append(StripSpan(start - at, end - at, _verdict(table, spans, i), _figures(table, start, end)))
    return labels


def _verdict(table: TokenTable, spans: SpanTable, i: int) -> str:
    if spans.label[i] == "answer":
        return "answer"
    if not table.has("credit/unearned"):
        return spans.label[i]
    found = table.values("credit/unearned")[spans.start[i] : spans.end[i]]
    found = found[np.isfinite(found)]
    if not found.size:
        return "unsure"
    return "unearned" if found[0] == 1 else "earned"


def _figures(table: TokenTable, start: int, end: int) -> str:
    parts = []
    for name, word, how in (("credit/delivered", "paid", "sum"), ("credit/earned", "earned", "first")):
        if not table.has(name):
            continue
        values = table.values(name)[start:end]
        values = values[np.isfinite(values)]
        if values.size:
            parts.append(f"{word} {values.sum():+.2g}" if how == "sum" else f"{word} {values[0]:+.2f}")
    return " · ".join(parts)
