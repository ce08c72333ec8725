"""slime's dumps: the shipped sample against torch's own loader, and each thing that the format does differently than others."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from credit_inspector.errors import FormatError, UsageError
from credit_inspector.rollout import Rollout, Step
from credit_inspector.trainers import ReadOptions, readers
from credit_inspector.trainers.opening import open_run
from places import FORMATS, SAMPLE

DUMP = FORMATS / "slime" / "dump_details"
nan = float("nan")


def raw(file: str) -> dict[str, Any]:
    found = torch.load(DUMP / file, weights_only=True)
    assert isinstance(found, dict)
    return found


def sample(index: int | None, response: Sequence[int] = (11, 12, 13), **more: Any) -> dict[str, Any]:
    """A sample as ``Sample.to_dict`` gives it, of two prompt tokens."""
    found = {
        "group_index": 0,
        "index": index,
        "rollout_id": None,
        "prompt": "q",
        "tokens": [7, 8, *response],
        "response": "abc",
        "response_length": len(response),
        "label": "4",
        "reward": 1.0,
        "loss_mask": None,
        "weight_versions": [],
        "rollout_log_probs": [-0.5] * len(response),
        "remove_sample": False,
        "status": "completed",
        "metadata": {},
        "train_metadata": None,
    }
    return {**found, **more}


def save(file: Path, value: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(value, file)
    return file


def rollout_file(folder: Path, *samples: dict[str, Any], number: int = 0, name: str | None = None) -> Path:
    return save(folder / (name or f"rollout_data/{number}.pt"), {"rollout_id": number, "samples": list(samples)})


def trained(index: int | None, position: int, response: Sequence[int] = (11, 12, 13), **more: Any) -> dict[str, Any]:
    """A sample of a train file of ``format_version`` 2."""
    n = len(response)
    found = {
        "data_parallel_rank": 0,
        "sample_index": index,
        "rollout_position": position,
        "tokens": torch.tensor([7, 8, *response]),
        "response_lengths": n,
        "total_lengths": n + 2,
        "rewards": 0.25,
        "truncated": 0,
        "loss_masks": torch.ones(n, dtype=torch.int),
        "log_probs": -torch.arange(1.0, n + 1),
        "advantages": torch.full((n,), 0.25),
    }
    return {**found, **more}


def train_file(folder: Path, *samples: dict[str, Any], number: int = 0, **top: Any) -> Path:
    payload = {"format_version": 2, "rollout_id": number, "rank": 0, "samples": list(samples), "dp_shards": [], **top}
    return save(folder / f"train_data/{number}.pt", payload)


def rank_file(folder: Path, rank: int, number: int = 0, **columns: Any) -> Path:
    """A train file of slime before August 2026."""
    return save(folder / f"train_data/{number}_{rank}.pt", {"rollout_id": number, "rank": rank, "rollout_data": columns})


def only(step: Step, name: str = "0") -> Rollout:
    return next(one for one in step.rollouts if one.sample_id == name)


def read(path: Path, step: int = 0) -> Step:
    run = open_run(path)
    assert run.trainer == "slime"
    return run.read(step)


def kinds(step: Step) -> set[str]:
    return {problem.kind for problem in step.problems}


# ── the shipped sample ──────────────────────────────────────────────────────────────────────────────────────────────


def test_every_value_of_the_sample_is_at_its_token() -> None:
    decode = Tokenizer.from_file(str(SAMPLE / "tokenizer" / "tokenizer.json")).decode
    step = read(DUMP)
    samples, rows = raw("rollout_data/0.pt")["samples"], raw("train_data/0.pt")["samples"]
    assert [one.sample_id for one in step.rollouts] == [str(k) for k in range(8)]
    assert [one.group_id for one in step.rollouts] == ["0"] * 4 + ["1"] * 4
    assert {one.group_source for one in step.rollouts} == {"given"}
    assert [one.reward for one in step.rollouts] == [1, 1, 0, 1, 1, 1, 1, 1]
    for one, wrote, row in zip(step.rollouts, samples, rows, strict=True):
        assert one.prompt_ids is not None
        assert one.response_ids is not None
        assert one.loss_mask is not None
        ids = one.response_ids.tolist()
        assert [*one.prompt_ids.tolist(), *ids] == wrote["tokens"]
        assert len(ids) == wrote["response_length"]
        assert decode(ids) == one.response == wrote["response"]
        assert decode(one.prompt_ids.tolist()) == one.prompt == wrote["prompt"]
        mask = wrote["loss_mask"] if not wrote["remove_sample"] else [0] * len(ids)
        assert one.loss_mask.tolist() == [bool(flag) for flag in mask]
        sampled = [value if flag else nan for value, flag in zip(wrote["rollout_log_probs"], wrote["loss_mask"], strict=True)]
        np.testing.assert_array_equal(one.columns["logprob/rollout"], np.array(sampled, np.float32))
        np.testing.assert_array_equal(one.columns["logprob/old"], row["log_probs"].numpy())
        np.testing.assert_array_equal(one.columns["advantage"], np.where(one.loss_mask, row["advantages"].numpy(), np.nan))
        assert one.extra["rewards"] == row["rewards"]
        assert one.extra["label"] == wrote["label"]
        assert one.extra["metadata"] == wrote["metadata"]
    assert step.problems == ()


def test_the_samples_own_cases() -> None:
    first, second = read(DUMP), read(DUMP, 1)
    tool, removed = only(first, "3"), only(first, "6")
    assert tool.loss_mask is not None
    assert 0 < (~tool.loss_mask).sum() < len(tool.loss_mask)
    assert np.isnan(tool.columns["logprob/rollout"]).tolist() == (~tool.loss_mask).tolist()
    assert np.isfinite(tool.columns["logprob/old"]).all()
    assert removed.loss_mask is not None
    assert not removed.loss_mask.any()
    assert removed.extra["remove_sample"] is True
    assert np.isfinite(removed.columns["logprob/rollout"]).all()
    chinese = only(first, "1")
    assert chinese.response is not None
    assert "龘" in chinese.response
    assert {one.policy_version for one in first.rollouts} == {0}
    assert [one.policy_version for one in second.rollouts] == [1, 1, 1, 1, 0, 1, 1, 1]
    assert [one.truncated for one in second.rollouts] == [False, False, False, True, False, False, False, False]
    assert set(only(second, "8").columns) == {"logprob/rollout"}


def test_what_is_said_about_the_run() -> None:
    run = open_run(DUMP)
    assert run.steps == (0, 1)
    assert run.columns == ("logprob/rollout", "logprob/old", "advantage", "return/old")
    said = " ".join(run.notes)
    for words in ("count from 0", "group_index", "before it is made relative", "before the update", "eval_*.pt, 1 file"):
        assert words in said
    with pytest.raises(UsageError, match="no step 7"):
        run.read(7)


def test_the_inner_folders_and_single_files_open_too() -> None:
    rollouts, train = open_run(DUMP / "rollout_data"), open_run(DUMP / "train_data")
    assert (rollouts.trainer, rollouts.steps) == ("slime", (0, 1))
    assert rollouts.columns == ("logprob/rollout",)
    assert any("without train_data" in note for note in rollouts.notes)
    assert (train.trainer, train.steps) == ("slime", (0,))
    assert open_run(DUMP / "rollout_data" / "1.pt").steps == (1,)
    assert open_run(DUMP / "train_data" / "0.pt").read(0).rollouts[3].columns.keys() >= {"logprob/old", "advantage"}
    held_out = open_run(DUMP / "rollout_data" / "eval_0.pt")
    assert [one.sample_id for one in held_out.read(0).rollouts] == ["0", "1"]
    assert any("evaluation rollouts" in note and "not trained" in note for note in held_out.notes)


def test_a_train_file_alone_gives_rewards_and_groups() -> None:
    step = open_run(DUMP / "train_data").read(0)
    assert [one.reward for one in step.rollouts] == [1, 1, 0, 1, 1, 1, 1, 1]
    assert {one.group_source for one in step.rollouts} == {"same prompt"}
    assert [one.group_id for one in step.rollouts] == [step.rollouts[0].group_id] * 4 + [step.rollouts[4].group_id] * 4
    assert step.rollouts[0].group_id != step.rollouts[4].group_id
    assert [one.truncated for one in step.rollouts] == [False] * 8


def test_the_tokenizer_beside_the_dump_is_found(tmp_path: Path) -> None:
    dump = shutil.copytree(DUMP, tmp_path / "dump")
    shutil.copytree(SAMPLE / "tokenizer", dump / "tokenizer")
    assert open_run(dump).tokenizer == open_run(dump / "rollout_data").tokenizer == dump / "tokenizer"


# ── samples ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_files_of_any_name_are_numbered_by_what_they_say(tmp_path: Path) -> None:
    rollout_file(tmp_path, sample(0), number=3, name="run7_debug_3.pt")
    rollout_file(tmp_path, sample(8), number=12, name="run7_debug_12.pt")
    rollout_file(tmp_path, sample(99), number=12, name="run7_debug_eval_12.pt")
    run = open_run(tmp_path)
    assert run.steps == (3, 12)
    assert [one.sample_id for one in run.read(12).rollouts] == ["8"]


def test_a_mask_of_none_is_all_ones_and_a_removed_sample_all_zeros(tmp_path: Path) -> None:
    path = rollout_file(tmp_path, sample(0), sample(1, remove_sample=True, loss_mask=[1, 1, 0]), sample(2, loss_mask=[0, 0, 1]))
    masks = [one.loss_mask for one in read(path).rollouts]
    np.testing.assert_array_equal(masks, [[True] * 3, [False] * 3, [False, False, True]])


def test_only_the_fill_of_tokens_outside_the_mask_is_missing(tmp_path: Path) -> None:
    """A masked token that the policy sampled has a log-prob; a certain token's is 0 and stays it."""
    path = rollout_file(tmp_path, sample(0, loss_mask=[1, 0, 0], rollout_log_probs=[0.0, -0.25, 0.0]))
    np.testing.assert_array_equal(only(read(path)).columns["logprob/rollout"], np.array([0.0, -0.25, nan], np.float32))


def test_a_reward_that_is_a_mapping(tmp_path: Path) -> None:
    scores = {"correct": 0.75, "format": 0.5, "feedback": "good"}
    rollout_file(tmp_path, sample(0, reward=scores), sample(1, reward={"score": 0.1, "length": 9.0}), sample(2, reward=None))
    alone = read(tmp_path)
    assert [one.reward for one in alone.rollouts] == [1.25, 0.1, None]
    train_file(tmp_path, trained(0, 0), trained(1, 1), trained(2, 2), raw_reward=[0.75, 9.0, 0.5])
    joined = read(tmp_path)
    assert [one.reward for one in joined.rollouts] == [0.75, 9.0, 0.5]
    assert joined.rollouts[0].rewards == {"correct": 0.75, "format": 0.5}
    assert joined.rollouts[1].rewards == {"score": 0.1, "length": 9.0}
    assert joined.rollouts[0].extra["feedback"] == "good"


def test_the_group_statistic_uses_the_samples_reward_and_not_the_normalised_one(tmp_path: Path) -> None:
    rollout_file(tmp_path, sample(0, reward=3.5))
    train_file(tmp_path, trained(0, 0, rewards=-0.7), raw_reward=[2.0])
    one = only(read(tmp_path))
    assert (one.reward, one.extra["rewards"], one.extra["raw_reward"]) == (3.5, -0.7, 2.0)


@pytest.mark.parametrize(
    ("step", "versions", "expected"),
    [
        (0, [["1"]], [0]),
        (5, [["6"], ["5"], ["6", "6"], ["5", "6"], []], [5, 4, 5, None, None]),
        (5, [["default"]], [None]),
    ],
)
def test_versions_count_from_the_first_push(tmp_path: Path, step: int, versions: list[list[str]], expected: list[int]) -> None:
    path = rollout_file(tmp_path, *(sample(k, weight_versions=v) for k, v in enumerate(versions)), number=step)
    found = read(path, step)
    assert [one.policy_version for one in found.rollouts] == expected
    assert "weight-versions" not in kinds(found)


@pytest.mark.parametrize("version", ["1", "300"])
def test_versions_of_a_resumed_run_are_not_told(tmp_path: Path, version: str) -> None:
    found = read(rollout_file(tmp_path, sample(0, weight_versions=[version]), number=100), 100)
    assert only(found).policy_version is None
    assert only(found).extra["weight_versions"] == [version]
    assert "weight-versions" in kinds(found)


def test_ids_groups_and_prompts_that_are_not_there(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "q"}]
    same = [sample(None, group_index=None, prompt=chat), sample(None, group_index=None, prompt=chat)]
    step = read(rollout_file(tmp_path, *same, sample(None, group_index=None, tokens=[9, 9, 11, 12, 13])))
    assert [one.sample_id for one in step.rollouts] == ["0", "1", "2"]
    assert step.rollouts[0].group_id == step.rollouts[1].group_id != step.rollouts[2].group_id
    assert (step.rollouts[0].prompt, step.rollouts[0].extra["prompt"]) == ("q", chat)


def test_aborted_and_failed_samples(tmp_path: Path) -> None:
    empty = sample(0, response=[], status="aborted") | {"tokens": [], "response": ""}
    said = sample(1, response=[], status="failed") | {"tokens": [], "response": "the tool broke"}
    step = read(rollout_file(tmp_path, empty, said, sample(2, status="truncated")))
    assert [one.truncated for one in step.rollouts] == [None, None, True]
    assert [one.extra["status"] for one in step.rollouts] == ["aborted", "failed", "truncated"]
    assert (step.rollouts[1].response_ids, step.rollouts[1].response) == (None, "the tool broke")


def test_arrays_inside_are_read_and_replay_data_is_left_out(tmp_path: Path) -> None:
    experts = {"rollout_routed_experts": np.zeros((4, 2, 2), np.int32), "rollout_top_p_token_ids": torch.arange(9)}
    step = read(rollout_file(tmp_path, sample(0, metadata={"scores": np.array([1, 2]), "loss": torch.tensor(0.5)}, **experts)))
    extra = only(step).extra
    assert extra["metadata"]["scores"].tolist() == [1, 2]
    assert extra["metadata"]["loss"] == 0.5
    assert not extra.keys() & experts.keys()


# ── joining ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_train_rows_are_joined_by_number_and_not_by_order(tmp_path: Path) -> None:
    rollout_file(tmp_path, sample(4), sample(5, (11, 12)), sample(6, (14,)))
    rows = [trained(6, 2, (14,)), trained(4, 0), trained(5, 1, (11, 12), log_probs=torch.tensor([-3.0, -4.0]))]
    train_file(tmp_path, *rows, raw_reward=[0.0, 1.0, 2.0])
    step = read(tmp_path)
    assert [one.sample_id for one in step.rollouts] == ["4", "5", "6"]
    assert only(step, "5").columns["logprob/old"].tolist() == [-3.0, -4.0]
    assert [one.extra["raw_reward"] for one in step.rollouts] == [0.0, 1.0, 2.0]
    assert step.problems == ()


def test_siblings_of_one_number_find_their_own_rows(tmp_path: Path) -> None:
    rollout_file(tmp_path, sample(4, (11, 12)), sample(4, (13, 14)))
    rows = [
        trained(4, k, ids, log_probs=torch.tensor(v)) for k, ids, v in ((1, (13, 14), [-3.0, -4.0]), (0, (11, 12), [-1.0, -2.0]))
    ]
    train_file(tmp_path, *rows)
    assert [one.columns["logprob/old"].tolist() for one in read(tmp_path).rollouts] == [[-1.0, -2.0], [-3.0, -4.0]]


def test_other_tokens_under_the_same_number_are_not_joined(tmp_path: Path) -> None:
    rollout_file(tmp_path, sample(0), sample(1), sample(2))
    train_file(tmp_path, trained(0, 0), trained(1, 1, (11, 12, 99)), trained(7, 3))
    step = read(tmp_path)
    assert kinds(step) >= {"other-tokens", "no-train-row", "no-sample"}
    assert [set(one.columns) >= {"logprob/old"} for one in step.rollouts] == [True, False, False, True]
    assert step.rollouts[3].sample_id == "7"


def test_the_trainers_kl_of_zeros_is_a_fill(tmp_path: Path) -> None:
    rows = [trained(0, 0, kl=torch.zeros(3)), trained(1, 1, kl=torch.zeros(3))]
    train_file(tmp_path, *rows)
    assert "kl/trainer" not in read(tmp_path).rollouts[0].columns
    reference = {"ref_log_probs": torch.full((3,), -1.0)}
    train_file(tmp_path, rows[0] | reference, rows[1] | reference | {"kl": torch.tensor([0.0, 0.5, 0.0])})
    run = open_run(tmp_path)
    assert {"kl/trainer", "logprob/ref"} <= set(run.columns)
    assert [one.columns["kl/trainer"].tolist() for one in run.read(0).rollouts] == [[0.0] * 3, [0.0, 0.5, 0.0]]


def test_every_column_of_training_has_its_name(tmp_path: Path) -> None:
    theirs = {
        "ref_log_probs": "logprob/ref",
        "teacher_log_probs": "logprob/teacher",
        "values": "value/old",
        "returns": "return/old",
        "entropy": "entropy/policy",
        "rollout_log_probs": "logprob/rollout",
        "opd_reverse_kl": "kl/teacher",
    }
    values = {name: torch.tensor([0.5, -1.0, 2.0]).to(torch.bfloat16) + k for k, name in enumerate(theirs)}
    train_file(tmp_path, trained(0, 0, **values))
    run = open_run(tmp_path)
    assert set(run.columns) == {"logprob/old", "advantage", *theirs.values()}
    found = only(run.read(0)).columns
    for name, ours in theirs.items():
        np.testing.assert_array_equal(found[ours], values[name].float().numpy())


def test_values_of_another_length_are_left_out(tmp_path: Path) -> None:
    rollout_file(tmp_path, sample(0))
    train_file(tmp_path, trained(0, 0, log_probs=torch.zeros(4), advantages=torch.zeros(2, 3)))
    step = read(tmp_path)
    assert set(only(step).columns) == {"logprob/rollout"}
    assert "length-mismatch" in kinds(step)


# ── one file a rank ─────────────────────────────────────────────────────────────────────────────────────────────────


def columns_of(indices: Sequence[int], length: int = 3, **more: Any) -> dict[str, Any]:
    """Columns of one rank; every sample has other tokens."""
    found = {
        "tokens": [torch.tensor([7, 8, *range(100 * k, 100 * k + length)]) for k in indices],
        "response_lengths": [length] * len(indices),
        "total_lengths": [length + 2] * len(indices),
        "rewards": [k / 10 for k in indices],
        "loss_masks": [torch.ones(length, dtype=torch.int) for _ in indices],
        "sample_indices": list(indices),
        "rollout_log_probs": [torch.full((length,), -1.0 - k) for k in indices],
        "log_probs": [torch.full((length,), -2.0 - k) for k in indices],
    }
    return {**found, **more}


def test_ranks_are_put_together(tmp_path: Path) -> None:
    """Two data-parallel ranks, each twice for tensor parallelism; the whole batch's rewards are not by the rank's rows."""
    whole = [0.0, 1.0, 2.0, 3.0]
    for rank, indices in enumerate([[3, 0], [3, 0], [2, 1], [2, 1]]):
        rank_file(tmp_path, rank, **columns_of(indices, raw_reward=whole, global_batch_sizes=[4, 4]))
    run = open_run(tmp_path)
    assert (run.trainer, run.steps, run.columns) == ("slime", (0,), ("logprob/rollout", "logprob/old"))
    step = run.read(0)
    assert sorted(one.sample_id for one in step.rollouts) == ["0", "1", "2", "3"]
    for k in range(4):
        one = only(step, str(k))
        assert (one.reward, one.extra["rewards"]) == (float(k), k / 10)
        assert one.columns["logprob/old"].tolist() == [-2.0 - k] * 3
        assert "global_batch_sizes" not in one.extra


def test_rewards_of_ranks_follow_the_rollout_where_numbers_are_not_its_order(tmp_path: Path) -> None:
    ids = [[0, 1, 2], [100, 101, 102]]
    rollout_file(tmp_path, sample(1, ids[1], reward={"a": 1.0}), sample(0, ids[0], reward={"a": 1.0}))
    rank_file(tmp_path, 0, **columns_of([0, 1], raw_reward=[5.0, 6.0], partition=[1, 0]))
    assert [(one.sample_id, one.reward) for one in read(tmp_path).rollouts] == [("1", 5.0), ("0", 6.0)]


def test_log_probs_are_those_of_the_last_pipeline_stage(tmp_path: Path) -> None:
    early = columns_of([0])
    del early["log_probs"]
    rank_file(tmp_path, 0, **early)
    rank_file(tmp_path, 1, **columns_of([0]))
    assert only(read(tmp_path)).columns["logprob/old"].tolist() == [-2.0] * 3


def sliced(values: Sequence[float], total: int, rank: int, size: int) -> torch.Tensor:
    """What a context-parallel rank holds, place by place: a value lies with the token before its own."""
    chunk = -(-total // (2 * size))
    prompt = total - len(values)
    owners = [min(part, 2 * size - 1 - part) for part in ((prompt + t - 1) // chunk for t in range(len(values)))]
    return torch.tensor([value for value, owner in zip(values, owners, strict=True) if owner == rank])


@pytest.mark.parametrize(("size", "length"), [(2, 3), (2, 11), (2, 30), (4, 29), (3, 1)])
def test_slices_of_files_that_do_not_say_which_they_are(tmp_path: Path, size: int, length: int) -> None:
    values = {name: [-(1 + t) / 64 - k for t in range(length)] for k, name in enumerate(("rollout_log_probs", "log_probs"))}
    for rank in range(size):
        parts = {name: [sliced(numbers, length + 2, rank, size)] for name, numbers in values.items()}
        rank_file(tmp_path, rank, **columns_of([0], length, raw_reward=[1.0], **parts))
    step = read(tmp_path)
    empty = [rank for rank in range(size) if len(sliced(values["log_probs"], length + 2, rank, size)) == 0]
    if len(empty) <= 1:  # empty slices cannot be told apart
        assert only(step).columns["logprob/old"].tolist() == values["log_probs"]
        assert only(step).columns["logprob/rollout"].tolist() == values["rollout_log_probs"]
        assert step.problems == ()


def test_slices_of_which_some_are_missing_are_left_out(tmp_path: Path) -> None:
    values = [-(1.0 + t) for t in range(12)]
    parts = {name: [sliced(values, 14, 0, 2)] for name in ("rollout_log_probs", "log_probs")}
    rank_file(tmp_path, 0, **columns_of([0], 12, **parts))
    step = read(tmp_path)
    assert only(step).columns == {}
    assert kinds(step) >= {"sliced-column"}


# ── broken and hostile files ────────────────────────────────────────────────────────────────────────────────────────


class Evil:
    """Opened by pickle's own rules, this makes a folder."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("place", ["metadata", "reward", "tokens"])
def test_a_malicious_file_leaves_no_trace(tmp_path: Path, place: str) -> None:
    trace = tmp_path / "trace"
    path = rollout_file(tmp_path / "dump", sample(0, **{place: Evil(trace)}))
    run = open_run(path)
    with pytest.raises(FormatError, match="mkdir"):
        run.read(0)
    assert not trace.exists()
    torch.load(path, weights_only=False)
    assert trace.exists(), "the file was harmless"


def test_a_malicious_file_at_the_top_leaves_no_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    path = save(tmp_path / "rollout_data" / "0.pt", Evil(trace))
    with pytest.raises(FormatError):
        open_run(path)
    assert not trace.exists()


class Score:
    """A type of the user's own in ``metadata``."""

    def __init__(self) -> None:
        self.value = 1.0


def test_an_unknown_type_is_refused_by_its_name(tmp_path: Path) -> None:
    path = rollout_file(tmp_path, sample(0, metadata={"score": Score()}))
    with pytest.raises(FormatError, match=r"test_slime\.Score.*--allow-type"):
        open_run(path).read(0)


def test_torn_files(tmp_path: Path) -> None:
    dump = shutil.copytree(DUMP, tmp_path / "dump")
    for file in (dump / "train_data" / "0.pt", dump / "rollout_data" / "1.pt"):
        file.write_bytes(file.read_bytes()[:-900])
    run = open_run(dump)
    assert run.steps == (0, 1)
    first = run.read(0)
    assert "torn-file" in kinds(first)
    assert (len(first.rollouts), set(first.rollouts[0].columns)) == (8, {"logprob/rollout"})
    with pytest.raises(FormatError, match=r"1\.pt"):
        run.read(1)


def test_nothing_but_torn_files_is_told(tmp_path: Path) -> None:
    file = rollout_file(tmp_path, sample(0))
    file.write_bytes(file.read_bytes()[:200])
    for path in (tmp_path, file, file.parent):
        with pytest.raises(FormatError, match="no whole torch file of slime or miles"):
            open_run(path)


def test_other_torch_files_are_not_taken(tmp_path: Path) -> None:
    save(tmp_path / "0.pt", {"model": {"weight": torch.zeros(2)}, "step": 3})
    save(tmp_path / "1.pt", {"rollout_id": 3, "loss": 0.5})
    save(tmp_path / "2.pt", [1, 2])
    for path in (tmp_path, *tmp_path.iterdir()):
        assert [readers[name](path, ReadOptions()) for name in ("slime", "miles")] == [None, None]


def test_samples_that_are_none_and_values_of_other_types(tmp_path: Path) -> None:
    odd = sample(3, tokens="text", loss_mask={"a": 1}, rollout_log_probs=5, reward=[[1]], prompt=torch.zeros(2), status=7)
    wrong = [sample(4, response_length=9), sample(5, response_length="x"), sample(6, loss_mask="no"), sample(7, loss_mask=[1])]
    path = save(tmp_path / "rollout_data" / "0.pt", {"rollout_id": 0, "samples": [sample(0), None, 3, odd, *wrong]})
    step = read(path)
    assert [one.sample_id for one in step.rollouts] == ["0", "3", "4", "5", "6", "7"]
    assert kinds(step) >= {"bad-line", "bad-ids", "length-mismatch", "bad-column"}
    for name in ("4", "5"):
        assert only(step, name).response_ids is None
    for name in ("6", "7"):
        mask = only(step, name).loss_mask
        assert mask is not None
        assert not mask.any()


def test_what_repeats_without_end_is_left_out(tmp_path: Path) -> None:
    circle: list[Any] = []
    circle.append(circle)
    bomb: list[Any] = [0]
    for _ in range(30):
        bomb = [bomb] * 10
    wide = [[1] * 3000] * 3000
    path = rollout_file(tmp_path, sample(0, metadata={"circle": circle, "bomb": bomb}, label=wide), sample(1, tokens=wide))
    step = read(path)
    assert "too-large" in kinds(step)
    assert "bad-ids" in kinds(step)
    assert only(step).columns["logprob/rollout"].tolist() == [-0.5] * 3


def test_no_samples(tmp_path: Path) -> None:
    assert read(rollout_file(tmp_path)).rollouts == ()
