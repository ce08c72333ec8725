"""What users reported about scoring tokens with a checkpoint, on a model whose every probability is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from credit_inspector.checkpoints import Checkpoint
from credit_inspector.columns import Inputs, compute
from credit_inspector.metrics import metrics
from credit_inspector.scoring import Models
from credit_inspector.table import TokenTable
from field_cases.tables import response, rule, the

CHAIN = np.array([[0.9, 0.1], [0.2, 0.8]])
"""P(next | previous)."""


def chain(_device: str = "cpu", _dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    """A model without layers: the logits of a position are the log-probs that follow its token."""
    config = LlamaConfig(
        vocab_size=2,
        hidden_size=2,
        intermediate_size=2,
        num_hidden_layers=0,
        num_attention_heads=1,
        tie_word_embeddings=False,
        rms_norm_eps=1e-12,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(2))
        model.model.norm.weight.fill_(0.5**0.5)
        model.lm_head.weight.copy_(torch.tensor(np.log(CHAIN).T))
    return model


@pytest.fixture(scope="module")
def models() -> Models:
    one = Checkpoint(path=Path("chain/step_000000"), format="test", summary="", vocabulary=2, tokenizer=None, load=chain)
    return Models({"policy": one}, device="cpu")


def scored(models: Models, prompt: list[int], ids: list[int], **recorded: list[float]) -> TokenTable:
    one = response(response_ids=ids, prompt_ids=np.array(prompt, np.int32), policy_version=0, mask=[1] * len(ids), **recorded)
    table = TokenTable.from_rollouts(1, [one], algorithm=rule())
    compute(Inputs(table, models=models), ["logprob/recomputed"], {spec.name: spec for spec in metrics.members()})
    return table


def test_c10_a_token_is_scored_by_the_position_before_it(models: Models) -> None:
    alone = scored(models, [], [0, 0, 1, 1])
    np.testing.assert_allclose(alone.values("logprob/recomputed"), [np.nan, -0.10536, -2.30259, -0.22314], atol=5e-6)
    prompted = scored(models, [1], [0, 0, 1, 1])
    np.testing.assert_allclose(prompted.values("logprob/recomputed"), [np.log(0.2), -0.10536, -2.30259, -0.22314], atol=5e-6)


def test_c10_log_probs_by_a_token_s_own_position_are_not_the_checkpoint_s(models: Models, tmp_path: Path) -> None:
    table = scored(models, [1], [0, 0, 1, 1], old=[-0.105, -0.105, -0.223, -0.223])
    finding = the("recorded-logprobs-differ", tmp_path, table)
    assert finding.numbers["mean_abs_difference"] == pytest.approx((1.50444 + 2.07959) / 4, abs=1e-3)
