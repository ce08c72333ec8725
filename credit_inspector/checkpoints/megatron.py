"""Checkpoints of Megatron, recognised and answered with the command that converts them.

Their tensors are cut, fused and named as Megatron needs them, and putting that right takes its own model definition. So the
answer is the trainer's script, with this checkpoint's path in it:

- verl (1dda039): ``python -m verl.model_merger merge --backend megatron --local_dir … --target_dir …``
- slime (624b824) and miles: ``tools/convert_torch_dist_to_hf.py --input-dir … --output-dir … --origin-hf-dir …``
- NeMo-RL (7ea279a): ``examples/converters/convert_megatron_to_hf.py --config … --megatron-ckpt-path … --hf-ckpt-path …``
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from credit_inspector.checkpoints import Checkpoint, CheckpointOptions, checkpoint_format
from credit_inspector.checkpoints._assemble import holds_model
from credit_inspector.checkpoints._loading import read_json
from credit_inspector.errors import CheckpointError

_WANTED = "a Hugging Face folder made from it"
_ITERATION = re.compile(r"iter_\d+")
_LATEST = "latest_checkpointed_iteration.txt"


@checkpoint_format("megatron")
def open_megatron(path: Path, options: CheckpointOptions) -> Checkpoint | None:
    """Never a checkpoint: None, or the command.

    Raises:
        CheckpointError: it is one of Megatron's.
    """
    if not path.is_dir() or holds_model(path):
        return None
    if verl := _verl(path):
        raise verl
    folder = _newest(path) if not _is_iteration(path) else path
    if folder is None:
        return None
    if nemo := _nemo(folder):
        raise nemo
    raise _slime(folder, options)


def _verl(path: Path) -> CheckpointError | None:
    """``dist_ckpt/`` in the actor's folder, or from its schema 2 on ``model/dist_ckpt/``."""
    places = (path.parent.parent, path.parent, path) if path.name in ("dist_ckpt", "model") else (path,)
    for actor in places:
        if not any((actor / inner).is_dir() for inner in ("dist_ckpt", "model/dist_ckpt")):
            continue
        for whole in (actor / "huggingface", actor / "model" / "huggingface"):
            if holds_model(whole):
                return CheckpointError(f"{actor} is a Megatron checkpoint of verl", wanted=_WANTED, do=f"name {whole}")
        merge = f"python -m verl.model_merger merge --backend megatron --local_dir {_quoted(actor)} --target_dir MERGED"
        return CheckpointError(f"{actor} is a Megatron checkpoint of verl", wanted=_WANTED, do=f"where it was trained: {merge}")
    return None


def _is_iteration(path: Path) -> bool:
    """A folder of ``torch_dist``, or an older one by tensor-parallel rank."""
    if (path / "common.pt").is_file():
        return True
    settings = path / "metadata.json"
    if (path / ".metadata").is_file() and settings.is_file() and "sharded_backend" in read_json(settings):
        return True
    return next(path.glob("mp_rank_*/model_optim_rng.pt"), None) is not None


def _newest(path: Path) -> Path | None:
    """Of a folder of iterations the one that its note names, else the last."""
    inside = sorted((inner for inner in path.iterdir() if _ITERATION.fullmatch(inner.name)), key=lambda inner: inner.name)
    inside = [inner for inner in inside if _is_iteration(inner)]
    if not inside:
        return None
    note = path / _LATEST
    named = note.read_bytes()[:20].decode("ascii", "replace").strip() if note.is_file() else ""
    return next((inner for inner in inside if named.isdigit() and int(inner.name[5:]) == int(named)), inside[-1])


def _nemo(folder: Path) -> CheckpointError | None:
    """``step_N/policy/weights/iter_0000000`` beside ``step_N/config.yaml``."""
    weights = folder.parent
    config = weights.parent.parent / "config.yaml"
    if weights.name != "weights" or not config.is_file():
        return None
    convert = (
        f"python examples/converters/convert_megatron_to_hf.py --config {_quoted(config)} "
        f"--megatron-ckpt-path {_quoted(folder)} --hf-ckpt-path MERGED"
    )
    return CheckpointError(f"{folder} is a Megatron checkpoint of NeMo-RL", wanted=_WANTED, do=f"in NeMo-RL's folder: {convert}")


def _slime(folder: Path, options: CheckpointOptions) -> CheckpointError:
    if not (folder / ".metadata").is_file():
        return CheckpointError(
            f"{folder} is a Megatron checkpoint by rank (mp_rank_*)",
            wanted=_WANTED,
            do="load it where it was trained and save it with --ckpt-format torch_dist, or convert it with Megatron Bridge",
        )
    origin = _quoted(options.base) if options.base else "HF_MODEL_IT_BEGAN_FROM"
    convert = (
        f"python tools/convert_torch_dist_to_hf.py --input-dir {_quoted(folder)} --output-dir MERGED --origin-hf-dir {origin}"
    )
    return CheckpointError(
        f"{folder} is a Megatron checkpoint in shards (torch_dist), as slime and miles save it",
        wanted=_WANTED,
        do=f"in slime's folder: {convert}",
    )


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
