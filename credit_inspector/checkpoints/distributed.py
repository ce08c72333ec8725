"""A distributed checkpoint of torch: ``.metadata`` with ``__{rank}_{i}.distcp``, or slices in safetensors.

So save prime-rl (``checkpoints/step_N/trainer/``, names under ``app.model.``), NeMo-RL (``step_N/policy/weights/`` under
``model.``, and from its second DTensor worker on ``weights/model/`` in safetensors) and any loop that calls
``torch.distributed.checkpoint.save``. Megatron's ``torch_dist`` looks alike and is answered in ``megatron.py``.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from credit_inspector.checkpoints import Checkpoint, CheckpointOptions, checkpoint_format
from credit_inspector.checkpoints._assemble import Sharded, checkpoint, holds_model, is_weight
from credit_inspector.checkpoints._dcp import Stored, files_of, parameters_of, pieces_of, read_headers, read_metadata
from credit_inspector.checkpoints._loading import read_json
from credit_inspector.errors import CheckpointError


@checkpoint_format("distributed")
def open_distributed(path: Path, options: CheckpointOptions) -> Checkpoint | None:
    """Recognise it by its files and read the table of its tensors.

    Raises:
        CheckpointError: files are missing, or only the optimizer is there.
    """
    if not path.is_dir() or holds_model(path) or path.name.startswith("pytorch_model_fsdp") or _is_megatron(path):
        return None
    stored = _stored(path)
    if stored is None:
        return None
    if not any(map(is_weight, stored)):
        raise CheckpointError(
            f"{path}: optimizer state only, no weights",
            wanted="the folder with the model",
            do=f"look beside it, in {path.parent}",
        )
    found = Sharded(
        path=path,
        format="distributed",
        kind=f"torch DCP in {files_of(stored)}",
        pieces=partial(pieces_of, stored, is_weight),
        parameters=parameters_of(stored, is_weight),
    )
    return checkpoint(found, options)


def _stored(path: Path) -> dict[str, Stored] | None:
    if (path / ".metadata").is_file():
        return read_metadata(path)
    if next(path.glob("__*.metadata"), None) is not None:
        raise CheckpointError(
            f"{path} is a distributed checkpoint whose ranks wrote metadata of their own",
            wanted="one .metadata",
            do="load and save it where it was trained, with dcp.save",
        )
    if next(path.glob("*.distcp"), None) is not None:
        raise CheckpointError(
            f"{path} holds .distcp files without their .metadata, so the save did not finish or the copy left it out",
            wanted=".metadata",
            do="copy it too: its name begins with a dot",
        )
    return read_headers(path) or None


def _is_megatron(path: Path) -> bool:
    if (path / "common.pt").is_file():
        return True
    file = path / "metadata.json"
    return (path / ".metadata").is_file() and file.is_file() and "sharded_backend" in read_json(file)
