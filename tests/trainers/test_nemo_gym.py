"""NeMo Gym's rollout files."""

from __future__ import annotations

import json
import random
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

SAMPLE = ROOT / "sample_runs/formats/nemo_gym"
TOKENIZER = Tokenizer.from_file(str(ROOT / "sample_runs/countdown/tokenizer/tokenizer.json"))
REAL = ROOT.parent / "shared/real_files"
NAN = float("nan")
real = pytest.mark.skipif(not REAL.is_dir(), reason="the real files are not here")


def call(prompt: Any, generated: Any, logprobs: Any, **fields: Any) -> dict[str, Any]:
    tokens = {"prompt_token_ids": prompt, "generation_token_ids": generated, "generation_log_probs": logprobs}
    content = [{"type": "output_text", "text": "said"}]
    return {"type": "message", "role": "assistant", "content": content, **tokens, **fields}


def row(*output: Any, **fields: Any) -> dict[str, Any]:
    response = {"output": list(output), "status": None, "incomplete_details": None}
    found = {"responses_create_params": {"input": "ask"}, "response": response, "reward": 1.0, "_ng_task_index": 0}
    return {**found, "_ng_rollout_index": 0, **fields}


def write(folder: Path, *rows: dict[str, Any], name: str = "rollouts.jsonl") -> Path:
    file = folder / name
    file.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return file


def only(file: Path) -> tuple[Rollout, tuple[Problem, ...]]:
    step = open_run(file).read(0)
    (found,) = step.rollouts
    return found, step.problems


def test_sample_groups_and_rewards() -> None:
    run = open_run(SAMPLE / "rollouts.jsonl")
    assert (run.trainer, run.steps, run.columns) == ("nemo_gym", (0,), ("logprob/rollout",))
    step = run.read(0)
    assert [one.sample_id for one in step.rollouts] == ["0-1", "0-0", "1-0", "0-3", "1-2", "0-2", "1-1", "1-3"]
    assert [one.group_id for one in step.rollouts] == ["0", "0", "1", "0", "1", "0", "1", "1"]
    assert {one.group_source for one in step.rollouts} == {"given"}
    assert [one.reward for one in step.rollouts] == [1.0, 1.0, -1.0, 0.0, 1.0, 0.0, 1.0, -1.0]
    assert step.problems == ()


def test_sample_tokens_are_the_text_of_model_and_tool() -> None:
    rollouts = {one.sample_id: one for one in open_run(SAMPLE / "rollouts.jsonl").read(0).rollouts}
    expected = {
        "0-1": ["3*5+7"],
        "0-3": ["答案是 3+5*7。"],
        "0-0": ["3*5", "15\n", "15+7"],
        "1-2": ["6*2", "12\n", "12+9", "21\n", "6*2+9"],
    }
    for name, texts in expected.items():
        one = rollouts[name]
        assert one.prompt_ids is not None
        assert one.response_ids is not None
        assert one.loss_mask is not None
        assert TOKENIZER.decode(one.prompt_ids.tolist()) == one.prompt
        ends = np.flatnonzero(np.diff(one.loss_mask.astype(int))) + 1
        parts = [TOKENIZER.decode(part.tolist()) for part in np.split(one.response_ids, ends)]
        assert parts == texts
        assert one.loss_mask[0]
        np.testing.assert_array_equal(np.isnan(one.columns["logprob/rollout"]), ~one.loss_mask)


def test_sample_log_probs_place_by_place() -> None:
    raw = json.loads((SAMPLE / "rollouts.jsonl").read_text().splitlines()[1])["response"]["output"]
    one = open_run(SAMPLE / "rollouts.jsonl").read(0).rollouts[1]
    between = [NAN] * (len(raw[2]["prompt_token_ids"]) - len(raw[0]["prompt_token_ids"]) - len(raw[0]["generation_token_ids"]))
    expected = [*raw[0]["generation_log_probs"], *between, *raw[2]["generation_log_probs"]]
    np.testing.assert_array_equal(one.columns["logprob/rollout"], np.float32(expected))
    assert len(between) == 3
    said = 'function_call\n{"name": "calculate", "arguments": "3*5"}\nfunction_call_output\n15\n\nassistant\n15+7'
    assert one.response == said
    assert [item["type"] for item in one.extra["response"]["output"]] == ["function_call", "function_call_output", "message"]
    assert "generation_token_ids" not in one.extra["response"]["output"][0]


def test_sample_several_steps_as_text() -> None:
    run = open_run(SAMPLE / "evaluations")
    assert (run.trainer, run.steps, run.columns) == ("nemo_gym", (10, 20), ())
    step = run.read(20)
    assert [one.reward for one in step.rollouts] == [0, 2, 0, 1, 1, 1, 0, 2]
    assert [one.group_id for one in step.rollouts] == ["0"] * 4 + ["1"] * 4
    assert step.rollouts[1].rewards == {"correct": 1.0, "format": 1.0}
    assert step.rollouts[2].response == "好 3*5+7"
    assert step.problems == ()
    assert any("_failures" in note for note in run.notes)
    assert open_run(SAMPLE / "evaluations/step_10.jsonl").steps == (10,)


def test_calls_are_joined(tmp_path: Path) -> None:
    output = [call([7, 8], [11, 12], [-0.5, 0.0]), {"type": "function_call_output", "output": "x"}]
    output += [call([7, 8, 11, 12, 90, 91], [13], [-1.0]), call([7, 8, 11, 12, 90, 91, 13], [14], [-2.0])]
    one, problems = only(write(tmp_path, row(*output)))
    assert one.prompt_ids is not None
    assert one.response_ids is not None
    assert one.loss_mask is not None
    assert one.prompt_ids.tolist() == [7, 8]
    assert one.response_ids.tolist() == [11, 12, 90, 91, 13, 14]
    assert one.loss_mask.tolist() == [True, True, False, False, True, True]
    np.testing.assert_array_equal(one.columns["logprob/rollout"], [-0.5, 0.0, NAN, NAN, -1.0, -2.0])
    assert problems == ()


def test_rewritten_history_falls_into_branches(tmp_path: Path) -> None:
    """The second call's prompt left the first call's thinking out; the third continues the second."""
    output = [
        call([7], [11, 12], [-1.0, -1.0]),
        call([7, 12, 90], [13], [-2.0]),
        call([7, 12, 90, 13, 91], [14, 15], [-3.0, -3.0]),
    ]
    one, problems = only(write(tmp_path, row(*output)))
    assert one.prompt_ids is not None
    assert one.response_ids is not None
    assert one.prompt_ids.tolist() == [7, 12, 90]
    assert one.response_ids.tolist() == [13, 91, 14, 15]
    said = (
        "later prompts do not continue the tokens before them: 2 branches, the longest is read, 2 generated tokens are left out"
    )
    assert problems == (Problem("branches", said, "0-0"),)


@pytest.mark.parametrize(
    ("logprobs", "expected", "kinds"),
    [
        ([[], []], None, []),
        ([None, [-2.0]], [NAN, NAN, -2.0], ["missing-values"]),
        ([[-1.0], [-2.0]], [NAN, NAN, -2.0], ["length-mismatch", "missing-values"]),
        ([["x", "y"], [-2.0]], [NAN, NAN, -2.0], ["bad-column", "missing-values"]),
        ([[-1.0, None], [-2.0]], [-1.0, NAN, -2.0], ["missing-values"]),
    ],
)
def test_log_probs_that_are_not_there(
    tmp_path: Path, logprobs: list[Any], expected: list[float] | None, kinds: list[str]
) -> None:
    output = [call([7], [11, 12], logprobs[0]), call([7, 11, 12], [13], logprobs[1])]
    one, problems = only(write(tmp_path, row(*output)))
    assert one.response_ids is not None
    assert one.response_ids.tolist() == [11, 12, 13]
    assert [problem.kind for problem in problems] == kinds
    if expected is None:
        assert dict(one.columns) == {}
    else:
        np.testing.assert_array_equal(one.columns["logprob/rollout"], expected)


def test_empty_generations_are_no_calls(tmp_path: Path) -> None:
    one, problems = only(write(tmp_path, row(call([7], [], []), call([7, 90], [13], [-1.0]))))
    assert one.prompt_ids is not None
    assert one.prompt_ids.tolist() == [7, 90]
    assert problems == ()
    nothing, _ = only(write(tmp_path, row(call([7], [], []))))
    assert (nothing.response_ids, nothing.response) == (None, "said")


def test_bad_ids_leave_the_text(tmp_path: Path) -> None:
    one, problems = only(write(tmp_path, row(call([7], ["a"], [-1.0]))))
    assert (one.response_ids, one.response) == (None, "said")
    assert [problem.kind for problem in problems] == ["bad-ids"]
    assert one.extra["response"]["output"][0]["generation_token_ids"] == ["a"]


def test_reasoning_and_instructions(tmp_path: Path) -> None:
    output = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "reasoning", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    ]
    asked = {"input": [{"role": "user", "content": "ask"}], "instructions": "be brief"}
    one, _ = only(write(tmp_path, row(*output, responses_create_params=asked)))
    assert one.response == "reasoning\nhm\nassistant\nno"
    assert one.prompt == "system\nbe brief\nuser\nask"


def test_groups_without_an_index_are_equal_prompts(tmp_path: Path) -> None:
    rows = [row(call([7], [1], [0]), _ng_task_index=None), row(call([8], [1], [0]), _ng_task_index=None)]
    run = open_run(write(tmp_path, *rows, rows[0]))
    groups = [one.group_id for one in run.read(0).rollouts]
    assert groups[0] == groups[2] != groups[1]
    assert {one.group_source for one in run.read(0).rollouts} == {"same prompt"}


def test_why_a_response_ended(tmp_path: Path) -> None:
    cut = row({"type": "message", "content": "a"})
    cut["response"]["incomplete_details"] = {"reason": "max_output_tokens"}
    ended = row({"type": "message", "content": "a"}, truncated=True)
    ended["response"]["status"] = "completed"
    rows = [cut, ended, row(truncated=True), row()]
    found = open_run(write(tmp_path, *rows)).read(0).rollouts
    assert [one.truncated for one in found] == [True, False, True, None]
    assert found[1].extra["truncated"] is True


def test_an_environments_own_keys_stay(tmp_path: Path) -> None:
    """They may be called as ours are."""
    fields = {"prompt": 5, "step": 3, "loss_mask": [1], "group_id": "theirs", "advantage": "x"}
    one, problems = only(write(tmp_path, row({"type": "message", "content": "a"}, **fields)))
    assert {key: one.extra[key] for key in fields} == fields
    assert (one.prompt, one.group_id, one.loss_mask, problems) == ("ask", "0", None, ())


def test_several_files_need_their_step(tmp_path: Path) -> None:
    message = {"type": "message", "content": "a"}
    write(tmp_path, row(message), name="a.jsonl")
    write(tmp_path, row(message), name="a_materialized_inputs.jsonl")
    assert open_run(tmp_path).steps == (0,)
    write(tmp_path, row(message), name="b.jsonl")
    with pytest.raises(FormatError):
        open_run(tmp_path)


def test_requests_alone_are_no_rollouts(tmp_path: Path) -> None:
    file = write(tmp_path, {"responses_create_params": {"input": "ask"}, "_ng_task_index": 0})
    with pytest.raises(FormatError):
        open_run(file)
    with pytest.raises(UsageError, match="no step 1"):
        open_run(SAMPLE / "rollouts.jsonl").read(1)


def test_torn_and_strange_lines(tmp_path: Path) -> None:
    strange = [row(reward=None), row(reward="NaN"), row(reward=[1, 2]), {"response": 5}, row(response={"output": 3})]
    file = write(tmp_path, row(call([7], [1], [-1.0])), *[row()] * 4, *strange)
    file.write_text(file.read_text() + '{"response": {"outp')
    step = open_run(file).read(0)
    assert [one.reward for one in step.rollouts] == [1.0] * 5 + [None, None, 3.0, 1.0]
    assert [problem.kind for problem in step.problems] == ["bad-line", "torn-line", "missing-values"]


@real
def test_real_tokens_and_log_probs() -> None:
    file = REAL / "nemo_gym_competitive_coding_token_logprobs.jsonl"
    run = open_run(file)
    assert (run.trainer, run.columns) == ("nemo_gym", ("logprob/rollout",))
    step = run.read(0)
    assert [one.sample_id for one in step.rollouts] == ["0-1", "0-3", "0-4"]
    assert {one.group_id for one in step.rollouts} == {"0"}
    assert [one.reward for one in step.rollouts] == [0.0, 0.0, 0.0]
    for one, line in zip(step.rollouts, file.read_text().splitlines(), strict=True):
        item = json.loads(line)["response"]["output"][-1]
        assert one.prompt_ids is not None
        assert one.response_ids is not None
        assert one.loss_mask is not None
        assert one.prompt_ids.tolist() == item["prompt_token_ids"]
        assert one.response_ids.tolist() == item["generation_token_ids"]
        assert one.response_ids[0] == 151667
        assert one.loss_mask.all()
        np.testing.assert_array_equal(one.columns["logprob/rollout"], np.float32(item["generation_log_probs"]))
        assert one.response is not None
        assert one.response.startswith("reasoning\n\nOkay, I need")
    assert [None if one.response_ids is None else len(one.response_ids) for one in step.rollouts] == [785, 959, 1038]
    assert step.problems == ()


@real
def test_real_reward_components() -> None:
    step = open_run(REAL / "nemo_gym_tool_call_multireward.jsonl").read(0)
    assert [one.group_id for one in step.rollouts] == ["1", "0", "4", "2", "3"]
    assert [one.reward for one in step.rollouts] == [2.0] * 5
    assert step.rollouts[0].rewards == {"correctness": 1.0, "schema_valid": 1.0, "format": 0.0}
    assert step.rollouts[0].response == (
        'function_call\n{"name": "get_weather", "arguments": "{\\"city\\": \\"New York\\"}"}\n'
        'function_call_output\n{"city":"New York","weather_description":"The weather in New York is sunny."}\n'
        "assistant\n\n\nThe weather in New York is sunny."
    )
    assert step.problems == ()


@real
def test_real_negative_rewards() -> None:
    step = open_run(REAL / "nemo_gym_blackjack_multi_turn.jsonl").read(0)
    assert [one.reward for one in step.rollouts] == [-1.0, 1.0, -1.0, 1.0, 1.0]
    assert {(one.group_id, one.group_source) for one in step.rollouts} == {("0", "given")}
    assert [one.truncated for one in step.rollouts] == [False] * 5
    assert step.rollouts[1].response == "<action>stand</action>"
    first = step.rollouts[0].response
    assert first is not None
    assert first.startswith("assistant\n<action>hit</action>\nuser\nYour hand: [8, 5, 3] = 16\n")
    assert step.problems == ()


@real
def test_real_long_chinese() -> None:
    step = open_run(REAL / "nemo_gym_longmt_chinese.jsonl").read(0)
    (one,) = step.rollouts
    assert (one.sample_id, one.group_id, one.reward) == ("528-0", "528", 0.7631636074611119)
    assert one.response == one.extra["generation"]
    assert len(one.extra["spans"]) == 105
    assert step.problems == ()


def test_mutated_files_give_rows_or_one_error(tmp_path: Path) -> None:
    raw = (SAMPLE / "rollouts.jsonl").read_bytes()
    chance = random.Random(0)
    file = tmp_path / "rollouts.jsonl"
    parts = [b"", b"[", b"]", b"null", b'"', b"-1", b"1e999", b"{}", b"\xff", b"3", b"[[[[", b"true"]
    opened = 0
    for _ in range(150):
        data = bytearray(raw)
        for _ in range(chance.randint(1, 30)):
            place = chance.randrange(len(data))
            data[place : place + chance.randint(0, 3)] = chance.choice(parts)
        file.write_bytes(bytes(data[: chance.choice([len(data), chance.randrange(len(data))])]))
        try:
            step = open_run(file).read(0)
        except CreditInspectorError:
            continue
        TokenTable.from_rollouts(0, step.rollouts)
        opened += 1
    assert opened > 20
