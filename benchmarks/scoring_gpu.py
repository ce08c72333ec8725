"""The promises of the scoring engine on a CUDA machine, as a table.

- The head's extra peak memory for 8,192 tokens over 151,936 words: at most 300 MB, with gradients and without.
- The CPU and the GPU agree within 1e-3 in float32, log-probs and KL.
- Scoring takes at most 1 / 0.9 of the bare forward pass of the same tokens, backbone and head product and nothing else.
- The noise floor of bfloat16: by how much log-probs of one model differ from those in float32. No bound; it is printed to
  be held against mismatch numbers.
- TRL's kernel against the plain way, where it is used. No bound either.

The model is a random one of Qwen's shape. The last line is the worst promise as a share of its bound, as JSON; the exit code is
1 when one is missed. Without a CUDA device nothing is measured and the line says so.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from credit_inspector.scoring.fused import kernel_for
from credit_inspector.scoring.head import Head, kl, logprob, score

MB = 2**20
BUDGET = 256 * MB
TOKENS, VOCABULARY, HIDDEN, LINES = 8_192, 151_936, 896, 8
ROUNDS = 5


class Row(NamedTuple):
    """A line of the table."""

    name: str
    value: float
    bound: float | None
    """At most; None where nothing is promised."""


def main() -> int:
    if not torch.cuda.is_available():
        print(json.dumps({"name": "scoring_gpu", "value": None, "bound": 1.0, "ok": True, "reason": "no CUDA device"}))
        return 0
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    cuda = torch.device("cuda")
    rows = [*memory(cuda), *agreement(cuda), *speed(cuda), *noise(cuda)]
    for row in rows:
        bound = "" if row.bound is None else f"at most {row.bound:.4g}"
        print(f"{row.name:52}{row.value:12.4g}  {bound}")
    worst = max(row.value / row.bound for row in rows if row.bound is not None)
    print(json.dumps({"name": "scoring_gpu", "value": round(worst, 3), "bound": 1.0, "ok": worst <= 1}))
    return 0 if worst <= 1 else 1


def memory(device: torch.device) -> list[Row]:
    """Peak beside weights and hidden states, in MB."""
    head, hidden, ids = _case(device, torch.bfloat16, VOCABULARY, TOKENS)

    def gradient() -> None:
        states = hidden.clone().requires_grad_()
        found = score(head, states, ids, BUDGET)
        torch.autograd.grad((found.logprob + found.entropy + found.sum_p2).sum(), states)

    forms: dict[str, Callable[[], object]] = {
        "score": lambda: score(head, hidden, ids, BUDGET),
        "KL": lambda: kl(head, hidden, head, hidden, BUDGET),
        "score with gradient": gradient,
    }
    return [Row(f"extra memory of {name}, MB", _peak(form), 300.0) for name, form in forms.items()]


def _peak(form: Callable[[], object]) -> float:
    form()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    form()
    return (torch.cuda.max_memory_allocated() - before) / MB


def agreement(device: torch.device) -> list[Row]:
    """The largest difference between this device and the CPU in float32, in nats."""
    found = []
    for where in (device, torch.device("cpu")):
        head, hidden, ids = _case(where, torch.float32, 5_003, 256)
        other = Head(head.weight.flip(0))
        found.append([score(head, hidden, ids, BUDGET).logprob.cpu(), kl(head, hidden, other, hidden, BUDGET).cpu()])
    pairs = zip(("log-prob", "KL"), *found, strict=True)
    return [Row(f"CPU against GPU, {name}", (a - b).abs().max().item(), 1e-3) for name, a, b in pairs]


def speed(device: torch.device, lines: int = LINES, width: int = TOKENS // LINES) -> list[Row]:
    """Scoring over the bare forward pass; TRL's kernel over the plain way."""
    model = _model(device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    ids = torch.randint(0, len(model.lm_head.weight), (lines, width), device=device)
    head, flat = Head(model.lm_head.weight.detach()), ids.reshape(-1)

    def states() -> torch.Tensor:
        hidden: torch.Tensor = model.model(input_ids=ids, use_cache=False).last_hidden_state
        return hidden.reshape(lines * width, -1)

    def bare() -> None:
        hidden = states()
        for start in range(0, len(hidden), 512):
            torch.nn.functional.linear(hidden[start : start + 512], head.weight)

    with torch.no_grad():
        scored = _ratio(device, lambda: score(head, states(), flat, BUDGET), bare)
        rows = [Row("scoring over the bare forward pass, time", scored, 1 / 0.9)]
        if kernel_for(head.weight):
            hidden = states()
            plain = _ratio(
                device,
                lambda: logprob(head, hidden, flat, BUDGET),
                lambda: logprob(head, hidden, flat, BUDGET, recompute=False),
            )
            rows.append(Row("TRL's kernel over the plain way, time", plain, None))
    return rows


def noise(device: torch.device, lines: int = 2, width: int = 512) -> list[Row]:
    """|log-prob in bfloat16 − log-prob in float32| of the same weights on the same tokens."""
    model = _model(device, torch.float32)
    ids = torch.randint(0, len(model.lm_head.weight), (lines, width), device=device)
    found = []
    with torch.no_grad():
        for dtype in (torch.float32, torch.bfloat16):
            model.to(dtype)
            hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
            head = Head(model.lm_head.weight.detach())
            found.append(logprob(head, hidden.reshape(-1, hidden.shape[-1]), ids[:, 1:].reshape(-1), BUDGET))
    apart = (found[1] - found[0]).abs()
    figures = {"mean": apart.mean().item(), "99th percentile": apart.quantile(0.99).item(), "largest": apart.max().item()}
    return [Row(f"noise floor of bfloat16, {name}, nats", value, None) for name, value in figures.items()]


def _ratio(device: torch.device, one: Callable[[], object], other: Callable[[], object]) -> float:
    """The median of time over time, taken in turn; the first round warms up."""
    ratios = [_seconds(device, one) / _seconds(device, other) for _ in range(ROUNDS + 1)]
    return statistics.median(ratios[1:])


def _seconds(device: torch.device, work: Callable[[], object]) -> float:
    _wait(device)
    start = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _case(device: torch.device, dtype: torch.dtype, words: int, tokens: int) -> tuple[Head, torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(0)
    weight, hidden = torch.randn(words, 64, generator=made) / 4, torch.randn(tokens, 64, generator=made)
    ids = torch.randint(0, words, (tokens,), generator=made)
    return Head(weight.to(device, dtype), temperature=0.7), hidden.to(device, dtype), ids.to(device)


def _model(device: torch.device, dtype: torch.dtype) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    words = VOCABULARY if device.type == "cuda" else 4_000
    config = Qwen2Config(
        vocab_size=words,
        hidden_size=HIDDEN,
        num_hidden_layers=24 if device.type == "cuda" else 2,
        num_attention_heads=14,
        num_key_value_heads=2,
        intermediate_size=4_864,
        tie_word_embeddings=True,
    )
    model: Any = Qwen2ForCausalLM(config)
    return model.to(device, dtype).requires_grad_(False).eval()


if __name__ == "__main__":
    sys.exit(main())
