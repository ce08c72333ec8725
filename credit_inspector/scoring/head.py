"""From hidden states to what is known of a token, without ever holding ``[tokens, vocabulary]``.

A full float32 copy of the logits of 20,000 tokens over 131,072 words takes 9.8 GiB, and log-softmax makes three. Here
rows are taken in chunks such that the copies of a chunk fit a budget; the result is the same.

The language-model head is applied here and not by the model, so whatever the model does to its logits afterwards has
to be done here too: soft-capping (Gemma), scaling (Cohere, Granite). ``Head.of`` reads it from the configuration and
holds the result against the model's own logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from credit_inspector.errors import CheckpointError, UsageError
from credit_inspector.scoring.fused import Layer, kernel_for

COPIES = 3
"""Float32 copies of a row of logits that are alive at once: log-probabilities, probabilities, their product."""
COPIES_WITH_GRADIENT = 6
COPIES_KL = 5
BLOCK = {"cpu": 2**21}
"""Bytes of float32 logits that are worked on at a time where no gradient is wanted: what fits a processor's cache."""
BLOCK_ELSEWHERE = 2**25
"""On an accelerator fewer and larger pieces are quicker."""

_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
_SCALES = ("logit_scale", "lm_head_multiplier")


class HeadScores(NamedTuple):
    """What one distribution over the vocabulary says, each ``[M]`` float32."""

    logprob: Tensor
    """Of the given id, in nats."""
    entropy: Tensor
    """In nats."""
    sum_p2: Tensor
    """Σ over the vocabulary of p²."""


class Alternatives(NamedTuple):
    """The likeliest words at each position, each ``[M, k]``, the likeliest first."""

    ids: Tensor
    """int64"""
    logprob: Tensor
    """float32, in nats."""


@dataclass(frozen=True, slots=True)
class Head:
    """The last linear map of a language model and what follows it: ``softcap(scale · (W h + b)) / temperature``."""

    weight: Tensor
    """``[V, H]``"""
    bias: Tensor | None = None
    """``[V]``"""
    scale: float = 1.0
    softcap: float | None = None
    """c of ``c · tanh(z / c)``."""
    temperature: float = 1.0

    @classmethod
    def of(cls, model: Any, hidden: Callable[[Tensor], Tensor]) -> Head:
        """The head of a model, held against the model's own logits on three tokens.

        Args:
            model: a causal language model of transformers.
            hidden: from ids ``[1, W]`` to last hidden states ``[1, W, H]``.

        Raises:
            CheckpointError: the model does something to its logits that this does not know.
        """
        layer = model.get_output_embeddings()
        if layer is None or getattr(layer, "weight", None) is None:
            raise CheckpointError(f"{type(model).__name__} has no language-model head", wanted="a causal language model")
        probe = torch.arange(min(3, len(layer.weight)), device=layer.weight.device)[None]
        with torch.no_grad():
            own = model(input_ids=probe, use_cache=False).logits[0].float()
            states = hidden(probe)[0]
            for scale, softcap in _transforms(model.config):
                head = cls(layer.weight.detach(), _detached(getattr(layer, "bias", None)), scale, softcap)
                if _close(head.logits(states), own, layer.weight.dtype):
                    return head
        raise CheckpointError(
            f"{type(model).__name__} changes its logits after the head in a way that is not known here",
            wanted="soft-capping or scaling as Gemma, Cohere and Granite do it",
        )

    def at(self, temperature: float) -> Head:
        """The same head at a sampling temperature. 0 means greedy sampling, where log-probs are taken at 1."""
        return replace(self, temperature=temperature if temperature > 0 else 1.0)

    def logits(self, hidden: Tensor) -> Tensor:
        """``[n, H]`` → ``[n, V]`` float32."""
        return self.shaped(F.linear(hidden.to(self.weight.dtype), self.weight, self.bias))

    def shaped(self, product: Tensor) -> Tensor:
        """What ``logits`` does after the product."""
        z = product.float()
        if self.scale != 1:
            z = z * self.scale
        if self.softcap:
            z = self.softcap * torch.tanh(z / self.softcap)
        return z if self.temperature == 1 else z / self.temperature

    def product(self, hidden: Tensor, out: Tensor) -> Tensor:
        """``W h + b`` of ``n`` rows in the first ``n`` rows of ``out``. Carries no gradient."""
        hidden, out = hidden.to(self.weight.dtype), out[: len(hidden)]
        if self.bias is None:
            return torch.mm(hidden, self.weight.T, out=out)
        return torch.addmm(self.bias, hidden, self.weight.T, out=out)

    def finish(self, product: Tensor) -> Tensor:
        """``shaped`` for rows that may be overwritten. Carries no gradient."""
        z = product.float()
        if self.scale != 1:
            z.mul_(self.scale)
        if self.softcap:
            z.div_(self.softcap).tanh_().mul_(self.softcap)
        return z if self.temperature == 1 else z.div_(self.temperature)

    def rows(self, budget: int, copies: int = COPIES) -> int:
        """How many rows of logits fit a budget of bytes.

        Raises:
            UsageError: not even one does.
        """
        one = 4 * len(self.weight) * copies
        if one > budget:
            raise UsageError(
                f"one token over a vocabulary of {len(self.weight)} takes {one / 2**20:.3g} MB",
                wanted=f"at most the memory budget of {budget / 2**20:.3g} MB",
                do=f"raise the budget to {-(-one // 2**20)} MB",
            )
        return budget // one


def score(head: Head, hidden: Tensor, ids: Tensor, budget: int) -> HeadScores:
    """Log-prob of the given ids, entropy and Σp², in float32.

    Carries gradients where ``hidden`` or the weights do; each chunk is then computed again in the backward pass
    instead of being kept.

    Args:
        head: the head.
        hidden: ``[M, H]``
        ids: ``[M]``
        budget: bytes for the copies of logits that are alive at once.

    Raises:
        UsageError: one row does not fit the budget.
    """
    if not len(ids):
        return HeadScores(*(_nothing(hidden) for _ in range(3)))
    block, chunk = partial(_score_block, ids), partial(_score_chunk, ids)
    if _carries_gradient(head, hidden):
        return HeadScores(*_recomputed(_Form(block, chunk, [head], COPIES_WITH_GRADIENT, budget), hidden))
    if kernel := kernel_for(head.weight):
        return HeadScores(*kernel.score(_layer(head), hidden, ids, budget))
    return HeadScores(*_in_blocks(block, [(head, hidden)], budget))


def score_with_alternatives(head: Head, hidden: Tensor, ids: Tensor, k: int, budget: int) -> tuple[HeadScores, Alternatives]:
    """``score`` and ``alternatives`` from one product with the head's weights.

    Raises:
        UsageError: one row does not fit the budget, or the vocabulary has fewer than ``k`` words.
    """
    _enough(head, k)
    if not len(ids):
        return score(head, hidden, ids, budget), alternatives(head, hidden, k, budget)
    found = _run(_Form(partial(_both_block, ids, k), partial(_both_chunk, ids, k), [head], COPIES_WITH_GRADIENT, budget), hidden)
    return HeadScores(*found[:3]), Alternatives(*found[3:])


def alternatives(head: Head, hidden: Tensor, k: int, budget: int) -> Alternatives:
    """The ``k`` likeliest words at each position with their log-probs. Log-probs carry gradients as in ``score``.

    Raises:
        UsageError: one row does not fit the budget, or the vocabulary has fewer than ``k`` words.
    """
    _enough(head, k)
    if not len(hidden):
        none = _nothing(hidden).reshape(0, k)
        return Alternatives(none.long(), none)
    form = _Form(partial(_alternatives_block, k), partial(_alternatives_chunk, k), [head], COPIES_WITH_GRADIENT, budget)
    return Alternatives(*_run(form, hidden))


def logprob(head: Head, hidden: Tensor, ids: Tensor, budget: int, *, recompute: bool = True) -> Tensor:
    """Log-prob of the given ids ``[M]``, float32, as in ``score`` but nothing else.

    ``recompute=False`` keeps what a backward pass needs; function transforms (forward mode, ``vmap``) ask for that.
    """
    if not len(ids):
        return _nothing(hidden)
    if not recompute:
        return torch.cat([_logprob_chunk(ids, [head.logits(hidden[i])], i)[0] for i in _chunks(len(ids), head.rows(budget))])
    # The kernel keeps a gradient of the weights in float32, which is no part of any budget.
    frozen = not (torch.is_grad_enabled() and head.weight.requires_grad)
    if frozen and (kernel := kernel_for(head.weight)):
        return kernel.logprob(_layer(head), hidden, ids, budget)
    form = _Form(partial(_logprob_block, ids), partial(_logprob_chunk, ids), [head], COPIES_WITH_GRADIENT, budget)
    return _run(form, hidden)[0]


def kl(p: Head, hidden_p: Tensor, q: Head, hidden_q: Tensor, budget: int) -> Tensor:
    """Exact KL(p‖q) = Σ p (log p − log q) over the vocabulary at each position, ``[M]`` float32, in nats.

    Raises:
        CheckpointError: the vocabularies differ.
        UsageError: one row does not fit the budget.
    """
    same_vocabulary(p, q)
    if not len(hidden_p):
        return _nothing(hidden_p)
    return _run(_Form(_kl_block, _kl_chunk, [p, q], 2 * COPIES_KL, budget), hidden_p, hidden_q)[0]


def same_vocabulary(p: Head, q: Head) -> None:
    """Two distributions can be held against each other.

    Raises:
        CheckpointError: they are over different vocabularies.
    """
    if len(p.weight) != len(q.weight):
        found = f"KL between vocabularies of {len(p.weight)} and {len(q.weight)} words"
        raise CheckpointError(found, wanted="two models with the same one")


def _enough(head: Head, k: int) -> None:
    if not 0 < k <= len(head.weight):
        raise UsageError(f"{k} alternatives of {len(head.weight)} words", wanted="at least one and no more than there are")


Block = Callable[[list[Tensor], slice, Tensor], tuple[Tensor, ...]]
"""Logits ``[n, V]`` of each head (overwritten), their rows among all, scratch ``[n, V]`` → values ``[n, …]``."""
Chunk = Callable[[list[Tensor], slice], tuple[Tensor, ...]]
"""Logits of each head and their rows among all → the same values, by operations that autograd knows."""


@dataclass(frozen=True, slots=True)
class _Form:
    """One thing to compute, without gradients and with them."""

    block: Block
    chunk: Chunk
    heads: list[Head]
    copies: int
    """Of a row of logits that are alive while a block is differentiated."""
    budget: int


def _run(form: _Form, *hidden: Tensor) -> tuple[Tensor, ...]:
    if any(_carries_gradient(head, states) for head, states in zip(form.heads, hidden, strict=True)):
        return _recomputed(form, *hidden)
    return _in_blocks(form.block, list(zip(form.heads, hidden, strict=True)), form.budget)


# ── with gradients: the backward pass computes the logits again ───────────────────────────────────────────────────────


def _recomputed(form: _Form, *hidden: Tensor) -> tuple[Tensor, ...]:
    """The values of a form, whose logits the backward pass computes again, chunk by chunk."""
    form.heads[0].rows(form.budget, form.copies)
    given = [tensor for head, states in zip(form.heads, hidden, strict=True) for tensor in (states, head.weight, head.bias)]
    values: tuple[Tensor, ...] = _Recomputed.apply(form, *given)
    return values


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, form: _Form, *given: Tensor | None) -> tuple[Tensor, ...]:
        ctx.form = form
        ctx.save_for_backward(*given)
        values = _in_blocks(form.block, [(head, states) for head, states in _sides(form, given)], form.budget)
        ctx.mark_non_differentiable(*(value for value in values if not value.is_floating_point()))
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        form, given = ctx.form, ctx.saved_tensors
        pairs = zip(given, ctx.needs_input_grad[1:], strict=True)
        # What is summed over chunks is summed in float32.
        totals = [torch.zeros_like(t, dtype=torch.float32) if need else None for t, need in pairs]
        sides = _sides(form, given)
        n = len(sides[0][1])
        rows, few = _sizes(form.heads, n, form.budget, form.copies)
        products = [head.weight.new_empty(rows, len(head.weight)) for head, _ in sides]
        for i in _chunks(n, rows):
            full = [head.product(states[i], out) for (head, states), out in zip(sides, products, strict=True)]
            for j in _chunks(len(full[0]), few):
                _slope_at_products(form, [product[j] for product in full], slopes, i.start + j.start, totals)
            for side, product in enumerate(full):
                _add(totals[3 * side : 3 * side + 3], sides[side], product, i)
        return None, *(None if total is None else total.to(t.dtype) for total, t in zip(totals, given, strict=True))


def _slope_at_products(form: _Form, pieces: list[Tensor], slopes: Sequence[Tensor], start: int, totals: Sequence[Any]) -> None:
    """Writes the gradient at a block of each product in its place."""
    rows = slice(start, start + len(pieces[0]))
    wanted = [any(total is not None for total in totals[3 * side : 3 * side + 3]) for side in range(len(pieces))]
    leaves = [piece.detach().requires_grad_(want) for piece, want in zip(pieces, wanted, strict=True)]
    with torch.enable_grad():
        values = form.chunk([head.shaped(leaf) for head, leaf in zip(form.heads, leaves, strict=True)], rows)
        pairs = [(value, slope[rows]) for value, slope in zip(values, slopes, strict=True) if value.requires_grad]
        asked = [leaf for leaf in leaves if leaf.requires_grad]
        found = torch.autograd.grad([value for value, _ in pairs], asked, [slope for _, slope in pairs])
    for piece, gradient in zip([p for p, want in zip(pieces, wanted, strict=True) if want], found, strict=True):
        piece.copy_(gradient)


def _add(totals: Sequence[Tensor | None], side: tuple[Head, Tensor], slope: Tensor, rows: slice) -> None:
    """From the gradient at some rows of the product to those of hidden states, weights and bias."""
    (head, hidden), (states, weight, bias) = side, totals
    if states is not None:
        states[rows] = torch.mm(slope, head.weight).float()
    if weight is not None:
        weight += torch.mm(slope.T, hidden[rows].to(slope.dtype))
    if bias is not None:
        bias += slope.float().sum(0)


def _sides(form: _Form, given: Sequence[Any]) -> list[tuple[Head, Tensor]]:
    triples = [given[i : i + 3] for i in range(0, len(given), 3)]
    return [
        (replace(head, weight=weight, bias=bias), states)
        for head, (states, weight, bias) in zip(form.heads, triples, strict=True)
    ]


def _score_chunk(ids: Tensor, z: list[Tensor], rows: slice) -> tuple[Tensor, Tensor, Tensor]:
    return _of_distribution(z[0].log_softmax(-1), ids[rows])


def _logprob_chunk(ids: Tensor, z: list[Tensor], rows: slice) -> tuple[Tensor]:
    return (_chosen(z[0].log_softmax(-1), ids[rows]),)


def _alternatives_chunk(k: int, z: list[Tensor], rows: slice) -> tuple[Tensor, Tensor]:
    del rows
    best = z[0].log_softmax(-1).topk(k, -1)
    return best.indices, best.values


def _both_chunk(ids: Tensor, k: int, z: list[Tensor], rows: slice) -> tuple[Tensor, ...]:
    log_p = z[0].log_softmax(-1)
    best = log_p.topk(k, -1)
    return *_of_distribution(log_p, ids[rows]), best.indices, best.values


def _of_distribution(log_p: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    p = log_p.exp()
    return _chosen(log_p, ids), -(p * log_p).sum(-1), (p * p).sum(-1)


def _kl_chunk(z: list[Tensor], rows: slice) -> tuple[Tensor]:
    del rows
    log_p, log_q = (logits.log_softmax(-1) for logits in z)
    return ((log_p.exp() * (log_p - log_q)).sum(-1),)


# ── without gradients: one buffer for the product, small blocks of it overwritten in place ────────────────────────────


def _in_blocks(block: Block, sides: list[tuple[Head, Tensor]], budget: int) -> tuple[Tensor, ...]:
    """``block`` over all rows of each side's hidden states, its values joined.

    The product runs on as many rows as fit. A pass over all of them would fetch them from memory each time, so the
    passes run on one block after another.
    """
    n = len(sides[0][1])
    rows, few = _sizes([head for head, _ in sides], n, budget)
    weights = [head.weight for head, _ in sides]
    products = [weight.new_empty(rows, len(weight)) for weight in weights]
    scratch = weights[0].new_empty(few, len(weights[0]), dtype=torch.float32)

    def one(start: int, pieces: list[Tensor]) -> tuple[Tensor, ...]:
        # A function of its own, so that no copy of a block lives on into the next one.
        z = [head.finish(piece) for (head, _), piece in zip(sides, pieces, strict=True)]
        return block(z, slice(start, start + len(z[0])), scratch[: len(z[0])])

    parts = []
    for i in _chunks(n, rows):
        full = [head.product(hidden[i], out) for (head, hidden), out in zip(sides, products, strict=True)]
        parts += [one(i.start + j.start, [product[j] for product in full]) for j in _chunks(len(full[0]), few)]
    return tuple(torch.cat(values) for values in zip(*parts, strict=True))


def _sizes(heads: list[Head], n: int, budget: int, copies: int = 0) -> tuple[int, int]:
    """Rows of a product and of a block of it, such that products and copies of a block fit the budget."""
    head = heads[0]
    one = 4 * len(head.weight)
    most = head.rows(budget, copies or (COPIES if len(heads) == 1 else COPIES_KL))
    few = max(1, min(most // 2, n, BLOCK.get(head.weight.device.type, BLOCK_ELSEWHERE) // one))
    beside = copies or 1 + sum(head.weight.dtype != torch.float32 for head in heads)
    row = sum(len(head.weight) * head.weight.element_size() for head in heads)
    return min(n, max(1, (budget - beside * few * one) // row)), few


class _Weights(NamedTuple):
    largest: Tensor
    """Logit ``[n, 1]``; the logits themselves are from now on relative to it."""
    each: Tensor
    """e^z ``[n, V]``"""
    total: Tensor
    """Σ e^z ``[n]``"""
    log_total: Tensor
    """``[n]``"""


def _weigh(z: Tensor, scratch: Tensor) -> _Weights:
    largest = z.amax(-1, keepdim=True)
    each = torch.exp(z.sub_(largest), out=scratch)
    total = each.sum(-1)
    return _Weights(largest, each, total, total.log())


def _logprob_block(ids: Tensor, z: list[Tensor], rows: slice, scratch: Tensor) -> tuple[Tensor]:
    weights = _weigh(z[0], scratch)
    return (_chosen(z[0], ids[rows]) - weights.log_total,)


def _score_block(ids: Tensor, z: list[Tensor], rows: slice, scratch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _scored(z[0], ids[rows], _weigh(z[0], scratch))


def _alternatives_block(k: int, z: list[Tensor], rows: slice, scratch: Tensor) -> tuple[Tensor, Tensor]:
    best = z[0].topk(k, -1)
    return _listed(best, _weigh(z[0], scratch))


def _both_block(ids: Tensor, k: int, z: list[Tensor], rows: slice, scratch: Tensor) -> tuple[Tensor, ...]:
    best = z[0].topk(k, -1)
    weights = _weigh(z[0], scratch)
    return *_scored(z[0], ids[rows], weights), *_listed(best, weights)


def _kl_block(z: list[Tensor], rows: slice, scratch: Tensor) -> tuple[Tensor]:
    p, q = z
    log_total_q = _weigh(q, scratch).log_total
    weights = _weigh(p, scratch)
    mean = weights.each.mul_(p.sub_(q)).sum(-1) / weights.total
    # Never negative; rounding can make it so by 1e-7.
    return ((mean - weights.log_total + log_total_q).clamp_min(0),)


def _scored(z: Tensor, ids: Tensor, weights: _Weights) -> tuple[Tensor, Tensor, Tensor]:
    """Overwrites the logits and the weights."""
    _, each, total, log_total = weights
    chosen = _chosen(z, ids) - log_total
    entropy = log_total - z.mul_(each).sum(-1) / total
    return chosen, entropy, each.square_().sum(-1) / (total * total)


def _listed(best: Any, weights: _Weights) -> tuple[Tensor, Tensor]:
    return best.indices, best.values - weights.largest - weights.log_total[:, None]


def _chosen(log_p: Tensor, ids: Tensor) -> Tensor:
    return log_p.gather(-1, ids[:, None]).squeeze(-1)


def _chunks(n: int, rows: int) -> Iterator[slice]:
    return (slice(start, start + rows) for start in range(0, n, rows))


def _layer(head: Head) -> Layer:
    return Layer(head.weight, head.bias, head.scale, head.softcap, head.temperature)


def _carries_gradient(head: Head, hidden: Tensor) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (hidden, head.weight, head.bias))


def _nothing(hidden: Tensor) -> Tensor:
    return hidden.new_zeros(0, dtype=torch.float32)


def _detached(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach()


def _transforms(config: Any) -> Iterator[tuple[float, float | None]]:
    """Scale and soft-cap as the configuration may mean them, the likeliest first.

    ``logits_scaling`` divides in Granite and multiplies in HyperCLOVA X, so both are tried.
    """
    text = config.get_text_config()
    scales = [float(value) for name in _SCALES if (value := getattr(text, name, None))]
    if scaling := getattr(text, "logits_scaling", None):
        scales += [1 / float(scaling), float(scaling)]
    cap = next((float(value) for name in _CAPS if (value := getattr(text, name, None))), None)
    for softcap in dict.fromkeys((cap, None)):
        for scale in dict.fromkeys((*scales, 1.0)):
            yield scale, softcap


def _close(ours: Tensor, own: Tensor, dtype: torch.dtype) -> bool:
    tolerance = 1e-4 if dtype == torch.float32 else 3e-2
    return ours.shape == own.shape and bool((ours - own).abs().max() <= tolerance * own.abs().max().clamp_min(1e-3))
