"""Scores of a whole step against one forward pass for each response."""

from __future__ import annotations

import gc
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from credit_inspector.algorithm import Algorithm
from credit_inspector.checkpoints import Checkpoint
from credit_inspector.errors import CheckpointError, MissingColumn, UsageError
from credit_inspector.rollout import Rollout
from credit_inspector.scoring import Models
from credit_inspector.scoring import models as module
from credit_inspector.table import TokenTable


def _naive(model, rollout, temperature=1.0):
    """Log-prob, entropy and Σp² by one whole forward pass, ``[3, L]``."""
    ids = torch.from_numpy(np.concatenate([rollout.prompt_ids, rollout.response_ids])).long()
    with torch.no_grad():
        log_p = (model(input_ids=ids[None], use_cache=False).logits[0, :-1].float() / temperature).log_softmax(-1)
    p = log_p.exp()
    chosen = log_p.gather(1, ids[1:, None])[:, 0]
    everything = torch.stack([chosen, -(p * log_p).sum(-1), (p * p).sum(-1)])
    return everything[:, len(rollout.prompt_ids) - 1 :].numpy()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_a_step_scores_as_its_responses_do_alone(model, models_of, step, temperature):
    table = step(temperature=temperature)
    scores = np.stack(models_of(policy=model).scores("policy", table))
    naive = np.concatenate([_naive(model, r, temperature) for r in table.rollouts], axis=1)
    np.testing.assert_allclose(scores, naive, atol=1e-5)


@pytest.mark.parametrize("tokens", [1, 40, 10_000])
def test_the_size_of_a_batch_changes_nothing(model, models_of, step, monkeypatch, tokens):
    table = step()
    whole = models_of(policy=model).scores("policy", table)
    monkeypatch.setattr(module, "TOKENS", tokens)
    for ours, theirs in zip(models_of(policy=model).scores("policy", table), whole, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_order_changes_nothing(model, models_of, step):
    table = step()
    turned = TokenTable.from_rollouts(7, table.rollouts[::-1], algorithm=table.algorithm)
    models = models_of(policy=model)
    ours, theirs = (models.scores("policy", t).logprob for t in (table, turned))
    for row in range(table.n_rows):
        np.testing.assert_allclose(ours[table.slice(row)], theirs[turned.slice(table.n_rows - 1 - row)], atol=1e-5)


def test_masked_tokens_change_nothing(tiny, models_of, step):
    table = step()
    hidden = [replace(r, loss_mask=np.zeros(len(r.response_ids), bool)) for r in table.rollouts]
    masked = TokenTable.from_rollouts(7, hidden, algorithm=table.algorithm)
    models = models_of(policy=tiny("llama"))
    np.testing.assert_array_equal(models.scores("policy", table).logprob, models.scores("policy", masked).logprob)


@pytest.mark.parametrize("budget_mb", [1, 256])
def test_exact_kl_is_the_full_sum(tiny, models_of, step, budget_mb):
    p, q, table = tiny("gemma2"), tiny("gemma2", seed=1), step(temperature=0.8)
    found = models_of(policy=p, ref=q, budget_mb=budget_mb).kl("policy", "ref", table)
    for row, rollout in enumerate(table.rollouts):
        ids = torch.from_numpy(np.concatenate([rollout.prompt_ids, rollout.response_ids])).long()[None]
        with torch.no_grad():
            log_p, log_q = ((m(input_ids=ids).logits[0] / 0.8).log_softmax(-1) for m in (p, q))
        naive = (log_p.exp() * (log_p - log_q)).sum(-1)[len(rollout.prompt_ids) - 1 : -1]
        np.testing.assert_allclose(found[table.slice(row)], naive, atol=1e-5)


# ── where the first token stands ──────────────────────────────────────────────────────────────────────────────────────


class Chain(torch.nn.Module):
    """A two-word chain whose next word depends on the last one only: P(0|0) = .9, P(1|1) = .8."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding.from_pretrained(torch.eye(2))
        self.out = torch.nn.Linear(2, 2, bias=False)
        self.out.weight.data = torch.log(torch.tensor([[0.9, 0.2], [0.1, 0.8]]))
        self.config = SimpleNamespace(get_text_config=SimpleNamespace)
        self.base_model = lambda input_ids, **_: SimpleNamespace(last_hidden_state=self.words(input_ids))
        self.base_model.forward = self.base_model

    def get_input_embeddings(self):
        return self.words

    def get_output_embeddings(self):
        return self.out

    def forward(self, input_ids, **_):
        return SimpleNamespace(logits=self.out(self.words(input_ids)))


@pytest.mark.parametrize("prompt", [0, 1, 2])
def test_the_state_before_a_token_scores_it_and_nothing_scores_the_first(models_of, prompt):
    ids = np.array([0, 0, 1, 1], np.int32)
    table = TokenTable.from_rollouts(0, [Rollout(sample_id="a", prompt_ids=ids[:prompt], response_ids=ids[prompt:])])
    wanted = np.array([np.nan, -0.10536, -2.30259, -0.22314])[prompt:]
    np.testing.assert_allclose(models_of(policy=Chain()).scores("policy", table).logprob, wanted, atol=1e-5)


# ── what cannot be scored ─────────────────────────────────────────────────────────────────────────────────────────────


def _rollout(name, prompt, response):
    as_ids = [None if ids is None else np.array(ids, np.int32) for ids in (prompt, response)]
    return Rollout(sample_id=name, prompt_ids=as_ids[0], response_ids=as_ids[1])


def test_a_bad_row_is_missing_and_named_and_the_others_go_on(tiny, models_of):
    rows = [
        _rollout("good", [1, 2], [3, 4]),
        _rollout("beyond", [1, 2], [3, 152000]),
        _rollout("negative", [1, -5], [3]),
        _rollout("no prompt", None, [3, 4]),
        _rollout("text only", [1], None),
        _rollout("long", [1] * 60, [2] * 5),
    ]
    table = TokenTable.from_rollouts(0, rows)
    models = models_of(policy=tiny("llama"), ref=tiny("llama", seed=1))
    for _ in range(2):
        logprob = models.scores("policy", table).logprob
        assert np.isfinite(logprob[:2]).all()
        assert np.isnan(logprob[2:]).all()
        assert np.isnan(models.kl("policy", "ref", table)[2:]).all()
    assert [(p.kind, p.message, p.where) for p in table.problems] == [
        ("vocabulary", "id 152000 outside the model's vocabulary 37", "beyond"),
        ("vocabulary", "id -5 outside the model's vocabulary 37", "negative"),
        ("no-prompt-ids", "a response without the ids of its prompt cannot be scored", "no prompt"),
        ("too-long", "65 tokens, more than the model's 64 positions", "long"),
    ]


def test_a_step_without_responses_has_no_values(tiny, models_of):
    table = TokenTable.from_rollouts(0, [])
    assert [len(values) for values in models_of(policy=tiny("llama")).scores("policy", table)] == [0, 0, 0]


def test_models_of_different_vocabularies_have_no_kl(tiny, models_of, step):
    with pytest.raises(CheckpointError, match="vocabularies of 37 and 2 words"):
        models_of(policy=tiny("llama"), ref=Chain()).kl("policy", "ref", step(((2, 1),)))


# ── opening ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _counted(model, path, loaded):
    def load(device, dtype):
        loaded.append(path)
        return model.to(device, dtype)

    return Checkpoint(path=path, format="test", summary="", vocabulary=37, tokenizer=None, load=load)


def test_a_folder_opens_when_first_used_and_once(tiny, tmp_path, step):
    loaded = []
    model = tiny("llama")
    models = Models({role: _counted(model, tmp_path, loaded) for role in ("policy", "after")}, device="cpu")
    assert loaded == []
    before, after = (models.scores(role, step()).logprob for role in ("policy", "after"))
    assert loaded == [tmp_path]
    np.testing.assert_array_equal(before, after)
    assert models.model("policy") is models.model("after") is model


def test_scores_are_kept_for_their_table_and_not_beyond_it(tiny, models_of, step):
    models = models_of(policy=tiny("llama"))
    table = step()
    assert models.scores("policy", table) is models.scores("policy", table)
    assert models.scores("policy", step()) is not models.scores("policy", table)
    del table
    gc.collect()
    models.scores("policy", step())
    assert len(models._memory) == 1


def test_a_role_that_is_not_at_hand_says_how_to_give_it(tiny, models_of, step):
    models = models_of(policy=tiny("llama"))
    assert "policy" in models
    assert "after" not in models
    with pytest.raises(MissingColumn, match="no checkpoint is at hand as 'after'; give one with --after"):
        models.scores("after", step())
    for wrong in (lambda: models.scores("teacher", step()), lambda: Models({"teacher": models.checkpoint("policy")})):
        with pytest.raises(UsageError, match="no role named 'teacher'; wanted one of policy, before, after, old, ref"):
            wrong()


def test_a_model_without_hidden_states_is_refused(models_of):
    model = Chain()
    model.base_model = lambda input_ids, **_: SimpleNamespace(logits=input_ids)
    model.base_model.forward = model.base_model
    with pytest.raises(CheckpointError, match="Chain gives no hidden states; wanted a causal language model"):
        models_of(policy=model).opened("policy")


def test_notes_name_the_checkpoint_and_the_temperature(tiny, models_of, step):
    models = models_of(policy=tiny("llama"))
    assert models.note("policy").startswith("policy run/LlamaForCausalLM-")
    assert models.note("policy").endswith("(float32, cpu)")
    assert models.temperature_note(step(temperature=0.7)) == "temperature 0.7"
    assert models.temperature_note(TokenTable.from_rollouts(0, [])) == "temperature 1, the run does not say"
    greedy = step(temperature=0.0)
    assert models.temperature(greedy) == 1.0
    assert models.temperature_note(greedy) == "temperature 1, sampling was greedy"


def test_the_model_is_left_as_it_was(model, models_of, step):
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    models = models_of(policy=model.train())
    models.scores("policy", step())
    assert not model.training
    assert all(p.grad is None for p in model.parameters())
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name])


def test_progress_is_told_by_lines(tiny, models_of, step):
    told = []
    models = models_of(policy=tiny("llama"))
    models._progress = lambda *what: told.append(what)
    models.scores("policy", step())
    assert told[-1] == ("scoring with policy", 4, 4)


def test_equal_responses_run_once(tiny, models_of, step):
    table = step(((4, 9),))
    twice = TokenTable.from_rollouts(7, table.rollouts * 2, algorithm=Algorithm(name="t", source="recorded"))
    told = []
    models = models_of(policy=tiny("llama"))
    models._progress = lambda *what: told.append(what)
    scores = models.scores("policy", twice).logprob
    assert told == [("scoring with policy", 1, 1)]
    np.testing.assert_array_equal(scores[:9], scores[9:])
