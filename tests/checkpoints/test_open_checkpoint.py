"""What is no checkpoint that loads is named, with what to do; what lies at a trainer's own place inside is found."""

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
        (["optim_world_size_8_rank_0.pt"], "optimizer state only, no weights"),
        (["optimizer.pt", "trainer_state.json"], r"optimizer state only, no weights \(optimizer\.pt\)"),
        (["config.json", "tokenizer.json"], "holds no weights, only a config"),
        (
            ["checkpoint-2/config.json", "checkpoint-10/config.json"],
            r"checkpoints in checkpoint-2, checkpoint-10; .*10, the latest",
        ),
        (["checkpoints/step_4/trainer/"], r"checkpoints holds checkpoints in step_4; wanted one of them; name \S+/step_4$"),
        (["weights/step_4/x", "weights/step_8/x"], r"weights holds checkpoints in step_4, step_8"),
        (["epoch0epochstep1globalstep2/config.json"], "checkpoints in epoch0epochstep1globalstep2"),
        (
            [f"global_step_{step}/" for step in range(1, 9)],
            r"in global_step_1, global_step_2, global_step_3, …, global_step_7, glo",
        ),
        (["sft/config.json", "rl/config.json"], "holds models in rl, sft; wanted one of them"),
        (["notes.txt"], r"holds notes\.txt; wanted a folder with config\.json"),
        ([], "is empty"),
    ],
)
def test_folders(tmp_path: Path, names: list[str], words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        open_checkpoint(make(tmp_path, *names))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("note", ["latest_checkpointed_iteration.txt", "latest_ckpt_global_step.txt", "latest"])
@pytest.mark.parametrize(
    ("written", "named"), [("10", 10), ("global_step_10\n", 10), ("4", 4), ("7", 20), ("", 20), ("\udcff", 20)]
)
def test_the_trainers_note_of_the_latest(tmp_path: Path, note: str, written: str, named: int) -> None:
    make(tmp_path, *[f"global_step_{step}/actor/" for step in (4, 10, 20)])
    (tmp_path / note).write_bytes(written.encode("utf-8", "surrogateescape"))
    with pytest.raises(
        CheckpointError, match=rf"global_step_4, global_step_10, global_step_20; .*name \S+/global_step_{named}, the"
    ):
        open_checkpoint(tmp_path)


def test_single_files(tmp_path: Path) -> None:
    make(tmp_path, "policy.pt", "notes.txt", "model.safetensors")
    with pytest.raises(CheckpointError, match=r"policy\.pt is a pickle, which may hold code, and was not opened"):
        open_checkpoint(tmp_path / "policy.pt")
    with pytest.raises(CheckpointError, match=rf"one file of a model; wanted its folder; name {tmp_path}"):
        open_checkpoint(str(tmp_path / "model.safetensors"))
    with pytest.raises(CheckpointError, match="is one file"):
        open_checkpoint(tmp_path / "notes.txt")
    with pytest.raises(CheckpointError, match="there is no"):
        open_checkpoint(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "inner", ["actor/huggingface", "model/huggingface", "weight", "policy", "policy/huggingface", "huggingface"]
)
def test_models_at_trainers_places(tmp_path: Path, inner: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=8, hidden_size=4, intermediate_size=4, num_hidden_layers=1, num_attention_heads=1
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "step" / inner)
    for path in (tmp_path / "step", tmp_path / "step" / inner):
        found = open_checkpoint(path)
        assert (found.format, found.path) == ("huggingface", tmp_path / "step" / inner)
        assert found.load(torch.device("cpu"), torch.float32) is not None


def test_links_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "actor").symlink_to(tmp_path)
    with pytest.raises(CheckpointError, match="holds actor"):
        open_checkpoint(tmp_path)
