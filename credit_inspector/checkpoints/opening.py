"""A path → the checkpoint it holds, or what it is instead and how to get a checkpoint from it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from credit_inspector.checkpoints import Checkpoint, checkpoint_formats
from credit_inspector.errors import CheckpointError

_WANTED = "a folder with config.json and model.safetensors"
_FSDP = re.compile(r"(model|optim)_world_size_(\d+)_rank_(\d+)\.pt")
_MERGE = "python -m verl.model_merger merge --backend {} --local_dir {} --target_dir MERGED"


def open_checkpoint(path: Path | str) -> Checkpoint:
    """Open a checkpoint in any format that is known; nothing is loaded yet.

    Raises:
        CheckpointError: nothing there, or what is there cannot be loaded as it is; the message says how to convert it.
    """
    path = Path(path)
    if not path.exists():
        raise CheckpointError(f"there is no {path}", wanted=_WANTED)
    opened = (checkpoint_formats[name](path) for name in checkpoint_formats)
    found = [checkpoint for checkpoint in opened if checkpoint is not None]
    if len(found) > 1:
        raise CheckpointError(f"{path} is both {found[0].format} and {found[1].format}", wanted="one format")
    if not found:
        raise _explain(path)
    return found[0]


def _explain(path: Path) -> CheckpointError:
    """What lies there instead."""
    for look in _LOOKS:
        if explained := look(path):
            return explained
    names = sorted(inner.name for inner in path.iterdir())[:6] if path.is_dir() else []
    found = f"{path} holds {', '.join(names)}" if names else f"{path} is {'empty' if path.is_dir() else 'one file'}"
    return CheckpointError(found, wanted=_WANTED)


def _has(path: Path, pattern: str) -> bool:
    return path.is_dir() and next(path.glob(pattern), None) is not None


def _adapter(path: Path) -> CheckpointError | None:
    if not (path / "adapter_config.json").is_file():
        return None
    return CheckpointError(
        f"{path} is an adapter without its base model",
        wanted=_WANTED,
        do="merge it: AutoPeftModelForCausalLM.from_pretrained(ADAPTER).merge_and_unload().save_pretrained(MERGED)",
    )


def _fsdp(path: Path) -> CheckpointError | None:
    """Rank shards of verl's FSDP trainer, in the folder or beside its ``huggingface`` subfolder."""
    shards = [found for inner in _inside(path) if (found := _FSDP.fullmatch(inner.name))]
    if not shards:
        return None
    size = max(int(shard[2]) for shard in shards)
    ranks = {int(shard[3]) for shard in shards if shard[1] == "model"}
    merge = _MERGE.format("fsdp", path)
    if not ranks:
        return CheckpointError(f"{path}: optimizer state only, no weights", wanted="model_world_size_*_rank_*.pt too")
    missing = [rank for rank in range(size) if rank not in ranks]
    absent = f", rank {', '.join(map(str, missing[:8]))} missing" if missing else ""
    do = f"{'copy the rest and ' if missing else ''}merge them: {merge}"
    return CheckpointError(f"{path}: FSDP shards of world size {size}{absent}", wanted=_WANTED, do=do)


def _distributed(path: Path) -> CheckpointError | None:
    if not _has(path, "*.distcp") and not (path.is_dir() and (path / ".metadata").is_file()):
        return None
    if (path / "common.pt").is_file():
        do = "convert it with the trainer's tools/convert_torch_dist_to_hf.py"
        return CheckpointError(f"{path} is a Megatron checkpoint in shards (torch_dist)", wanted=_WANTED, do=do)
    if path.name.startswith("pytorch_model_fsdp"):
        do = f"merge it: accelerate merge-weights {path} MERGED"
    else:
        do = "convert it: torch.distributed.checkpoint.format_utils.dcp_to_torch_save(FOLDER, FILE), then save the model"
    return CheckpointError(f"{path} is a distributed torch checkpoint (.distcp)", wanted=_WANTED, do=do)


def _deepspeed(path: Path) -> CheckpointError | None:
    if not _has(path, "global_step*") and not _has(path, "*_zero_pp_rank_*") and not _has(path, "mp_rank_*"):
        return None
    if _has(path, "global_step*/actor"):
        do = f"name one: {next(path.glob('global_step*/actor'))}"
        return CheckpointError(f"{path} holds verl checkpoints by step", wanted=_WANTED, do=do)
    do = f"convert it where it was trained: python {path}/zero_to_fp32.py {path} MERGED"
    return CheckpointError(f"{path} is a DeepSpeed ZeRO checkpoint", wanted=_WANTED, do=do)


def _gguf(path: Path) -> CheckpointError | None:
    if path.suffix != ".gguf" and not _has(path, "*.gguf"):
        return None
    return CheckpointError(
        f"{path} holds GGUF weights, which are quantised: log-probabilities would not be those of training",
        wanted=_WANTED,
        do="name the folder that it was made from",
    )


def _megatron(path: Path) -> CheckpointError | None:
    if not path.is_dir() or not any((path / name).exists() for name in ("dist_ckpt", "model/dist_ckpt")):
        return None
    do = f"merge it: {_MERGE.format('megatron', path)}"
    return CheckpointError(f"{path} is a Megatron checkpoint of verl", wanted=_WANTED, do=do)


def _config_alone(path: Path) -> CheckpointError | None:
    if not (path / "config.json").is_file():
        return None
    beside = _fsdp(path.parent)
    do = f"the weights lie beside it: {beside}" if beside else "name the folder with the weights"
    return CheckpointError(f"{path.name}/ holds no weights, only a config", wanted="model.safetensors", do=do)


def _several(path: Path) -> CheckpointError | None:
    """A folder of checkpoints, such as a trainer's output."""
    inside = [inner for inner in _inside(path) if inner.is_dir() and (inner / "config.json").is_file()]
    if not inside:
        return None
    inside.sort(key=lambda inner: (len(inner.name), inner.name))
    names = ", ".join(inner.name for inner in inside[:6])
    return CheckpointError(f"{path} holds checkpoints in {names}", wanted="one of them", do=f"name {inside[-1]}")


def _pickle(path: Path) -> CheckpointError | None:
    if path.suffix not in (".pt", ".pth", ".bin", ".pkl", ".ckpt"):
        return None
    found = f"{path.name} is a pickle, which may hold code, and was not opened"
    do = "name its folder, or save the model as safetensors where you trust it"
    return CheckpointError(found, wanted=_WANTED, do=do)


def _inside(path: Path) -> list[Path]:
    return sorted(path.iterdir()) if path.is_dir() else []


_LOOKS: tuple[Callable[[Path], CheckpointError | None], ...] = (
    _adapter,
    _config_alone,
    _fsdp,
    _distributed,
    _megatron,
    _deepspeed,
    _gguf,
    _several,
    _pickle,
)
