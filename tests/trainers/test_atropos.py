"""Atropos' saved groups: labels as masks, 1.0 for no log-prob, and whose tokens are trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from credit_inspector.errors import UsageError
from credit_inspector.rollout import Rollout
from credit_inspector.tokens import load_tokenizer
from credit_inspector.trainers import ReadOptions, readers
from credit_inspector.trainers.opening import open_run
from formats.batch_answers import TOKENIZER, Answer, answers
from places import FORMATS, ROOT

REAL = ROOT.parent / "shared/real_files/atropos_selcube_scored_groups_tokens.jsonl"
GROUP: dict[str, Any] = {
    "tokens": [[5, 6, 0, 8], [5, 6, 9, 8]],
    "masks": [[-100, -100, 0, 8], [-100, -100, 9, -100]],
    "scores": [1.0, -1.0],
}


def write(folder: Path, *rows: Any, name: str = "groups.jsonl") -> Path:
    file = folder / name
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), "utf-8")
    return file


def read(folder: Path, **fields: Any) -> tuple[Rollout, ...]:
    return open_run(write(folder, {**GROUP, **fields})).read(0).rollouts


def is_as_written(one: Rollout, answer: Answer) -> None:
    """Position by position what the sample's writer was given."""
    assert one.prompt_ids is not None
    assert one.response_ids is not None
    assert one.loss_mask is not None
    assert one.prompt_ids.tolist() == answer.prompt_ids
    assert one.response_ids.tolist() == answer.response_ids
    assert one.loss_mask.tolist() == [bool(flag) for flag in answer.mask]
    wanted = [value if flag else np.nan for value, flag in zip(answer.logprobs("rollout"), answer.mask, strict=True)]
    np.testing.assert_array_equal(one.columns["logprob/rollout"], np.array(wanted, np.float32))


def test_sample() -> None:
    run = open_run(FORMATS / "atropos/countdown_groups.jsonl")
    assert (run.trainer, run.steps) == ("atropos", (0,))
    step = run.read(0)
    wanted = [one for number in (1, 2) for one in answers(number) if one.group != "b20c"]  # all right: Atropos drops it
    assert len(step.rollouts) == len(wanted) == 12
    assert step.problems == ()
    for one, answer in zip(step.rollouts, wanted, strict=True):
        is_as_written(one, answer)
        assert one.reward == 2 * answer.reward - 1
    groups = [one.group_id or "" for one in step.rollouts]
    assert [groups.index(group) for group in groups] == [0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8]


def test_ids_say_the_text() -> None:
    tokenizer = load_tokenizer(TOKENIZER)
    one = open_run(FORMATS / "atropos/countdown_groups.jsonl").read(0).rollouts[1]
    assert one.response_ids is not None
    assert tokenizer.decode(one.response_ids.tolist()) == one.response
    assert one.response is not None
    assert "龘" in one.response
    assert one.prompt == "Use 9, 4, 6 to make 19.\n"


def test_advantages_and_reference_are_cut_to_the_mask() -> None:
    rollouts = open_run(FORMATS / "atropos/with_advantages.jsonl").read(0).rollouts
    for one, answer in zip(rollouts, answers(1)[:4], strict=True):
        trained = np.array(answer.mask, bool)
        advantage = one.columns["advantage"]
        assert np.isnan(advantage[~trained]).all()
        assert set(advantage[trained].tolist()) == {0.5 if answer.reward else -1.5}
        assert one.advantage is None
        reference = one.columns["logprob/ref"]
        expected = np.array(answer.logprobs("rollout"), np.float32) - np.float32(0.125)
        np.testing.assert_allclose(reference[trained], expected[trained], rtol=0, atol=1e-6)
        assert np.isnan(reference[~trained]).all()
        assert one.extra["overrides"] == {"set_advantage_to_zero": False}
        assert one.extra["seed"] == 7
    assert not all(all(answer.mask) for answer in answers(1)[:4])


def test_a_trained_token_may_have_the_id_0(tmp_path: Path) -> None:
    rollouts = read(tmp_path, tokens=[[5, 6, 0, 8], [0, 3]], masks=[[-100, -100, 0, 8], [0, 3]])
    assert [one.loss_mask is not None and one.loss_mask.tolist() for one in rollouts] == [[True, True], [True, True]]
    assert [one.response_ids is not None and one.response_ids.tolist() for one in rollouts] == [[0, 8], [0, 3]]


def test_a_log_prob_of_1_is_none(tmp_path: Path) -> None:
    rollouts = read(tmp_path, inference_logprobs=[[1.0, 1.0, -0.5, 1.0], [1.0, 1.0, -0.25, 1.0]])
    np.testing.assert_array_equal(rollouts[0].columns["logprob/rollout"], np.array([-0.5, np.nan], np.float32))
    np.testing.assert_array_equal(rollouts[1].columns["logprob/rollout"], np.array([-0.25, np.nan], np.float32))


def test_empty_lists_are_nothing(tmp_path: Path) -> None:
    one = read(tmp_path, advantages=[], ref_logprobs=[], messages=[], overrides=[], images=[])[0]
    assert (dict(one.columns), one.advantage, dict(one.extra)) == ({}, None, {})


def test_one_advantage_a_response(tmp_path: Path) -> None:
    assert [one.advantage for one in read(tmp_path, advantages=[0.5, -0.5])] == [0.5, -0.5]


def test_an_environments_own_lists(tmp_path: Path) -> None:
    scores = [[0.1, 0.2, 0.3, 0.4]] * 2
    first, second = read(tmp_path, token_scores=scores, parsed_actions=["U", None], reward=[7, 8], seed=[1, 2, 3])
    assert first.columns["atropos/token_scores"].tolist() == pytest.approx([0.3, 0.4])
    assert (first.extra["parsed_actions"], second.extra["parsed_actions"]) == ("U", None)
    assert (first.reward, first.extra["atropos/reward"], first.extra["seed"]) == (1.0, 7, [1, 2, 3])


def test_tokens_of_somebody_else_are_told(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    step = open_run(write(tmp_path, {**GROUP, "messages": [[*said, {"role": "environment", "content": "next"}], said]})).read(0)
    assert [problem.kind for problem in step.problems] == ["not-the-policys"]
    assert step.problems[0].message == "in 1 of 2 responses the trained tokens are a message by environment, not by the policy"
    assert [one.response for one in step.rollouts] == ["next", "a"]


def test_misfits_keep_the_row(tmp_path: Path) -> None:
    row = {
        **GROUP,
        "scores": [1.0],
        "inference_logprobs": [[-0.5], [1.0, 1.0, -0.5, 1.0]],
        "masks": [[-100, 1], GROUP["masks"][1]],
    }
    step = open_run(write(tmp_path, row)).read(0)
    assert [one.reward for one in step.rollouts] == [1.0, None]
    kinds = [problem.kind for problem in step.problems]
    assert (kinds.count("length-mismatch"), kinds.count("unequal-lists")) == (2, 1)
    assert "logprob/rollout" not in step.rollouts[0].columns


def test_folders_of_files(tmp_path: Path) -> None:
    write(tmp_path, GROUP, name="a.jsonl")
    write(tmp_path, GROUP, GROUP, name="a_1.jsonl")
    write(tmp_path, {"loss": 1}, name="metrics.jsonl")
    run = open_run(tmp_path)
    rollouts = run.read(0).rollouts
    assert len({one.sample_id for one in rollouts}) == 6
    assert len({one.group_id for one in rollouts}) == 3
    assert "a.jsonl, a_1.jsonl are read together" in run.notes


def test_broken_files(tmp_path: Path) -> None:
    file = write(tmp_path, GROUP, GROUP, GROUP, {"tokens": "x"}, '{"tokens": [[')
    run = open_run(file)
    step = run.read(0)
    assert (len(step.rollouts), {problem.kind for problem in step.problems}) == (6, {"bad-line"})
    with pytest.raises(UsageError, match="no step 1"):
        run.read(1)
    deep = write(tmp_path, json.dumps(GROUP).replace("1.0, -1.0", "[" * 500 + "]" * 500), name="deep.jsonl")
    found = readers["atropos"](deep, ReadOptions())
    assert found is not None
    assert all(one.reward is None for one in found.read(0).rollouts)


@pytest.mark.skipif(not REAL.is_file(), reason="the real files are not here")
def test_real_file() -> None:
    run = open_run(REAL)
    assert run.trainer == "atropos"
    step = run.read(0)
    lines = [json.loads(line) for line in REAL.read_text("utf-8").splitlines()]
    pairs = [(line, place) for line in lines for place in range(4)]
    assert len(step.rollouts) == len(pairs) == 8
    for one, (line, place) in zip(step.rollouts, pairs, strict=True):
        tokens, labels = line["tokens"][place], line["masks"][place]
        begin = next(i for i, label in enumerate(labels) if label != -100)
        assert one.prompt_ids is not None
        assert one.response_ids is not None
        assert one.loss_mask is not None
        assert one.prompt_ids.tolist() == tokens[:begin]
        assert one.response_ids.tolist() == tokens[begin:]
        assert one.loss_mask.tolist() == [label != -100 for label in labels[begin:]]
        assert one.reward == line["scores"][place]
        np.testing.assert_array_equal(
            one.columns["atropos/token_weights"], np.array(line["token_weights"][place][begin:], np.float32)
        )
        assert one.extra["messages"] == line["messages"][place]
    assert [len({one.group_id for one in step.rollouts[begin : begin + 4]}) for begin in (0, 4)] == [1, 1]
    counts = [problem.message[:10] for problem in step.problems]
    assert counts == ["in 4 of 4 ", "in 1 of 4 "]  # the environment's own word is what this one trains on
