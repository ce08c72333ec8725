"""How much memory the language-model head takes beside weights, hidden states and results.

8,192 tokens over a vocabulary of 151,936 words, whose logits take 4,980 MB in one float32 copy; the budget is the default
of 256 MB. Each form runs in a process of its own with a narrow head, so that nothing else is large. What counts is the
peak of the process's resident memory after a small warm-up, less what it held before and what the results take. A second
vocabulary of twice the size shows that the peak does not grow with it.

The last line is the worst of all as JSON; the exit code is 1 when it is over the bound.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

BOUND = 300.0
"""MB. The budget is 256; the rest is for what the product's own routine takes and for pieces of a block."""
GROWTH = 32.0
"""MB that twice the vocabulary may take more."""
BUDGET = 256 * 2**20
TOKENS, VOCABULARY, HIDDEN = 8_192, 151_936, 32
MB = 2**20

PEAK = Path("/proc/self/status")
RESET = Path("/proc/self/clear_refs")


def main() -> int:
    if not _resettable():
        reason = "this system cannot reset a process's peak memory (Linux can)"
        print(json.dumps({"name": "scoring_memory", "value": None, "bound": BOUND, "ok": True, "reason": reason}))
        return 0
    worst, growth = 0.0, 0.0
    print(f"{'extra peak, MB':28}{VOCABULARY:>10,}{2 * VOCABULARY:>10,}  words; a copy of all logits: 4,980 and 9,960 MB")
    for form in FORMS:
        # Half the tokens of twice the words: as many logits, and none of the time.
        one, two = _measured(form, TOKENS, VOCABULARY), _measured(form, TOKENS // 2, 2 * VOCABULARY)
        print(f"{form:28}{one:10.0f}{two:10.0f}", flush=True)
        worst, growth = max(worst, one, two), max(growth, two - one)
    ok = worst <= BOUND and growth <= GROWTH
    figures = {"name": "scoring_memory", "value": round(worst, 1), "bound": BOUND, "growth": round(growth, 1), "ok": ok}
    print(json.dumps(figures))
    return 0 if ok else 1


def _resettable() -> bool:
    try:
        RESET.write_text("5")
    except OSError:
        return False
    return "VmHWM" in PEAK.read_text()


def _measured(form: str, tokens: int, vocabulary: int) -> float:
    command = [sys.executable, __file__, form, str(tokens), str(vocabulary)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)  # noqa: S603


def measure(form: str, tokens: int, vocabulary: int) -> float:
    """MB beside weights, hidden states and results, in this very process."""
    import torch

    from credit_inspector.scoring.head import Head

    torch.manual_seed(0)
    head = Head(torch.randn(vocabulary, HIDDEN), softcap=30.0, temperature=0.7)
    hidden, ids = torch.randn(tokens, HIDDEN), torch.randint(0, vocabulary, (tokens,))
    work = FORMS[form]
    # Thread pools and libraries are no part of it. Two tokens warm them up.
    work(head, hidden[:2], ids[:2])
    RESET.write_text("5")
    before = _status("VmRSS")
    result = work(head, hidden, ids)
    results: int = sum(tensor.nbytes for tensor in result)
    return (_status("VmHWM") - before - results) / MB


def _status(name: str) -> int:
    line = next(line for line in PEAK.read_text().splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])


def _score(head: Any, hidden: Any, ids: Any) -> list[Any]:
    from credit_inspector.scoring.head import score

    return list(score(head, hidden, ids, BUDGET))


def _alternatives(head: Any, hidden: Any, ids: Any) -> list[Any]:
    from credit_inspector.scoring.head import score_with_alternatives

    scores, listed = score_with_alternatives(head, hidden, ids, 10, BUDGET)
    return [*scores, *listed]


def _kl(head: Any, hidden: Any, ids: Any) -> list[Any]:
    from credit_inspector.scoring.head import kl

    return [kl(head, hidden, head, hidden.flip(0), BUDGET)]


def _gradient(head: Any, hidden: Any, ids: Any) -> list[Any]:
    import torch

    from credit_inspector.scoring.head import score

    states = hidden.clone().requires_grad_()
    found = score(head, states, ids, BUDGET)
    slope = torch.autograd.grad((found.logprob + found.entropy + found.sum_p2).sum(), states)
    return [states, *slope, *found]


def _kl_gradient(head: Any, hidden: Any, ids: Any) -> list[Any]:
    import torch

    from credit_inspector.scoring.head import kl

    states = hidden.clone().requires_grad_()
    found = kl(head, states, head, hidden.flip(0), BUDGET)
    return [states, *torch.autograd.grad(found.sum(), states), found]


FORMS: dict[str, Callable[[Any, Any, Any], list[Any]]] = {
    "score": _score,
    "score, 10 alternatives": _alternatives,
    "KL": _kl,
    "score with gradient": _gradient,
    "KL with gradient": _kl_gradient,
}

if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
        sys.exit(0)
    sys.exit(main())
