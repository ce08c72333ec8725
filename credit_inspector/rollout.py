"""What a trainer produced, free of its spelling.

A ``Rollout`` is one sampled response at one optimizer step, a ``Step`` all of them, a ``Run`` a folder of steps with the
checkpoints and the rule beside them. Readers in ``trainers/`` make them; everything after that knows only these three.

Letters in shapes: ``L`` tokens of one response, ``P`` tokens of its prompt.

Example, one response of two model tokens, two tool tokens and the end of the sequence::

    response_ids = [11, 12, 90, 91,  2]
    loss_mask    = [ 1,  1,  0,  0,  1]      # tool tokens were not sampled by the policy, the end was
    columns["logprob/old"] = [-.1, -.7, nan, nan, -.2]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from credit_inspector.algorithm import Algorithm

GroupSource = Literal["given", "same prompt", "contiguous", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One sampled response, as one optimizer step trained on it."""

    sample_id: str
    """Unique within its step."""
    group_id: str | None = None
    """The prompt group; ``None`` when neither an id nor a prompt is known."""
    group_source: GroupSource = "none"
    prompt: str | None = None
    response: str | None = None
    prompt_ids: NDArray[np.int32] | None = None
    """``[P]``, unpadded."""
    response_ids: NDArray[np.int32] | None = None
    """``[L]``, unpadded; ``None`` for a text-only dump until it is tokenised."""
    loss_mask: NDArray[np.bool_] | None = None
    """``[L]``, true where the token is in the loss; ``None`` when not recorded."""
    columns: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    """``[L]`` each: recorded per-token values under this project's names. NaN is missing."""
    reward: float | None = None
    """The scalar that the group statistic uses."""
    rewards: Mapping[str, float | None] = field(default_factory=dict)
    """Each reward function's own value, unweighted."""
    advantage: float | None = None
    """The sequence's advantage where the trainer stores one number."""
    policy_version: int | None = None
    """How many optimizer steps the sampling weights had taken."""
    truncated: bool | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Everything else that the trainer wrote, untouched."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with the data that does not stop the reading: counted, and shown."""

    kind: str
    """A short stable word, such as ``torn-line`` or ``length-mismatch``."""
    message: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """All rollouts of one optimizer step."""

    number: int
    rollouts: tuple[Rollout, ...]
    problems: tuple[Problem, ...] = ()
    algorithm: Algorithm | None = None
    """The rule of this very step where it differs from the run's (a schedule), else ``None``."""


@dataclass(frozen=True, slots=True)
class CheckpointAt:
    """A checkpoint that lies beside the rollouts: its folder and the optimizer steps it has taken."""

    step: int
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A recognised run: what it holds and how to read one step of it."""

    path: Path
    trainer: str
    """The name of the reader in ``trainers/`` that recognised it."""
    steps: tuple[int, ...]
    read: Callable[[int], Step]
    """Read one step; memory is bounded by it."""
    checkpoints: tuple[CheckpointAt, ...] = ()
    """Ascending by step. Step 0 is the model that training started from."""
    algorithm: Algorithm | None = None
    tokenizer: Path | None = None
    """A folder or file from which the tokenizer loads."""
    columns: tuple[str, ...] = ()
    """Token columns that the trainer recorded."""
    notes: tuple[str, ...] = ()
    """What a reader had to assume, one sentence each."""
