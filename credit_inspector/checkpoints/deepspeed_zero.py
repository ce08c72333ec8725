"""DeepSpeed's ZeRO checkpoints, put together without DeepSpeed.

A folder with a ``latest`` file names a tag, and the tag's folder holds ``*_model_states.pt`` (names, shapes, buffers, frozen
weights) and one ``*_optim_states.pt`` a rank with its part of the float32 weights, flat. What is done with them follows
``deepspeed/utils/zero_to_fp32.py`` of 0.19.8: at stage 1 and 2 the ranks' parts of a group follow one another and are cut into
tensors in order; at stage 3 each tensor is cut among the ranks, with padding at its end. Where a stage up to 2 left no
optimizer files, the 16-bit weights of the model states are whole.

The types of DeepSpeed in these pickles are read as inert stand-ins. OpenRLHF saves so in ``_actor/``, the Hugging Face Trainer
in ``checkpoint-N/``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from credit_inspector.checkpoints import Checkpoint, CheckpointOptions, checkpoint_format
from credit_inspector.checkpoints._assemble import Sharded, check_stored, checkpoint, holds_model
from credit_inspector.errors import CheckpointError
from credit_inspector.pickles import load_torch, stub

if TYPE_CHECKING:
    import torch

    from credit_inspector.checkpoints._assemble import Pieces

_MODEL = re.compile(r"(?:zero_pp_rank_(\d{1,7})_)?mp_rank_(\d{1,5})_model_states\.pt")
_OPTIMIZER = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d{1,7})_mp_rank_(\d{1,5})_optim_states\.pt")
_TAG = re.compile(r"global_step\d+")
_STAND_INS = {
    name: stub(name)
    for name in (
        "argparse.Namespace",
        "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
        "deepspeed.runtime.fp16.loss_scaler.LossScaler",
        "deepspeed.runtime.zero.config.ZeroStageEnum",
        "deepspeed.utils.tensor_fragment.fragment_address",
    )
}


@dataclass(frozen=True, slots=True)
class _Files:
    folder: Path
    models: Mapping[int, Path]
    """By rank; one under 0 up to stage 2."""
    optimizers: Mapping[int, Path]
    cut: bool
    """Stage 3: each rank has model states of its own."""


@checkpoint_format("deepspeed_zero")
def open_deepspeed_zero(path: Path, options: CheckpointOptions) -> Checkpoint | None:
    """Recognise it by its files' names.

    Raises:
        CheckpointError: a rank is missing, only the optimizer is there, or the model was cut in other ways too.
    """
    if not path.is_dir() or holds_model(path):
        return None
    folder = _tagged(path)
    if folder is None:
        return None
    files = _files(folder)
    kind = f"ZeRO-3 on {len(files.models)} ranks" if files.cut else _whole_or_two(files)
    return checkpoint(Sharded(path=folder, format="deepspeed_zero", kind=kind, pieces=partial(_pieces, files)), options)


def _whole_or_two(files: _Files) -> str:
    return f"ZeRO-1 or 2 on {len(files.optimizers)} ranks" if files.optimizers else "model states of DeepSpeed"


def _tagged(path: Path) -> Path | None:
    """The folder with the states: this one, or the one that ``latest`` names."""
    if _has_states(path):
        return path
    note = path / "latest"
    if note.is_file():
        tag = note.read_bytes()[:200].decode("utf-8", "replace").strip()
        named = path / tag if tag and Path(tag).name == tag else None
        if named is not None and named.is_dir():
            return named if _has_states(named) else None
        tags = [inner.name for inner in path.iterdir() if _TAG.fullmatch(inner.name) and _has_states(inner)]
        if not tags:
            return None
        newest = max(tags, key=lambda name: (len(name), name))
        raise CheckpointError(
            f"{path}: latest names {tag!r}, which is not there", wanted="its folder", do=f"name {path / newest}"
        )
    return None


def _has_states(path: Path) -> bool:
    return path.is_dir() and any(next(path.glob(f"*_{kind}_states.pt"), None) is not None for kind in ("model", "optim"))


def _files(folder: Path) -> _Files:
    """The files by rank, none of which is missing as far as their names tell."""
    names = sorted(inner.name for inner in folder.iterdir())
    if next((name for name in names if re.match(r"layer_.*model_states\.pt", name)), None):
        raise CheckpointError(f"{folder} is cut into layers (pipeline or experts)", wanted="ZeRO alone", do=_script(folder))
    models = [found for name in names if (found := _MODEL.fullmatch(name))]
    optimizers = [found for name in names if (found := _OPTIMIZER.fullmatch(name))]
    if not models:
        raise CheckpointError(f"{folder}: optimizer state only, no weights", wanted="*_model_states.pt too", do="copy them")
    if any(int(found[2]) for found in (*models, *optimizers)):
        raise CheckpointError(f"{folder} is cut by tensor parallelism (mp_rank_01)", wanted="ZeRO alone", do=_script(folder))
    cut = any(found[1] is not None for found in models)
    if cut and any(found[1] is None for found in models):
        raise CheckpointError(f"{folder} mixes the model states of stage 3 with those of another", do="copy the folder anew")
    files = _Files(
        folder=folder,
        models={int(found[1] or 0): folder / found[0] for found in models},
        optimizers={int(found[1]): folder / found[0] for found in optimizers},
        cut=cut,
    )
    known = max((*files.models, *files.optimizers)) + 1
    if cut:
        _check_ranks(folder, "model states", files.models, known)
    if cut or files.optimizers:
        _check_ranks(folder, "optimizer states", files.optimizers, known)
    return files


def _script(folder: Path) -> str:
    return f"convert it where it was trained, with {folder.parent.name}/zero_to_fp32.py or ds_to_universal"


def _check_ranks(folder: Path, what: str, ranks: Mapping[int, Path], world: int) -> None:
    missing = list(islice((rank for rank in range(world) if rank not in ranks), 8))
    if missing:
        more = " …" if world - len(ranks) > len(missing) else ""
        raise CheckpointError(
            f"{folder}: the {what} of rank {', '.join(map(str, missing))}{more} of {world} ranks missing",
            wanted="the files of every rank",
            do="copy the rest: each machine may have kept its own",
        )


# ── tensors ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _pieces(files: _Files) -> Pieces:
    states = [_dict(files.models[rank]) for rank in sorted(files.models)]
    first = states[0]
    if not files.optimizers:
        return {name: partial(_same, tensor) for name, tensor in _tensors(first.get("module"), files.folder).items()}
    optimizers = [_optimizer(files, rank) for rank in sorted(files.optimizers)]
    world = _partitions(optimizers[0])
    _check_ranks(files.folder, "optimizer states", files.optimizers, max(world, len(optimizers)))
    if world and world < len(optimizers):
        found = f"{files.folder}: {len(optimizers)} optimizer files, and the checkpoint is of {world} ranks: some are foreign"
        raise CheckpointError(found, wanted="the files of one save", do="copy the folder anew")
    pieces = _buffers(first, files.folder)
    stage = _number(optimizers[0].get("zero_stage"))
    if (stage == 3) != files.cut and stage is not None:
        raise CheckpointError(f"{files.folder}: the optimizer is of ZeRO-{stage}, and the model states are of another stage")
    pieces.update(_third(files, states, optimizers) if files.cut else _second(files, first, optimizers))
    for name, source in _shared(first):
        if source in pieces:
            pieces[name] = pieces[source]
    return pieces


def _dict(file: Path) -> Mapping[str, Any]:
    found = load_torch(file, allow=_STAND_INS, mmap=True)
    if not isinstance(found, dict):
        raise CheckpointError(f"{file} holds no states", wanted="a file of DeepSpeed")
    return found


def _optimizer(files: _Files, rank: int) -> Mapping[str, Any]:
    state = _dict(files.optimizers[rank]).get("optimizer_state_dict")
    if not isinstance(state, dict):
        raise CheckpointError(f"{files.optimizers[rank]} holds no optimizer", wanted="a file of DeepSpeed")
    return state


def _number(value: Any) -> int | None:
    """A number, or an enumeration's through its stand-in."""
    args = getattr(value, "args", None)
    value = args[0] if isinstance(args, tuple) and args else value
    return value if isinstance(value, int) else None


def _partitions(state: Mapping[str, Any]) -> int:
    """How many ranks shared the weights; experts may be shared by fewer, and the largest counts."""
    counts = state.get("partition_count")
    found = [each for each in (counts if isinstance(counts, list) else [counts]) if isinstance(each, int)]
    return max(found, default=0)


def _tensors(found: Any, folder: Path) -> Mapping[str, torch.Tensor]:
    import torch

    if not isinstance(found, Mapping):
        return {}
    tensors = {str(name): each for name, each in found.items() if isinstance(each, torch.Tensor)}
    for name, each in tensors.items():
        check_stored(folder, name, each)
    return tensors


def _buffers(state: Mapping[str, Any], folder: Path) -> Pieces:
    names = state.get("buffer_names")
    kept = set(map(str, names)) if isinstance(names, list | tuple | set) else set()
    return {name: partial(_same, each) for name, each in _tensors(state.get("module"), folder).items() if name in kept}


def _shared(state: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    pairs = state.get("shared_params")
    for pair in pairs.items() if isinstance(pairs, Mapping) else pairs or ():
        name, source = pair
        yield str(name), str(source)


def _shapes(groups: Any, folder: Path) -> list[dict[str, tuple[int, ...]]]:
    """Names and shapes by group of parameters."""
    found = groups if isinstance(groups, list | tuple) else [groups]
    shapes = [
        {str(name): tuple(map(int, shape)) for name, shape in group.items()} for group in found if isinstance(group, Mapping)
    ]
    if len(shapes) != len(found) or any(size < 0 for group in shapes for shape in group.values() for size in shape):
        raise CheckpointError(f"{folder}: the model states name no shapes (param_shapes)", wanted="a file of ZeRO")
    return shapes


def _flat(state: Mapping[str, Any], key: str, folder: Path) -> list[torch.Tensor]:
    """A rank's flat weights by group."""
    import torch

    found = state.get(key)
    groups: list[Any] = list(found) if isinstance(found, list | tuple) else [found]
    if not groups or not all(isinstance(each, torch.Tensor) and each.dim() == 1 for each in groups):
        raise CheckpointError(f"{folder}: the optimizer states hold no {key}", wanted="the float32 weights of ZeRO")
    for each in groups:
        check_stored(folder, key, each)
    return groups


def _second(files: _Files, state: Mapping[str, Any], optimizers: Sequence[Mapping[str, Any]]) -> Pieces:
    """Stage 1 and 2: the ranks' parts of a group, one after another, are the group's tensors, one after another."""
    pieces: Pieces = {
        name: partial(_same, each) for name, each in _tensors(state.get("frozen_param_fragments"), files.folder).items()
    }
    ranks = [_flat(each, "single_partition_of_fp32_groups", files.folder) for each in optimizers]
    shapes = _shapes(state.get("param_shapes"), files.folder)
    if any(len(groups) != len(shapes) for groups in ranks):
        raise CheckpointError(f"{files.folder}: {len(shapes)} groups of shapes, and the ranks hold another number of groups")
    for index, group in enumerate(shapes):
        parts = [groups[index] for groups in ranks]
        paddings = _paddings(optimizers[0], index, len(group))
        start = 0
        for (name, shape), padding in zip(group.items(), paddings, strict=True):
            pieces[name] = partial(_cut, parts, start, shape)
            start += math.prod(shape) + padding
        _check_used(files.folder, start, sum(part.numel() for part in parts), 2 * len(parts))
    return pieces


def _paddings(state: Mapping[str, Any], index: int, count: int) -> list[int]:
    """What follows each tensor of a group; newer versions record it."""
    found = state.get("param_alignment_paddings")
    group = found[index] if isinstance(found, list) and index < len(found) else None
    if not isinstance(group, list) or len(group) != count:
        return [0] * count
    return [each if isinstance(each, int) and each >= 0 else 0 for each in group]


def _check_used(folder: Path, used: int, stored: int, multiple: int) -> None:
    """ZeRO pads a group's end to a multiple; more than that is left over where files of two runs are mixed."""
    if math.ceil(used / multiple) != math.ceil(stored / multiple):
        raise CheckpointError(
            f"{folder}: the tensors need {used} numbers and the ranks hold {stored}",
            wanted="the files of one save",
            do="copy the folder anew",
        )


def _third(files: _Files, states: Sequence[Mapping[str, Any]], optimizers: Sequence[Mapping[str, Any]]) -> Pieces:
    """Stage 3: every rank holds an equal part of each tensor, the last one padded."""
    pieces: Pieces = {}
    world = len(optimizers)
    frozen = _shapes(states[0].get("frozen_param_shapes") or {}, files.folder)
    fragments = [_tensors(state.get("frozen_param_fragments"), files.folder) for state in states]
    for name, shape in frozen[0].items():
        if any(name not in held for held in fragments):
            raise CheckpointError(f"{files.folder}: a rank lacks its part of {name}", wanted="the files of one save")
        pieces[name] = partial(_cut, [held[name].reshape(-1) for held in fragments], 0, shape)
    ranks = [_flat(state, "fp32_flat_groups", files.folder) for state in optimizers]
    start = 0
    for group in _shapes(states[0].get("param_shapes"), files.folder):
        for name, shape in group.items():
            part = math.ceil(math.prod(shape) / world)
            pieces[name] = partial(_gathered, ranks, start, part, shape)
            start += part
    _check_used(files.folder, start, min(sum(part.numel() for part in groups) for groups in ranks), 1)
    return pieces


def _cut(parts: Sequence[torch.Tensor], start: int, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor out of parts that follow one another."""
    import torch

    span = list(_span(parts, start, math.prod(shape)))
    flat = span[0] if len(span) == 1 else torch.cat(span) if span else torch.zeros(0)
    return flat.reshape(shape)


def _gathered(ranks: Sequence[Sequence[torch.Tensor]], start: int, part: int, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor out of its parts on every rank."""
    import torch

    spans = [each for parts in ranks for each in _span(parts, start, part)]
    return torch.cat(spans)[: math.prod(shape)].reshape(shape)


def _span(parts: Sequence[torch.Tensor], start: int, count: int) -> Iterator[torch.Tensor]:
    """``count`` numbers from ``start`` on of what the parts are one after another."""
    for part in parts:
        size = part.numel()
        if start < size and count > 0:
            yield part[start : start + count]
            count -= min(count, size - start)
            start = size
        start -= size
    if count > 0:
        raise ValueError(f"{count} numbers are missing")


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
