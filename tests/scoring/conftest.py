"""Tiny random models of several families, and steps of random tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from credit_inspector.algorithm import Algorithm
from credit_inspector.checkpoints import Checkpoint
from credit_inspector.rollout import Rollout
from credit_inspector.scoring import Models
from credit_inspector.spans import SpanTable
from credit_inspector.table import TokenTable

VOCABULARY = 37
FAMILIES = ("llama", "gpt2", "qwen2", "gemma2")

_SMALL = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
_SMALL |= {"num_key_value_heads": 1, "intermediate_size": 24, "max_position_embeddings": 64, "head_dim": 8}
_SMALL |= {"pad_token_id": None}


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Any]:
    """From a family's name (and a seed) to a random model, sharp enough that no two tokens are alike to it."""

    def build(family: str, seed: int = 0) -> Any:
        torch.manual_seed(seed)
        if family == "gpt2":
            model: Any = GPT2LMHeadModel(
                GPT2Config(vocab_size=VOCABULARY, n_positions=64, n_embd=16, n_layer=2, n_head=2, initializer_range=0.3)
            )
        elif family == "gemma2":
            caps = {"final_logit_softcapping": 3.0, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 8}
            model = Gemma2ForCausalLM(Gemma2Config(**_SMALL, **caps, initializer_range=0.3, sliding_window=8))
        elif family == "qwen2":
            model = Qwen2ForCausalLM(Qwen2Config(**_SMALL, initializer_range=0.3, tie_word_embeddings=False))
        else:
            model = LlamaForCausalLM(LlamaConfig(**_SMALL, initializer_range=0.3, tie_word_embeddings=True))
        return model.eval()

    return build


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest, tiny: Callable[..., Any]) -> Any:
    """One model of each family."""
    return tiny(request.param)


@pytest.fixture(scope="session")
def models_of() -> Callable[..., Models]:
    """From models by role to ``Models`` on the CPU."""

    def build(budget_mb: int = 256, **roles: Any) -> Models:
        return Models({role: _checkpoint(model) for role, model in roles.items()}, device="cpu", budget_mb=budget_mb)

    return build


def _checkpoint(model: Any) -> Checkpoint:
    return Checkpoint(
        path=Path("run") / f"{type(model).__name__}-{id(model)}",
        format="test",
        summary="a tiny random model",
        vocabulary=VOCABULARY,
        tokenizer=None,
        load=lambda device, dtype: model.to(device, dtype).requires_grad_(False).eval(),
    )


@pytest.fixture(scope="session")
def step() -> Callable[..., TokenTable]:
    """From lengths ``(prompt, response)`` to a table of random tokens."""

    def build(lengths: Any = ((4, 9), (2, 5), (6, 13), (3, 1)), seed: int = 0, temperature: float = 1.0) -> TokenTable:
        rng = np.random.default_rng(seed)
        rollouts = [
            Rollout(
                sample_id=f"r{i}",
                prompt_ids=rng.integers(0, VOCABULARY, p).astype(np.int32),
                response_ids=rng.integers(0, VOCABULARY, n).astype(np.int32),
            )
            for i, (p, n) in enumerate(lengths)
        ]
        rule = Algorithm(name="test", source="recorded", temperature=temperature)
        return TokenTable.from_rollouts(7, rollouts, algorithm=rule)

    return build


@pytest.fixture(scope="session")
def cut() -> Callable[..., SpanTable]:
    """From a table and, for each row, ``[(start, end, label), …]`` within the response to spans."""

    def build(table: TokenTable, *rows: Any) -> SpanTable:
        begins = table.offsets.tolist()
        flat = [(row, begins[row] + a, begins[row] + b, name) for row, of in enumerate(rows) for a, b, name in of]
        row, start, end, label = zip(*flat, strict=True) if flat else ((), (), (), ())
        arrays = [np.array(values, np.int64) for values in (row, start, end)]
        return SpanTable(row=arrays[0], start=arrays[1], end=arrays[2], label=label, text=("",) * len(flat))

    return build
