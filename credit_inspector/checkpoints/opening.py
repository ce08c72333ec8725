"""A path → the checkpoint it holds, or what it is instead and how to get a checkpoint from it.

Every format is asked about the folder itself. Where none knows it, trainers' own places inside are looked into (``actor/``,
``policy/weights/`` …), then the folder around a ``huggingface/`` without weights. A folder of several steps is not chosen from:
the steps are told.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from credit_inspector.checkpoints import Checkpoint, CheckpointOptions, checkpoint_formats
from credit_inspector.errors import CheckpointError

_WANTED = "a folder with config.json and model.safetensors"
_STEP = re.compile(r"(?:checkpoint-|global_step_?|step_?|iter_|epoch\d+epochstep\d+globalstep)(\d+)")
_INSIDE = (
    "actor",  # verl
    "_actor",  # OpenRLHF
    "policy",  # SkyRL
    "policy/weights/model",  # NeMo-RL from its second DTensor worker on
    "policy/weights",  # NeMo-RL
    "weight",  # prime-rl
    "trainer",  # prime-rl
    "model",
    "huggingface",
    *(f"{place}/huggingface" for place in ("actor", "policy", "model")),
)
"""Where trainers put the policy inside the folder of a step."""
_STEPS = ("", "checkpoints", "weights", "_actor")
"""Where trainers put the folders of steps inside a run."""
_LATEST = ("latest_checkpointed_iteration.txt", "latest_ckpt_global_step.txt", "latest")


def open_checkpoint(path: Path | str, base: Path | str | None = None) -> Checkpoint:
    """Open a checkpoint in any format that is known; nothing is loaded yet.

    Args:
        path: a folder or a file.
        base: the model that an adapter was trained on, or the folder with the config of bare shards, where the files
            themselves do not lead there.

    Raises:
        CheckpointError: nothing there, or what is there cannot be loaded as it is; the message says how to convert it.
    """
    path = Path(path)
    if not path.exists():
        raise CheckpointError(f"there is no {path}", wanted=_WANTED)
    options = CheckpointOptions(base=None if base is None else Path(base))
    try:
        found = _opened(path, options) or _opened_inside(path, options)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}", wanted=_WANTED) from error
    if found is None:
        raise _explain(path, options)
    return found


def _opened(path: Path, options: CheckpointOptions) -> Checkpoint | None:
    opened = (checkpoint_formats[name](path, options) for name in checkpoint_formats)
    found = [checkpoint for checkpoint in opened if checkpoint is not None]
    if len(found) > 1:
        raise CheckpointError(f"{path} is both {found[0].format} and {found[1].format}", wanted="one format")
    return found[0] if found else None


def _opened_inside(path: Path, options: CheckpointOptions) -> Checkpoint | None:
    for name in _INSIDE:
        inner = path / name
        if inner.is_dir() and (found := _opened(inner, options)):
            return found
    return None


# ── what lies there instead ─────────────────────────────────────────────────────────────────────────────────────────


def _explain(path: Path, options: CheckpointOptions) -> CheckpointError:
    """What lies there instead."""
    for look in _LOOKS:
        if explained := look(path, options):
            return explained
    if path.is_file():
        return CheckpointError(f"{path} is one file of no format that is known", wanted=_WANTED)
    names = sorted(islice((inner.name for inner in path.iterdir()), 1000))[:6]
    return CheckpointError(f"{path} holds {', '.join(names)}" if names else f"{path} is empty", wanted=_WANTED)


def _config_alone(path: Path, options: CheckpointOptions) -> CheckpointError | None:
    """The ``huggingface/`` of verl before anything is merged. The weights lie beside it, or nowhere."""
    if not (path / "config.json").is_file():
        return None
    found = f"{path.name or path}/ holds no weights, only a config"
    if path.name != "huggingface":
        return CheckpointError(found, wanted="model.safetensors", do="name the folder with the weights")
    around = path.absolute().parent
    try:
        beside = _opened(around, options)
    except CheckpointError as error:
        return CheckpointError(found, wanted="model.safetensors", do=f"the weights lie beside it: {error}")
    do = f"the weights lie beside it: name {around}" if beside else "name the folder with the weights"
    return CheckpointError(found, wanted="model.safetensors", do=do)


def _several(path: Path, _options: CheckpointOptions) -> CheckpointError | None:
    """A run, or another folder of checkpoints by step."""
    for place in dict.fromkeys(path / name for name in _STEPS):
        steps = dict(sorted(_steps(place)))
        if not steps:
            continue
        named = _latest(place)
        newest = steps.get(named, steps[max(steps)])
        shown = [inner.name for inner in steps.values()]
        names = ", ".join(shown if len(shown) <= 6 else [*shown[:3], "…", *shown[-2:]])
        why = ", the latest" if len(steps) > 1 else ""
        return CheckpointError(f"{place} holds checkpoints in {names}", wanted="one of them", do=f"name {newest}{why}")
    return None


def _steps(place: Path) -> Iterator[tuple[int, Path]]:
    if not place.is_dir():
        return
    for inner in place.iterdir():
        if (found := _STEP.fullmatch(inner.name)) and len(found[1]) < 19 and inner.is_dir():
            yield int(found[1]), inner


def _latest(place: Path) -> int:
    """The step that the trainer's note names, as a number or a folder; -1 where there is none."""
    for name in _LATEST:
        if (place / name).is_file():
            with (place / name).open("rb") as note:
                numbers = re.findall(rb"\d{1,18}", note.read(200))
            if numbers:
                return int(numbers[-1])
    return -1


def _models_inside(path: Path, _options: CheckpointOptions) -> CheckpointError | None:
    """Folders with configs, under names that tell no step."""
    if not path.is_dir():
        return None
    inside = sorted(inner.name for inner in path.iterdir() if (inner / "config.json").is_file())
    if not inside:
        return None
    return CheckpointError(
        f"{path} holds models in {', '.join(inside[:6])}", wanted="one of them", do=f"name {path / inside[-1]}"
    )


def _optimizer(path: Path, _options: CheckpointOptions) -> CheckpointError | None:
    """What the Hugging Face Trainer leaves where the model was removed or not saved."""
    there = next((name for name in ("optimizer.pt", "optimizer.bin", "optimizer_0") if (path / name).exists()), None)
    if there is None:
        return None
    return CheckpointError(f"{path}: optimizer state only, no weights ({there})", wanted=_WANTED, do="copy the weights too")


def _one_file(path: Path, _options: CheckpointOptions) -> CheckpointError | None:
    if not path.is_file():
        return None
    if path.suffix in (".pt", ".pth", ".bin", ".pkl", ".ckpt", ".distcp"):
        found = f"{path.name} is a pickle, which may hold code, and was not opened"
        do = f"name its folder, {path.parent}, or save the model as safetensors where you trust it"
        return CheckpointError(found, wanted=_WANTED, do=do)
    if path.suffix == ".safetensors" or path.name == "config.json":
        return CheckpointError(f"{path.name} is one file of a model", wanted="its folder", do=f"name {path.parent}")
    return None


_LOOKS: tuple[Callable[[Path, CheckpointOptions], CheckpointError | None], ...] = (
    _one_file,
    _config_alone,
    _several,
    _models_inside,
    _optimizer,
)
