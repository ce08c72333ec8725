"""Text-only rollouts → rollouts with token ids, once and with a word on it.

Where a dump holds text alone there is no way but to encode it. The ids may differ from those sampled (text has
several splits), and tokens that were left out of the text stay lost, so recorded values per token are only kept where
they fit one to one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from credit_inspector.rollout import Problem, Rollout, Step
from credit_inspector.tokens import encode
from credit_inspector.trainers._rollouts import noun

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def tokenised(step: Step, tokenizer: Tokenizer | None) -> Step:
    """Give every rollout that has text ids; ids that are there are never touched.

    Args:
        step: as a reader gave it.
        tokenizer: of the run; without one, values per token of text-only rollouts are left out, since nothing says to
            which tokens they belong.

    Returns:
        The step with a ``retokenised`` problem that counts, and a ``length-mismatch`` for each rollout whose recorded
        values do not fit. Such a rollout keeps its reward.
    """
    problems: list[Problem] = []
    rollouts = tuple(_with_ids(one, tokenizer, problems) for one in step.rollouts)
    return replace(step, rollouts=rollouts, problems=(*step.problems, *_counts(step.rollouts, rollouts), *problems))


def _with_ids(one: Rollout, tokenizer: Tokenizer | None, problems: list[Problem]) -> Rollout:
    if tokenizer is None:
        return _without_tokens(one, problems)
    if one.prompt_ids is None and one.prompt is not None:
        one = replace(one, prompt_ids=encode(tokenizer, one.prompt))
    if one.response_ids is None and one.response is not None:
        one = _fitted(replace(one, response_ids=encode(tokenizer, one.response)), problems)
    return one


def _without_tokens(one: Rollout, problems: list[Problem]) -> Rollout:
    if one.response_ids is not None or not (one.columns or one.loss_mask is not None):
        return one
    message = "values per token without token ids; a tokenizer is needed to place them"
    problems.append(Problem("no-tokens", message, one.sample_id))
    return replace(one, columns={}, loss_mask=None)


def _fitted(one: Rollout, problems: list[Problem]) -> Rollout:
    """Keep recorded values whose count is the number of tokens."""
    count = 0 if one.response_ids is None else len(one.response_ids)
    masks = {} if one.loss_mask is None else {"loss_mask": len(one.loss_mask)}
    lengths = masks | {name: len(values) for name, values in one.columns.items()}
    misfits = {name: length for name, length in lengths.items() if length != count}
    for name, length in misfits.items():
        tokens = f"{count} token{'' if count == 1 else 's'}"
        message = f"{length} {noun(name, length)} but {tokens} after encoding; cannot align"
        problems.append(Problem("length-mismatch", message, one.sample_id))
    columns = {name: values for name, values in one.columns.items() if name not in misfits}
    return replace(one, columns=columns, loss_mask=None if "loss_mask" in misfits else one.loss_mask)


def _counts(before: Sequence[Rollout], after: Sequence[Rollout]) -> list[Problem]:
    pairs = list(zip(before, after, strict=True))
    responses = sum(old.response_ids is None and new.response_ids is not None for old, new in pairs)
    prompts = sum(old.prompt_ids is None and new.prompt_ids is not None for old, new in pairs)
    if not responses and not prompts:
        return []
    chats = sum("prompt" in old.extra and old.prompt_ids is None for old, _ in pairs)
    message = (
        f"{responses} of {len(pairs)} responses and {prompts} prompts encoded from text: the ids may not be those "
        "sampled, and special tokens that the dump left out, such as the end, are not there"
    )
    template = f"; {chats} chats without their template" if chats else ""
    return [Problem("retokenised", message + template)]
