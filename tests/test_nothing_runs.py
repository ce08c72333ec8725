"""Planted code in files that people are handed leaves no trace, whatever verb they use."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from credit_inspector.cli import app
from places import SAMPLE


class Plant:
    """Makes a folder when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = str(trace)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.trace,)


def slime(folder: Path, plant: Plant) -> Path:
    (folder / "rollout_data").mkdir()
    torch.save({"rollout_id": 0, "samples": [{"metadata": plant}]}, folder / "rollout_data/0.pt")
    return folder


def slime_file(folder: Path, plant: Plant) -> Path:
    torch.save({"rollout_id": 0, "samples": [plant]}, folder / "0.pt")
    return folder / "0.pt"


def skyrl(folder: Path, plant: Plant) -> Path:
    (folder / "dumped_data").mkdir()
    (folder / "dumped_data/global_step_1_training_input.pkl").write_bytes(pickle.dumps(plant))
    return folder


def skyrl_file(folder: Path, plant: Plant) -> Path:
    return skyrl(folder, plant) / "dumped_data/global_step_1_training_input.pkl"


def verl(folder: Path, plant: Plant) -> Path:
    (folder / "1").mkdir()
    (folder / "1/gen_batch.dp").write_bytes(pickle.dumps(plant))
    (folder / "1/meta.json").write_text('{"global_steps": 1}')
    return folder


def verl_file(folder: Path, plant: Plant) -> Path:
    return verl(folder, plant) / "1/gen_batch.dp"


def verl_queue(folder: Path, plant: Plant) -> Path:
    (folder / "1").mkdir()
    torch.save({"tensordict": plant, "keys": ["a_0_0"], "tags": [{}]}, folder / "1/tq_batch.pt")
    return folder


def roll(folder: Path, plant: Plant) -> Path:
    (folder / "train").mkdir()
    (folder / "train/step_000001.pkl").write_bytes(pickle.dumps(plant))
    return folder


def any_pickle(folder: Path, plant: Plant) -> Path:
    (folder / "rollouts.pkl").write_bytes(pickle.dumps(plant))
    return folder / "rollouts.pkl"


def bin_checkpoint(folder: Path, plant: Plant) -> Path:
    (folder / "config.json").write_text('{"model_type": "llama", "vocab_size": 8}')
    torch.save({"w": plant}, folder / "pytorch_model.bin")
    return folder


def training_arguments(folder: Path, plant: Plant) -> Path:
    bin_checkpoint(folder, plant)
    torch.save(plant, folder / "training_args.bin")
    return folder


def adapter(folder: Path, plant: Plant) -> Path:
    base = SAMPLE / "checkpoints"
    (folder / "adapter_config.json").write_text(f'{{"peft_type": "LORA", "base_model_name_or_path": "{base}"}}')
    torch.save({"w": plant}, folder / "adapter_model.bin")
    return folder


def shards(folder: Path, plant: Plant) -> Path:
    actor = folder / "global_step_1/actor"
    (actor / "huggingface").mkdir(parents=True)
    (actor / "huggingface/config.json").write_text('{"model_type": "llama", "vocab_size": 8}')
    torch.save({"w": plant}, actor / "model_world_size_1_rank_0.pt")
    return actor


def distributed(folder: Path, plant: Plant) -> Path:
    (folder / ".metadata").write_bytes(pickle.dumps(plant))
    (folder / "__0_0.distcp").write_bytes(b"")
    (folder / "config.json").write_text('{"model_type": "llama", "vocab_size": 8}')
    return folder


def deepspeed(folder: Path, plant: Plant) -> Path:
    (folder / "latest").write_text("global_step1")
    (folder / "global_step1").mkdir()
    for name in ("mp_rank_00_model_states.pt", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"):
        torch.save({"module": plant}, folder / "global_step1" / name)
    (folder / "config.json").write_text('{"model_type": "llama", "vocab_size": 8}')
    return folder


def remote_code(folder: Path, plant: Plant) -> Path:
    (folder / "config.json").write_text('{"model_type": "own", "auto_map": {"AutoModelForCausalLM": "modeling.Own"}}')
    (folder / "modeling.py").write_text(f"import os\nos.mkdir({plant.trace!r})\n")
    (folder / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    return folder


RUNS = [slime, slime_file, skyrl, skyrl_file, verl, verl_file, verl_queue, roll, any_pickle]
CHECKPOINTS = [bin_checkpoint, training_arguments, adapter, shards, distributed, deepspeed, remote_code]


@pytest.mark.parametrize("plant", [*RUNS, *CHECKPOINTS])
def test_no_trace(tmp_path: Path, plant: Callable[[Path, Plant], Path]) -> None:
    folder, trace = tmp_path / "data", tmp_path / "trace"
    folder.mkdir()
    path = plant(folder, Plant(trace))
    verbs = [["scan", str(path)]]
    if plant in CHECKPOINTS:
        verbs += [["analyze", str(SAMPLE), "--out", str(tmp_path / "out"), "--policy", str(path), "--step", "101"]]
    else:
        verbs += [[verb, str(path)] for verb in ("check", "report", "what-if")]
        verbs += [["analyze", str(path), "--out", str(tmp_path / "out")]]
    for words in verbs:
        result = CliRunner().invoke(app, words)
        assert result.exception is None or isinstance(result.exception, SystemExit) or "\n" not in str(result.exception), words
        assert not trace.exists(), words
    if plant is not training_arguments:
        assert result.exit_code != 0
