"""All inner products by one forward-mode pass against one backward pass for each token."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM

from credit_inspector.errors import CheckpointError
from credit_inspector.scoring.alignment import WAYS, align
from credit_inspector.table import TokenTable

TOGETHER, ALONE, DOUBLE, DIFFERENCE = WAYS
ANSWERS = ([(0, 4, "sentence"), (5, 8, "answer")], [(1, 3, "answer")], [(0, 6, "sentence")], [(0, 1, "answer")])


def _loop(model, rollout, answer, temperature=1.0):
    """⟨∇l_t, v⟩ for every response token and ‖v‖², token by token."""
    ids = torch.from_numpy(np.concatenate([rollout.prompt_ids, rollout.response_ids])).long()
    p = len(rollout.prompt_ids)
    parameters = [w.requires_grad_() for w in model.parameters()]
    log_p = (model(input_ids=ids[None], use_cache=False).logits[0, :-1] / temperature).log_softmax(-1)
    chosen = log_p.gather(1, ids[1:, None])[p - 1 :, 0]
    again = {"retain_graph": True, "materialize_grads": True}
    slopes = [torch.cat([g.flatten() for g in torch.autograd.grad(token, parameters, **again)]) for token in chosen]
    model.requires_grad_(False)
    v = sum(slopes[answer[0] : answer[1]])
    return np.array([float(g @ v) for g in slopes]), float(v @ v)


def _close(ours, theirs, tolerance):
    assert np.abs(ours - theirs).max() <= tolerance * np.abs(theirs).max()


@pytest.mark.parametrize("way", WAYS)
def test_every_way_equals_the_backward_loop(model, models_of, step, cut, way):
    table = step(temperature=0.8)
    found = align(models_of(policy=model), table, cut(table, *ANSWERS), ways=[way])
    assert found.way == way
    tolerance = 5e-3 if way == DIFFERENCE else 1e-4
    for row, of in enumerate(ANSWERS):
        answer = next(((a, b) for a, b, label in of if label == "answer"), None)
        if answer is None:
            assert np.isnan(found.inner[table.slice(row)]).all()
            assert np.isnan(found.norm2[row])
            continue
        inner, norm2 = _loop(model, table.rollouts[row], answer, 0.8)
        _close(found.inner[table.slice(row)], inner, tolerance)
        assert found.norm2[row] == pytest.approx(norm2, rel=1e-4)
        assert not found.certain[row]


def test_the_answers_own_tokens_add_up_to_its_norm(model, models_of, step, cut):
    table = step()
    found = align(models_of(policy=model), table, cut(table, *ANSWERS))
    for row, start, end in ((0, 5, 8), (1, 1, 3), (3, 0, 1)):
        own = found.inner[table.slice(row)][start:end].astype(float).sum()
        assert own == pytest.approx(found.norm2[row], rel=1e-4)


def test_the_padding_id_is_a_token_like_others(tiny, models_of, step, cut):
    table = step()
    for rollout in table.rollouts:
        rollout.response_ids[:3] = rollout.prompt_ids[1] = 0
    model = tiny("gemma2")
    model.model.embed_tokens.padding_idx = 0
    found = align(models_of(policy=model), table, cut(table, *ANSWERS))
    assert found.way == TOGETHER
    assert model.model.embed_tokens.padding_idx == 0
    model.model.embed_tokens.padding_idx = None
    _close(found.inner[table.slice(0)], _loop(model, table.rollouts[0], (5, 8))[0], 1e-4)


def test_a_response_alone_equals_it_among_others(model, models_of, step, cut):
    table = step()
    models = models_of(policy=model)
    among = align(models, table, cut(table, *ANSWERS)).inner[table.slice(0)]
    alone = TokenTable.from_rollouts(7, table.rollouts[:1], algorithm=table.algorithm)
    _close(align(models, alone, cut(alone, ANSWERS[0])).inner, among, 1e-5)


def test_one_response_at_a_time_under_a_small_budget(tiny, models_of, step, cut):
    table = step()
    spans = cut(table, *ANSWERS)
    model = tiny("llama")
    small, large = (models_of(policy=model, budget_mb=mb) for mb in (1, 256))
    small.budget = 60_000
    np.testing.assert_allclose(align(small, table, spans).inner, align(large, table, spans).inner, rtol=1e-4, atol=1e-5)


def test_equal_responses_are_worked_out_once(tiny, models_of, step, cut):
    table = step(((4, 9),))
    twice = TokenTable.from_rollouts(7, table.rollouts * 2, algorithm=table.algorithm)
    told = []
    models = models_of(policy=tiny("llama"))
    models._progress = lambda *what: told.append(what)
    found = align(models, twice, cut(twice, [(5, 8, "answer")], [(5, 8, "answer")]))
    assert told == [("gradient alignment", 1, 1)]
    np.testing.assert_array_equal(found.inner[:9], found.inner[9:])


def test_without_a_prompt_the_first_token_is_missing(tiny, models_of, step, cut):
    table = step(((0, 6),))
    inner = align(models_of(policy=tiny("llama")), table, cut(table, [(3, 6, "answer")])).inner
    assert np.isnan(inner[0])
    assert np.isfinite(inner[1:]).all()


def test_a_certain_answer_is_named(tiny, models_of, step, cut):
    model = tiny("llama")
    model.lm_head.weight.data *= 300
    table = step(((4, 9),))
    ids = torch.from_numpy(np.concatenate([table.rollouts[0].prompt_ids, table.rollouts[0].response_ids])).long()
    table.rollouts[0].response_ids[8] = int(model(input_ids=ids[None]).logits[0, -2].argmax())
    found = align(models_of(policy=model), table, cut(table, [(8, 9, "answer")]))
    assert found.certain.tolist() == [True]


def test_a_step_without_an_answer_needs_no_gradient(tiny, models_of, step, cut):
    table = step()
    found = align(models_of(policy=tiny("llama")), table, cut(table))
    assert np.isnan(found.inner).all()
    assert found.way == TOGETHER


def test_nothing_is_left_on_the_model(model, models_of, step, cut):
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    attention = model.config._attn_implementation
    table = step()
    models = models_of(policy=model)
    for way in WAYS:
        align(models, table, cut(table, *ANSWERS), ways=[way])
    assert not model.training
    assert model.config._attn_implementation == attention
    for name, p in model.named_parameters():
        assert p.grad is None
        assert not p.requires_grad
        assert torch.equal(p, before[name])


# ── models that not every way passes ──────────────────────────────────────────────────────────────────────────────────


class _NoForwardFormula(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, slope):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return slope * (s + x * s * (1 - s))


class _OneBackwardOnly(_NoForwardFormula):
    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, slope):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return slope * (s + x * s * (1 - s))


class _Activation(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function.apply(x)


@pytest.mark.parametrize("kernel", [(_NoForwardFormula, DOUBLE), (_OneBackwardOnly, DIFFERENCE)])
def test_a_kernel_without_derivatives_falls_back_and_says_so(tiny, models_of, step, cut, kernel):
    function, way = kernel
    table = step()
    model = tiny("llama")
    inner, _ = _loop(model, table.rollouts[0], (5, 8))
    for layer in model.model.layers:
        layer.mlp.act_fn = _Activation(function)
    found = align(models_of(policy=model), table, cut(table, *ANSWERS))
    assert found.way == way
    _close(found.inner[table.slice(0)], inner, 5e-3)


def test_a_mixture_of_experts_passes(models_of, step, cut):
    torch.manual_seed(0)
    size = {"vocab_size": 37, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    size |= {"num_key_value_heads": 1, "intermediate_size": 24, "num_local_experts": 3, "num_experts_per_tok": 1}
    model = MixtralForCausalLM(MixtralConfig(**size, initializer_range=0.3, experts_implementation="eager")).eval()
    table = step()
    inner, _ = _loop(model, table.rollouts[0], (5, 8))
    found = align(models_of(policy=model), table, cut(table, *ANSWERS))
    assert found.way != DIFFERENCE
    _close(found.inner[table.slice(0)], inner, 1e-4)


def test_a_model_that_cannot_be_differentiated_says_what_failed(tiny, models_of, step, cut):
    table = step()
    model = tiny("llama")
    models = models_of(policy=model)
    models.opened("policy")
    hook = model.model.norm.register_forward_hook(_refuse)
    with pytest.raises(CheckpointError, match=r"no gradient can be taken through LlamaForCausalLM \(forward.*kernel"):
        align(models, table, cut(table, *ANSWERS))
    hook.remove()


def _refuse(_layer, _given, answer):
    raise RuntimeError("this kernel has no derivative")
