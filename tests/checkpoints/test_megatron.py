"""Megatron's checkpoints are answered with the command that converts them, with their own paths in it."""

from __future__ import annotations

import shlex
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


def answer(path: Path, base: Path | None = None) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path, base)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_slime(tmp_path: Path) -> None:
    run = tmp_path / "a run"
    for number in (3, 12):
        make(run / f"iter_{number:07d}", ".metadata", "__0_0.distcp", "common.pt", "metadata.json")
    command = "python tools/convert_torch_dist_to_hf.py --input-dir {} --output-dir MERGED --origin-hf-dir {}"
    newest = run / "iter_0000012"
    assert answer(run).endswith(command.format(shlex.quote(str(newest)), "HF_MODEL_IT_BEGAN_FROM"))
    assert answer(newest, tmp_path).endswith(command.format(shlex.quote(str(newest)), tmp_path))
    (run / "latest_checkpointed_iteration.txt").write_text("3\n")
    assert shlex.quote(str(run / "iter_0000003")) in answer(run)
    (run / "latest_checkpointed_iteration.txt").write_text("release")
    assert shlex.quote(str(newest)) in answer(run)


def test_torch_dist_without_common_is_told_by_its_settings(tmp_path: Path) -> None:
    make(tmp_path, ".metadata", "__0_0.distcp")
    (tmp_path / "metadata.json").write_text('{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')
    assert f"convert_torch_dist_to_hf.py --input-dir {tmp_path}" in answer(tmp_path)


@pytest.mark.parametrize("inner", ["dist_ckpt", "model/dist_ckpt"])
@pytest.mark.parametrize("named", ["", "actor", "actor/huggingface", "actor/INNER"])
def test_verl(tmp_path: Path, inner: str, named: str) -> None:
    actor = make(tmp_path / "actor", f"{inner}/.metadata", f"{inner}/common.pt", "huggingface/config.json")
    told = answer(tmp_path / named.replace("INNER", inner))
    command = f"python -m verl.model_merger merge --backend megatron --local_dir {actor} --target_dir MERGED"
    assert "Megatron checkpoint of verl" in told
    assert command in told


def test_verl_with_the_whole_model_beside_it(tmp_path: Path) -> None:
    whole = "model/huggingface"
    actor = make(tmp_path / "actor", "model/dist_ckpt/", f"{whole}/config.json", f"{whole}/model.safetensors")
    assert answer(actor).endswith(f"name {actor / whole}")


def test_nemo_rl(tmp_path: Path) -> None:
    step = make(
        tmp_path / "step_5", "config.yaml", "policy/weights/iter_0000000/common.pt", "policy/weights/iter_0000000/.metadata"
    )
    folder = step / "policy" / "weights" / "iter_0000000"
    command = (
        f"python examples/converters/convert_megatron_to_hf.py --config {step / 'config.yaml'} "
        f"--megatron-ckpt-path {folder} --hf-ckpt-path MERGED"
    )
    for path in (step, step / "policy" / "weights", folder):
        assert answer(path).endswith(command)


def test_older_checkpoints_by_rank(tmp_path: Path) -> None:
    folder = make(tmp_path / "iter_0000001", "mp_rank_00_000/model_optim_rng.pt").parent
    assert "Megatron checkpoint by rank (mp_rank_*)" in answer(folder)


def test_a_folder_named_like_one_is_none(tmp_path: Path) -> None:
    assert "Megatron" not in answer(make(tmp_path, "iter_0000001/notes.txt"))
