"""What the small samples of several formats hold: responses that the Countdown run sampled, and two written by hand.

Two steps of two groups of four. The ids, the sampler's log-probs and the rewards are the run's own. One response in Chinese holds
a character that the tokenizer splits into bytes, and one calls a tool: both were written by hand, their log-probs are made up.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from credit_inspector.trainers.opening import open_run

SAMPLES = Path(__file__).parents[2]
TOKENIZER = Tokenizer.from_file(str(SAMPLES / "countdown" / "tokenizer" / "tokenizer.json"))
END = 1
_GROUPS = {1: ("0-2", "0-5"), 2: ("1-1", "1-0")}
"""By step of the sample, groups of the run's steps 1 and 3."""
_STEPS = {1: 1, 2: 3}
_EACH = 4


@dataclass(frozen=True)
class Response:
    """One sampled response."""

    group: int
    place: int
    """Among its group's."""
    prompt: str
    prompt_ids: list[int]
    ids: list[int]
    logprobs: list[float]
    """The sampler's; 0.0 at a tool's tokens, as engines fill them in."""
    mask: list[int]
    """1 where the policy wrote the token."""
    reward: float

    @property
    def text(self) -> str:
        """The response with its special tokens."""
        return decode(self.ids)

    @property
    def tool(self) -> bool:
        """Whether a tool wrote some of it."""
        return 0 in self.mask


def decode(ids: list[int]) -> str:
    """Text with special tokens."""
    return str(TOKENIZER.decode(ids, skip_special_tokens=False))


def encode(text: str) -> list[int]:
    """Ids without special tokens added."""
    return list(TOKENIZER.encode(text, add_special_tokens=False).ids)


def step(number: int) -> list[Response]:
    """The eight responses of step 1 or 2; a group's last one of step 2 is written by hand."""
    recorded = open_run(SAMPLES / "countdown").read(_STEPS[number]).rollouts
    found = []
    for group, name in enumerate(_GROUPS[number]):
        rows = [one for one in recorded if one.group_id == name][:_EACH]
        for place, one in enumerate(rows):
            assert one.prompt is not None
            assert one.prompt_ids is not None
            assert one.response_ids is not None
            assert one.reward is not None
            ids = one.response_ids.tolist()
            logprobs = [float(value) for value in np.round(one.columns["logprob/rollout"].astype(np.float64), 6)]
            prompt_ids = one.prompt_ids.tolist()
            found.append(Response(group, place, one.prompt, prompt_ids, ids, logprobs, [1] * len(ids), one.reward))
    return found if number == 1 else [*found[:3], _chinese(found[3]), *found[4:7], _with_tool(found[7])]


def _chinese(one: Response) -> Response:
    """A thought whose last character is three tokens, one a byte."""
    ids = [*encode("让我想想。龘"), END]
    return Response(one.group, one.place, one.prompt, one.prompt_ids, ids, _made_up(ids), [1] * len(ids), 0.0)


def _with_tool(one: Response) -> Response:
    """The policy calls a tool, reads what it wrote, and goes on."""
    parts = [(encode("<calc>9*4"), 1), (encode("\n36\n"), 0), ([*encode("36-6=30."), END], 1)]
    ids = [token for tokens, _ in parts for token in tokens]
    mask = [policy for tokens, policy in parts for _ in tokens]
    logprobs = [value if policy else 0.0 for value, policy in zip(_made_up(ids), mask, strict=True)]
    return Response(one.group, one.place, one.prompt, one.prompt_ids, ids, logprobs, mask, 0.0)


def _made_up(ids: list[int]) -> list[float]:
    return [-(1 + place % 7) / 64 for place in range(len(ids))]
