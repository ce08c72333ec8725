"""AReaL's trajectories: its own writer's files, versions, cuts that are too late, restarts, broken files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from credit_inspector.errors import UsageError
from credit_inspector.trainers import ReadOptions
from credit_inspector.trainers.areal import open_areal
from credit_inspector.trainers.opening import open_run
from places import FORMATS

TRIAL = FORMATS / "areal" / "trial0"


def line(**fields: Any) -> dict[str, Any]:
    row = {"task_id": 0, "sample_idx": 0, "seqlen": 5, "prompt_len": 2, "head_version": -1, "tail_version": 0, "reward": 1.0}
    return row | {"prompt": "q", "completion": "a<eos>"} | fields


def write(folder: Path, version: int, task: int, *rows: dict[str, Any], kind: str = "rollout") -> Path:
    file = folder / kind / str(version) / f"{task}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return file


def test_sample_line_by_line() -> None:
    run = open_run(TRIAL)
    assert (run.trainer, run.steps, run.columns) == ("areal", (0, 1), ())
    for version, tasks in ((0, (0, 1)), (1, (2, 3))):
        texts = [(TRIAL / f"rollout/{version}/{task}.jsonl").read_text("utf-8") for task in tasks]
        rows = [json.loads(each) for text in texts for each in text.splitlines()]
        rollouts = run.read(version).rollouts
        for one, row in zip(rollouts, rows, strict=True):
            assert (one.prompt, one.response, one.reward) == (row["prompt"], row["completion"], row["reward"])
            assert (one.group_id, one.group_source) == (str(row["task_id"]), "given")
            assert one.sample_id == f"{row['task_id']}-{row['sample_idx']}"
            kept = ("task_id", "sample_idx", "seqlen", "prompt_len", "head_version", "tail_version")
            assert dict(one.extra) == {key: row[key] for key in kept}
            assert (one.response_ids, one.policy_version, one.truncated) == (None, None, None)
    assert rollouts[3].response == "让我想想。龘<eos>"


def test_cut_too_late_where_a_tool_wrote() -> None:
    step = open_run(TRIAL).read(1)
    assert [one.prompt for one in step.rollouts[4:]] == ["Use 8, 5, 5 to make 8.\n"] * 3 + ["Use 8, 5, 5 to make 8.\n<cal"]
    assert [(problem.kind, problem.where) for problem in step.problems] == [("unlike-prompts", "3")]


@pytest.mark.parametrize(
    ("place", "steps"),
    [("rollout", (0, 1)), ("rollout/1", (1,)), ("rollout/1/3.jsonl", (1,)), ("eval-rollout", (1,)), ("eval-rollout/1", (1,))],
)
def test_any_place_of_it(place: str, steps: tuple[int, ...]) -> None:
    run = open_run(TRIAL / place)
    assert (run.trainer, run.steps) == ("areal", steps)
    assert any("validation" in note for note in run.notes) == place.startswith("eval")
    assert run.read(steps[-1]).rollouts


def test_validation_is_not_training(tmp_path: Path) -> None:
    write(tmp_path, 3, 9, line(), kind="eval-rollout")
    run = open_run(tmp_path)
    assert run.steps == (3,)
    assert run.notes[0] == "these are eval-rollout responses: validation, which no update used"
    write(tmp_path, 4, 1, line())
    run = open_run(tmp_path)
    assert run.steps == (4,)
    assert not any(note.startswith("these are eval-rollout") for note in run.notes)


def test_version_is_known_where_head_and_tail_agree(tmp_path: Path) -> None:
    versions = [(4, 4), (3, 4), (-1, 4), (None, 4), ([4], [4]), ([3, 4], [4, 4])]
    write(tmp_path, 4, 0, *(line(sample_idx=at, head_version=h, tail_version=t) for at, (h, t) in enumerate(versions)))
    rollouts = open_run(tmp_path).read(4).rollouts
    assert [one.policy_version for one in rollouts] == [4, None, None, None, 4, None]
    assert rollouts[5].extra["head_version"] == [3, 4]


def test_many_small_files_in_order_of_their_numbers(tmp_path: Path) -> None:
    for task in (10, 2, 1):
        write(tmp_path, 10, task, line(task_id=task))
    write(tmp_path, 9, 5, line(task_id=5))
    run = open_run(tmp_path)
    assert run.steps == (9, 10)
    assert [one.group_id for one in run.read(10).rollouts] == ["1", "2", "10"]


def test_task_written_again_after_a_restart(tmp_path: Path) -> None:
    rows = [line(sample_idx=at, prompt=prompt) for prompt in ("old", "new") for at in (0, 1)]
    write(tmp_path, 2, 0, *rows)
    step = open_run(tmp_path).read(2)
    assert [one.group_id for one in step.rollouts] == ["0", "0", "0#2", "0#2"]
    assert [problem.kind for problem in step.problems] == ["repeated-task"]


def test_broken_files_do_not_hide_the_others(tmp_path: Path) -> None:
    file = write(tmp_path, 0, 0, line(reward=float("nan")), line(sample_idx=1, task_id={"a": 1}, prompt=["x"], completion=None))
    file.write_text(file.read_text("utf-8") + '{"task_id": 0', "utf-8")
    write(tmp_path, 0, 1).write_bytes(b"")
    write(tmp_path, 0, 2).write_bytes(b"\xff\xfe\x00{]\n")
    write(tmp_path, 0, 3, line(task_id=3))
    step = open_run(tmp_path).read(0)
    assert [one.reward for one in step.rollouts] == [None, 1.0, 1.0]
    assert {"torn-line", "bad-line", "missing-values"} <= {problem.kind for problem in step.problems}


def test_others_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path, 0, 0, {"input": "q", "output": "a", "score": 1.0, "step": 0})
    for place in (tmp_path, tmp_path / "rollout", tmp_path / "rollout/0", tmp_path / "rollout/0/0.jsonl"):
        assert open_areal(place, ReadOptions()) is None


def test_unknown_version() -> None:
    with pytest.raises(UsageError, match="no step 7 in this run; wanted one of 0, 1"):
        open_run(TRIAL).read(7)
