"""The weight of each token in the loss: how the loss is averaged decides how much of an advantage one token gets."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from credit_inspector.algorithm import Algorithm
from credit_inspector.columns import Made
from credit_inspector.credit import credit
from credit_inspector.credit.kept import in_batch, kept
from credit_inspector.errors import MissingColumn, UsageError
from credit_inspector.metrics.finite import finite_where_trained
from credit_inspector.table import Floats, TokenTable


def token_weights(table: TokenTable, algorithm: Algorithm) -> Floats:
    """``[T]`` each trained token's weight, 0 where the rule leaves it out (``kept``), NaN where it is not trained.

    N kept tokens of the batch, n of the response, B responses, H the horizon:

    =========================  =============  =======================================================================
    aggregation                weight         trainer
    =========================  =============  =======================================================================
    token-mean                 1 / N          TRL ``dapo``, ``cispo``, ``vespo``, ``bnpo`` (micro-batches); verl's,
                                              OpenRLHF's and NeMo-RL's default
    token-sum                  1              verl; prime-rl before it divides by the batch's tokens
    seq-mean-token-mean        1 / (B n)      TRL ``grpo``, ``sapo``; verl; slime, whose sum of responses' means is B = 1
    seq-mean-token-sum, luspo  1 / B          verl, TRL ``luspo``
    seq-mean-token-sum-norm    1 / (B H)      Dr. GRPO (Liu et al. 2025): TRL ``dr_grpo``, verl
    =========================  =============  =======================================================================

    B counts responses without a kept token only where ``Algorithm.count_empty`` says so, and dropped groups never. With
    ``micro_batch`` N and B are those of the token's block of responses, and the blocks' losses are averaged: blocks of 100
    and of 2 tokens give a token 0.005 and 0.25, where all 102 together would give 0.0098. A block without a kept token
    is one of them (TRL; OpenRLHF's loss is no number then). ``batch_tokens`` and ``batch_responses`` are N and B
    themselves, and no micro-batch changes them. Trainers add 1e-8 to n or N (verl, NeMo-RL), which is left out here.

    Raises:
        MissingColumn: the rule divides by a horizon that is not known, or leaves tokens out by log-probs that are not there.
        UsageError: a divisor or a micro-batch that is not above 0.
    """
    inside = kept(table, algorithm)
    each = _divisors(table, algorithm, table.sum_by_row(inside), in_batch(table, algorithm))
    weights = table.to_tokens(1 / each)
    weights += table.nan_outside
    return weights if inside is table.loss_mask else np.where(table.loss_mask & ~inside, 0.0, weights)


@credit(
    "weight",
    label="weight in the loss",
    needs=("table", "algorithm"),
    after=("logprob/policy", "logprob/old", "logprob/rollout"),
    unit="1 / tokens",
    scope="batch",
    family="assigned",
)
def weight(table: TokenTable, algorithm: Algorithm) -> Made:
    """The token's weight in the loss under the rule's aggregation: what multiplies its advantage, for + and − alike."""
    inside, present = kept(table, algorithm), in_batch(table, algorithm)
    lengths = table.sum_by_row(inside)
    tokens, rows = int(lengths.sum()), int(np.count_nonzero(lengths))
    note = f"{algorithm.name} ({algorithm.source}): {algorithm.aggregation}, {tokens} trained tokens of {rows} responses"
    empty = int(np.count_nonzero(present & (lengths == 0)))
    said = [
        f"{empty} without a trained token {'count' if algorithm.count_empty else 'do not count'}" if empty else "",
        *_left_out(table, tokens, present),
        *_divided_by(algorithm),
        _several_updates(algorithm),
    ]
    return finite_where_trained(table, token_weights(table, algorithm), note, *said)


class _Blocks(NamedTuple):
    """Micro-batches; without them there is one."""

    of_row: NDArray[np.int64]
    """``[N]``"""
    number: int


def _divisors(table: TokenTable, algorithm: Algorithm, lengths: Floats, present: NDArray[np.bool_]) -> Floats:
    """``[N]`` what each response's tokens have as 1 / weight."""
    blocks = _blocks(algorithm, present)
    if algorithm.aggregation == "token-sum":
        return np.full(table.n_rows, float(blocks.number))
    if algorithm.aggregation == "token-mean":
        return _divided(blocks, lengths, algorithm.batch_tokens, "batch_tokens")
    counted = present if algorithm.count_empty else lengths > 0
    each = _divided(blocks, counted, algorithm.batch_responses, "batch_responses")
    if algorithm.aggregation == "seq-mean-token-mean":
        return each * np.maximum(lengths, 1)
    if algorithm.aggregation == "seq-mean-token-sum-norm":
        return each * _horizon(algorithm, table.lengths[present])
    return each


def _blocks(algorithm: Algorithm, present: NDArray[np.bool_]) -> _Blocks:
    """Micro-batches are cut from the responses that are left once groups are dropped."""
    if algorithm.micro_batch is None:
        return _Blocks(np.zeros(len(present), np.int64), 1)
    if algorithm.micro_batch <= 0:
        raise UsageError(f"micro_batch {algorithm.micro_batch}", wanted="how many responses a micro-batch has, 1 or more")
    place = np.maximum(np.cumsum(present) - 1, 0)
    return _Blocks(place // algorithm.micro_batch, max(-(-int(present.sum()) // algorithm.micro_batch), 1))


def _divided(blocks: _Blocks, amount: Floats | NDArray[np.bool_], given: float | None, name: str) -> Floats:
    """``[N]`` the number that the rule gives, or the number of blocks times the amount in the response's own."""
    if given is not None:
        if not given > 0:
            raise UsageError(f"{name} {given:g}", wanted="a number above 0")
        return np.full(len(amount), given)
    inside = np.bincount(blocks.of_row, weights=amount, minlength=1)
    each: Floats = blocks.number * np.maximum(inside, 1)[blocks.of_row]
    return each


def _horizon(algorithm: Algorithm, lengths: NDArray[np.int64]) -> float:
    if algorithm.horizon is None and algorithm.horizon_is_width:
        return max(float(lengths.max(initial=0)), 1.0)
    if not algorithm.horizon or algorithm.horizon < 0:
        raise MissingColumn(
            f"{algorithm.name} divides by a constant length that is not known",
            do="give the run's setting as horizon (TRL: max_completion_length; verl: loss_scale_factor)",
        )
    return algorithm.horizon


# ── notes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _left_out(table: TokenTable, tokens: int, present: NDArray[np.bool_]) -> tuple[str, str]:
    out, dropped = table.n_trained - tokens, int(np.count_nonzero(~present))
    return (
        f"{out} trained tokens left out, weight 0" if out else "",
        f"{dropped} responses of dropped groups are no part of the batch" if dropped else "",
    )


def _divided_by(algorithm: Algorithm) -> list[str]:
    said = []
    of_tokens = algorithm.aggregation == "token-mean"
    given = algorithm.batch_tokens if of_tokens else algorithm.batch_responses
    if given is not None and algorithm.aggregation != "token-sum":
        said.append(f"divided by {given:g} {'tokens' if of_tokens else 'responses'} of the run's batch")
    elif algorithm.micro_batch is not None:
        said.append(f"averaged in micro-batches of {algorithm.micro_batch} responses, then over these")
    if algorithm.aggregation == "seq-mean-token-sum-norm" and algorithm.horizon is None and algorithm.horizon_is_width:
        said.append("its constant length is that of the batch's longest response")
    return said


def _several_updates(algorithm: Algorithm) -> str:
    if algorithm.updates_per_batch == 1:
        return ""
    return f"{algorithm.updates_per_batch} updates per batch: weights are those of the whole batch as one step"
