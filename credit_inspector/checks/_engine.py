"""What stands between the engine that sampled and the trainer that scored the same tokens with the same weights.

Three things are told apart, the specific before the general: a temperature that only one of the two applied, probabilities
that the engine renormalised over the tokens it kept (top-p, top-k), and everything else, which is noise of kernels and
precision or a fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from credit_inspector.checks._own import read_own
from credit_inspector.errors import MissingColumn
from credit_inspector.metrics.mismatch import NOTABLE
from credit_inspector.metrics.ratio import old_logprob
from credit_inspector.panel import TokenLink
from credit_inspector.store import Store
from credit_inspector.table import Floats, TokenTable

COLUMNS = ("logprob/policy", "logprob/old", "logprob/rollout")

Cause = Literal["temperature", "factor", "unknown"]

SURE = 0.8
"""Probability from which on the other tokens' share hardly matters to what a temperature makes of the sampled one."""
LEFT = 0.5
"""Share of the difference that a temperature may leave unexplained on such tokens. With a vocabulary instead of one other
choice the right side leaves 0.1 to 0.5, the wrong side or no temperature more than 1."""
FLAT = 1e-3
"""Nats by which a constant difference may vary; dumps round to three or four digits."""
FEW = 8
"""Tokens from which on a constant difference is no accident."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """One step in which the trainer's and the engine's log-probs are further apart than noise makes them.

    Numbers alone: a run with many such steps takes no more memory than one of them.
    """

    step: int
    tokens: int
    """Trained tokens with both log-probs."""
    error: float
    """Mean of exp|difference|."""
    cause: Cause
    """``factor``: one for all tokens, or one that the run's top-p allows for."""
    residual: float
    """What the cause leaves unexplained: mean nats a token."""
    untempered: str
    """The side without the temperature, where that is the cause."""
    ratio: float
    """Mean of trainer / engine."""
    factor: float
    """Median of trainer / engine."""
    largest: float
    """The difference trainer − engine that is farthest from 0, in nats."""
    worst: TokenLink
    """The token that has it."""
    temperature: float
    top_p: float
    """1 where the run's responses name none."""
    top_k: float
    """0 where the run's responses name none."""


def steps_apart(store: Store) -> Iterator[Apart]:
    """Steps whose mean exp|difference| is above what NeMo-RL advises to look at."""
    for step in store.steps:
        found = apart(read_own(store, step, COLUMNS))
        if found is not None:
            yield found


def apart(table: TokenTable) -> Apart | None:
    """What one step shows; ``None`` where the two agree or one of them is not recorded."""
    if not table.has("logprob/rollout"):
        return None
    try:
        trainer = old_logprob(table, table.algorithm).values
    except MissingColumn:
        return None
    engine = table.values("logprob/rollout")
    places = np.flatnonzero(table.loss_mask & np.isfinite(trainer) & np.isfinite(engine))
    trainer, engine = trainer[places], engine[places]
    difference = trainer - engine
    if not len(places) or mean_error(difference) <= NOTABLE:
        return None
    cause, residual, side = _cause(table, trainer, engine)
    worst = int(np.abs(difference).argmax())
    with np.errstate(over="ignore"):
        ratio, factor = float(np.exp(difference).mean()), float(np.exp(np.median(difference)))
    return Apart(
        step=table.step,
        tokens=len(places),
        error=mean_error(difference),
        cause=cause,
        residual=residual,
        untempered=side,
        ratio=ratio,
        factor=factor,
        largest=float(difference[worst]),
        worst=_link(table, int(places[worst])),
        temperature=temperature(table),
        top_p=setting(table, "top_p", 1.0),
        top_k=setting(table, "top_k", 0.0),
    )


def _link(table: TokenTable, place: int) -> TokenLink:
    at = int(table.position[place])
    return TokenLink(table.step, table.rollouts[table.row[place]].sample_id, at, at + 1)


def mean_error(difference: Floats) -> float:
    """Mean of exp|difference|; 1 where both agree."""
    with np.errstate(over="ignore"):
        return float(np.exp(np.abs(difference)).mean())


def temperature(table: TokenTable) -> float:
    """What the run says it sampled at: its rule, or a setting that stands with the responses."""
    rule = table.algorithm.temperature if table.algorithm else 1.0
    return rule if rule != 1 else setting(table, "temperature", 1.0)


def setting(table: TokenTable, name: str, otherwise: float) -> float:
    """A sampling setting that the trainer wrote with its responses, where all that have it agree."""
    values = {value for r in table.rollouts if isinstance(value := r.extra.get(name), int | float)}
    return float(values.pop()) if len(values) == 1 else otherwise


def tempered(logprob: Floats, at: float) -> Floats:
    """``[n]`` log-probs at a temperature, if the sampled token had only one other to choose from.

    With more choices the value lies between this and 0 for a temperature below 1; for a token of probability 0.8 or more
    there is little between.
    """
    sure = np.minimum(logprob, -1e-12)
    odds = (sure - np.log(-np.expm1(sure))) / at
    found: Floats = -np.logaddexp(0.0, -odds)
    return found


def _cause(table: TokenTable, trainer: Floats, engine: Floats) -> tuple[Cause, float, str]:
    at = temperature(table)
    if at > 0 and at != 1:
        for side, bare, other in (("engine", engine, trainer), ("trainer", trainer, engine)):
            residual = _unexplained(bare, other, at)
            if residual is not None:
                return "temperature", residual, side
    difference = trainer - engine
    off = np.abs(difference - np.median(difference))
    if len(difference) >= FEW and (off.max() <= FLAT or _is_kept_mass(table, difference)):
        return "factor", float(off.mean()), ""
    return "unknown", float(np.abs(difference).mean()), ""


def _is_kept_mass(table: TokenTable, difference: Floats) -> bool:
    """Whether each ratio is a mass that the run's top-p may have kept: between it and 1."""
    top_p = setting(table, "top_p", 1.0)
    return 0 < top_p < 1 and bool(((difference >= np.log(top_p) - FLAT) & (difference <= FLAT)).all())


def _unexplained(bare: Floats, other: Floats, at: float) -> float | None:
    """Mean nats by which the tempered log-probs of one side miss the other's; ``None`` where they explain too little."""
    sure = np.exp(bare) >= SURE
    apart = np.abs(other - bare)[sure].sum()
    if not apart > 0:
        return None
    left = np.abs(other - tempered(bare, at))[sure]
    return float(left.mean()) if left.sum() <= LEFT * apart else None
