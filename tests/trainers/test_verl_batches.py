"""verl's batches: the sample that verl itself wrote, what may be missing or wrong in one, and files that mean harm."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from credit_inspector.errors import FormatError, UsageError
from credit_inspector.rollout import Rollout, Run
from credit_inspector.trainers.opening import open_run
from formats.batch_answers import EOS, FORMATS, PAD, TOKENIZER, Answer, answers
from trainers.pickled import Evil, body, called, does_harm, evil_file, instance, named, rows_of_mutants

torch = pytest.importorskip("torch")

SAMPLE = FORMATS / "verl_batches"
DUMP = SAMPLE / "rollout_dump"
SETTING = DUMP / "countdown_grpo/GBS2_N4_in20_out48"
QUEUE = SAMPLE / "tq_dump/countdown_grpo/GBS2_N4_in20_out48/1/0/tq_batch.pt"


def check(one: Rollout, wanted: Answer, *kinds: str) -> None:
    """Ids, mask, and log-probabilities of a response, place by place; those of the tool's tokens are missing."""
    np.testing.assert_equal(one.prompt_ids, wanted.prompt_ids)
    np.testing.assert_equal(one.response_ids, wanted.response_ids)
    np.testing.assert_equal(one.loss_mask, np.array(wanted.mask, bool))
    for kind in kinds:
        expected = np.where(wanted.mask, wanted.logprobs(kind), np.nan).astype(np.float32)
        np.testing.assert_array_equal(one.columns[f"logprob/{kind}"], expected)
    assert one.reward == wanted.reward


def shuffled(step: int) -> list[Answer]:
    rows = answers(step)[1:6]
    return rows[::2] + rows[1::2]


# ── the sample ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_pickles_of_the_cache() -> None:
    run = open_run(DUMP)
    assert (run.trainer, run.steps) == ("verl_batches", (1, 2))
    assert run.columns == ("logprob/rollout", "reward/token_score")
    assert run.notes[:2] == ("groups are by verl's uid", "reward is the sum of verl's scores, before any KL penalty")
    for number in run.steps:
        step = run.read(number)
        assert step.problems == ()
        for one, wanted in zip(step.rollouts, shuffled(number), strict=True):
            check(one, wanted, "rollout")
            assert (one.group_id, one.group_source) == (wanted.group, "given")
            assert (one.prompt, one.rewards) == (wanted.prompt, {"acc": wanted.reward})
            assert one.extra["reward_model"] == {"ground_truth": str(wanted.target), "style": "rule"}
            assert one.extra["__num_turns__"] == len(wanted.parts) + 1
            token_scores = one.columns["reward/token_score"]
            np.testing.assert_equal(token_scores[:-1], 0)
            assert token_scores[-1] == wanted.reward


def test_ids_spell_the_text() -> None:
    tokenizer = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    for one, wanted in zip(open_run(DUMP).read(1).rollouts, shuffled(1), strict=True):
        assert one.response_ids is not None
        assert tokenizer.decode(one.response_ids.tolist()) == wanted.response
        assert one.response_ids[-1] == EOS
    chinese = next(wanted for wanted in shuffled(1) if "龘" in wanted.response)
    assert len(chinese.response_ids) < len(chinese.response.encode())


@pytest.mark.parametrize("path", [DUMP, DUMP / "countdown_grpo", SETTING, SETTING / "2", SETTING / "2/gen_batch.dp"])
def test_every_folder_down_to_the_file_opens(path: Path) -> None:
    run = open_run(path)
    assert run.trainer == "verl_batches"
    assert [one.reward for one in run.read(2).rollouts] == [wanted.reward for wanted in shuffled(2)]
    with pytest.raises(UsageError, match="no step 3"):
        run.read(3)


def test_batch_saved_after_the_advantages() -> None:
    run = open_run(SAMPLE / "late_batch.dp")
    assert set(run.columns) >= {"logprob/rollout", "logprob/old", "logprob/ref", "reward/token", "advantage"}
    rows = answers(1)[:4]
    rewards = np.array([one.reward for one in rows])
    advantages = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
    for one, wanted, advantage in zip(run.read(0).rollouts, rows, advantages, strict=True):
        check(one, wanted, "rollout", "old", "ref")
        expected = np.where(wanted.mask, advantage, np.nan)
        np.testing.assert_allclose(one.columns["advantage"], expected, rtol=1e-5)
        assert len(one.extra["returns"]) == len(wanted.response_ids)
    assert any(0 in wanted.mask for wanted in rows)


def test_queue_is_read_without_tensordict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensordict", None)
    run = open_run(SAMPLE / "tq_dump")
    assert (run.trainer, run.steps, run.columns) == ("verl_batches", (1,), ("logprob/rollout", "reward/token_score"))
    assert "not read: multi_modal_inputs" in run.notes
    step = run.read(1)
    assert step.problems == ()
    for one, wanted in zip(step.rollouts, answers(1)[1:4], strict=True):
        check(one, wanted, "rollout")
        uid = f"{wanted.group}-0000-4000-8000-000000000000"
        assert (one.group_id, one.sample_id) == (uid, f"{uid}_{wanted.place}_0")
        assert (one.policy_version, one.rewards) == (0, {"acc": wanted.reward})
        assert (one.extra["session"], one.extra["output"], one.extra["data_source"]) == (wanted.place, 0, "countdown")


def test_parts_of_one_step_are_put_together(tmp_path: Path) -> None:
    for part in "01":
        shutil.copytree(QUEUE.parent, tmp_path / "1" / part)
    step = open_run(tmp_path).read(1)
    assert len(step.rollouts) == 6
    assert len({one.sample_id for one in step.rollouts}) == 6


def test_step_is_what_meta_says_else_the_folder(tmp_path: Path) -> None:
    for name in ("3", "7"):
        shutil.copytree(SETTING / "1", tmp_path / name)
    (tmp_path / "3/meta.json").write_text(json.dumps({"global_steps": 30}))
    (tmp_path / "7/meta.json").write_text("{torn")
    assert open_run(tmp_path).steps == (7, 30)


def test_two_experiments_in_one_folder_are_told(tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(SETTING, tmp_path / name / SETTING.name)
    with pytest.raises(FormatError, match="holds 2 verl runs"):
        open_run(tmp_path)
    assert open_run(tmp_path / "a").steps == (1, 2)


# ── batches made here ───────────────────────────────────────────────────────────────────────────────────────────────


def saved(tensors: Mapping[str, Any]) -> bytes:
    """A TensorDict as torch saves its consolidated form, by tensordict's own code."""
    tensordict = pytest.importorskip("tensordict")
    rows = len(next(iter(tensors.values())))
    buffer = io.BytesIO()
    torch.save(tensordict.TensorDict(dict(tensors), batch_size=[rows]).contiguous().consolidate(), buffer)
    return buffer.getvalue()


def data_proto(held: Any, objects: Mapping[str, Any] | None = None, meta: Mapping[str, Any] | None = None) -> bytes:
    return instance("verl.protocol", "DataProto", body((held, dict(objects or {}), dict(meta or {}))))


def run_of(folder: Path, tensors: Mapping[str, Any], objects: Mapping[str, Any] | None = None) -> Run:
    file = folder / "gen_batch.dp"
    file.write_bytes(data_proto(saved(tensors), objects))
    return open_run(file)


def tiny(**more: Any) -> dict[str, Any]:
    """Two responses to prompts of two and one tokens; ids and lengths 5 6 2 and 7 2, with the end of a sequence as padding."""
    return {
        "prompts": torch.tensor([[8, 9], [2, 9]]),
        "responses": torch.tensor([[5, 6, 2, 2, 2], [7, 2, 2, 2, 2]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 0, 0], [0, 1, 1, 1, 0, 0, 0]]),
        "response_mask": torch.tensor([[1, 1, 1, 0, 0], [1, 1, 0, 0, 0]]),
        **more,
    }


def test_end_that_is_also_the_padding_stays_d03(tmp_path: Path) -> None:
    first, second = run_of(tmp_path, tiny()).read(0).rollouts
    np.testing.assert_equal(first.response_ids, [5, 6, 2])
    np.testing.assert_equal(second.response_ids, [7, 2])
    np.testing.assert_equal(first.loss_mask, [True] * 3)
    np.testing.assert_equal(second.prompt_ids, [9])


def test_without_rewards_and_uids(tmp_path: Path) -> None:
    run = run_of(tmp_path, tiny())
    assert "groups are equal prompts: the batch holds no uid" in run.notes
    assert "no reward is in the batch: it was saved before the reward was computed" in run.notes
    step = run.read(0)
    assert ([one.reward for one in step.rollouts], step.problems) == ([None, None], ())
    assert {one.group_source for one in step.rollouts} == {"same prompt"}


def test_logprobs_that_were_not_computed_are_left_out(tmp_path: Path) -> None:
    step = run_of(tmp_path, tiny(rollout_log_probs=torch.zeros(2, 5))).read(0)
    assert [dict(one.columns) for one in step.rollouts] == [{}, {}]
    assert [problem.kind for problem in step.problems] == ["fill-values"]


def test_certain_token_is_no_fill(tmp_path: Path) -> None:
    values = torch.tensor([[0.0, -1, -2, 0, 0], [-3, 0.0, 0, 0, 0]])
    first, second = run_of(tmp_path, tiny(rollout_log_probs=values)).read(0).rollouts
    np.testing.assert_equal(first.columns["logprob/rollout"], [0, -1, -2])
    np.testing.assert_equal(second.columns["logprob/rollout"], [-3, 0])


def test_kl_penalty_in_the_reward(tmp_path: Path) -> None:
    scores = torch.tensor([[0, 0, 1.0, 0, 0], [0, 0.0, 0, 0, 0]])
    run = run_of(tmp_path, tiny(token_level_scores=scores, token_level_rewards=scores - 0.25 * tiny()["response_mask"]))
    assert [one.reward for one in run.read(0).rollouts] == [0.25, -0.5]
    assert any("after a KL penalty" in note for note in run.notes)
    np.testing.assert_equal(run.read(0).rollouts[0].columns["reward/token"], [-0.25, -0.25, 0.75])


def test_half_precision_and_pictures(tmp_path: Path) -> None:
    logs = torch.tensor([[-0.5, -1, -2, 0, 0], [-3, -0.25, 0, 0, 0]], dtype=torch.bfloat16)
    more = {
        "position_ids": torch.zeros(2, 3, 7, dtype=torch.int64),
        "routed_experts": torch.zeros(2, 7, 4, 2),
        "old_log_probs": logs,
    }
    pictures = np.empty(2, dtype=object)
    pictures[:] = [{"pixel_values": torch.ones(2, 2)}, {}]
    run = run_of(tmp_path, tiny(**more), {"multi_modal_inputs": pictures, "uid": np.array(["a", "b"], dtype=object)})
    assert "not read: multi_modal_inputs, routed_experts" in run.notes
    first, second = run.read(0).rollouts
    np.testing.assert_equal(first.columns["logprob/old"], [-0.5, -1, -2])
    assert (first.group_id, second.group_id, first.extra) == ("a", "b", {})


def test_without_a_response_mask_all_is_trained(tmp_path: Path) -> None:
    tensors = {name: value for name, value in tiny().items() if name != "response_mask"}
    run = run_of(tmp_path, tensors)
    assert any("every token of a response counts as trained" in note for note in run.notes)
    np.testing.assert_equal(run.read(0).rollouts[0].loss_mask, [True] * 3)


def test_without_an_attention_mask_no_padding_is_taken_for_a_prompt(tmp_path: Path) -> None:
    tensors = {name: value for name, value in tiny().items() if name != "attention_mask"}
    step = run_of(tmp_path, tensors).read(0)
    np.testing.assert_equal(step.rollouts[1].response_ids, [7, 2])
    assert step.rollouts[1].prompt_ids is None
    assert {problem.kind for problem in step.problems} == {"no-mask"}


def test_columns_of_other_lengths_are_told(tmp_path: Path) -> None:
    step = run_of(tmp_path, tiny(old_log_probs=-torch.ones(2, 4))).read(0)
    assert [problem.message for problem in step.problems] == ["5 tokens, 4 log-probs"] * 2
    assert "logprob/old" not in step.rollouts[0].columns


def by_numpy(tensors: Mapping[str, Any]) -> Any:
    """As ``serialize_tensordict`` does with ``VERL_DATAPROTO_SERIALIZATION_METHOD=numpy``."""
    items = {}
    for name, value in tensors.items():
        raw = value.flatten().contiguous().view(torch.uint8).numpy()
        items[name] = (str(value.dtype).removeprefix("torch."), value.shape, raw)
    return (2,), None, items


def test_saved_by_way_of_numpy(tmp_path: Path) -> None:
    logs = torch.tensor([[-0.5, -1, -2, 0, 0], [-3, -0.25, 0, 0, 0]], dtype=torch.bfloat16)
    file = tmp_path / "gen_batch.dp"
    file.write_bytes(data_proto(by_numpy(tiny(rollout_log_probs=logs)), {"uid": np.array(["a", "a"], dtype=object)}))
    first, second = open_run(file).read(0).rollouts
    np.testing.assert_equal(first.response_ids, [5, 6, 2])
    np.testing.assert_equal(second.columns["logprob/rollout"], [-3, -0.25])
    assert (first.group_id, second.group_id) == ("a", "a")


def test_jagged_tensors_in_a_consolidated_batch(tmp_path: Path) -> None:
    tensordict = pytest.importorskip("tensordict")
    rows = [torch.tensor([5, 6, 2]), torch.tensor([7, 2])]
    jagged = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    held = tensordict.TensorDict({"responses": jagged, "prompts": torch.tensor([[8], [9]])}, batch_size=[2]).consolidate()
    (tmp_path / "1").mkdir()
    torch.save({"tensordict": held, "keys": ["u_0_0", "u_1_0"], "tags": []}, tmp_path / "1/tq_batch.pt")
    first, second = open_run(tmp_path / "1/tq_batch.pt").read(1).rollouts
    np.testing.assert_equal(first.response_ids, [5, 6, 2])
    np.testing.assert_equal(second.response_ids, [7, 2])
    assert (first.group_id, second.sample_id) == ("u", "u_1_0")


# ── harm ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_of_a_pickle_runs(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    evil = Evil(trace)
    assert does_harm(evil, trace)
    places: list[tuple[Any, Any]] = [(b"", {"uid": evil}), (evil, {})]
    for held, objects in places:
        file = evil_file(tmp_path / "1/gen_batch.dp", instance("verl.protocol", "DataProto", body((held, objects, {}))))
        for path in (file, file.parent):
            with pytest.raises(FormatError, match=r"system, which is more than data, and was not run"):
                open_run(path)
    assert not trace.exists()


def test_nothing_of_the_tensors_inside_runs(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    buffer = io.BytesIO()
    torch.save({"tensordict": Evil(trace), "keys": []}, buffer)
    queue = evil_file(tmp_path / "tq_batch.pt", buffer.getvalue())
    batch = evil_file(tmp_path / "gen_batch.dp", data_proto(buffer.getvalue()))
    for file in (queue, batch):
        with pytest.raises(FormatError, match="was not run"):
            open_run(file)
    assert not trace.exists()


def test_what_a_user_trusts_is_still_no_batch(tmp_path: Path) -> None:
    file = evil_file(tmp_path / "x.dp", called("verl.protocol", "DataProto", body("a")))
    with pytest.raises(FormatError, match="a pickle of something else"):
        open_run(file)


def consolidated(leaves: Mapping[str, Any], size: int = 64) -> bytes:
    """A consolidated TensorDict whose table says what we want it to."""
    pytest.importorskip("tensordict")

    class Table:
        def __reduce__(self) -> Any:
            from tensordict._reductions import _rebuild_tensordict_files_consolidated as rebuild

            return rebuild, ({"leaves": dict(leaves)}, torch.arange(size, dtype=torch.uint8))

    buffer = io.BytesIO()
    torch.save(Table(), buffer)
    return buffer.getvalue()


def test_what_tensordict_told_torch_to_trust_is_not_used(tmp_path: Path) -> None:
    reductions = pytest.importorskip("tensordict._reductions")
    torch.serialization.add_safe_globals([reductions._rebuild_tensordict_files_consolidated])
    before = set(torch.serialization.get_safe_globals())
    table = {"responses": ("torch.int64", [2, 2], 0, 32, 0), "attention_mask": ("torch.uint8", [2, 2], 1, 5, 0)}
    file = tmp_path / "gen_batch.dp"
    file.write_bytes(data_proto(consolidated(table)))
    assert len(open_run(file).read(0).rollouts) == 2
    assert set(torch.serialization.get_safe_globals()) >= before


@pytest.mark.parametrize(
    "leaf",
    [
        ("torch.int64", [2, 2], 0, 10**12, 0),
        ("torch.int64", [2, 2], -8, 24, 0),
        ("torch.int64", [10**9, 10**9], 0, 64, 0),
        ("torch.int64", [2**60, 0], 0, 0, 0),
        ("torch.int64", ["2", 2], 0, 32, 0),
        ("torch.int64", [True, 2], 0, 32, 0),
        ("torch.float8", [2, 2], 0, 32, 0),
        (None, None, None, None, None),
        "leaf",
    ],
)
def test_tables_that_lie(tmp_path: Path, leaf: Any) -> None:
    file = tmp_path / "gen_batch.dp"
    file.write_bytes(data_proto(consolidated({"responses": leaf})))
    with pytest.raises(FormatError, match="holds no responses"):
        open_run(file)


def test_more_rows_than_bytes(tmp_path: Path) -> None:
    file = tmp_path / "gen_batch.dp"
    file.write_bytes(data_proto(consolidated({"responses": ("torch.int64", [10**9, 0], 0, 0, 0)})))
    with pytest.raises(FormatError, match="1000000000 rows in a file"):
        list(open_run(file).read(0).rollouts)


def test_jagged_rows_outside_their_values(tmp_path: Path) -> None:
    for offsets in ([0, 5, 3], [-2, 1, 3], [0, 1, 99]):
        table = np.array(offsets, np.int64)
        leaves = {
            "<NJT_VALUES>responses": ("torch.uint8", [8], 24, 32, 0),
            "<NJT_OFFSETS>responses": ("torch.int64", [3], 0, 24, 0),
        }
        raw = consolidated(leaves).replace(bytes(range(24)), table.tobytes())
        file = tmp_path / "gen_batch.dp"
        file.write_bytes(data_proto(raw))
        with pytest.raises(FormatError):
            open_run(file)


@pytest.mark.parametrize("raw", [b"", b"\x80", b"not a pickle", b"PK\x03\x04", named("verl.protocol", "DataProto")])
def test_files_that_are_none(tmp_path: Path, raw: bytes) -> None:
    for name in ("gen_batch.dp", "tq_batch.pt"):
        (tmp_path / name).write_bytes(raw)
        with pytest.raises(FormatError):
            open_run(tmp_path / name)


def test_one_broken_step_does_not_hide_the_others(tmp_path: Path) -> None:
    shutil.copytree(SETTING, tmp_path / "run")
    (tmp_path / "run/1/gen_batch.dp").write_bytes(b"\x80\x04")
    run = open_run(tmp_path / "run")
    assert len(run.read(2).rollouts) == 5
    with pytest.raises(FormatError, match="no readable pickle"):
        run.read(1)


@pytest.mark.parametrize("source", [SETTING / "1/gen_batch.dp", SAMPLE / "late_batch.dp", QUEUE])
def test_damage_gives_one_line_or_rows(tmp_path: Path, source: Path) -> None:
    assert rows_of_mutants(source, tmp_path / source.name, 150) > 0


def test_padding_id_of_the_sample_is_not_taken_for_a_token() -> None:
    for one in open_run(DUMP).read(1).rollouts:
        assert one.response_ids is not None
        assert PAD not in one.response_ids


@pytest.mark.parametrize(
    "objects",
    [
        {"uid": np.array(5, dtype=object), "raw_prompt": 5},
        {"uid": [{"a": 1}, [2]], "request_id": [None, 3], "min_global_steps": ["x", float("inf")]},
        {("a", "b"): ["x", "y"], "logprob/old": ["x", "y"], "advantage": [1, 2], "step": [None, "s"]},
        {"extra_fields": [{"reward_extra_info": 5, "logprob/old": [1]}, {"reward_extra_info": {"acc": [1, 2]}}]},
    ],
)
def test_objects_of_any_shape(tmp_path: Path, objects: dict[Any, Any]) -> None:
    file = tmp_path / "gen_batch.dp"
    file.write_bytes(data_proto(by_numpy(tiny()), objects, {"reward_extra_keys": 5}))
    first, second = open_run(file).read(0).rollouts
    np.testing.assert_equal(first.response_ids, [5, 6, 2])
    assert (first.columns, second.columns, first.advantage) == ({}, {}, None)
