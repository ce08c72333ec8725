"""ROLL's dumps: the samples that ROLL itself wrote, what may be missing or wrong, and files that mean harm."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from credit_inspector.errors import FormatError, UsageError
from credit_inspector.trainers.opening import open_run
from formats.batch_answers import FORMATS, answers
from trainers.pickled import Evil, body, does_harm, evil_file, instance, rows_of_mutants

torch = pytest.importorskip("torch")

RLVR, AGENTIC, MOCK = (FORMATS / "roll" / name for name in ("rlvr", "agentic", "mock"))
PROTOCOL = "roll.distributed.scheduler.protocol"


# ── the samples ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_pickles_place_by_place() -> None:
    run = open_run(MOCK)
    assert (run.trainer, run.steps, run.columns) == ("roll", (1, 2), ("logprob/rollout", "reward/token_score"))
    for number in run.steps:
        step = run.read(number)
        assert step.problems == ()
        for one, wanted in zip(step.rollouts, answers(number)[1:6], strict=True):
            np.testing.assert_equal(one.prompt_ids, wanted.prompt_ids)
            np.testing.assert_equal(one.response_ids, wanted.response_ids)
            np.testing.assert_equal(one.loss_mask, np.array(wanted.mask, bool))
            expected = np.where(wanted.mask, wanted.logprobs("rollout"), np.nan).astype(np.float32)
            np.testing.assert_array_equal(one.columns["logprob/rollout"], expected)
            assert (one.reward, one.extra["episode_scores"]) == (wanted.reward, wanted.reward)
            np.testing.assert_equal(one.columns["reward/token_score"][:-1], 0)
            group = f"countdown_{int(wanted.group, 16) % 11}_{number}_42"
            assert (one.group_id, one.sample_id, one.group_source) == (group, f"{group}_{wanted.place}", "given")


def test_tool_turns_stay_between_the_model_turns() -> None:
    tool = next(one for one in open_run(MOCK).read(1).rollouts if one.extra["step_scores"] == [0.0, 1.0])
    assert tool.loss_mask is not None
    assert np.flatnonzero(np.diff(tool.loss_mask.astype(int))).tolist() == [16, 25]


@pytest.mark.parametrize("path", [MOCK, MOCK / "train", MOCK / "train/step_000002.pkl"])
def test_every_folder_down_to_the_pickle_opens(path: Path) -> None:
    run = open_run(path)
    assert run.trainer == "roll"
    assert len(run.read(2).rollouts) == 5
    with pytest.raises(UsageError, match="no step 3"):
        run.read(3)


@pytest.mark.parametrize("path", [RLVR, RLVR / "rollout_dump_data.step_2.jsonl"])
def test_text_of_the_rlvr_pipeline(path: Path) -> None:
    run = open_run(path)
    assert run.trainer == "roll"
    step = run.read(2)
    assert step.problems == ()
    for one, wanted in zip(step.rollouts, answers(2), strict=True):
        assert (one.prompt, one.response, one.reward) == (wanted.prompt, wanted.response, wanted.reward)
        assert (one.group_id, one.group_source) == (wanted.group, "given")
        assert one.extra["ground_truth"] == str(wanted.target)
        assert json.loads(one.extra["sampling_params"]) == {"generation_config": {"temperature": 0.99}}


def test_text_of_the_agentic_pipeline() -> None:
    run = open_run(AGENTIC)
    assert (run.trainer, run.steps) == ("roll", (1,))
    for one, wanted in zip(run.read(1).rollouts, answers(1)[:4], strict=True):
        assert (one.prompt, one.reward, one.truncated) == (wanted.prompt, wanted.reward, wanted.is_cut)
        assert one.sample_id == f"countdown_{wanted.group}_{wanted.place}"
        assert one.group_id == "countdown_10_1_42"
        chat = [turn["content"] for turn in one.extra["response"]] if len(wanted.parts) > 1 else [one.response]
        assert chat == list(wanted.parts)


# ── text that is missing something ──────────────────────────────────────────────────────────────────────────────────


def text_file(folder: Path, **lists: Any) -> Path:
    file = folder / "rollout_dump_data.step_3.jsonl"
    given = {"global_step": [3, 3], "prompt": ["p", "q"], "responses": ["a", "b"], "scores": [1, 0], **lists}
    file.write_text(json.dumps({key: value for key, value in given.items() if value is not None}) + "\n")
    return file


def test_id_that_names_no_prompt_is_no_group(tmp_path: Path) -> None:
    for ids in (["x", "x"], [None, None], ["", ""], [1.5, [2]]):
        step = open_run(text_file(tmp_path, id=ids)).read(3)
        assert {one.group_source for one in step.rollouts} == {"same prompt"}
        assert len({one.group_id for one in step.rollouts}) == 2


def test_prompt_from_messages(tmp_path: Path) -> None:
    chat = json.dumps([{"role": "user", "content": "hello"}])
    one, other = open_run(text_file(tmp_path, prompt=None, messages=[chat, "no json"])).read(3).rollouts
    assert (one.prompt, other.prompt) == ("hello", "no json")


def test_lists_of_other_lengths_are_told(tmp_path: Path) -> None:
    step = open_run(text_file(tmp_path, scores=[1.0], tag=["a", "b", "c"])).read(3)
    said = {problem.message for problem in step.problems if problem.kind == "unequal-lists"}
    assert said == {"2 responses, 1 values of scores", "2 responses, 3 values of tag"}
    assert [one.reward for one in step.rollouts] == [None, None]


def test_bad_scores_are_missing(tmp_path: Path) -> None:
    step = open_run(text_file(tmp_path, scores=[float("nan"), "high"])).read(3)
    assert [one.reward for one in step.rollouts] == [None, None]


@pytest.mark.parametrize("value", [5, "text", [], {"env_info": 5, "reward_info": []}, "[1", "null"])
def test_trajectories_that_are_none(tmp_path: Path, value: Any) -> None:
    file = tmp_path / "rollout_dump_data.step_1.jsonl"
    file.write_text(json.dumps({"global_step": [1], "messages": [value], "trajectory_data": [value]}) + "\n")
    (one,) = open_run(file).read(1).rollouts
    assert (one.reward, one.group_id) == (None, None)


# ── batches made here ───────────────────────────────────────────────────────────────────────────────────────────────


def data_proto(held: bytes, objects: Mapping[str, Any] | None = None) -> bytes:
    buffer = instance("_io", "BytesIO", body((held, 0, None)))[2:-1]
    rest = body(dict(objects or {})) + body(None) + body({})
    return instance(PROTOCOL, "DataProto", b"(" + buffer + rest + b"t")


def batch_file(folder: Path, objects: Mapping[str, Any] | None = None, **tensors: Any) -> Path:
    tensordict = pytest.importorskip("tensordict")
    buffer = io.BytesIO()
    torch.save(tensordict.TensorDict({**tiny(), **tensors}, batch_size=[2]).contiguous().consolidate(), buffer)
    file = folder / "step_000004.pkl"
    file.write_bytes(data_proto(buffer.getvalue(), objects))
    return file


def tiny() -> dict[str, Any]:
    """Prompts 8 9 and 9, responses 5 6 2 and 7 2, padded on the right with the end of a sequence."""
    return {
        "input_ids": torch.tensor([[8, 9, 5, 6, 2], [9, 7, 2, 2, 2]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]),
        "response_mask": torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]], dtype=torch.bool),
        "prompt_mask": torch.tensor([[1, 1, 0, 0, 0], [1, 0, 0, 0, 0]], dtype=torch.bool),
    }


def test_columns_that_belong_to_the_next_token(tmp_path: Path) -> None:
    logs = torch.tensor([[0, -1, -2, -3.0], [-4, -5, 0, 0]])
    advantages = torch.tensor([[9, 0.5, 0.5, 0.5], [-0.5, -0.5, 9, 9]])
    run = open_run(batch_file(tmp_path, infer_logprobs=logs, advantages=advantages, scores=torch.tensor([1.0, 0.0])))
    assert run.columns == ("logprob/rollout", "advantage")
    first, second = run.read(4).rollouts
    np.testing.assert_equal(first.response_ids, [5, 6, 2])
    np.testing.assert_equal(second.response_ids, [7, 2])
    np.testing.assert_equal(second.prompt_ids, [9])
    np.testing.assert_equal(first.columns["logprob/rollout"], [-1, -2, -3])
    np.testing.assert_equal(second.columns["logprob/rollout"], [-4, -5])
    np.testing.assert_equal(second.columns["advantage"], [-0.5, -0.5])
    assert (first.reward, second.reward, first.group_source) == (1.0, 0.0, "same prompt")


def test_row_that_stands_for_a_failed_one(tmp_path: Path) -> None:
    """ROLL puts a row without tokens in place of an environment that failed."""
    nothing = {name: value.clone() for name, value in tiny().items()}
    for name in ("attention_mask", "response_mask", "prompt_mask"):
        nothing[name][1] = 0
    step = open_run(batch_file(tmp_path, **nothing)).read(4)
    assert ([problem.kind for problem in step.problems], len(step.rollouts)) == (["no-mask", "missing-values"], 1)


def test_row_of_which_nothing_is_trained_keeps_its_prompt(tmp_path: Path) -> None:
    mask = tiny()["response_mask"]
    mask[1] = False
    step = open_run(batch_file(tmp_path, response_mask=mask)).read(4)
    np.testing.assert_equal(step.rollouts[1].prompt_ids, [9])
    np.testing.assert_equal(step.rollouts[1].loss_mask, [False, False])


def test_logprobs_that_were_not_computed_are_left_out(tmp_path: Path) -> None:
    step = open_run(batch_file(tmp_path, infer_logprobs=torch.zeros(2, 4))).read(4)
    assert step.rollouts[0].columns == {}
    assert "fill-values" in {problem.kind for problem in step.problems}


def test_validation_where_no_training_is(tmp_path: Path) -> None:
    shutil.copytree(MOCK / "train", tmp_path / "val")
    assert "these are validation rollouts: no training batch is here" in open_run(tmp_path).notes
    shutil.copytree(MOCK / "train", tmp_path / "train")
    assert not any("validation" in note for note in open_run(tmp_path).notes)


# ── harm ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_of_a_pickle_runs(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    evil = Evil(trace)
    assert does_harm(evil, trace)
    buffer = io.BytesIO()
    torch.save({"a": evil}, buffer)
    files = (data_proto(b"", {"tags": evil}), data_proto(buffer.getvalue()))
    for raw in files:
        file = evil_file(tmp_path / "train/step_000001.pkl", raw)
        for path in (file, file.parent, tmp_path):
            with pytest.raises(FormatError, match="was not run"):
                open_run(path)
    assert not trace.exists()


@pytest.mark.parametrize("raw", [b"", b"\x80\x04", body({}), instance(PROTOCOL, "DataProto", body(5))])
def test_pickles_that_are_none(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "step_000001.pkl").write_bytes(raw)
    with pytest.raises(FormatError):
        open_run(tmp_path / "step_000001.pkl")


def test_pickles_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "step_000001.pkl").write_bytes(b"\x80\x04" + body({"a": 1}) + b".")
    with pytest.raises(FormatError, match=r"no \.jsonl"):
        open_run(tmp_path / "step_000001.pkl")


def test_one_broken_step_does_not_hide_the_others(tmp_path: Path) -> None:
    shutil.copytree(MOCK, tmp_path / "mock")
    (tmp_path / "mock/train/step_000001.pkl").write_bytes(b"\x80\x04")
    run = open_run(tmp_path / "mock")
    assert len(run.read(2).rollouts) == 5
    with pytest.raises(FormatError, match="no readable pickle"):
        run.read(1)


@pytest.mark.parametrize(
    "source",
    [MOCK / "train/step_000001.pkl", RLVR / "rollout_dump_data.step_1.jsonl", AGENTIC / "rollout_dump_data.step_1.jsonl"],
)
def test_damage_gives_one_line_or_rows(tmp_path: Path, source: Path) -> None:
    assert rows_of_mutants(source, tmp_path / source.name, 200) > 0
