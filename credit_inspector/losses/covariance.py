"""Losses that single out tokens whose log-probability and advantage go together, to keep entropy up (Cui et al. 2025)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from credit_inspector.errors import MissingColumn
from credit_inspector.losses import LossInputs, Push, loss


@loss("kl_cov", levels=("token",), by_token=False)
def kl_cov(inputs: LossInputs, *, ratio: float = 0.0002, coef: float = 0.1) -> Push:
    """``[T]`` c = w (−ρ A + coef · sign(log ρ) on the tokens of highest covariance), never cut.

    Covariance of a token: (A − mean A) (log π − mean log π), both means over kept tokens; the highest ``ratio`` of them are
    penalised, one at least. verl 0.9.1 ``compute_policy_loss_kl_cov``: ``kl_cov_ratio``, ``ppo_kl_coef``. It chooses in each
    micro-batch (``Algorithm.micro_batch`` of all the step's responses; without it over the whole step). Of equal
    covariances the first tokens are taken, where torch takes any.
    """
    penalty = coef * inputs.weight * np.where(_highest(inputs, ratio), np.sign(inputs.token_log_ratio), 0.0)
    policy = inputs.coefficient(inputs.ratio, np.zeros(len(penalty), np.bool_))
    return Push(policy + penalty, np.zeros(len(penalty), np.int8), "logprob")


@loss("clip_cov")
def clip_cov(inputs: LossInputs) -> Push:
    """Cannot be had: verl 0.9.1's ``clip_cov`` cuts tokens that ``torch.randperm`` draws from those of high covariance.

    Raises:
        MissingColumn: always.
    """
    raise MissingColumn(
        "clip_cov cuts tokens at random, drawn from the trainer's random state, which a run does not leave",
        do="the advantages and weights are shown; kl_cov and ppo_clip have a push",
    )


def _highest(inputs: LossInputs, share: float) -> NDArray[np.bool_]:
    """``[T]`` the ``share`` of known tokens with the highest covariance, in each micro-batch."""
    known = np.isfinite(inputs.logprob) & np.isfinite(inputs.token_log_ratio) & np.isfinite(inputs.advantage)
    found = np.zeros(len(known), np.bool_)
    for block in _micro_batches(inputs):
        places = np.flatnonzero(known[block]) + block.start
        if not len(places):
            continue
        advantage, logprob = inputs.advantage[places], inputs.logprob[places]
        covariance = (advantage - advantage.mean()) * (logprob - logprob.mean())
        count = max(1, int(len(places) * share))
        found[places[np.argsort(-covariance, kind="stable")[:count]]] = True
    return found


def _micro_batches(inputs: LossInputs) -> Iterator[slice]:
    offsets, rows = inputs.table.offsets, inputs.table.n_rows
    size = inputs.algorithm.micro_batch or max(rows, 1)
    for first in range(0, rows, size):
        yield slice(int(offsets[first]), int(offsets[min(first + size, rows)]))
