"""What is no checkpoint that loads is named, with the command that makes one of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from credit_inspector.checkpoints.opening import open_checkpoint
from credit_inspector.errors import CheckpointError


def make(folder: Path, *names: str) -> Path:
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            file.mkdir(exist_ok=True)
        else:
            file.write_bytes(b"{}")
    return folder


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["adapter_config.json", "adapter_model.safetensors"], "adapter without its base model.*merge_and_unload"),
        (["model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt"], "world size 2; .*verl.model_merger.*fsdp"),
        (["optim_world_size_8_rank_0.pt"], "optimizer state only, no weights"),
        ([".metadata", "__0_0.distcp"], "distributed torch checkpoint.*dcp_to_torch_save"),
        ([".metadata", "__0_0.distcp", "common.pt"], "Megatron checkpoint in shards.*convert_torch_dist_to_hf"),
        (["dist_ckpt/x", "huggingface/config.json"], "Megatron checkpoint of verl.*--backend megatron"),
        (["latest", "global_step4/mp_rank_00_model_states.pt"], "DeepSpeed ZeRO.*zero_to_fp32"),
        (["global_step_4/actor/model_world_size_1_rank_0.pt"], "verl checkpoints by step.*name .*actor"),
        (["model.gguf"], "GGUF weights, which are quantised"),
        (["config.json", "tokenizer.json"], "holds no weights, only a config"),
        (["checkpoint-2/config.json", "checkpoint-10/config.json"], "checkpoints in checkpoint-2, checkpoint-10; .*10"),
        (["notes.txt"], r"holds notes\.txt; wanted a folder with config\.json"),
        ([], "is empty"),
    ],
)
def test_folders(tmp_path: Path, names: list[str], words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        open_checkpoint(make(tmp_path, *names))
    assert "\n" not in str(caught.value)


def test_accelerate_shards(tmp_path: Path) -> None:
    folder = make(tmp_path / "pytorch_model_fsdp_0", ".metadata", "__0_0.distcp")
    with pytest.raises(CheckpointError, match="accelerate merge-weights"):
        open_checkpoint(folder)


def test_missing_rank_and_config_beside_the_shards_g05(tmp_path: Path) -> None:
    shards = [f"model_world_size_8_rank_{rank}.pt" for rank in (0, 1, 2, 4, 5, 6, 7)]
    actor = make(tmp_path / "actor", *shards, "huggingface/config.json")
    with pytest.raises(CheckpointError, match=r"FSDP shards of world size 8, rank 3 missing; .*copy the rest and merge"):
        open_checkpoint(actor)
    with pytest.raises(CheckpointError, match=r"huggingface/ holds no weights.*the weights lie beside it.*rank 3 missing"):
        open_checkpoint(actor / "huggingface")


def test_single_files(tmp_path: Path) -> None:
    make(tmp_path, "policy.pt", "model.gguf", "notes.txt")
    with pytest.raises(CheckpointError, match=r"policy\.pt is a pickle, which may hold code, and was not opened"):
        open_checkpoint(tmp_path / "policy.pt")
    with pytest.raises(CheckpointError, match="GGUF"):
        open_checkpoint(str(tmp_path / "model.gguf"))
    with pytest.raises(CheckpointError, match="is one file"):
        open_checkpoint(tmp_path / "notes.txt")
    with pytest.raises(CheckpointError, match="there is no"):
        open_checkpoint(tmp_path / "nowhere")
