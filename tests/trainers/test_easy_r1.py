"""EasyR1's generations: its own loggers' files, steps from the metrics beside, marks inside the text, broken blocks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from credit_inspector.errors import FormatError, UsageError
from credit_inspector.trainers import ReadOptions
from credit_inspector.trainers.easy_r1 import open_easy_r1
from credit_inspector.trainers.opening import open_run
from places import FORMATS

SAMPLE = FORMATS / "easy_r1" / "checkpoints"


def block(prompt: str = "q\n", output: str = "a", truth: str | None = "4", score: object = 1.0) -> str:
    """As ``FileGenerationLogger`` writes it."""
    named = "" if truth is None else f"[ground_truth] {truth}\n"
    return f"[prompt] {prompt}\n[output] {output}\n{named}[score] {score}\n\n"


def write(folder: Path, *blocks: str, steps: Sequence[int] = ()) -> Path:
    file = folder / "generations.log"
    file.write_text("".join(blocks), "utf-8", newline="")
    lines = [{"step": step, "val": {"reward_score": 0.5}} for step in steps]
    if steps:
        (folder / "experiment_log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_sample_block_by_block() -> None:
    run = open_run(SAMPLE)
    assert (run.trainer, run.steps, run.columns) == ("easy_r1", (0, 5), ())
    assert run.notes[0].startswith("these are validation responses")
    rollouts = [one for step in run.steps for one in run.read(step).rollouts]
    assert len(rollouts) == 16
    again = "".join(block(one.prompt or "", one.response or "", one.extra["ground_truth"], one.reward) for one in rollouts)
    assert again == (SAMPLE / "generations.log").read_text("utf-8")
    groups = [one.group_id for one in run.read(5).rollouts]
    assert [groups.index(group) for group in groups] == [0] * 4 + [4] * 4
    assert rollouts[11].response == "让我想想。龘"
    assert rollouts[15].response == "<calc>9*4\n36\n36-6=30."


def test_the_file_itself_and_without_metrics(tmp_path: Path) -> None:
    assert open_run(SAMPLE / "generations.log").steps == (0, 5)
    run = open_run(Path(shutil.copy(SAMPLE / "generations.log", tmp_path / "old.txt")))
    assert run.steps == (0,)
    assert run.notes[-1] == (
        "steps are not in the file and no experiment_log.jsonl names validations: all blocks are shown as step 0"
    )


def test_blocks_that_do_not_divide_are_not_shared_out(tmp_path: Path) -> None:
    write(tmp_path, block(), block(), block(), steps=(0, 10))
    run = open_run(tmp_path)
    assert run.steps == (0,)
    assert "the 2 validations of experiment_log.jsonl do not divide 3 blocks" in run.notes[-1]
    write(tmp_path, block(score=0.25), block(score=0.5), block(score=0.75), steps=(0, 10, 20))
    run = open_run(tmp_path)
    assert [[one.reward for one in run.read(step).rollouts] for step in run.steps] == [[0.25], [0.5], [0.75]]
    with pytest.raises(UsageError, match="no step 5 in this run"):
        run.read(5)


def test_training_metrics_are_no_validations(tmp_path: Path) -> None:
    write(tmp_path, block(), block())
    rows = [{"step": 1, "actor": {"pg_loss": 1}}, {"step": 2, "val": 3}, {"step": 2, "val": {"reward_score": 1}}]
    (tmp_path / "experiment_log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert open_run(tmp_path).steps == (2,)


def test_older_releases_have_no_ground_truth(tmp_path: Path) -> None:
    write(tmp_path, block(truth=None, score=0.5), block(truth=None))
    step = open_run(tmp_path).read(0)
    assert [(one.response, one.reward, dict(one.extra)) for one in step.rollouts] == [("a", 0.5, {}), ("a", 1.0, {})]


@pytest.mark.parametrize(
    "output",
    ["x\n[score] 9.0", "x\n[output] y", "x\n[ground_truth] 4", "x\n[prompt] y", "x\n[score] 9.0\n\n[prompt] q\n[output] y"],
)
def test_a_response_cannot_write_its_own_score(tmp_path: Path, output: str) -> None:
    write(tmp_path, block(), block(output=output, score=0.0), block(score=0.5))
    step = open_run(tmp_path).read(0)
    assert [one.reward for one in step.rollouts] == [1.0, 0.5]
    assert {problem.kind for problem in step.problems} == {"bad-block"}


def test_marks_inside_a_line_are_text(tmp_path: Path) -> None:
    write(tmp_path, block(output="I print [score] 3 and [prompt] x\r\n\n[thinking] \u2028 done", truth="a\nb"))
    one = open_run(tmp_path).read(0).rollouts[0]
    assert one.response == "I print [score] 3 and [prompt] x\r\n\n[thinking] \u2028 done"
    assert (one.reward, one.extra["ground_truth"]) == (1.0, "a\nb")


def test_scores(tmp_path: Path) -> None:
    write(tmp_path, *(block(score=score) for score in ("-0.5", "1e-05", "nan", "inf", "high", "")))
    step = open_run(tmp_path).read(0)
    assert [one.reward for one in step.rollouts] == [-0.5, 1e-05, None, None, None]
    messages = [problem.message for problem in step.problems]
    assert messages == ["block 5 has no number as its score, skipped", "reward: 2 missing, 1 infinite of 5 values"]


def test_killed_while_writing(tmp_path: Path) -> None:
    file = write(tmp_path, block(), block(score=0.5))
    file.write_bytes(file.read_bytes()[:-12])
    step = open_run(tmp_path).read(0)
    assert [one.reward for one in step.rollouts] == [1.0]
    assert [problem.kind for problem in step.problems] == ["torn-block"]


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    file = write(tmp_path, block(output="AA"))
    file.write_bytes(file.read_bytes().replace(b"AA", b"\xff\xfe"))
    step = open_run(tmp_path).read(0)
    assert step.rollouts[0].response == "\ufffd\ufffd"
    assert [problem.kind for problem in step.problems] == ["invalid-utf8"]


def test_nothing_readable(tmp_path: Path) -> None:
    file = write(tmp_path, "[prompt] q and then nothing\n")
    with pytest.raises(FormatError, match="no block that can be read"):
        open_run(tmp_path)
    assert open_easy_r1(file.rename(tmp_path / "mail.txt"), ReadOptions()) is None
    write(tmp_path)
    assert open_easy_r1(tmp_path, ReadOptions()) is None


def test_checkpoints(tmp_path: Path) -> None:
    write(tmp_path, block())
    for step in (20, 5):
        (tmp_path / f"global_step_{step}/actor").mkdir(parents=True)
    assert [(at.step, at.path.name) for at in open_run(tmp_path).checkpoints] == [(5, "actor"), (20, "actor")]
