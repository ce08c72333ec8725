"""open-instruct's traces: its own writer's files, several shards, tools without a mask, restarts, broken lines."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from credit_inspector.errors import FormatError, UsageError
from credit_inspector.rollout import Problem
from credit_inspector.trainers import ReadOptions
from credit_inspector.trainers.open_instruct import open_open_instruct
from credit_inspector.trainers.opening import open_run
from places import FORMATS, SAMPLE

TRACES = FORMATS / "open_instruct" / "traces"
RUN = "countdown_grpo__1__1766000000"


def line(**fields: Any) -> dict[str, Any]:
    row = {
        "step": 1,
        "sample_idx": 0,
        "prompt_idx": 0,
        "prompt_tokens": [5, 6],
        "response_tokens": [7, 8, 1],
        "reward": 1.0,
        "advantage": 0.5,
        "finish_reason": "stop",
        "dataset": "math",
        "ground_truth": [9],
        "request_info": None,
        "logprobs": [-0.5, -0.25, 0.0],
    }
    return row | fields


def write(folder: Path, name: str, *rows: dict[str, Any]) -> Path:
    file = folder / name
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return file


def shard(folder: Path, *rows: dict[str, Any], number: int = 0, run: str = "run") -> Path:
    return write(folder, f"{run}_rollouts_{number:06d}.jsonl", *rows)


def raw(number: int) -> list[dict[str, Any]]:
    lines = (TRACES / f"{RUN}_rollouts_{number:06d}.jsonl").read_text("utf-8").splitlines()
    return [json.loads(each) for each in lines]


def test_sample_line_by_line() -> None:
    run = open_run(TRACES)
    assert (run.trainer, run.steps, run.columns) == ("open_instruct", (1, 2), ("logprob/rollout",))
    for step, rows in ((1, raw(0)), (2, raw(1))):
        rollouts = run.read(step).rollouts
        assert [one.group_id for one in rollouts] == [f"{step}-0"] * 4 + [f"{step}-1"] * 4
        assert {one.group_source for one in rollouts} == {"given"}
        for one, row in zip(rollouts, rows, strict=True):
            assert one.prompt_ids.tolist() == row["prompt_tokens"]
            assert one.response_ids.tolist() == row["response_tokens"]
            assert (one.reward, one.advantage) == (row["reward"], row["advantage"])
            assert one.truncated is (row["finish_reason"] == "length")
            assert one.loss_mask is None
            kept = ("sample_idx", "prompt_idx", "finish_reason", "dataset", "ground_truth", "request_info")
            assert dict(one.extra) == {key: row[key] for key in kept}
            tools = row["request_info"]["tool_calleds"]
            expected = [np.nan if tools and value == 0.0 else value for value in row["logprobs"]]
            np.testing.assert_array_equal(one.columns["logprob/rollout"], np.array(expected, np.float32))


def test_chinese_bytes_and_tool_tokens_of_the_sample() -> None:
    tokenizer = Tokenizer.from_file(str(SAMPLE / "tokenizer/tokenizer.json"))
    step = open_run(TRACES).read(2)
    chinese, tool = step.rollouts[3], step.rollouts[7]
    assert tokenizer.decode(chinese.response_ids.tolist(), skip_special_tokens=False) == "让我想想。龘<eos>"
    assert [tokenizer.decode([token]) for token in chinese.response_ids.tolist()[2:5]] == ["\ufffd"] * 3
    missing = np.flatnonzero(np.isnan(tool.columns["logprob/rollout"]))
    assert tokenizer.decode(tool.response_ids[missing].tolist()) == "\n36\n"
    assert [problem for problem in step.problems if problem.kind == "tool-tokens"] == [
        Problem("tool-tokens", "1 response called tools: which tokens tools wrote is not recorded, all count as trained")
    ]


@pytest.mark.parametrize("path", [TRACES, TRACES / f"{RUN}_metadata.jsonl"])
def test_all_shards_belong_to_the_run(path: Path) -> None:
    run = open_run(path)
    assert run.steps == (1, 2)
    assert len(run.read(2).rollouts) == 8


def test_one_shard_by_itself() -> None:
    run = open_run(TRACES / f"{RUN}_rollouts_000001.jsonl")
    assert run.steps == (2,)
    with pytest.raises(UsageError, match="no step 1 in this run"):
        run.read(1)


def test_folder_above(tmp_path: Path) -> None:
    shutil.copytree(TRACES, tmp_path / "rollouts")
    assert open_run(tmp_path).steps == (1, 2)


def test_zero_without_tools_is_a_logprob(tmp_path: Path) -> None:
    called = {"num_calls": 1, "tool_calleds": True}
    shard(tmp_path, line(), line(sample_idx=1, request_info=called), line(sample_idx=2, request_info={"num_calls": 0}))
    plain, tool, idle = (one.columns["logprob/rollout"] for one in open_run(tmp_path).read(1).rollouts)
    assert plain.tolist() == idle.tolist() == [-0.5, -0.25, 0.0]
    assert np.isnan(tool).tolist() == [False, False, True]


def test_step_over_two_shards(tmp_path: Path) -> None:
    shard(tmp_path, line(), line(sample_idx=1))
    shard(tmp_path, line(sample_idx=2, prompt_idx=1), line(step=2), number=1)
    run = open_run(tmp_path)
    assert run.steps == (1, 2)
    assert [one.group_id for one in run.read(1).rollouts] == ["1-0", "1-0", "1-1"]


def test_step_written_again_after_a_restart(tmp_path: Path) -> None:
    first = [line(sample_idx=at, prompt_tokens=[5]) for at in (0, 1)]
    again = [line(sample_idx=at, prompt_tokens=[6]) for at in (0, 1)]
    shard(tmp_path, *first, *again)
    step = open_run(tmp_path).read(1)
    assert [one.group_id for one in step.rollouts] == ["1-0", "1-0", "1-0#2", "1-0#2"]
    assert [one.sample_id for one in step.rollouts] == ["0", "1", "0#2", "1#2"]
    assert "repeated-step" in {problem.kind for problem in step.problems}


def test_two_runs_in_one_folder(tmp_path: Path) -> None:
    shard(tmp_path, line(), run="a")
    shard(tmp_path, line(), run="b")
    with pytest.raises(FormatError, match="traces of 2 runs: a, b; wanted one run"):
        open_run(tmp_path)
    write(tmp_path, "b_metadata.jsonl", {"run_name": "b"})
    assert open_run(tmp_path / "b_metadata.jsonl").steps == (1,)


def test_no_logprobs_and_other_ground_truth(tmp_path: Path) -> None:
    shard(tmp_path, line(logprobs=None, ground_truth="42"), line(sample_idx=1, logprobs=None, ground_truth=["4", "2"]))
    run = open_run(tmp_path)
    assert run.columns == ()
    rollouts = run.read(1).rollouts
    assert [dict(one.columns) for one in rollouts] == [{}, {}]
    assert [one.extra["ground_truth"] for one in rollouts] == ["42", ["4", "2"]]


def test_empty_response_has_a_missing_logprob(tmp_path: Path) -> None:
    """open-instruct appends an end token with NaN."""
    shard(tmp_path, line(response_tokens=[1], logprobs=[float("nan")]))
    step = open_run(tmp_path).read(1)
    assert np.isnan(step.rollouts[0].columns["logprob/rollout"]).tolist() == [True]
    assert step.problems == (Problem("missing-values", "logprob/rollout: 1 missing of 1 values"),)


def test_broken_rows_are_problems(tmp_path: Path) -> None:
    file = shard(
        tmp_path,
        line(),
        line(sample_idx=1, logprobs=[-0.5] * 2),
        line(sample_idx=2, response_tokens="none", reward="nan"),
        line(sample_idx=3, request_info=["x"], prompt_idx={"a": 1}, finish_reason=7),
        line(sample_idx=None, prompt_idx=None, response_tokens=[1.5], advantage=[1, 2]),
    )
    file.write_text(file.read_text("utf-8") + '{"step": 1, "sam', "utf-8")
    step = open_run(tmp_path).read(1)
    kinds = [problem.kind for problem in step.problems]
    assert len(step.rollouts) == 5
    assert {"length-mismatch", "bad-ids", "torn-line", "missing-values"} <= set(kinds)
    assert step.rollouts[2].reward is None
    assert step.rollouts[2].response_ids is None


def test_others_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path, "a_rollouts_000000.jsonl", {"step": 1, "prompt_tokens": [1], "response_tokens": [2]})
    assert open_open_instruct(tmp_path, ReadOptions()) is None
    assert open_open_instruct(write(tmp_path, "x_metadata.jsonl", {"run_name": "x"}), ReadOptions()) is None
