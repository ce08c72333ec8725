"""The chunked head against the whole vocabulary at once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import CohereConfig, CohereForCausalLM, GraniteConfig, GraniteForCausalLM

from credit_inspector.errors import CheckpointError, UsageError
from credit_inspector.scoring.head import COPIES, Head, kl, logprob, score

ROWS, HIDDEN, V = 23, 8, 50


def _head(seed=0, **extra):
    g = torch.Generator().manual_seed(seed)
    return Head(torch.randn(V, HIDDEN, generator=g), torch.randn(V, generator=g), **extra)


def _states(seed=1):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(ROWS, HIDDEN, generator=g), torch.randint(0, V, (ROWS,), generator=g)


def _naive(head, hidden, ids):
    z = hidden @ head.weight.T + head.bias
    z = z * head.scale
    if head.softcap:
        z = head.softcap * torch.tanh(z / head.softcap)
    log_p = torch.log_softmax(z / head.temperature, -1)
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
def test_gradients_pass_through_chunks(rows):
    head, (hidden, ids) = _head(softcap=3.0, temperature=1.3), _states()
    weights = torch.linspace(-1, 1, ROWS)

    def slopes(values_of):
        leaf, weight = hidden.clone().requires_grad_(), head.weight.clone().requires_grad_()
        values = values_of(Head(weight, head.bias, head.scale, head.softcap, head.temperature), leaf)
        total = sum(((i + 1) * weights * value).sum() for i, value in enumerate(values))
        return torch.autograd.grad(total, [leaf, weight])

    ours = slopes(lambda h, x: score(h, x, ids, rows * 4 * V * 6))
    naive = slopes(lambda h, x: _naive(h, x, ids))
    for a, b in zip(ours, naive, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-5)


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


def test_what_a_chunk_holds_stays_under_the_budget():
    head, budget = Head(torch.randn(1000, HIDDEN)), 20 * 4 * 1000 * COPIES
    hidden, ids = torch.randn(300, HIDDEN), torch.randint(0, 1000, (300,))
    with _Largest() as seen, torch.no_grad():
        score(head, hidden, ids, budget)
    assert seen.numel * 4 * COPIES <= budget


class _Largest(TorchDispatchMode):
    """Remembers the largest tensor that any operation gives."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        answer = func(*args, **(kwargs or {}))
        for tensor in answer if isinstance(answer, tuple | list) else [answer]:
            # A transposed view of the weights is no new memory.
            if isinstance(tensor, torch.Tensor) and not tensor._is_view():
                self.numel = max(self.numel, tensor.numel())
        return answer


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
