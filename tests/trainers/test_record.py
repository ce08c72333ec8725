"""This project's own record: what is written comes back, and what is damaged says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from credit_inspector.algorithm import Algorithm
from credit_inspector.errors import FormatError, UsageError
from credit_inspector.rollout import Problem, Rollout, Step
from credit_inspector.trainers.opening import open_run
from credit_inspector.trainers.record import write_header, write_jsonl, write_step

NAN = np.float32("nan")


def rollout(**fields: Any) -> Rollout:
    whole = {
        "sample_id": "a",
        "group_id": "g",
        "group_source": "given",
        "prompt": "2+2=",
        "response": "4 😀",
        "prompt_ids": np.array([5, 6], np.int32),
        "response_ids": np.array([7, 8, 2], np.int32),
        "loss_mask": np.array([True, False, True]),
        "columns": {
            "logprob/old": np.array([-0.1, NAN, -0.7], np.float32),
            "advantage": np.array([0.5, NAN, 0.5], np.float32),
        },
        "reward": 1.0,
        "rewards": {"right": 1.0, "short": None},
        "advantage": 0.5,
        "policy_version": 3,
        "truncated": False,
        "extra": {"gold": "007", "scores": [1, "two"], "nested": {"a": None}},
    }
    return Rollout(**{**whole, **fields})  # type: ignore[arg-type]


TEXT_ONLY = rollout(
    sample_id="b",
    group_id=None,
    group_source="none",
    prompt=None,
    prompt_ids=None,
    response_ids=None,
    loss_mask=None,
    columns={},
    reward=None,
    rewards={},
    advantage=None,
    policy_version=None,
    truncated=None,
    extra={},
)


def same(one: Rollout, other: Rollout) -> None:
    for name in ("prompt_ids", "response_ids", "loss_mask"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert set(one.columns) == set(other.columns)
    for name, values in one.columns.items():
        assert other.columns[name].dtype == np.float32
        np.testing.assert_array_equal(values, other.columns[name])
    plain = ("sample_id", "group_id", "group_source", "prompt", "response", "reward", "rewards", "advantage")
    for name in (*plain, "policy_version", "truncated", "extra"):
        assert getattr(one, name) == getattr(other, name), name


@pytest.mark.parametrize("jsonl", [False, True])
def test_what_is_written_comes_back(tmp_path: Path, jsonl: bool) -> None:
    step = Step(4, (rollout(), TEXT_ONLY))
    if jsonl:
        run = open_run(write_jsonl(tmp_path / "run.jsonl", [step]))
    else:
        write_header(tmp_path, trainer="trl 1.16.0", notes=["first"])
        write_step(tmp_path, step)
        run = open_run(tmp_path)
        assert run.notes == ("recorded from trl 1.16.0", "first")
    assert (run.trainer, run.steps) == ("record", (4,))
    assert set(run.columns) == {"logprob/old", "advantage"}
    read = run.read(4)
    for one, other in zip(step.rollouts, read.rollouts, strict=True):
        same(one, other)


def test_header_checkpoints_and_tokenizer(tmp_path: Path) -> None:
    rule = Algorithm(name="trl-1.16.0/dapo", source="recorded", kl_beta=0.04)
    for number in (0, 10, 2):
        (tmp_path / f"checkpoints/step_{number:06d}").mkdir(parents=True)
    (tmp_path / "words").mkdir()
    (tmp_path / "words/tokenizer.json").write_text("{}")
    write_header(tmp_path, trainer="own", algorithm=rule, tokenizer="words")
    run = open_run(tmp_path)
    assert [at.step for at in run.checkpoints] == [0, 2, 10]
    assert run.algorithm == rule
    assert run.tokenizer == tmp_path / "words"
    assert run.steps == ()


def test_step_keeps_its_own_rule_and_problems(tmp_path: Path) -> None:
    rule = Algorithm(name="late", source="recorded", clip_high=0.28)
    write_header(tmp_path, trainer="own")
    written = Step(1, (rollout(),), (Problem("dropped", "2 of 8 responses were not recorded"),), rule)
    write_step(tmp_path, written)
    read = open_run(tmp_path).read(1)
    assert read.algorithm == rule
    assert written.problems[0] in read.problems
    again = open_run(write_step(tmp_path, read)).read(1)
    assert again.problems == read.problems


def test_masked_tokens_without_values_are_no_problem(tmp_path: Path) -> None:
    write_header(tmp_path, trainer="own")
    write_step(tmp_path, Step(1, (rollout(rewards={}),)))
    assert open_run(tmp_path).read(1).problems == ()
    hole = {"logprob/old": np.array([NAN, NAN, -0.7], np.float32)}
    write_step(tmp_path, Step(1, (rollout(rewards={}, columns=hole),)))
    problems = open_run(tmp_path).read(1).problems
    assert problems == (Problem("missing-values", "logprob/old: 1 missing of 2 values"),)


def test_odd_values_are_written_as_text_or_null(tmp_path: Path) -> None:
    extra = {"mixed": ["4", ["a", "b"]], "score": float("nan"), "array": np.arange(2), "path": Path("x"), 3: "\ud800"}
    step = Step(1, (rollout(response="a\ud800b", reward=float("inf"), extra=extra, rewards={"r": float("nan")}),))
    write_header(tmp_path, trainer="own")
    read = open_run(write_step(tmp_path, step)).read(1).rollouts[0]
    assert read.extra == {"mixed": ["4", ["a", "b"]], "score": None, "array": [0, 1], "path": "x", "3": "\ufffd"}
    assert (read.response, read.reward, read.rewards) == ("a\ufffdb", None, {"r": None})
    lines = write_jsonl(tmp_path / "run.jsonl", [step]).read_text("utf-8")
    assert "NaN" not in lines
    assert "Infinity" not in lines


def test_files_are_whole_and_in_small_row_groups(tmp_path: Path) -> None:
    many = tuple(rollout(sample_id=str(number)) for number in range(300))
    file = write_step(tmp_path, Step(2, many))
    metadata = pq.ParquetFile(file).metadata
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [128, 128, 44]
    assert metadata.row_group(0).column(0).compression == "ZSTD"
    assert [inner.name for inner in file.parent.iterdir()] == ["step_000002.parquet"]
    assert file.parent.joinpath("step_000003.parquet.tmp").write_bytes(b"half") == 4
    write_header(tmp_path, trainer="own")
    assert open_run(tmp_path).steps == (2,)


def test_more_log_probs_than_tokens_c09(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    row = {"schema_version": 1, "step": 1, "group_id": "g", "reward": 1.0, "response_ids": [1, 2, 3, 4, 5]}
    lines = [
        {**row, "sample_id": "long", "logprob/old": [-1.0] * 6, "entropy/policy": [0.5] * 5, "truncated": False},
        {**row, "sample_id": "fine", "logprob/old": [-1.0] * 5},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    read = open_run(file).read(1)
    long, fine = read.rollouts
    assert Problem("length-mismatch", "5 tokens, 6 log-probs", "long") in read.problems
    assert (long.reward, list(long.columns)) == (1.0, ["entropy/policy"])
    assert list(fine.columns) == ["logprob/old"]


def test_what_is_damaged_says_so(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text("[]")
    with pytest.raises(FormatError, match="no JSON object"):
        open_run(tmp_path)
    (tmp_path / "record.json").write_text('{"schema_version": 9}')
    with pytest.raises(FormatError, match="schema_version 9; wanted 1; update"):
        open_run(tmp_path)
    (tmp_path / "record.json").write_text('{"schema_version": 1, "algorithm": {"name": "x", "source": "y", "clip": 1}}')
    with pytest.raises(FormatError, match="unknown algorithm setting 'clip'"):
        open_run(tmp_path)
    write_header(tmp_path, trainer="own")
    file = write_step(tmp_path, Step(1, (rollout(),)))
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(FormatError, match="step_000001"):
        open_run(tmp_path).read(1)
    with pytest.raises(UsageError, match="no step 7 in this run; wanted one of 1"):
        open_run(tmp_path).read(7)


def test_rewards_and_extra_as_json_text(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    row = {"schema_version": 1, "sample_id": "a", "response": "x", "rewards": '{"r": 0.5}', "extra": '{"gold": "007"}'}
    file.write_text(json.dumps(row) + "\n")
    one = open_run(file).read(0).rollouts[0]
    assert (one.rewards, one.extra) == ({"r": 0.5}, {"gold": "007"})


def test_the_reward_of_each_token_comes_back_under_its_name(tmp_path: Path) -> None:
    columns = {"reward/token": np.array([0.0, 1.0], np.float32), "advantage": np.array([0.5, -0.5], np.float32)}
    one = Rollout(sample_id="a", prompt="q", response_ids=np.array([1, 2], np.int32), reward=1.0, columns=columns)
    write_header(tmp_path, trainer="own")
    write_step(tmp_path, Step(1, (one,)))
    run = open_run(tmp_path)
    (back,) = run.read(1).rollouts
    assert set(run.columns) == set(back.columns) == set(columns)
    for name, values in columns.items():
        np.testing.assert_array_equal(back.columns[name], values)
    assert back.reward == 1.0
