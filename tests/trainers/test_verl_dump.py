"""verl's rollout dumps of both trainers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from credit_inspector.rollout import Problem
from credit_inspector.trainers.opening import open_run
from formats.batch_answers import FORMATS, answers

REAL = Path(__file__).parents[2].parent / "shared/real_files"


def line(**fields: Any) -> str:
    return json.dumps({"input": "user\n1+1?\nassistant\n", "output": "2", "gts": "2", "score": 1.0, "step": 1, **fields})


def write(folder: Path, name: str, *lines: str) -> Path:
    file = folder / name
    file.write_text("\n".join(lines) + "\n", "utf-8")
    return file


def test_v0_groups_by_prompt_wherever_the_rows_stand_a02(tmp_path: Path) -> None:
    prompts = ["p", "q", "p", "q"]
    write(tmp_path, "1.jsonl", *(line(input=prompt, score=float(prompt == "p")) for prompt in prompts))
    write(tmp_path, "10.jsonl", line(step=10))
    write(tmp_path, "2.jsonl", line(step=2))
    run = open_run(tmp_path)
    assert (run.trainer, run.steps) == ("verl", (1, 2, 10))
    step = run.read(1)
    groups = [one.group_id or "" for one in step.rollouts]
    assert [groups.index(group) for group in groups] == [0, 1, 0, 1]
    assert {one.group_source for one in step.rollouts} == {"same prompt"}
    assert [one.reward for one in step.rollouts] == [1.0, 0.0, 1.0, 0.0]


def test_v1_groups_by_uid(tmp_path: Path) -> None:
    write(tmp_path, "1.jsonl", line(uid="a_b_0_0"), line(uid="a_b_1_0"), line(uid="c_0_0", score=0))
    step = open_run(tmp_path).read(1)
    assert [one.group_id for one in step.rollouts] == ["a_b", "a_b", "c"]
    assert [one.sample_id for one in step.rollouts] == ["a_b_0_0", "a_b_1_0", "c_0_0"]
    assert {one.group_source for one in step.rollouts} == {"given"}


def test_numbers_that_became_text_g01(tmp_path: Path) -> None:
    write(
        tmp_path,
        "1.jsonl",
        line(acc="True", score="0.5", n="3", v="[1 2]", gts="007", pred="12"),
        line(acc="False", score=0.5, n=3, v=[1, 2], gts="007", pred="12"),
        line(score="np.float64(0.5)"),
        line(score="high"),
    )
    step = open_run(tmp_path).read(1)
    first, second, third, fourth = step.rollouts
    assert [one.reward for one in step.rollouts] == [0.5, 0.5, 0.5, None]
    assert first.rewards == {"acc": 1.0, "n": 3.0}
    assert second.rewards == {"acc": 0.0, "n": 3.0}
    assert first.extra == {"v": [1, 2], "gts": "007", "pred": "12"}
    assert (third.rewards, fourth.rewards) == ({}, {})
    messages = {problem.message for problem in step.problems}
    assert "text converted: 4 fields in line 1, 1 in line 2, 1 in line 3" in messages
    assert "reward: 1 unreadable of 4 values" in messages


def test_columns_that_come_and_go_g10(tmp_path: Path) -> None:
    write(tmp_path, "1.jsonl", line(acc=1), line(acc=0), line(), line())
    step = open_run(tmp_path).read(1)
    assert Problem("missing-values", "acc: 2 missing of 4 values") in step.problems


def test_killed_run(tmp_path: Path) -> None:
    file = write(tmp_path, "1.jsonl", line(), line())
    file.write_text(file.read_text() + '{"input": "user')
    write(tmp_path, "0.jsonl").write_text("")
    run = open_run(tmp_path)
    assert [problem.message for problem in run.read(1).problems] == ["line 3 incomplete (15 bytes), skipped"]
    assert run.read(0).rollouts == ()


def test_nan_scores_are_missing(tmp_path: Path) -> None:
    write(tmp_path, "1.jsonl", line(score=float("nan")), line(score=float("inf")), line(score=None), line())
    step = open_run(tmp_path).read(1)
    assert [one.reward for one in step.rollouts] == [None, None, None, 1.0]
    assert step.problems == (Problem("missing-values", "reward: 2 missing, 1 infinite of 4 values"),)


@pytest.mark.skipif(not REAL.is_dir(), reason="the real files are not here")
def test_real_files() -> None:
    run = open_run(REAL / "verl_gsm8k_rollout_dump_steps1_11.jsonl")
    assert (run.trainer, run.steps) == ("verl", (1, 11))
    first = run.read(1).rollouts[0]
    assert first.prompt is not None
    assert first.prompt.startswith("user\nDuring one day")
    assert first.prompt.endswith("assistant\n")
    assert isinstance(first.extra["gts"], str)
    docs = open_run(REAL / "verl_docs_sandbox_fusion_rollout.jsonl")
    assert [one.reward for one in docs.read(1).rollouts] == [0.0]


@pytest.mark.parametrize(("name", "source"), [("v0", "same prompt"), ("v1", "given")])
def test_dumps_that_verl_wrote(name: str, source: str) -> None:
    run = open_run(FORMATS / "verl" / name)
    assert (run.trainer, run.steps) == ("verl", (1, 2))
    for number in run.steps:
        rows = answers(number) if name == "v1" else answers(number)[::2] + answers(number)[1::2]
        step = run.read(number)
        groups = [one.group_id for one in step.rollouts]
        assert [groups.index(group) for group in groups] == [[each.group for each in rows].index(one.group) for one in rows]
        for one, wanted in zip(step.rollouts, rows, strict=True):
            assert (one.prompt, one.response, one.reward) == (wanted.prompt, wanted.response, wanted.reward)
            assert (one.group_source, one.extra["gts"]) == (source, str(wanted.target))
            assert one.rewards == ({"acc": wanted.reward} if name == "v0" else {})


def test_an_answer_that_could_not_be_read_off_is_no_reward(tmp_path: Path) -> None:
    write(tmp_path, "1.jsonl", line(acc=None, pred=None), line(acc=1, pred="4"))
    (first, second) = open_run(tmp_path).read(1).rollouts
    assert (first.rewards, first.extra["pred"]) == ({"acc": None}, None)
    assert (second.rewards, second.extra["pred"]) == ({"acc": 1.0}, "4")
