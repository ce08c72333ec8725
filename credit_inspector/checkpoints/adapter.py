"""A LoRA adapter of peft: ``adapter_config.json`` with ``adapter_model.safetensors`` (or ``.bin``), over a base model.

So are the ``checkpoint-N`` folders of TRL with ``peft_config``, OpenRLHF's LoRA folders, verl's ``lora_adapter`` and downloads
from Tinker. The base is the folder that the adapter names (absolute, or as seen from the adapter or from here), what the
Hugging Face cache holds under that name, or the folder that the user gives. Nothing is downloaded. With the adapter off the
model is its base, and that is the reference of a run that names none.

peft only warns where an adapter's tensors match nothing, and answers with the base model; here the key sets are compared.
It also imports what some settings name (``megatron_core``) and searches with regular expressions from the file; such
settings are refused, and a ``target_modules`` that is an expression is taken from the tensors' names instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from credit_inspector.checkpoints import Checkpoint, CheckpointOptions, checkpoint_format
from credit_inspector.checkpoints._loading import does_not_load, quiet, read_json, ready, refuse_code, some
from credit_inspector.checkpoints.huggingface import tensors, whole_weights
from credit_inspector.errors import CheckpointError, FormatError, MissingExtra
from credit_inspector.tokens import has_tokenizer

if TYPE_CHECKING:
    import torch
    from peft import LoraConfig, PeftModel
    from transformers import PreTrainedModel

_CONFIG = "adapter_config.json"
_FILES = ("adapter_model.safetensors", "adapter_model.bin")
_PREFIX = "base_model.model."
_ENDS = re.compile(r"\.(?:embed_tokens|wte|embed_in|word_embeddings|lm_head|embed_out)\.weight$")
_PLAIN = re.compile(r"\^?[\w.\\-]*\$?")
"""A module's name, or the end of one: no expression that could search for ever."""
_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")
"""Ways to begin an adapter (``init_lora_weights``) that leave the base as it is."""
_UNKNOWN = {
    "alora_invocation_tokens": "it acts on some tokens only",
    "arrow_config": "it mixes adapters",
    "kasa_config": "it changes the base model too",
    "layer_replication": "it repeats layers of the base",
    "megatron_config": "it names a module to import",
}
_WIDEST = 4
"""A rank above the width that it is taken from holds nothing more; ranks of tiny models may be."""
_HIGHEST = 65_536
"""Of ranks and of alpha."""
Shapes = Mapping[str, tuple[int, ...]]


class _Adapter(NamedTuple):
    path: Path
    file: Path
    settings: Mapping[str, Any]
    base: Checkpoint


@checkpoint_format("adapter")
def open_adapter(path: Path, options: CheckpointOptions) -> Checkpoint | None:
    """Recognise an adapter by its settings and open its base; neither is loaded.

    Raises:
        CheckpointError: the base or the tensors are missing, or the settings ask for what is not done here.
    """
    if not (path / _CONFIG).is_file():
        return None
    settings = read_json(path / _CONFIG)
    _refuse(path, settings)
    file = _file(path)
    base = _base(path, settings, options)
    words = _words(file) or base.vocabulary
    # trained biases and added words stay where the adapter is turned off: then it is another model than its base
    turns_off = settings.get("bias", "none") == "none" and words == base.vocabulary
    return Checkpoint(
        path=path,
        format="adapter",
        summary=_summary(settings, base),
        vocabulary=words,
        tokenizer=path if has_tokenizer(path) else base.tokenizer,
        load=partial(_load, _Adapter(path, file, settings, base)),
        base=base if turns_off else None,
    )


def _words(file: Path) -> int:
    """Rows of an embedding or a head that was saved whole; 0 where none was, and in pickles, which are not opened here."""
    shapes = tensors(file) if file.suffix == ".safetensors" else {}
    return max((shape[0] for name, shape in shapes.items() if _ENDS.search(name) and len(shape) == 2), default=0)


def _summary(settings: Mapping[str, Any], base: Checkpoint) -> str:
    targets = settings.get("target_modules")
    named = ", ".join(sorted(map(str, targets))[:8]) if isinstance(targets, list) else str(targets)[:80]
    what = f"LoRA adapter, rank {settings['r']}, alpha {settings.get('lora_alpha', 8)}, on {named}"
    return f"{what}; base {base.path.name}: {base.summary}"


def _file(path: Path) -> Path:
    """The one file with the tensors."""
    there = [path / name for name in _FILES if (path / name).is_file()]
    if (path / "config.json").is_file() and whole_weights(path):
        raise CheckpointError(
            f"{path} holds a whole model and an adapter",
            wanted="one of them",
            do="move the adapter's files into a folder of their own, or away where they are merged into the model",
        )
    if not there:
        state = " (optimizer state only)" if (path / "optimizer.pt").is_file() else ""
        raise CheckpointError(f"{path} is an adapter without its tensors{state}", wanted=" or ".join(_FILES))
    if there[0].suffix == ".safetensors" and not tensors(there[0]):
        raise _empty(there[0])
    return there[0]


def _empty(file: Path) -> CheckpointError:
    return CheckpointError(
        f"{file}: adapter file holds no tensors",
        wanted="LoRA weights",
        do="save the adapter again (under ZeRO-3, gather the parameters before saving)",
    )


# ── what is refused ─────────────────────────────────────────────────────────────────────────────────────────────────


def _refuse(path: Path, settings: Mapping[str, Any]) -> None:
    """Settings that lead to code, to another base than the given one, or to numbers that peft would not say are off."""
    refuse_code(path, settings)
    kind = settings.get("peft_type")
    if kind != "LORA":
        do = "merge it into its base where it was trained, and name the merged folder"
        raise CheckpointError(f"{path} is an adapter of type {kind}", wanted="a LoRA adapter", do=do)
    rank, alpha = settings.get("r"), settings.get("lora_alpha", 8)
    if not _counts(rank) or not isinstance(alpha, int | float) or not abs(alpha) <= _HIGHEST:
        raise CheckpointError(f"{path / _CONFIG}: rank {rank!r} and alpha {alpha!r}", wanted="two numbers")
    alphas = settings.get("alpha_pattern") or {}
    if not isinstance(alphas, Mapping) or not all(isinstance(a, int | float) and abs(a) <= _HIGHEST for a in alphas.values()):
        raise CheckpointError(f"{path / _CONFIG}: alpha_pattern {str(alphas)[:80]}", wanted="numbers by module")
    pattern = settings.get("rank_pattern") or {}
    if not isinstance(pattern, Mapping) or not all(_counts(value) for value in pattern.values()):
        raise CheckpointError(f"{path / _CONFIG}: rank_pattern {str(pattern)[:80]}", wanted="ranks by module")
    mapping = settings.get("auto_mapping")
    library = mapping.get("parent_library") if isinstance(mapping, Mapping) else mapping
    # peft writes it where no task was named; from transformers' own modules nothing is imported by it
    if library is not None and str(library).split(".", 1)[0] != "transformers":
        raise _not_done(path, "auto_mapping", library, "it names a module to import")
    for name, why in _UNKNOWN.items():
        if settings.get(name):
            raise _not_done(path, name, settings[name], why)
    if settings.get("megatron_core") not in (None, "megatron.core"):
        raise _not_done(path, "megatron_core", settings["megatron_core"], "it names a module to import")
    start = settings.get("init_lora_weights", True)
    if isinstance(start, list | dict) or start not in _STARTS:
        raise _not_done(path, "init_lora_weights", start, "it changes the base model too")
    _refuse_patterns(path, settings)


def _counts(rank: Any) -> bool:
    return isinstance(rank, int) and not isinstance(rank, bool) and 1 <= rank <= _HIGHEST


def _refuse_patterns(path: Path, settings: Mapping[str, Any]) -> None:
    for name in ("rank_pattern", "alpha_pattern", "layers_pattern", "exclude_modules", "modules_to_save", "target_parameters"):
        given = settings.get(name) or ()
        for pattern in given if isinstance(given, list | Mapping) else (given,) if given else ():
            if not isinstance(pattern, str) or not _PLAIN.fullmatch(pattern):
                raise _not_done(path, name, pattern, "it is an expression and no module's name")


def _not_done(path: Path, name: str, value: Any, why: str) -> CheckpointError:
    return CheckpointError(
        f"{path / _CONFIG} sets {name} to {str(value)[:80]}: {why}, which is not done here",
        wanted="a plain LoRA adapter",
        do="merge it into its base where it was trained, and name the merged folder",
    )


# ── the base model ──────────────────────────────────────────────────────────────────────────────────────────────────


def _base(path: Path, settings: Mapping[str, Any], options: CheckpointOptions) -> Checkpoint:
    from credit_inspector.checkpoints.opening import open_checkpoint

    named = settings.get("base_model_name_or_path")
    found = options.base or _found(path, named if isinstance(named, str) else "", settings.get("revision"))
    if found is None:
        raise CheckpointError(
            f"{path}: adapter, base model missing" + (f" (it was trained on {named}, which is not here)" if named else ""),
            wanted="the folder of its base model",
            do="give --base",
        )
    if (found / _CONFIG).is_file():
        do = "merge that one into its own base, and give the merged folder with --base"
        raise CheckpointError(f"{path}: its base {found} is an adapter too", wanted="a whole model", do=do)
    return open_checkpoint(found)


def _found(path: Path, named: str, revision: Any) -> Path | None:
    """The base as the adapter names it: a folder, or a name of which the Hugging Face cache holds a copy."""
    if not named:
        return None
    try:
        for folder in (path / named, Path(named)):  # an absolute name replaces the adapter's folder
            known = (folder / "config.json").is_file() or (folder / _CONFIG).is_file()
            if known and folder.resolve() != path.resolve():
                return folder
        from huggingface_hub import try_to_load_from_cache

        config = try_to_load_from_cache(named, "config.json", revision=revision if isinstance(revision, str) else None)
    except (ImportError, OSError, ValueError):  # no name of a file or of a repository
        return None
    return Path(config).parent if isinstance(config, str) else None


# ── loading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _load(adapter: _Adapter, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    try:
        import peft  # noqa: F401
    except ImportError:
        raise MissingExtra("peft", "peft") from None
    shapes = _shapes(adapter.file)
    config = _config(adapter, shapes)
    base = adapter.base.load(device, dtype)
    _make_room(adapter, base, shapes)
    try:
        with quiet():
            wrapped, missing, unexpected = _wrap(adapter, base, config, device)
    except KeyError as error:  # peft looks up what modules_to_save names
        raise CheckpointError(f"{adapter.path}: the adapter file lacks {error}", wanted="all that its settings name") from error
    except Exception as error:  # peft and torch raise their own
        raise does_not_load(adapter.path, error) from error
    _check_matched(adapter, len(shapes), missing, unexpected)
    return ready(_plain(adapter, wrapped), device)


def _shapes(file: Path) -> Shapes:
    """Names and shapes of the tensors."""
    if file.suffix == ".safetensors":
        found: Shapes = tensors(file)
    else:
        found = _pickled(file)
    if not found:
        raise _empty(file)
    return found


def _pickled(file: Path) -> Shapes:
    from credit_inspector.pickles import load_torch

    try:
        held = load_torch(file, mmap=True)
    except FormatError as error:
        raise CheckpointError(str(error)) from error
    if not isinstance(held, Mapping) or not all(hasattr(value, "shape") for value in held.values()):
        raise CheckpointError(f"{file} holds more than tensors by name", wanted="the weights of an adapter")
    return {str(name): tuple(value.shape) for name, value in held.items()}


def _config(adapter: _Adapter, shapes: Shapes) -> LoraConfig:
    """The settings as peft has them, without expressions, and with ranks that the tensors have."""
    from peft import LoraConfig, PeftConfig

    # qalora_group_size is written by newer ones whether use_qalora is on or not
    known = {field.name for field in fields(LoraConfig)} | {"peft_version", "qalora_group_size"}
    if strange := sorted(name for name, value in adapter.settings.items() if value and name not in known):
        raise CheckpointError(f"{adapter.path} has settings that this peft does not know: {some(strange)}", do="update peft")
    _check_ranks(adapter, shapes)
    try:
        config = cast("LoraConfig", PeftConfig.from_pretrained(str(adapter.path)))
    except Exception as error:  # peft checks its settings in its own ways
        raise does_not_load(adapter.path, error) from error
    if isinstance(config.target_modules, str) and config.target_modules != "all-linear":
        config.target_modules, config.exclude_modules = sorted(_adapted(shapes)), None
    config.inference_mode = True
    return config


def _check_ranks(adapter: _Adapter, shapes: Shapes) -> None:
    """The settings' ranks are those of the tensors: peft would make room for any rank that is named."""
    lower = [shape for name, shape in shapes.items() if re.search(r"\.lora_(embedding_)?A\b", name) and len(shape) > 1]
    ranks = {shape[0] for shape in lower if shape[0] <= _WIDEST * shape[1]}
    if not ranks:
        raise CheckpointError(
            f"{adapter.file}: 0 of {len(shapes)} adapter tensors matched", wanted="LoRA weights (lora_A, lora_B)"
        )
    if adapter.settings.get("target_parameters"):
        return  # those of a layer's experts lie in one tensor
    pattern = adapter.settings.get("rank_pattern") or {}
    named = {*pattern.values()} if pattern else {adapter.settings["r"]}
    if odd := named - ranks:
        told = ", ".join(map(str, sorted(ranks)))
        raise CheckpointError(
            f"{adapter.path}: the settings say rank {min(odd)}, the tensors have rank {told}",
            wanted="settings and tensors of one adapter",
        )


def _adapted(shapes: Iterable[str]) -> set[str]:
    """The modules that the tensors' names speak of."""
    return {name.removeprefix(_PREFIX).split(".lora_")[0] for name in shapes if ".lora_" in name}


def _make_room(adapter: _Adapter, base: PreTrainedModel, shapes: Shapes) -> None:
    """Words that were added in training: the embedding is saved whole then, with more rows than the base has.

    A tied head that is itself adapted becomes a tensor of its own, as peft runs it.
    """
    rows = {name: shapes[key][0] for name in _ends(base) if (key := f"{_PREFIX}{name}.weight") in shapes and shapes[key]}
    size = max(rows.values(), default=0)
    inner: Any = base.get_input_embeddings()
    outer: Any = base.get_output_embeddings()
    tied = outer is not None and outer.weight is inner.weight
    if size and size != len(inner.weight):
        if not tied and len(rows) < 2:
            found = f"{adapter.path}: the vocabulary was changed to {size} words, and only {min(rows)} was saved"
            raise CheckpointError(found, wanted="the embedding and the head", do="save both, or merge the adapter")
        base.resize_token_embeddings(size, mean_resizing=False)
    touched = any(f"{name}.lora_" in key for name in _ends(base) for key in shapes) or adapter.settings.get("modules_to_save")
    if tied and touched:
        import torch

        head: Any = base.get_output_embeddings()
        head.weight = torch.nn.Parameter(head.weight.detach().clone(), requires_grad=False)
        base.config.tie_word_embeddings = False


def _ends(model: PreTrainedModel) -> list[str]:
    """Names of the embedding and of the head."""
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    return [name for name, module in model.named_modules() if any(module is end for end in ends)]


def _wrap(
    adapter: _Adapter, base: PreTrainedModel, config: LoraConfig, device: torch.device
) -> tuple[PeftModel, list[str], list[str]]:
    """The base with the adapter on, and the keys that were missing and those that found no place."""
    from peft import PeftModel

    wrapped: Any = PeftModel(base, config)
    loaded: Any = wrapped.load_adapter(str(adapter.path), "default", torch_device=str(device))
    missing = [key for key in loaded.missing_keys if ".lora_" in key or ".modules_to_save." in key]
    return wrapped, missing, list(loaded.unexpected_keys)


def _check_matched(adapter: _Adapter, total: int, missing: list[str], unexpected: list[str]) -> None:
    if not missing and not unexpected:
        return
    matched = max(total - len(unexpected), 0)
    parts = [f"{matched} of {total} adapter tensors matched"]
    if unexpected:
        parts.append(f"without a place: {some(sorted(unexpected))}")
    if missing:
        parts.append(f"{len(missing)} places without a tensor: {some(sorted(missing))}")
    raise CheckpointError(
        f"{adapter.path}: {', '.join(parts)}", wanted="an adapter of this base model", do="give its own base with --base"
    )


def _plain(adapter: _Adapter, wrapped: PeftModel) -> PreTrainedModel:
    """The base model with LoRA layers inside, as the trainer ran it; merged where the embedding or the head is adapted.

    What is scored multiplies hidden states with the head's weight, so that has to be one plain tensor.
    """
    model = cast("PreTrainedModel", wrapped.get_base_model())
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    if not any(type(end).__module__.startswith("peft.") for end in ends):
        return model
    import torch

    probe = torch.arange(min(8, len(cast("Any", ends[0]).weight)), device=model.device)[None]
    wrapped.eval()
    with torch.no_grad():
        before = cast("Any", model)(input_ids=probe, use_cache=False).logits.float()
        merged = cast("Any", wrapped).merge_and_unload()
        after = merged(input_ids=probe, use_cache=False).logits.float()
    off = float((after - before).abs().max() / before.abs().max().clamp_min(1e-6))
    if not off <= (1e-3 if model.dtype == torch.float32 else 0.1):
        raise CheckpointError(
            f"{adapter.path}: merged into its base it gives other numbers (logits differ by {off:.2g} of their size)",
            wanted="an adapter that leaves a tied embedding alone",
            do="merge it where it was trained, and name the merged folder",
        )
    return cast("PreTrainedModel", merged)
