"""Hugging Face folders: what they hold without loading, and loading without running anything of theirs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from credit_inspector.checkpoints.huggingface import open_huggingface  # noqa: E402
from credit_inspector.checkpoints.opening import open_checkpoint  # noqa: E402
from credit_inspector.errors import CheckpointError  # noqa: E402

CPU = torch.device("cpu")


def model(*, tied: bool) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        tie_word_embeddings=tied,
    )
    return transformers.LlamaForCausalLM(config)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    model(tied=True).save_pretrained(folder / "tied")
    model(tied=False).save_pretrained(folder / "untied")
    model(tied=False).save_pretrained(folder / "sharded", max_shard_size="10KB")
    return {path.name: path for path in folder.iterdir()}


def pickled(saved: dict[str, Path], folder: Path, weights: dict[str, Any]) -> Path:
    shutil.copy(saved["untied"] / "config.json", folder)
    torch.save(weights, folder / "pytorch_model.bin")
    return folder


@pytest.mark.parametrize("name", ["tied", "untied", "sharded"])
def test_summary_and_loading(saved: dict[str, Path], name: str) -> None:
    checkpoint = open_checkpoint(saved[name])
    original = model(tied=name == "tied")
    count = sum(parameter.numel() for parameter in original.parameters())
    assert checkpoint.summary == f"Llama, {count / 1e3:.1f} k parameters, vocabulary 64"
    assert (checkpoint.format, checkpoint.vocabulary, checkpoint.tokenizer) == ("huggingface", 64, None)
    loaded = checkpoint.load(CPU, torch.float32)
    assert not loaded.training
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    ids = torch.arange(8)[None]
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, original.eval()(ids).logits)
    assert checkpoint.load(CPU, torch.bfloat16).dtype == torch.bfloat16


def test_trl_checkpoint_with_tokenizer(saved: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-4"
    shutil.copytree(saved["tied"], folder)
    (folder / "trainer_state.json").write_text("{}")
    (folder / "training_args.bin").write_bytes(b"a pickle that nobody opens")
    (folder / "tokenizer.json").write_text("{}")
    assert open_checkpoint(folder).tokenizer == folder
    assert open_checkpoint(folder).load(CPU, torch.float32) is not None


def test_missing_shard_is_named(saved: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "sharded"
    shutil.copytree(saved["sharded"], folder)
    shards = sorted(folder.glob("model-*.safetensors"))
    shards[1].unlink()
    with pytest.raises(CheckpointError, match=f"lacks 1 of {len(shards)} shards: {shards[1].name}"):
        open_checkpoint(folder)


def test_pickled_weights_load_restricted(saved: dict[str, Path], tmp_path: Path) -> None:
    checkpoint = open_checkpoint(pickled(saved, tmp_path, model(tied=False).state_dict()))
    assert checkpoint.summary == "Llama, vocabulary 64"
    assert checkpoint.load(CPU, torch.float32) is not None


class MakesAFolder:
    """Stands for any code that a pickle may carry."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        import os

        return os.mkdir, (self.path,)


def test_code_in_a_pickle_never_runs_g06(saved: dict[str, Path], tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    weights = {**model(tied=False).state_dict(), "odd": MakesAFolder(str(mark))}
    checkpoint = open_checkpoint(pickled(saved, tmp_path, weights))
    with pytest.raises(CheckpointError, match=r"the pickle asks for \w+\.mkdir, .* was not run; .*safetensors") as caught:
        checkpoint.load(CPU, torch.float32)
    assert not mark.exists()
    assert "weights_only" not in str(caught.value)


def test_numpy_scalar_in_a_pickle_is_named_g06(saved: dict[str, Path], tmp_path: Path) -> None:
    import numpy as np

    weights = {**model(tied=False).state_dict(), "odd": np.float64(1.0)}
    with pytest.raises(CheckpointError, match=r"the pickle asks for numpy\S*scalar"):
        open_checkpoint(pickled(saved, tmp_path, weights)).load(CPU, torch.float32)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda weights: weights.pop("model.norm.weight"), "1 missing tensors .model.norm.weight"),
        (lambda weights: weights.update(odd=torch.ones(2)), "1 unexpected tensors .odd"),
        (lambda weights: weights.update({"model.norm.weight": torch.ones(7)}), "1 mismatched tensors"),
    ],
)
def test_weights_that_do_not_fit(saved: dict[str, Path], tmp_path: Path, change: Any, words: str) -> None:
    weights = dict(model(tied=False).state_dict())
    change(weights)
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(pickled(saved, tmp_path, weights)).load(CPU, torch.float32)


def test_model_code_is_refused_g06(saved: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(saved["tied"], tmp_path / "own")
    config = json.loads((tmp_path / "own/config.json").read_text())
    (tmp_path / "own/config.json").write_text(json.dumps({**config, "auto_map": {"AutoModelForCausalLM": "m.Model"}}))
    with pytest.raises(CheckpointError, match="no code of the data's runs"):
        open_checkpoint(tmp_path / "own")


def test_damaged_files(saved: dict[str, Path], tmp_path: Path) -> None:
    for name, content, words in (
        ("config.json", b"{", "config.json cannot be read"),
        ("config.json", b"[]", "no JSON object"),
        ("model.safetensors", b"abc", "no safetensors file"),
        ("model.safetensors", b"\xff" * 40, "no safetensors file"),
    ):
        folder = tmp_path / "damaged"
        shutil.copytree(saved["tied"], folder, dirs_exist_ok=True)
        (folder / name).write_bytes(content)
        with pytest.raises(CheckpointError, match=words):
            open_checkpoint(folder)
    shutil.copytree(saved["tied"], folder, dirs_exist_ok=True)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-100])
    with pytest.raises(CheckpointError, match="does not load"):
        open_checkpoint(folder).load(CPU, torch.float32)


def test_larger_vocabulary_than_the_tokenizers_is_stated_g04(saved: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(saved["tied"], tmp_path / "padded")
    config = json.loads((tmp_path / "padded/config.json").read_text())
    config = {"text_config": {"vocab_size": 151936}, "architectures": config["architectures"]}
    (tmp_path / "padded/config.json").write_text(json.dumps(config))
    assert open_checkpoint(tmp_path / "padded").vocabulary == 151936


def test_other_folders_are_not_its_own(tmp_path: Path) -> None:
    assert open_huggingface(tmp_path) is None
    assert open_huggingface(tmp_path / "nowhere") is None
