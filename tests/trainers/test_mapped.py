"""Any table: the mapping given or guessed, and values of every kind in any column."""

from __future__ import annotations

import csv
import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from credit_inspector.errors import CreditInspectorError, FormatError, UsageError
from credit_inspector.rollout import Problem, Run
from credit_inspector.table import TokenTable
from credit_inspector.trainers import ReadOptions
from credit_inspector.trainers.opening import open_run
from credit_inspector.trainers.tokenising import tokenised

REAL = Path(__file__).parents[2].parent / "shared/real_files"


def lines(folder: Path, *rows: Any, name: str = "run.jsonl") -> Path:
    file = folder / name
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return file


def mapping_of(run: Run) -> dict[str, str]:
    note = next(note for note in run.notes if note.startswith("mapping: "))
    return dict(pair.split("=", 1) for pair in note.removeprefix("mapping: ").split(", "))


def test_mapping_is_guessed_and_shown(tmp_path: Path) -> None:
    row = {
        "global_step": 3,
        "uid": "p",
        "Input": "2+2=",
        "output": "4",
        "score": 1,
        "completion_ids": [7, 2],
        "old_log_probs": [-0.5, -0.25],
        "logprobs": [-0.5, -0.5],
        "finish_reason": "stop",
        "seed": 5,
    }
    run = open_run(lines(tmp_path, row))
    assert mapping_of(run) == {
        "response": "output",
        "step": "global_step",
        "group_id": "uid",
        "prompt": "Input",
        "response_ids": "completion_ids",
        "reward": "score",
        "truncated": "finish_reason",
        "logprob/old": "old_log_probs",
        "logprob/rollout": "logprobs",
    }
    assert (run.trainer, run.steps, run.columns) == ("mapped", (3,), ("logprob/old", "logprob/rollout"))
    one = run.read(3).rollouts[0]
    assert (one.prompt, one.response, one.reward, one.group_id, one.truncated) == ("2+2=", "4", 1.0, "p", False)
    assert one.columns["logprob/old"].tolist() == [-0.5, -0.25]
    assert one.extra == {"seed": 5}


def test_a_critic_and_rewards_of_tokens(tmp_path: Path) -> None:
    row = {"response": "4", "response_ids": [7, 2], "reward": 1, "values": [0.25, 0.5], "token_level_rewards": [0, 0.75]}
    run = open_run(lines(tmp_path, row | {"token_level_scores": [0, 1]}))
    one = run.read(0).rollouts[0]
    assert run.columns == ("value/old", "reward/token", "reward/token_score")
    assert one.columns["value/old"].tolist() == [0.25, 0.5]
    assert one.columns["reward/token"].tolist() == [0, 0.75]
    assert one.columns["reward/token_score"].tolist() == [0, 1]
    assert (one.reward, one.rewards, one.extra) == (1.0, {}, {})


def test_a_value_that_is_one_number_is_no_critic(tmp_path: Path) -> None:
    run = open_run(lines(tmp_path, {"response": "4", "reward": 1, "value": 3, "values": "many", "token_reward": 0.5}))
    one = run.read(0).rollouts[0]
    assert run.columns == ()
    assert (one.rewards, one.extra) == ({"token_reward": 0.5}, {"value": 3, "values": "many"})


def test_given_mapping_comes_first(tmp_path: Path) -> None:
    file = lines(tmp_path, {"response": "raw", "final": {"text": "4"}, "reward": 0, "judge": {"score": 0.5}})
    run = open_run(file, ReadOptions({"reward": "judge.score", "response": "final.text"}))
    one = run.read(0).rollouts[0]
    assert (one.response, one.reward) == ("4", 0.5)
    assert mapping_of(run)["reward"] == "judge.score"


def test_mapping_over_a_format_that_is_known(tmp_path: Path) -> None:
    row = {"input": "q", "output": "a", "score": 0.0, "step": 2, "acc": 1.0}
    file = lines(tmp_path, row, name="2.jsonl")
    assert open_run(file).trainer == "verl"
    run = open_run(file, ReadOptions({"reward": "acc"}))
    assert (run.trainer, run.read(2).rollouts[0].reward) == ("mapped", 1.0)


def test_wrong_mappings_are_refused(tmp_path: Path) -> None:
    file = lines(tmp_path, {"response": "a", "score": 1})
    with pytest.raises(FormatError, match="no column 'points' for reward; wanted one of response, score"):
        open_run(file, ReadOptions({"reward": "points"}))
    with pytest.raises(UsageError, match="did you mean reward"):
        open_run(file, ReadOptions({"rewrad": "score"}))


def test_numbers_that_became_text_g01(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    file.write_text(
        '{"acc":"True","score":"0.5","n":"3","v":"[1 2]"}\n'
        '{"acc":"False","score":0.5,"n":3,"v":[1,2]}\n'
        '{"score":"np.float64(0.5)"}\n{"score":"high","gold":"007"}\n'
    )
    step = open_run(file).read(0)
    assert [one.reward for one in step.rollouts] == [0.5, 0.5, 0.5, None]
    assert [one.rewards.get("acc") for one in step.rollouts] == [1.0, 0.0, None, None]
    assert step.rollouts[0].extra == step.rollouts[1].extra == {"n": 3, "v": [1, 2]}
    assert step.rollouts[3].extra == {"gold": "007"}
    messages = [problem.message for problem in step.problems]
    assert "text converted: 4 fields in line 1, 1 in line 2, 1 in line 3" in messages
    assert "reward: 1 unreadable of 4 values" in messages


def test_missing_log_probs_g02(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    file.write_text('{"ids":[1,2,3,4,5],"reward":1,"lp":[-1.0,NaN,null,"NaN",-Infinity]}\n')
    step = open_run(file, ReadOptions({"logprob/old": "lp", "response_ids": "ids"})).read(0)
    assert step.problems == (Problem("missing-values", "logprob/old: 3 missing, 1 infinite of 5 values"),)
    assert np.nanmean(step.rollouts[0].columns["logprob/old"]) == -1.0
    loose = open_run(file, ReadOptions({"logprob/old": "lp", "reward": "reward", "group_id": "ids"})).read(0)
    assert "no-tokens" in {problem.kind for problem in loose.problems}
    assert TokenTable.from_rollouts(0, loose.rollouts).n_tokens == 0


def test_groups_by_id_or_prompt_or_none_g10_a02(tmp_path: Path) -> None:
    rows = [{"uid": "p", "score": 1, "acc": 1}, {"uid": "p", "score": 0, "acc": 0}, {"score": 1}, {"score": 0}]
    step = open_run(lines(tmp_path, *rows)).read(0)
    assert [one.group_id for one in step.rollouts] == ["p", "p", None, None]
    assert [one.group_source for one in step.rollouts] == ["given", "given", "none", "none"]
    assert Problem("missing-values", "acc: 2 missing of 4 values") in step.problems
    rows = [{"prompt": p, "response": "x", "reward": 1} for p in ("p", "q", "p", "q")]
    groups = [one.group_id or "" for one in open_run(lines(tmp_path, *rows)).read(0).rollouts]
    assert [groups.index(group) for group in groups] == [0, 1, 0, 1]


def test_a_row_without_id_joins_the_group_of_its_prompt(tmp_path: Path) -> None:
    row = {"prompt": "p", "response": "x", "reward": 1}
    step = open_run(lines(tmp_path, {**row, "uid": "a"}, row, {**row, "prompt": "other"})).read(0)
    assert [one.group_source for one in step.rollouts] == ["given", "same prompt", "same prompt"]
    assert step.rollouts[1].group_id == "a" != step.rollouts[2].group_id


def test_prompt_ids_decide_before_text(tmp_path: Path) -> None:
    row = {"prompt": "same", "response": "x", "response_ids": [1], "reward": 1}
    step = open_run(lines(tmp_path, {**row, "prompt_ids": [1, 2]}, {**row, "prompt_ids": [3]})).read(0)
    assert len({one.group_id for one in step.rollouts}) == 2


def test_missing_reward_stays_missing_a06(tmp_path: Path) -> None:
    rows = [{"uid": "p", "response": "x", "reward": reward} for reward in (1, 0, None, 1)]
    step = open_run(lines(tmp_path, *rows)).read(0)
    assert [one.reward for one in step.rollouts] == [1.0, 0.0, None, 1.0]
    assert step.problems == (Problem("missing-values", "reward: 1 missing of 4 values"),)


@pytest.mark.parametrize(
    ("reward", "scalar", "components"),
    [
        ({"total": 2.0, "right": 1, "format": "np.float64(1.0)"}, 2.0, {"right": 1.0, "format": 1.0}),
        ({"right": 1.0, "format": 0.5}, 1.5, {"right": 1.0, "format": 0.5}),
        ({"right": {"score": 1.0, "weight": 2.0}, "format": None}, 2.0, {"right": 1.0, "format": None}),
        ({"right": None}, None, {"right": None}),
        ('{"total": 1, "right": 0}', 1.0, {"right": 0.0}),
    ],
)
def test_rewards_of_several_parts(tmp_path: Path, reward: Any, scalar: float | None, components: Any) -> None:
    one = open_run(lines(tmp_path, {"response": "x", "reward": reward})).read(0).rollouts[0]
    assert (one.reward, one.rewards) == (scalar, components)


def test_advantage_of_the_sequence_or_of_each_token(tmp_path: Path) -> None:
    row = {"response_ids": [1, 2], "reward": 1, "loss_mask": [1, 0]}
    step = open_run(lines(tmp_path, {**row, "advantages": 0.5}, {**row, "advantages": [0.5, 0.0]})).read(0)
    assert step.rollouts[0].advantage == 0.5
    assert step.rollouts[1].advantage is None
    assert step.rollouts[1].columns["advantage"].tolist() == [0.5, 0.0]
    assert step.rollouts[1].loss_mask is not None
    assert step.rollouts[1].loss_mask.tolist() == [True, False]


def test_misfits_leave_the_row_c09(tmp_path: Path) -> None:
    row = {"response_ids": [1, 2, 3, 4, 5], "reward": 1, "finish_reason": "stop"}
    rows = ({**row, "old_logprobs": [-1.0] * 6, "loss_mask": [1] * 4}, {**row, "old_logprobs": [-1.0] * 5})
    step = open_run(lines(tmp_path, *rows)).read(0)
    messages = {problem.message for problem in step.problems if problem.kind == "length-mismatch"}
    unknown = "5 tokens, 4 mask values: which are trained is not known, so none counts as trained"
    assert messages == {"5 tokens, 6 log-probs", unknown}
    assert (step.rollouts[0].reward, dict(step.rollouts[0].columns)) == (1.0, {})
    assert step.rollouts[0].loss_mask.tolist() == [False] * 5
    assert len(step.rollouts[1].columns["logprob/old"]) == 5


def test_rows_of_parallel_lists(tmp_path: Path) -> None:
    whole_step = {"step": ["4", "4"], "prompt": ["p", "q"], "completion": ["a", "b"], "advantages": [1.0, -1.0]}
    step = open_run(lines(tmp_path, {**whole_step, "right": [1, 0]})).read(4)
    assert [(one.prompt, one.response, one.advantage) for one in step.rollouts] == [("p", "a", 1.0), ("q", "b", -1.0)]
    assert [one.extra["right"] for one in step.rollouts] == [1, 0]


def test_a_group_as_parallel_lists(tmp_path: Path) -> None:
    group = {
        "iteration": 2,
        "question": "1+1?",
        "responses": ["2", "3"],
        "rewards": [{"right": 1, "total": 1}, {"right": 0, "total": 0}],
    }
    run = open_run(lines(tmp_path, group, {**group, "question": "2+2?"}))
    rollouts = run.read(2).rollouts
    assert (run.trainer, [one.response for one in rollouts]) == ("mapped", ["2", "3"] * 2)
    assert [(one.reward, one.rewards) for one in rollouts[:2]] == [(1.0, {"right": 1.0}), (0.0, {"right": 0.0})]
    groups = [one.group_id or "" for one in rollouts]
    assert [groups.index(group) for group in groups] == [0, 0, 2, 2]


def test_steps_stream_and_names_carry_them(tmp_path: Path) -> None:
    rows = [{"step": step, "response": f"{step}", "reward": 1} for step in (2, 1, 2)]
    run = open_run(lines(tmp_path, *rows))
    assert [one.response for one in run.read(2).rollouts] == ["2", "2"]
    folder = tmp_path / "dump"
    folder.mkdir()
    for step in (1, 2):
        lines(folder, {"response": f"{step}", "reward": 1}, name=f"rollouts_step_{step}.jsonl")
    lines(folder, {"loss": 0.5}, name="metrics.jsonl")
    run = open_run(folder)
    assert run.steps == (1, 2)
    assert run.read(2).rollouts[0].response == "2"


def test_unlike_tables_are_not_mixed(tmp_path: Path) -> None:
    lines(tmp_path, {"response": "a", "reward": 1}, name="a.jsonl")
    lines(tmp_path, {"output": "b", "score": 1}, name="b.jsonl")
    with pytest.raises(FormatError, match=r"unlike tables: response is response in a\.jsonl, output in b\.jsonl"):
        open_run(tmp_path)


def test_csv_parquet_and_compressed(tmp_path: Path) -> None:
    row = {
        "group": "007",
        "response": "a,\nb",
        "response_ids": "[1 2]",
        "old_logprobs": "[-0.5, -0.25]",
        "score": "0.5",
    }
    with (tmp_path / "run.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, row)
        writer.writeheader()
        writer.writerow(row)
    (tmp_path / "run.jsonl.gz").write_bytes(gzip.compress(json.dumps(row).encode() + b"\n"))
    typed = {**row, "response_ids": [1, 2], "old_logprobs": [-0.5, -0.25], "score": 0.5}
    pq.write_table(pa.Table.from_pylist([typed]), tmp_path / "run.parquet")
    for name in ("run.csv", "run.jsonl.gz", "run.parquet"):
        step = open_run(tmp_path / name).read(0)
        one = step.rollouts[0]
        assert (one.group_id, one.response, one.reward) == ("007", "a,\nb", 0.5)
        assert one.response_ids is not None
        assert one.response_ids.tolist() == [1, 2]
        assert one.columns["logprob/old"].tolist() == [-0.5, -0.25]
    assert open_run(tmp_path / "run.csv").read(0).problems == ()


def test_sample_ids_are_unique(tmp_path: Path) -> None:
    rows = [{"sample_id": name, "response": "a", "reward": 1} for name in ("x", "x", None, "x#2")]
    names = [one.sample_id for one in open_run(lines(tmp_path, *rows)).read(0).rollouts]
    assert len(set(names)) == 4
    assert names[0] == "x"


@pytest.mark.skipif(not REAL.is_dir(), reason="the real files are not here")
@pytest.mark.parametrize(
    ("name", "steps", "rollouts", "dead"),
    [("nemo_gym_blackjack_multi_turn", 1, 5, 0)],
)
def test_real_files(name: str, steps: int, rollouts: int, dead: int) -> None:
    run = open_run(REAL / f"{name}.jsonl")
    read = [run.read(step) for step in run.steps]
    assert (len(read), {len(step.rollouts) for step in read}) == (steps, {rollouts})
    assert sum(len({one.reward for one in step.rollouts}) == 1 for step in read) == dead
    assert all(len({one.group_id for one in step.rollouts}) == 1 for step in read)
    assert all(one.prompt and one.response for step in read for one in step.rollouts)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
values = st.recursive(
    scalars | st.sampled_from(["True", "[1 2]", "np.float64(0.5)", "NaN"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["role", "content", "score", "a"]), inner),
    max_leaves=8,
)
names = st.sampled_from(
    [
        "response",
        "prompt",
        "reward",
        "rewards",
        "uid",
        "step",
        "sample_id",
        "response_ids",
        "prompt_ids",
        "loss_mask",
        "advantage",
        "old_logprobs",
        "logprob/ref",
        "truncated",
        "policy_version",
        "acc",
        "other",
    ]
)


@given(st.lists(st.dictionaries(names, values, max_size=8), min_size=1, max_size=4))
@settings(max_examples=300, deadline=None)
def test_any_values_align_or_are_refused(rows: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = lines(Path(folder), *rows)
        try:
            run = open_run(file, ReadOptions({"response": "response"}))
        except CreditInspectorError:
            return
        for number in run.steps:
            step = tokenised(run.read(number), None)
            table = TokenTable.from_rollouts(number, step.rollouts)
            assert not np.isinf(table.reward).any()
            assert len({one.sample_id for one in step.rollouts}) == len(step.rollouts)


def test_a_folder_of_json_files_is_a_table_where_a_mapping_says_so(tmp_path: Path) -> None:
    for name, public in (("a", 1.0), ("b", 0.0)):
        row = {"chat": [{"role": "user", "content": "q"}], "said": name, "metrics": {"public_reward": public, "private": 0}}
        (tmp_path / f"rollout-{name}.json").write_text(json.dumps(row))
    with pytest.raises(FormatError):
        open_run(tmp_path)
    run = open_run(tmp_path, ReadOptions({"prompt": "chat", "response": "said", "reward": "metrics.public_reward"}))
    (step,) = [run.read(number) for number in run.steps]
    assert sorted((one.response, one.prompt, one.reward) for one in step.rollouts) == [("a", "q", 1.0), ("b", "q", 0.0)]
