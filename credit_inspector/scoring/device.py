"""Where models run and in which precision.

CUDA computes in bfloat16 where the card has it (log-probs are upcast before anything is subtracted), Metal and the
CPU in float32: bfloat16 products are several times slower on most CPUs.
"""

from __future__ import annotations

import torch

from credit_inspector.errors import UsageError

NAMES = ("auto", "cpu", "cuda", "mps")


def pick(name: str = "auto") -> tuple[torch.device, torch.dtype]:
    """The device of that name and the precision to load weights in; ``auto`` takes CUDA, then Metal, then the CPU.

    Raises:
        UsageError: no such device, or not on this machine.
    """
    kind, _, index = name.partition(":")
    if kind not in NAMES or (index and not (kind == "cuda" and index.isdigit())):
        raise UsageError(f"unknown device {name!r}", wanted=f"one of {', '.join(NAMES)}, cuda:<number>")
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if kind == "auto":
        kind = next(known for known, is_there in there.items() if is_there)
    if not there[kind]:
        raise UsageError(f"no {kind} device on this machine", do="use --device auto")
    if index and int(index) >= torch.cuda.device_count():
        raise UsageError(f"no device {name}", wanted=f"a number below {torch.cuda.device_count()}")
    device = torch.device(f"{kind}:{index}" if index else kind)
    return device, _precision(kind)


def _precision(kind: str) -> torch.dtype:
    return torch.bfloat16 if kind == "cuda" and torch.cuda.is_bf16_supported() else torch.float32
