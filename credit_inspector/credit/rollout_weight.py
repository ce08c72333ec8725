"""The weight κ by which a token's loss is corrected for the engine that sampled it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from credit_inspector.algorithm import Algorithm
from credit_inspector.columns import Made
from credit_inspector.credit import credit
from credit_inspector.credit.engine import Engine, engine
from credit_inspector.credit.kept import in_batch
from credit_inspector.errors import UsageError
from credit_inspector.metrics.finite import finite_where_trained
from credit_inspector.metrics.ratio import Known
from credit_inspector.registry import chosen, settings_of
from credit_inspector.table import Floats, Provenance, TokenTable

RECORDED = "rollout_weight"
"""The column of weights that a trainer wrote; they are then used as they are."""

NEGLIGIBLE = 1e-8
"""A mean weight below this divides nothing (verl 0.9.1)."""


def rollout_weights(table: TokenTable, algorithm: Algorithm) -> Known:
    """``[T]`` the weight of each token, as the trainer recorded it or by the rule; 1 where the rule has none.

    κ = π_old / π_rollout, of the token, or as product or geometric mean over the response's trained tokens
    (``Algorithm.rollout_weight``). A weight outside the bounds is held at them (TIS), or 0; what is looked at may be
    another form of κ, or the binary KL or total variation of the sampled token (``Algorithm.rollout_gate``):

    ==================================  ==========  ===================  ==========================
    trainer                             weight      gate                 outside
    ==================================  ==========  ===================  ==========================
    verl 0.9.1 ``rollout_is``           token,      weight               truncate; mask with
                                        product                          ``lower_upper`` (IcePop)
    TRL 1.16.0 ``vllm_importance…``     token,      weight               truncate, mask
                                        product
    NeMo-RL 7ea279a ``tis``, ``icepop`` token,      weight               truncate, mask
                                        product
    NeMo-RL 7ea279a ``seq-mask-tis``    token       sequence-geo         mask
    OpenRLHF 0.11.2 ``is_correction``   token       weight, geo, binary  truncate (token), mask
                                                    KL, TV
    slime 624b824 ``use_tis``           token       weight               truncate
    open-instruct e6c3044               token, geo  weight               truncate
    ==================================  ==========  ===================  ==========================

    ``rollout_normalize`` divides by the mean, of tokens or (sequence weights) of responses, last (verl). A token for which the
    engine gave no log-prob has the weight ``rollout_unknown`` of ``Algorithm.settings``: 1, so that nothing is corrected
    (TRL), or 0 (NeMo-RL). An infinite log-prob is arithmetic: it is held at the bound, or masked.

    Raises:
        UsageError: a weight held at the bounds of something else.
        MissingColumn: log-probs are not there.
    """
    column = table.columns.get(RECORDED)
    if column is not None and column.values is not None and column.provenance is Provenance.RECORDED:
        return Known(table.values(RECORDED), "rollout weights as recorded")
    if algorithm.rollout_weight == "none" and algorithm.rollout_gate == "weight":
        return Known(np.broadcast_to(1.0, table.n_tokens))
    return _by_rule(table, algorithm, **chosen(algorithm.settings, SETTINGS))


@credit(
    RECORDED,
    label="rollout weight",
    needs=("table", "algorithm"),
    after=("logprob/policy", "logprob/old", "logprob/rollout"),
    unit="1",
    scope="batch",
    family="assigned",
)
def rollout_weight(table: TokenTable, algorithm: Algorithm) -> Made:
    """The weight κ by which the rule corrects a token's loss for the engine that sampled it; 1 where it does not."""
    weights = rollout_weights(table, algorithm)
    return finite_where_trained(table, weights.values, weights.note or "the rule does not correct for the sampling engine")


def _by_rule(table: TokenTable, algorithm: Algorithm, *, rollout_unknown: float = 1.0) -> Known:
    known = engine(table, algorithm, f"weights tokens by it (rollout_weight {algorithm.rollout_weight})")
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        log_weight = np.where(known.unknown, np.log(rollout_unknown), known.log_kappa)
        weight = np.exp(_form(table, algorithm.rollout_weight, log_weight))
        gate = weight if _gates_itself(algorithm) else _gate(table, algorithm, known)
    weight, outside = _bounded(algorithm, weight, gate)
    if algorithm.rollout_normalize:
        weight = weight / _mean(table, algorithm, weight)
    return Known(
        weight, "; ".join(part for part in (_said(table, algorithm, outside), *_unknown(known, rollout_unknown)) if part)
    )


SETTINGS = settings_of(_by_rule)
"""What the weight takes from ``Algorithm.settings``, with its default."""


def _form(table: TokenTable, form: str, log_kappa: Floats) -> Floats:
    """``[T]`` the log of κ in one of its forms."""
    if form == "none":
        return np.zeros(table.n_tokens)
    if form == "token":
        return log_kappa
    return table.to_tokens(_sum_or_mean(table, log_kappa, mean=form == "sequence-geo"))


def _sum_or_mean(table: TokenTable, values: Floats, *, mean: bool) -> Floats:
    """``[N]``; ``values`` are 0 where not trained."""
    total = table.sum_by_row(values)
    return total / np.maximum(table.trained_lengths, 1) if mean else total


def _gates_itself(algorithm: Algorithm) -> bool:
    return algorithm.rollout_gate in ("weight", algorithm.rollout_weight)


def _gate(table: TokenTable, algorithm: Algorithm, known: Engine) -> Floats:
    """``[T]`` what is held against the bounds, where it is not the weight itself; a token without log-probs is no evidence."""
    level, _, measure = algorithm.rollout_gate.partition("-")
    if measure not in _DIVERGENCES:
        return np.exp(_form(table, algorithm.rollout_gate, known.log_kappa))
    divergence = np.where(table.loss_mask & ~known.unknown, _DIVERGENCES[measure](known.rollout, known.trainer), 0.0)
    return divergence if level == "token" else table.to_tokens(_sum_or_mean(table, divergence, mean=True))


def _binary_kl(rollout: Floats, trainer: Floats) -> Floats:
    """KL between the two policies' choices of the sampled token or any other, with OpenRLHF's clamp."""
    p, q = (np.clip(np.exp(values), 1e-6, 1 - 1e-6) for values in (rollout, trainer))
    divergence: Floats = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    return divergence


def _total_variation(rollout: Floats, trainer: Floats) -> Floats:
    """How far the two policies' probabilities of the sampled token stand apart, with OpenRLHF's clamp."""
    p, q = (np.clip(np.exp(values), 1e-6, 1 - 1e-6) for values in (rollout, trainer))
    distance: Floats = np.abs(p - q)
    return distance


_DIVERGENCES = {"binary-kl": _binary_kl, "tv": _total_variation}


def _bounded(algorithm: Algorithm, weight: Floats, gate: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    low = -np.inf if algorithm.rollout_low is None else algorithm.rollout_low
    high = np.inf if algorithm.rollout_high is None else algorithm.rollout_high
    outside = (gate < low) | (gate > high)
    if algorithm.rollout_outside == "mask":
        return np.where(outside, 0.0, weight), outside
    if not _gates_itself(algorithm):
        raise UsageError(
            f"rollout_outside truncate with rollout_gate {algorithm.rollout_gate}",
            wanted="rollout_outside mask, or rollout_gate weight",
            do="a weight can only be held at bounds of its own",
        )
    return np.clip(weight, low, high), outside


def _mean(table: TokenTable, algorithm: Algorithm, weight: Floats) -> float:
    """Over trained tokens of the batch, or over its responses where each has one weight."""
    used = np.repeat(in_batch(table, algorithm), table.lengths) & table.loss_mask & np.isfinite(weight)
    if algorithm.rollout_weight == "token":
        return _or_one(weight[used])
    return _or_one(table.mean_by_row(weight, used)[table.sum_by_row(used) > 0])


def _or_one(weights: Floats) -> float:
    mean = float(weights.mean()) if len(weights) else 1.0
    return mean if mean > NEGLIGIBLE else 1.0


def _said(table: TokenTable, algorithm: Algorithm, outside: NDArray[np.bool_]) -> str:
    count = int(np.count_nonzero(outside & table.loss_mask))
    bounds = [f"{bound:g}" for bound in (algorithm.rollout_low, algorithm.rollout_high) if bound is not None]
    how = "masked" if algorithm.rollout_outside == "mask" else "held at them"
    limits = f", {count} of {table.n_trained} tokens outside {' to '.join(bounds)} {how}" if bounds else ""
    by = "" if _gates_itself(algorithm) else f" by {algorithm.rollout_gate}"
    return f"rollout weight {algorithm.rollout_weight}{by}{limits}"


def _unknown(known: Engine, weight: float) -> tuple[str, str]:
    count = int(np.count_nonzero(known.unknown))
    return f"{count} without a log-prob of the engine: weight {weight:g}" if count else "", known.note
