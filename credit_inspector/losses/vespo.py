"""VESPO: a smooth weight of the response's product ratio before each token's log-probability."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from credit_inspector.losses import LossInputs, Push, loss
from credit_inspector.table import Floats

_LOWEST, _HIGHEST, _TOKEN = math.log(1e-8), 20.0, 20.0


@loss("vespo", levels=("token", "product"), corrects=True, by_token=False)
def vespo(
    inputs: LossInputs,
    *,
    k_pos: float = 2.0,
    lambda_pos: float = 3.0,
    k_neg: float = 3.0,
    lambda_neg: float = 2.0,
) -> Push:
    """``[T]`` c = −w A φ(W), φ(W) = e^λ W^k e^(−λ W), W the product of the response's ratios; φ(1) = 1 (VESPO, 2026).

    k and λ are ``k_pos`` and ``lambda_pos`` for A ≥ 0, ``k_neg`` and ``lambda_neg`` below. TRL 1.16.0 ``get_gamma_weights``:
    each log-ratio is held within ±20, their sum within log 1e-8 … 20, and λ is 1e-4 at least. Rollout weights are factors
    of W and not of the loss, each held within 1e-8 … e^20. Codes: +1 or −1 where the sum is held, which still pushes.
    """
    table, advantage = inputs.table, inputs.advantage
    known = np.isfinite(inputs.token_log_ratio) & np.isfinite(inputs.correction)
    held = np.where(known, np.clip(inputs.token_log_ratio, -_TOKEN, _TOKEN), 0.0)
    total = table.to_tokens(table.sum_by_row(held) + _log_correction(inputs, known))
    log_w = np.clip(total, _LOWEST, _HIGHEST)
    k = np.where(advantage >= 0, k_pos, k_neg)
    lam = np.maximum(np.where(advantage >= 0, lambda_pos, lambda_neg), 1e-4)
    with np.errstate(over="ignore"):
        phi = np.exp(lam + k * log_w - lam * np.exp(log_w))
    phi = np.where(np.isfinite(phi), phi, 0.0)
    moves = known & (np.abs(advantage) > 0)
    clipped = np.zeros(len(log_w), np.int8)
    clipped[moves & (total > _HIGHEST)] = 1
    clipped[moves & (total < _LOWEST)] = -1
    return Push(np.where(known, -inputs.weight * advantage * phi + 0.0, np.nan), clipped, "logprob")


def _log_correction(inputs: LossInputs, known: NDArray[np.bool_]) -> Floats:
    """``[N]`` the log of a response's rollout weight: one number where the rule weighs responses, else the sum over tokens."""
    with np.errstate(divide="ignore"):
        held = np.clip(np.log(np.where(known, inputs.correction, 1.0)), _LOWEST, _HIGHEST)
    total = inputs.table.sum_by_row(held)
    if inputs.algorithm.rollout_weight.startswith("sequence"):
        total = total / np.maximum(inputs.table.sum_by_row(known), 1)
    return total
