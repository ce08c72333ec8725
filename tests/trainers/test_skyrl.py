"""SkyRL's batches and evaluations: the sample that SkyRL itself wrote, other versions, and files that mean harm."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from credit_inspector.errors import FormatError, UsageError
from credit_inspector.trainers.opening import open_run
from formats.batch_answers import FORMATS, answers
from trainers.pickled import Evil, body, called, does_harm, evil_file, instance, named, rows_of_mutants

EXPORT = FORMATS / "skyrl/export"
BATCH = EXPORT / "dumped_data/global_step_1_training_input.pkl"
EVALS = EXPORT / "dumped_evals/global_step_2_evals"
MODULE = "skyrl.backends.skyrl_train.training_batch"


# ── the sample ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_batches_place_by_place() -> None:
    run = open_run(EXPORT)
    assert (run.trainer, run.steps) == ("skyrl", (1, 2))
    assert run.columns == ("logprob/rollout", "logprob/old", "logprob/ref", "advantage")
    assert "no reward is in the batch: SkyRL takes it out before it saves" in run.notes
    assert "evaluations lie beside the training batches and are not shown (steps: 2)" in run.notes
    for number in run.steps:
        step, rows = run.read(number), answers(number)
        assert [problem.kind for problem in step.problems] == ["padding-rows"]
        for one, wanted in zip(step.rollouts, rows, strict=True):
            np.testing.assert_equal(one.prompt_ids, wanted.prompt_ids)
            np.testing.assert_equal(one.response_ids, wanted.response_ids)
            np.testing.assert_equal(one.loss_mask, np.array(wanted.mask, bool))
            for kind in ("rollout", "old", "ref"):
                expected = np.where(wanted.mask, wanted.logprobs(kind), np.nan).astype(np.float32)
                np.testing.assert_array_equal(one.columns[f"logprob/{kind}"], expected)
            assert (one.reward, len(one.extra["returns"])) == (None, len(wanted.response_ids))


def test_advantages_are_of_the_group_and_cut_to_the_mask() -> None:
    rows = answers(2)
    rewards = np.array([one.reward for one in rows]).reshape(2, 4)
    expected = (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, ddof=1, keepdims=True) + 1e-6)
    for one, wanted, advantage in zip(open_run(EXPORT).read(2).rollouts, rows, expected.ravel(), strict=True):
        np.testing.assert_allclose(one.columns["advantage"], np.where(wanted.mask, advantage, np.nan), rtol=1e-5)
    tool = open_run(EXPORT).read(1).rollouts[3]
    assert np.isnan(tool.columns["advantage"]).sum() == answers(1)[3].mask.count(0) > 0


def test_groups_by_boundaries() -> None:
    run = open_run(EXPORT)
    assert run.notes[0] == "groups are by SkyRL's policy_prompt_boundaries"
    assert [one.group_id for one in run.read(1).rollouts] == ["0"] * 4 + ["1"] * 4
    assert {one.group_source for one in run.read(1).rollouts} == {"given"}


@pytest.mark.parametrize("path", [EXPORT, EXPORT / "dumped_data", BATCH])
def test_every_folder_down_to_the_file_opens(path: Path) -> None:
    run = open_run(path)
    assert run.trainer == "skyrl"
    assert len(run.read(1).rollouts) == 8
    with pytest.raises(UsageError, match="no step 9"):
        run.read(9)


@pytest.mark.parametrize("path", [EXPORT / "dumped_evals", EVALS, EVALS / "countdown.jsonl"])
def test_evaluations_where_nothing_else_is(path: Path) -> None:
    run = open_run(path)
    assert (run.trainer, run.steps) == ("skyrl", (2,))
    assert run.notes[0].startswith("these are evaluations")
    step = run.read(2)
    for one, wanted in zip(step.rollouts, answers(2)[:4], strict=True):
        assert (one.prompt, one.response, one.reward) == (
            wanted.prompt,
            wanted.response + "<eos>" * (not wanted.is_cut),
            wanted.reward,
        )
        assert (one.truncated, one.extra["stop_reason"]) == (wanted.is_cut, "length" if wanted.is_cut else "stop")
        assert one.extra["env_extras"] == {"reward_spec": {"ground_truth": str(wanted.target)}}
    assert len({one.group_id for one in step.rollouts}) == 1


def test_scores_of_tokens_are_summed(tmp_path: Path) -> None:
    row = {
        "input_prompt": "q",
        "output_response": "a",
        "stop_reason": None,
        "env_class": "e",
        "env_extras": {},
        "data_source": "d",
    }
    folder = tmp_path / "global_step_5_evals"
    folder.mkdir()
    lines = [json.dumps({**row, "score": score}) for score in ([0.0, 0.25, 0.5], 1.5, None)]
    (folder / "d.jsonl").write_text("\n".join([*lines, '{"torn": ']))
    step = open_run(tmp_path).read(5)
    assert [one.reward for one in step.rollouts] == [0.75, 1.5, None]
    assert {problem.kind for problem in step.problems} == {"torn-line", "missing-values"}


# ── other batches ───────────────────────────────────────────────────────────────────────────────────────────────────


def tensor(values: Any, dtype: str) -> dict[str, Any]:
    array = np.asarray(values, dtype)
    return {"format": "numpy", "data": array.tobytes(), "shape": array.shape, "dtype": dtype}


def tiny(**more: Any) -> dict[str, Any]:
    """Prompts 8 9 and 9, responses 5 6 2 and 7 2, all padded on the left with the end of a sequence."""
    return {
        "sequences": tensor([[8, 9, 5, 6, 2], [2, 2, 9, 7, 2]], "int64"),
        "attention_mask": tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]], "int64"),
        "response_mask": tensor([[1, 1, 1], [0, 1, 1]], "int64"),
        "loss_mask": tensor([[1, 0, 1], [0, 1, 1]], "float32"),
        **more,
    }


def state(batch: dict[str, Any], **meta: Any) -> bytes:
    return body({"batch_dict": batch, "batch_size": 2, "device": None, "metadata": meta})


def batch_file(folder: Path, batch: dict[str, Any], **meta: Any) -> Path:
    raw = called(MODULE, "_rebuild_tensor_batch", named(MODULE, "TrainingInputBatch"), state(batch, **meta))
    file = folder / "global_step_4_training_input.pkl"
    file.write_bytes(raw)
    return file


def test_left_padding_and_the_end_that_is_also_the_padding_d03(tmp_path: Path) -> None:
    logs = tensor([[-1, -2, -3], [0, -4, -5]], "float32")
    run = open_run(batch_file(tmp_path, tiny(action_log_probs=logs, rollout_logprobs=None)))
    assert (run.steps, run.columns) == ((4,), ("logprob/old",))
    first, second = run.read(4).rollouts
    np.testing.assert_equal(first.response_ids, [5, 6, 2])
    np.testing.assert_equal(second.prompt_ids, [9])
    np.testing.assert_equal(second.response_ids, [7, 2])
    np.testing.assert_equal(first.columns["logprob/old"], [-1, -2, -3])
    np.testing.assert_equal(second.columns["logprob/old"], [-4, -5])
    assert {one.group_source for one in (first, second)} == {"same prompt"}
    assert first.group_id != second.group_id


def test_responses_padded_on_the_right_as_once(tmp_path: Path) -> None:
    old = {
        "sequences": tensor([[8, 9, 5, 6, 2], [0, 9, 7, 2, 0]], "int64"),
        "attention_mask": tensor([[1, 1, 1, 1, 1], [0, 1, 1, 1, 0]], "int64"),
        "response_mask": tensor([[1, 1, 1], [1, 1, 0]], "int64"),
        "loss_mask": tensor([[1, 1, 1], [1, 1, 0]], "float32"),
        "action_log_probs": tensor([[-1, -2, -3], [-4, -5, 0]], "float32"),
    }
    _, second = open_run(batch_file(tmp_path, old)).read(4).rollouts
    np.testing.assert_equal(second.prompt_ids, [9])
    np.testing.assert_equal(second.response_ids, [7, 2])
    np.testing.assert_equal(second.columns["logprob/old"], [-4, -5])


def test_logprobs_that_were_not_computed_are_left_out(tmp_path: Path) -> None:
    step = open_run(batch_file(tmp_path, tiny(base_action_log_probs=tensor(np.zeros((2, 3)), "float32")))).read(4)
    assert ([problem.kind for problem in step.problems], step.rollouts[0].columns) == (["fill-values"], {})


def test_half_precision_went_through_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    buffer = io.BytesIO()
    torch.save(torch.tensor([[-1, -2, -0.5], [0, -4, -5]], dtype=torch.bfloat16), buffer)
    step = open_run(batch_file(tmp_path, tiny(action_log_probs={"format": "torch", "data": buffer.getvalue()}))).read(4)
    np.testing.assert_equal(step.rollouts[0].columns["logprob/old"], [-1, -2, -0.5])
    np.testing.assert_equal(step.rollouts[1].columns["logprob/old"], [-4, -5])


def test_mask_that_does_not_fit_trains_nothing(tmp_path: Path) -> None:
    step = open_run(batch_file(tmp_path, tiny(loss_mask=tensor(np.ones((2, 2)), "float32")))).read(4)
    assert {problem.kind for problem in step.problems} == {"no-mask"}
    assert not any(one.loss_mask is None or one.loss_mask.any() for one in step.rollouts)


@pytest.mark.parametrize(
    "boundaries",
    [[(0, 3)], [(1, 0)], [(-1, 1)], [(0, 1), (0, 2)], [("0", 1)], [(0, 1, 2)], [(0, 10**12)], (0, 2), {"a": 1}, [True]],
)
def test_boundaries_that_lie_are_not_used(tmp_path: Path, boundaries: Any) -> None:
    step = open_run(batch_file(tmp_path, tiny(), policy_prompt_boundaries=boundaries)).read(4)
    assert {one.group_source for one in step.rollouts} == {"same prompt"}


@pytest.mark.parametrize("size", [-1, 2, 10**12, "1", True, None])
def test_padding_that_lies_takes_no_row(tmp_path: Path, size: Any) -> None:
    assert len(open_run(batch_file(tmp_path, tiny(), pad_size=size)).read(4).rollouts) == 2


def test_items_pickled_beside_the_state(tmp_path: Path) -> None:
    raw = instance("skyrl_train.training_batch", "TrainingInputBatch", b"(" + body("sequences") + body(1) + b"u" + state(tiny()))
    file = tmp_path / "global_step_4_training_input.pkl"
    file.write_bytes(raw)
    np.testing.assert_equal(open_run(file).read(4).rollouts[1].response_ids, [7, 2])


# ── harm ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_of_a_pickle_runs(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    evil = Evil(trace)
    assert does_harm(evil, trace)
    raw = called(MODULE, "_rebuild_tensor_batch", named(MODULE, "TrainingInputBatch"), state(tiny(), more=evil))
    file = evil_file(tmp_path / "dumped_data/global_step_1_training_input.pkl", raw)
    for path in (file, file.parent, tmp_path):
        with pytest.raises(FormatError, match=r"system, which is more than data, and was not run"):
            open_run(path)
    assert not trace.exists()


@pytest.mark.parametrize(
    "held",
    [
        {"data": b"", "shape": (10**9, 0), "dtype": "int64"},
        {"data": b"12345678", "shape": (10**9, 10**9), "dtype": "int64"},
        {"data": b"12345678", "shape": (-1, 1), "dtype": "int64"},
        {"data": b"12345678", "shape": (1, 1), "dtype": "O"},
        {"data": "text", "shape": (1, 1), "dtype": "int64"},
        {"format": "torch", "data": b"PK"},
        {"format": "tensor_list", "items": []},
        None,
        5,
    ],
)
def test_sequences_that_lie(tmp_path: Path, held: Any) -> None:
    file = batch_file(tmp_path, tiny(sequences=held))
    with pytest.raises(FormatError):
        open_run(file)


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "data.pkl").write_bytes(called("builtins", "dict"))
    (tmp_path / "aggregated_results.jsonl").write_text('{"eval/all/avg_score": 1}\n')
    with pytest.raises(FormatError, match=r"no \.jsonl"):
        open_run(tmp_path / "data.pkl")


def test_one_broken_step_does_not_hide_the_others(tmp_path: Path) -> None:
    shutil.copytree(EXPORT, tmp_path / "export")
    (tmp_path / "export/dumped_data/global_step_1_training_input.pkl").write_bytes(b"\x80\x04")
    run = open_run(tmp_path / "export")
    assert len(run.read(2).rollouts) == 8
    with pytest.raises(FormatError, match="no readable pickle"):
        run.read(1)


@pytest.mark.parametrize("source", [BATCH, EVALS / "countdown.jsonl"])
def test_damage_gives_one_line_or_rows(tmp_path: Path, source: Path) -> None:
    assert rows_of_mutants(source, tmp_path / source.name, 200) > 0
