"""Rank shards of FSDP: ``model_world_size_{W}_rank_{R}.pt``, as verl and SkyRL write them, put together without either.

verl (1dda039, ``verl/utils/checkpoint/fsdp_checkpoint_manager.py``) leaves in ``global_step_N/actor/`` one file a rank, a
``fsdp_config.json`` with the world size, and a ``huggingface/`` with config and tokenizer, without weights unless
``hf_model`` is among ``save_contents``. Tensors are ``DTensor``s: each rank holds a slice along a dimension. On a mesh of two
dimensions (``ddp``, ``fsdp``) the first repeats what the second holds. LoRA's constants lie in ``lora_train_meta.json``.
"""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from credit_inspector.checkpoints import Checkpoint, CheckpointOptions, checkpoint_format
from credit_inspector.checkpoints._assemble import Sharded, check_stored, checkpoint, holds_model
from credit_inspector.checkpoints._loading import read_json, some
from credit_inspector.errors import CheckpointError
from credit_inspector.pickles import load_torch

if TYPE_CHECKING:
    import torch

    from credit_inspector.checkpoints._assemble import Pieces

_SHARD = re.compile(r"(model|optim|extra_state)_world_size_(\d{1,7})_rank_(\d{1,7})\.pt")


@checkpoint_format("verl_fsdp")
def open_verl_fsdp(path: Path, options: CheckpointOptions) -> Checkpoint | None:
    """Recognise shards by their names.

    Raises:
        CheckpointError: a rank is missing, only the optimizer is there, or shards of several runs are mixed.
    """
    if not path.is_dir() or holds_model(path):
        return None
    shards = [found for inner in path.iterdir() if (found := _SHARD.fullmatch(inner.name))]
    if not shards:
        return None
    ranks: dict[int, set[int]] = {}
    for shard in shards:
        if shard[1] == "model":
            ranks.setdefault(int(shard[2]), set()).add(int(shard[3]))
    if not ranks:
        raise CheckpointError(
            f"{path}: optimizer state only, no weights",
            wanted="model_world_size_*_rank_*.pt too",
            do="copy them, then open it again",
        )
    world = _world(path, ranks)
    _check_complete(path, world, ranks[world])
    files = [path / f"model_world_size_{world}_rank_{rank}.pt" for rank in range(world)]
    sharded = Sharded(
        path=path,
        format="verl_fsdp",
        kind=f"FSDP shards of world size {world}",
        pieces=partial(_pieces, path, files),
        settings=_lora(path),
    )
    return checkpoint(sharded, options)


def _world(path: Path, ranks: Mapping[int, Collection[int]]) -> int:
    """The world size that ``fsdp_config.json`` names, else the only one."""
    file = path / "fsdp_config.json"
    named = read_json(file).get("world_size") if file.is_file() else None
    if isinstance(named, int):
        if named not in ranks:
            found = (
                f"{path}: fsdp_config.json says world size {named}, and the shards are of {' and '.join(map(str, sorted(ranks)))}"
            )
            raise CheckpointError(found, wanted="shards of one run", do="copy the folder anew")
        return named
    if len(ranks) > 1:
        raise CheckpointError(
            f"{path}: shards of world sizes {' and '.join(map(str, sorted(ranks)))}, so some are foreign",
            wanted="the shards of one run",
            do="move the others out",
        )
    return next(iter(ranks))


def _check_complete(path: Path, world: int, ranks: Collection[int]) -> None:
    foreign = sorted(rank for rank in ranks if rank >= world)
    if foreign:
        raise CheckpointError(
            f"{path}: FSDP shards of world size {world}, and one of rank {foreign[0]}", do="copy the folder anew"
        )
    missing = list(islice((rank for rank in range(world) if rank not in ranks), 8))
    if not missing:
        return
    whole = path / "huggingface"
    merge = f"python -m verl.model_merger merge --backend fsdp --local_dir {shlex.quote(str(path))} --target_dir MERGED"
    do = (
        f"name {whole}, which holds the whole model"
        if holds_model(whole)
        else f"copy the rest, or merge where they all are: {merge}"
    )
    more = " …" if world - len(ranks) > len(missing) else ""
    raise CheckpointError(
        f"{path}: FSDP shards of world size {world}, rank {', '.join(map(str, missing))}{more} missing",
        wanted="all shards",
        do=do,
    )


def _lora(path: Path) -> Mapping[str, Any] | None:
    """Rank and alpha, where they are recorded: beside the shards, above them, or with the adapter."""
    for file in (
        path / "lora_train_meta.json",
        path.parent / "lora_train_meta.json",
        path / "lora_adapter" / "adapter_config.json",
    ):
        if file.is_file():
            return read_json(file)
    return None


# ── tensors ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _pieces(path: Path, files: Sequence[Path]) -> Pieces:
    try:
        from torch.distributed.tensor import DTensor  # noqa: F401 - from here on its types are on torch's own list of safe ones
    except ImportError:
        raise CheckpointError(f"{path}: this torch is built without torch.distributed", do="install another build") from None
    with _quiet():
        ranks = [load_torch(file, mmap=True) for file in files]
    for file, shard in zip(files, ranks, strict=True):
        _check_shard(file, shard)
        if differing := sorted(set(shard) ^ set(ranks[0])):
            found = f"{file.name} is foreign: it and rank 0 differ in {len(differing)} tensors ({some(differing)})"
            raise CheckpointError(found, wanted="shards of one run", do="copy the folder anew")
    repeated = _repeated(ranks)
    return {name: partial(_joined, name, [shard[name] for shard in ranks], repeated=repeated) for name in ranks[0]}


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's warning, once a file, that a mesh is read where there are no processes."""
    logger = logging.getLogger("torch.distributed.device_mesh")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _check_shard(file: Path, shard: Any) -> None:
    import torch
    from torch.distributed.tensor import DTensor

    if not isinstance(shard, dict) or not all(isinstance(each, torch.Tensor) for each in shard.values()):
        raise CheckpointError(f"{file} holds no state dict", wanted="tensors by name")
    if not shard or not all(isinstance(name, str) for name in shard):
        raise CheckpointError(f"{file} holds no named tensors", wanted="tensors by name")
    for name, each in shard.items():
        # to_local() would ask for a process group
        check_stored(file, name, getattr(each, "_local_tensor", None) if isinstance(each, DTensor) else each)


def _repeated(ranks: Sequence[Mapping[str, torch.Tensor]]) -> bool:
    """Whether plain tensors are whole on every rank: beside DTensors they are; by themselves, where all are equal."""
    import torch
    from torch.distributed.tensor import DTensor

    if any(isinstance(each, DTensor) for each in ranks[0].values()):
        return True
    return all(torch.equal(each, other[name]) for other in ranks[1:2] for name, each in ranks[0].items())


def _joined(name: str, parts: Sequence[torch.Tensor], *, repeated: bool) -> torch.Tensor:
    """One tensor from what the ranks hold of it."""
    import torch
    from torch.distributed.tensor import DTensor

    pieces = [part for part in parts if isinstance(part, DTensor)]
    if not pieces:
        return parts[0] if repeated or not parts[0].dim() else torch.cat(list(parts), dim=0)
    if len(pieces) < len(parts):
        raise ValueError("some ranks hold a slice and some the whole")
    sharded, size = _placement(name, pieces[0], len(parts))
    local = [_local(part, pieces[0]) for part in pieces[:size]]
    if sharded is None:
        return local[0]
    whole = torch.cat(local, dim=sharded)
    if whole.shape != pieces[0].shape:
        raise ValueError(f"they make {tuple(whole.shape)}, not {tuple(pieces[0].shape)}: shards of different runs")
    return whole


def _local(part: Any, first: Any) -> torch.Tensor:
    if part.shape != first.shape or part.placements != first.placements:
        raise ValueError(f"{tuple(part.shape)} beside {tuple(first.shape)}: shards of different runs")
    local: torch.Tensor = part._local_tensor
    return local


def _placement(name: str, tensor: Any, world: int) -> tuple[int | None, int]:
    """Along which dimension the tensor is cut, and into how many pieces; the first ranks hold them."""
    placements = tuple(tensor.placements)
    sizes = _mesh_sizes(tensor.device_mesh)
    if len(placements) != len(sizes) or len(sizes) not in (1, 2):
        raise CheckpointError(f"{name} lies on a mesh of {len(sizes)} dimensions", wanted="FSDP, or FSDP times copies")
    if len(sizes) == 2 and not placements[0].is_replicate():
        do = "merge it where it was trained"
        raise CheckpointError(f"{name} is cut along two dimensions of the mesh (tensor parallel)", wanted="FSDP alone", do=do)
    last, size = placements[-1], sizes[-1]
    if last.is_partial() or not 0 < size <= world:
        raise CheckpointError(f"{name} is placed as {last} on {size} of {world} ranks", wanted="slices of all ranks")
    if type(last).__name__ == "_StridedShard":
        raise CheckpointError(f"{name} is cut by tensor parallelism too", wanted="FSDP alone", do="merge it where it was trained")
    return (int(last.dim) if last.is_shard() else None), size


def _mesh_sizes(mesh: Any) -> tuple[int, ...]:
    """Also of a mesh that an older torch wrote, which holds its ranks under another name."""
    held = vars(mesh).get("mesh")
    return tuple((mesh.mesh if held is None else held).shape)
