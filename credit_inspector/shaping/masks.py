"""Training on a part of the tokens only, or on the others with less weight.

Two ways with the denominators. ``loss_mask``: what is taken out was never in the batch, so that under token-mean each other
token's step grows by N / N' ("only train the answer" multiplies the answer's step). ``kept``: the others keep their step.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from credit_inspector.errors import MissingColumn
from credit_inspector.shaping import Change, ShapingInputs, shaping
from credit_inspector.shaping.answer_span import Fit, answer_tokens
from credit_inspector.table import Floats

Denominators = Literal["loss-mask", "kept"]
Normalise = Literal["kept", "weights"]


@shaping("answer_only")
def answer_only(
    step: ShapingInputs, *, fit: Fit = "overlap", tags: bool = False, denominators: Denominators = "loss-mask"
) -> Change:
    """Trains on the answer's tokens alone; a response without an answer trains on nothing.

    ``fit``: which tokens are the answer's (sharing a character with it, whole inside, beginning inside). ``tags``: with the
    markup around it. ``denominators``: ``loss-mask`` as a trainer's mask would have it, or ``kept``.
    """
    return _only(step, answer_tokens(step, fit, tags=tags), denominators)


@shaping("answer_weight", main="outside")
def answer_weight(
    step: ShapingInputs, *, outside: float = 0.1, fit: Fit = "overlap", tags: bool = False, normalise: Normalise = "kept"
) -> Change:
    """Gives tokens outside the answer the weight ``outside`` (0 to 1, or more) and the answer's tokens 1.

    ``normalise=kept`` leaves the denominators as they are; ``weights`` divides by the sum of these weights instead of the
    number of tokens, over the batch or the response as the rule averages.
    """
    inside = answer_tokens(step, fit, tags=tags)
    return _weighted(step, np.where(inside, 1.0, outside), normalise)


@shaping("filler_mask")
def filler_mask(step: ShapingInputs, *, denominators: Denominators = "loss-mask") -> Change:
    """Takes tokens that earned nothing (``credit/unearned``) out of the loss, for right and wrong answers alike."""
    return _only(step, ~unearned(step), denominators)


@shaping("filler_weight", main="inside")
def filler_weight(step: ShapingInputs, *, inside: float = 0.1, normalise: Normalise = "kept") -> Change:
    """Gives tokens that earned nothing (``credit/unearned``) the weight ``inside`` and all others 1."""
    return _weighted(step, np.where(unearned(step), inside, 1.0), normalise)


def unearned(step: ShapingInputs) -> NDArray[np.bool_]:
    """``[T]`` true where the analysis found a token unearned.

    Raises:
        MissingColumn: it did not look.
    """
    found: NDArray[np.bool_] = step.column("credit/unearned") == 1
    return found


def normalised(step: ShapingInputs, weight: Floats) -> Floats:
    """``[T]`` weights that sum to the number of trained tokens wherever the rule divides by that number.

    Over the batch for token-mean (each micro-batch, where there are some), over each response for seq-mean-token-mean;
    the other aggregations divide by a constant and keep their weights as they are.
    """
    table, rule = step.table, step.algorithm
    if rule.aggregation == "token-mean":
        size = rule.micro_batch or table.n_rows or 1
        pool = table.row // size
    elif rule.aggregation == "seq-mean-token-mean":
        pool = table.row
    else:
        return weight
    inside = np.where(table.loss_mask, weight, 0.0)
    count = np.bincount(pool, weights=table.loss_mask)
    total = np.bincount(pool, weights=inside)
    factor = np.divide(count, total, out=np.ones_like(total), where=total > 0)
    return weight * factor[pool]


def _only(step: ShapingInputs, keep: NDArray[np.bool_], denominators: Denominators) -> Change:
    mask = step.table.loss_mask
    if not (mask & keep).any():
        raise MissingColumn(f"{step.named}: no trained token would be left")
    note = f"{step.named}: {np.count_nonzero(mask & keep)} of {np.count_nonzero(mask)} trained tokens are left"
    lost = int(np.count_nonzero((step.table.trained_lengths > 0) & (step.table.sum_by_row(mask & keep) == 0)))
    note += f"; {lost} {'response has' if lost == 1 else 'responses have'} none" if lost else ""
    if denominators == "kept":
        return Change(weight=keep.astype(np.float64), note=note)
    return Change(loss_mask=mask & keep, note=note)


def _weighted(step: ShapingInputs, weight: Floats, normalise: Normalise) -> Change:
    return Change(weight=normalised(step, weight) if normalise == "weights" else weight)
