"""What a rule multiplies a token's policy loss by, as constants: no gradient passes through them and no mean counts them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from credit_inspector.algorithm import Algorithm
from credit_inspector.credit.kept import kept
from credit_inspector.credit.rollout_weight import SETTINGS as ROLLOUT
from credit_inspector.credit.rollout_weight import rollout_weights
from credit_inspector.errors import MissingColumn, UsageError
from credit_inspector.metrics.ratio import Known, policy_logprob
from credit_inspector.registry import chosen, settings_of
from credit_inspector.table import Floats, TokenTable


class Constants(NamedTuple):
    """The product, and what was done."""

    factor: Floats
    """``[T]`` NaN where the rule needs a number that is not there; anything at all where the token is not kept."""
    note: str


def loss_constants(
    table: TokenTable, algorithm: Algorithm, advantage: Floats, log_ratio: Floats, *, rollout: bool = True
) -> Constants:
    """The product of three constants: rollout weight, entropy mask, off-policy mask.

    Args:
        table: the step.
        algorithm: the rule.
        advantage: ``[T]``
        log_ratio: ``[T]`` of each token, log π − log π_old.
        rollout: whether the rollout weight is one of them; two losses have it elsewhere in their formula.

    Raises:
        UsageError: a setting that the rule cannot have.
        MissingColumn: log-probs or entropies are not there.
    """
    inside = kept(table, algorithm)
    parts = [rollout_weights(table, algorithm) if rollout else Known(np.broadcast_to(1.0, table.n_tokens))]
    if algorithm.top_entropy_quantile < 1:
        parts.append(entropy_mask(table, algorithm, inside))
    if algorithm.off_policy_mask is not None:
        drift = -log_ratio
        parts.append(_off_policy_mask(table, algorithm, inside, advantage, drift, **chosen(algorithm.settings, _OFF_POLICY)))
    factor = parts[0].values
    with np.errstate(over="ignore", invalid="ignore"):
        for part in parts[1:]:
            factor = factor * part.values
    return Constants(factor, "; ".join(part.note for part in parts if part.note))


def top_entropy(entropy: Floats, share: float) -> NDArray[np.bool_]:
    """``[K]`` the ``share`` of numbers that are highest: those at or above the quantile 1 − share.

    TRL 1.16.0 ``get_high_entropy_mask``, that is ``torch.quantile`` in float32: linear between neighbours, and its rank
    is a float32 too, so that a rank meant to be whole is.
    """
    values = entropy.astype(np.float32)
    rank = np.float32(1 - share) * np.float32(len(values) - 1)
    below = int(np.floor(rank))
    above = min(below + 1, len(values) - 1)
    ordered = np.partition(values, (below, above))
    threshold = ordered[below] + (rank - np.float32(below)) * (ordered[above] - ordered[below])
    highest: NDArray[np.bool_] = values >= threshold
    return highest


def entropy_mask(table: TokenTable, algorithm: Algorithm, inside: NDArray[np.bool_]) -> Known:
    """``[T]`` 1 for the tokens of highest entropy, which alone are trained, 0 for others (80/20 rule, Wang et al. 2025).

    The quantile is that of the step's kept tokens; TRL takes one for each forward pass of all its processes. NaN where the
    entropy of a kept token is not known.

    Raises:
        UsageError: a share below 0.
        MissingColumn: no entropies.
    """
    share = algorithm.top_entropy_quantile
    if share < 0:
        raise UsageError(f"top_entropy_quantile {share:g}", wanted="a share between 0 and 1")
    if not table.has("entropy/policy"):
        raise MissingColumn(
            f"entropy/policy is not there, and {algorithm.name} trains the {share:.0%} of tokens with the highest entropy",
            wanted="recorded entropies, or a checkpoint to compute them with",
        )
    entropy = table.values("entropy/policy")
    known = np.flatnonzero(inside & np.isfinite(entropy))
    mask = np.where(inside, np.nan, 0.0)
    if len(known):
        mask[known] = top_entropy(entropy[known], share)
    return Known(mask, f"{int((mask[known] == 1).sum())} of {len(known)} tokens, those of highest entropy, are trained")


def _off_policy_mask(
    table: TokenTable,
    algorithm: Algorithm,
    inside: NDArray[np.bool_],
    advantage: Floats,
    drift: Floats,
    *,
    off_policy_from_rollout: float = 0.0,
) -> Known:
    """Off-policy sequence masking (DeepSeek-V3.2, 2025): no push down where the policy has left the response already.

    A token with A < 0 is left out where the mean of log π_old − log π over its response's kept tokens exceeds the
    threshold. The setting ``off_policy_from_rollout`` = 1 starts the drift at the sampling engine's log-probs (TRL with
    vLLM); slime and TRL without vLLM start at the trainer's own. A token without a log-prob has no drift, as in TRL.
    """
    if off_policy_from_rollout:
        drift = _drift_from_engine(table, algorithm)
    known = inside & np.isfinite(drift)
    count = table.sum_by_row(inside)
    total = table.sum_by_row(np.where(known, drift, 0.0))
    mean = np.where(table.sum_by_row(known) > 0, total / np.maximum(count, 1), np.nan)
    far, unsure = mean > (algorithm.off_policy_mask or 0.0), np.isnan(mean)
    down = inside & (advantage < 0)
    out = down & (table.to_tokens(far) > 0)
    rows = int(np.count_nonzero(table.sum_by_row(out)))
    values = np.where(down & (table.to_tokens(unsure) > 0), np.nan, np.where(out, 0.0, 1.0))
    return Known(values, f"off-policy mask: {rows} of {np.count_nonzero(count)} responses are not pushed down")


_OFF_POLICY = settings_of(_off_policy_mask)

SETTINGS = {**ROLLOUT, **_OFF_POLICY}
"""What the constants take from ``Algorithm.settings``, with their defaults."""


def _drift_from_engine(table: TokenTable, algorithm: Algorithm) -> Floats:
    if not table.has("logprob/rollout"):
        raise MissingColumn(
            f"logprob/rollout is not there, and {algorithm.name} measures drift from it (off_policy_from_rollout)",
            wanted="the sampling engine's log-probs",
        )
    with np.errstate(invalid="ignore"):
        return table.values("logprob/rollout") - policy_logprob(table, algorithm).values
