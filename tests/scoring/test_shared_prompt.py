"""Responses packed into one row, their prompt computed once, against one forward pass for each response."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from credit_inspector.algorithm import Algorithm
from credit_inspector.errors import CheckpointError
from credit_inspector.rollout import Rollout
from credit_inspector.scoring import batches as batches_module
from credit_inspector.scoring import models as module
from credit_inspector.scoring import shared
from credit_inspector.table import TokenTable

VOCABULARY = 37
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 24,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
GPT2 = {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 512}
FAMILIES = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "gpt2": GPT2,
    "gemma": {"num_key_value_heads": 1},
    "gemma2": {"sliding_window": 16, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "gemma3_text": {"sliding_window": 16},
    "mistral": {"sliding_window": 16},
}


def _model(family, seed=0, **changes):
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **SMALL | FAMILIES.get(family, {}) | changes)
    return AutoModelForCausalLM.from_config(config).float().eval().requires_grad_(False)


def _groups(groups=2, siblings=4, prompt=60, longest=90, seed=0):
    rng = np.random.default_rng(seed)
    rollouts = []
    for group in range(groups):
        begin = rng.integers(0, VOCABULARY, prompt).astype(np.int32)
        for i in range(siblings):
            response = rng.integers(0, VOCABULARY, rng.integers(1, longest)).astype(np.int32)
            rollouts.append(Rollout(sample_id=f"{group}.{i}", prompt_ids=begin, response_ids=response))
    return TokenTable.from_rollouts(3, rollouts, algorithm=Algorithm(name="test", source="recorded", temperature=0.8))


def _naive(model, table):
    """Log-prob, entropy and Σp² by one whole forward pass for each response."""
    everything = []
    for r in table.rollouts:
        ids = torch.from_numpy(np.concatenate([r.prompt_ids, r.response_ids])).long()
        with torch.no_grad():
            log_p = (model(input_ids=ids[None], use_cache=False).logits[0, :-1].float() / 0.8).log_softmax(-1)
        p = log_p.exp()
        values = torch.stack([log_p.gather(1, ids[1:, None])[:, 0], -(p * log_p).sum(-1), (p * p).sum(-1)])
        everything.append(values[:, len(r.prompt_ids) - 1 :].numpy())
    return np.concatenate(everything, axis=1)


@pytest.fixture
def rows(monkeypatch):
    """The shape of every packed row that runs."""
    seen = []
    packed = batches_module.to_packed

    def spy(*given):
        batch = packed(*given)
        seen.append(tuple(batch.ids.shape))
        return batch

    monkeypatch.setattr(batches_module, "to_packed", spy)
    return seen


# ── the same values ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_scores_are_those_of_each_response_alone(family, models_of, rows):
    model, table = _model(family), _groups()
    models = models_of(policy=model)
    assert models.opened("policy").unpacked is None
    found = np.stack(models.scores("policy", table))
    np.testing.assert_allclose(found, _naive(model, table), atol=1e-4)
    assert rows == [(1, 2 * 60 + table.n_tokens)], "each prompt stands once and there is no padding"
    assert table.problems == ()


@pytest.mark.parametrize("tokens", [1, 100, 200, 10_000])
def test_the_size_of_a_row_changes_nothing(models_of, monkeypatch, rows, tokens):
    model, table = _model("llama"), _groups()
    monkeypatch.setattr(module, "TOKENS", tokens)
    np.testing.assert_allclose(np.stack(models_of(policy=model).scores("policy", table)), _naive(model, table), atol=1e-4)
    assert len(rows) == {1: 8, 100: 8, 200: 4, 10_000: 1}[tokens]


def test_blocks_of_attention_change_nothing(models_of, monkeypatch, rows):
    model, table = _model("gemma2"), _groups()
    monkeypatch.setattr(shared, "BLOCK", 7)
    np.testing.assert_allclose(np.stack(models_of(policy=model).scores("policy", table)), _naive(model, table), atol=1e-4)
    assert rows


def test_kl_packs_where_both_models_do(models_of, rows):
    p, q, table = _model("qwen2"), _model("qwen2", seed=1), _groups()
    found = models_of(policy=p, ref=q).kl("policy", "ref", table)
    alone = [models_of(policy=p, ref=q).kl("policy", "ref", _one(table, row)) for row in range(table.n_rows)]
    np.testing.assert_allclose(found, np.concatenate(alone), atol=1e-4)
    assert rows == [(1, 2 * 60 + table.n_tokens)]


def _one(table, row):
    return TokenTable.from_rollouts(3, [table.rollouts[row]], algorithm=table.algorithm)


def test_a_models_own_attention_is_back_afterwards(models_of, monkeypatch):
    model, table = _model("llama"), _groups()
    models = models_of(policy=model)
    models.scores("policy", table)
    assert model.config._attn_implementation == "sdpa"

    def fail(*_):
        raise ValueError("broken")

    monkeypatch.setattr(shared, "_block", fail)
    with pytest.raises(ValueError, match="broken"):
        models.scores("policy", _groups(seed=1))
    assert model.config._attn_implementation == "sdpa"


# ── which lines lie together ──────────────────────────────────────────────────────────────────────────────────────────

LINES = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=40), max_size=12)


@given(LINES, st.lists(st.integers(0, 1), max_size=20), st.integers(1, 200))
def test_every_line_can_be_read_off_its_row(endings, beginning, tokens):
    lines = [np.array(beginning + ending) for ending in endings]
    found = list(shared.layouts(lines, tokens))
    assert sorted(i for layout in found for i in layout.lines) == list(range(len(lines)))
    for layout in found:
        assert len(layout.lines) == 1 or len(layout.ids) <= tokens
        owned = np.concatenate([np.arange(piece.start, piece.stop) for piece in layout.pieces])
        np.testing.assert_array_equal(owned, np.arange(len(layout.ids)))
        ends = {}
        for i, place in zip(layout.lines, layout.places, strict=True):
            np.testing.assert_array_equal(layout.ids[place], lines[i])
            np.testing.assert_array_equal(layout.position[place], np.arange(len(lines[i])))
            ends[int(place[-1])] = place
        for piece in layout.pieces:
            seen = np.concatenate([np.arange(*stretch) for stretch in piece.seen])
            np.testing.assert_array_equal(seen, ends[piece.stop - 1])


def test_a_family_is_not_torn_where_it_fits_another_row():
    begin = np.arange(10)
    lines = [np.concatenate([begin + 20 * family, [i] * 5]) for family in range(3) for i in range(2)]
    assert [sorted(layout.lines) for layout in shared.layouts(lines, 30)] == [[0, 1], [2, 3], [4, 5]]
    assert [len(layout.ids) for layout in shared.layouts(lines, 30)] == [20, 20, 20]


def test_nested_beginnings_are_computed_once():
    whole = np.arange(100)
    lines = [np.concatenate([whole[:n], [200, 201]]) for n in (20, 50, 90)]
    assert shared.own_tokens(lines) == 90 + 3 * 2


def test_short_lines_of_their_own_run_padded():
    rng = np.random.default_rng(0)
    assert not batches_module.pays([rng.integers(0, 99, 20) for _ in range(50)])
    assert batches_module.pays([rng.integers(0, 99, 200) for _ in range(5)])
    begin = rng.integers(0, 99, 200)
    assert batches_module.pays([np.concatenate([begin, rng.integers(0, 99, 20)]) for _ in range(50)])


# ── models that cannot ────────────────────────────────────────────────────────────────────────────────────────────────

LFM2 = {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}
MAMBA = {"state_size": 4, "expand": 2, "conv_kernel": 4}


@pytest.mark.parametrize(
    ("family", "changes", "why"),
    [("lfm2", LFM2, "its hidden states would be off"), ("mamba", MAMBA, "it takes no positions")],
)
def test_models_that_mix_along_the_row_run_padded_and_are_named(family, changes, why, models_of, rows):
    model, table = _model(family, **changes), _groups(longest=20)
    models = models_of(policy=model)
    np.testing.assert_allclose(np.stack(models.scores("policy", table)), _naive(model, table), atol=1e-4)
    assert rows == []
    (problem,) = table.problems
    assert problem.kind == "unpacked"
    assert problem.message.startswith(f"{type(model).__name__} runs padded and computes each prompt anew: {why}")


def test_lines_beyond_a_window_too_long_to_probe_run_padded(models_of, rows, monkeypatch):
    monkeypatch.setattr(shared, "PROBED", 8)
    model, table = _model("mistral"), _groups()
    np.testing.assert_allclose(np.stack(models_of(policy=model).scores("policy", table)), _naive(model, table), atol=1e-4)
    assert rows == []


def test_positions_that_depend_on_the_longest_line_run_padded(models_of):
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    opened = models_of(policy=_model("llama", rope_parameters=rope)).opened("policy")
    assert opened.unpacked == "its positions depend on the longest line"


# ── out of memory ─────────────────────────────────────────────────────────────────────────────────────────────────────

FULL = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    RuntimeError("MPS backend out of memory (MPS allocated: 9 GiB)"),
]


def _fails_above(monkeypatch, tokens, error):
    """Passes over more tokens than this raise the error."""
    hidden = module._hidden

    def limited(model, ids, *given):
        if ids.numel() > tokens:
            raise error
        return hidden(model, ids, *given)

    monkeypatch.setattr(module, "_hidden", limited)


@pytest.mark.parametrize("error", FULL, ids=["cuda", "cpu", "mps"])
def test_out_of_memory_goes_on_with_half_and_says_so(models_of, monkeypatch, error):
    model, table = _model("llama"), _groups()
    _fails_above(monkeypatch, 300, error)
    monkeypatch.setattr(module, "TOKENS", 1024)
    models = models_of(policy=model)
    found = np.stack(models.scores("policy", table))
    np.testing.assert_allclose(found, _naive(model, table), atol=1e-4)
    assert [(p.kind, p.message) for p in table.problems] == [
        ("out-of-memory", "out of memory on cpu: goes on with batches of at most 512 tokens"),
        ("out-of-memory", "out of memory on cpu: goes on with batches of at most 256 tokens"),
    ]
    assert models._halved == 2


def test_a_response_too_long_by_itself_says_so(models_of, monkeypatch):
    table = _groups()
    models = models_of(policy=_model("llama"))
    models.opened("policy").unpacked  # noqa: B018  (tried before the memory is gone)
    _fails_above(monkeypatch, 10, FULL[0])
    with pytest.raises(CheckpointError, match=r"out of memory on cpu with a sequence of \d+ tokens by itself; take another"):
        models.scores("policy", table)


def test_other_errors_are_not_taken_for_a_lack_of_memory(models_of, monkeypatch):
    models = models_of(policy=_model("llama"))
    models.opened("policy").unpacked  # noqa: B018
    _fails_above(monkeypatch, 10, RuntimeError("expected scalar type Float"))
    with pytest.raises(RuntimeError, match="expected scalar type"):
        models.scores("policy", _groups())
    assert models._halved == 0
