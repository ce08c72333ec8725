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
from credit_inspector.losses import LossInputs, Push, losses
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
    clean = _Clean(table, kept(table, algorithm))
    with np.errstate(over="ignore", invalid="ignore"):
        token, gain, scale = clean(log_ratio.values), clean(advantage), clean(weight * factor)
    inputs = LossInputs(
        table=table,
        algorithm=algorithm,
        look=lambda name: clean(_or_unknown(_LOOKS[name], table, algorithm)[0].values),
        token_log_ratio=token,
        log_ratio=_at_level(table, algorithm, token, gain, scale),
        advantage=gain,
        weight=scale,
        correction=clean(correction.values) if loss.corrects else correction.values,
        kept=clean.inside,
    )
    push = loss(inputs)
    if missing and not np.isfinite(push.coefficient).any():
        raise missing
    note = "; ".join(part for part in (log_ratio.note, said, correction.note, _left_out(inputs)) if part)
    return Pushed(_settled(_shared(push, inputs), inputs), note)


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


class _Clean:
    """NaN where left out or not finite, so that no loss ever sees a masked or an infinite number."""

    def __init__(self, table: TokenTable, inside: NDArray[np.bool_]) -> None:
        self.inside = inside
        self._outside = table.nan_outside if inside is table.loss_mask else np.where(inside, 0.0, np.nan)

    def __call__(self, values: Floats) -> Floats:
        finite = np.isfinite(values)
        if np.array_equal(finite, self.inside) and not np.isinf(values).any():
            return values
        if (finite | ~self.inside).all():
            with np.errstate(invalid="ignore"):
                return values + self._outside
        return np.where(self.inside & finite, values, np.nan)


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


def _settled(push: Push, inputs: LossInputs) -> Push:
    """0 where the rule leaves a trained token out; no code where there is no coefficient."""
    coefficient, clipped = push.coefficient, push.clipped
    if inputs.kept is not inputs.table.loss_mask:
        coefficient = np.where(inputs.kept, coefficient, np.where(inputs.table.loss_mask, 0.0, np.nan))
        clipped = np.where(inputs.kept, clipped, 0).astype(np.int8)
    coded = np.flatnonzero(clipped)
    clipped[coded[~np.isfinite(coefficient[coded])]] = 0
    return Push(coefficient, clipped, push.through)


def _left_out(inputs: LossInputs) -> str:
    count = int(np.count_nonzero(inputs.table.loss_mask & ~inputs.kept))
    return f"{count} trained {'token' if count == 1 else 'tokens'} left out by the rule: no push" if count else ""


def _or_unknown(
    look: Callable[[TokenTable, Algorithm], Known], table: TokenTable, algorithm: Algorithm
) -> tuple[Known, MissingColumn | None]:
    try:
        return look(table, algorithm), None
    except MissingColumn as error:
        return Known(np.full(table.n_tokens, np.nan)), error
