"""TRL's completion files, as TRL 1.16.0 writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from credit_inspector.errors import FormatError, UsageError
from credit_inspector.rollout import Problem
from credit_inspector.trainers.opening import open_run

REAL = Path(__file__).parents[2].parent / "shared/real_files/trl_1.16.0"
NAN = float("nan")


def write(folder: Path, step: int, **columns: list[Any]) -> Path:
    count = len(columns.get("prompt", ["q"] * 4))
    given = {
        "prompt": ["q"] * count,
        "completion": [f"answer {i}" for i in range(count)],
        "right": [1.0, 0.0] * (count // 2),
        "short": [NAN] * count,
        "solution": ["007"] * count,
        "advantage": [0.5, -0.5] * (count // 2),
    }
    file = folder / "completions" / f"completions_{step:05d}.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"step": [step] * count, **given, **columns}), file)
    return file


def test_rows_rewards_and_groups(tmp_path: Path) -> None:
    write(tmp_path, 3, prompt=["p", "p", "q", "q"], short=[0.25, NAN, NAN, 0.5])
    run = open_run(tmp_path)
    assert (run.trainer, run.steps) == ("trl", (3,))
    step = run.read(3)
    assert [one.reward for one in step.rollouts] == [1.25, 0.0, 1.0, 0.5]
    assert step.rollouts[1].rewards == {"right": 0.0, "short": None}
    assert [one.advantage for one in step.rollouts] == [0.5, -0.5, 0.5, -0.5]
    assert step.rollouts[0].extra == {"solution": "007"}
    assert step.rollouts[0].response_ids is None
    groups = [one.group_id for one in step.rollouts]
    assert groups[0] == groups[1] != groups[2] == groups[3]
    assert {one.group_source for one in step.rollouts} == {"contiguous"}
    assert step.problems == (Problem("missing-values", "short: 2 missing of 4 values"),)
    assert "plain sum of right, short" in run.notes[0]
    assert len(run.notes) == 1


def test_no_reward_from_any_function_is_missing_and_not_zero(tmp_path: Path) -> None:
    write(tmp_path, 1, right=[NAN, 1.0, NAN, 0.0])
    rewards = [one.reward for one in open_run(tmp_path).read(1).rollouts]
    assert rewards == [None, 1.0, None, 0.0]


def test_files_that_repeat_are_read_once(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        write(tmp_path, step)
    write(tmp_path, 4, completion=["other 0", "answer 1", "answer 2", "answer 3"])
    run = open_run(tmp_path)
    assert run.steps == (1, 4)
    assert any("steps 2, 3 trained on the responses of the step before" in note for note in run.notes)
    with pytest.raises(UsageError, match="no step 2"):
        run.read(2)


def test_metrics_tell_rewards_from_other_numbers(tmp_path: Path) -> None:
    write(tmp_path, 1, length=[10.0, 20.0, 30.0, 40.0])
    assert "length" in open_run(tmp_path).read(1).rollouts[0].rewards
    checkpoint = tmp_path / "checkpoint-10"
    checkpoint.mkdir()
    (tmp_path / "checkpoint-2").mkdir()
    (checkpoint / "tokenizer.json").write_text("{}")
    history = [{"rewards/right/mean": 0.5, "rewards/short/mean": 0.0, "step": 1}]
    (checkpoint / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    run = open_run(tmp_path)
    one = run.read(1).rollouts[0]
    assert set(one.rewards) == {"right", "short"}
    assert one.extra["length"] == 10.0
    assert [at.step for at in run.checkpoints] == [2, 10]
    assert run.tokenizer == checkpoint


def test_chat_columns(tmp_path: Path) -> None:
    prompt = [[{"role": "user", "content": "hi"}]] * 4
    completion = [[{"role": "assistant", "content": f"answer {i}"}] for i in range(4)]
    write(tmp_path, 1, prompt=prompt, completion=completion)
    step = open_run(tmp_path / "completions").read(1)
    assert (step.rollouts[2].prompt, step.rollouts[2].response) == ("hi", "answer 2")
    assert step.rollouts[2].extra["prompt"] == prompt[0]
    assert len({one.group_id for one in step.rollouts}) == 1


def test_a_longer_block_of_one_prompt_holds_several_groups(tmp_path: Path) -> None:
    write(tmp_path, 1, prompt=["p"] * 2 + ["q"] * 4 + ["p"] * 2)
    groups = [one.group_id or "" for one in open_run(tmp_path).read(1).rollouts]
    assert [groups.index(group) for group in groups] == [0, 0, 2, 2, 4, 4, 6, 6]


def test_interleaved_rows_are_grouped_by_prompt_a02(tmp_path: Path) -> None:
    write(tmp_path, 1, prompt=["p", "q", "p", "q"], right=[1.0, 0.0, 1.0, 0.0])
    step = open_run(tmp_path).read(1)
    groups = [one.group_id or "" for one in step.rollouts]
    assert [groups.index(group) for group in groups] == [0, 1, 0, 1]
    assert {one.group_source for one in step.rollouts} == {"same prompt"}


def test_broken_files_do_not_hide_the_others(tmp_path: Path) -> None:
    write(tmp_path, 2)
    (tmp_path / "completions/completions_00001.parquet").write_bytes(b"PAR1 half")
    run = open_run(tmp_path)
    assert run.steps == (1, 2)
    with pytest.raises(FormatError, match="completions_00001"):
        run.read(1)
    (tmp_path / "completions/completions_00002.parquet").write_bytes(b"")
    with pytest.raises(FormatError, match="none of which"):
        open_run(tmp_path)


def test_files_put_together_have_their_steps_in_the_column(tmp_path: Path) -> None:
    tables = [pq.read_table(write(tmp_path, step, completion=[f"{step}"] * 4)) for step in (1, 2)]
    file = tmp_path / "all.parquet"
    pq.write_table(pa.concat_tables(tables), file)
    run = open_run(file)
    assert run.steps == (1, 2)
    assert [one.response for one in run.read(2).rollouts] == ["2"] * 4


@pytest.mark.skipif(not REAL.is_dir(), reason="the real files are not here")
@pytest.mark.parametrize("kind", ["plain", "conversational"])
def test_real_files(kind: str) -> None:
    run = open_run(REAL / f"trl_1.16.0_{kind}_completions_00001.parquet")
    step = run.read(run.steps[0])
    assert (run.trainer, len(step.rollouts)) == ("trl", 16)
    groups = [one.group_id for one in step.rollouts]
    assert [groups.count(group) for group in dict.fromkeys(groups)] == [4, 4, 4, 4]
    assert Problem("missing-values", "sometimes: 12 missing of 16 values") in step.problems
    assert step.rollouts[0].prompt == "What is 5 plus 7?"
    group = [one for one in step.rollouts if one.group_id == groups[0]]
    mean = sum(one.reward or 0.0 for one in group) / 4
    spread = (sum(((one.reward or 0.0) - mean) ** 2 for one in group) / 3) ** 0.5
    for one in group:
        assert one.reward is not None
        assert one.advantage == pytest.approx((one.reward - mean) / (spread + 1e-4), rel=1e-4)
