"""OpenRLHF's experiences → our record, token by token: tensors spelled here, and tensors that OpenRLHF's own code made."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from credit_inspector.errors import UsageError
from credit_inspector.hooks.openrlhf import record_experiences, rollouts_of
from credit_inspector.rollout import Rollout
from credit_inspector.trainers.opening import open_run
from places import FORMATS
from places import SAMPLE as COUNTDOWN

torch = pytest.importorskip("torch")

RECORD = FORMATS / "record" / "openrlhf"


def experience(**fields: Any) -> SimpleNamespace:
    """Two sequences of 5 and 4 tokens, padded to 5; place t of all else is of token t + 1."""
    whole = {
        "sequences": torch.tensor([[5, 6, 11, 12, 13], [7, 21, 90, 22, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]]),
        "action_mask": torch.tensor([[0, 1, 1, 1], [1, 0, 1, 0]]),
        "action_log_probs": torch.tensor([[0.0, -0.25, -0.5, -0.75], [-1.0, 0.0, -1.5, 0.0]], dtype=torch.bfloat16),
        "base_action_log_probs": None,
        "rollout_log_probs": torch.tensor([[0.0, -2.0, -2.5, -3.0], [-4.0, 0.0, 0.0, 0.0]]),
        "values": None,
        "advantages": torch.tensor([[-9.0, 1.0, 2.0, 3.0], [4.0, -9.0, 5.0, -9.0]]),
        "rewards": torch.tensor([1.0, float("nan")]),
        "scores": torch.tensor([1.0, 0.0]),
        "truncated": torch.tensor([False, True]),
        "index": [1, 0],
        "prompts": ["first", "second"],
        "labels": ["4", "5"],
        "info": {"reward": torch.tensor([1.0, 0.0]), "response_clip_ratio": torch.tensor([False, True])},
    }
    return SimpleNamespace(**(whole | fields))


def test_place_by_place() -> None:
    second, first = rollouts_of([experience()])
    nan = np.nan
    assert (first.prompt_ids.tolist(), first.response_ids.tolist()) == ([5, 6], [11, 12, 13])
    assert (second.prompt_ids.tolist(), second.response_ids.tolist()) == ([7], [21, 90, 22])
    assert (first.loss_mask.tolist(), second.loss_mask.tolist()) == ([True] * 3, [True, False, True])
    same(first, "logprob/old", [-0.25, -0.5, -0.75])
    same(second, "logprob/old", [-1.0, nan, -1.5])
    same(first, "logprob/rollout", [-2.0, -2.5, -3.0])
    same(second, "logprob/rollout", [-4.0, nan, 0.0])  # a zero at a trained token is a value
    same(first, "advantage", [1.0, 2.0, 3.0])
    same(second, "advantage", [4.0, nan, 5.0])
    assert set(first.columns) == {"logprob/old", "logprob/rollout", "advantage"}
    assert (first.reward, second.reward) == (1.0, None)
    assert (first.truncated, second.truncated) == (False, True)
    assert (first.prompt, first.response) == ("first", None)
    assert dict(first.extra) == {"label": "4", "score": 1.0, "response_clip_ratio": 0.0}
    assert (first.sample_id, second.sample_id) == ("1", "0")


def same(one: Rollout, name: str, values: list[float]) -> None:
    np.testing.assert_array_equal(one.columns[name], np.array(values, np.float32))


def test_groups_are_openrlhfs_blocks_of_the_whole_batch() -> None:
    parts = [experience(index=[3, 0]), experience(index=[2, 1])]
    rollouts = rollouts_of(parts, samples_per_prompt=2)
    assert [(one.sample_id, one.group_id, one.group_source) for one in rollouts] == [
        ("0", "0", "contiguous"),
        ("1", "0", "contiguous"),
        ("2", "1", "contiguous"),
        ("3", "1", "contiguous"),
    ]
    by_prompt = rollouts_of(parts)
    assert [one.group_source for one in by_prompt] == ["same prompt"] * 4
    assert by_prompt[0].group_id == by_prompt[1].group_id != by_prompt[2].group_id


def test_batches_that_lost_their_index_keep_their_order() -> None:
    rollouts = rollouts_of([experience(index=None), experience(index=None)], samples_per_prompt=2)
    assert [one.sample_id for one in rollouts] == ["0", "1", "2", "3"]
    assert [one.group_id for one in rollouts] == ["0", "0", "1", "1"]


def test_response_without_a_trained_token() -> None:
    rollouts = rollouts_of([experience(action_mask=torch.zeros(2, 4))])
    assert [(len(one.prompt_ids), len(one.response_ids)) for one in rollouts] == [(4, 0), (5, 0)]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"action_mask": torch.ones(2, 3)}, r"action_mask of shape \(2, 3\) beside sequences \(2, 5\)"),
        ({"rollout_log_probs": torch.zeros(2, 5)}, r"logprob/rollout of shape \(2, 5\)"),
        ({"attention_mask": torch.tensor([[0, 1, 1, 1, 1]] * 2)}, "padded on the left"),
        ({"sequences": None}, "without sequences"),
    ],
)
def test_what_is_not_openrlhfs_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        rollouts_of([experience(**fields)])


def test_record_is_written_and_read_again(tmp_path: Path) -> None:
    for step in (1, 2):
        assert record_experiences(tmp_path / "run", step, [experience()], samples_per_prompt=2)
    run = open_run(tmp_path / "run")
    assert (run.trainer, run.steps) == ("record", (1, 2))
    assert set(run.columns) == {"logprob/old", "logprob/rollout", "advantage"}
    first = run.read(2).rollouts[1]
    assert (first.group_id, first.response_ids.tolist()) == ("2-0", [11, 12, 13])
    same(first, "advantage", [1.0, 2.0, 3.0])


def test_recording_never_ends_the_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        assert record_experiences(tmp_path / "file", 1, [experience()]) is None
        assert record_experiences(tmp_path / "run", 1, [experience(action_mask=torch.ones(2, 3))]) is None
    assert [record.getMessage()[:40] for record in caplog.records] == ["credit_inspector: step 1 is not recorded"] * 2


def test_sample_agrees_with_the_run_it_was_made_from() -> None:
    """The reference is the model that sampled step 1, so its log-probs are the sampler's, token by token."""
    run = open_run(RECORD)
    tokenizer = Tokenizer.from_file(str(COUNTDOWN / "tokenizer/tokenizer.json"))
    recorded = {tuple(one.response_ids.tolist()[:40]): one for one in open_run(COUNTDOWN).read(1).rollouts}
    cut = 0
    for one in run.read(1).rollouts:
        twin = recorded[tuple(one.response_ids.tolist()[:40])]
        length = len(one.response_ids)
        cut += length < len(twin.response_ids)
        assert one.response_ids.tolist() == twin.response_ids.tolist()[:length]
        assert one.prompt_ids.tolist() == twin.prompt_ids.tolist()
        assert one.response == tokenizer.decode(one.response_ids.tolist(), skip_special_tokens=False)
        assert one.truncated is (length < len(twin.response_ids))
        for name in ("logprob/rollout", "logprob/ref"):
            np.testing.assert_allclose(one.columns[name], twin.columns["logprob/rollout"][:length], atol=2e-5)
        assert not np.allclose(one.columns["logprob/old"], one.columns["logprob/ref"], atol=1e-2)
    assert cut == 1


def test_sample_advantages_are_those_of_its_groups() -> None:
    for step in (1, 2):
        rollouts = open_run(RECORD).read(step).rollouts
        rewards = np.array([one.reward for one in rollouts]).reshape(2, 4)
        centred = rewards - rewards.mean(1, keepdims=True)
        expected = (centred / (rewards.std(1, ddof=1, keepdims=True) + 1e-9)).ravel()
        for one, advantage in zip(rollouts, expected, strict=True):
            np.testing.assert_allclose(one.columns["advantage"][one.loss_mask], advantage, rtol=1e-5)
            assert np.isnan(one.columns["advantage"][~one.loss_mask]).all()
    assert rollouts[7].response_ids[~rollouts[7].loss_mask].tolist() == [200, 20, 23, 200]


@pytest.mark.skipif(find_spec("openrlhf") is None, reason="openrlhf is not installed")
def test_openrlhfs_own_experiences(tmp_path: Path) -> None:
    """Its own code lays out and pads; each token's values are found again where the response has it."""
    pytest.importorskip("transformers")
    from formats.countdown_rows import step
    from formats.openrlhf import experiences, model

    spec = find_spec("openrlhf")
    assert spec is not None
    assert spec.origin is not None
    rows = step(2)
    made = experiences(Path(spec.origin).parents[0], rows, longest=200)
    policy = model("step_000120")
    rollouts = rollouts_of(made, samples_per_prompt=4)
    for one, row in zip(rollouts, rows, strict=True):
        assert one.prompt_ids.tolist() == row.prompt_ids
        assert one.response_ids.tolist() == row.ids
        assert one.loss_mask.tolist() == [bool(each) for each in row.mask]
        sampled = [value if trained else np.nan for value, trained in zip(row.logprobs, row.mask, strict=True)]
        same(one, "logprob/rollout", sampled)
        np.testing.assert_allclose(one.columns["logprob/old"], alone(policy, row.prompt_ids, row.ids, row.mask), atol=1e-4)
        assert (one.reward, one.group_id) == (row.reward, str(row.group))
    assert record_experiences(tmp_path / "run", 1, made, samples_per_prompt=4)
    again = open_run(tmp_path / "run").read(1).rollouts
    for one, twin in zip(rollouts, again, strict=True):
        np.testing.assert_array_equal(one.columns["logprob/old"], twin.columns["logprob/old"])


def alone(policy: Any, prompt: list[int], response: list[int], mask: list[int]) -> list[float]:
    """Each response token's log-prob from the sequence by itself, without padding."""
    with torch.no_grad():
        logits = policy(torch.tensor([prompt + response])).logits[0].float().log_softmax(-1)
    found = [float(logits[len(prompt) + at - 1, token]) for at, token in enumerate(response)]
    return [value if trained else float("nan") for value, trained in zip(found, mask, strict=True)]
