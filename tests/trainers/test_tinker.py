"""tinker-cookbook's logs: summaries without tokens, captures without rewards, both together, and message lists."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from credit_inspector.errors import FormatError, UsageError
from credit_inspector.rollout import Rollout, Step
from credit_inspector.table import TokenTable
from credit_inspector.tokens import load_tokenizer
from credit_inspector.trainers import ReadOptions, readers
from credit_inspector.trainers.opening import open_run
from formats.batch_answers import TOKENIZER, Answer, answers
from places import FORMATS, ROOT

LOG = FORMATS / "tinker/log_path"
STORE = FORMATS / "tinker/capture.sqlite"
REAL = ROOT.parent / "shared/real_files/tinker_reward_hacking"


def is_as_written(one: Rollout, answer: Answer) -> None:
    """Position by position what the sample's writer was given."""
    assert one.prompt_ids is not None
    assert one.response_ids is not None
    assert one.loss_mask is not None
    assert one.prompt_ids.tolist() == answer.prompt_ids
    assert one.response_ids.tolist() == answer.response_ids
    assert one.loss_mask.tolist() == [bool(flag) for flag in answer.mask]
    wanted = [value if flag else np.nan for value, flag in zip(answer.logprobs("rollout"), answer.mask, strict=True)]
    np.testing.assert_array_equal(one.columns["logprob/rollout"], np.array(wanted, np.float32))
    assert one.truncated == answer.is_cut


def test_summaries_and_capture_together() -> None:
    run = open_run(LOG)
    assert (run.trainer, run.steps) == ("tinker", (0, 1))
    for step in run.steps:
        found = run.read(step)
        wanted = answers(step + 1)
        assert found.problems == ()
        assert [one.sample_id for one in found.rollouts] == [f"{group}.{place}" for group in (0, 1) for place in range(4)]
        for one, answer in zip(found.rollouts, wanted, strict=True):
            is_as_written(one, answer)
            assert (one.reward, one.policy_version) == (answer.reward, step)
        assert [one.group_id for one in found.rollouts] == ["0"] * 4 + ["1"] * 4
    assert run.algorithm is not None
    assert run.algorithm.name == "tinker-cookbook/importance_sampling"
    assert any("not read, as they were not trained on: eval_countdown" in note for note in run.notes)


def test_two_turns_are_one_response() -> None:
    one = open_run(LOG).read(0).rollouts[3]
    assert one.loss_mask is not None
    assert (one.loss_mask.sum(), len(one.loss_mask), len(one.extra["calls"])) == (37, 46, 2)
    assert one.response_ids is not None
    said = load_tokenizer(TOKENIZER).decode(one.response_ids.tolist())
    assert said == "Let me see. <tool>9+4</tool>\ntool: 13\n6+13=19. <answer>6+(9+4)</answer>"


def test_store_holds_the_same_without_rewards() -> None:
    run = open_run(STORE)
    assert (run.trainer, run.steps) == ("tinker", (0, 1))
    for step in run.steps:
        found = run.read(step).rollouts
        for one, answer in zip(found, answers(step + 1), strict=True):
            is_as_written(one, answer)
            assert one.reward is None
        assert [one.group_id for one in found] == ["0"] * 4 + ["1"] * 4
    assert any("holds no rewards" in note for note in run.notes)


@pytest.mark.parametrize("place", ["capture", "capture/sample.jsonl"])
def test_capture_alone(place: str) -> None:
    run = open_run(LOG / place)
    assert (run.trainer, run.steps, len(run.read(1).rollouts)) == ("tinker", (0, 1), 8)


def test_summaries_alone(tmp_path: Path) -> None:
    shutil.copytree(LOG / "iteration_000001", tmp_path / "log/iteration_000001")
    run = open_run(tmp_path / "log")
    step = run.read(1)
    assert (run.steps, step.problems) == ((1,), ())
    assert [one.reward for one in step.rollouts] == [one.reward for one in answers(2)]
    assert [one.group_id for one in step.rollouts] == ["0"] * 4 + ["1"] * 4
    assert {one.response_ids is None and one.response is None for one in step.rollouts} == {True}
    assert [one.extra["steps"][0]["ac_len"] for one in step.rollouts] == [len(one.response_ids) for one in answers(2)]
    assert TokenTable.from_rollouts(1, step.rollouts).n_tokens == 0
    assert any("no tokens and no text" in note for note in run.notes)


@pytest.mark.parametrize("place", ["iteration_000001", "iteration_000001/train_rollout_summaries.jsonl"])
def test_one_iteration(place: str) -> None:
    run = open_run(LOG / place)
    assert (run.trainer, run.steps) == ("tinker", (1,))
    assert [one.reward for one in run.read(1).rollouts] == [one.reward for one in answers(2)]


def test_evaluation_alone_is_the_run(tmp_path: Path) -> None:
    (tmp_path / "iteration_000000").mkdir()
    shutil.copy(LOG / "iteration_000000/eval_countdown_rollout_summaries.jsonl", tmp_path / "iteration_000000")
    run = readers["tinker"](tmp_path, ReadOptions())
    assert run is not None
    assert (run.steps, len(run.read(0).rollouts)) == ((0,), 4)
    assert any("no train split" in note for note in run.notes)


# ── captures made here ──────────────────────────────────────────────────────────────────────────────────────────────


def call(prompt: list[int], *samples: list[int], made: float = 0.0, **scope: Any) -> dict[str, Any]:
    return {
        "kind": "sample",
        "scope": {"run_id": "r", "iteration": 0, **scope},
        "created_at": made,
        "prompt_tokens": prompt,
        "samples": [{"tokens": ids, "logprobs": [-0.5] * len(ids), "stop_reason": "stop"} for ids in samples],
        "status": "ok",
    }


def capture(folder: Path, *rows: Any) -> Path:
    (folder / "capture").mkdir()
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    (folder / "capture/sample.jsonl").write_text(text, "utf-8")
    return folder


def summary(folder: Path, *rows: Mapping[str, Any]) -> None:
    (folder / "iteration_000000").mkdir()
    text = "".join(json.dumps({"group_idx": 0, "final_reward": 0.0, "steps": [], **row}) + "\n" for row in rows)
    (folder / "iteration_000000/train_rollout_summaries.jsonl").write_text(text, "utf-8")


def read(folder: Path, step: int = 0) -> Step:
    return open_run(folder).read(step)


def ids(step: Step) -> list[list[int]]:
    return [one.response_ids.tolist() for one in step.rollouts if one.response_ids is not None]


def test_samples_of_one_call_are_a_group(tmp_path: Path) -> None:
    run = open_run(capture(tmp_path, call([1, 2], [5], [6, 7], iteration=None), call([3], [8], iteration=None)))
    step = run.read(0)
    assert ids(step) == [[5], [6, 7], [8]]
    groups = [one.group_id for one in step.rollouts]
    assert groups[0] == groups[1] != groups[2]
    assert {one.group_source for one in step.rollouts} == {"same prompt"}
    assert any(note.startswith("2 captured calls name no iteration") for note in run.notes)


def test_turns_are_ordered_by_when_they_were_asked(tmp_path: Path) -> None:
    second = call([1, 5, 9], [6], made=2.0, group_idx=0, traj_idx=0)
    first = call([1], [5], made=1.0, group_idx=0, traj_idx=0)
    one = read(capture(tmp_path, second, first)).rollouts[0]
    assert one.loss_mask is not None
    assert one.response_ids is not None
    assert (one.response_ids.tolist(), one.loss_mask.tolist()) == ([5, 9, 6], [True, False, True])
    np.testing.assert_array_equal(one.columns["logprob/rollout"], np.array([-0.5, np.nan, -0.5], np.float32))


def test_a_history_that_was_cut_is_a_sequence_of_its_own(tmp_path: Path) -> None:
    rows = (call(prompt, [7], made=made, group_idx=0, traj_idx=0) for made, prompt in enumerate(([1, 2], [1, 3])))
    step = read(capture(tmp_path, *rows))
    assert (ids(step), [one.sample_id for one in step.rollouts]) == ([[7], [7]], ["0.0#1", "0.0#2"])
    assert "several-sequences" in {problem.kind for problem in step.problems}


def test_a_trajectory_that_was_tried_again(tmp_path: Path) -> None:
    rows = [call([1], [ids], made=made, group_idx=0, traj_idx=0) for made, ids in enumerate((5, 6))]
    summary(tmp_path, {"traj_idx": 0, "total_reward": 1.0, "steps": [{"ob_len": 1, "ac_len": 1}]})
    step = read(capture(tmp_path, *rows))
    assert (ids(step), step.rollouts[0].reward) == ([[6]], 1.0)
    assert [problem.kind for problem in step.problems] == ["tried-again"]


def test_lengths_that_disagree_are_not_joined(tmp_path: Path) -> None:
    summary(tmp_path, {"traj_idx": 0, "total_reward": 1.0, "steps": [{"ob_len": 1, "ac_len": 3}]})
    step = read(capture(tmp_path, call([1], [5], group_idx=0, traj_idx=0)))
    assert (ids(step), [one.reward for one in step.rollouts]) == ([[5]], [None])
    assert "no-match" in {problem.kind for problem in step.problems}


def test_a_trajectory_that_was_not_captured_keeps_its_reward(tmp_path: Path) -> None:
    turn = [{"ob_len": 1, "ac_len": 1}]
    summary(tmp_path, *({"traj_idx": place, "total_reward": place, "steps": turn} for place in (0, 1)))
    step = read(capture(tmp_path, call([1], [5], group_idx=0, traj_idx=0)))
    assert [(one.sample_id, one.reward, one.group_id) for one in step.rollouts] == [("0.0", 0.0, "0"), ("0.1", 1.0, "0")]


def test_evaluation_and_former_attempts_are_left_out(tmp_path: Path) -> None:
    rows = [
        call([1], [5], run_attempt=0, group_idx=0, traj_idx=0),
        call([1], [6], run_attempt=1, group_idx=0, traj_idx=0),
        call([1], [7], split="eval/gsm8k"),
        call([1], [8], purpose="eval"),
    ]
    run = open_run(capture(tmp_path, *rows))
    assert ids(run.read(0)) == [[6]]
    assert any("the last attempt is read" in note for note in run.notes)


def test_the_last_of_several_runs_is_read(tmp_path: Path) -> None:
    run = open_run(capture(tmp_path, call([1], [5], run_id="a"), call([1], [6], run_id="b")))
    assert ids(run.read(0)) == [[6]]
    assert "the capture holds 2 runs: b is read" in run.notes


def test_broken_captures(tmp_path: Path) -> None:
    failed = {**call([1], group_idx=0), "status": "error"}
    bad = call([1], ["x"], group_idx=0, traj_idx=1)  # type: ignore[list-item]
    short = call([1], [5, 6], group_idx=0, traj_idx=2)
    short["samples"][0]["logprobs"] = [-0.5]
    words = call([1], [7], group_idx=0, traj_idx=3)
    words["samples"][0]["logprobs"] = "none"
    step = read(capture(tmp_path, call([1], [5], group_idx=0, traj_idx=0), failed, bad, short, words, '{"kind": "sam'))
    assert (ids(step), [list(one.columns) for one in step.rollouts]) == ([[5], [5, 6], [7]], [["logprob/rollout"], [], []])
    wanted = {"bad-line", "no-sample", "bad-ids", "length-mismatch", "bad-column"}
    assert wanted <= {problem.kind for problem in step.problems}
    with pytest.raises(UsageError, match="no step 4"):
        read(tmp_path, 4)


def test_nesting_that_python_does_not_walk(tmp_path: Path) -> None:
    deep: Any = "a"
    for _ in range(900):
        deep = [deep]
    chat = [{"role": "user", "content": "q"}, {"role": "assistant", "content": deep}]
    (tmp_path / "rollouts_1.json").write_text(json.dumps({"rollouts": chat, "metrics": {"reward": 1}}))
    step = read(tmp_path)
    assert (step.rollouts, [problem.kind for problem in step.problems]) == ((), ["bad-line"])


# ── the store ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_rows_in_the_log_beside_the_store_are_seen_and_nothing_is_written(tmp_path: Path) -> None:
    shutil.copy(STORE, tmp_path / "capture.sqlite")
    with closing(sqlite3.connect(tmp_path / "capture.sqlite")) as connection:
        connection.execute("UPDATE wire_rows SET iteration = 9 WHERE iteration = 1")
        connection.commit()
        place = tmp_path / "copied"
        place.mkdir()
        for name in ("capture.sqlite", "capture.sqlite-wal"):
            shutil.copy(tmp_path / name, place / name)
        before = {file.name: file.read_bytes() for file in place.iterdir()}
        assert before["capture.sqlite-wal"]
        assert open_run(place).steps == (0, 9)
        assert {file.name: file.read_bytes() for file in place.iterdir()} == before


@pytest.mark.parametrize(
    "program",
    [
        "CREATE VIEW wire_rows AS WITH RECURSIVE n(cursor) AS (SELECT 1 UNION ALL SELECT cursor + 1 FROM n) SELECT cursor FROM n",
        "CREATE TABLE other (cursor INTEGER)",
    ],
)
def test_a_store_that_is_a_program_is_not_run(tmp_path: Path, program: str) -> None:
    with closing(sqlite3.connect(tmp_path / "capture.sqlite")) as connection:
        connection.execute(program)
    assert readers["tinker"](tmp_path / "capture.sqlite", ReadOptions()) is None


def test_computed_columns_are_not_read(tmp_path: Path) -> None:
    file = tmp_path / "capture.sqlite"
    with closing(sqlite3.connect(file)) as connection:
        computed = "prompt_tokens TEXT AS (CAST(zeroblob(900000000) AS TEXT))"
        connection.execute(f"CREATE TABLE wire_rows (cursor INTEGER PRIMARY KEY, run_id TEXT, sampled_tokens TEXT, {computed})")
        connection.execute("INSERT INTO wire_rows VALUES (1, 'r', '[5]')")
        connection.commit()
    step = read(file)
    assert (step.rollouts, [problem.kind for problem in step.problems]) == ((), ["bad-ids"])


@pytest.mark.parametrize(("begin", "end"), [(3000, 5000), (9000, 9400), (12288, 13312), (15000, None)])
def test_damaged_stores(tmp_path: Path, begin: int, end: int | None) -> None:
    raw = STORE.read_bytes()
    file = tmp_path / "capture.sqlite"
    file.write_bytes(raw[:begin] if end is None else raw[:begin] + bytes(end - begin) + raw[end:])
    with pytest.raises(FormatError, match="no readable SQLite store"):
        read(file)


def test_a_database_of_something_else_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "own.db").write_bytes(b"SQLite format 3\x00 and nothing more")
    assert readers["tinker"](tmp_path / "own.db", ReadOptions()) is None


# ── message lists ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_message_lists() -> None:
    run = open_run(FORMATS / "tinker/message_lists")
    found = run.read(0).rollouts
    wanted = answers(1)[:4]
    assert [one.rewards for one in found] == [
        {"public_reward": answer.reward, "private_reward": answer.reward / 2} for answer in wanted
    ]
    assert {one.reward for one in found} == {None}
    assert {one.group_source for one in found} == {"same prompt"}
    assert len({one.group_id for one in found}) == 1
    assert [one.response for one in found][:3] == [answer.response for answer in wanted][:3]
    assert found[3].response is not None
    assert found[3].response.count('"arguments": "{\\"expression\\": \\"9+4\\"}"') == 1
    assert any("--map response=rollouts --map reward=metrics.public_reward" in note for note in run.notes)


def test_the_map_that_the_note_names_works() -> None:
    file = min((FORMATS / "tinker/message_lists").iterdir())
    run = open_run(file, ReadOptions({"response": "rollouts", "reward": "metrics.public_reward"}))
    assert run.read(0).rollouts[0].reward == 1.0


def test_a_reward_that_is_named_is_taken(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    for number, name in enumerate(("reward", "total_reward")):
        row = {"rollouts": chat, "metrics": {name: 0.5, "public_reward": 1.0}}
        (tmp_path / f"rollouts_{number}.json").write_text(json.dumps(row))
    (tmp_path / "rollouts_2.json").write_text('{"rollouts": [')
    step = read(tmp_path)
    assert [(one.reward, one.rewards) for one in step.rollouts] == [(0.5, {"public_reward": 1.0})] * 2
    assert [problem.kind for problem in step.problems] == ["bad-file"]


@pytest.mark.skipif(not REAL.is_dir(), reason="the real files are not here")
def test_real_files() -> None:
    run = open_run(REAL)
    found = run.read(0).rollouts
    raw = [json.loads(file.read_text("utf-8")) for file in sorted(REAL.iterdir())]
    assert len(found) == len(raw) == 2
    for one, whole in zip(found, raw, strict=True):
        assert one.rewards == {name: whole["metrics"][name] for name in ("public_reward", "private_reward")}
        assert one.reward is None
        assert one.extra["messages"] == whole["rollouts"]
        assert one.prompt == f"system\n{whole['rollouts'][0]['content']}\nuser\n{whole['rollouts'][1]['content']}"
        assert one.response is not None
        calls = [call["function"] for message in whole["rollouts"] for call in message.get("tool_calls") or []]
        assert calls
        assert all(json.dumps(call["arguments"], ensure_ascii=False) in one.response for call in calls)
    assert len({one.group_id for one in found}) == 2
    assert open_run(min(REAL.iterdir())).read(0).rollouts[0].sample_id == "rollouts_0208T08-48-5785979632"


def test_a_capture_with_its_coordinates_beside_the_tokens(tmp_path: Path) -> None:
    row = {"run_id": "r", "split": "train", "iteration": 4, "group_idx": 0, "prompt_tokens": [1, 2], "policy_version": 4}
    lines = [{**row, "traj_idx": i, "sampled_tokens": [5, 6 + i], "logprobs": [-0.5, -0.25]} for i in (0, 1)]
    (tmp_path / "capture").mkdir()
    (tmp_path / "capture/sample.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = open_run(tmp_path)
    assert (run.trainer, run.steps) == ("tinker", (4,))
    rollouts = run.read(4).rollouts
    assert [one.response_ids.tolist() for one in rollouts if one.response_ids is not None] == [[5, 6], [5, 7]]
    assert [one.columns["logprob/rollout"].tolist() for one in rollouts] == [[-0.5, -0.25]] * 2
    assert {one.policy_version for one in rollouts} == {4}
    assert len({one.group_id for one in rollouts}) == 1
