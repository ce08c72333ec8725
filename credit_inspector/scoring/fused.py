"""TRL's fused log-prob kernel for CUDA, used where it is there and gives what the plain computation gives.

``trl.kernels.ChunkedLogProbFunction`` (TRL 1.16, Triton) reads each tile of logits once, where the plain way in torch
passes over it about eight times. It is young and its arguments are positional, so nothing is taken on trust: at the first
use on a device, in each precision, it is held against a full log-softmax, its gradient included. Where that fails, one
warning says so and the plain way is taken.

Its Σp² carries no gradient; ``head.score`` asks for it without gradients only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

log = logging.getLogger("credit_inspector")

TOKENS = 4096
"""Rows of a tile at most: more of them make the product no faster."""
WIDTH = 1024
"""Words of a tile at least, and its width in multiples of it: the kernel reads that many at a time."""

TOLERANCE = {torch.float32: 2e-3, torch.float16: 5e-3, torch.bfloat16: 2e-2}
"""By how much a value of the check may differ, as a share of the largest: logits rounded to TF32 and half precision."""

Scored = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor, Tensor]]
Logprob = Callable[[Tensor, Tensor, int], Tensor]


class Layer(NamedTuple):
    """A language-model head as plain values: ``softcap(scale · (W h + b)) / temperature``."""

    weight: Tensor
    bias: Tensor | None
    scale: float
    softcap: float | None
    temperature: float


@dataclass(frozen=True, slots=True)
class Kernel:
    """TRL's function under this project's budget."""

    function: Any
    """Has ``apply`` as ``ChunkedLogProbFunction`` does."""
    copies: int = 1
    """Copies of a tile that are alive at once; one under Triton."""

    def logprob(self, layer: Layer, hidden: Tensor, ids: Tensor, budget: int) -> Tensor:
        """Log-prob of the given ids, ``[M]`` float32, with gradients for hidden states, weights and bias."""
        return torch.cat([self._apply(layer, hidden[i], ids[i], width, ())[0] for i, width in self._tiles(layer, hidden, budget)])

    def score(self, layer: Layer, hidden: Tensor, ids: Tensor, budget: int) -> tuple[Tensor, Tensor, Tensor]:
        """Log-prob, entropy and Σp², ``[M]`` float32 each. Σp² carries no gradient."""
        wanted = ("entropy", "log_sum_sq_probs")
        parts = [self._apply(layer, hidden[i], ids[i], width, wanted) for i, width in self._tiles(layer, hidden, budget)]
        logprob, entropy, log_sum_p2 = (torch.cat(values) for values in list(zip(*parts, strict=True))[:3])
        return logprob, entropy, log_sum_p2.exp()

    def _apply(self, layer: Layer, hidden: Tensor, ids: Tensor, width: int, outputs: tuple[str, ...]) -> tuple[Any, ...]:
        weight, bias, scale, softcap, temperature = layer
        states = hidden.to(weight.dtype).contiguous()
        answer: tuple[Any, ...] = self.function.apply(
            states, weight, bias, ids.contiguous(), temperature, width, softcap or None, scale, outputs
        )
        return answer

    def _tiles(self, layer: Layer, hidden: Tensor, budget: int) -> Iterator[tuple[slice, int]]:
        rows, width = tile(len(hidden), len(layer.weight), budget // (layer.weight.element_size() * self.copies))
        return ((slice(start, start + rows), width) for start in range(0, len(hidden), rows))


def tile(n: int, vocabulary: int, elements: int) -> tuple[int, int]:
    """Rows and words of the largest tile of that many elements; the rows come first, up to ``TOKENS``."""
    rows = max(1, min(n, TOKENS, elements // WIDTH))
    widest = -(-vocabulary // WIDTH) * WIDTH
    return rows, max(WIDTH, min(widest, elements // rows // WIDTH * WIDTH))


def kernel_for(weight: Tensor) -> Kernel | None:
    """The kernel for weights like these, where there is one and it has proved itself."""
    return _proved(weight.device, weight.dtype) if weight.is_cuda else None


@cache
def _proved(device: torch.device, dtype: torch.dtype) -> Kernel | None:
    function = _function()
    return proved(Kernel(function), device, dtype) if function and dtype in TOLERANCE else None


def _function() -> Any:
    # TRL is optional, its kernels came with 1.16, and without Triton they are no faster.
    if find_spec("triton") is None:
        return None
    try:
        from trl.kernels import ChunkedLogProbFunction
    except ImportError:
        return None
    return ChunkedLogProbFunction


def proved(kernel: Kernel, device: torch.device, dtype: torch.dtype) -> Kernel | None:
    """The same kernel, or None with a warning where it fails or gives something else than a full log-softmax."""
    try:
        fault = difference(kernel, device, dtype)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        # Whatever a compiler on another machine raises.
        fault = f"it fails: {type(error).__name__}: {str(error).strip().partition(chr(10))[0] or 'no message'}"
    if fault is None:
        return kernel
    kind = str(dtype).removeprefix("torch.")
    log.warning("TRL's log-prob kernel is not used on %s in %s, %s; log-probs are computed without it", device, kind, fault)
    return None


def difference(kernel: Kernel, device: torch.device, dtype: torch.dtype) -> str | None:
    """What the kernel gives that a full log-softmax does not, on random weights; None where they agree."""
    weight, bias, hidden, ids = _probe(device, dtype)
    # Three tiles, the last of them a ragged one.
    budget = len(hidden) * WIDTH * weight.element_size() * kernel.copies
    for layer in (Layer(weight, None, 1.0, None, 1.0), Layer(weight, bias, 0.5, 5.0, 0.7)):
        ours = _checked(partial(kernel.score, layer), partial(kernel.logprob, layer), hidden, ids, budget)
        full = _checked(partial(_full, layer), partial(_full_logprob, layer), hidden, ids, budget)
        for name, value in ours.items():
            worst = ((value - full[name]).abs().max() / full[name].abs().max()).item()
            # Not `>`: a NaN differs too.
            if not worst <= TOLERANCE[dtype]:
                return f"{name} differs by {worst:.1%} from a full log-softmax"
    return None


def _checked(score: Scored, logprob: Logprob, hidden: Tensor, ids: Tensor, budget: int) -> dict[str, Tensor]:
    with torch.no_grad():
        values = dict(zip(("log-prob", "entropy", "Σp²"), score(hidden, ids, budget), strict=True))
    states = hidden.clone().requires_grad_()
    with torch.enable_grad():
        slope = torch.autograd.grad(logprob(states, ids, budget).sum(), states)[0]
    return values | {"gradient": slope.float()}


def _probe(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    vocabulary, width, rows = 2 * WIDTH + 345, 64, 37
    made = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(vocabulary, width, generator=made) / 8, torch.randn(vocabulary, generator=made)
    hidden, ids = torch.randn(rows, width, generator=made), torch.randint(0, vocabulary, (rows,), generator=made)
    return weight.to(device, dtype), bias.to(device, dtype), hidden.to(device, dtype), ids.to(device)


def _full(layer: Layer, hidden: Tensor, ids: Tensor, budget: int) -> tuple[Tensor, Tensor, Tensor]:
    """All logits at once, whatever the budget."""
    weight, bias, scale, softcap, temperature = layer
    z = torch.nn.functional.linear(hidden, weight, bias).float() * scale
    z = softcap * torch.tanh(z / softcap) if softcap else z
    log_p = (z / temperature).log_softmax(-1)
    p = log_p.exp()
    return log_p.gather(-1, ids[:, None]).squeeze(-1), -(p * log_p).sum(-1), (p * p).sum(-1)


def _full_logprob(layer: Layer, hidden: Tensor, ids: Tensor, budget: int) -> Tensor:
    return _full(layer, hidden, ids, budget)[0]
