"""prime-rl's token export, joined with its traces."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from credit_inspector.errors import FormatError, UsageError
from credit_inspector.rollout import Rollout, Step
from credit_inspector.trainers import ReadOptions, readers
from credit_inspector.trainers.opening import open_run
from places import FORMATS, SAMPLE
from trainers.told import by_name, kinds, lines, numbers, write

OUT = FORMATS / "prime_rl" / "outputs"

Json = dict[str, Any]
COLUMNS = {
    "inference_logprobs": "logprob/rollout",
    "trainer_logprobs": "logprob/policy",
    "entropy": "entropy/policy",
    "advantages": "advantage",
    "mismatch_kl": "prime/mismatch_kl",
    "log_importance_ratio": "prime/log_importance_ratio",
    "importance_ratio": "prime/importance_ratio",
    "prob_delta": "prime/prob_delta",
    "is_masked": "prime/is_masked",
    "is_masked_high": "prime/is_masked_high",
    "is_masked_low": "prime/is_masked_low",
}
OUTSIDE_TOO = ("trainer_logprobs", "entropy")


def ids_of(one: Rollout) -> list[int]:
    assert one.prompt_ids is not None
    assert one.response_ids is not None
    return [*one.prompt_ids.tolist(), *one.response_ids.tolist()]


def line(*, ids: tuple[int, ...] = (1, 2, 3, 4), prompt: int = 2, **more: Any) -> Json:
    """A line as the exporter writes it."""
    count = len(ids)
    mask = [place >= prompt for place in range(count)]
    logprobs = [-0.5 if trained else 0.0 for trained in mask]
    found: Json = {"schema_version": 1, "step": 1, "rank": 0, "micro_step": 0, "micro_sequence_idx": 0, "export_sequence_idx": 0}
    found |= {"env_name": "x", "token_ids": list(ids), "position_ids": list(range(count)), "loss_mask": mask}
    found |= {"advantages": [0.25] * count, "inference_logprobs": logprobs, "trainer_logprobs": [-0.75] * count}
    found |= {"entropy": [1.5] * count, "mismatch_kl": [0.125] * count, "is_masked": [False] * count}
    return found | dict.fromkeys(("rl_weights", "ce_weights", "ref_kl_weights"), [None] * count) | more


def export(folder: Path, *rows: Json, step: int = 1, rank: int = 0, stable: bool = True) -> Path:
    """An output folder with one step."""
    file = write(folder / "token_exports" / f"step_{step}" / f"rank_{rank}.jsonl", *rows)
    if stable:
        (file.parent / "STABLE").touch()
    return folder


def trace(*, ids: tuple[int, ...] = (1, 2, 3, 4), prompt: int = 2, name: str = "t", score: float = 1.0, **more: Any) -> Json:
    """An episode with one trace of two messages."""
    said = {"role": "user", "content": "q"}, {"role": "assistant", "content": f"a of {name}"}
    nodes: list[Json] = [
        {"message": said[0], "sampled": False, "token_ids": list(ids[:prompt]), "mask": [False] * prompt},
        {"message": said[1], "sampled": True, "parent": 0, "token_ids": list(ids[prompt:]), "mask": [True] * (len(ids) - prompt)},
    ]
    nodes[1] |= more
    one = {"id": name, "task": {}, "agent": {}, "nodes": nodes, "rewards": {"right": {"score": score, "weight": 1.0}}}
    return {"id": f"e{name}", "env": {}, "task": {}, "group": {"id": "g"}, "traces": [one]}


def joined(folder: Path, rows: list[Json], traces: list[Json], name: str = "train/effective") -> Step:
    export(folder, *rows)
    write(folder / "rollouts/step_1" / name / "traces.jsonl", *traces)
    return open_run(folder).read(1)


# ── the sample ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_sample_run() -> None:
    run = open_run(OUT)
    assert (run.trainer, run.steps) == ("prime_rl", (1, 2))
    assert set(run.columns) == set(COLUMNS.values())
    assert "step 3 has no STABLE beside it: still being written, left out" in run.notes
    with pytest.raises(UsageError, match="no step 3"):
        run.read(3)
    first, second = run.read(1), run.read(2)
    rows = by_name(first)
    assert {name: (one.group_id, one.reward) for name, one in rows.items()} == {
        "t10": ("g1", 1.5), "t11": ("g1", 1.5), "t12": ("g1", 0.0), "t13": ("g1", 0.0),
        "t14": ("g2", 1.0), "t15/0": ("g2", 1.25), "t15/1": ("g2", 1.25), "t16": ("g2", 0.5),
    }  # fmt: skip
    assert {one.group_source for one in first.rollouts} == {"given"}
    assert {one.policy_version for one in first.rollouts} == {0}
    assert {one.sample_id: one.group_id for one in second.rollouts} == {"t20": "g3", "t21": "g3"}
    assert {one.policy_version for one in second.rollouts} == {1}
    assert rows["t10"].rewards == {"correct": 1.0, "brief": 1.0}
    assert [name for name, one in rows.items() if one.truncated] == ["t13"]
    assert rows["t14"].response == "assistant\n2*6\ntool\n12\n\nassistant\n12+9"
    assert rows["t10"].extra["env_name"] == "countdown"
    assert rows["t10"].extra["task"]["data"]["answer"] == "22"


def test_each_exported_token_is_where_the_file_has_it() -> None:
    """Both ranks, each line, each column, place by place."""
    read = open_run(OUT).read(1).rollouts
    written = [one for rank in (0, 1) for one in lines(OUT / f"token_exports/step_1/rank_{rank}.jsonl")]
    assert len(read) == len(written) == 8
    for one, raw in zip(read, written, strict=True):
        assert ids_of(one) == raw["token_ids"]
        assert one.prompt_ids is not None
        begin = len(one.prompt_ids)
        assert raw["loss_mask"].index(True) == begin
        assert one.loss_mask is not None
        assert one.loss_mask.tolist() == raw["loss_mask"][begin:]
        assert set(one.columns) == set(COLUMNS.values())
        for theirs, ours in COLUMNS.items():
            expected = [
                float(np.float32(value)) if trained or theirs in OUTSIDE_TOO else None
                for value, trained in zip(raw[theirs][begin:], raw["loss_mask"][begin:], strict=True)
            ]
            assert numbers(one.columns[ours]) == expected, ours


def test_text_of_the_trace_is_the_decoded_ids() -> None:
    tokenizer = Tokenizer.from_file(str(SAMPLE / "tokenizer" / "tokenizer.json"))
    one = by_name(open_run(OUT).read(1))["t12"]
    assert one.response == "让我想想。龘 3+5+7"
    assert tokenizer.decode(one.response_ids.tolist()) == one.response  # type: ignore[union-attr]
    assert tokenizer.decode(one.prompt_ids.tolist()) == one.prompt  # type: ignore[union-attr]


def test_equal_responses_keep_their_own_trace() -> None:
    rows = by_name(open_run(OUT).read(1))
    assert ids_of(rows["t10"]) == ids_of(rows["t11"])
    traces = {one["id"]: one for raw in lines(OUT / "rollouts/step_1/train/effective/traces.jsonl") for one in raw["traces"]}
    for name in ("t10", "t11"):
        assert numbers(rows[name].columns["logprob/rollout"]) == traces[name]["nodes"][1]["logprobs"]


def test_a_sequence_that_was_cut_for_training() -> None:
    step = open_run(OUT).read(1)
    rows = by_name(step)
    assert {name for name, one in rows.items() if len(ids_of(one)) == 29} == {"t15/0", "t15/1"}
    assert rows["t15/0"].response is None
    said = [problem.message for problem in step.problems if problem.kind == "cut"]
    assert said == ["2 sequences were cut to 29 tokens for training: their text goes on"]


def test_any_part_of_the_run_can_be_opened(tmp_path: Path) -> None:
    whole = open_run(OUT).read(2)
    for part in ("token_exports", "token_exports/step_2"):
        run = open_run(OUT / part)
        assert run.trainer == "prime_rl"
        assert {one.sample_id: one.reward for one in run.read(2).rollouts} == {"t20": 1.5, "t21": 0.5}
    file = open_run(OUT / "token_exports/step_2/rank_0.jsonl")
    assert (file.steps, len(file.read(2).rollouts)) == ((2,), 1)
    assert "1 other ranks' files of this step lie beside it and are not read" in file.notes
    assert file.read(2).rollouts[0].reward == whole.rollouts[0].reward
    alone = Path(shutil.copy(OUT / "token_exports/step_2/rank_0.jsonl", tmp_path / "some name.jsonl"))
    run = open_run(alone)
    assert (run.trainer, run.steps, run.read(2).rollouts[0].reward) == ("prime_rl", (2,), None)


@pytest.mark.parametrize("part", ["rollouts", "rollouts/step_2"])
def test_traces_alone_are_a_run(part: str) -> None:
    run = open_run(OUT / part)
    assert run.trainer == "prime_rl"
    assert run.steps == ((2,) if part.endswith("2") else (1, 2))
    assert run.columns == ("logprob/rollout", "advantage")
    step = run.read(2)
    assert {one.sample_id: one.reward for one in step.rollouts} == {"t20": 1.5, "t21": 0.5}
    assert numbers(by_name(step)["t20"].columns["advantage"]) == [0.5] * 6
    assert any("no token export" in note for note in run.notes)


def test_all_and_evaluations_are_not_training(tmp_path: Path) -> None:
    shutil.copytree(OUT / "rollouts", tmp_path / "one/rollouts")
    (tmp_path / "one/rollouts/step_2/train/effective/traces.jsonl").unlink()
    run = open_run(tmp_path / "one")
    assert run.steps == (1,)
    assert "step 2 has no effective/traces.jsonl: not trained on yet, left out" in run.notes
    shutil.copytree(OUT / "rollouts/step_2/train/all", tmp_path / "two/rollouts/step_2/train/all")
    every = open_run(tmp_path / "two")
    assert [one.sample_id for one in every.read(2).rollouts] == ["t20", "t21", "t22", "t23", "t24"]
    assert any("all finished episodes are read" in note for note in every.notes)
    shutil.copytree(OUT / "rollouts/step_2/eval", tmp_path / "three/rollouts/step_2/eval")
    evaluation = open_run(tmp_path / "three")
    assert [one.sample_id for one in evaluation.read(2).rollouts] == ["t26"]
    assert any("only evaluations" in note for note in evaluation.notes)


# ── the export ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_traces_there_is_no_reward(tmp_path: Path) -> None:
    run = open_run(export(tmp_path, line(), line(export_sequence_idx=1), line(ids=(1, 9, 3), export_sequence_idx=2)))
    assert any("no traces lie in rollouts/: rewards and text are not known" in note for note in run.notes)
    step = run.read(1)
    assert [one.reward for one in step.rollouts] == [None] * 3
    assert [one.sample_id for one in step.rollouts] == ["rank0-0", "rank0-1", "rank0-2"]
    first, second, third = (one.group_id for one in step.rollouts)
    assert first == second != third
    assert {one.group_source for one in step.rollouts} == {"same prompt"}
    assert step.rollouts[0].extra["prime_step"] == 1


def test_ranks_are_joined(tmp_path: Path) -> None:
    for rank in (0, 2, 10):
        export(tmp_path, line(rank=rank), rank=rank)
    assert [one.sample_id for one in open_run(tmp_path).read(1).rollouts] == ["rank0-0", "rank2-0", "rank10-0"]


def test_columns_of_nulls_are_left_out_and_single_nulls_are_missing(tmp_path: Path) -> None:
    nothing = [None] * 4
    run = open_run(export(tmp_path, line(mismatch_kl=nothing, is_masked=nothing, entropy=[1.0, 1.0, None, 2.0])))
    assert run.columns == ("logprob/rollout", "logprob/policy", "entropy/policy", "advantage")
    step = run.read(1)
    one = step.rollouts[0]
    assert set(one.columns) == set(run.columns)
    assert numbers(one.columns["entropy/policy"]) == [None, 2.0]
    assert [problem.message for problem in step.problems] == ["entropy/policy: 1 missing of 2 values"]


def test_zeros_that_stand_for_nothing(tmp_path: Path) -> None:
    """A frozen model's tokens have no sampler's log-probs, and no reward moves what only the cross entropy trains."""
    zero, one = [0.0] * 4, [1.0] * 4
    export(tmp_path, line(inference_logprobs=zero, advantages=zero, rl_weights=zero, ce_weights=one))
    step = open_run(tmp_path).read(1)
    assert set(step.rollouts[0].columns) == {
        "logprob/policy", "entropy/policy", "prime/mismatch_kl", "prime/is_masked", "prime/rl_weights", "prime/ce_weights",
    }  # fmt: skip
    assert "fill-values" in kinds(step)
    export(tmp_path, line(advantages=zero, rl_weights=[0.0, 0.0, 1.0, 0.0]))
    assert numbers(open_run(tmp_path).read(1).rollouts[0].columns["advantage"]) == [0.0, 0.0]


def test_tool_tokens_have_no_sampled_values(tmp_path: Path) -> None:
    mask = [False, True, False, True]
    export(tmp_path, line(loss_mask=mask, inference_logprobs=[0.0, -0.5, 0.0, -0.25]))
    one = open_run(tmp_path).read(1).rollouts[0]
    assert one.response_ids.tolist() == [2, 3, 4]  # type: ignore[union-attr]
    assert one.loss_mask.tolist() == [True, False, True]  # type: ignore[union-attr]
    assert numbers(one.columns["logprob/rollout"]) == [-0.5, None, -0.25]
    assert numbers(one.columns["advantage"]) == [0.25, None, 0.25]
    assert numbers(one.columns["prime/mismatch_kl"]) == [0.125, None, 0.125]
    assert numbers(one.columns["logprob/policy"]) == [-0.75, -0.75, -0.75]


def test_positions_that_begin_anew_are_other_sequences(tmp_path: Path) -> None:
    """What today's exporter splits itself; the padding at the end of a pack holds nothing."""
    packed = line(ids=(1, 2, 3, 4, 5, 0, 0), prompt=1)
    packed |= {"position_ids": [0, 1, 0, 1, 2, 0, 1], "loss_mask": [False, True, False, False, True, False, False]}
    packed |= {"advantages": [0, 1, 0, 0, 2, 0, 0], "inference_logprobs": [0, -1, 0, 0, -2, 0, 0]}
    step = open_run(export(tmp_path, packed)).read(1)
    first, second = step.rollouts
    assert (ids_of(first), ids_of(second)) == ([1, 2], [3, 4, 5])
    assert (numbers(first.columns["advantage"]), numbers(second.columns["advantage"])) == ([1.0], [2.0])
    assert (first.sample_id, second.sample_id) == ("rank0-0/0", "rank0-0/1")


def test_a_step_is_complete_when_it_says_so(tmp_path: Path) -> None:
    export(tmp_path, line(), step=7, stable=False)
    with pytest.raises(FormatError, match="step 7 alone, without the STABLE"):
        open_run(tmp_path)
    export(tmp_path, line(), step=6)
    run = open_run(tmp_path)
    assert run.steps == (6,)
    assert "step 7 has no STABLE beside it: still being written, left out" in run.notes


def test_first_exports_had_no_marker(tmp_path: Path) -> None:
    for step in (1, 2, 10):
        export(tmp_path, line(step=step), step=step, stable=False)
    run = open_run(tmp_path)
    assert run.steps == (1, 2)
    assert any("the last one, 10, may be cut short and is left out" in note for note in run.notes)


def test_the_very_first_export_was_one_file_a_rank_with_rewards(tmp_path: Path) -> None:
    rewards = [0.0, 0.0, 0.5, 0.5]
    write(tmp_path / "token_exports/rank_0.jsonl", line(step=1, rewards=rewards), line(step=2), line(step=1))
    write(tmp_path / "token_exports/rank_1.jsonl", line(step=2, rank=1))
    run = open_run(tmp_path)
    assert run.steps == (1, 2)
    assert [one.reward for one in run.read(1).rollouts] == [0.5, None]
    assert [one.sample_id for one in run.read(2).rollouts] == ["rank0-0", "rank1-0"]


def test_a_trainer_of_several_runs_counts_its_own_steps(tmp_path: Path) -> None:
    run = open_run(write(tmp_path / "x.jsonl", line(step=90, export_step=4)))
    assert run.steps == (4,)


# ── joining ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_no_trace_has_is_counted(tmp_path: Path) -> None:
    step = joined(tmp_path, [line(), line(ids=(1, 2, 9, 9), export_sequence_idx=1)], [trace()])
    assert {one.sample_id: one.reward for one in step.rollouts} == {"t": 1.0, "rank0-1": None}
    said = [problem.message for problem in step.problems if problem.kind == "unmatched"]
    assert said == ["1 of 2 sequences stand in no trace of step 1: without reward, text and group"]


def test_a_trace_serves_one_sequence(tmp_path: Path) -> None:
    step = joined(tmp_path, [line(), line(export_sequence_idx=1)], [trace()])
    assert [one.reward for one in step.rollouts] == [1.0, None]


def test_the_closest_of_equal_traces_is_taken(tmp_path: Path) -> None:
    rows = [line(advantages=[value] * 4, export_sequence_idx=place) for place, value in enumerate((0.5, -0.5, 0.25))]
    traces = [trace(name=str(value), score=value, advantages=[value] * 2) for value in (0.25, 0.5, -0.5)]
    step = joined(tmp_path, rows, traces)
    assert [one.sample_id for one in step.rollouts] == ["0.5", "-0.5", "0.25"]
    assert [one.reward for one in step.rollouts] == [0.5, -0.5, 0.25]


def test_only_the_longest_are_taken_for_cut(tmp_path: Path) -> None:
    """Another response's beginning is no match: the trainer cuts to one length, and to no shorter one."""
    rows = [line(ids=(1, 2, 3)), line(ids=(1, 2, 3, 4), export_sequence_idx=1)]
    step = joined(tmp_path, rows, [trace(ids=(1, 2, 3, 4, 5), name="long")])
    assert {one.sample_id: one.reward for one in step.rollouts} == {"rank0-0": None, "long": 1.0}
    assert {"cut", "unmatched"} <= kinds(step)


def test_reference_and_prompt_come_from_the_trace(tmp_path: Path) -> None:
    step = joined(tmp_path, [line()], [trace(reference_logprobs=[-1.5, -2.5], logprobs=[-9.0, -9.0])])
    one = step.rollouts[0]
    assert numbers(one.columns["logprob/ref"]) == [-1.5, -2.5]
    assert numbers(one.columns["logprob/rollout"]) == [-0.5, -0.5]
    assert (one.prompt, one.response) == ("q", "a of t")
    assert "logprob/ref" in open_run(tmp_path).columns


def test_older_rollout_files_join_as_well(tmp_path: Path) -> None:
    tokens = {"prompt_ids": [1, 2], "completion_ids": [3, 4], "completion_mask": [1, 1], "completion_logprobs": [-0.5, -0.5]}
    row = {"example_id": 8, "prompt": "q", "completion": "a", "reward": 0.75, "metrics": {"right": 1.0}}
    row["trajectory"] = [{"tokens": tokens, "trajectory_id": "x"}]
    export(tmp_path, line())
    write(tmp_path / "rollouts/step_1/train_rollouts.jsonl", row)
    write(tmp_path / "rollouts/step_1/eval_rollouts.jsonl", {**row, "reward": 0.0})
    one = open_run(tmp_path).read(1).rollouts[0]
    assert (one.sample_id, one.group_id, one.reward, one.response) == ("x", "8", 0.75, "a")
    assert one.rewards == {"right": 1.0}
    shutil.rmtree(tmp_path / "token_exports")
    alone = open_run(tmp_path)
    assert (alone.trainer, alone.columns) == ("prime_rl", ("logprob/rollout",))
    assert [one.reward for one in alone.read(1).rollouts] == [0.75]


def test_checkpoints_beside_it(tmp_path: Path) -> None:
    export(tmp_path, line())
    for place in ("checkpoints/step_2/weight", "broadcasts/step_1", "broadcasts/step_2", "checkpoints/step_3/trainer"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "config.json").write_text("{}")
    (tmp_path / "checkpoints/step_2/weight/tokenizer.json").write_text("{}")
    run = open_run(tmp_path)
    assert [(one.step, str(one.path.relative_to(tmp_path))) for one in run.checkpoints] == [
        (1, "broadcasts/step_1"),
        (2, "checkpoints/step_2/weight"),
    ]
    assert run.tokenizer == tmp_path / "checkpoints/step_2/weight"


# ── what is broken, and what is another's ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("value", [None, 5, "x", [], {}, [[]], [None], [1e400] * 4, [float("nan")] * 4, [-1] * 4, True])
@pytest.mark.parametrize(
    "key", ["token_ids", "position_ids", "loss_mask", "advantages", "trainer_logprobs", "rank", "step", "rewards"]
)
def test_any_value_in_any_place(tmp_path: Path, key: str, value: Any) -> None:
    rows = [line() for _ in range(25)]  # what is past the first rows is read and not asked for whose it is
    step = open_run(export(tmp_path, *rows, line(**{key: value}, export_sequence_idx=25))).read(1)
    assert len(step.rollouts) in (25, 26)
    assert all(problem.message for problem in step.problems)


def test_columns_of_another_length_are_left_out(tmp_path: Path) -> None:
    step = open_run(export(tmp_path, line(entropy=[1.0]))).read(1)
    assert "entropy/policy" not in step.rollouts[0].columns
    assert [problem.message for problem in step.problems] == ["4 tokens, 1 value of entropy/policy"]


def test_a_torn_line(tmp_path: Path) -> None:
    export(tmp_path, line())
    file = tmp_path / "token_exports/step_1/rank_0.jsonl"
    file.write_text(file.read_text() + json.dumps(line())[:100])
    step = open_run(tmp_path).read(1)
    assert len(step.rollouts) == 1
    assert "torn-line" in kinds(step)


def test_traces_that_are_none(tmp_path: Path) -> None:
    step = joined(tmp_path, [line()], [{"a": 1}, trace(), {"traces": 5}])
    assert [one.reward for one in step.rollouts] == [1.0]


def test_other_folders_are_not_taken(tmp_path: Path) -> None:
    for place in ("token_exports", "rollouts/step_1/train/effective", "rollouts/step_x", "step_1"):
        (tmp_path / place).mkdir(parents=True)
    assert readers["prime_rl"](tmp_path, ReadOptions()) is None
    write(tmp_path / "step_1/rank_0.jsonl", {"token_ids": [1], "loss_mask": [1]})
    write(tmp_path / "rollouts/step_1/train/effective/traces.jsonl", {"a": 1})
    assert readers["prime_rl"](tmp_path, ReadOptions()) is None
