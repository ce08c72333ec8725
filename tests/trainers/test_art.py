"""ART's trajectories: Parquet by step and split, and the JSON lines of before."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from credit_inspector.errors import FormatError, UsageError
from credit_inspector.trainers import ReadOptions, readers
from credit_inspector.trainers.opening import open_run
from formats.batch_answers import answers
from places import FORMATS

PROJECT = FORMATS / "art/dot_art"
MODEL = PROJECT / "countdown/models/small-llama"
TRAJECTORY: dict[str, Any] = {
    "reward": 1.0,
    "metrics": {"right": 1},
    "metadata": {},
    "tools": None,
    "logs": [],
    "messages_and_choices": [
        {"role": "user", "content": "1+1?"},
        {"finish_reason": "length", "index": 0, "message": {"role": "assistant", "content": "2"}},
    ],
}


@pytest.mark.parametrize("path", [PROJECT, PROJECT / "countdown", MODEL, MODEL / "trajectories", MODEL / "trajectories/train"])
def test_sample_from_every_level(path: Path) -> None:
    run = open_run(path)
    assert (run.trainer, run.steps) == ("art", (1, 2))
    for step in run.steps:
        rollouts = run.read(step).rollouts
        wanted = answers(step)
        assert [one.reward for one in rollouts] == [one.reward for one in wanted]
        assert [one.group_id for one in rollouts] == ["0"] * 4 + ["1"] * 4
        single = [(one.response, answer.response) for one, answer in zip(rollouts, wanted, strict=True) if len(answer.parts) == 1]
        assert all(said == meant for said, meant in single)
        assert len(single) > 6
        assert all(one.prompt == f"system\nSolve the Countdown problem.\nuser\n{answer.prompt.strip()}"
                   for one, answer in zip(rollouts, wanted, strict=True))  # fmt: skip


def test_one_file_and_the_older_format() -> None:
    file = open_run(MODEL / "trajectories/train/0002.parquet")
    older = open_run(FORMATS / "art/older")
    assert (file.steps, older.steps) == ((2,), (1, 2))
    for one, other in zip(file.read(2).rollouts, older.read(2).rollouts, strict=True):
        assert (one.prompt, one.response, one.reward, one.group_id) == (
            other.prompt,
            other.response,
            other.reward,
            other.group_id,
        )
        assert one.extra["metrics"] == other.extra["metrics"]
    assert [one.truncated for one in older.read(2).rollouts] == [one.is_cut for one in answers(2)]


def test_turns_and_calls_of_tools() -> None:
    one = open_run(MODEL).read(1).rollouts[3]
    assert one.response is not None
    turns = ["assistant\nLet me see. <tool>9+4</tool>\n{", "\ntool\ntool: 13\n", "assistant\n6+13=19. <answer>"]
    assert all(part in one.response for part in turns)
    assert '"arguments": "{\\"expression\\": \\"9+4\\"}"' in one.response
    assert [message["trainable"] for message in one.extra["messages"]] == [False, False, True, False, True]
    assert json.loads(one.extra["tools"]) == [{"type": "function", "function": {"name": "calc"}}]
    assert one.extra["metadata"] == {"target": 19}
    assert one.rewards == {}


def test_validation_is_kept_apart(tmp_path: Path) -> None:
    assert any("split train is read, not val" in note for note in open_run(MODEL).notes)
    shutil.copytree(MODEL / "trajectories/val", tmp_path / "trajectories/val")
    run = open_run(tmp_path)
    assert (run.steps, len(run.read(1).rollouts)) == ((1,), 4)
    assert any("no train split" in note for note in run.notes)


def test_two_models_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(MODEL, tmp_path / "models" / name)
    with pytest.raises(FormatError, match="2 of ART's models: a, b; wanted one"):
        readers["art"](tmp_path, ReadOptions())


def test_checkpoints_beside(tmp_path: Path) -> None:
    shutil.copytree(MODEL, tmp_path / "m")
    for name in ("0000", "0002", "latest"):
        (tmp_path / "m/checkpoints" / name).mkdir(parents=True)
    assert [one.step for one in open_run(tmp_path / "m").checkpoints] == [0, 2]


def older(folder: Path, *rows: Any) -> Path:
    file = folder / "0003.jsonl"
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), "utf-8")
    return file


def test_choices_are_the_policys(tmp_path: Path) -> None:
    example = {"role": "assistant", "content": "an example that was not sampled"}
    told = {**TRAJECTORY, "messages_and_choices": [example, *TRAJECTORY["messages_and_choices"]]}
    run = open_run(older(tmp_path, {"trajectories": [told, TRAJECTORY]}))
    first, second = run.read(3).rollouts
    assert (first.response, first.truncated, first.group_id, second.group_id) == ("2", True, "0", "0")
    assert first.prompt is not None
    assert first.prompt.startswith("assistant\nan example")


def test_nothing_trainable_is_told(tmp_path: Path) -> None:
    plain = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    step = open_run(older(tmp_path, {"trajectories": [{**TRAJECTORY, "messages_and_choices": plain}]})).read(3)
    assert step.rollouts[0].response == "a"
    assert [problem.kind for problem in step.problems] == ["nothing-trained"]


def test_broken_input(tmp_path: Path) -> None:
    whole = {"trajectories": [TRAJECTORY]}
    run = open_run(older(tmp_path, whole, whole, {"trajectories": 5}, '{"traj'))
    step = run.read(3)
    assert (len(step.rollouts), [problem.kind for problem in step.problems]) == (2, ["bad-line", "bad-line"])
    with pytest.raises(UsageError, match="no step 4"):
        run.read(4)


def test_a_torn_file_does_not_hide_the_others(tmp_path: Path) -> None:
    shutil.copytree(MODEL / "trajectories/train", tmp_path / "train")
    raw = (tmp_path / "train/0001.parquet").read_bytes()
    (tmp_path / "train/0001.parquet").write_bytes(raw[: len(raw) // 2])
    run = open_run(tmp_path / "train")
    assert len(run.read(2).rollouts) == 8
    with pytest.raises(FormatError):
        run.read(1)


def test_other_parquet_is_not_its_own(tmp_path: Path) -> None:
    columns = {"group_index": [0], "reward": [1.0], "messages": ["text"], "metrics": ["{}"], "metadata": ["{}"]}
    pq.write_table(pa.table(columns), tmp_path / "0001.parquet")
    assert readers["art"](tmp_path, ReadOptions()) is None
    assert readers["art"](tmp_path / "0001.parquet", ReadOptions()) is None
