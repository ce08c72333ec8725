"""Attribution of any value to any players: tokens, sentences, embeddings, or the log-probs' own gradients.

What is asked about comes in as a function, so that the same code serves a language model, a part of one, and a formula:

=========================  =========================================  ===================================================
``leave_one_out``          ``[K, n]`` who is there → ``[K]`` values   v(N) − v(N without t)
``shapley``                the same                                   mean over all orders of what t adds; up to 12 players
``integrated_gradients``   ``[K, L, H]`` inputs → ``[K]`` values      what each input adds on the way from a baseline
``input_gradients``        the same                                   the slope at the input: saliency, gradient × input
``inner_products``         parameters → ``[T]`` log-probs             ⟨∇l_t, v⟩ of every token for one direction v
``gram``                   the same                                   ⟨∇l_t, ∇l_s⟩ of every pair
=========================  =========================================  ===================================================

Of two copies of one fact, leaving one out costs nothing, since the other is still there; Shapley values give each half. An
absent player may be taken out, blanked or drawn anew: three different questions, and the function decides which one is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from math import factorial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import jvp, vjp

from credit_inspector.errors import AlignmentError, UsageError
from credit_inspector.table import Floats

LIMIT = 12
"""The most players whose 2ⁿ coalitions are all valued."""
POINTS = 50
"""Of Gauss–Legendre quadrature along the path of integrated gradients, as Captum's default."""

Coalitions = NDArray[np.bool_]
"""``[K, n]`` in each row, which of n players are there."""
Game = Callable[[Coalitions], Floats]
"""``[K, n]`` → ``[K]`` the value of each coalition. It may go through them in batches of its own."""
Values = Callable[[Tensor], Tensor]
"""``[K, L, H]`` → ``[K]`` values of K inputs of L embeddings each; one does not depend on another."""
LogProbs = Callable[[Mapping[str, Tensor]], Tensor]
"""Parameters by name → ``[T]`` log-probs of the tokens asked about."""


# ── players ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def leave_one_out(game: Game, players: int) -> Floats:
    """``[n]`` what the whole loses without each player; n + 1 coalitions."""
    everyone = np.ones((players + 1, players), np.bool_)
    everyone[np.arange(players), np.arange(players)] = False
    value = _valued(game, everyone)
    return value[-1] - value[:-1]


def shapley(game: Game, players: int) -> Floats:
    """``[n]`` exact Shapley values (1953): φ_t = Σ_S |S|! (n − |S| − 1)! / n! (v(S ∪ t) − v(S)); 2ⁿ coalitions.

    They add up to v(everyone) − v(nobody).

    Raises:
        UsageError: more players than ``LIMIT``.
    """
    if players > LIMIT:
        raise UsageError(
            f"exact Shapley values of {players} players",
            wanted=f"at most {LIMIT}",
            do="sample orders with captum.attr.ShapleyValueSampling",
        )
    number = np.arange(2**players)
    there = (number[:, None] >> np.arange(players) & 1).astype(np.bool_)
    value = _valued(game, there)
    weight = np.array([factorial(size) * factorial(players - size - 1) / factorial(players) for size in range(players)])
    found = np.empty(players)
    for player in range(players):
        without = number[~there[:, player]]
        found[player] = weight[there[without].sum(1)] @ (value[without | 1 << player] - value[without])
    return found


def _valued(game: Game, coalitions: Coalitions) -> Floats:
    value = np.asarray(game(coalitions), np.float64)
    if value.shape != (len(coalitions),):
        raise AlignmentError(f"values of shape {value.shape}", wanted=f"({len(coalitions)},), one for each coalition")
    return value


# ── inputs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Path(NamedTuple):
    """Integrated gradients and what they miss."""

    by_input: Tensor
    """``[L]``"""
    gap: float
    """F(input) − F(baseline) − Σ: 0 where the quadrature is exact. Shown, since nothing else says whether it was."""


def integrated_gradients(
    values: Values, inputs: Tensor, baseline: Tensor, *, points: int = POINTS, together: int = POINTS
) -> Path:
    """⟨x − x', ∫₀¹ ∂F/∂x (x' + a (x − x')) da⟩ of each input (Sundararajan et al. 2017), by Gauss–Legendre quadrature.

    Args:
        values: the value F.
        inputs: x ``[L, H]``.
        baseline: x' ``[L, H]``: zeros, the pad's or the mean embedding; the answer depends on it.
        points: of the quadrature.
        together: points that go through ``values`` at once.

    Raises:
        AlignmentError: a baseline of another shape.
        UsageError: no point.
    """
    if inputs.shape != baseline.shape:
        raise AlignmentError(f"a baseline of shape {tuple(baseline.shape)}", wanted=f"{tuple(inputs.shape)}, that of the inputs")
    if points < 1 or together < 1:
        raise UsageError(f"{points} points, {together} at once", wanted="at least 1")
    # The rule lives on −1…1.
    nodes, weights = (
        torch.as_tensor(each, dtype=inputs.dtype, device=inputs.device) for each in np.polynomial.legendre.leggauss(points)
    )
    way = (inputs - baseline).detach()
    slope = torch.zeros_like(way)
    for part in _chunks(points, together):
        at = (nodes[part, None, None] + 1) / 2
        slope += (weights[part, None, None] / 2 * input_gradients(values, baseline + at * way)).sum(0)
    by_input = (way * slope).sum(-1)
    with torch.no_grad():
        end, start = values(torch.stack([inputs, baseline])).tolist()
    return Path(by_input, end - start - float(by_input.sum()))


def input_gradients(values: Values, inputs: Tensor) -> Tensor:
    """``[K, L, H]`` ∂F/∂x at K inputs. Its length by input is the saliency, its product with x gradient × input."""
    leaf = inputs.detach().requires_grad_()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(values(leaf).sum(), [leaf], materialize_grads=True)
    return slope


# ── parameters ────────────────────────────────────────────────────────────────────────────────────────────────────────


def inner_products(logprobs: LogProbs, parameters: Mapping[str, Tensor], direction: Mapping[str, Tensor]) -> Tensor:
    """``[T]`` ⟨∇l_t, v⟩ of every token by one forward-mode pass along v; linear in v.

    After a small step of size η along v, l_t has changed by η ⟨∇l_t, v⟩. For whole models, which may have no forward
    derivative, see ``alignment``.
    """
    there = dict(parameters)
    along = {name: direction[name] for name in there}
    with torch.no_grad():
        _, found, *_ = jvp(logprobs, (there,), (along,))
    inner: Tensor = found
    return inner


def pulled_back(logprobs: LogProbs, parameters: Mapping[str, Tensor], weights: Tensor) -> dict[str, Tensor]:
    """Σ_t w_t ∇l_t by parameter: the gradient of a loss with the coefficients w, or the answer's direction (w 1 on it)."""
    _, pull, *_ = vjp(logprobs, dict(parameters))
    (slope,) = pull(weights)
    answer: dict[str, Tensor] = slope
    return answer


def gram(logprobs: LogProbs, parameters: Mapping[str, Tensor]) -> Tensor:
    """``[T, T]`` ⟨∇l_t, ∇l_s⟩ of every pair of tokens; its diagonal holds the squared norms.

    One backward and one forward-mode pass for each token, and no more memory than a few copies of the parameters: the
    ``[T, parameters]`` gradients are never there together.
    """
    values, pull, *_ = vjp(logprobs, dict(parameters))
    units = torch.eye(len(values), dtype=values.dtype, device=values.device)
    rows = [inner_products(logprobs, parameters, pull(unit)[0]) for unit in units]
    return torch.stack(rows) if rows else values.new_zeros(0, 0)


def loss_share(coefficient: Tensor, inner: Tensor) -> Tensor:
    """``[T]`` each token's share c_t j_t / ‖g‖² of a step along the loss's own gradient g = Σ c_t ∇l_t.

    Shares add up to 1; a negative one belongs to a token that works against the others. NaN where the gradient is 0.

    Args:
        coefficient: ``[T]`` c, d loss / d log-prob.
        inner: ``[T]`` j = ⟨∇l_t, g⟩; Σ c_t j_t is ‖g‖².
    """
    part = coefficient * inner
    total = part.sum()
    return part / torch.where(total > 0, total, torch.full_like(total, torch.nan))


def _chunks(count: int, size: int) -> Iterator[slice]:
    return (slice(a, b) for a, b in pairwise([*range(0, count, size), count]))
