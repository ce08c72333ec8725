"""Sixteen Countdown answers for the samples of formats that hold padded batches: two steps, two prompts each, four answers each.

Among them are one in Chinese whose character 龘 takes three tokens, one that calls a tool, one that was cut, and one group
in which all are right.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer

FOLDER = Path(__file__).parents[2]
TOKENIZER = FOLDER / "countdown" / "tokenizer"
FORMATS = FOLDER / "formats"
PAD, EOS = 0, 1


@dataclass(frozen=True)
class Answer:
    """One response: its text in parts, of which those between the model's turns came from a tool."""

    step: int
    group: str
    place: int
    """Its place in its group."""
    numbers: tuple[int, ...]
    target: int
    parts: tuple[str, ...]
    reward: float

    @property
    def is_cut(self) -> bool:
        """Whether the limit of tokens ended it, before its answer."""
        return "</answer>" not in self.response

    @property
    def prompt(self) -> str:
        """The problem's text."""
        return f"Use {', '.join(map(str, self.numbers))} to make {self.target}.\n"

    @property
    def prompt_ids(self) -> list[int]:
        """``[P]``."""
        return encode(self.prompt)

    @property
    def response(self) -> str:
        """The whole text, the tool's part included."""
        return "".join(self.parts)

    @property
    def response_ids(self) -> list[int]:
        """``[L]``, with the end of the sequence unless it was cut."""
        ids = [token for part in self.parts for token in encode(part)]
        return ids if self.is_cut else [*ids, EOS]

    @property
    def mask(self) -> list[int]:
        """``[L]``, 0 at the tool's tokens."""
        flags = [int(i % 2 == 0) for i, part in enumerate(self.parts) for _ in encode(part)]
        return flags if self.is_cut else [*flags, 1]

    def logprobs(self, kind: str) -> list[float]:
        """``[L]`` numbers below 0 that are the same whenever they are asked for; 0 at the tool's tokens."""
        draw = random.Random(f"{self.step} {self.group} {self.place} {kind}")
        return [-round(draw.uniform(0.01, 2.0), 4) if trained else 0.0 for trained in self.mask]


@cache
def _tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))


def encode(text: str) -> list[int]:
    """A text's token ids."""
    ids: list[int] = _tokenizer().encode(text, add_special_tokens=False).ids
    return ids


def answers(step: int) -> list[Answer]:
    """The answers of a step, group by group."""
    return [one for one in _ANSWERS if one.step == step]


def _group(step: int, group: str, numbers: tuple[int, ...], target: int, *rows: tuple[tuple[str, ...], float]) -> list[Answer]:
    return [Answer(step, group, place, numbers, target, parts, reward) for place, (parts, reward) in enumerate(rows)]


_ANSWERS = (
    *_group(
        1, "7f3a", (9, 4, 6), 19,
        (("9+4=13, 6+13=19. <answer>6+(9+4)</answer>",), 1.0),
        (("让我想想。龘，先试试看。9+6=15, 4+15=19. <answer>4+(9+6)</answer>",), 1.0),
        (("9*4=36. That is wrong. 9+6=15. <answer>9+6</answer>",), 0.0),
        (("Let me see. <tool>9+4</tool>", "\ntool: 13\n", "6+13=19. <answer>6+(9+4)</answer>"), 1.0),
    ),
    *_group(
        1, "b20c", (3, 4, 7), 14,
        (("3+4=7, 7+7=14. <answer>(3+4)+7</answer>",), 1.0),
        (("7+3=10, 4+10=14. <answer>4+(7+3)</answer>",), 1.0),
        (("Interesting. 4+3=7, 7+7=14. <answer>(4+3)+7</answer>",), 1.0),
        (("7+4=11, 3+11=14. <answer>3+(7+4)</answer>",), 1.0),
    ),
    *_group(
        2, "c91e", (2, 7, 2), 28,
        (("2*7=14, 2*14=28. <answer>2*(2*7)</answer>",), 1.0),
        (("2+7=9, 9*2=18. <answer>(2+7)*2</answer>",), 0.0),
        (("接下来看看。2*2=4, 7*4=28. <answer>7*(2*2)</answer>",), 1.0),
        (("One moment please. 7*2=14. One moment please.",), 0.0),
    ),
    *_group(
        2, "d44d", (4, 8, 6), 18,
        (("8+4=12, 6+12=18. <answer>6+(8+4)</answer>",), 1.0),
        (("4+8=12。不行。 <answer>4+8</answer>",), 0.0),
        (("6+4=10, 8+10=18. <answer>8+(6+4)</answer>",), 1.0),
        (("8*6=48. <answer>8*6</answer>",), 0.0),
    ),
)  # fmt: skip
