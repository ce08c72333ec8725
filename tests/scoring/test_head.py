"""The chunked head against the whole vocabulary at once."""

from __future__ import annotations

import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import CohereConfig, CohereForCausalLM, GraniteConfig, GraniteForCausalLM

from credit_inspector.errors import CheckpointError, UsageError
from credit_inspector.scoring.head import (
    COPIES,
    COPIES_KL,
    COPIES_WITH_GRADIENT,
    Head,
    alternatives,
    kl,
    logprob,
    score,
    score_with_alternatives,
)

ROWS, HIDDEN, V = 23, 8, 50


def _head(seed=0, **extra):
    g = torch.Generator().manual_seed(seed)
    return Head(torch.randn(V, HIDDEN, generator=g), torch.randn(V, generator=g), **extra)


def _states(seed=1):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(ROWS, HIDDEN, generator=g), torch.randint(0, V, (ROWS,), generator=g)


def _naive_all(head, hidden):
    z = hidden @ head.weight.T + head.bias
    z = z * head.scale
    if head.softcap:
        z = head.softcap * torch.tanh(z / head.softcap)
    return torch.log_softmax(z / head.temperature, -1)


def _double(head):
    return replace(head, weight=head.weight.double(), bias=head.bias.double())


def _naive(head, hidden, ids):
    log_p = _naive_all(head, hidden)
    p = log_p.exp()
    return log_p[torch.arange(len(ids)), ids], -(p * log_p).sum(-1), (p * p).sum(-1)


@pytest.mark.parametrize("rows", [1, 2, 7, ROWS, 1000])
@pytest.mark.parametrize("extra", [{}, {"softcap": 2.0}, {"scale": 0.3, "temperature": 0.7}], ids=str)
def test_chunks_give_what_the_whole_gives(rows, extra):
    head, (hidden, ids) = _head(**extra), _states()
    budget = rows * 4 * V * COPIES
    for ours, naive in zip(score(head, hidden, ids, budget), _naive(head, hidden, ids), strict=True):
        torch.testing.assert_close(ours, naive, atol=1e-5, rtol=0)
    torch.testing.assert_close(logprob(head, hidden, ids, budget), _naive(head, hidden, ids)[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("rows", [1, 4, 1000])
def _slopes(values_of, head, *states):
    leaves = [state.clone().requires_grad_() for state in states]
    weight = head.weight.clone().requires_grad_()
    values = values_of(replace(head, weight=weight), *leaves)
    weights = torch.linspace(-1, 1, ROWS, dtype=head.weight.dtype)
    total = sum((((i + 1) * weights) @ value.reshape(ROWS, -1)).sum() for i, value in enumerate(values))
    return torch.autograd.grad(total, [*leaves, weight])


@pytest.mark.parametrize("rows", [1, 4, 1000])
def test_gradients_pass_through_chunks(rows):
    head, (hidden, ids), budget = _head(softcap=3.0, temperature=1.3), _states(), rows * 4 * V * COPIES_WITH_GRADIENT
    forms = [
        (lambda head, h: score(head, h, ids, budget), lambda head, h: _naive(head, h, ids)),
        (lambda head, h: [logprob(head, h, ids, budget)], lambda head, h: _naive(head, h, ids)[:1]),
        (lambda head, h: [alternatives(head, h, 3, budget).logprob], lambda head, h: [_naive_all(head, h).topk(3).values]),
        (
            lambda head, h: [*score_with_alternatives(head, h, ids, 3, budget)[0]],
            lambda head, h: _naive(head, h, ids),
        ),
    ]
    for ours, naive in forms:
        for a, b in zip(_slopes(ours, head, hidden), _slopes(naive, head, hidden), strict=True):
            assert b.abs().max() > 0.1
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 4, 1000])
def test_the_gradient_of_kl_reaches_both_models(rows):
    p, q, (hidden, _), other = _head(0, softcap=3.0), _head(3), _states(), _states(9)[0]

    def ours(q, hidden_q, hidden_p):
        return [kl(p, hidden_p, q, hidden_q, rows * 4 * V * 2 * COPIES_KL)]

    def naive(q, hidden_q, hidden_p):
        log_p, log_q = _naive_all(p, hidden_p), _naive_all(q, hidden_q)
        return [(log_p.exp() * (log_p - log_q)).sum(-1)]

    for a, b in zip(_slopes(ours, q, other, hidden), _slopes(naive, q, other, hidden), strict=True):
        assert b.abs().max() > 0.1
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-5)


# ── alternatives ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("rows", [1, 7, 1000])
@pytest.mark.parametrize("extra", [{}, {"softcap": 2.0, "scale": 0.3, "temperature": 0.7}], ids=str)
def test_alternatives_are_the_likeliest_words_in_order(rows, extra):
    head, (hidden, ids), budget = _head(**extra), _states(), rows * 4 * V * COPIES
    best = _naive_all(_double(head), hidden.double()).topk(5)
    for found in (alternatives(head, hidden, 5, budget), score_with_alternatives(head, hidden, ids, 5, budget)[1]):
        assert found.ids.dtype == torch.int64
        assert torch.equal(found.ids, best.indices)
        torch.testing.assert_close(found.logprob.double(), best.values, atol=1e-5, rtol=0)
    beside = score_with_alternatives(head, hidden, ids, 5, budget)[0]
    for a, b in zip(beside, score(head, hidden, ids, budget), strict=True):
        torch.testing.assert_close(a, b, atol=0, rtol=0)


def test_all_words_as_alternatives_are_the_distribution():
    found = alternatives(_head(), _states()[0], V, 10**6)
    torch.testing.assert_close(found.logprob.exp().sum(-1), torch.ones(ROWS))
    assert (found.ids.sort(-1).values == torch.arange(V)).all()


@pytest.mark.parametrize("k", [0, -1, V + 1])
def test_as_many_alternatives_as_there_are_words(k):
    (hidden, ids) = _states()
    with pytest.raises(UsageError, match=f"{k} alternatives of 50 words"):
        alternatives(_head(), hidden, k, 10**6)
    with pytest.raises(UsageError, match=f"{k} alternatives of 50 words"):
        score_with_alternatives(_head(), hidden, ids, k, 10**6)


# ── precision ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("sharpness", [0.1, 1.0, 10.0])
def test_float32_is_as_near_to_float64_as_it_can_be(sharpness):
    g = torch.Generator().manual_seed(0)
    head = Head(sharpness * torch.randn(5000, 16, generator=g), torch.randn(5000, generator=g))
    hidden, ids = torch.randn(64, 16, generator=g), torch.randint(0, 5000, (64,), generator=g)
    exact = _naive(_double(head), hidden.double(), ids)
    for ours, naive, tolerance in zip(score(head, hidden, ids, 10**6), exact, (1e-6, 1e-5, 1e-5), strict=True):
        torch.testing.assert_close(ours.double(), naive, rtol=tolerance, atol=1e-5)


def test_states_of_another_precision_are_taken_in_the_heads():
    head, (hidden, ids) = _head(), _states()
    rounded = Head(head.weight.bfloat16(), head.bias.bfloat16())
    ours = score(rounded, hidden, ids, 10**6)
    z = torch.nn.functional.linear(hidden.bfloat16(), rounded.weight, rounded.bias).double()
    torch.testing.assert_close(ours.logprob.double(), z.log_softmax(-1)[torch.arange(ROWS), ids], atol=2e-2, rtol=0)


def test_scoring_leaves_states_and_weights_as_they_were():
    head, (hidden, ids) = Head(torch.eye(V), softcap=2.0, scale=0.5, temperature=0.7), _states()
    hidden = torch.randn(ROWS, V)
    before = hidden.clone(), head.weight.clone()
    score(head, hidden, ids, 10**6)
    kl(head, hidden, head, hidden, 10**6)
    assert torch.equal(hidden, before[0])
    assert torch.equal(head.weight, before[1])


def test_kl_is_the_full_sum_and_never_negative():
    p, q, (hidden, _) = _head(0), _head(3), _states()
    other = _states(9)[0]
    log_p, log_q = (torch.log_softmax(h @ head.weight.T + head.bias, -1) for h, head in ((hidden, p), (other, q)))
    naive = (log_p.exp() * (log_p - log_q)).sum(-1)
    for rows in (1, 5, 1000):
        torch.testing.assert_close(kl(p, hidden, q, other, rows * 4 * V * 5), naive, atol=1e-5, rtol=1e-5)
    assert (kl(p, hidden, p, hidden, 10**6) == 0).all()


def test_one_astronomic_position_stays_finite():
    head = Head(torch.tensor([[0.0], [1.0]]))
    far = kl(head, torch.tensor([[-200.0]]), head, torch.tensor([[200.0]]), 10**6)
    assert far.item() == pytest.approx(200.0)


@pytest.mark.parametrize(("p", "length"), [(0.99, 0.01414), (0.5, 0.70711), (0.1, 1.27279)])
def test_log_prob_and_sum_p2_give_the_gradient_at_the_logits(p, length):
    head = Head(torch.log(torch.tensor([[p], [1 - p]])))
    found = score(head, torch.ones(1, 1), torch.tensor([0]), 10**6)
    assert (1 - 2 * found.logprob.exp() + found.sum_p2).sqrt().item() == pytest.approx(length, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("extra", [{}, {"softcap": 2.0, "scale": 0.3, "temperature": 0.7}], ids=str)
@pytest.mark.parametrize("rows", [1, 20])
def test_what_is_alive_at_once_stays_under_the_budget(rows, extra, dtype):
    head, ids = Head(torch.randn(1000, HIDDEN).to(dtype), **extra), torch.randint(0, 1000, (300,))
    hidden = torch.randn(300, HIDDEN).to(dtype)
    works = {
        COPIES: [
            lambda budget: score(head, hidden, ids, budget),
            lambda budget: logprob(head, hidden, ids, budget),
            lambda budget: alternatives(head, hidden, 3, budget),
            lambda budget: score_with_alternatives(head, hidden, ids, 3, budget),
        ],
        COPIES_KL: [lambda budget: kl(head, hidden, head, hidden, budget)],
    }
    for copies, forms in works.items():
        for work in forms:
            with _Alive(head.weight, hidden, ids) as seen, torch.no_grad():
                work(rows * 4 * 1000 * copies)
            # The values themselves, and what a row needs beside its logits.
            assert rows * 4 * 1000 <= seen.peak <= rows * 4 * 1000 * copies + 300 * 9 * 16


class _Alive(TorchDispatchMode):
    """Bytes of all memory that operations took and that is alive, at their peak."""

    def __init__(self, *given):
        super().__init__()
        self.now, self.peak, self.known = 0, 0, {tensor.untyped_storage().data_ptr() for tensor in given}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        answer = func(*args, **(kwargs or {}))
        for tensor in answer if isinstance(answer, tuple | list) else [answer]:
            if isinstance(tensor, torch.Tensor):
                self._seen(tensor.untyped_storage().data_ptr(), tensor.nbytes, tensor)
        return answer

    def _seen(self, place, size, tensor):
        # Whatever shares the memory of a tensor that is alive is a view of it.
        if place not in self.known:
            self.known.add(place)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(tensor, self._gone, place, size)

    def _gone(self, place, size):
        self.known.discard(place)
        self.now -= size


def test_rows_fit_the_budget_that_the_field_reports_ask_for():
    # 20,000 tokens of it would take 9.8 GiB a copy.
    head = Head(torch.empty(131_072, 1, device="meta"))
    assert head.rows(256 * 2**20) == 170
    with pytest.raises(UsageError, match=r"over a vocabulary of 131072 takes 1.5 MB.*raise the budget to 2 MB"):
        head.rows(2**20)


def test_vocabularies_that_differ_have_no_kl():
    with pytest.raises(CheckpointError, match="vocabularies of 50 and 49 words"):
        kl(_head(), _states()[0], Head(torch.randn(49, HIDDEN)), _states()[0], 10**6)


def test_no_tokens_give_no_values():
    head = _head()
    assert [len(v) for v in score(head, torch.zeros(0, HIDDEN), torch.zeros(0, dtype=torch.long), 10**6)] == [0, 0, 0]
    assert len(kl(head, torch.zeros(0, HIDDEN), head, torch.zeros(0, HIDDEN), 10**6)) == 0
    assert len(logprob(head, torch.zeros(0, HIDDEN), torch.zeros(0, dtype=torch.long), 10**6)) == 0
    assert [tuple(v.shape) for v in alternatives(head, torch.zeros(0, HIDDEN), 3, 10**6)] == [(0, 3), (0, 3)]
    scores, listed = score_with_alternatives(head, torch.zeros(0, HIDDEN), torch.zeros(0, dtype=torch.long), 3, 10**6)
    assert [len(v) for v in (*scores, *listed)] == [0] * 5


def test_greedy_sampling_is_scored_at_temperature_one():
    assert _head().at(0.0).temperature == 1.0


# ── what models do to their logits ────────────────────────────────────────────────────────────────────────────────────

_SMALL = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
_SMALL |= {"num_key_value_heads": 2, "intermediate_size": 16}


def _of(model):
    return Head.of(model, lambda ids: model.base_model(input_ids=ids, use_cache=False).last_hidden_state)


def test_soft_capping_is_found(tiny):
    assert _of(tiny("gemma2")).softcap == 3.0


def test_scaling_is_found_in_either_sense():
    torch.manual_seed(0)
    granite = GraniteForCausalLM(GraniteConfig(**_SMALL, logits_scaling=8.0)).eval()
    assert _of(granite).scale == pytest.approx(1 / 8)
    cohere = CohereForCausalLM(CohereConfig(**_SMALL, logit_scale=0.25, pad_token_id=0)).eval()
    assert _of(cohere).scale == pytest.approx(0.25)


def test_an_unknown_change_of_the_logits_is_refused(tiny, monkeypatch):
    model = tiny("llama")
    own = type(model).forward

    def bent(self, *args, **kwargs):
        answer = own(self, *args, **kwargs)
        answer.logits = answer.logits + torch.linspace(0, 1, answer.logits.shape[-1])
        return answer

    monkeypatch.setattr(type(model), "forward", bent)
    with pytest.raises(CheckpointError, match="LlamaForCausalLM changes its logits after the head"):
        _of(model)


def test_a_model_without_a_head_is_refused():
    with pytest.raises(CheckpointError, match="no language-model head"):
        Head.of(SimpleNamespace(get_output_embeddings=lambda: None), lambda ids: ids)
