"""What gradient alignment of all tokens of a response costs, in forward passes.

For a step of random responses on a tiny random Llama: the time of all inner products ⟨∇ log π(token), ∇ log p(answer)⟩
over the time of scoring every token of the same responses by one forward pass. Both are taken in turn several times and
the median of the ratios counts, so that a busy machine slows both.

A gradient costs three forwards and the forward-mode pass along it about four: seven is the ideal. Token-by-token
backward passes would cost two forwards for each of the 64 tokens.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from credit_inspector.checkpoints import Checkpoint
from credit_inspector.rollout import Rollout
from credit_inspector.scoring import Models
from credit_inspector.scoring.alignment import align
from credit_inspector.spans import SpanTable
from credit_inspector.table import TokenTable

BOUND = 10.0
"""Forwards. Measured 8.0 to 8.3 on one core of a busy machine."""
REPEATS = 7
RESPONSES, PROMPT, RESPONSE, ANSWER = 16, 20, 64, 12
VOCABULARY = 512


def main() -> int:
    # With several threads a busy core makes the others wait at every operation, and alignment has more of them.
    torch.set_num_threads(1)
    models, table, spans = _models(), _step(), _spans()
    models.opened("policy")
    ratios = []
    for _ in range(REPEATS + 1):
        aligning = _seconds(lambda: align(models, table, spans))
        scoring = _seconds(lambda: models.scores("policy", _step()))
        ratios.append(aligning / scoring)
    # The first round warms up allocators and thread pools.
    value = statistics.median(ratios[1:])
    ok = value <= BOUND
    print(json.dumps({"name": "alignment", "value": round(value, 2), "bound": BOUND, "ok": ok}))
    return 0 if ok else 1


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _models() -> Models:
    def load(device: torch.device, dtype: torch.dtype) -> Any:
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=160,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=448,
            tie_word_embeddings=True,
        )
        model: Any = LlamaForCausalLM(config)
        return model.to(device, dtype).requires_grad_(False).eval()

    path = Path("random")
    policy = Checkpoint(path=path, format="", summary="", vocabulary=VOCABULARY, tokenizer=None, load=load)
    return Models({"policy": policy}, device="cpu")


def _step() -> TokenTable:
    rng = np.random.default_rng(0)
    rollouts = [
        Rollout(
            sample_id=str(i),
            prompt_ids=rng.integers(0, VOCABULARY, PROMPT).astype(np.int32),
            response_ids=rng.integers(0, VOCABULARY, RESPONSE).astype(np.int32),
        )
        for i in range(RESPONSES)
    ]
    return TokenTable.from_rollouts(0, rollouts)


def _spans() -> SpanTable:
    end = (np.arange(RESPONSES) + 1) * RESPONSE
    labels = ("answer",) * RESPONSES
    return SpanTable(row=np.arange(RESPONSES), start=end - ANSWER, end=end, label=labels, text=("",) * RESPONSES)


if __name__ == "__main__":
    sys.exit(main())
