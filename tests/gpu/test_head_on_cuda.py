"""The head on a CUDA device: the CPU's numbers, the same memory bound, and how noisy bfloat16 is."""

from __future__ import annotations

import pytest
import torch

from credit_inspector.scoring.fused import Kernel, difference, kernel_for
from credit_inspector.scoring.head import Head, alternatives, kl, logprob, score, score_with_alternatives

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

ROWS, HIDDEN, V, BUDGET = 300, 64, 5_003, 64 * 2**20
CUDA = torch.device("cuda")
EXTRA = [{}, {"softcap": 5.0, "scale": 0.5, "temperature": 0.7}]


@pytest.fixture(autouse=True)
def exact_products(monkeypatch):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)


def _case(seed=0, dtype=torch.float32, device="cpu", **extra):
    g = torch.Generator().manual_seed(seed)
    weight, bias = torch.randn(V, HIDDEN, generator=g) / 4, torch.randn(V, generator=g)
    hidden, ids = torch.randn(ROWS, HIDDEN, generator=g), torch.randint(0, V, (ROWS,), generator=g)
    return Head(weight.to(device, dtype), bias.to(device, dtype), **extra), hidden.to(device, dtype), ids.to(device)


@pytest.mark.parametrize("extra", EXTRA, ids=str)
def test_cpu_and_gpu_agree(extra):
    (here, hidden, ids), (there, far_hidden, far_ids) = _case(**extra), _case(device=CUDA, **extra)
    for a, b in zip(score(there, far_hidden, far_ids, BUDGET), score(here, hidden, ids, BUDGET), strict=True):
        torch.testing.assert_close(a.cpu(), b, atol=1e-4, rtol=1e-4)
    ours, theirs = alternatives(there, far_hidden, 5, BUDGET), alternatives(here, hidden, 5, BUDGET)
    torch.testing.assert_close(ours.logprob.cpu(), theirs.logprob, atol=1e-4, rtol=0)
    other, far_other = _case(3)[0], _case(3, device=CUDA)[0]
    far = kl(there, far_hidden, far_other, far_hidden, BUDGET)
    torch.testing.assert_close(far.cpu(), kl(here, hidden, other, hidden, BUDGET), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("extra", EXTRA, ids=str)
def test_gradients_agree(extra):
    def slope(device):
        head, hidden, ids = _case(device=device, **extra)
        return torch.autograd.grad(logprob(head, hidden.requires_grad_(), ids, BUDGET).sum(), hidden)[0].cpu()

    torch.testing.assert_close(slope(CUDA), slope("cpu"), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_trls_kernel_gives_a_full_log_softmax(dtype):
    pytest.importorskip("triton")
    kernels = pytest.importorskip("trl.kernels", reason="TRL before 1.16 has no kernels")
    assert difference(Kernel(kernels.ChunkedLogProbFunction), CUDA, dtype) is None
    assert kernel_for(torch.zeros(1, 1, dtype=dtype, device=CUDA)) is not None


def test_extra_memory_stays_under_the_bound():
    """8,192 tokens over 151,936 words, whose logits take 4,980 MB a copy."""
    tokens, words = 8_192, 151_936
    head = Head(torch.randn(words, HIDDEN, dtype=torch.bfloat16, device=CUDA))
    hidden = torch.randn(tokens, HIDDEN, dtype=torch.bfloat16, device=CUDA)
    ids, budget = torch.randint(0, words, (tokens,), device=CUDA), 256 * 2**20
    forms = [
        lambda: score(head, hidden, ids, budget),
        lambda: score_with_alternatives(head, hidden, ids, 10, budget),
        lambda: kl(head, hidden, head, hidden, budget),
        lambda: logprob(head, hidden.clone().requires_grad_(), ids, budget).sum().backward(),
        lambda: score(head, hidden.clone().requires_grad_(), ids, budget).entropy.sum().backward(),
    ]
    for form in forms:
        form()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        form()
        assert (torch.cuda.max_memory_allocated() - before) / 2**20 <= 300


def test_the_noise_floor_of_bfloat16_is_that_of_its_rounding():
    """What bfloat16 alone does to log-probs: more than nothing, less than the half of a nat that mismatch checks look for."""
    exact = score(*_case(device=CUDA), BUDGET).logprob
    noise = (score(*_case(device=CUDA, dtype=torch.bfloat16), BUDGET).logprob - exact).abs()
    assert 1e-4 < noise.mean().item() < 0.05
    assert noise.max().item() < 0.5
