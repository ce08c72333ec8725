"""Gradient alignment: how far pushing a token up also pushes the answer up.

For one response with answer tokens A, and l_t the log-prob of its token t::

    v   = Σ_{a∈A} ∇_θ l_a           one backward pass
    j_t = ⟨∇_θ l_t, v⟩              for every t at once: one forward-mode pass along v (a Jacobian-vector product)

so that Σ_{a∈A} j_a = ‖v‖², and a small step along ∇l_t changes log p(answer) by j_t times its size. Token-by-token
backward passes give the same numbers at 11 (64 tokens) to 147 times (512 tokens) the cost.

Forward mode needs attention written in plain operations: fused kernels have no forward derivative. Several responses
go through at once (``vmap``) where the model allows it. What does not is tried again, in this order, and the way that
worked is named:

1. forward mode, several responses at once
2. forward mode, one response at a time (models whose control flow depends on the data, such as mixtures of experts)
3. double backward: u ↦ Σ_t u_t ∇l_t is linear, and its derivative along v is j (kernels without a forward formula)
4. central difference: (l(θ + s v) − l(θ − s v)) / 2s, two forward passes, an error of about one in a thousand

A way counts as failed also where its answer tokens do not add up to ‖v‖²: an operation that can be differentiated
only once cuts the graph of a double backward in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from credit_inspector.errors import CheckpointError
from credit_inspector.scoring.answers import answers, place
from credit_inspector.scoring.batches import Line, pack
from credit_inspector.scoring.head import COPIES_WITH_GRADIENT, logprob
from credit_inspector.scoring.models import Models, Opened
from credit_inspector.spans import SpanTable
from credit_inspector.table import TokenTable

CERTAIN = 1e-6
"""Where the answer's tokens miss certainty by less than this in sum, its float32 gradient is nothing but rounding."""

OFF = {torch.float32: 0.01, torch.bfloat16: 0.1}
"""How far Σ j_a may be from ‖v‖², as a share of Σ |j_a|."""

STEP = 1e-5
"""‖s v‖ of the central difference as a share of ‖θ‖: smaller steps drown in float32 rounding, larger ones curve."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """Inner products of a step's tokens with their own answers."""

    inner: NDArray[np.float32]
    """``[T]`` j_t; NaN without an answer."""
    norm2: NDArray[np.float64]
    """``[N]`` ‖v‖²; NaN without an answer."""
    certain: NDArray[np.bool_]
    """``[N]`` where the answer is so sure that its gradient is rounding."""
    way: str
    """How it was computed, as in the list above."""


class _Job(NamedTuple):
    """One response: which tokens of its line are the answer, and which are asked about."""

    line: Line
    answer: NDArray[np.int64]
    """``[A]`` places in the line."""
    asked: NDArray[np.int64]
    """``[R]`` places in the line."""


class _Found(NamedTuple):
    inner: Tensor
    """``[R]``"""
    norm2: float
    doubt: float
    """Σ over the answer of 1 − p."""


_Way = Callable[["_Differentiable", Sequence[_Job]], Iterator[_Found]]


def align(
    models: Models, table: TokenTable, spans: SpanTable, role: str = "policy", ways: Sequence[str] | None = None
) -> Alignment:
    """⟨∇ log π(token), ∇ log p(answer)⟩ for every response token whose response has an answer span.

    The model is left as it was: no gradient is stored and no parameter touched.

    Args:
        models: the checkpoints.
        table: the step.
        spans: its spans; the last one labelled ``answer`` counts.
        role: the model asked.
        ways: names of ``WAYS`` to try, in order.

    Raises:
        CheckpointError: no way worked.
        MissingColumn: no checkpoint for the role.
    """
    opened = models.opened(role)
    rows, jobs = _jobs(models, table, spans, role)
    inner = np.full(table.n_tokens, np.nan, np.float32)
    norm2 = np.full(table.n_rows, np.nan)
    doubt = np.full(table.n_rows, np.inf)
    once, twins = _distinct(jobs)
    work = _Differentiable(opened, models.temperature(table), models.budget)
    found, way = _solve(work, once, ways or tuple(WAYS), models)
    for row, twin in zip(rows, twins, strict=True):
        end = int(table.offsets[row + 1])
        inner[end - len(found[twin].inner) : end] = found[twin].inner.cpu().numpy()
        norm2[row], doubt[row] = found[twin].norm2, found[twin].doubt
    return Alignment(inner, norm2, doubt < CERTAIN, way)


def _jobs(models: Models, table: TokenTable, spans: SpanTable, role: str) -> tuple[list[int], list[_Job]]:
    found = answers(spans, table.n_rows)
    rows: list[int] = []
    jobs: list[_Job] = []
    for row, line in zip(*models.lines(role, table), strict=True):
        if found[row] < 0:
            continue
        shift = len(line.ids) - int(table.offsets[row + 1])
        start, end = place(spans, int(found[row]))
        answer = np.arange(max(start + shift, line.first), end + shift)
        if len(answer):
            rows.append(row)
            jobs.append(_Job(line, answer, np.arange(line.first, len(line.ids))))
    return rows, jobs


def _distinct(jobs: Sequence[_Job]) -> tuple[list[_Job], list[int]]:
    numbers: dict[tuple[bytes, int, bytes], int] = {}
    keys = [(job.line.ids.tobytes(), job.line.first, job.answer.tobytes()) for job in jobs]
    twins = [numbers.setdefault(key, len(numbers)) for key in keys]
    first = dict(zip(reversed(twins), reversed(jobs), strict=True))
    return [first[i] for i in range(len(numbers))], twins


def _solve(work: _Differentiable, jobs: Sequence[_Job], ways: Sequence[str], models: Models) -> tuple[list[_Found], str]:
    """Each job's answer; a way that fails once is not tried again."""
    left = list(ways)
    reasons: list[str] = []
    found: dict[int, _Found] = {}
    batches = list(pack([len(job.line.ids) for job in jobs], work.tokens(jobs)))
    while batches and left:
        chosen = [jobs[i] for i in batches[0]]
        try:
            answered = list(WAYS[left[0]](work, chosen))
            _add_up(chosen, answered, OFF.get(work.head.weight.dtype, 0.1))
            found.update(zip(batches[0], answered, strict=True))
        except RuntimeError as error:
            reasons.append(f"{left.pop(0)}: {_first_line(error)}")
            continue
        batches.pop(0)
        models.report("gradient alignment", len(found), len(jobs))
    if batches:
        raise CheckpointError(
            f"no gradient can be taken through {type(work.opened.model).__name__} ({'; '.join(reasons)})",
            wanted="a model of differentiable operations",
        )
    return [found[i] for i in range(len(jobs))], left[0] if left else ""


def _add_up(jobs: Sequence[_Job], found: Sequence[_Found], tolerance: float) -> None:
    for job, one in zip(jobs, found, strict=True):
        own = one.inner[torch.from_numpy(job.answer - job.asked[0])].double()
        if one.doubt >= CERTAIN and not abs(float(own.sum()) - one.norm2) <= tolerance * float(own.abs().sum()):
            raise RuntimeError(f"the answer's tokens add up to {float(own.sum()):.4g} and not to {one.norm2:.4g}")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]


class _Differentiable(torch.nn.Module):
    """Log-probs of chosen places of a sequence as a function of the model's parameters."""

    def __init__(self, opened: Opened, temperature: float, budget: int) -> None:
        super().__init__()
        self.opened = opened
        self.model = opened.model
        self.head = opened.head.at(temperature)
        self.budget = budget
        # Tied weights stand here once, under one name: functional_call puts the one tensor in all of its places.
        self.parameters_by_name = {name: p.detach() for name, p in self.named_parameters() if p.is_floating_point()}

    def forward(self, ids: Tensor, places: Tensor, recompute: bool = False) -> Tensor:
        """``ids [W]``, ``places [R]`` ≥ 1 → their log-probs ``[R]``. Padding on the right is no matter."""
        position = torch.arange(ids.shape[-1], device=ids.device)[None]
        states = self.opened.hidden(ids[None], None, position)[0]
        layer: Any = self.model.get_output_embeddings()
        head = replace(self.head, weight=layer.weight, bias=getattr(layer, "bias", None))
        return logprob(head, states[places - 1], ids[places], self.budget, recompute=recompute)

    def at(self, parameters: dict[str, Tensor], ids: Tensor, places: Tensor, recompute: bool = False) -> Tensor:
        """The same with other parameters."""
        answer: Tensor = functional_call(self, parameters, (ids, places, recompute))
        return answer

    def tensor(self, array: NDArray[np.int64]) -> Tensor:
        """On the model's device."""
        return torch.from_numpy(array).to(self.opened.device)

    def together(self, jobs: Sequence[_Job]) -> int:
        """How many responses fit the budget at once: v, its tangents and their sums, and the logits of every one."""
        size = 4 * sum(p.numel() for p in self.parameters_by_name.values()) * 4
        places = max((len(job.asked) for job in jobs), default=1)
        size += 4 * len(self.head.weight) * COPIES_WITH_GRADIENT * min(places, self.head.rows(self.budget))
        return max(self.budget // size, 1)

    def tokens(self, jobs: Sequence[_Job]) -> int:
        """Padded tokens of the responses that go together."""
        return self.together(jobs) * max((len(job.line.ids) for job in jobs), default=1)


# ── the four ways ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _forward_together(work: _Differentiable, jobs: Sequence[_Job]) -> Iterator[_Found]:
    """Backward and forward mode over all of them under ``vmap``."""
    ids = work.tensor(_padded([job.line.ids for job in jobs], 0))
    # Pads of the places point at token 1, which always exists; the answer's count 0 and the others are cut off.
    answer = work.tensor(_padded([job.answer for job in jobs], 1))
    counts = work.tensor(_padded([np.ones_like(job.answer) for job in jobs], 0))
    asked = work.tensor(_padded([job.asked for job in jobs], 1))
    parameters = work.parameters_by_name

    def answer_logprob(given: dict[str, Tensor], ids: Tensor, places: Tensor, counts: Tensor) -> Tensor:
        return (work.at(given, ids, places) * counts).sum()

    def along(v: dict[str, Tensor], ids: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        values, tangents, *_ = jvp(lambda given: work.at(given, ids, places), (parameters,), (v,))
        return values, tangents

    with _differentiable(work.model), torch.no_grad():
        v = vmap(grad(answer_logprob), in_dims=(None, 0, 0, 0))(parameters, ids, answer, counts)
        values, inner = vmap(along)(v, ids, asked)
    norm2 = torch.stack([part.flatten(1).float().square().sum(1) for part in v.values()]).sum(0).tolist()
    for i, job in enumerate(jobs):
        n = len(job.asked)
        yield _Found(inner[i, :n].float(), norm2[i], _doubt(values[i, :n], job))


def _forward_alone(work: _Differentiable, jobs: Sequence[_Job]) -> Iterator[_Found]:
    """One backward and one forward-mode pass for each."""
    with _differentiable(work.model):
        for job in jobs:
            ids, places = work.tensor(job.line.ids), work.tensor(job.asked)
            v = _direction(work, job)
            values_at = partial(work.at, ids=ids, places=places)
            with torch.no_grad():
                values, inner, *_ = jvp(values_at, (work.parameters_by_name,), (v,))
            yield _Found(inner.float(), _norm2(v), _doubt(values, job))


def _double_backward(work: _Differentiable, jobs: Sequence[_Job]) -> Iterator[_Found]:
    """The derivative along v of u ↦ Σ u_t ∇l_t."""
    with _differentiable(work.model):
        for job in jobs:
            v = _direction(work, job)
            given = _leaves(work)
            values = work.at(given, work.tensor(job.line.ids), work.tensor(job.asked))
            u = torch.zeros_like(values, requires_grad=True)
            pulled = torch.autograd.grad(values, list(given.values()), grad_outputs=u, create_graph=True, materialize_grads=True)
            total = torch.stack([(a * b).sum() for a, b in zip(pulled, v.values(), strict=True)]).sum()
            (inner,) = torch.autograd.grad(total, u)
            yield _Found(inner.float(), _norm2(v), _doubt(values.detach(), job))


def _central_difference(work: _Differentiable, jobs: Sequence[_Job]) -> Iterator[_Found]:
    """Forward passes at θ ± s v."""
    length = sum(float(p.float().square().sum()) for p in work.parameters_by_name.values()) ** 0.5
    for job in jobs:
        with _differentiable(work.model):
            v = _direction(work, job)
        norm2 = _norm2(v)
        step = STEP * length / max(norm2, 1e-30) ** 0.5
        ids, places = work.tensor(job.line.ids), work.tensor(job.asked)
        with torch.no_grad():
            ahead, behind = (
                work.at({name: p + sign * step * v[name] for name, p in work.parameters_by_name.items()}, ids, places)
                for sign in (1, -1)
            )
        yield _Found((ahead - behind) / (2 * step), norm2, _doubt((ahead + behind) / 2, job))


WAYS: dict[str, _Way] = {
    "forward mode, several responses at once": _forward_together,
    "forward mode, one response at a time": _forward_alone,
    "double backward": _double_backward,
    "central difference": _central_difference,
}
"""From the name of a way to its function, in the order in which they are tried."""


def _direction(work: _Differentiable, job: _Job) -> dict[str, Tensor]:
    """The direction v of one response by one backward pass."""
    given = _leaves(work)
    values = work.at(given, work.tensor(job.line.ids), work.tensor(job.answer), True)
    parts = torch.autograd.grad(values.sum(), list(given.values()), materialize_grads=True)
    return dict(zip(given, parts, strict=True))


def _leaves(work: _Differentiable) -> dict[str, Tensor]:
    """The parameters as leaves that share their memory: gradients gather here and not on the model."""
    return {name: p.detach().requires_grad_() for name, p in work.parameters_by_name.items()}


def _norm2(v: dict[str, Tensor]) -> float:
    return float(torch.stack([part.float().square().sum() for part in v.values()]).sum())


def _doubt(values: Tensor, job: _Job) -> float:
    """Σ over the answer of 1 − p, from the log-probs ``[R]`` of all tokens asked about."""
    return float(-torch.expm1(values[torch.from_numpy(job.answer - job.asked[0])].double()).sum())


def _padded(arrays: Sequence[NDArray[np.int64]], fill: int) -> NDArray[np.int64]:
    """Rows side by side, ``[B, longest]``."""
    out = np.full((len(arrays), max(map(len, arrays))), fill, np.int64)
    for i, array in enumerate(arrays):
        out[i, : len(array)] = array
    return out


@contextmanager
def _differentiable(model: Any) -> Iterator[None]:
    """Attention in operations that have a forward derivative, and no embedding left out; both as they were afterwards.

    The backward pass of an embedding skips its padding id and the forward derivative does not. The two agree once no
    id is special; where the padding id is also the end of the sequence, it is a token like others.
    """
    embedding = model.get_input_embeddings()
    own, padding = model.config._attn_implementation, getattr(embedding, "padding_idx", None)
    change = own not in {"sdpa", "eager", None}
    if change:
        model.set_attn_implementation("eager")
    embedding.padding_idx = None
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        embedding.padding_idx = padding
        if change:
            model.set_attn_implementation(own)
