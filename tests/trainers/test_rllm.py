"""rLLM's episodes of training (text) and of evaluation (tokens)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from credit_inspector.errors import UsageError
from credit_inspector.rollout import Step
from credit_inspector.tokens import load_tokenizer
from credit_inspector.trainers import ReadOptions, readers
from credit_inspector.trainers.opening import open_run
from formats.batch_answers import TOKENIZER, answers
from places import FORMATS

TRAINING = FORMATS / "rllm/training"
EVALUATION = FORMATS / "rllm/evaluation"


def step(**fields: Any) -> dict[str, Any]:
    return {"reward": 0.0, "done": False, "chat_completions": [], "model_response": "", **fields}


def episode(folder: Path, *steps: dict[str, Any], name: str = "t:0", reward: float | None = 1.0, **fields: Any) -> Path:
    place = folder / "episodes/train_step_7_epoch_1"
    place.mkdir(parents=True, exist_ok=True)
    trajectory = {"name": "solver", "uid": "u", "reward": reward, "steps": list(steps)}
    whole = {"training_step": 7, "episode_id": name, "is_correct": True, "trajectories": [trajectory], **fields}
    (place / f"episode_hash0_id{name.replace(':', '_')}.json").write_text(json.dumps(whole))
    return folder


def read(folder: Path) -> Step:
    return open_run(folder).read(7)


@pytest.mark.parametrize("path", [TRAINING, TRAINING / "episodes"])
def test_training_sample(path: Path) -> None:
    run = open_run(path)
    assert (run.trainer, run.steps) == ("rllm", (1, 2))
    for number in run.steps:
        found = run.read(number)
        assert found.problems == ()
        by_name = {one.sample_id: one for one in found.rollouts}
        assert len(by_name) == 8
        for answer in answers(number):
            one = by_name[f"{answer.group}:{answer.place}"]
            assert (one.reward, one.group_id) == (answer.reward, f"{answer.group}:solver")
            assert (one.prompt, one.truncated) == (answer.prompt.strip(), answer.is_cut)
            assert one.response_ids is None
            if len(answer.parts) == 1:
                assert one.response == answer.response
    assert any("not read: validation at step 1" in note for note in run.notes)


def test_one_step_or_one_episode() -> None:
    folder = TRAINING / "episodes/train_step_2_epoch_0"
    assert (open_run(folder).steps, len(open_run(folder).read(2).rollouts)) == ((2,), 8)
    file = min(folder.glob("episode_*_idc91e_0.json"))
    run = open_run(file)
    assert (run.trainer, run.steps, run.read(2).rollouts[0].reward) == ("rllm", (2,), 1.0)


def test_turns_are_one_response() -> None:
    one = next(one for one in open_run(TRAINING).read(1).rollouts if one.sample_id == "7f3a:3")
    assert one.response == (
        "assistant\nLet me see. <tool>9+4</tool>\ntool\ntool: 13\nassistant\n6+13=19. <answer>6+(9+4)</answer>"
    )
    assert [turn["reward"] for turn in one.extra["steps"]] == [0.0, 1.0]


def test_evaluation_sample_position_by_position() -> None:
    tokenizer = load_tokenizer(TOKENIZER)
    run = open_run(EVALUATION)
    found = run.read(0).rollouts
    assert any("nothing was trained" in note for note in run.notes)
    for one, answer in zip(found, answers(1)[:4], strict=True):
        assert one.prompt_ids is not None
        assert one.response_ids is not None
        assert one.loss_mask is not None
        assert one.prompt_ids.tolist() == answer.prompt_ids
        assert one.response_ids.tolist() == answer.response_ids
        assert one.loss_mask.tolist() == [bool(flag) for flag in answer.mask]
        wanted = [value if flag else np.nan for value, flag in zip(answer.logprobs("rollout"), answer.mask, strict=True)]
        np.testing.assert_array_equal(one.columns["logprob/rollout"], np.array(wanted, np.float32))
        assert (one.reward, one.policy_version) == (answer.reward, 0)
        assert tokenizer.decode(one.response_ids.tolist()) == answer.response


def test_validation_alone_is_the_run(tmp_path: Path) -> None:
    shutil.copytree(TRAINING / "episodes/val_step_1_epoch_0", tmp_path / "episodes/val_step_1_epoch_0")
    run = open_run(tmp_path)
    assert (run.steps, len(run.read(1).rollouts)) == ((1,), 1)
    assert any("no training here" in note for note in run.notes)


def test_reward_of_the_last_step(tmp_path: Path) -> None:
    episode(tmp_path, step(model_response="a", reward=0.25), reward=None)
    one = read(tmp_path).rollouts[0]
    assert (one.reward, one.response) == (0.25, "a")


def test_a_history_that_was_cut_makes_two_sequences(tmp_path: Path) -> None:
    first = step(prompt_ids=[1, 2], response_ids=[5], logprobs=[-0.5])
    second = step(prompt_ids=[1, 9], response_ids=[6, 7], logprobs=[-0.25, -0.125])
    found = read(episode(tmp_path, first, second))
    assert [(one.sample_id, one.reward, one.group_id) for one in found.rollouts] == [
        ("t:0#1", 1.0, "t:solver"),
        ("t:0#2", 1.0, "t:solver"),
    ]
    assert [one.response_ids is not None and one.response_ids.tolist() for one in found.rollouts] == [[5], [6, 7]]
    assert [problem.kind for problem in found.problems] == ["several-sequences"]


def test_several_trajectories_have_groups_of_their_own(tmp_path: Path) -> None:
    both = [{"name": name, "uid": name, "reward": 1.0, "steps": [step(model_response=name)]} for name in ("solver", "judge")]
    episode(tmp_path, trajectories=both, termination_reason="max_response_length_exceeded")
    found = read(tmp_path).rollouts
    assert [(one.sample_id, one.group_id) for one in found] == [("t:0/solver", "t:solver"), ("t:0/judge", "t:judge")]
    assert {one.truncated for one in found} == {True}


def test_epochs_of_one_step_stand_together(tmp_path: Path) -> None:
    episode(tmp_path, step(model_response="a"))
    other = tmp_path / "episodes/train_step_7_epoch_2"
    shutil.copytree(tmp_path / "episodes/train_step_7_epoch_1", other)
    assert [one.sample_id for one in read(tmp_path).rollouts] == ["t:0", "t:0#2"]


def test_broken_files(tmp_path: Path) -> None:
    episode(tmp_path, step(model_response="a"))
    episode(tmp_path, name="t:1")
    episode(tmp_path, step(prompt_ids=[1], response_ids=[2, 3], logprobs=[-1.0]), name="t:2")
    torn = tmp_path / "episodes/train_step_7_epoch_1/episode_hash0_idt_3.json"
    torn.write_text('{"training_step": 7, "traj')
    run = open_run(tmp_path)
    found = run.read(7)
    assert [one.sample_id for one in found.rollouts] == ["t:0", "t:2"]
    assert [problem.kind for problem in found.problems] == ["no-response", "length-mismatch", "bad-file"]
    assert "logprob/rollout" not in found.rollouts[1].columns
    with pytest.raises(UsageError, match="no step 8"):
        run.read(8)


def test_other_episodes_are_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "episode_1.json").write_text(json.dumps({"trajectories": [{"reward": 1.0, "text": "a"}]}))
    assert readers["rllm"](tmp_path, ReadOptions()) is None
    assert readers["rllm"](tmp_path / "episode_1.json", ReadOptions()) is None
