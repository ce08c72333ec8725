"""What the policy loss alone tells each token.

A loss in ``losses/`` sees one token and one ratio. What it sees is made here: the ratio at the rule's level, the weight with
the constants that the rule puts before the loss, and nothing of tokens that the rule leaves out. Afterwards the gradient of
a ratio that a whole response shares is sent back to all of its tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from credit_inspector.algorithm import Algorithm
from credit_inspector.columns import Made
from credit_inspector.credit import credit
from credit_inspector.credit.constants import loss_constants
from credit_inspector.credit.kept import kept
from credit_inspector.credit.rollout_weight import rollout_weights
from credit_inspector.errors import MissingColumn
from credit_inspector.losses import LossInputs, PolicyLoss, Push, losses
from credit_inspector.metrics.finite import finite_where_trained
from credit_inspector.metrics.ratio import Known, policy_logprob, reference_logprob, update_log_ratio
from credit_inspector.metrics.sequence_ratio import sequence_mean, sequence_sum
from credit_inspector.table import Floats, TokenTable


class Pushed(NamedTuple):
    """A policy loss's answer and what had to be assumed for it."""

    push: Push
    note: str


def pushed(table: TokenTable, algorithm: Algorithm, advantage: Floats, weight: Floats) -> Pushed:
    """Run the rule's policy loss over one step; all arrays ``[T]``.

    A token that the rule leaves out has coefficient 0 and code 0. One without a finite log-ratio, advantage or weight has no
    coefficient, and a response's ratio and push are those of its other tokens.

    Raises:
        UsageError: the rule names a loss that does not exist, or a level of the ratio that the loss does not have.
        MissingColumn: the loss needs log-probs that nobody recorded.
    """
    loss = losses[algorithm.loss]
    log_ratio, missing = _or_unknown(update_log_ratio, table, algorithm)
    factor, said = loss_constants(table, algorithm, advantage, log_ratio.values, rollout=not loss.corrects)
    correction = rollout_weights(table, algorithm) if loss.corrects else Known(np.broadcast_to(1.0, table.n_tokens))
    inside = kept(table, algorithm)
    step = _Step(
        table=table,
        algorithm=algorithm,
        inside=inside,
        outside=table.nan_outside if inside is table.loss_mask else np.where(inside, 0.0, np.nan),
        log_ratio=log_ratio.values,
        advantage=advantage,
        weight=weight,
        factor=factor,
        correction=correction.values,
        corrects=loss.corrects,
        looked={},
    )
    push = _in_pieces(loss, step) if loss.by_token and algorithm.ratio_level == "token" else _at_once(loss, step)
    if missing and not np.isfinite(push.coefficient).any():
        raise missing
    note = "; ".join(part for part in (log_ratio.note, said, correction.note, _left_out(table, inside)) if part)
    return Pushed(_settled(push, table, inside), note)


@credit(
    "credit/policy_push",
    label="push of the policy loss",
    needs=("table", "algorithm", "advantage", "weight"),
    after=("logprob/policy", "logprob/old", "logprob/rollout"),
    after_where={"entropy/policy": lambda rule: rule.top_entropy_quantile < 1},
    unit="1 / nat",
    scope="batch",
    family="assigned",
    sign="+ pushed up, − pushed down",
)
def policy_push(table: TokenTable, algorithm: Algorithm, advantage: Floats, weight: Floats) -> Made:
    """−dL/dlogπ of the policy loss alone: advantage × weight × what the loss makes of the ratio; 0 where it is cut."""
    found = pushed(table, algorithm, advantage, weight)
    return finite_where_trained(table, 0.0 - found.push.coefficient, f"loss {algorithm.loss}", found.note)


_LOOKS = {"logprob": policy_logprob, "old": reference_logprob}
_PIECE = 1 << 16
"""Tokens at a time: their arrays stay in the processor's cache, which halves the time of a large step."""


class _Step(NamedTuple):
    """What a loss works on, ``[T]`` each, not yet cleaned."""

    table: TokenTable
    algorithm: Algorithm
    inside: NDArray[np.bool_]
    outside: Floats
    """0 inside, NaN elsewhere."""
    log_ratio: Floats
    advantage: Floats
    weight: Floats
    factor: Floats
    correction: Floats
    corrects: bool
    looked: dict[str, Floats]
    """Log-probs that the loss asked for."""

    def inputs(self, part: slice) -> LossInputs:
        """A stretch of tokens for the loss."""
        inside, outside = self.inside[part], self.outside[part]

        def clean(values: Floats) -> Floats:
            return _clean(inside, outside, values)

        def look(name: str) -> Floats:
            if name not in self.looked:
                self.looked[name] = _or_unknown(_LOOKS[name], self.table, self.algorithm)[0].values
            return clean(self.looked[name][part])

        with np.errstate(over="ignore", invalid="ignore"):
            scale = clean(self.weight[part] * self.factor[part])
        token, gain = clean(self.log_ratio[part]), clean(self.advantage[part])
        return LossInputs(
            table=self.table,
            algorithm=self.algorithm,
            look=look,
            token_log_ratio=token,
            log_ratio=_at_level(self.table, self.algorithm, token, gain, scale),
            advantage=gain,
            weight=scale,
            correction=clean(self.correction[part]) if self.corrects else self.correction[part],
            kept=inside,
        )


def _at_once(loss: PolicyLoss, step: _Step) -> Push:
    """The loss over the whole step, and what comes back through a ratio that a response shares."""
    inputs = step.inputs(slice(None))
    return _shared(loss(inputs), inputs)


def _in_pieces(loss: PolicyLoss, step: _Step) -> Push:
    """The loss of each token alone, some at a time."""
    coefficient, clipped = np.empty(step.table.n_tokens), np.empty(step.table.n_tokens, np.int8)
    for start in range(0, step.table.n_tokens, _PIECE):
        part = slice(start, start + _PIECE)
        push = loss(step.inputs(part))
        coefficient[part], clipped[part] = push.coefficient, push.clipped
    return Push(coefficient, clipped)


def _clean(inside: NDArray[np.bool_], outside: Floats, values: Floats) -> Floats:
    """NaN where left out or not finite, so that no loss ever sees a masked or an infinite number."""
    finite = np.isfinite(values)
    if np.array_equal(finite & inside, inside):
        with np.errstate(invalid="ignore"):
            settled: Floats = values + outside
        return settled
    return np.where(inside & finite, values, np.nan)


def _at_level(table: TokenTable, algorithm: Algorithm, token: Floats, gain: Floats, scale: Floats) -> Floats:
    """``[T]`` log-ratios of tokens → those of the rule's level, over and on every token that has all it needs."""
    if algorithm.ratio_level == "token":
        return token
    known = np.where(np.isnan(gain) | np.isnan(scale), np.nan, token)
    of_response = sequence_sum if algorithm.ratio_level == "product" else sequence_mean
    return np.where(np.isnan(known), np.nan, table.to_tokens(of_response(table, known)))


def _shared(push: Push, inputs: LossInputs) -> Push:
    """Send the gradient of a response's one ratio back to its tokens.

    d exp(mean log-ratio) gives each of n tokens 1/n of the response's pushes (GSPO, TRL and OpenRLHF), d exp(sum) gives each
    all of them (RLOO, TRL). A constant ratio carries none.
    """
    level, table = inputs.algorithm.ratio_level, inputs.table
    if push.through == "logprob" or level not in ("sequence", "product"):
        return push
    known = ~np.isnan(push.coefficient)
    with np.errstate(invalid="ignore"):
        total = table.sum_by_row(np.where(known, push.coefficient, 0.0))
    if level == "sequence":
        total = total / np.maximum(table.sum_by_row(known), 1)
    return Push(np.where(known, table.to_tokens(total), np.nan), push.clipped, push.through)


def _settled(push: Push, table: TokenTable, inside: NDArray[np.bool_]) -> Push:
    """0 where the rule leaves a trained token out; no code where there is no coefficient."""
    coefficient, clipped = push.coefficient, push.clipped
    if inside is not table.loss_mask:
        coefficient = np.where(inside, coefficient, np.where(table.loss_mask, 0.0, np.nan))
        clipped = np.where(inside, clipped, 0).astype(np.int8)
    coded = np.flatnonzero(clipped != 0)
    clipped[coded[~np.isfinite(coefficient[coded])]] = 0
    return Push(coefficient, clipped, push.through)


def _left_out(table: TokenTable, inside: NDArray[np.bool_]) -> str:
    count = table.n_trained - int(np.count_nonzero(inside))
    return f"{count} trained {'token' if count == 1 else 'tokens'} left out by the rule: no push" if count else ""


def _or_unknown(
    look: Callable[[TokenTable, Algorithm], Known], table: TokenTable, algorithm: Algorithm
) -> tuple[Known, MissingColumn | None]:
    try:
        return look(table, algorithm), None
    except MissingColumn as error:
        return Known(np.full(table.n_tokens, np.nan)), error
