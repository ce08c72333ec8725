"""TRL's log-prob kernel behind the head's signatures: on its torch path here, on Triton in ``tests/gpu``."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace

import pytest
import torch

from credit_inspector.scoring import fused
from credit_inspector.scoring import head as module
from credit_inspector.scoring.fused import WIDTH, Kernel, Layer, difference, kernel_for, proved, tile
from credit_inspector.scoring.head import Head, logprob, score

CPU = torch.device("cpu")
ROWS, HIDDEN, V = 23, 8, 2 * WIDTH + 7


@pytest.fixture
def kernel():
    kernels = pytest.importorskip("trl.kernels", reason="TRL before 1.16 has no kernels")
    return Kernel(kernels.ChunkedLogProbFunction)


@pytest.fixture
def spoiled(kernel):
    """Kernels whose answers are changed: from the place of a value and a change to a kernel."""

    def build(place, change):
        def apply(*arguments):
            answer = list(kernel.function.apply(*arguments))
            if answer[place] is not None:
                answer[place] = change(answer[place])
            return tuple(answer)

        return Kernel(SimpleNamespace(apply=apply))

    return build


def _case(**extra):
    g = torch.Generator().manual_seed(0)
    head = Head(torch.randn(V, HIDDEN, generator=g), torch.randn(V, generator=g), **extra)
    return head, torch.randn(ROWS, HIDDEN, generator=g), torch.randint(0, V, (ROWS,), generator=g)


def _layer(head):
    return Layer(head.weight, head.bias, head.scale, head.softcap, head.temperature)


@pytest.mark.parametrize("budget", [WIDTH * 4, 5 * WIDTH * 4, 10**8], ids=["a row", "five rows", "all"])
@pytest.mark.parametrize("extra", [{}, {"softcap": 2.0, "scale": 0.3, "temperature": 0.7}], ids=str)
def test_the_kernel_gives_what_the_plain_way_gives(kernel, budget, extra):
    head, hidden, ids = _case(**extra)
    plain = score(head, hidden, ids, 10**8)
    for a, b in zip(kernel.score(_layer(head), hidden, ids, budget), plain, strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(kernel.logprob(_layer(head), hidden, ids, budget), plain.logprob, atol=2e-5, rtol=0)


def test_its_gradient_is_the_plain_one(kernel):
    head, hidden, ids = _case(softcap=2.0, temperature=0.7)

    def slope(of):
        leaf = hidden.clone().requires_grad_()
        return torch.autograd.grad((torch.linspace(-1, 1, ROWS) * of(leaf)).sum(), leaf)[0]

    ours, plain = (
        slope(lambda h: kernel.logprob(_layer(head), h, ids, 5 * WIDTH * 4)),
        slope(lambda h: logprob(head, h, ids, 10**8)),
    )
    torch.testing.assert_close(ours, plain, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_trls_own_kernel_proves_itself(kernel, dtype):
    assert difference(kernel, CPU, dtype) is None
    assert proved(kernel, CPU, dtype) is kernel


@pytest.mark.parametrize(
    ("place", "change", "name"),
    [
        (0, lambda v: v + 1, "log-prob"),
        (0, lambda v: v.detach() + 1.2 * (v - v.detach()), "gradient"),
        (1, lambda v: 0.9 * v, "entropy"),
        (2, lambda v: v + 0.1, "Σp²"),
        (2, lambda v: v * float("nan"), "Σp²"),
    ],
)
def test_a_kernel_that_gives_something_else_is_not_used(spoiled, caplog, place, change, name):
    for dtype in (torch.float32, torch.bfloat16):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "credit_inspector"):
            assert proved(spoiled(place, change), CPU, dtype) is None
        assert len(caplog.records) == 1
        assert f"not used on cpu in {str(dtype).removeprefix('torch.')}, {name} differs by" in caplog.text


def test_a_kernel_that_fails_is_not_used(caplog):
    def apply(*arguments):
        raise RuntimeError("Triton Error [CUDA]: device kernel image is invalid\nsecond line")

    with caplog.at_level(logging.WARNING, "credit_inspector"):
        assert proved(Kernel(SimpleNamespace(apply=apply)), CPU, torch.float32) is None
    assert "it fails: RuntimeError: Triton Error [CUDA]: device kernel image is invalid; log-probs are" in caplog.text
    assert "second line" not in caplog.text


def test_a_full_device_says_so():
    def apply(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        proved(Kernel(SimpleNamespace(apply=apply)), CPU, torch.float32)


def test_the_cpu_has_no_kernel():
    assert kernel_for(torch.zeros(2, 2)) is None


@pytest.mark.parametrize(
    ("n", "vocabulary", "elements", "wanted"),
    [
        (8192, 151_936, 2**27, (4096, 32 * WIDTH)),
        (8192, 5_000, 2**27, (4096, 5 * WIDTH)),
        (100, 151_936, 2**27, (100, 149 * WIDTH)),
        (8192, 151_936, 10 * WIDTH, (10, WIDTH)),
        (8192, 151_936, 3, (1, WIDTH)),
    ],
)
def test_tiles_fill_the_budget(n, vocabulary, elements, wanted):
    assert tile(n, vocabulary, elements) == wanted


# ── who asks it ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def asked(monkeypatch):
    """A kernel that is always there and remembers what it was asked."""
    calls = []

    def values(name, n):
        def of(layer, hidden, ids, budget):
            calls.append(name)
            return (torch.full((len(ids),), 7.0),) * n if n > 1 else torch.full((len(ids),), 7.0)

        return of

    there = SimpleNamespace(score=values("score", 3), logprob=values("logprob", 1))
    monkeypatch.setattr(module, "kernel_for", lambda weight: there)
    return calls


def test_the_head_asks_the_kernel_where_it_is_there(asked):
    head, hidden, ids = _case()
    assert (torch.stack(score(head, hidden, ids, 10**8)) == 7).all()
    assert (logprob(head, hidden, ids, 10**8) == 7).all()
    assert (logprob(head, hidden.requires_grad_(), ids, 10**8) == 7).all()
    assert asked == ["score", "logprob", "logprob"]


def test_the_kernel_is_not_asked_for_what_it_cannot_do(asked):
    """Gradients of Σp² and of weights, and function transforms."""
    head, hidden, ids = _case()
    assert score(head, hidden.clone().requires_grad_(), ids, 10**8).sum_p2.requires_grad
    assert (logprob(head, hidden, ids, 10**8, recompute=False) != 7).all()
    head.weight.requires_grad_()
    assert (logprob(head, hidden, ids, 10**8) != 7).all()
    assert asked == []


def test_without_triton_there_is_no_kernel(monkeypatch):
    monkeypatch.setattr(fused, "find_spec", lambda name: None)
    assert fused._function() is None


def test_an_older_trl_has_no_kernel(monkeypatch):
    monkeypatch.setattr(fused, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "trl.kernels", None)
    assert fused._function() is None


def test_trls_kernel_is_found(kernel, monkeypatch):
    monkeypatch.setattr(fused, "find_spec", lambda name: object())
    assert fused._function() is kernel.function
