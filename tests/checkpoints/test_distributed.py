"""Distributed checkpoints of torch, saved by ``torch.distributed.checkpoint`` on two ranks, read without its unpickling."""

from __future__ import annotations

import json
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch.distributed.checkpoint as dcp  # noqa: E402

from credit_inspector.checkpoints import _dcp  # noqa: E402
from credit_inspector.checkpoints._dcp import Chunk, Stored, read_headers, read_metadata  # noqa: E402
from credit_inspector.checkpoints.opening import open_checkpoint  # noqa: E402
from credit_inspector.errors import CheckpointError  # noqa: E402

CPU = torch.device("cpu")
NEMO = "nemo/step_2/policy/weights"


def copied(shards: Path, tmp_path: Path, name: str = "flat") -> Path:
    return Path(shutil.copytree(shards / name, tmp_path / "copy"))


def metadata(folder: Path, change: Callable[[Any], None]) -> Path:
    """The same folder after ``change(metadata)``, by plain pickle, which is what torch does."""
    found = pickle.loads((folder / ".metadata").read_bytes())  # noqa: S301
    change(found)
    (folder / ".metadata").write_bytes(pickle.dumps(found))
    return folder


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("folder", "base"),
    [("flat", None), ("prime/step_3/trainer", None), (NEMO, "base"), ("nemo/step_2", "base"), ("safe", None)],
)
def test_names_of_every_trainer_give_the_model_back(shards: Path, same: Any, folder: str, base: str | None) -> None:
    checkpoint = open_checkpoint(shards / folder, shards / base if base else None)
    count = sum(tensor.numel() for tensor in torch.load(shards / "whole.pt").values())
    assert checkpoint.summary == f"Llama, {count / 1e3:.1f} k parameters, vocabulary 37, torch DCP in 2 files"
    assert checkpoint.format == "distributed"
    model = checkpoint.load(CPU, torch.float32)
    same(model, shards / "whole.pt")
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert {parameter.dtype for parameter in checkpoint.load(CPU, torch.bfloat16).parameters()} == {torch.bfloat16}


def test_our_table_is_torchs(shards: Path) -> None:
    """Shapes, slices and places as torch's own reader has them."""
    theirs = dcp.FileSystemReader(shards / "prime/step_3/trainer").read_metadata()
    ours = read_metadata(shards / "prime/step_3/trainer")
    tensors = {name: each for name, each in theirs.state_dict_metadata.items() if hasattr(each, "size")}
    assert set(ours) == set(tensors)
    assert any("exp_avg" in name for name in ours)
    for name, each in tensors.items():
        assert ours[name].shape == tuple(each.size)
        assert [(chunk.offsets, chunk.sizes) for chunk in ours[name].chunks] == [
            (tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in each.chunks
        ]
    places = {(chunk.file.name, chunk.start, chunk.length) for each in ours.values() for chunk in each.chunks}
    assert places <= {(each.relative_path, each.offset, each.length) for each in theirs.storage_data.values()}


def test_safetensors_are_read_as_torch_reads_them(shards: Path) -> None:
    theirs = dcp.HuggingFaceStorageReader(str(shards / "safe")).read_metadata()
    ours = read_headers(shards / "safe")
    assert {name: each.shape for name, each in ours.items()} == {
        name: tuple(each.size) for name, each in theirs.state_dict_metadata.items()
    }


def test_one_process_and_no_slices(shards: Path, tmp_path: Path, same: Any) -> None:
    """What a single process saves: whole tensors, and a number and a string beside them."""
    state = {"model": torch.load(shards / "whole.pt"), "step": 3, "name": "x", "lr": torch.tensor(0.5)}
    dcp.save(state, checkpoint_id=tmp_path / "one", no_dist=True)
    checkpoint = open_checkpoint(tmp_path / "one", shards / "base")
    assert checkpoint.summary.endswith("torch DCP in 1 file")
    same(checkpoint.load(CPU, torch.float32), shards / "whole.pt")


def test_wrapped_names(shards: Path, tmp_path: Path, same: Any) -> None:
    """``torch.compile`` and activation checkpointing put words into the middle of names."""
    state = {
        "_orig_mod." + name.replace("layers.0.", "layers.0._checkpoint_wrapped_module."): tensor
        for name, tensor in torch.load(shards / "whole.pt").items()
    }
    dcp.save(state, checkpoint_id=tmp_path / "one", no_dist=True)
    same(open_checkpoint(tmp_path / "one", shards / "base").load(CPU, torch.float32), shards / "whole.pt")


@pytest.mark.parametrize("names", ["model", "stored"])
def test_experts_under_either_name_and_routers_in_float32(tmp_path: Path, names: str) -> None:
    """Newer transformers fuse the experts in memory and not on disk; the same model as from its own folder in both cases."""
    import transformers
    from safetensors.torch import load_file

    torch.manual_seed(0)
    config = transformers.DeepseekV3Config(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=16,
        moe_intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=8,
        kv_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=8,
    )
    model = transformers.DeepseekV3ForCausalLM(config)
    model.save_pretrained(tmp_path / "hf")
    state = model.state_dict() if names == "model" else load_file(tmp_path / "hf" / "model.safetensors")
    dcp.save({"model": state}, checkpoint_id=tmp_path / "one", no_dist=True)
    ours = open_checkpoint(tmp_path / "one", tmp_path / "hf").load(CPU, torch.bfloat16).state_dict()
    theirs = open_checkpoint(tmp_path / "hf").load(CPU, torch.bfloat16).state_dict()
    assert set(ours) == set(theirs)
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype, name
        assert torch.equal(ours[name], tensor), name


def test_tokenizer_of_nemo(shards: Path, tmp_path: Path) -> None:
    step = Path(shutil.copytree(shards / "nemo/step_2", tmp_path / "step_2"))
    (step / "policy" / "tokenizer").mkdir()
    (step / "policy" / "tokenizer" / "tokenizer.json").write_text("{}")
    assert open_checkpoint(step, shards / "base").tokenizer == (step / "policy" / "tokenizer").absolute()


# ── what is missing ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_config_anywhere(shards: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json lies in it.*name the folder that holds it: --base FOLDER"):
        open_checkpoint(shards / NEMO)


def test_optimizer_alone_g05(shards: Path) -> None:
    with pytest.raises(CheckpointError, match=r"optimizer: optimizer state only, no weights; .*look beside it, in \S+/policy$"):
        open_checkpoint(shards / "nemo/step_2/policy/optimizer", shards / "base")


def test_missing_files_are_named(shards: Path, tmp_path: Path) -> None:
    folder = copied(shards, tmp_path)
    (folder / "__1_0.distcp").unlink()
    with pytest.raises(CheckpointError, match=r"lacks 1 of 2 files: __1_0\.distcp"):
        open_checkpoint(folder)
    (folder / ".metadata").unlink()
    with pytest.raises(CheckpointError, match=r"\.distcp files without their \.metadata"):
        open_checkpoint(folder)
    (folder / "__0.metadata").touch()
    with pytest.raises(CheckpointError, match="ranks wrote metadata of their own"):
        open_checkpoint(folder)


def test_missing_file_of_safetensors(shards: Path, tmp_path: Path) -> None:
    folder = copied(shards, tmp_path, "safe")
    (folder / "shard-00001-model-00001-of-00001.safetensors").unlink()
    with pytest.raises(
        CheckpointError, match=r"1 shards hold only a part of \d+ of \d+ tensors .*wanted the shards of all ranks"
    ):
        open_checkpoint(folder)


def test_truncated_file(shards: Path, tmp_path: Path) -> None:
    folder = copied(shards, tmp_path)
    (folder / "__0_0.distcp").write_bytes((folder / "__0_0.distcp").read_bytes()[:-1000])
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp breaks off within"):
        open_checkpoint(folder).load(CPU, torch.float32)


def test_names_of_another_library(shards: Path, tmp_path: Path) -> None:
    """torchtitan names its own model: nothing of it is taken for ours."""
    dcp.save({"tok_embeddings.weight": torch.zeros(37, 8)}, checkpoint_id=tmp_path / "one", no_dist=True)
    with pytest.raises(CheckpointError, match=r"none of its 1 tensors \(tok_embeddings\.weight\) has a name that the config's"):
        open_checkpoint(tmp_path / "one", shards / "base").load(CPU, torch.float32)


def test_a_missing_tensor(shards: Path, tmp_path: Path) -> None:
    folder = metadata(copied(shards, tmp_path), lambda found: found.state_dict_metadata.pop("model.norm.weight"))
    with pytest.raises(CheckpointError, match=r"1 missing tensors \(model\.norm\.weight\)"):
        open_checkpoint(folder).load(CPU, torch.float32)


# ── hostile files ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_code_in_the_metadata_never_runs_g06(shards: Path, tmp_path: Path, code: tuple[Any, Path]) -> None:
    thing, mark = code
    folder = copied(shards, tmp_path)
    (folder / ".metadata").write_bytes(pickle.dumps(thing))
    with pytest.raises(CheckpointError, match=r"the pickle asks for \w+\.mkdir.* was not run"):
        open_checkpoint(folder)
    assert not mark.exists()


def test_code_in_a_slice_never_runs_g06(shards: Path, tmp_path: Path, code: tuple[Any, Path]) -> None:
    thing, mark = code
    folder = copied(shards, tmp_path)
    torch.save(thing, folder / "__0_0.distcp")
    size = (folder / "__0_0.distcp").stat().st_size

    def whole_file(found: Any) -> None:
        for place in found.storage_data.values():
            place.offset, place.length = 0, size

    with pytest.raises(CheckpointError, match=r"the pickle asks for \w+\.mkdir.* was not run"):
        open_checkpoint(metadata(folder, whole_file)).load(CPU, torch.float32)
    assert not mark.exists()


def place(**new: Any) -> Callable[[Any], None]:
    def change(found: Any) -> None:
        vars(next(iter(found.storage_data.values()))).update(new)

    return change


def size(*sizes: int) -> Callable[[Any], None]:
    def change(found: Any) -> None:
        found.state_dict_metadata["model.norm.weight"].size = torch.Size(sizes)

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (place(relative_path="../whole.pt"), r"a file named '\.\./whole\.pt'"),
        (place(relative_path="/etc/passwd"), "a file named '/etc/passwd'"),
        (place(offset=-1), "that is no number"),
        (place(length=10**15), "breaks off within"),
        (place(transform_descriptors=["zstd"]), "is compressed"),
        (size(10**12), r"slices do not make \(1000000000000,\)"),
        (lambda found: setattr(found, "storage_data", None), "names no tensors"),
        (lambda found: found.storage_data.clear(), r"does not say where \S+ from \[0.*\] lies"),
    ],
)
def test_metadata_that_lies(shards: Path, tmp_path: Path, change: Callable[[Any], None], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(metadata(copied(shards, tmp_path), change)).load(CPU, torch.float32)


def test_a_shape_beyond_the_files_is_not_allocated(shards: Path, tmp_path: Path) -> None:
    """Slices that claim, with the whole, a terabyte."""

    def swell(found: Any) -> None:
        entry = found.state_dict_metadata["model.norm.weight"]
        entry.size = torch.Size([2 * 10**12])
        for index, chunk in enumerate(entry.chunks):
            chunk.sizes = torch.Size([10**12])
            assert index < 2

    with pytest.raises(CheckpointError, match=r"a slice of \(1000000000000,\) is \(4,\) in __0_0\.distcp"):
        open_checkpoint(metadata(copied(shards, tmp_path), swell)).load(CPU, torch.float32)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xff" * 40,
        b"[]",
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, -8]}},
        {"a": {"dtype": "Q4", "shape": [2], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}},
        {"__metadata__": {"DCP_SHARDING_INFO": "["}},
        {"__metadata__": []},
    ],
)
def test_safetensors_that_lie(shards: Path, tmp_path: Path, header: Any) -> None:
    folder = copied(shards, tmp_path, "safe")
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    content = len(raw).to_bytes(8, "little") + raw if raw else raw
    (folder / "shard-00001-model-00001-of-00001.safetensors").write_bytes(content + bytes(8))
    with pytest.raises(CheckpointError, match="no safetensors file"):
        open_checkpoint(folder)


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
def test_mutated_bytes_raise_nothing_else(shards: Path, tmp_path: Path, name: str) -> None:
    folder = copied(shards, tmp_path)
    whole, draw = (folder / name).read_bytes(), random.Random(0)
    raised = 0
    for _ in range(60):
        raw = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            raw[draw.randrange(len(raw))] = draw.randrange(256)
        (folder / name).write_bytes(bytes(raw))
        try:
            open_checkpoint(folder).load(CPU, torch.float32)
        except CheckpointError as error:
            assert "\n" not in str(error)  # noqa: PT017
            raised += 1
    assert raised


@pytest.mark.parametrize(("starts", "lacking"), [((0, 2), ""), ((0, 0), "leave a part"), ((2, 2), "leave a part")])
def test_slices_that_lie_on_each_other_leave_a_gap_and_no_zeros(tmp_path: Path, starts: tuple[int, int], lacking: str) -> None:
    file = tmp_path / "data"
    values = torch.arange(1.0, 5.0)
    file.write_bytes(values.numpy().tobytes())
    chunks = [Chunk((start,), (2,), file, 8 * i, 8, "float32") for i, start in enumerate(starts)]
    stored = Stored((4,), chunks)
    if not lacking:
        assert torch.equal(_dcp._read("w", stored), values)
        return
    with pytest.raises(ValueError, match=lacking):
        _dcp._read("w", stored)


def test_a_slice_without_bytes_is_no_zeros(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"")
    with pytest.raises(ValueError, match="is empty"):
        _dcp._read("w", Stored((2,), [Chunk((0,), (2,), tmp_path / "data", 0, 0, "float32")]))
