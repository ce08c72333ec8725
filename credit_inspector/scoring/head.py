"""From hidden states to what is known of a token, without ever holding ``[tokens, vocabulary]``.

A full float32 copy of the logits of 20,000 tokens over 131,072 words takes 9.8 GiB, and log-softmax makes three. Here
rows are taken in chunks such that the copies of a chunk fit a budget; the result is the same.

The language-model head is applied here and not by the model, so whatever the model does to its logits afterwards has
to be done here too: soft-capping (Gemma), scaling (Cohere, Granite). ``Head.of`` reads it from the configuration and
holds the result against the model's own logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from credit_inspector.errors import CheckpointError, UsageError

COPIES = 3
"""Float32 copies of a chunk's logits that are alive at once: log-probabilities, probabilities, their product."""
COPIES_WITH_GRADIENT = 6
COPIES_KL = 5

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
        z = F.linear(hidden.to(self.weight.dtype), self.weight, self.bias).float()
        if self.scale != 1:
            z = z * self.scale
        if self.softcap:
            z = self.softcap * torch.tanh(z / self.softcap)
        return z if self.temperature == 1 else z / self.temperature

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
        budget: bytes for the float32 copies of a chunk.

    Raises:
        UsageError: one row does not fit the budget.
    """
    recompute = _carries_gradient(head, hidden)
    rows = head.rows(budget, COPIES_WITH_GRADIENT if recompute else COPIES)
    parts = [_run(_score_chunk, recompute, head, hidden[i], ids[i]) for i in _chunks(len(ids), rows)]
    return HeadScores(*(torch.cat(values) for values in zip(*parts, strict=True))) if parts else _nothing(hidden)


def logprob(head: Head, hidden: Tensor, ids: Tensor, budget: int, *, recompute: bool = True) -> Tensor:
    """Log-prob of the given ids ``[M]``, float32, as in ``score`` but nothing else.

    ``recompute=False`` keeps what a backward pass needs; function transforms (forward mode, ``vmap``) ask for that.
    """
    recompute = recompute and _carries_gradient(head, hidden)
    rows = head.rows(budget, COPIES_WITH_GRADIENT if recompute else COPIES)
    parts = [_run(_logprob_chunk, recompute, head, hidden[i], ids[i]) for i in _chunks(len(ids), rows)]
    return torch.cat(parts) if parts else hidden.new_zeros(0, dtype=torch.float32)


def kl(p: Head, hidden_p: Tensor, q: Head, hidden_q: Tensor, budget: int) -> Tensor:
    """Exact KL(p‖q) = Σ p (log p − log q) over the vocabulary at each position, ``[M]`` float32, in nats.

    Raises:
        CheckpointError: the vocabularies differ.
        UsageError: one row does not fit the budget.
    """
    same_vocabulary(p, q)
    recompute = _carries_gradient(p, hidden_p) or _carries_gradient(q, hidden_q)
    rows = p.rows(budget, COPIES_KL * 2 if recompute else COPIES_KL)
    parts = [_run(_kl_chunk, recompute, p, hidden_p[i], q, hidden_q[i]) for i in _chunks(len(hidden_p), rows)]
    return torch.cat(parts) if parts else hidden_p.new_zeros(0, dtype=torch.float32)


def same_vocabulary(p: Head, q: Head) -> None:
    """Two distributions can be held against each other.

    Raises:
        CheckpointError: they are over different vocabularies.
    """
    if len(p.weight) != len(q.weight):
        found = f"KL between vocabularies of {len(p.weight)} and {len(q.weight)} words"
        raise CheckpointError(found, wanted="two models with the same one")


def _score_chunk(head: Head, hidden: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    log_p = head.logits(hidden).log_softmax(-1)
    p = log_p.exp()
    return _chosen(log_p, ids), -(p * log_p).sum(-1), (p * p).sum(-1)


def _logprob_chunk(head: Head, hidden: Tensor, ids: Tensor) -> Tensor:
    return _chosen(head.logits(hidden).log_softmax(-1), ids)


def _kl_chunk(p: Head, hidden_p: Tensor, q: Head, hidden_q: Tensor) -> Tensor:
    log_p = p.logits(hidden_p).log_softmax(-1)
    log_q = q.logits(hidden_q).log_softmax(-1)
    # The sum is never negative; rounding can make it so by 1e-8.
    return (log_p.exp() * (log_p - log_q)).sum(-1).clamp_min(0)


def _chosen(log_p: Tensor, ids: Tensor) -> Tensor:
    return log_p.gather(-1, ids[:, None]).squeeze(-1)


def _chunks(n: int, rows: int) -> Iterator[slice]:
    return (slice(start, start + rows) for start in range(0, n, rows))


def _run(chunk: Callable[..., Any], recompute: bool, *arguments: Any) -> Any:
    return checkpoint(chunk, *arguments, use_reentrant=False) if recompute else chunk(*arguments)


def _carries_gradient(head: Head, hidden: Tensor) -> bool:
    return torch.is_grad_enabled() and (hidden.requires_grad or head.weight.requires_grad)


def _nothing(hidden: Tensor) -> HeadScores:
    empty = hidden.new_zeros(0, dtype=torch.float32)
    return HeadScores(empty, empty, empty)


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
