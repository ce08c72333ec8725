from __future__ import annotations

import numpy as np
import pytest
import torch

from credit_inspector.errors import CheckpointError
from credit_inspector.scoring.saliency import saliency
from credit_inspector.table import TokenTable

ANSWERS = ([(0, 4, "sentence"), (5, 8, "answer")], [(1, 3, "answer")], [(0, 6, "sentence")], [(0, 1, "answer")])


def _naive(model, rollout, answer):
    """⟨e, ∂F/∂e⟩ through ``inputs_embeds`` of one response."""
    ids = torch.from_numpy(np.concatenate([rollout.prompt_ids, rollout.response_ids])).long()
    p = len(rollout.prompt_ids)
    leaf = model.get_input_embeddings()(ids)[None].detach().requires_grad_()
    log_p = model(inputs_embeds=leaf, use_cache=False).logits[0].log_softmax(-1)
    total = sum(log_p[p + t - 1, ids[p + t]] for t in range(*answer))
    (slope,) = torch.autograd.grad(total, leaf)
    return (leaf * slope).sum(-1)[0, p:].detach().numpy()


def test_a_step_equals_one_backward_pass_for_each_response(model, models_of, step, cut):
    table = step()
    found = saliency(models_of(policy=model), table, cut(table, *ANSWERS))
    for row, answer in ((0, (5, 8)), (1, (1, 3)), (3, (0, 1))):
        naive = _naive(model, table.rollouts[row], answer)
        np.testing.assert_allclose(found[table.slice(row)], naive, atol=2e-5 * max(1, np.abs(naive).max()))
    assert np.isnan(found[table.slice(2)]).all()


def test_captum_says_the_same(tiny, models_of, step, cut):
    """Captum's audited gradient × input over ``inputs_embeds``, summed over the embedding."""
    attr = pytest.importorskip("captum.attr")
    table, model = step(), tiny("llama")
    found = saliency(models_of(policy=model), table, cut(table, *ANSWERS))[table.slice(0)]
    rollout = table.rollouts[0]
    ids = torch.from_numpy(np.concatenate([rollout.prompt_ids, rollout.response_ids])).long()
    p = len(rollout.prompt_ids)

    def answer(embedded):
        log_p = model(inputs_embeds=embedded, use_cache=False).logits.log_softmax(-1)
        return sum(log_p[:, p + t - 1, ids[p + t]] for t in range(5, 8))

    leaf = model.get_input_embeddings()(ids)[None].detach().requires_grad_()
    captum = attr.InputXGradient(answer).attribute(leaf).sum(-1)[0, p:].detach().numpy()
    np.testing.assert_allclose(found, captum, atol=2e-5 * max(1, np.abs(captum).max()))


def test_nothing_from_the_last_answer_token_on_matters(model, models_of, step, cut):
    table = step()
    found = saliency(models_of(policy=model), table, cut(table, *ANSWERS))[table.slice(0)]
    assert (found[7:] == 0).all()
    # Beyond the sliding window of the family that has one, nothing is seen either.
    assert (found[5:7] != 0).all()


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_frozen_weights_and_checkpointing_change_nothing(tiny, models_of, step, cut, reentrant):
    table = step()
    spans = cut(table, *ANSWERS)
    plain = saliency(models_of(policy=tiny("llama")), table, spans)
    model = tiny("llama").requires_grad_(False)
    models = models_of(policy=model)
    models.opened("policy")
    if reentrant is not None:
        model.train()
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    hooks = len(model.get_input_embeddings()._forward_hooks)
    np.testing.assert_allclose(saliency(models, table, spans), plain, atol=1e-5)
    assert all(p.grad is None for p in model.parameters())
    assert len(model.get_input_embeddings()._forward_hooks) == hooks


def test_a_cut_graph_is_an_error_and_no_zero(tiny, models_of, step, cut):
    model = tiny("llama")
    table = step()
    models = models_of(policy=model)
    models.opened("policy")
    model.model.layers[0].register_forward_hook(lambda _layer, _given, answer: answer.detach())
    with pytest.raises(CheckpointError, match="does not depend on the token embeddings by any differentiable path"):
        saliency(models, table, cut(table, *ANSWERS))
    assert not model.get_input_embeddings()._forward_hooks


def test_a_response_alone_equals_it_among_others(model, models_of, step, cut):
    table = step()
    models = models_of(policy=model)
    among = saliency(models, table, cut(table, *ANSWERS))[table.slice(0)]
    alone = TokenTable.from_rollouts(7, table.rollouts[:1], algorithm=table.algorithm)
    np.testing.assert_allclose(saliency(models, alone, cut(alone, ANSWERS[0])), among, atol=1e-5)


def test_without_a_prompt_the_first_token_still_matters(tiny, models_of, step, cut):
    table = step(((0, 6),))
    found = saliency(models_of(policy=tiny("llama")), table, cut(table, [(3, 6, "answer")]))
    assert found[0] != 0
    assert np.isfinite(found).all()
