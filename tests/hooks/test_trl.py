"""A real TRL training, recorded: what the record says against what TRL itself computed; and failures that must not hurt."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from credit_inspector import attach
from credit_inspector.errors import StoreError, UsageError
from credit_inspector.table import TokenTable
from credit_inspector.trainers import ReadOptions
from credit_inspector.trainers.record import open_record

pytest.importorskip("trl")

BATCH, GROUP = 4, 2


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with a character tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("start")
    alphabet = ["<pad>", "<eos>", *"abcdefgh"]
    characters = Tokenizer(models.WordLevel({c: i for i, c in enumerate(alphabet)}, unk_token="<pad>"))
    characters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=characters, pad_token="<pad>", eos_token="<eos>", padding_side="left")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(alphabet),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def reward(completions: list[str], **_: Any) -> list[float]:
    return [float(text.count("a")) for text in completions]


def reward_or_none(completions: list[str], **_: Any) -> list[float | None]:
    return [None if i % 2 else 1.0 for i in range(len(completions))]


def make_trainer(start: Path, out: Path, **changes: Any) -> Any:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, set_seed
    from trl import GRPOConfig, GRPOTrainer

    set_seed(3)
    settings = {
        "output_dir": str(out),
        "max_steps": 4,
        "per_device_train_batch_size": BATCH,
        "num_generations": GROUP,
        "num_iterations": 2,
        "max_completion_length": 6,
        "learning_rate": 1e-2,
        "beta": 0.1,
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "gradient_checkpointing": False,
    }
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32),
        processing_class=PreTrainedTokenizerFast.from_pretrained(start),
        reward_funcs=[reward, reward_or_none],
        train_dataset=Dataset.from_list([{"prompt": p, "target": i} for i, p in enumerate(["ab", "cde", "fg", "h"])]),
        args=GRPOConfig(**{**settings, **changes}),
    )


def losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("changes", [{}, {"gradient_accumulation_steps": 2}, {"num_iterations": 1}, {"beta": 0.0}])
def test_the_record_is_what_the_trainer_saw(start: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    trainer = make_trainer(start, tmp_path, **changes)
    hook = attach(trainer)
    seen: list[dict[str, Any]] = []
    compute = trainer._compute_loss

    def spy(model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        seen.append(
            {
                "step": trainer.state.global_step + 1,
                "advantages": inputs["advantages"].tolist(),
                "ids": inputs["completion_ids"].tolist(),
                "mask": inputs["completion_mask"].tolist(),
            }
        )
        return compute(model, inputs, *args, **kwargs)

    trainer._compute_loss = spy
    trainer.train()
    run = open_record(hook.folder, ReadOptions())
    assert run is not None
    assert run.steps == (1, 2, 3, 4)
    for number in run.steps:
        step = run.read(number)
        table = TokenTable.from_rollouts(number, step.rollouts)
        wanted = [
            ([token for token, keep in zip(ids, mask, strict=True) if keep], advantage)
            for batch in seen
            if batch["step"] == number
            for ids, mask, advantage in zip(batch["ids"], batch["mask"], batch["advantages"], strict=True)
        ]
        found = [(r.response_ids.tolist(), r.advantage) for r in step.rollouts]
        assert sorted(found) == sorted(wanted)
        for rollout in step.rollouts:
            text = (rollout.response or "").replace("<eos>", "").replace("<pad>", "")
            assert rollout.rewards["reward"] == text.count("a")
            assert rollout.reward == pytest.approx(sum(v for v in rollout.rewards.values() if v is not None))
            assert {"ab": 0, "cde": 1, "fg": 2, "h": 3}[(rollout.prompt or "").replace(" ", "")] == rollout.extra["target"]
        assert np.isfinite(table.values("logprob/policy")).all()
        if table.has("logprob/old"):
            close = np.abs(table.values("logprob/old") - table.values("logprob/rollout"))
            assert close.max() < 1e-4  # the engine is the model: only the cache differs
        assert table.has("logprob/ref") == (changes.get("beta", 0.1) > 0)


def test_weights_of_the_engine_and_the_sampling_settings_are_recorded(start: Path, tmp_path: Path) -> None:
    """With vLLM, TRL hands each loss one weight a response (its sequence modes) under this name."""
    trainer = make_trainer(start, tmp_path, top_p=0.9, num_iterations=1)
    generate = trainer._generate_and_score_completions

    def with_weights(inputs: Any) -> dict[str, Any]:
        output = generate(inputs)
        output["importance_sampling_ratio"] = torch.arange(1.0, BATCH + 1)[:, None]
        return output

    trainer._generate_and_score_completions = with_weights
    hook = attach(trainer)
    trainer.train()
    for rollout in open_record(hook.folder, ReadOptions()).read(1).rollouts:
        row = int(rollout.sample_id.split("-")[1])
        np.testing.assert_array_equal(rollout.columns["rollout_weight"], row + 1)
        assert (rollout.extra["temperature"], rollout.extra["top_p"]) == (1.0, 0.9)


def test_groups_share_a_prompt_and_their_advantages_follow_from_their_rewards(start: Path, tmp_path: Path) -> None:
    trainer = make_trainer(start, tmp_path)
    hook = attach(trainer)
    trainer.train()
    step = open_record(hook.folder, ReadOptions()).read(1)
    for group in {r.group_id for r in step.rollouts}:
        members = [r for r in step.rollouts if r.group_id == group]
        assert len(members) == GROUP
        assert len({r.prompt for r in members}) == 1
        rewards = np.array([r.reward for r in members])
        wanted = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
        np.testing.assert_allclose([r.advantage for r in members], wanted, atol=1e-5)


def test_scalars_reach_jsonl_and_tensorboard(start: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trainer = make_trainer(start, tmp_path)
    hook = attach(trainer, keep=lambda step: step == 2)
    trainer.train()
    lines = [json.loads(line) for line in (hook.folder / "credit.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert lines[0]["ratio/mean"] == pytest.approx(1.0)
    assert lines[1]["ratio/max"] != pytest.approx(1.0)
    events = EventAccumulator(str(hook.folder / "tensorboard"))
    events.Reload()
    logged = {event.step: event.value for event in events.Scalars("kl/k3_mean")}
    assert logged == pytest.approx({line["step"]: line["kl/k3_mean"] for line in lines}, rel=1e-5)
    assert open_record(hook.folder, ReadOptions()).steps == (2,)


class Broken:
    def scalars(self, step: int, values: Any) -> None:
        raise OSError("no space left on device")

    def close(self) -> None:
        raise OSError("no space left on device")


@pytest.mark.parametrize("fault", ["none", "sink", "writer", "look"])
def test_training_is_the_same_with_and_without_us(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    plain = make_trainer(start, tmp_path / "plain")
    plain.train()
    watched = make_trainer(start, tmp_path / "watched")

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("planted")

    if fault == "sink":
        monkeypatch.setitem(__import__("credit_inspector.sinks", fromlist=["sinks"]).sinks._members, "broken", lambda _: Broken())
    if fault == "writer":
        monkeypatch.setattr("credit_inspector.live.record.write_step", fail)
    hook = attach(watched, sinks=("broken",) if fault == "sink" else ("jsonl",))
    if fault == "look":
        monkeypatch.setattr(hook, "_take_loss", fail)
    with caplog.at_level(logging.WARNING, logger="credit_inspector"):
        watched.train()
    assert losses(watched) == losses(plain)
    assert bool([r for r in caplog.records if r.name == "credit_inspector"]) == (fault != "none")
    for a, b in zip(plain.model.parameters(), watched.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_attaching_twice_is_once_and_detaching_restores(start: Path, tmp_path: Path) -> None:
    trainer = make_trainer(start, tmp_path)
    before = trainer._compute_loss
    hook = attach(trainer)
    assert attach(trainer) is hook
    hook.detach()
    assert trainer._compute_loss == before
    assert not hasattr(trainer, "_credit_inspector")


def test_a_folder_with_a_record_is_refused(start: Path, tmp_path: Path) -> None:
    trainer = make_trainer(start, tmp_path, max_steps=1)
    attach(trainer)
    trainer.train()
    with pytest.raises(StoreError, match="already holds a record"):
        attach(make_trainer(start, tmp_path))


def test_what_is_no_trainer_is_refused() -> None:
    with pytest.raises(UsageError, match="wanted a TRL GRPOTrainer"):
        attach(object())
