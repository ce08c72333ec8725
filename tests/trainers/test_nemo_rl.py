"""NeMo-RL's log folder and its message logs."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from credit_inspector.errors import CreditInspectorError, FormatError, UsageError
from credit_inspector.rollout import Problem, Rollout
from credit_inspector.table import TokenTable
from credit_inspector.trainers.opening import open_run
from places import ROOT

SAMPLE = ROOT / "sample_runs/formats/nemo_rl"
LOGS = SAMPLE / "logs"
TOKENIZER = Tokenizer.from_file(str(ROOT / "sample_runs/countdown/tokenizer/tokenizer.json"))
MESSAGE_LOG = ROOT.parent / "shared/real_files/nemo_rl_nemo_gym_message_log_tokens.json"
NAN = float("nan")


def row(**fields: Any) -> dict[str, Any]:
    """Two prompt tokens, a model turn, a tool token, a model turn, two places of padding."""
    found = {
        "content": [["ask", "call", "said", "done"]],
        "rewards": [1.0],
        "input_lengths": [7],
        "token_ids": [[7, 8, 11, 12, 90, 13, 1, 0, 0]],
        "token_loss_mask": [[0, 0, 1, 1, 0, 1, 1, 0, 0]],
        "sample_loss_mask": [1.0],
        "advantages": [[-1.25] * 9],
        "generation_logprobs": [[0, 0, -0.5, -0.25, 0.0, -1.0, 0.0, 0, 0]],
        "prev_logprobs": [[0, -3.0, -0.5, -0.75, -4.0, -1.0, -0.125, 0, 0]],
        "idx": 0,
        **fields,
    }
    return {key: value for key, value in found.items() if value is not None}


def write(folder: Path, *rows: dict[str, Any], name: str = "train_data_step1.jsonl") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(json.dumps(one) + "\n" for one in rows))
    return folder


def only(folder: Path) -> Rollout:
    (found,) = open_run(folder).read(1).rollouts
    return found


def test_sample_steps_groups_rewards() -> None:
    for path in (LOGS, LOGS / "exp_001"):
        run = open_run(path)
        assert (run.trainer, run.steps) == ("nemo_rl", (1, 2))
        assert run.columns == ("advantage", "logprob/rollout", "logprob/old")
    rewards = {1: [1, 1, 0, 0, 1, 0, 0, 1], 2: [0, 1, 0, 1, 1, 1, 1, 1]}
    for number, expected in rewards.items():
        step = run.read(number)
        assert [one.reward for one in step.rollouts] == expected
        groups = [one.group_id for one in step.rollouts]
        assert groups == [groups[0]] * 4 + [groups[4]] * 4
        assert groups[0] != groups[4]
        assert {one.group_source for one in step.rollouts} == {"same prompt"}
    one_file = open_run(LOGS / "exp_001/train_data_step2.jsonl")
    assert one_file.steps == (2,)
    assert [one.sample_id for one in one_file.read(2).rollouts] == list("01234567")


def test_sample_text_is_what_the_ids_say() -> None:
    run = open_run(LOGS)
    for number in run.steps:
        for one in run.read(number).rollouts:
            assert one.prompt_ids is not None
            assert one.response_ids is not None
            assert TOKENIZER.decode(one.prompt_ids.tolist()) == one.prompt
            assert TOKENIZER.decode(one.response_ids.tolist(), skip_special_tokens=True) == one.response
    chinese = run.read(2).rollouts[0]
    assert chinese.response == "答案是 4*8-3*4。Environment: incorrect"
    assert chinese.extra["content"] == ["Use 4, 8, 3: make 20\n", "答案是 4*8-3*4。", "Environment: incorrect"]


def test_sample_tokens_place_by_place() -> None:
    """Against the file itself, cut by hand: the row that calls a tool."""
    raw = json.loads((LOGS / "exp_001/train_data_step1.jsonl").read_text().splitlines()[4])
    one = open_run(LOGS).read(1).rollouts[4]
    mask = np.array(raw["token_loss_mask"][0])
    begin, end = int(mask.argmax()), raw["input_lengths"][0]
    spans = np.flatnonzero(np.diff(np.concatenate([[0], mask, [0]])) == 1)
    assert len(spans) == 2
    assert end < len(mask)
    assert one.prompt_ids is not None
    assert one.response_ids is not None
    assert one.loss_mask is not None
    assert one.prompt_ids.tolist() == raw["token_ids"][0][:begin]
    assert one.response_ids.tolist() == raw["token_ids"][0][begin:end]
    assert one.loss_mask.tolist() == (mask[begin:end] == 1).tolist()
    trained = mask[begin:end] == 1
    for name, key in (("logprob/rollout", "generation_logprobs"), ("advantage", "advantages")):
        expected = np.where(trained, np.float32(raw[key][0][begin:end]), np.nan)
        np.testing.assert_array_equal(one.columns[name], expected)
    np.testing.assert_array_equal(one.columns["logprob/old"], np.float32(raw["prev_logprobs"][0][begin:end]))


def test_sample_masked_row_is_kept_and_not_trained() -> None:
    step = open_run(LOGS).read(1)
    cut_off = step.rollouts[3]
    assert cut_off.loss_mask is not None
    assert len(cut_off.loss_mask) == 15
    assert not cut_off.loss_mask.any()
    assert cut_off.group_id == step.rollouts[0].group_id
    assert cut_off.reward == 0.0
    said = "1 of 8 rows have sample_loss_mask 0: kept, and no token of theirs was trained"
    assert step.problems == (Problem("untrained-rows", said),)


def test_sample_dynamic_sampling() -> None:
    run = open_run(SAMPLE / "dynamic_sampling")
    step = run.read(3)
    assert [one.reward for one in step.rollouts] == [1.0, 1.0, 0.0, 0.0]
    assert [one.extra["rewards"] for one in step.rollouts] == [0.0] * 4
    assert run.columns == ("advantage", "logprob/rollout")
    assert all(set(one.columns) == {"advantage", "logprob/rollout"} for one in step.rollouts)
    assert any("filtered_rewards" in note for note in run.notes)
    assert any("force_on_policy_ratio" in note for note in run.notes)
    assert [problem.kind for problem in step.problems] == ["skipped-logprobs"]


def test_sample_validation_stays_apart() -> None:
    assert any("1 val_data_step file lies beside" in note for note in open_run(LOGS).notes)
    run = open_run(LOGS / "exp_001/val_data_step0.jsonl")
    assert run.steps == (0,)
    assert any("validation" in note for note in run.notes)
    first, second = run.read(0).rollouts
    assert (first.prompt, first.reward, second.reward) == ("Use 4, 8, 3: make 20\n", 0.0, 1.0)
    assert second.response == "assistant\n8+4*3\nenvironment\nEnvironment: correct"
    assert first.group_id == second.group_id


def test_what_is_filled_in_is_missing(tmp_path: Path) -> None:
    one = only(write(tmp_path, row()))
    assert one.prompt_ids is not None
    assert one.response_ids is not None
    assert one.loss_mask is not None
    assert one.prompt_ids.tolist() == [7, 8]
    assert one.response_ids.tolist() == [11, 12, 90, 13, 1]
    assert one.loss_mask.tolist() == [True, True, False, True, True]
    np.testing.assert_array_equal(one.columns["advantage"], [-1.25, -1.25, NAN, -1.25, -1.25])
    np.testing.assert_array_equal(one.columns["logprob/rollout"], [-0.5, -0.25, NAN, -1.0, 0.0])  # the last is no fill
    np.testing.assert_array_equal(one.columns["logprob/old"], [-0.5, -0.75, -4.0, -1.0, -0.125])
    assert (one.prompt, one.response) == ("ask", "callsaiddone")


def test_rows_with_skipped_log_probs_among_others(tmp_path: Path) -> None:
    step = open_run(write(tmp_path, row(), row(idx=1, prev_logprobs=[[0.0] * 9]))).read(1)
    assert ["logprob/old" in one.columns for one in step.rollouts] == [True, False]
    said = "prev_logprobs are all 0 in 1 of 2 rows: not computed, left out"
    assert step.problems == (Problem("skipped-logprobs", said),)


def test_the_first_token_of_a_sequence_has_no_log_prob(tmp_path: Path) -> None:
    fields = {"token_loss_mask": [[1] * 7 + [0, 0]], "content": None}
    one = only(write(tmp_path, row(**fields)))
    assert one.prompt_ids is not None
    assert len(one.prompt_ids) == 0
    np.testing.assert_array_equal(one.columns["logprob/old"], [NAN, -3.0, -0.5, -0.75, -4.0, -1.0, -0.125])


def test_sample_id_names_the_group(tmp_path: Path) -> None:
    names = ["p_g0", "p_g1", "q_g0", "odd"]
    rows = [row(idx=k, sample_id=[name]) for k, name in enumerate(names)]
    run = open_run(write(tmp_path, *rows))
    found = run.read(1).rollouts
    assert [one.sample_id for one in found] == names
    assert [one.group_id for one in found[:3]] == ["p", "p", "q"]
    assert [one.group_source for one in found] == ["given", "given", "given", "same prompt"]
    assert any("sample_id" in note for note in run.notes)


def test_a_sample_without_a_model_token_joins_its_prompt(tmp_path: Path) -> None:
    silent = row(idx=1, token_ids=[[7, 8, 90, 91]], token_loss_mask=[[0] * 4], input_lengths=[4], rewards=[0.0])
    silent |= {key: [[0.0] * 4] for key in ("advantages", "generation_logprobs")} | {"prev_logprobs": [[0, -1.0, -1.0, -1.0]]}
    first, second = open_run(write(tmp_path, row(), silent)).read(1).rollouts
    assert second.group_id == first.group_id
    assert second.response_ids is not None
    assert second.loss_mask is not None
    assert second.response_ids.tolist() == [90, 91]
    assert second.loss_mask.tolist() == [False, False]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (["be brief", "ask", "call", "said", "done"], ("be briefask", "callsaiddone")),
        (["ask", "call", "said", "done", ""], ("ask", "callsaiddone")),
        (["ask", "call", "said", "done", "more", "and", "more"], (None, None)),
        (["call", "done"], (None, None)),
        (["", "", "", ""], (None, None)),
        ([], (None, None)),
    ],
)
def test_text_is_given_where_messages_fit_the_spans(
    tmp_path: Path, content: list[str], expected: tuple[str | None, str | None]
) -> None:
    one = only(write(tmp_path, row(content=[content])))
    assert (one.prompt, one.response) == expected


def test_distillation_logs_text_only(tmp_path: Path) -> None:
    run = open_run(write(tmp_path, {"content": [["ask", "answer"]], "input_lengths": [9], "idx": 0}))
    step = run.read(1)
    (one,) = step.rollouts
    assert (one.prompt, one.response, one.response_ids, one.reward) == ("ask", "answer", None, None)
    assert step.problems == ()
    assert "no rewards are in these files" in run.notes


def test_several_experiments_are_named_not_chosen(tmp_path: Path) -> None:
    write(tmp_path / "exp_002", row())
    (tmp_path / "exp_001").mkdir()
    assert open_run(tmp_path).steps == (1,)
    write(tmp_path / "exp_003", row())
    with pytest.raises(FormatError, match=r"2 runs: nemo_rl at .*exp_002 and nemo_rl at .*exp_003"):
        open_run(tmp_path)


def test_checkpoints_beside_the_logs(tmp_path: Path) -> None:
    write(tmp_path / "exp_001", row())
    for name in ("step_2", "step_10"):
        (tmp_path / "results" / name / "policy/weights").mkdir(parents=True)
    (tmp_path / "results/step_x/policy").mkdir(parents=True)
    tokenizer = tmp_path / "results/step_10/policy/tokenizer"
    shutil.copytree(ROOT / "sample_runs/countdown/tokenizer", tokenizer)
    for path in (tmp_path, tmp_path / "exp_001"):
        run = open_run(path)
        assert [(one.step, one.path.name) for one in run.checkpoints] == [(2, "step_2"), (10, "step_10")]
        assert run.tokenizer == tokenizer


def test_a_file_of_another_name_needs_the_marks(tmp_path: Path) -> None:
    assert open_run(write(tmp_path, row(), name="mine.jsonl") / "mine.jsonl").trainer == "nemo_rl"
    other = write(tmp_path, row(sample_loss_mask=None), name="other.jsonl") / "other.jsonl"
    assert open_run(other).trainer == "mapped"


@pytest.mark.skipif(not MESSAGE_LOG.is_file(), reason="the real files are not here")
def test_real_message_log() -> None:
    run = open_run(MESSAGE_LOG)
    assert (run.trainer, run.steps, run.columns) == ("nemo_rl", (0,), ())
    step = run.read(0)
    assert [None if one.prompt_ids is None else len(one.prompt_ids) for one in step.rollouts] == [3080, 3048]
    assert [None if one.response_ids is None else len(one.response_ids) for one in step.rollouts] == [0, 0]
    assert len({one.group_id for one in step.rollouts}) == 2
    assert [one.reward for one in step.rollouts] == [None, None]
    assert [one.extra["expected_synonyms"] for one in step.rollouts] == [["Blazing", "Warm"]] * 2
    assert step.problems == ()
    assert TokenTable.from_rollouts(0, step.rollouts).columns == {}


def test_message_log_with_turns(tmp_path: Path) -> None:
    log = [
        {"role": "user", "content": "ask", "token_ids": [7, 8]},
        {"role": "assistant", "content": "old", "token_ids": [9]},
        {"role": "user", "content": "again", "token_ids": [10]},
        {"role": "assistant", "content": "call", "token_ids": [11, 12], "generation_logprobs": [-0.5, -0.25]},
        {"role": "user", "content": "said", "token_ids": [90]},
        {"role": "assistant", "content": "done", "token_ids": [13], "generation_logprobs": []},
    ]
    file = tmp_path / "log.json"
    file.write_text(json.dumps([{"message_log": log, "full_result": {"reward": 0.5}, "id": 3}, {"message_log": log[:2]}, {}]))
    step = open_run(file).read(0)
    one, early = step.rollouts
    assert one.prompt_ids is not None
    assert one.response_ids is not None
    assert one.loss_mask is not None
    assert one.prompt_ids.tolist() == [7, 8, 9, 10]
    assert one.response_ids.tolist() == [11, 12, 90, 13]
    assert one.loss_mask.tolist() == [True, True, False, True]
    np.testing.assert_array_equal(one.columns["logprob/rollout"], [-0.5, -0.25, NAN, NAN])
    assert (one.reward, one.extra["id"]) == (0.5, 3)
    assert early.response_ids is not None
    assert early.response_ids.tolist() == []
    messages = [problem.message for problem in step.problems]
    assert "1 token, 0 log-probs" in messages
    assert "element 3 holds no message log, skipped" in messages


def test_broken_rows(tmp_path: Path) -> None:
    rows = [
        row(),
        row(idx=1, token_ids=[["a"]]),
        row(idx=2, token_loss_mask=[[0, 1]]),
        row(idx=3, prev_logprobs=[[1.0]], rewards=[None], input_lengths=["long"]),
        row(idx=4, advantages=[[None] * 9], rewards=["0.5"], sample_loss_mask=[None]),
        {"idx": 5},
    ]
    write(tmp_path, *rows)
    file = tmp_path / "train_data_step1.jsonl"
    file.write_text(file.read_text() + '{"content": [["torn')
    step = open_run(tmp_path).read(1)
    assert [one.reward for one in step.rollouts] == [1.0, 1.0, 1.0, None, 0.5, None]
    unfit = step.rollouts[2]
    assert unfit.loss_mask is not None
    assert not unfit.loss_mask.any()
    kinds = {problem.kind for problem in step.problems}
    assert kinds >= {"bad-ids", "length-mismatch", "missing-values", "torn-line"}
    assert "9 tokens, 1 log-prob" in {problem.message for problem in step.problems}


def test_nothing_readable_is_an_error(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(FormatError, match="1 NeMo-RL files, none of which has a row"):
        open_run(tmp_path)
    write(tmp_path, {"a": 1})
    with pytest.raises(FormatError):
        open_run(tmp_path)
    with pytest.raises(UsageError, match="no step 9"):
        open_run(LOGS).read(9)


def test_mutated_files_give_rows_or_one_error(tmp_path: Path) -> None:
    raw = (LOGS / "exp_001/train_data_step1.jsonl").read_bytes()
    chance = random.Random(0)
    file = tmp_path / "train_data_step1.jsonl"
    opened = 0
    for _ in range(150):
        data = bytearray(raw)
        for _ in range(chance.randint(1, 30)):
            place = chance.randrange(len(data))
            data[place : place + chance.randint(0, 3)] = chance.choice(
                [b"", b"[", b"]", b"null", b'"', b"-1", b"1e999", b"{}", b"\xff"]
            )
        file.write_bytes(bytes(data[: chance.choice([len(data), chance.randrange(len(data))])]))
        try:
            step = open_run(tmp_path).read(1)
        except CreditInspectorError:
            continue
        TokenTable.from_rollouts(1, step.rollouts)
        opened += 1
    assert opened > 20
