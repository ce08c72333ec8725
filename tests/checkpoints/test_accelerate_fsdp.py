"""What accelerate's ``save_fsdp_model`` leaves, whole and in shards."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from credit_inspector.checkpoints.opening import open_checkpoint  # noqa: E402
from credit_inspector.errors import CheckpointError  # noqa: E402

CPU = torch.device("cpu")
STEP = "accelerate/checkpoint-6"
INNER = "pytorch_model_fsdp_0"


@pytest.mark.parametrize("folder", [STEP, f"{STEP}/{INNER}"])
def test_shards_give_the_model_back(shards: Path, same: Any, folder: str) -> None:
    checkpoint = open_checkpoint(shards / folder, shards / "base")
    assert (checkpoint.format, checkpoint.path) == ("accelerate_fsdp", shards / STEP / INNER)
    assert checkpoint.summary.endswith("vocabulary 37, FSDP of accelerate in 2 files")
    same(checkpoint.load(CPU, torch.float32), shards / "whole.pt")


def test_config_of_the_trainer_above(shards: Path, tmp_path: Path, same: Any) -> None:
    step = Path(shutil.copytree(shards / STEP, tmp_path / "out" / "checkpoint-6"))
    shutil.copy(shards / "base" / "config.json", tmp_path / "out")
    same(open_checkpoint(step).load(CPU, torch.float32), shards / "whole.pt")


def test_full_state_dict_is_one_file(shards: Path, tmp_path: Path, same: Any) -> None:
    """FULL_STATE_DICT: ``torch.save`` of the state dict, as accelerate 1.15 does on rank 0."""
    torch.save(torch.load(shards / "whole.pt"), tmp_path / "pytorch_model_fsdp.bin")
    checkpoint = open_checkpoint(tmp_path, shards / "base")
    assert checkpoint.format == "accelerate_fsdp"
    same(checkpoint.load(CPU, torch.float32), shards / "whole.pt")


def test_code_in_the_one_file_never_runs_g06(shards: Path, tmp_path: Path, code: tuple[Any, Path]) -> None:
    thing, mark = code
    torch.save({"odd": thing}, tmp_path / "pytorch_model_fsdp.bin")
    with pytest.raises(CheckpointError, match=r"the pickle asks for \w+\.mkdir"):
        open_checkpoint(tmp_path, shards / "base").load(CPU, torch.float32)
    assert not mark.exists()


def test_flat_slices_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model_fsdp_rank0.bin").touch()
    with pytest.raises(CheckpointError, match=r"flat slices of FSDP \(LOCAL_STATE_DICT\)"):
        open_checkpoint(tmp_path)


def test_missing_files(shards: Path, tmp_path: Path) -> None:
    step = Path(shutil.copytree(shards / STEP, tmp_path / "checkpoint-6"))
    (step / INNER / "__0_0.distcp").unlink()
    with pytest.raises(CheckpointError, match=r"lacks 1 of 2 files: __0_0\.distcp"):
        open_checkpoint(step, shards / "base")
    (step / INNER / ".metadata").unlink()
    with pytest.raises(CheckpointError, match=rf"without their \.metadata; .*accelerate merge-weights {step / INNER} MERGED"):
        open_checkpoint(step, shards / "base")


def test_optimizer_alone_g05(shards: Path, tmp_path: Path) -> None:
    """The Trainer's ``optimizer_0`` without the model beside it."""
    shutil.copytree(shards / "nemo/step_2/policy/optimizer", tmp_path / "checkpoint-6" / "optimizer_0")
    with pytest.raises(CheckpointError, match=r"optimizer state only, no weights \(optimizer_0\)"):
        open_checkpoint(tmp_path / "checkpoint-6", shards / "base")
    with pytest.raises(CheckpointError, match="optimizer state only, no weights"):
        open_checkpoint(tmp_path / "checkpoint-6" / "optimizer_0", shards / "base")


def test_the_whole_model_beside_the_shards_is_taken(shards: Path, tmp_path: Path) -> None:
    """After ``accelerate merge-weights`` into the same folder."""
    import transformers

    step = Path(shutil.copytree(shards / STEP, tmp_path / "checkpoint-6"))
    transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(shards / "base")).save_pretrained(step)
    assert open_checkpoint(step).format == "huggingface"
