"""Gradient × input: what each token's embedding adds, to first order, to the answer's log-prob.

With e_t the embedding of token t and F = log p(answer)::

    s_t = ⟨e_t, ∂F/∂e_t⟩

in nats (Shrikumar et al. 2016; Denil et al. 2014). It is what F would lose if e_t shrank to zero and F were linear.
One backward pass for a whole batch: responses do not see each other, so the gradient of ΣF holds each one's own.

The gradient is taken at a detached copy of the embeddings, put in where the embedding layer answers. It is therefore
there also when all weights are frozen or gradient checkpointing cuts the graph at its inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from credit_inspector.errors import CheckpointError
from credit_inspector.scoring.answers import answers, place
from credit_inspector.scoring.batches import Batch, Line, batches, distinct
from credit_inspector.scoring.head import logprob
from credit_inspector.scoring.models import Models
from credit_inspector.spans import SpanTable
from credit_inspector.table import TokenTable

TOKENS = 2048
"""Padded tokens of one batch: half of a scoring batch, since a backward pass keeps every layer's activations."""


def saliency(models: Models, table: TokenTable, spans: SpanTable, role: str = "policy") -> NDArray[np.float32]:
    """``[T]`` ⟨e_t, ∂ log p(answer)/∂e_t⟩ in nats.

    NaN where the response has no answer span or cannot be run. Exactly 0 from the answer's last token on: nothing of
    the answer comes after it.

    Raises:
        CheckpointError: the answer does not depend on the embeddings by any differentiable path.
        MissingColumn: no checkpoint for the role.
    """
    return models.once(("saliency", models.checkpoint(role).path), lambda: _saliency(models, table, spans, role), table, spans)


def _saliency(models: Models, table: TokenTable, spans: SpanTable, role: str) -> NDArray[np.float32]:
    found = answers(spans, table.n_rows)
    rows: list[int] = []
    lines: list[Line] = []
    for row, line in zip(*models.lines(role, table), strict=True):
        if found[row] >= 0:
            shift = len(line.ids) - int(table.offsets[row + 1])
            start, end = place(spans, int(found[row]))
            rows.append(row)
            lines.append(Line(line.ids[: end + shift], max(start + shift, 1)))
    once, twins = distinct(lines)
    products = _products(models, table, once, role)
    flat = np.full(table.n_tokens, np.nan, np.float32)
    for row, twin in zip(rows, twins, strict=True):
        begin, end = int(table.offsets[row]), int(spans.end[found[row]])
        flat[begin:end] = products[twin][len(products[twin]) - (end - begin) :]
        flat[end : table.offsets[row + 1]] = 0.0
    return flat


def _products(models: Models, table: TokenTable, lines: list[Line], role: str) -> list[NDArray[np.float32]]:
    """For each line ⟨e, ∂F/∂e⟩ of all of its tokens, prompt and response."""
    opened = models.opened(role)
    head = opened.head.at(models.temperature(table))
    found: list[NDArray[np.float32]] = [np.zeros(0, np.float32)] * len(lines)
    done = 0
    for batch in batches(lines, opened.device, TOKENS):
        with torch.enable_grad(), _leaf(opened.model) as leaves:
            total = logprob(head, opened.states(batch), batch.target, models.budget).sum()
            product = _product(total, leaves, batch, type(opened.model).__name__)
        for i, values in zip(batch.lines, product.cpu().numpy(), strict=True):
            found[i] = values[: len(lines[i].ids)]
        done += len(batch.lines)
        models.report("gradient × input", done, len(lines))
    return found


def _product(total: Tensor, leaves: list[Tensor], batch: Batch, name: str) -> Tensor:
    """Gradient × input of the batch, ``[B, W]``."""
    leaf = next((leaf for leaf in leaves if leaf.shape[:2] == batch.ids.shape), None)
    (slope,) = torch.autograd.grad(total, [leaf], allow_unused=True) if leaf is not None and total.requires_grad else (None,)
    if leaf is None or slope is None:
        raise CheckpointError(
            f"{name}: the answer's log-prob does not depend on the token embeddings by any differentiable path",
            wanted="a model whose forward pass is not cut by detach() or no_grad()",
        )
    return (leaf.detach().float() * slope.float()).sum(-1)


@contextmanager
def _leaf(model: Any) -> Iterator[list[Tensor]]:
    """Have the embedding layer answer with a detached leaf, kept in the list."""
    leaves: list[Tensor] = []

    def swap(_layer: Any, _given: Any, answer: Tensor) -> Tensor:
        leaves.append(answer.detach().requires_grad_())
        return leaves[-1]

    handle = model.get_input_embeddings().register_forward_hook(swap)
    try:
        yield leaves
    finally:
        handle.remove()
