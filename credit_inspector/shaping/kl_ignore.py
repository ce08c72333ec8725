"""Tokens on which the KL term does not act."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from credit_inspector.errors import UsageError
from credit_inspector.shaping import Change, ShapingInputs, shaping
from credit_inspector.shaping.answer_span import answer_tokens
from credit_inspector.shaping.masks import unearned
from credit_inspector.table import Floats

_SPECIAL = re.compile(r"<\|[^|<>]{1,40}\|>|</?[A-Za-z_][\w.-]{0,30}>|\[[A-Z]{2,10}\]")
_OF_TEXT: dict[str, Callable[[str], bool]] = {
    ":space": lambda text: bool(text) and not text.strip(),
    ":digit": lambda text: text.strip().isdecimal(),
    ":punctuation": lambda text: bool(text.strip()) and not any(c.isalnum() or c.isspace() for c in text.strip()),
    ":special": lambda text: bool(_SPECIAL.fullmatch(text.strip())),
}
_OF_STEP: dict[str, Callable[[ShapingInputs], NDArray[np.bool_]]] = {
    ":unearned": unearned,
    ":answer": lambda step: answer_tokens(step, "overlap", tags=False),
}


@shaping("kl_ignore", main="tokens")
def kl_ignore(step: ShapingInputs, *, tokens: str = ":unearned", factor: float = 0.0) -> Change:
    """Multiplies the KL term on the listed tokens by ``factor``; the policy loss stays.

    ``tokens`` is a list with ``|`` between its entries: token texts (white space around them does not count), or classes
    ``:unearned :answer :space :digit :punctuation :special``.
    """
    entries = [entry.strip() for entry in tokens.split("|") if entry.strip()]
    known = (*_OF_TEXT, *_OF_STEP)
    if bad := [entry for entry in entries if entry.startswith(":") and len(entry) > 1 and entry not in known]:
        raise UsageError(f"kl_ignore knows no class {bad[0]!r}", wanted=f"one of {', '.join(known)}")
    hit = np.zeros(step.table.n_tokens, np.bool_)
    for entry in entries:
        if entry in _OF_STEP:
            hit |= _OF_STEP[entry](step)
    of_text = [entry for entry in entries if entry not in _OF_STEP]
    if of_text:
        hit |= _by_text(step.token_texts(), of_text)
    note = f"kl_ignore: {np.count_nonzero(hit & step.table.loss_mask)} of {np.count_nonzero(step.table.loss_mask)} trained tokens"
    rule = step.algorithm
    quiet = "" if rule.kl_beta else "; the rule has no KL term in the loss, so it changes nothing"
    factors: Floats = np.where(hit, factor, 1.0)
    return Change(kl=factors, note=note + quiet)


def _by_text(texts: Sequence[Sequence[str]], entries: Sequence[str]) -> NDArray[np.bool_]:
    literal = {entry for entry in entries if entry not in _OF_TEXT}
    tests = [_OF_TEXT[entry] for entry in entries if entry in _OF_TEXT]
    seen: dict[str, bool] = {}

    def hit(text: str) -> bool:
        if text not in seen:
            seen[text] = text.strip() in literal or any(test(text) for test in tests)
        return seen[text]

    return np.array([hit(text) for words in texts for text in words], dtype=np.bool_)
