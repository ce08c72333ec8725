"""LSRL's group lines: one line a group, rewards as mappings, questions as rows of a dataset."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from credit_inspector.errors import UsageError
from credit_inspector.rollout import Problem
from credit_inspector.trainers.opening import open_run
from formats.batch_answers import answers
from places import FORMATS, ROOT

REAL = ROOT.parent / "shared/real_files/lsrl_gsm8k_grpo_groups.jsonl"
GROUP: dict[str, Any] = {
    "iter": 3,
    "Q": {"Q": "1+1?", "A": "2"},
    "anss": ["2", "3"],
    "rewards": [{"right": 1, "total": 1}, {"right": 0, "total": -0.5}],
    "lens": [1, 1],
}


def write(folder: Path, *rows: Any) -> Path:
    file = folder / "log.jsonl"
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), "utf-8")
    return file


def test_sample() -> None:
    run = open_run(FORMATS / "group_lines/log_rl.log.jsonl")
    assert (run.trainer, run.steps) == ("group_lines", (1, 2))
    for step in run.steps:
        rollouts = run.read(step).rollouts
        wanted = answers(step)
        assert [one.response for one in rollouts] == [one.response for one in wanted]
        assert [one.prompt for one in rollouts] == [one.prompt.strip() for one in wanted]
        assert [one.rewards["correct_fn"] for one in rollouts] == [one.reward for one in wanted]
        penalties = [0.25 * (len(one.response_ids) > 40) for one in wanted]
        assert [one.reward for one in rollouts] == [one.reward - off for one, off in zip(wanted, penalties, strict=True)]
        assert [one.extra["length"] for one in rollouts] == [len(one.response_ids) for one in wanted]
        sizes = [len(list(group)) for _, group in groupby(rollouts, key=lambda one: one.group_id)]
        assert sizes == [4, 4]
        assert {one.group_source for one in rollouts} == {"given"}


def test_a_folder_with_one_log_is_that_log(tmp_path: Path) -> None:
    write(tmp_path, GROUP)
    (tmp_path / "log.md").write_text("# RL Training Log")
    assert open_run(tmp_path).read(3).rollouts[1].reward == -0.5


def test_rows_own_keys_are_kept(tmp_path: Path) -> None:
    run = open_run(write(tmp_path, {**GROUP, "answer": "gold", "response": "?", "infos": [{"n": 1}, {"n": 2}]}))
    first, second = run.read(3).rollouts
    assert (first.response, first.extra["answer"], first.extra["response"] == "?") == ("2", "gold", True)
    assert (second.extra["info"], second.extra["prompt"]) == ({"n": 2}, {"Q": "1+1?", "A": "2"})


def test_rewards_as_numbers_and_questions_as_text(tmp_path: Path) -> None:
    rollouts = open_run(write(tmp_path, {**GROUP, "Q": "1+1?", "rewards": [1, None]})).read(3).rollouts
    assert [(one.prompt, one.reward, one.rewards) for one in rollouts] == [("1+1?", 1.0, {}), ("1+1?", None, {})]


def test_lists_of_other_lengths_are_told(tmp_path: Path) -> None:
    step = open_run(write(tmp_path, {**GROUP, "rewards": [{"total": 1}]})).read(3)
    assert Problem("length-mismatch", "line 1: 2 answers, 1 of rewards") in step.problems
    assert [one.reward for one in step.rollouts] == [1.0, None]


def test_torn_and_foreign_lines(tmp_path: Path) -> None:
    run = open_run(write(tmp_path, GROUP, GROUP, GROUP, {"iter": 3, "loss": 0.5}, '{"iter": 4, "Q'))
    step = run.read(3)
    assert (run.steps, len(step.rollouts)) == ((3,), 6)
    assert {problem.kind for problem in step.problems} == {"bad-line"}
    with pytest.raises(UsageError, match="no step 4"):
        run.read(4)


@pytest.mark.skipif(not REAL.is_file(), reason="the real files are not here")
def test_real_file() -> None:
    run = open_run(REAL)
    assert (run.trainer, run.steps) == ("group_lines", tuple(range(1, 21)))
    read = [run.read(step) for step in run.steps]
    assert {len(step.rollouts) for step in read} == {8}
    assert all(len({one.group_id for one in step.rollouts}) == 1 for step in read)
    assert sum(len({one.reward for one in step.rollouts}) == 1 for step in read) == 13
    assert [problem for step in read for problem in step.problems] == []
    raw = [json.loads(line) for line in REAL.read_text("utf-8").splitlines()]
    for line, step in zip(raw, read, strict=True):
        assert [one.response for one in step.rollouts] == line["anss"]
        assert [one.reward for one in step.rollouts] == [row["total"] for row in line["rewards"]]
        assert [one.prompt for one in step.rollouts] == [line["Q"]["Q"]] * 8
