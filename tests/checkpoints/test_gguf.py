"""GGUF files written by llama.cpp's own writer, against the model that they were made from."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")
pytest.importorskip("accelerate")

from credit_inspector.checkpoints import CheckpointOptions  # noqa: E402
from credit_inspector.checkpoints.gguf import open_gguf  # noqa: E402
from credit_inspector.checkpoints.opening import open_checkpoint  # noqa: E402
from credit_inspector.errors import CheckpointError, MissingExtra  # noqa: E402
from places import SAMPLE  # noqa: E402

CPU = torch.device("cpu")
IDS = torch.arange(3, 19)[None]


def model() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=False,
    )
    return transformers.LlamaForCausalLM(config).eval()


def permuted(weight: Any, heads: int) -> Any:
    """Rotary halves as llama.cpp has them, from its convert_hf_to_gguf.py (LlamaModel.permute)."""
    rows = weight.shape[0]
    return weight.reshape(heads, 2, rows // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def write(file: Path, original: Any, kind: Any = None) -> Path:
    config = original.config
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"token{i}" for i in range(config.vocab_size)])
    writer.add_token_scores([0.0] * config.vocab_size)
    writer.add_token_types([1] * config.vocab_size)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in original.state_dict().items():
        values = tensor.numpy()
        if "q_proj" in name:
            values = permuted(values, config.num_attention_heads)
        if "k_proj" in name:
            values = permuted(values, config.num_key_value_heads)
        own = f"{names.get_name(name.removesuffix('.weight'))}.weight"
        if kind is None or values.ndim == 1:
            writer.add_tensor(own, np.ascontiguousarray(values))
        else:
            writer.add_tensor(own, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("gguf") / "tiny-f32.gguf", model())


def logits(checkpoint: Any, dtype: Any = torch.float32) -> Any:
    with torch.no_grad():
        return checkpoint.load(CPU, dtype)(IDS).logits


def test_plain_numbers_give_the_models_own_logits(plain: Path) -> None:
    original = model()
    checkpoint = open_checkpoint(plain)
    assert (checkpoint.format, checkpoint.vocabulary, checkpoint.tokenizer) == ("gguf", 96, None)
    count = sum(parameter.numel() for parameter in original.parameters())
    assert checkpoint.summary == (
        f"llama in GGUF (F32), {count / 1e3:.1f} k parameters, vocabulary 96; no tokenizer.json beside it"
    )
    loaded = checkpoint.load(CPU, torch.float32)
    assert not loaded.training
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    with torch.no_grad():
        torch.testing.assert_close(loaded(IDS).logits, original(IDS).logits, atol=1e-5, rtol=1e-5)
    assert checkpoint.load(CPU, torch.bfloat16).dtype == torch.bfloat16


def test_a_folder_with_a_tokenizer(plain: Path, tmp_path: Path) -> None:
    shutil.copy(plain, tmp_path / "model.gguf")
    shutil.copy(SAMPLE / "tokenizer" / "tokenizer.json", tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.tokenizer == tmp_path
    assert checkpoint.path == tmp_path / "model.gguf"
    assert "tokenizer" not in checkpoint.summary


def test_quantised_says_so_and_is_near(plain: Path, tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType.Q8_0
    checkpoint = open_checkpoint(write(tmp_path / "tiny-q8.gguf", model(), kind))
    assert "(Q8_0, F32)" in checkpoint.summary
    assert "log-probabilities differ from those of training" in checkpoint.summary
    whole, near = logits(open_checkpoint(plain)), logits(checkpoint)
    off = float((whole - near).abs().max() / whole.abs().max())
    assert 0 < off < 0.05
    dequantised = {
        name: gguf.quants.dequantize(gguf.quants.quantize(tensor.numpy(), kind), kind)
        for name, tensor in model().state_dict().items()
        if tensor.ndim == 2 and "q_proj" not in name and "k_proj" not in name
    }
    loaded = checkpoint.load(CPU, torch.float32).state_dict()
    assert len(dequantised) == 12
    for name, values in dequantised.items():
        np.testing.assert_array_equal(loaded[name].numpy(), values)


def test_several_files_and_parts(plain: Path, tmp_path: Path) -> None:
    for name in ("a-q4.gguf", "b-q8.gguf"):
        shutil.copy(plain, tmp_path / name)
    with pytest.raises(CheckpointError, match=r"holds 2 GGUF files: a-q4\.gguf, b-q8\.gguf; .*name .*a-q4\.gguf"):
        open_checkpoint(tmp_path)
    parts = tmp_path / "parts"
    parts.mkdir()
    for number in (1, 2):
        shutil.copy(plain, parts / f"m-{number:05d}-of-00002.gguf")
    with pytest.raises(CheckpointError, match=r"one of several parts.*llama-gguf-split --merge"):
        open_checkpoint(parts)


def test_other_folders_are_not_its_own(plain: Path, tmp_path: Path) -> None:
    options = CheckpointOptions()
    assert open_gguf(tmp_path, options) is None
    assert open_gguf(tmp_path / "nowhere.gguf", options) is None
    (tmp_path / "notes.txt").write_text("GGUF")
    assert open_gguf(tmp_path / "notes.txt", options) is None
    shutil.copy(plain, tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert open_gguf(tmp_path, options) is None


def test_an_adapter_beside_it_leads_nowhere(plain: Path, tmp_path: Path) -> None:
    """transformers would load the base that the adapter names instead of the file."""
    shutil.copy(plain, tmp_path / "model.gguf")
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "someone/else"}')
    with pytest.raises(CheckpointError, match="holds an adapter beside the model"):
        open_checkpoint(tmp_path / "model.gguf").load(CPU, torch.float32)


def test_without_its_package(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = open_checkpoint(plain)
    monkeypatch.setattr("credit_inspector.checkpoints.gguf.find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r"needs gguf.*credit-inspector\[gguf\]"):
        checkpoint.load(CPU, torch.float32)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def head(tensors: int, pairs: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, pairs)


LLAMA = text("general.architecture") + struct.pack("<I", 8) + text("llama")
LINE = text("token_embd.weight") + struct.pack("<I", 2)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no GGUF file"),
        (b"GG", "does not begin with GGUF"),
        (b"PK\x03\x04" + bytes(40), "does not begin with GGUF"),
        (head(0, 0, 1), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 1, 1), "version"),
        (head(0, 0), "names no architecture"),
        (head(0, 1) + LLAMA, "holds no tensors"),
        (head(2**60, 1) + LLAMA, "entries do not fit"),
        (head(0, 2**60) + LLAMA, "entries do not fit"),
        (head(0, 1) + struct.pack("<Q", 2**62) + bytes(99), "entries do not fit"),
        (head(0, 1) + text("x") + struct.pack("<IIQ", 9, 8, 2**50) + bytes(99), "entries do not fit"),
        (head(0, 1) + text("x") + struct.pack("<IIQ", 9, 4, 2**50) + bytes(99), "entries do not fit"),
        (head(0, 1) + text("x") + struct.pack("<IIQ", 9, 9, 1) + bytes(99), "a list of type 9"),
        (head(0, 1) + text("x") + struct.pack("<I", 77) + bytes(99), "a value of type 77"),
        (head(1, 1) + LLAMA + text("t") + struct.pack("<I", 2**31) + bytes(99), "dimensions"),
        (head(1, 1) + LLAMA + LINE + struct.pack("<QQIQ", 4, 5, 0, 0) + bytes(79), "breaks off in token_embd.weight"),
        (head(1, 1) + LLAMA + LINE + struct.pack("<QQIQ", 2**40, 2**40, 12, 0) + bytes(99), "breaks off in token_embd"),
        (head(1, 1) + LLAMA + LINE + struct.pack("<QQIQ", 4, 5, 0, 2**63) + bytes(99), "breaks off in token_embd"),
    ],
)
def test_headers_that_do_not_hold_together(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(CheckpointError, match=words) as caught:
        open_checkpoint(tmp_path / "x.gguf")
    assert "\n" not in str(caught.value)


def test_truncated_anywhere(plain: Path, tmp_path: Path) -> None:
    whole = plain.read_bytes()
    for size in [*range(0, 4000, 97), len(whole) // 2, len(whole) - 1000]:
        (tmp_path / "cut.gguf").write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            open_checkpoint(tmp_path / "cut.gguf")


def test_an_architecture_that_transformers_does_not_know(tmp_path: Path) -> None:
    strange = text("general.architecture") + struct.pack("<I", 8) + text("starship")
    content = head(1, 1) + strange + LINE + struct.pack("<QQIQ", 4, 5, 0, 0)
    (tmp_path / "x.gguf").write_bytes(content + bytes(200))
    with pytest.raises(CheckpointError, match=r"does not load: .*starship"):
        open_checkpoint(tmp_path / "x.gguf").load(CPU, torch.float32)
