"""What accelerate and the Hugging Face Trainer save under FSDP: ``pytorch_model_fsdp_0/`` or ``pytorch_model_fsdp.bin``.

The folder (``SHARDED_STATE_DICT``) is a distributed checkpoint with its names under ``model.``; the file
(``FULL_STATE_DICT``) is a state dict. Files of single ranks hold flat slices without their shapes and are refused.
"""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from credit_inspector.checkpoints import Checkpoint, CheckpointOptions, checkpoint_format
from credit_inspector.checkpoints._assemble import Sharded, check_stored, checkpoint, holds_model, is_weight
from credit_inspector.checkpoints._dcp import files_of, parameters_of, pieces_of, read_metadata
from credit_inspector.errors import CheckpointError
from credit_inspector.pickles import load_torch

if TYPE_CHECKING:
    from credit_inspector.checkpoints._assemble import Pieces

_NAME = "pytorch_model_fsdp"


@checkpoint_format("accelerate_fsdp")
def open_accelerate_fsdp(path: Path, options: CheckpointOptions) -> Checkpoint | None:
    """Recognise the folder by its name, and ``checkpoint-N`` by what is in it.

    Raises:
        CheckpointError: files are missing, or it was saved in flat slices.
    """
    if not path.is_dir() or holds_model(path):
        return None
    folder = path if path.name.startswith(_NAME) else path / f"{_NAME}_0"
    if folder.is_dir():
        return _folder(folder, options)
    file = path / f"{_NAME}.bin"
    if file.is_file():
        found = Sharded(path=path, format="accelerate_fsdp", kind="one file of FSDP", pieces=partial(_whole, file))
        return checkpoint(found, options)
    if next(path.glob(f"{_NAME}_rank*.bin"), None) is not None:
        raise CheckpointError(
            f"{path} holds flat slices of FSDP (LOCAL_STATE_DICT), whose shapes are not stored",
            wanted="SHARDED_STATE_DICT or FULL_STATE_DICT",
            do="load it where it was trained and save it with accelerator.save_model",
        )
    return None


def _folder(folder: Path, options: CheckpointOptions) -> Checkpoint | None:
    if not (folder / ".metadata").is_file():
        if next(folder.glob("*.distcp"), None) is None:
            return None
        merge = f"accelerate merge-weights {shlex.quote(str(folder))} MERGED"
        do = f"copy it too (its name begins with a dot), or merge where it is: {merge}"
        raise CheckpointError(f"{folder} holds .distcp files without their .metadata", wanted=".metadata", do=do)
    stored = read_metadata(folder)
    if not any(map(is_weight, stored)):
        raise CheckpointError(f"{folder}: optimizer state only, no weights", wanted=f"{_NAME}_0")
    found = Sharded(
        path=folder,
        format="accelerate_fsdp",
        kind=f"FSDP of accelerate in {files_of(stored)}",
        pieces=partial(pieces_of, stored, is_weight),
        parameters=parameters_of(stored, is_weight),
    )
    return checkpoint(found, options)


def _whole(file: Path) -> Pieces:
    import torch

    state: Any = load_torch(file, mmap=True)
    if not isinstance(state, dict):
        raise CheckpointError(f"{file} holds no state dict", wanted="tensors by name")
    tensors = {str(name): each for name, each in state.items() if isinstance(each, torch.Tensor)}
    for name, each in tensors.items():
        check_stored(file, name, each)
    return {name: partial(_same, each) for name, each in tensors.items()}


def _same(tensor: Any) -> Any:
    return tensor
