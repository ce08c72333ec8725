"""ms-swift's completions: the files of its own writer, lists of unequal length, repeats, the three trainers' shapes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from credit_inspector.rollout import Problem
from credit_inspector.trainers import ReadOptions
from credit_inspector.trainers.ms_swift import open_ms_swift
from credit_inspector.trainers.opening import open_run
from places import FORMATS

SAMPLE = FORMATS / "ms_swift"


def table(step: str = "1", **columns: Any) -> dict[str, Any]:
    found = {"step": [step] * 2, "prompt": ["p", "q"], "completion": ["a", "b"], "Accuracy": [1.0, 0.0]}
    return found | {"advantages": [0.5, -0.5]} | columns


def write(folder: Path, *rows: dict[str, Any], name: str = "completions.jsonl") -> Path:
    file = folder / name
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return file


def test_sample_row_by_row() -> None:
    run = open_run(SAMPLE / "grpo")
    assert (run.trainer, run.steps) == ("ms_swift", (1, 3))
    lines = [json.loads(each) for each in (SAMPLE / "grpo/completions.jsonl").read_text("utf-8").splitlines()]
    for step, line in ((1, lines[0]), (3, lines[2])):
        rollouts = run.read(step).rollouts
        assert len(rollouts) == 8
        for at, one in enumerate(rollouts):
            assert (one.prompt, one.response) == (line["prompt"][at], line["completion"][at])
            assert dict(one.rewards) == {name: line[name][at] for name in ("Countdown", "Format")}
            assert one.reward == line["Countdown"][at] + line["Format"][at]
            assert one.advantage == line["advantages"][at]
            assert dict(one.extra) == {"solution": line["solution"][at]}
        groups = [one.group_id for one in rollouts]
        assert [groups.index(group) for group in groups] == [0] * 4 + [4] * 4
        assert {one.group_source for one in rollouts} == {"same prompt"}


def test_shorter_list_of_the_sample_is_left_out() -> None:
    step = open_run(SAMPLE / "grpo").read(3)
    assert step.problems == (Problem("unequal-lists", "line 3: 8 responses, 7 values of num_turns, left out"),)


def test_repeated_batch_of_the_sample_is_read_once() -> None:
    notes = open_run(SAMPLE / "grpo").notes
    assert "steps 2 trained on the responses of the step before them again: read once, at the first" in notes


def test_ray_sample_row_by_row() -> None:
    run = open_run(SAMPLE / "ray_megatron")
    assert run.steps == (0, 1)
    rows = [json.loads(each) for each in (SAMPLE / "ray_megatron/completions.jsonl").read_text("utf-8").splitlines()]
    rollouts = [one for step in run.steps for one in run.read(step).rollouts]
    assert [(one.prompt, one.response, one.reward) for one in rollouts] == [
        (row["prompt"], row["completion"], row["reward"]) for row in rows
    ]
    assert [len(run.read(step).rollouts) for step in run.steps] == [8, 8]
    assert {one.advantage for one in rollouts} == {None}


def test_rewards_stand_between_completion_and_advantages(tmp_path: Path) -> None:
    columns = table(score=[0.1, 0.2])
    write(tmp_path, columns)
    one = open_run(tmp_path).read(1).rollouts[1]
    assert (dict(one.rewards), one.reward, dict(one.extra)) == ({"Accuracy": 0.0}, 0.0, {"score": 0.2})


def test_reward_none_where_no_function_gave_one(tmp_path: Path) -> None:
    nan = float("nan")
    first = {"step": ["1"] * 3, "prompt": ["p"] * 3, "completion": ["a", "b", "c"], "A": [1.0, nan, nan], "B": [nan, 0.5, nan]}
    write(tmp_path, {**first, "advantages": [1.0, 0.0, nan]})
    step = open_run(tmp_path).read(1)
    assert [one.reward for one in step.rollouts] == [1.0, 0.5, None]
    assert [one.advantage for one in step.rollouts] == [1.0, 0.0, None]
    assert dict(step.rollouts[2].rewards) == {"A": None, "B": None}


@pytest.mark.parametrize("short", ["prompt", "Accuracy", "advantages"])
def test_unequal_lists_never_shift(tmp_path: Path, short: str) -> None:
    write(tmp_path, table(**{short: table()[short][:1]}))
    step = open_run(tmp_path).read(1)
    assert [one.response for one in step.rollouts] == ["a", "b"]
    assert Problem("unequal-lists", f"line 1: 2 responses, 1 values of {short}, left out") in step.problems
    assert [one.prompt for one in step.rollouts] == ([None, None] if short == "prompt" else ["p", "q"])
    assert [one.advantage for one in step.rollouts] == ([None, None] if short == "advantages" else [0.5, -0.5])
    assert [one.reward for one in step.rollouts] == ([None, None] if short == "Accuracy" else [1.0, 0.0])


def test_growing_lines_of_one_batch_count_each_row_once(tmp_path: Path) -> None:
    """With ``log_entropy`` the first lines hold as many rows as were trained on yet."""
    whole = {"prompt": ["p"] * 4, "completion": ["a", "b", "c", "d"], "A": [1.0, 0.0, 1.0, 0.0], "advantages": [0.5, -0.5] * 2}
    lines = []
    for step, count in ((1, 2), (2, 4), (3, 4)):
        cut = {name: values[:count] for name, values in whole.items()}
        lines.append({"step": [str(step)] * count, **cut, "entropy": [0.1 * step] * count})
    write(tmp_path, *lines, {"step": ["4"] * 2, "prompt": ["p"] * 2, "completion": ["e", "f"], "advantages": [0.0, 0.0]})
    run = open_run(tmp_path)
    assert [[one.response for one in run.read(step).rollouts] for step in run.steps] == [["a", "b"], ["c", "d"], ["e", "f"]]
    assert run.steps == (1, 2, 4)


def test_megatron_counts_generations(tmp_path: Path) -> None:
    rest = {name: values for name, values in table().items() if name != "step"}
    write(tmp_path, {"gen_step": [0, 0], **rest}, {"gen_step": [1, 1], **rest, "completion": ["c", "d"]})
    run = open_run(tmp_path)
    assert run.steps == (0, 1)
    assert "steps are generations, counted from 0" in run.notes
    assert [one.response for one in run.read(1).rollouts] == ["c", "d"]


def test_checkpoints_and_the_file_itself(tmp_path: Path) -> None:
    file = write(tmp_path, table())
    for step in (10, 2):
        (tmp_path / f"checkpoint-{step}").mkdir()
    shutil.copy(FORMATS.parent / "countdown/tokenizer/tokenizer.json", tmp_path / "checkpoint-10")
    for path in (tmp_path, file):
        run = open_run(path)
        assert [at.step for at in run.checkpoints] == [2, 10]
        assert run.tokenizer == tmp_path / "checkpoint-10"


def test_broken_lines(tmp_path: Path) -> None:
    rows = (table(), table("2", completion=["c", "d"]), {"loss": 1}, table("x", completion=["e", 5]), table("3", completion=[]))
    file = write(tmp_path, *rows)
    file.write_text(file.read_text("utf-8") + '{"step": ["4"', "utf-8")
    run = open_run(tmp_path)
    assert run.steps == (1, 2, 3)
    step = run.read(2)
    assert [one.response for one in step.rollouts] == ["c", "d"]
    assert [problem.message for problem in step.problems] == [
        "line 3 holds no completions, skipped",
        "line 4 holds no completions, skipped",
    ]
    assert run.read(3).rollouts == ()


def test_others_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path, table(), name="own.jsonl")
    assert open_ms_swift(tmp_path / "own.jsonl", ReadOptions()) is None
    write(tmp_path, {"gen_step": 1, "prompt": "p", "completion": "c", "tokens": [1]})
    assert open_ms_swift(tmp_path, ReadOptions()) is None
