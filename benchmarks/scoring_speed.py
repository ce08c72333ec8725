"""How fast responses are scored: against the bare forward of the same tokens, and against TRL's own function.

A random Llama of ten million parameters in float32 on one thread, so that nothing has to be fetched; the thread's own
time is taken, so that a busy machine changes little. Ours is ``Models.scores``: log-prob, entropy and Σp² of every
response token.

- *bare*: each prompt with its response by itself through the backbone, and its response's states times the head. No
  padding, no softmax, nothing else. The promise is 0.9 of its throughput, taken on the shape least kind to us.
- *TRL*: ``GRPOTrainer._get_per_token_logps_and_entropies`` with its fused head, log-probs and entropies, eight rows at a
  time. The promise is 1.7 times its throughput on groups of 8 with 300-token prompts and responses of 50 to 1,000
  tokens, and not less than its throughput on any other shape.

All sides are taken in turn several times; the median of the ratios counts. Log-probs have to agree within 1e-4. Each
promise prints a JSON line; the last line is the worst of them as a share of its bound, and the exit code is 1 when one is
missed. Where TRL is not installed it is left out.
"""

from __future__ import annotations

import inspect
import json
import statistics
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from credit_inspector.checkpoints import Checkpoint
from credit_inspector.rollout import Rollout
from credit_inspector.scoring import Models
from credit_inspector.table import TokenTable

VOCABULARY = 8192
ROUNDS = 3
BARE, TRL, ANY = 0.9, 1.7, 1.0


class Shape(NamedTuple):
    """A batch of responses in groups that share their prompt."""

    groups: int
    siblings: int
    prompt: int
    shortest: int
    longest: int


REAL = "groups of 8"
SHAPES = {
    REAL: Shape(1, 8, 300, 50, 1000),
    "no siblings": Shape(6, 1, 200, 50, 500),
    "short prompts, equal lengths": Shape(1, 8, 20, 250, 251),
    "long prompts, short responses": Shape(1, 8, 900, 10, 60),
    "many short lines": Shape(32, 4, 12, 8, 40),
    "one response": Shape(1, 1, 100, 700, 701),
}


def build() -> Any:
    """A random model with the proportions of small ones: the head costs about as much as two layers."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        pad_token_id=None,
    )
    model: Any = LlamaForCausalLM(config)
    return model.eval().requires_grad_(False)


def step(shape: Shape) -> TokenTable:
    """Random tokens of a shape."""
    random = np.random.default_rng(0)
    rollouts: list[Rollout] = []
    for group in range(shape.groups):
        prompt = random.integers(1, VOCABULARY, shape.prompt).astype(np.int32)
        for n in random.integers(shape.shortest, shape.longest, shape.siblings):
            response = random.integers(1, VOCABULARY, n).astype(np.int32)
            name = f"{group}.{len(rollouts)}"
            rollouts.append(Rollout(sample_id=name, group_id=str(group), prompt_ids=prompt, response_ids=response))
    return TokenTable.from_rollouts(0, rollouts)


# ── the three sides ───────────────────────────────────────────────────────────────────────────────────────────────────


def ours(model: Any, shape: Shape) -> Callable[[], np.ndarray]:
    """``Models.scores`` of a fresh table, so that nothing is remembered."""
    checkpoint = Checkpoint(
        path=Path("random"),
        format="benchmark",
        summary="",
        vocabulary=VOCABULARY,
        tokenizer=None,
        load=model.to,
    )
    models = Models({"policy": checkpoint}, device="cpu")
    models.opened("policy")
    return lambda: models.scores("policy", step(shape)).logprob


def bare(model: Any, table: TokenTable) -> Callable[[], None]:
    """Backbone and head product of each response by itself."""
    lines = [torch.from_numpy(np.concatenate([r.prompt_ids, r.response_ids])).long()[None] for r in table.rollouts]
    weight = model.get_output_embeddings().weight

    def work() -> None:
        with torch.no_grad():
            for ids, n in zip(lines, table.lengths, strict=True):
                states = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0, -int(n) - 1 : -1]
                F.linear(states, weight)

    return work


def trl(model: Any, table: TokenTable) -> Callable[[], np.ndarray]:
    """TRL's function on the batch as TRL makes it: prompts padded on the left, responses on the right."""
    from contextlib import nullcontext

    from trl import GRPOTrainer  # type: ignore[attr-defined]

    prompts, responses = ([torch.from_numpy(ids).long() for ids in both] for both in zip(*map(_ids, table.rollouts), strict=True))
    width = max(map(len, responses))
    ids, mask = (torch.cat([_pad(prompts, "left", of), _pad(responses, "right", of)], dim=1) for of in (_same, torch.ones_like))
    stub: Any = SimpleNamespace(accelerator=SimpleNamespace(autocast=nullcontext))
    function: Any = inspect.unwrap(GRPOTrainer._get_per_token_logps_and_entropies)

    def work() -> np.ndarray:
        with torch.no_grad():
            logprobs, _, _ = function(stub, model, ids, mask, width, batch_size=8, compute_entropy=True)
        return np.asarray(logprobs[mask[:, -width:] > 0])

    return work


def _ids(rollout: Rollout) -> tuple[Any, Any]:
    return rollout.prompt_ids, rollout.response_ids


def _same(ids: torch.Tensor) -> torch.Tensor:
    return ids


def _pad(rows: list[torch.Tensor], side: str, of: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([of(row) for row in rows], batch_first=True, padding_value=0, padding_side=side)


# ── the promises ──────────────────────────────────────────────────────────────────────────────────────────────────────


def measure(name: str, shape: Shape, models: dict[str, Any]) -> dict[str, float]:
    """Throughput of ours over the others', by their names."""
    table = step(shape)
    mine = ours(models["ours"], shape)
    others: dict[str, Callable[[], object]] = {"bare": bare(models["ours"], table)}
    if "trl" in models:
        others["trl"] = theirs = trl(models["trl"], table)
        off = float(np.abs(mine() - theirs()).max())
        if off > 1e-4:
            raise RuntimeError(f"{name}: log-probs differ from TRL's by {off:.2g}")
    else:
        mine()
    ratios: dict[str, list[float]] = {other: [] for other in others}
    for _ in range(ROUNDS):
        for other, work in others.items():
            # Ours right beside each of them: the machine changes within a round, too.
            took = seconds(mine)
            ratios[other].append(seconds(work) / took)
    found = {other: statistics.median(values) for other, values in ratios.items()}
    told = ", ".join(f"{value:.2f} × {other}" for other, value in found.items())
    print(f"{name} ({table.n_tokens:,} response tokens): {table.n_tokens / took:,.0f} tokens a second, {told}", flush=True)
    return found


def seconds(work: Callable[[], object]) -> float:
    """How long one call keeps the only thread busy: what else the machine does is not counted."""
    start = time.process_time()
    work()
    return time.process_time() - start


def promise(name: str, value: float, bound: float) -> dict[str, Any]:
    """A measured ratio beside the least that it may be."""
    return {"name": name, "value": round(value, 3), "bound": bound, "ok": value >= bound}


def main() -> int:
    """Measure, print, judge."""
    torch.set_num_threads(1)
    models = {"ours": build()}
    if find_spec("trl"):
        from trl.trainer.utils import add_fused_lm_head

        models["trl"] = build()
        add_fused_lm_head(models["trl"], outputs=("log_probs", "entropy"))
    else:
        print("trl is not installed: not compared")
    ratios = {name: measure(name, shape, models) for name, shape in SHAPES.items()}
    found = [promise("scoring_speed.over_bare", min(of["bare"] for of in ratios.values()), BARE)]
    if "trl" in models:
        found.append(promise("scoring_speed.over_trl", ratios[REAL]["trl"], TRL))
        found.append(promise("scoring_speed.over_trl_anywhere", min(of["trl"] for of in ratios.values()), ANY))
    for one in found:
        print(json.dumps(one))
    worst = min(one["value"] / one["bound"] for one in found)
    ok = all(one["ok"] for one in found)
    print(json.dumps({"name": "scoring_speed", "value": round(worst, 3), "bound": 1.0, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
