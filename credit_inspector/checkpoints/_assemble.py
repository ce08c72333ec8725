"""Weights in pieces, and the config beside them → a Hugging Face model.

What sharded formats share. A format says where each tensor is to be read from (``Pieces``); here they are read one after
another, brought to the asked precision at once, and given to transformers, which takes them as they are. So there is one
copy of the model in memory, and of the shards no more than one tensor at a time.

Shards hold no config. It is looked for in the folder, in its ``huggingface/`` and above it, or the user names its folder.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from credit_inspector.checkpoints import Checkpoint, CheckpointOptions
from credit_inspector.checkpoints._loading import (
    check_keys,
    does_not_load,
    in_words,
    quiet,
    read_json,
    ready,
    refuse_code,
    some,
    vocabulary_of,
)
from credit_inspector.errors import CheckpointError, FormatError, MissingExtra
from credit_inspector.tokens import has_tokenizer

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel

    Pieces = dict[str, Callable[[], torch.Tensor]]
    """For each tensor's name what reads it."""

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_MOST_LAYERS = 10_000
_MOST_PER_STORED = 8
"""Parameters of the model for each one that is stored; tied ones are few."""

_DAMAGE = (RuntimeError, ValueError, TypeError, AttributeError, LookupError, OSError, ArithmeticError, MemoryError)
"""What reading a file raises whose parts are of another kind than they should be."""

_WRAPPERS = re.compile(r"(?:_fsdp_wrapped_module|_checkpoint_wrapped_module|_orig_mod)\.")
_OPTIMIZER = re.compile(
    r"(?:^|\.)(?:optim\w*|exp_avg(?:_sq)?|param_groups|lr_scheduler\w*|sched\w*|rng_state|dataloader)(?:\.|$)"
)
_LORA = re.compile(r"(.+)\.lora_([AB])\.(?:default\.)?weight")
_NO_POLICY = re.compile(r"For(?:Token|Sequence)Classification|RewardModel|ForScore")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharded:
    """A recognised checkpoint in pieces."""

    path: Path
    format: str
    kind: str
    """Words for the summary: ``FSDP shards of world size 2``."""
    pieces: Callable[[], Pieces]
    """Called at loading."""
    parameters: int = 0
    """How many, where the format says so without reading."""
    settings: Mapping[str, Any] | None = None
    """Of LoRA, where recorded: ``r`` and ``lora_alpha``."""


def holds_model(folder: Path) -> bool:
    """Whether a folder is a whole model or an adapter, so that pieces beside it are only for going on with training."""
    if (folder / "adapter_config.json").is_file():
        return True
    return (folder / "config.json").is_file() and any((folder / name).is_file() for name in _WEIGHTS)


def is_weight(name: str) -> bool:
    """Whether a tensor's name is one of a model and not of its optimizer."""
    return not _OPTIMIZER.search(name)


def check_stored(where: Path, name: str, tensor: Any) -> None:
    """A file may say of a few numbers that they are a tensor of any size (stride 0), or name no numbers at all.

    Raises:
        CheckpointError: it does.
    """
    import torch

    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        raise CheckpointError(f"{where}: {name} is no plain tensor", wanted="dense tensors")
    if tensor.is_nested or tensor.is_quantized:
        raise CheckpointError(f"{where}: {name} is a tensor of a special kind", wanted="dense tensors")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise CheckpointError(f"{where}: {name} of shape {tuple(tensor.shape)} is larger than what is stored of it")


def checkpoint(found: Sharded, options: CheckpointOptions) -> Checkpoint:
    """A checkpoint that is put together when it is loaded.

    Raises:
        CheckpointError: there is no config to it, or it asks for code or is no policy.
    """
    home = _home(found.path, options)
    config = read_json(home / "config.json")
    refuse_code(home, config)
    name = _name(config)
    if _NO_POLICY.search(name):
        raise CheckpointError(
            f"{found.path} is a value or reward model ({name})", wanted="a policy", do="name the actor's folder"
        )
    vocabulary = vocabulary_of(config)
    size = in_words(found.parameters) if found.parameters else ""
    words = [_short(name), size, f"vocabulary {vocabulary:,}" if vocabulary else "", found.kind]
    return Checkpoint(
        path=found.path,
        format=found.format,
        summary=", ".join(word for word in words if word),
        vocabulary=vocabulary,
        tokenizer=next((place for place in (home, *_around(found.path)) if has_tokenizer(place)), None),
        load=partial(_load, found, home),
    )


# ── the config ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _around(path: Path) -> Iterable[Path]:
    """Where a config and a tokenizer lie: verl and SkyRL ``huggingface/``, NeMo-RL ``tokenizer/``, OpenRLHF ``{tag}_hf/``."""
    yield from (path, path / "huggingface")
    for folder in path.absolute().parents[:3]:
        yield from (folder, folder / "huggingface", folder / "tokenizer", folder / f"{path.name}_hf")


def _home(path: Path, options: CheckpointOptions) -> Path:
    if options.base is not None:
        if (options.base / "config.json").is_file():
            return options.base
        raise CheckpointError(f"{options.base} has no config.json", wanted="the folder of the model that was trained")
    for place in _around(path):
        if _is_config(place / "config.json", near=place in (path, path / "huggingface")):
            return place
    raise CheckpointError(
        f"{path} holds weights in pieces, and no config.json lies in it, in huggingface/ or above it",
        wanted="the config.json of the model that was trained",
        do="name the folder that holds it: --base FOLDER",
    )


def _is_config(file: Path, *, near: bool) -> bool:
    """A run has settings of other kinds under that name too; above the checkpoint they are passed over."""
    if not file.is_file():
        return False
    try:
        return bool({"model_type", "architectures"} & set(read_json(file)))
    except CheckpointError:
        if near:
            raise
        return False


def _name(config: Mapping[str, Any]) -> str:
    architectures = config.get("architectures")
    return str(architectures[0] if isinstance(architectures, list) and architectures else config.get("model_type"))


def _short(name: str) -> str:
    return re.sub(r"(?:ForCausalLM|LMHeadModel|ForConditionalGeneration)$", "", name)


# ── loading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _load(found: Sharded, home: Path, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    try:
        import transformers  # noqa: F401
    except ImportError:
        raise MissingExtra("transformers", "compute") from None
    with quiet():
        plan = _plan(home)
        pieces = _named(found, _read_all(found), plan.shapes)
        tensors = {name: _tensor(found.path, name, piece, plan.precision(name, dtype)) for name, piece in pieces.items()}
        pieces.clear()
        _check_size(found.path, tensors, plan.shapes)
        model = _built(found.path, plan, tensors, dtype)
    tensors.clear()
    return ready(model, device)


def _read_all(found: Sharded) -> Pieces:
    try:
        return found.pieces()
    except FormatError as error:
        raise CheckpointError(str(error)) from error
    except _DAMAGE as error:
        raise CheckpointError(
            f"{found.path} is damaged: {type(error).__name__} {_first_line(error)}", do="copy it again"
        ) from error


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0][:200] if lines else ""


class _Plan(NamedTuple):
    """The model that a config describes, without its weights."""

    config: PretrainedConfig
    shapes: Mapping[str, tuple[int, ...]]
    exact: re.Pattern[str] | None
    """Names that transformers keeps in float32 whatever is asked, such as the routers of mixtures of experts."""

    def precision(self, name: str, dtype: torch.dtype) -> torch.dtype | None:
        """In which to hold a tensor; None for as stored."""
        return None if self.exact and self.exact.search(name) else dtype


def _plan(home: Path) -> _Plan:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(str(home), trust_remote_code=False, local_files_only=True)
        for key, value in config.to_dict().items():
            if re.search("layer|expert|block", key) and isinstance(value, int) and value > _MOST_LAYERS:
                raise CheckpointError(f"{home}: the config asks for {key} = {value}", wanted=f"at most {_MOST_LAYERS}")
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except CheckpointError:
        raise
    except Exception as error:  # an unknown type and a broken setting each raise their own
        raise does_not_load(home, error) from error
    kept = [name for kind in ("", "_strict") for name in getattr(model, f"_keep_in_fp32_modules{kind}", None) or ()]
    exact = re.compile("|".join(re.escape(name).replace(r"\*", ".*") for name in sorted(kept))) if kept else None
    return _Plan(config, {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}, exact)


def _tensor(path: Path, name: str, piece: Callable[[], torch.Tensor], dtype: torch.dtype | None) -> torch.Tensor:
    """One tensor, a copy of its own, in the asked precision."""
    import torch

    try:
        tensor = piece()
        check_stored(path, name, tensor)
        target = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        return tensor.detach().to(target, copy=True, memory_format=torch.contiguous_format)
    except FormatError as error:
        raise CheckpointError(str(error)) from error
    except _DAMAGE as error:
        told = _first_line(error) or type(error).__name__
        raise CheckpointError(f"{path}: the pieces of {name} do not fit together: {told}", do="copy them again") from error


def _check_size(path: Path, tensors: Mapping[str, torch.Tensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """What is missing would be filled with random numbers, so a config of a far larger model is found out before."""
    import math

    asked, stored = sum(map(math.prod, shapes.values())), sum(tensor.numel() for tensor in tensors.values())
    if asked > _MOST_PER_STORED * stored:
        raise CheckpointError(
            f"{path}: the config describes a model of {in_words(asked)}, and {in_words(stored)} are stored",
            wanted="weights that fit the config",
            do="name the folder with the right config.json: --base FOLDER",
        )


def _built(path: Path, plan: _Plan, tensors: dict[str, torch.Tensor], dtype: torch.dtype) -> PreTrainedModel:
    try:
        model, loaded = _from_tensors(plan.config, tensors, dtype)
    except Exception as error:  # transformers raises in many ways
        raise does_not_load(path, error) from error
    if loaded.get("mismatched_keys"):
        _check_shapes(path, tensors, plan.shapes)
    check_keys(path, model, loaded)
    return model


def _from_tensors(
    config: PretrainedConfig, tensors: dict[str, torch.Tensor], dtype: torch.dtype
) -> tuple[PreTrainedModel, Mapping[str, Any]]:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    known: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    kind: Any = known[0] if isinstance(known, tuple) else known
    settings: dict[str, Any] = {
        "config": config,
        "state_dict": tensors,
        "dtype": dtype,
        "output_loading_info": True,
        "ignore_mismatched_sizes": True,
        "local_files_only": True,
    }
    try:
        found = kind.from_pretrained(None, attn_implementation="sdpa", **settings)
    except ValueError as error:
        if "scaled_dot_product" not in str(error):
            raise
        found = kind.from_pretrained(None, attn_implementation="eager", **settings)
    return cast("tuple[PreTrainedModel, Mapping[str, Any]]", found)


def _check_shapes(path: Path, tensors: Mapping[str, torch.Tensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    wrong = {
        name: tuple(each.shape) for name, each in tensors.items() if tuple(each.shape) != shapes.get(name, tuple(each.shape))
    }
    if not wrong:
        return
    rows = {(have[0], shapes[name][0]) for name, have in wrong.items() if have and shapes[name] and have[1:] == shapes[name][1:]}
    worded = all(re.search(r"embed|wte|lm_head|output", name) for name in wrong)
    if worded and len(rows) == 1 and all(have[1:] == shapes[name][1:] for name, have in wrong.items()):
        have_rows, asked = next(iter(rows))
        what = "a padded vocabulary" if have_rows > asked else "the vocabulary of another model"
        raise CheckpointError(
            f"{path}: the embedding has {have_rows:,} rows and config.json says vocab_size {asked:,}: {what}",
            wanted="one size for both",
            do=f"set vocab_size to {have_rows} in a copy of config.json and name its folder: --base FOLDER",
        )
    told = [f"{name} {have} for {shapes[name]}" for name, have in sorted(wrong.items())]
    raise CheckpointError(
        f"{path}: {len(wrong)} mismatched tensors ({some(told)})",
        wanted="weights that fit the config",
        do="name the folder with the right config.json: --base FOLDER",
    )


# ── names ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _named(found: Sharded, pieces: Pieces, shapes: Mapping[str, tuple[int, ...]]) -> Pieces:
    """The model's own among the pieces, under the names that transformers gives them."""
    clean = {_WRAPPERS.sub("", name): piece for name, piece in pieces.items() if is_weight(name)}
    if not clean:
        raise CheckpointError(f"{found.path}: optimizer state only, no weights", wanted="the model's shards too")
    merged = _with_lora(found, clean)
    prefix = _prefix(merged, shapes)
    if prefix is None:
        raise CheckpointError(
            f"{found.path}: none of its {len(merged)} tensors ({some(sorted(merged))}) has a name that the config's model has",
            wanted="the names of transformers",
            do="convert it to a Hugging Face folder with the trainer's own script",
        )
    return {
        name[len(prefix) :]: piece for name, piece in merged.items() if name.startswith(prefix) and "_extra_state" not in name
    }


def _prefix(names: Iterable[str], shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """What a trainer puts before every name: ``model.`` or ``app.model.`` or nothing."""
    counts: Counter[str] = Counter()
    for name in names:
        parts = name.split(".")
        for cut in range(min(5, len(parts))):
            if ".".join(parts[cut:]) in shapes:
                counts["".join(f"{part}." for part in parts[:cut])] += 1
    if not counts:
        return None
    return max(sorted(counts), key=lambda prefix: (counts[prefix], -len(prefix)))


def _with_lora(found: Sharded, pieces: Pieces) -> Pieces:
    """A model that was trained with LoRA and saved with it: the low-rank parts are added to the matrices they belong to."""
    low: dict[str, dict[str, Callable[[], torch.Tensor]]] = {}
    rest: Pieces = {}
    for name, piece in pieces.items():
        if part := _LORA.fullmatch(name):
            low.setdefault(_plain(part[1]), {})[part[2]] = piece
        elif "lora_" in name:
            raise CheckpointError(f"{found.path}: {name} is a part of LoRA of another kind", do="merge it where it was trained")
        elif ".original_module." not in name:
            rest[_plain(name)] = piece
    if not low:
        return rest
    scale = _scale(found)
    for name, parts in low.items():
        weight = f"{name}.weight"
        if weight not in rest or set(parts) != {"A", "B"}:
            raise CheckpointError(
                f"{found.path}: LoRA's parts of {name} are there without {'its other part' if weight in rest else 'the weights'}",
                wanted="the base model's weights in the shards too",
                do="name the adapter's own folder and give the base model: --base FOLDER",
            )
        rest[weight] = partial(_added, rest[weight], parts["A"], parts["B"], scale)
    return rest


def _plain(name: str) -> str:
    """A name without what peft puts into it."""
    name = name.replace("base_model.model.", "", 1).replace(".base_layer.", ".")
    return re.sub(r"\.modules_to_save\.\w+\.", ".", name)


def _scale(found: Sharded) -> float:
    settings = found.settings or {}
    rank, alpha = settings.get("r"), settings.get("lora_alpha")
    if not isinstance(rank, int) or not isinstance(alpha, int | float) or rank <= 0 or not alpha:
        raise CheckpointError(
            f"{found.path} was trained with LoRA, and its lora_alpha is not recorded",
            wanted='lora_train_meta.json with {"r": …, "lora_alpha": …}',
            do="write it beside the shards",
        )
    return float(alpha) / (rank**0.5 if settings.get("use_rslora") is True else rank)


def _added(
    base: Callable[[], torch.Tensor], down: Callable[[], torch.Tensor], up: Callable[[], torch.Tensor], scale: float
) -> torch.Tensor:
    whole, low, high = base(), down(), up()
    if whole.dim() != 2 or whole.shape != (high.shape[0], low.shape[-1]):
        raise ValueError(f"LoRA's parts {tuple(high.shape)} and {tuple(low.shape)} beside weights {tuple(whole.shape)}")
    return whole.float() + scale * (high.float() @ low.float())


__all__ = ["Sharded", "check_stored", "checkpoint", "holds_model", "is_weight"]
