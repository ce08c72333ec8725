"""Turns of one trajectory, each sampled from a prompt of its own → the sequences that are trained.

Where a turn's prompt begins with the whole of what stood before (prompt and answer), both are one sequence: what the prompt
adds, such as a tool's result, lies between them outside the mask. Where it does not (a history that was cut or rewritten), a
new sequence begins. Tinker's ``trajectory_to_data`` and rLLM's transforms join them in the same way.

Example::

    turns    = ([1, 2] → [5, 6]), ([1, 2, 5, 6, 9] → [7])
    prompt   = [1, 2]    response = [5, 6, 9, 7]    loss_mask = [1, 1, 0, 1]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Turn:
    """One call of the policy."""

    prompt: Ids
    response: Ids
    logprobs: NDArray[np.float32] | None = None
    """``[L]`` of the sampler."""


@dataclass(slots=True)
class Sequence:
    """One trained sequence under our names, and which of the turns it holds."""

    prompt_ids: Ids
    response_ids: Ids
    loss_mask: NDArray[np.bool_]
    logprobs: NDArray[np.float32] | None
    turns: list[int] = field(default_factory=list)

    def values(self) -> dict[str, Any]:
        """Under our names."""
        found: dict[str, Any] = {"prompt_ids": self.prompt_ids, "response_ids": self.response_ids, "loss_mask": self.loss_mask}
        return found if self.logprobs is None else found | {"logprob/rollout": self.logprobs}


def sequences(turns: Iterable[Turn]) -> list[Sequence]:
    """Join turns, in their order."""
    found: list[Sequence] = []
    for place, turn in enumerate(turns):
        if found and _continues(found[-1], turn):
            _extend(found[-1], turn)
        else:
            mask = np.ones(len(turn.response), np.bool_)
            found.append(Sequence(turn.prompt, turn.response, mask, turn.logprobs))
        found[-1].turns.append(place)
    return found


def _continues(before: Sequence, turn: Turn) -> bool:
    whole = len(before.prompt_ids) + len(before.response_ids)
    begin = turn.prompt[:whole]
    return len(begin) == whole and np.array_equal(begin, np.concatenate([before.prompt_ids, before.response_ids]))


def _extend(sequence: Sequence, turn: Turn) -> None:
    between = turn.prompt[len(sequence.prompt_ids) + len(sequence.response_ids) :]
    before, known = sequence.logprobs, turn.logprobs
    if before is not None or known is not None:
        old = np.full(len(sequence.response_ids), np.nan, np.float32) if before is None else before
        new = np.full(len(turn.response), np.nan, np.float32) if known is None else known
        sequence.logprobs = np.concatenate([old, np.full(len(between), np.nan, np.float32), new])
    own = np.ones(len(turn.response), np.bool_)
    sequence.loss_mask = np.concatenate([sequence.loss_mask, np.zeros(len(between), np.bool_), own])
    sequence.response_ids = np.concatenate([sequence.response_ids, between, turn.response])
