"""Text is encoded once, said so, and values that do not fit are not zipped on."""

from __future__ import annotations

from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

from credit_inspector.rollout import Problem, Rollout, Step
from credit_inspector.table import TokenTable
from credit_inspector.tokens import pieces
from credit_inspector.trainers.tokenising import tokenised


def words() -> Tokenizer:
    vocabulary = {word: number for number, word in enumerate(["he", "llo", "hello", "world"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def floats(*values: float) -> Any:
    return np.array(values, np.float32)


def test_ids_are_never_encoded_again_d01() -> None:
    ids = np.array([0, 1], np.int32)
    one = Rollout(sample_id="a", response="hello", response_ids=ids, columns={"logprob/old": floats(-1, -2)})
    step = Step(1, (one,))
    assert tokenised(step, words()) == step
    assert [piece.strip() for piece in pieces(words(), ids).text] == ["he", "llo"]


def test_values_that_do_not_fit_are_refused_d01() -> None:
    one = Rollout(sample_id="b", response="hello", reward=1.0, columns={"logprob/old": floats(-1, -2)})
    step = tokenised(Step(1, (one,)), words())
    assert Problem("length-mismatch", "2 log-probs but 1 token after encoding; cannot align", "b") in step.problems
    assert (step.rollouts[0].reward, dict(step.rollouts[0].columns)) == (1.0, {})
    assert TokenTable.from_rollouts(1, step.rollouts).n_tokens == 1


def test_values_that_fit_stay() -> None:
    mask = np.array([True, False])
    one = Rollout(sample_id="a", prompt="hello", response="hello world", loss_mask=mask, columns={"kl/k1": floats(1, 2)})
    step = tokenised(Step(1, (one, one)), words())
    found = step.rollouts[0]
    assert found.response_ids is not None
    assert found.prompt_ids is not None
    assert (found.response_ids.tolist(), found.prompt_ids.tolist()) == ([2, 3], [2])
    assert found.loss_mask is mask
    assert [problem.kind for problem in step.problems] == ["retokenised"]
    assert step.problems[0].message.startswith("2 of 2 responses and 2 prompts encoded from text")


def test_chats_are_encoded_without_template_and_say_so() -> None:
    one = Rollout(sample_id="a", prompt="hello", response="world", extra={"prompt": [{"role": "user"}]})
    assert tokenised(Step(1, (one,)), words()).problems[0].message.endswith("; 1 chats without their template")


def test_without_a_tokenizer_nothing_is_placed() -> None:
    one = Rollout(sample_id="a", response="hello", reward=1.0, columns={"kl/k1": floats(1, 2)})
    bare = Rollout(sample_id="b", response="hello")
    step = tokenised(Step(1, (one, bare)), None)
    assert [problem.kind for problem in step.problems] == ["no-tokens"]
    assert TokenTable.from_rollouts(1, step.rollouts).n_tokens == 0
    assert step.rollouts[1] is bare
