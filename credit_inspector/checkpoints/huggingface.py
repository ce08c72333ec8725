"""A Hugging Face folder: ``config.json`` with weights in safetensors (one file or shards) or ``pytorch_model*.bin``.

So are the ``checkpoint-N`` folders of TRL and of the Hugging Face Trainer. Older ``.bin`` files are pickles: they are
read by torch's restricted loader (``weights_only=True``) and never by another. A checkpoint that brings code of its
own (``auto_map``) is refused.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from credit_inspector.checkpoints import Checkpoint, checkpoint_format
from credit_inspector.errors import CheckpointError, MissingExtra
from credit_inspector.tokens import has_tokenizer

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_WHOLE = ("model.safetensors", "pytorch_model.bin")
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_LARGEST_HEADER = 100_000_000
"""Bytes; the limit that the safetensors library itself sets."""


@checkpoint_format("huggingface")
def open_huggingface(path: Path) -> Checkpoint | None:
    """Recognise a folder by its config and weights, without reading the weights.

    Raises:
        CheckpointError: a shard is missing, the config cannot be read, or it asks for code to be run.
    """
    if not (path / "config.json").is_file():
        return None
    weights = _weights(path)
    if not weights:
        return None
    config = _read_json(path / "config.json")
    if "auto_map" in config:
        raise CheckpointError(
            f"{path} brings model code of its own (auto_map)",
            wanted="a model type that transformers knows",
            do="no code of the data's runs here: take auto_map out where transformers knows the type",
        )
    vocabulary = _vocabulary(config)
    return Checkpoint(
        path=path,
        format="huggingface",
        summary=_summary(config, weights, vocabulary),
        vocabulary=vocabulary,
        tokenizer=path if has_tokenizer(path) else None,
        load=partial(_load, path),
    )


def _weights(path: Path) -> list[Path]:
    """The files that hold the weights, all of which are there."""
    for name in _WHOLE:
        if (path / name).is_file():
            return [path / name]
    for name in _INDEXES:
        if (path / name).is_file():
            return _shards(path, path / name)
    return []


def _shards(path: Path, index: Path) -> list[Path]:
    names = _read_json(index).get("weight_map")
    if not isinstance(names, Mapping) or not names:
        raise CheckpointError(f"{index} names no weights", wanted="a weight_map")
    files = sorted({str(name) for name in names.values()})
    missing = [name for name in files if not (path / name).is_file()]
    if missing:
        found = f"{path} lacks {len(missing)} of {len(files)} shards: {', '.join(missing[:5])}"
        raise CheckpointError(found, wanted="every shard that the index names", do="copy the missing files")
    return [path / name for name in files]


def _read_json(file: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}", wanted="JSON") from error
    if not isinstance(data, Mapping):
        raise CheckpointError(f"{file} is no JSON object", wanted="settings by name")
    return data


# ── the summary ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _vocabulary(config: Mapping[str, Any]) -> int:
    """Rows of the model's embedding, often more than the tokenizer has words; 0 where the config does not say."""
    for part in (config, config.get("text_config"), config.get("llm_config")):
        if isinstance(part, Mapping) and isinstance(part.get("vocab_size"), int):
            return int(part["vocab_size"])
    return 0


def _summary(config: Mapping[str, Any], weights: Iterable[Path], vocabulary: int) -> str:
    architectures = config.get("architectures")
    name = str(architectures[0]) if isinstance(architectures, list) and architectures else str(config.get("model_type"))
    for ending in ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration"):
        name = name.removesuffix(ending)
    parts = [name, _size(weights), f"vocabulary {vocabulary:,}" if vocabulary else ""]
    return ", ".join(part for part in parts if part)


def _size(weights: Iterable[Path]) -> str:
    """How many parameters the headers of the safetensors files name; empty where the weights are pickles."""
    counts = [_parameters(file) for file in weights]
    known = [count for count in counts if count is not None]
    if len(known) < len(counts):
        return ""
    total = sum(known)
    unit, name = next((u, n) for u, n in ((1e9, " G"), (1e6, " M"), (1e3, " k"), (1.0, "")) if total >= u or u == 1.0)
    return f"{total / unit:.1f}{name} parameters" if unit > 1 else f"{total} parameters"


def _parameters(file: Path) -> int | None:
    if file.suffix != ".safetensors":
        return None
    try:
        with file.open("rb") as raw:
            length = min(struct.unpack("<Q", raw.read(8))[0], _LARGEST_HEADER)
            header = json.loads(raw.read(length))
        shapes = [entry["shape"] for name, entry in header.items() if name != "__metadata__"]
        return int(sum(math.prod(shape) for shape in shapes))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error, RecursionError) as error:
        raise CheckpointError(f"{file} is no safetensors file: {error}", do="copy it again") from error


# ── loading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _load(path: Path, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    model, loaded = _from_pretrained(path, dtype)
    _check_keys(path, loaded)
    if getattr(model, "supports_gradient_checkpointing", False):
        # transformers 5.2x renamed it and warns of the old name
        name = "activation_checkpointing_disable"
        getattr(model, name if hasattr(model, name) else "gradient_checkpointing_disable")()
    scorer: Any = model
    return cast("PreTrainedModel", scorer.to(device).eval().requires_grad_(False))


def _from_pretrained(path: Path, dtype: torch.dtype) -> tuple[PreTrainedModel, Mapping[str, Any]]:
    """The model and what transformers says of its keys; wrong shapes are among them and raise afterwards."""
    try:
        from transformers import AutoModelForCausalLM
    except ImportError:
        raise MissingExtra("transformers", "compute") from None
    settings: dict[str, Any] = {
        "trust_remote_code": False,
        "local_files_only": True,
        "dtype": dtype,
        "output_loading_info": True,
        "ignore_mismatched_sizes": True,
    }
    try:
        with _quiet():
            try:
                found = AutoModelForCausalLM.from_pretrained(str(path), attn_implementation="sdpa", **settings)
            except ValueError as error:
                if "scaled_dot_product" not in str(error):
                    raise
                found = AutoModelForCausalLM.from_pretrained(str(path), attn_implementation="eager", **settings)
    except Exception as error:  # a broken file and an unknown type each raise their own
        raise _does_not_load(path, str(error)) from error
    return cast("tuple[PreTrainedModel, Mapping[str, Any]]", found)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' bars and tables: what they say is in the error."""
    from transformers import utils

    logging: Any = utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _does_not_load(path: Path, error: str) -> CheckpointError:
    """The error without torch's own advice, which is to turn the protection off."""
    if blocked := re.search(r"(?:GLOBAL|[Uu]nsupported global:?) (?:GLOBAL )?([\w.]+)", error):
        return CheckpointError(
            f"{path}: the pickle asks for {blocked[1]}, which is more than weights, and was not run",
            wanted="weights alone",
            do="save the model as safetensors where you trust it",
        )
    return CheckpointError(f"{path} does not load: {error.splitlines()[0] if error else 'no reason given'}")


def _check_keys(path: Path, loaded: Mapping[str, Any]) -> None:
    """Tensors that the model has and the files lack would be random numbers; tied ones are not among them."""
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        keys = sorted(map(str, loaded.get(kind) or ()))
        if keys:
            word = kind.split("_", 1)[0]
            shown = ", ".join(keys[:3]) + (" …" if len(keys) > 3 else "")
            raise CheckpointError(f"{path}: {len(keys)} {word} tensors ({shown})", wanted="weights that fit the config")
