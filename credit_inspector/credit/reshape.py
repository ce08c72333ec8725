"""Reshaped credit: one advantage for a response, handed out to its tokens by how much each matters to the answer.

Outcome-grounded advantage reshaping (OAR, arXiv 2601.07408) turns scores into weights by which the advantage
is multiplied. A quantile of the response's own scores is the gate: tokens below it are damped, those above it raised. The
weights have the mean 1, so that the response's whole advantage stays the same.
"""

from __future__ import annotations

import numpy as np

from credit_inspector.errors import AlignmentError, UsageError
from credit_inspector.table import Floats, TokenTable

TINY = 1e-8
"""Added to divisors, as the paper's release does."""


def oar_weights(scores: Floats, *, quantile: float = 0.5, beta: float = 1.0, floor: float = 0.1, keep_sum: bool = True) -> Floats:
    """``[L]`` OAR's weights of one response's tokens (``OAR-main.py:calculate_oar_hybrid_weights``).

    With x = log(1 + score) set to 0…1 within the response and θ the quantile of x::

        x < θ    max(x / θ, floor)
        x ≥ θ    1 + beta (x − θ) / (1 − θ)

    The release overwrites its quantile with the first response's θ; here each response has its own.

    Args:
        scores: ``[L]`` how much each token matters, not negative. A token without a score (NaN) gets weight 1 and takes no part.
        quantile: of the scores that are damped.
        beta: by how much the best token is raised.
        floor: the lowest weight before the sum is set.
        keep_sum: whether weights are set to the mean 1.

    Raises:
        UsageError: a negative or infinite score, or a quantile outside 0 to 1.
    """
    known = ~np.isnan(scores)
    _check(scores[known], quantile)
    weights = np.ones(len(scores))
    if known.any():
        weights[known] = _gated(scores[known], quantile, beta, floor, keep_sum)
    return weights


def reshaped(table: TokenTable, advantage: Floats, scores: Floats, *, quantile: float = 0.5, beta: float = 1.0) -> Floats:
    """``[T]`` each token's advantage times its OAR weight within its response; NaN where not trained.

    Args:
        table: the step.
        advantage: ``[T]``
        scores: ``[T]`` how much each token matters; masked places are not read.
        quantile: see ``oar_weights``.
        beta: see ``oar_weights``.

    Raises:
        AlignmentError: scores that are not one for each token.
        UsageError: a negative or infinite score of a trained token, or a quantile outside 0 to 1.
    """
    if len(scores) != table.n_tokens:
        raise AlignmentError(f"{len(scores)} scores", wanted=f"{table.n_tokens}, one for each token")
    trained = table.trained(scores)
    weights = np.ones(table.n_tokens)
    for row in range(table.n_rows):
        weights[table.slice(row)] = oar_weights(trained[table.slice(row)], quantile=quantile, beta=beta)
    return table.trained(np.where(table.loss_mask, advantage, 0.0) * weights)


def _gated(scores: Floats, quantile: float, beta: float, floor: float, keep_sum: bool) -> Floats:
    x = np.log1p(scores)
    x = (x - x.min()) / (np.ptp(x) or 1.0)
    gate = np.quantile(x, quantile)
    below, above = x / (gate + TINY), (x - gate) / (1 - gate + TINY)
    weights: Floats = np.where(x < gate, np.maximum(below, floor), 1 + beta * above)
    return weights * (len(weights) / (weights.sum() + TINY)) if keep_sum else weights


def _check(scores: Floats, quantile: float) -> None:
    if not 0 <= quantile <= 1:
        raise UsageError(f"a quantile of {quantile:g}", wanted="a number between 0 and 1")
    if (odd := ~np.isfinite(scores) | (scores < 0)).any():
        raise UsageError(f"a score of {scores[odd][0]:g}", wanted="scores that are finite and not negative")
