"""A strict format reward: one answer, nothing after it, readable."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

from credit_inspector.shaping import Change, ShapingInputs, shaping
from credit_inspector.shaping.expressions import exact

OPEN, CLOSE = "<answer>", "</answer>"
_ANSWER = re.compile(f"{OPEN}(.*?){CLOSE}", re.DOTALL)
# What stands for the end of a sequence in dumped text.
_ENDS = re.compile(r"(?:\s|<\|[^|<>\s]{1,40}\|>|</s>|<(?:eos|pad|end_of_turn|end_of_text)>|\[(?:EOS|PAD|SEP)\])*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Format:
    """What a response's text keeps to."""

    one_answer: bool
    """Exactly one opening and one closing tag, in that order."""
    nothing_after: bool
    """Only white space and end-of-sequence tokens after the last closing tag."""
    nothing_before: bool
    """Only white space before the first opening tag."""
    parsable: bool
    """The last answer is + − * / over non-negative integers with parentheses, and has a value."""
    answer: str | None
    """The last answer."""


def format_of(text: str) -> Format:
    """Look at one response."""
    found = list(_ANSWER.finditer(text))
    if not found:
        return Format(False, False, False, False, None)
    answer = found[-1][1]
    return Format(
        one_answer=text.count(OPEN) == 1 and text.count(CLOSE) == 1,
        nothing_after=_ENDS.fullmatch(text, found[-1].end()) is not None,
        nothing_before=not text[: found[0].start()].strip(),
        parsable=exact(answer) is not None,
        answer=answer,
    )


@shaping("format_reward", main="weight")
def format_reward(
    step: ShapingInputs,
    *,
    weight: float = 0.5,
    parsable: bool = True,
    nothing_before: bool = False,
    pay: Literal["all", "each"] = "all",
) -> Change:
    """Adds weight for a response with exactly one ``<answer>…</answer>`` and nothing after it.

    ``parsable``: the answer has to be an arithmetic expression with a value. ``nothing_before``: no reasoning in front of it.
    ``pay=all`` pays for all of these together, ``each`` the share that is kept. A response whose text is
    not known is left without a reward.
    """
    kept = np.full(step.table.n_rows, np.nan)
    for row, text in enumerate(step.responses):
        if text is None:
            continue
        found = format_of(text)
        asked = [found.one_answer, found.nothing_after]
        asked += [found.parsable] if parsable else []
        asked += [found.nothing_before] if nothing_before else []
        kept[row] = float(all(asked)) if pay == "all" else float(np.mean(asked))
    note = f"format_reward: {np.count_nonzero(kept == 1)} of {len(kept)} responses keep to the format"
    return Change(reward=step.reward + weight * kept, note=note)
