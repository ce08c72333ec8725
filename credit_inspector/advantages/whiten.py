"""Whitening: advantages set to mean 0 and deviation 1, last, over all trained tokens or over responses.

Trainers differ in the divisor and in where the epsilon stands. For values x of mean μ:

================  =====================  ========================================================================
``whiten_ddof``   ``whiten_eps_in``      who
================  =====================  ========================================================================
1, eps 1e-8       ``variance``           verl (``masked_whiten``), slime, TRL's PPO, NeMo-RL's GAE
0, eps 1e-8       ``floor``              OpenRLHF, NeMo-RL's REINFORCE++
1, eps 1e-4       ``deviation``          TRL's RLOO (``normalize_advantages``) and GDPO, both over responses
================  =====================  ========================================================================

verl, OpenRLHF and NeMo-RL's REINFORCE++ leave numbers outside the mask behind them; here nothing stands there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from credit_inspector.algorithm import Algorithm
from credit_inspector.table import Floats, TokenTable


def whiten(table: TokenTable, advantages: Floats, algorithm: Algorithm) -> Floats:
    """``[T]`` → ``[T]`` whitened by the rule's ``whiten`` fields; as they are where it has ``none``.

    Over ``tokens``: only trained ones count, a long response more than a short one, and NaN stands elsewhere. Over
    ``responses``: each counts once, by the mean of its tokens' advantages, also one without a trained token (TRL). A
    missing advantage is left out of mean and deviation, and stays missing.
    """
    if algorithm.whiten == "none":
        return advantages
    if algorithm.whiten == "tokens":
        return whitened(advantages, table.loss_mask, algorithm)
    by_row = table.mean_by_row(advantages)
    centre, deviation = _figures(by_row[np.isfinite(by_row)], algorithm)
    return _over(advantages - centre, deviation)


def whitened(values: Floats, where: NDArray[np.bool_], algorithm: Algorithm, *, keep_mean: bool = False) -> Floats:
    """``values`` whitened over the finite ones in ``where``; NaN everywhere else.

    One value, or values that are all the same, have no deviation: they become 0, as a group of one and a group without
    spread do (verl 0.9.1 raises on a mask of one token, TRL 1.9.2 trains on NaN). ``keep_mean`` divides by the
    deviation only and puts the mean back (``whiten_rewards`` of TRL's PPO).
    """
    known = where & np.isfinite(values)
    centre, deviation = _figures(values[known], algorithm)
    scaled = _over(np.where(known, values, centre) - centre, deviation) + (centre if keep_mean else 0.0)
    return np.where(known, scaled, np.nan)


def _figures(values: Floats, algorithm: Algorithm) -> tuple[float, float]:
    """Mean, and what to divide by; infinite where there is no spread."""
    if len(values) <= max(algorithm.whiten_ddof, 0) or values.min() == values.max():
        # A mean of equal values may miss them by one rounding step, which a small epsilon would blow up.
        return (float(values.mean()) if len(values) else 0.0), np.inf
    centre = float(values.mean())
    # Distances relative to the largest one: their squares hold at any size.
    largest = float(np.abs(values - centre).max())
    squares = float((((values - centre) / largest) ** 2).sum())
    deviation = largest * float(np.sqrt(squares / (len(values) - algorithm.whiten_ddof)))
    eps = algorithm.whiten_eps
    if algorithm.whiten_eps_in == "deviation":
        return centre, deviation + eps
    root = float(np.sqrt(eps))
    return centre, float(np.hypot(deviation, root)) if algorithm.whiten_eps_in == "variance" else max(deviation, root)


def _over(distance: Floats, deviation: float) -> Floats:
    scaled: Floats = distance / deviation
    return scaled
