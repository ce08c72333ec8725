"""Hugging Face folders: what they hold without loading, and loading without running anything of theirs."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from credit_inspector.checkpoints import CheckpointOptions  # noqa: E402
from credit_inspector.checkpoints.huggingface import open_huggingface  # noqa: E402
from credit_inspector.checkpoints.opening import open_checkpoint  # noqa: E402
from credit_inspector.errors import CheckpointError  # noqa: E402
from credit_inspector.rollout import Rollout  # noqa: E402
from credit_inspector.scoring import Models  # noqa: E402
from credit_inspector.table import TokenTable  # noqa: E402
from credit_inspector.tokens import pieces  # noqa: E402

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


def header(**entry: Any) -> bytes:
    raw = json.dumps({"x": {"dtype": "F32", "data_offsets": [0, 4], **entry}}).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(4)


def test_damaged_files(saved: dict[str, Path], tmp_path: Path) -> None:
    for name, content, words in (
        ("config.json", b"{", "config.json cannot be read"),
        ("config.json", b"[]", "no JSON object"),
        ("model.safetensors", b"abc", "no safetensors file"),
        ("model.safetensors", b"\xff" * 40, "no safetensors file"),
        ("model.safetensors", header(shape=[10**300]), "no safetensors file"),
        ("model.safetensors", header(shape=[-1]), "no safetensors file"),
        ("model.safetensors", header(shape="ab"), "no safetensors file"),
        ("model.safetensors", header(shape=7), "no safetensors file"),
        ("model.safetensors", header(size=7), "no safetensors file"),
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


def test_padding_ids_are_scored_and_ids_outside_the_model_are_not_g04(saved: dict[str, Path]) -> None:
    """60 words in the tokenizer, 64 rows in the model: 62 is a padding id, 64 is outside. Both show in a viewer."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    tokenizer = Tokenizer(WordLevel({f"w{i}": i for i in range(60)}, unk_token="w0"))
    rows = {"padding": [9, 62], "outside": [9, 64], "far": [9, 152000]}
    assert [pieces(tokenizer, ids).text[1] for ids in rows.values()] == ["<id 62>", "<id 64>", "<id 152000>"]
    prompt = np.array([1, 2], np.int32)
    rollouts = [Rollout(sample_id=name, prompt_ids=prompt, response_ids=np.array(ids, np.int32)) for name, ids in rows.items()]
    table = TokenTable.from_rollouts(0, rollouts)
    logprob = Models({"policy": open_checkpoint(saved["tied"])}, "cpu").scores("policy", table).logprob
    assert np.isfinite(logprob[:2]).all()
    assert np.isnan(logprob[2:]).all()
    assert [(problem.message, problem.where) for problem in table.problems] == [
        ("id 64 outside the model's vocabulary 64", "outside"),
        ("id 152000 outside the model's vocabulary 64", "far"),
    ]


# ── shards ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def shards(saved: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved["sharded"], tmp_path / "sharded"))


def test_shards_without_their_index(shards: Path) -> None:
    (shards / "model.safetensors.index.json").unlink()
    count = len(list(shards.glob("model-*.safetensors")))
    with pytest.raises(CheckpointError, match=rf"{count} shards and no index; wanted model\.safetensors\.index\.json"):
        open_checkpoint(shards)


def test_a_shard_of_another_checkpoint(shards: Path) -> None:
    """Same name, other tensors: of a save with another split."""
    first, second = sorted(shards.glob("model-*.safetensors"))[:2]
    shutil.copy(second, first)
    with pytest.raises(CheckpointError, match=rf"{first.name} is a foreign shard: \d+ of the \d+ tensors .*embed_tokens"):
        open_checkpoint(shards)


def test_shards_of_another_count(shards: Path) -> None:
    shutil.copy(next(iter(shards.glob("model-*.safetensors"))), shards / "model-00001-of-00099.safetensors")
    with pytest.raises(CheckpointError, match=r"1 foreign shards, which .*index\.json does not name: model-00001-of-00099"):
        open_checkpoint(shards)


def test_a_shard_of_another_model(saved: dict[str, Path], shards: Path) -> None:
    """Same names, other shapes."""
    from safetensors.torch import load_file, save_file

    file = sorted(shards.glob("model-*.safetensors"))[0]
    save_file({name: torch.zeros(3, 3) for name in load_file(file)}, file)
    with pytest.raises(CheckpointError, match="mismatched tensors"):
        open_checkpoint(shards).load(CPU, torch.float32)


@pytest.mark.parametrize("name", ["../tied/model.safetensors", "/etc/passwd", "a/b", "..\\x", "n" * 300, "\ud800", ""])
def test_an_index_stays_in_its_folder(shards: Path, name: str) -> None:
    index = shards / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    with pytest.raises(CheckpointError, match="names a file outside the folder"):
        open_checkpoint(shards)


def test_pickled_shards(saved: dict[str, Path], tmp_path: Path) -> None:
    shutil.copy(saved["untied"] / "config.json", tmp_path)
    weights = model(tied=False).state_dict()
    names = {name: f"pytorch_model-0000{1 + (i % 2)}-of-00002.bin" for i, name in enumerate(weights)}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    for file in set(names.values()):
        torch.save({name: weights[name] for name in weights if names[name] == file}, tmp_path / file)
    loaded = open_checkpoint(tmp_path).load(CPU, torch.float32)
    torch.testing.assert_close(dict(loaded.state_dict()), dict(weights))


# ── what is missing ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_untied_head_that_is_missing(saved: dict[str, Path], tmp_path: Path) -> None:
    weights = dict(model(tied=False).state_dict())
    del weights["lm_head.weight"]
    words = r"the head lm_head\.weight is missing, and the config does not tie it .*set tie_word_embeddings to true"
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(pickled(saved, tmp_path, weights)).load(CPU, torch.float32)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    loaded: Any = open_checkpoint(tmp_path).load(CPU, torch.float32)
    torch.testing.assert_close(loaded.lm_head.weight, weights["model.embed_tokens.weight"])


@pytest.mark.parametrize("beside", [(), ("config.json", "tokenizer.json", "trainer_state.json")])
def test_an_optimizers_state_alone(tmp_path: Path, beside: tuple[str, ...]) -> None:
    for name in ("optimizer.pt", "scheduler.pt", "training_args.bin", "rng_state.pth", "rng_state_0.pth", *beside):
        (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(CheckpointError, match=r"optimizer state only, no weights \(optimizer\.pt, rng_state\.pth"):
        open_checkpoint(tmp_path)


def test_a_config_of_a_far_larger_model_is_not_filled_up(saved: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(saved["tied"], tmp_path / "grown")
    config = json.loads((tmp_path / "grown/config.json").read_text())
    for change, words in (
        ({"vocab_size": 10**10}, "the config describes a model of 160.0 G parameters, and the weights are"),
        ({"num_hidden_layers": 10**9}, "the config asks for num_hidden_layers = 1000000000"),
    ):
        (tmp_path / "grown/config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(CheckpointError, match=words):
            open_checkpoint(tmp_path / "grown").load(CPU, torch.float32)


# ── no code of the data's ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "change",
    [
        {"auto_map": {"AutoConfig": "planted.Config", "AutoModelForCausalLM": "planted.Model"}},
        {"text_config": {"auto_map": {"AutoModelForCausalLM": "planted.Model"}}},
        {"attn_implementation": "somebody/kernel"},
        {"text_config": {"_attn_implementation": "somebody/kernel@main"}},
        {"experts_implementation": "somebody/kernel"},
    ],
)
def test_planted_model_code_leaves_no_trace_g06(saved: dict[str, Path], tmp_path: Path, change: dict[str, Any]) -> None:
    folder = Path(shutil.copytree(saved["tied"], tmp_path / "planted"))
    mark = tmp_path / "ran"
    (folder / "planted.py").write_text(f"from pathlib import Path\nPath({str(mark)!r}).touch()\nModel = Config = None\n")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(CheckpointError, match="no code of the data's runs here"):
        open_checkpoint(folder)
    assert not mark.exists()


def test_no_setting_of_torchs_opens_a_pickle_g06(saved: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    mark = tmp_path / "ran"
    weights = {**model(tied=False).state_dict(), "odd": MakesAFolder(str(mark))}
    with pytest.raises(CheckpointError, match="was not run"):
        open_checkpoint(pickled(saved, tmp_path, weights)).load(CPU, torch.float32)
    assert not mark.exists()


def test_a_hook_beside_the_weights_is_not_opened_g06(saved: dict[str, Path], tmp_path: Path) -> None:
    """``training_args.bin`` and the optimizer are pickles with foreign types; nobody asks for them."""
    folder = Path(shutil.copytree(saved["tied"], tmp_path / "checkpoint-4"))
    mark = tmp_path / "ran"
    for name in ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch.save(MakesAFolder(str(mark)), folder / name)
    open_checkpoint(folder).load(CPU, torch.float32)
    assert not mark.exists()


def test_other_folders_are_not_its_own(tmp_path: Path) -> None:
    assert open_huggingface(tmp_path, CheckpointOptions()) is None
    assert open_huggingface(tmp_path / "nowhere", CheckpointOptions()) is None


@pytest.mark.parametrize("kind", ["qwen2", "gpt2"])
def test_other_architectures(tmp_path: Path, kind: str) -> None:
    torch.manual_seed(0)
    if kind == "gpt2":
        config = transformers.GPT2Config(vocab_size=64, n_embd=16, n_layer=2, n_head=2, n_positions=64)
        original = transformers.GPT2LMHeadModel(config).eval()
    else:
        shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        config = transformers.Qwen2Config(vocab_size=64, num_key_value_heads=1, **shape)
        original = transformers.Qwen2ForCausalLM(config).eval()
    original.save_pretrained(tmp_path)
    loaded = open_checkpoint(tmp_path).load(CPU, torch.float32)
    ids = torch.arange(8)[None]
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, original(ids).logits)
