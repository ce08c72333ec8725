"""A Hugging Face folder: ``config.json`` with weights in safetensors (one file or shards) or ``pytorch_model*.bin``.

So are the ``checkpoint-N`` folders of TRL and of the Hugging Face Trainer, whose ``training_args.bin``, ``optimizer.pt`` and
``rng_state.pth`` are never opened. Older ``.bin`` weights are pickles: they are read by torch's restricted loader
(``weights_only=True``) and never by another. A checkpoint that brings code of its own (``auto_map``) is refused.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from credit_inspector.checkpoints import Checkpoint, CheckpointOptions, checkpoint_format
from credit_inspector.checkpoints._loading import in_words, load_pretrained, read_json, refuse_code, some, vocabulary_of
from credit_inspector.errors import CheckpointError
from credit_inspector.tokens import has_tokenizer

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_WHOLE = ("model.safetensors", "pytorch_model.bin")
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_SHARD = re.compile(r"(?:model|pytorch_model)-\d+-of-\d+\.(?:safetensors|bin)")
_NAME = re.compile(r"[\w.-]{1,200}", re.ASCII)
_STATE = re.compile(r"(?:optimizer|scheduler|scaler)\.(?:pt|bin)|training_args\.bin|rng_state\S*\.pth|random_states_\d+\.pkl")
"""What a Trainer leaves besides the weights."""
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".gguf", ".distcp")
_PER_BYTE = 8
"""Numbers that a byte may hold at most."""
_LARGEST_HEADER = 100_000_000
"""Bytes; the limit that the safetensors library itself sets."""


@checkpoint_format("huggingface")
def open_huggingface(path: Path, _options: CheckpointOptions) -> Checkpoint | None:
    """Recognise a folder by its config and weights, without reading the weights.

    Raises:
        CheckpointError: a shard is missing or foreign, only an optimizer's state is there, the config cannot be read, or it
            asks for code to be run.
    """
    if not path.is_dir() or (path / "adapter_config.json").is_file():
        return None
    _refuse_state_alone(path)
    if not (path / "config.json").is_file():
        return None
    weights = whole_weights(path)
    if not weights:
        return None
    config = read_json(path / "config.json")
    refuse_code(path, config)
    vocabulary = vocabulary_of(config)
    return Checkpoint(
        path=path,
        format="huggingface",
        summary=_summary(config, weights, vocabulary),
        vocabulary=vocabulary,
        tokenizer=path if has_tokenizer(path) else None,
        load=partial(_load, path, sum(file.stat().st_size for file in weights)),
    )


def _load(path: Path, stored: int, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    return load_pretrained(path, stored, device, dtype)


def _refuse_state_alone(path: Path) -> None:
    """A Trainer's folder from which the weights are gone: optimizer, scheduler and random states are no model."""
    inside = list(path.iterdir())
    state = [inner.name for inner in inside if _STATE.fullmatch(inner.name)]
    others = [inner for inner in inside if inner.is_dir() or inner.suffix in _WEIGHTS]
    if any(name.startswith(("optimizer", "scheduler")) for name in state) and len(others) == len(state):
        found = f"{path}: optimizer state only, no weights ({some(sorted(state))})"
        raise CheckpointError(found, wanted="model.safetensors beside it", do="copy the weights too, or name another checkpoint")


# ── the files ───────────────────────────────────────────────────────────────────────────────────────────────────────


def whole_weights(path: Path) -> list[Path]:
    """The files that hold a whole model's weights, all of which are there; empty where there are none.

    Raises:
        CheckpointError: a shard or the index is missing, or they do not belong together.
    """
    for name in _WHOLE:
        if (path / name).is_file():
            return [path / name]
    for name in _INDEXES:
        if (path / name).is_file():
            return _shards(path, path / name)
    if shards := sorted(inner.name for inner in path.iterdir() if _SHARD.fullmatch(inner.name)):
        index = _INDEXES[0] if shards[0].endswith(".safetensors") else _INDEXES[1]
        raise CheckpointError(
            f"{path} holds {len(shards)} shards and no index", wanted=index, do="copy it from where they were saved"
        )
    return []


def _shards(path: Path, index: Path) -> list[Path]:
    names = read_json(index).get("weight_map")
    if not isinstance(names, Mapping) or not names:
        raise CheckpointError(f"{index} names no weights", wanted="a weight_map")
    files = sorted({str(name) for name in names.values()})
    if strange := [name for name in files if not _NAME.fullmatch(name)]:
        raise CheckpointError(f"{index} names a file outside the folder: {strange[0][:80]}", wanted="shards beside it")
    missing = [name for name in files if not (path / name).is_file()]
    if missing:
        found = f"{path} lacks {len(missing)} of {len(files)} shards: {', '.join(missing[:5])}"
        raise CheckpointError(found, wanted="every shard that the index names", do="copy the missing files")
    _check_strangers(path, index, files)
    for name in files:
        _check_shard(path / name, {str(tensor) for tensor, file in names.items() if file == name})
    return [path / name for name in files]


def _check_strangers(path: Path, index: Path, files: list[str]) -> None:
    """Shards of the same kind that the index does not know, such as ``of-00003`` beside ``of-00002``."""
    kind = Path(files[0]).suffix
    there = {inner.name for inner in path.iterdir() if _SHARD.fullmatch(inner.name) and inner.suffix == kind}
    if strangers := sorted(there - set(files)):
        raise CheckpointError(
            f"{path} holds {len(strangers)} foreign shards, which {index.name} does not name: {some(strangers)}",
            wanted="the shards of one save",
            do="take them out, or copy the index that they belong to",
        )


def _check_shard(file: Path, wanted: set[str]) -> None:
    """The shard holds what the index says; what is in a pickle is not known before it is loaded."""
    if file.suffix != ".safetensors":
        return
    if lacking := sorted(wanted - set(tensors(file))):
        found = f"{len(lacking)} of the {len(wanted)} tensors that the index sees there are not ({some(lacking)})"
        raise CheckpointError(
            f"{file} is a foreign shard: {found}",
            wanted="the shards of one save",
            do="copy this shard and the index again from the same checkpoint",
        )


def tensors(file: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes in a safetensors file, from its header.

    Raises:
        CheckpointError: it is no safetensors file.
    """
    try:
        with file.open("rb") as raw:
            length = min(struct.unpack("<Q", raw.read(8))[0], _LARGEST_HEADER)
            header = json.loads(raw.read(length))
        most = _PER_BYTE * file.stat().st_size
        entries = {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
        for name, shape in entries.items():
            if not all(isinstance(size, int) and size >= 0 for size in shape) or math.prod(shape) > most:
                raise ValueError(f"{name[:80]} of shape {str(shape)[:80]}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error, RecursionError) as error:
        raise CheckpointError(f"{file} is no safetensors file: {error}", do="copy it again") from error
    return entries


# ── the summary ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _summary(config: Mapping[str, Any], weights: Iterable[Path], vocabulary: int) -> str:
    architectures = config.get("architectures")
    name = str(architectures[0]) if isinstance(architectures, list) and architectures else str(config.get("model_type"))
    for ending in ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration"):
        name = name.removesuffix(ending)
    parts = [name, _size(weights), f"vocabulary {vocabulary:,}" if vocabulary else ""]
    return ", ".join(part for part in parts if part)


def _size(weights: Iterable[Path]) -> str:
    """How many parameters the headers of the safetensors files name; empty where the weights are pickles."""
    files = list(weights)
    if any(file.suffix != ".safetensors" for file in files):
        return ""
    return in_words(sum(math.prod(shape) for file in files for shape in tensors(file).values()))
