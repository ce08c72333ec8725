"""PipelineRL's streams: its own writer's file, the split by labels, log-probs of the response alone, turns, broken lines."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from credit_inspector.trainers import ReadOptions
from credit_inspector.trainers.opening import open_run
from credit_inspector.trainers.pipeline_rl import open_pipeline_rl
from places import FORMATS
from places import SAMPLE as COUNTDOWN

EXP = FORMATS / "pipeline_rl" / "exp"
STREAM = EXP / "streams/actor/0/0/0.jsonl"


def text(**fields: Any) -> dict[str, Any]:
    row = {
        "text": "qab",
        "n_predicted": 2,
        "reward": 1.0,
        "logprobs": [-0.5, 0.0],
        "ref_logprobs": [],
        "input_ids": [5, 7, 8],
        "labels": [-100, 7, 8],
        "group_id": "s_0",
        "finished": True,
        "metadata": {"model_version": 4, "rollout_index": 0, "step_index": 0},
    }
    return row | fields


def write(folder: Path, *lines: Any, topic: str = "actor") -> Path:
    file = folder / "streams" / topic / "0/0/0.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return file


def test_sample_token_by_token() -> None:
    run = open_run(EXP)
    assert (run.trainer, run.steps, run.columns) == ("pipeline_rl", (0, 64), ("logprob/rollout",))
    lines = [json.loads(each) for each in STREAM.read_text("utf-8").splitlines()]
    tokenizer = Tokenizer.from_file(str(COUNTDOWN / "tokenizer/tokenizer.json"))
    for step, texts in ((0, lines[0] + lines[1]), (64, lines[2] + lines[3])):
        for one, raw in zip(run.read(step).rollouts, texts, strict=True):
            begin = raw["labels"].count(-100)
            assert one.prompt_ids.tolist() == raw["input_ids"][:begin]
            assert one.response_ids.tolist() == raw["labels"][begin:]
            assert one.loss_mask.all()
            np.testing.assert_array_equal(one.columns["logprob/rollout"], np.array(raw["logprobs"], np.float32))
            assert tokenizer.decode(one.prompt_ids.tolist(), skip_special_tokens=False) == one.prompt
            assert tokenizer.decode(one.response_ids.tolist(), skip_special_tokens=False) == one.response
            assert (one.reward, one.truncated, one.policy_version) == (raw["reward"], False, None)
            assert one.extra["metadata"] == raw["metadata"]


def test_turns_of_the_sample_are_groups_of_their_own() -> None:
    rollouts = open_run(EXP).read(64).rollouts
    groups = [one.group_id for one in rollouts]
    assert groups == ["rollout_scheduler_0_4"] * 4 + ["rollout_scheduler_0_5", "rollout_scheduler_0_5/turn-1"] + groups[6:]
    first, second = rollouts[4:6]
    assert (first.response, second.response) == ("<calc>9*4", "36-6=30.<eos>")
    assert second.prompt == first.prompt + first.response + "\n36\n"
    assert (first.sample_id, second.sample_id) == ("rollout_scheduler_0_5-3-0", "rollout_scheduler_0_5-3-1")


@pytest.mark.parametrize(
    "place", ["streams", "streams/actor", "streams/actor/0", "streams/actor/0/0", "streams/actor/0/0/0.jsonl"]
)
def test_any_place_of_it(place: str) -> None:
    run = open_run(EXP / place)
    assert (run.trainer, run.steps) == ("pipeline_rl", (0, 64))
    assert [len(run.read(step).rollouts) for step in run.steps] == [8, 9]


def test_group_of_several_versions_stays_whole(tmp_path: Path) -> None:
    versions = [text(metadata={"model_version": v, "rollout_index": i, "step_index": 0}) for i, v in enumerate((0, 64))]
    write(tmp_path, versions, [text(group_id="s_1", metadata={"model_version": 0})])
    run = open_run(tmp_path)
    assert run.steps == (0, 64)
    assert [one.group_id for one in run.read(64).rollouts] == ["s_0", "s_0"]
    assert [one.extra["metadata"]["model_version"] for one in run.read(64).rollouts] == [0, 64]


def test_values_go_to_trained_places_and_nowhere_else(tmp_path: Path) -> None:
    gap = text(input_ids=[5, 7, 9, 8, 6], labels=[-100, 7, -100, 8, -100], ref_logprobs=[-1.0, -2.0])
    write(tmp_path, [gap])
    run = open_run(tmp_path)
    assert run.columns == ("logprob/rollout", "logprob/ref")
    one = run.read(4).rollouts[0]
    assert one.response_ids.tolist() == [7, 9, 8, 6]
    assert one.loss_mask.tolist() == [True, False, True, False]
    np.testing.assert_array_equal(one.columns["logprob/rollout"], np.array([-0.5, np.nan, 0.0, np.nan], np.float32))
    np.testing.assert_array_equal(one.columns["logprob/ref"], np.array([-1.0, np.nan, -2.0, np.nan], np.float32))


def test_logprobs_that_do_not_fit_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, [text(logprobs=[-0.5]), text(logprobs="x"), text(logprobs=[None, float("nan")])])
    step = open_run(tmp_path).read(4)
    assert [set(one.columns) for one in step.rollouts] == [set(), set(), {"logprob/rollout"}]
    messages = [problem.message for problem in step.problems]
    assert messages == [
        "2 tokens, 1 log-prob",
        "logprob/rollout is no list of numbers, left out",
        "logprob/rollout: 2 missing of 2 values",
    ]


def test_text_only(tmp_path: Path) -> None:
    bare = text(input_ids=[], labels=[], logprobs=[], n_predicted=0)
    write(tmp_path, [text(input_ids=[], labels=[], logprobs=[]), bare, text(n_predicted=99), text(n_predicted=None)])
    rollouts = open_run(tmp_path).read(4).rollouts
    assert [(one.prompt, one.response) for one in rollouts] == [("q", "ab"), ("qab", ""), (None, "qab"), (None, "qab")]
    assert [one.response_ids is None for one in rollouts] == [True, True, False, False]


def test_validation_stream_is_apart(tmp_path: Path) -> None:
    write(tmp_path, [text()], topic="actor_test")
    run = open_run(tmp_path)
    assert run.notes[0] == "these are of the stream actor_test: validation, which no update used"
    write(tmp_path, [text(reward=0.0)])
    run = open_run(tmp_path)
    assert not run.notes[0].startswith("these are")
    assert [one.reward for one in run.read(4).rollouts] == [0.0]


def test_saved_samples_one_a_line(tmp_path: Path) -> None:
    file = tmp_path / "samples.jsonl"
    file.write_text(json.dumps(text()) + "\n" + json.dumps(text(group_id=None, metadata={})) + "\n")
    run = open_run(file)
    assert [one.group_source for one in run.read(4).rollouts] == ["given", "same prompt"]
    assert len(run.read(4).rollouts) == 2


def test_compressed(tmp_path: Path) -> None:
    file = tmp_path / "0.jsonl.gz"
    file.write_bytes(gzip.compress(STREAM.read_bytes()))
    run = open_run(file)
    assert [len(run.read(step).rollouts) for step in run.steps] == [8, 9]
    file.write_bytes(file.read_bytes()[:-400])
    assert open_run(file).steps[0] == 0


def test_broken_lines(tmp_path: Path) -> None:
    file = write(tmp_path, [text()], 5, [1, 2], {"a": 1}, [text(labels=[1], metadata=7, group_id=["x"], text=3)], [])
    with file.open("ab") as opened:
        opened.write(b'\x00\x00\x00\n[{"text": "q')
    step = open_run(tmp_path).read(4)
    kinds = [problem.kind for problem in step.problems]
    assert kinds.count("bad-line") == 3
    assert {"torn-line", "length-mismatch", "no-step"} <= set(kinds)
    assert len(step.rollouts) == 3
    assert not step.rollouts[2].loss_mask.any()


def test_others_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path, [{"input_ids": [1], "labels": [1]}])
    assert open_pipeline_rl(tmp_path, ReadOptions()) is None
    shutil.rmtree(tmp_path / "streams")
    (tmp_path / "a.jsonl").write_text("[1, 2]\n[3]\n")
    assert open_pipeline_rl(tmp_path / "a.jsonl", ReadOptions()) is None
