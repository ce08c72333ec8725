from __future__ import annotations

import pytest
import torch

from credit_inspector.errors import UsageError
from credit_inspector.scoring.device import pick


def test_the_cpu_computes_in_float32():
    assert pick("cpu") == (torch.device("cpu"), torch.float32)


def test_auto_takes_cuda_in_bfloat16_where_the_card_has_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    assert pick() == (torch.device("cuda"), torch.bfloat16)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: False)
    assert pick() == (torch.device("cuda"), torch.float32)


def test_auto_takes_the_cpu_where_nothing_else_is(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert pick()[0].type == "cpu"


@pytest.mark.parametrize("name", ["tpu", "cpu:1", "cuda:x", ""])
def test_an_unknown_device_is_refused_with_the_known_ones(name):
    with pytest.raises(UsageError, match="one of auto, cpu, cuda, mps"):
        pick(name)


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="no cuda device on this machine"):
        pick("cuda")
