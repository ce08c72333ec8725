"""What every format asks of transformers: a model without code of the data's, and an error where it does not fit.

Pickled weights go through torch's restricted loader and through no other; code that a folder brings along is refused, not
skipped, since the model would be another one without it.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from credit_inspector.errors import CheckpointError, MissingExtra

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_MOST_LAYERS = 10_000
_PARAMETERS_PER_BYTE = 8
"""More than the tightest quantisation stores in a byte."""


# ── settings ────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_json(file: Path) -> Mapping[str, Any]:
    """An object of settings.

    Raises:
        CheckpointError: it cannot be read, or is something else.
    """
    try:
        data = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}", wanted="JSON") from error
    if not isinstance(data, Mapping):
        raise CheckpointError(f"{file} is no JSON object", wanted="settings by name")
    return data


def refuse_code(path: Path, config: Mapping[str, Any]) -> None:
    """Settings that lead to code: the folder's own, or kernels that transformers would fetch from elsewhere.

    Raises:
        CheckpointError: they do.
    """
    for key, value in _entries(config):
        if key == "auto_map":
            raise CheckpointError(
                f"{path} brings model code of its own (auto_map)",
                wanted="a model type that transformers knows",
                do="no code of the data's runs here: take auto_map out where transformers knows the type",
            )
        if key.endswith("_implementation") and isinstance(value, str) and "/" in value:
            raise CheckpointError(
                f"{path} asks for code from elsewhere ({key}: {value})",
                wanted="an implementation of transformers' own, such as sdpa",
                do=f"no code of the data's runs here: take {key} out",
            )


def _entries(settings: Any) -> Iterator[tuple[str, Any]]:
    """Keys and values at every depth."""
    rest = [settings]
    while rest:
        each = rest.pop()
        if isinstance(each, Mapping):
            yield from ((str(key), value) for key, value in each.items())
            rest.extend(each.values())
        elif isinstance(each, list):
            rest.extend(each)


def vocabulary_of(config: Mapping[str, Any]) -> int:
    """Rows of the model's embedding, often more than the tokenizer has words; 0 where the config does not say."""
    for part in (config, config.get("text_config"), config.get("llm_config")):
        if isinstance(part, Mapping) and isinstance(part.get("vocab_size"), int):
            return int(part["vocab_size"])
    return 0


def in_words(parameters: int) -> str:
    """``1.4 M parameters``."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if parameters >= unit:
            return f"{parameters / unit:.1f} {name} parameters"
    return f"{parameters} parameters"


# ── loading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def load_pretrained(path: Path, stored: int, device: torch.device, dtype: torch.dtype, **settings: Any) -> PreTrainedModel:
    """A folder that transformers reads → a model that is ready.

    Args:
        path: the folder.
        stored: bytes of its weights.
        device: where it goes.
        dtype: in which precision.
        settings: more for ``from_pretrained``.

    Raises:
        CheckpointError: it does not load, or weights are missing or do not fit.
        MissingExtra: transformers is not installed.
    """
    if (path / "adapter_config.json").exists():
        # transformers would go after the base model that the file names
        raise CheckpointError(f"{path} holds an adapter beside the model", do="move the model or the adapter out")
    try:
        from transformers import AutoModelForCausalLM  # noqa: F401
    except ImportError:
        raise MissingExtra("transformers", "compute") from None
    try:
        with quiet():
            _check_size(path, stored, settings)
            model, loaded = _from_pretrained(path, dtype, settings)
    except CheckpointError:
        raise
    except Exception as error:  # a broken file and an unknown type each raise their own
        raise does_not_load(path, error) from error
    check_keys(path, model, loaded)
    return ready(model, device)


def _from_pretrained(path: Path, dtype: torch.dtype, settings: Mapping[str, Any]) -> tuple[PreTrainedModel, Mapping[str, Any]]:
    """The model and what transformers says of its keys; wrong shapes are among them and raise afterwards."""
    from transformers import AutoModelForCausalLM

    given: dict[str, Any] = {
        **settings,
        "trust_remote_code": False,
        "local_files_only": True,
        "dtype": dtype,
        "output_loading_info": True,
        "ignore_mismatched_sizes": True,
    }
    try:
        found = AutoModelForCausalLM.from_pretrained(str(path), attn_implementation="sdpa", **given)
    except ValueError as error:
        if "scaled_dot_product" not in str(error):
            raise
        found = AutoModelForCausalLM.from_pretrained(str(path), attn_implementation="eager", **given)
    return cast("tuple[PreTrainedModel, Mapping[str, Any]]", found)


def _check_size(path: Path, stored: int, settings: Mapping[str, Any]) -> None:
    """A config of a far larger model than its files hold would be filled with random numbers before it is found out."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    where = {key: settings[key] for key in ("gguf_file",) if key in settings}
    config = AutoConfig.from_pretrained(str(path), trust_remote_code=False, local_files_only=True, **where)
    for key, value in _entries(config.to_dict()):
        if re.search("layer|expert|block", key) and isinstance(value, int) and value > _MOST_LAYERS:
            raise CheckpointError(f"{path}: the config asks for {key} = {value}", wanted=f"at most {_MOST_LAYERS}")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    asked = sum(parameter.numel() for parameter in model.parameters())
    if asked > _PARAMETERS_PER_BYTE * stored:
        raise CheckpointError(
            f"{path}: the config describes a model of {in_words(asked)}, and the weights are {stored} bytes",
            wanted="weights that fit the config",
            do="copy the config and the weights of one model",
        )


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' bars and tables and peft's warnings: what they say is in the error."""
    from transformers import utils

    logging: Any = utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def ready(model: PreTrainedModel, device: torch.device) -> PreTrainedModel:
    """On its device, in ``eval()`` mode, without gradients."""
    if getattr(model, "supports_gradient_checkpointing", False):
        # transformers 5.2x renamed it and warns of the old name
        name = "activation_checkpointing_disable"
        getattr(model, name if hasattr(model, name) else "gradient_checkpointing_disable")()
    scorer: Any = model
    return cast("PreTrainedModel", scorer.to(device).eval().requires_grad_(False))


# ── errors ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def does_not_load(path: Path, error: Exception) -> CheckpointError:
    """The error without torch's own advice, which is to turn the protection off."""
    text = str(error)
    if blocked := re.search(r"(?:GLOBAL|[Uu]nsupported global:?) (?:GLOBAL )?([\w.]+)", text):
        return CheckpointError(
            f"{path}: the pickle asks for {blocked[1]}, which is more than weights, and was not run",
            wanted="weights alone",
            do="save the model as safetensors where you trust it",
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = next((line for line in lines if "size mismatch" in line), lines[0] if lines else type(error).__name__)
    return CheckpointError(f"{path} does not load: {told[:300]}")


def check_keys(path: Path, model: PreTrainedModel, loaded: Mapping[str, Any]) -> None:
    """Tensors that the model has and the files lack would be random numbers; tied ones are not among them.

    Raises:
        CheckpointError: some are, or the files hold others.
    """
    if head := _heads(model) & set(map(str, loaded.get("missing_keys") or ())):
        raise CheckpointError(
            f"{path}: the head {min(head)} is missing, and the config does not tie it to the embedding",
            wanted="the head's weights, or tie_word_embeddings true",
            do="set tie_word_embeddings to true in config.json where the model was trained so, else copy the missing tensor",
        )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        keys = sorted(map(str, loaded.get(kind) or ()))
        if keys:
            word = kind.split("_", 1)[0]
            raise CheckpointError(f"{path}: {len(keys)} {word} tensors ({some(keys)})", wanted="weights that fit the config")


def some(names: list[str]) -> str:
    """The first three names."""
    return ", ".join(names[:3]) + (" …" if len(names) > 3 else "")


def _heads(model: PreTrainedModel) -> set[str]:
    head: Any = model.get_output_embeddings()
    return {f"{name}.weight" for name, module in model.named_modules() if head is not None and module is head}
