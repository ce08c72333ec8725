"""miles' dumps: the shipped sample, whose train files hold slices, against the values that were cut; and what miles adds."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tokenizers import Tokenizer

from credit_inspector.errors import FormatError, UsageError
from credit_inspector.rollout import Rollout, Step
from credit_inspector.trainers import ReadOptions, readers
from credit_inspector.trainers.opening import open_run
from places import FORMATS, SAMPLE

DUMP = FORMATS / "miles" / "dump_details"
nan = float("nan")


def load(file: Path) -> dict[str, Any]:
    found = torch.load(file, weights_only=True)
    assert isinstance(found, dict)
    return found


def read(path: Path, step: int = 0) -> Step:
    run = open_run(path)
    assert run.trainer == "miles"
    return run.read(step)


def only(step: Step, name: str = "0") -> Rollout:
    return next(one for one in step.rollouts if one.sample_id == name)


def kinds(step: Step) -> set[str]:
    return {problem.kind for problem in step.problems}


def owner(place: int, total: int, size: int, span: int | None = None) -> int:
    """The context-parallel rank that has a token, by the zigzag of ``2 × size`` chunks."""
    part = place // -(-(span or total) // (2 * size))
    return min(part, 2 * size - 1 - part)


def sliced(values: Sequence[float], total: int, rank: int, size: int, span: int | None = None) -> torch.Tensor:
    """What a rank holds: a value lies with the token before its own."""
    prompt = total - len(values)
    return torch.tensor([v for t, v in enumerate(values) if owner(prompt + t - 1, total, size, span) == rank])


def rollout_file(folder: Path, *samples: dict[str, Any], number: int = 0) -> Path:
    file = folder / f"rollout_data/{number}.pt"
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"rollout_id": number, "metadata": {}, "samples": list(samples)}, file)
    return file


def sample(index: int, response: Sequence[int] = (11, 12, 13), **more: Any) -> dict[str, Any]:
    found = {
        "group_index": 0,
        "index": index,
        "prompt": "q",
        "tokens": [7, 8, *response],
        "response": "abc",
        "response_length": len(response),
        "reward": 1.0,
        "loss_mask": None,
        "rollout_log_probs": [-0.5] * len(response),
        "status": "completed",
        "metadata": {},
    }
    return {**found, **more}


def rank_file(folder: Path, rank: int, columns: dict[str, Any], **layout: Any) -> Path:
    file = folder / f"train_data/0_{rank}.pt"
    file.parent.mkdir(parents=True, exist_ok=True)
    layout = {"cp_rank": 0, "cp_size": 1, "qkv_format": "thd", **layout}
    torch.save({"rollout_id": 0, "rank": rank, "rollout_data": columns, **layout}, file)
    return file


def columns(length: int, values: torch.Tensor, **more: Any) -> dict[str, Any]:
    """One rank's columns of one sample of two prompt tokens."""
    found = {
        "tokens": [torch.tensor([7, 8, *range(20, 20 + length)])],
        "response_lengths": [length],
        "total_lengths": [length + 2],
        "rewards": [0.5],
        "loss_masks": [torch.ones(length, dtype=torch.int)],
        "sample_indices": [0],
        "raw_reward": [1.0],
        "log_probs": [values],
    }
    return {**found, **more}


# ── the shipped sample ──────────────────────────────────────────────────────────────────────────────────────────────


def test_samples_are_as_they_were_written() -> None:
    decode = Tokenizer.from_file(str(SAMPLE / "tokenizer" / "tokenizer.json")).decode
    for number in (0, 1):
        step = read(DUMP, number)
        assert step.problems == ()
        for one, wrote in zip(step.rollouts, load(DUMP / f"rollout_data/{number}.pt")["samples"], strict=True):
            assert one.response_ids is not None
            assert one.prompt_ids is not None
            assert one.loss_mask is not None
            n = wrote["response_length"]
            assert (one.sample_id, one.group_id, one.reward) == (str(wrote["index"]), str(wrote["group_index"]), wrote["reward"])
            assert one.prompt_ids.tolist() == wrote["tokens"][:-n]
            assert one.response_ids.tolist() == wrote["tokens"][-n:]
            assert decode(one.response_ids.tolist()) == one.response
            mask = wrote["loss_mask"] or [1] * n
            assert one.loss_mask.tolist() == [bool(flag) for flag in mask]
            sampled = [value if flag else nan for value, flag in zip(wrote["rollout_log_probs"], mask, strict=True)]
            np.testing.assert_array_equal(one.columns["logprob/rollout"], np.array(sampled, np.float32))
            assert one.policy_version == number
            assert one.truncated == (one.sample_id == "11")


def test_slices_are_put_together_at_their_tokens() -> None:
    """Each value is looked up by its token in the file of the rank that has it, next in order of its tokens."""
    files = [load(DUMP / f"train_data/0_{rank}.pt") for rank in (0, 1)]
    assert [(file["cp_rank"], file["cp_size"]) for file in files] == [(0, 2), (1, 2)]
    for row, one in enumerate(read(DUMP).rollouts):
        assert one.prompt_ids is not None
        assert one.response_ids is not None
        assert one.loss_mask is not None
        prompt, total = len(one.prompt_ids), len(one.prompt_ids) + len(one.response_ids)
        for theirs, ours in (("log_probs", "logprob/old"), ("advantages", "advantage")):
            left = [list(file["rollout_data"][theirs][row].tolist()) for file in files]
            expected = [left[owner(prompt + t - 1, total, 2)].pop(0) for t in range(total - prompt)]
            assert left == [[], []]
            if ours == "advantage":
                expected = [value if flag else nan for value, flag in zip(expected, one.loss_mask, strict=True)]
            np.testing.assert_array_equal(one.columns[ours], np.array(expected, np.float32))
        assert one.extra["rewards"] == files[0]["rollout_data"]["rewards"][row]


def test_a_chat_beside_the_dump_joins_its_sample() -> None:
    wrote = json.loads((DUMP / "trajectory" / "0.jsonl").read_text("utf-8"))
    for path in (DUMP, DUMP / "rollout_data"):
        step = read(path)
        assert only(step, "3").extra["messages"] == wrote["messages"]
        assert "messages" not in only(step, "2").extra
    tool = only(read(DUMP), "3")
    assert tool.loss_mask is not None
    assert np.isnan(tool.columns["logprob/rollout"]).tolist() == (~tool.loss_mask).tolist()


def test_every_part_of_the_dump_opens(tmp_path: Path) -> None:
    dump = shutil.copytree(DUMP, tmp_path / "dump")
    run = open_run(dump)
    assert (run.steps, run.columns) == ((0, 1), ("logprob/rollout", "logprob/old", "advantage", "return/old"))
    parts = {"rollout_data": (0, 1), "train_data": (0,), "dashboard_columns": (0, 1), "trajectory": (0,)}
    for name, steps in parts.items():
        inner = open_run(dump / name)
        assert (inner.trainer, inner.steps) == ("miles", steps)
    for file in (file for name in parts for file in (dump / name).iterdir()):
        assert open_run(file).trainer == "miles"
    with pytest.raises(UsageError, match="no step 5"):
        run.read(5)


def test_one_rank_alone_has_no_whole_columns() -> None:
    step = open_run(DUMP / "train_data" / "0_1.pt").read(0)
    assert kinds(step) >= {"sliced-column"}
    assert len(step.rollouts) == 8
    assert all(one.columns == {} for one in step.rollouts)


# ── what stands beside the dumps ────────────────────────────────────────────────────────────────────────────────────


def test_the_dashboards_columns_alone(tmp_path: Path) -> None:
    shutil.copytree(DUMP / "dashboard_columns", tmp_path / "dashboard_columns")
    run = open_run(tmp_path)
    assert (run.trainer, run.steps, run.columns) == ("miles", (0, 1), ("logprob/rollout",))
    for number in run.steps:
        for one, other in zip(run.read(number).rollouts, read(DUMP, number).rollouts, strict=True):
            np.testing.assert_array_equal(one.response_ids, other.response_ids)
            np.testing.assert_array_equal(one.prompt_ids, other.prompt_ids)
            np.testing.assert_array_equal(one.loss_mask, other.loss_mask)
            np.testing.assert_array_equal(one.columns["logprob/rollout"], other.columns["logprob/rollout"])
            assert (one.sample_id, one.group_source, one.reward) == (other.sample_id, "same prompt", None)


def test_chats_join_the_dashboards_columns(tmp_path: Path) -> None:
    for name in ("dashboard_columns", "trajectory"):
        shutil.copytree(DUMP / name, tmp_path / name)
    step = read(tmp_path)
    tool = only(step, "3")
    assert (tool.reward, tool.group_id, tool.prompt) == (1.0, "0", "Use 9, 4, 6 to make 19.\n")
    assert tool.response_ids is not None
    assert tool.response is not None
    assert "<tool>9+4</tool>" in tool.response
    assert only(step, "2").reward is None


def test_chats_alone(tmp_path: Path) -> None:
    lines = [
        {"sample_index": 4, "group_index": 2, "status": "truncated", "reward": 0.5, "prompt": [{"role": "user", "content": "q"}],
         "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]},
        {"sample_index": 5, "group_index": 2, "status": "completed", "reward": None, "prompt": "q",
         "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "b"},
                      {"role": "tool", "content": "c"}]},
    ]  # fmt: skip
    file = tmp_path / "trajectory" / "6.jsonl"
    file.parent.mkdir()
    file.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"sample_index": 6')
    for path in (tmp_path, file.parent, file):
        step = read(path, 6)
        assert [(one.sample_id, one.group_id, one.reward, one.truncated) for one in step.rollouts] == [
            ("4", "2", 0.5, True),
            ("5", "2", None, False),
        ]
        assert step.rollouts[0].response == "a"
        assert step.rollouts[1].response is not None
        assert "b" in step.rollouts[1].response
        assert "c" in step.rollouts[1].response
        assert step.rollouts[1].extra["messages"] == lines[1]["messages"]
        assert "torn-line" in kinds(step)


def test_evaluations_alone(tmp_path: Path) -> None:
    (tmp_path / "dashboard_columns").mkdir()
    shutil.copy(DUMP / "dashboard_columns" / "rollout_1.parquet", tmp_path / "dashboard_columns" / "rollout_eval_20.parquet")
    run = open_run(tmp_path)
    assert run.steps == (20,)
    assert any("not trained on" in note for note in run.notes)
    assert len(run.read(20).rollouts) == 8


def test_other_tables_are_not_taken(tmp_path: Path) -> None:
    pq.write_table(pa.table({"sample_index": [1], "tokens": [[1, 2]]}), tmp_path / "rollout_0.parquet")
    (tmp_path / "3.jsonl").write_text('{"prompt": "q", "messages": [], "reward": 1}\n')
    for path in (tmp_path, *tmp_path.iterdir()):
        assert readers["miles"](path, ReadOptions()) is None


# ── ranks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("length", [1, 5, 30])
@pytest.mark.parametrize("span", [None, 48])
def test_slices_of_any_size(tmp_path: Path, size: int, length: int, span: int | None) -> None:
    """With ``bshd`` the chunks are of the padded length. Ranks of tensor parallelism stand twice."""
    values = [-(1 + t) / 64 for t in range(length)]
    layout = {"cp_size": size, "qkv_format": "bshd" if span else "thd"}
    more = {"max_seq_lens": [span]} if span else {}
    for rank in range(2 * size):
        part = sliced(values, length + 2, rank // 2, size, span)
        rank_file(tmp_path, rank, columns(length, part, **more), cp_rank=rank // 2, **layout)
    step = read(tmp_path)
    assert [one.columns["logprob/old"].tolist() for one in step.rollouts] == [values]
    assert step.problems == ()


@pytest.mark.parametrize("wrong", [{"cp_size": 3}, {"cp_rank": 0}, {"cp_rank": -1}, {"cp_size": 10**9}])
def test_layouts_that_cannot_be_are_left_out(tmp_path: Path, wrong: dict[str, Any]) -> None:
    values = [-(1 + t) / 64 for t in range(20)]
    for rank in (0, 1):
        rank_file(tmp_path, rank, columns(20, sliced(values, 22, rank, 2)), **{"cp_rank": rank, "cp_size": 2, **wrong})
    step = read(tmp_path)
    assert "logprob/old" not in only(step).columns
    assert kinds(step) >= {"sliced-column"}


@pytest.mark.parametrize("span", [0, -7, 10**30, nan, "x", None])
def test_padded_lengths_that_cannot_be_are_left_out(tmp_path: Path, span: Any) -> None:
    for rank in (0, 1):
        part = sliced([-1.0] * 20, 22, rank, 2)
        rank_file(tmp_path, rank, columns(20, part, max_seq_lens=[span]), cp_rank=rank, cp_size=2, qkv_format="bshd")
    step = read(tmp_path)
    assert "logprob/old" not in only(step).columns
    assert kinds(step) >= {"sliced-column"}


def test_the_batches_rewards_are_not_the_ranks(tmp_path: Path) -> None:
    """``raw_reward`` is in the order of the rollout, also where a rank has as many rows as the batch."""
    rollout_file(tmp_path, sample(0, (1, 2), reward={"a": 0.5}), sample(1, (3, 4), reward={"a": 0.5}))
    two = {
        "tokens": [torch.tensor([7, 8, 3, 4]), torch.tensor([7, 8, 1, 2])],
        "response_lengths": [2, 2],
        "rewards": [0.1, 0.2],
        "loss_masks": [torch.ones(2), torch.ones(2)],
        "sample_indices": [1, 0],
        "raw_reward": [5.0, 6.0],
    }
    rank_file(tmp_path, 0, two)
    step = read(tmp_path)
    assert [(one.sample_id, one.reward, one.extra["rewards"]) for one in step.rollouts] == [("0", 5.0, 0.2), ("1", 6.0, 0.1)]


# ── which trainer ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("folder", "trainer"), [(None, "slime"), ("trajectory", "miles"), ("dashboard_columns", "miles")])
def test_files_of_before_metadata_are_slimes_unless_miles_folders_stand_beside(
    tmp_path: Path, folder: str | None, trainer: str
) -> None:
    file = tmp_path / "rollout_data" / "0.pt"
    file.parent.mkdir()
    torch.save({"rollout_id": 0, "samples": [sample(0)]}, file)
    if folder:
        (tmp_path / folder).mkdir()
    for path in (tmp_path, file.parent, file):
        answers = {name: readers[name](path, ReadOptions()) for name in ("slime", "miles")}
        assert [name for name, run in answers.items() if run is not None] == [trainer]


def test_miles_own_records_of_an_adapter_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = type(sys)("miles.utils.types")
    kind = type("AdapterRef", (), {"__module__": "miles.utils.types"})
    module.AdapterRef = kind
    one = kind()
    one.__dict__.update(name="math", slot=3)
    with monkeypatch.context() as patched:
        for name in ("miles", "miles.utils"):
            patched.setitem(sys.modules, name, type(sys)(name))
        patched.setitem(sys.modules, "miles.utils.types", module)
        path = rollout_file(tmp_path, sample(0, adapter=one))
    assert only(read(path)).extra["adapter"] == {"name": "math", "slot": 3}


class Evil:
    """Opened by pickle's own rules, this makes a folder."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.trace),)


def test_a_malicious_rank_leaves_no_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    dump = shutil.copytree(DUMP, tmp_path / "dump")
    path = rank_file(dump, 1, columns(3, torch.zeros(3), metadata=[Evil(trace)]), cp_rank=1, cp_size=2)
    step = read(dump)
    assert "torn-file" in kinds(step)
    assert any("mkdir" in problem.message for problem in step.problems)
    with pytest.raises(FormatError, match="mkdir"):
        open_run(path).read(0)
    assert not trace.exists()
    torch.load(path, weights_only=False)
    assert trace.exists(), "the file was harmless"
