"""Distributed checkpoints of torch (DCP), read without running anything of theirs and without torch's own reader.

That reader opens ``.metadata`` with plain pickle, which may hold code. Here its names are looked up in a list of stand-ins
(``pickles.py``), and each slice is cut out of its file and read by itself: in the format of ``torch.save`` by the restricted
loader, or from safetensors (torch's ``HuggingFaceStorageWriter``, NeMo-RL's default), whose headers hold no code.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from credit_inspector.checkpoints._loading import some
from credit_inspector.errors import CheckpointError, FormatError
from credit_inspector.pickles import load_pickle, load_torch, stub

if TYPE_CHECKING:
    import torch

    from credit_inspector.checkpoints._assemble import Pieces

_LARGEST_HEADER = 100_000_000
"""Bytes; the limit that the safetensors library itself sets."""
_SAFE_TYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}


@dataclass(frozen=True, slots=True)
class Chunk:
    """A slice of a tensor and where its bytes are."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: Path
    start: int
    length: int
    dtype: str = ""
    """Of raw bytes; empty where the bytes are a file of ``torch.save``."""


@dataclass(slots=True)
class Stored:
    """A tensor in slices."""

    shape: tuple[int, ...]
    chunks: list[Chunk] = field(default_factory=list)


# ── .metadata ───────────────────────────────────────────────────────────────────────────────────────────────────────


class _Index:
    """Stands for ``MetadataIndex``, a key of the table of places. Equal to itself alone, so nothing of it is hashed."""

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _sizes(sizes: Any = ()) -> tuple[int, ...]:
    """Stands for ``torch.Size``."""
    if not isinstance(sizes, tuple | list) or not all(isinstance(size, int) for size in sizes):
        raise ValueError("sizes that are no numbers")
    return tuple(sizes)


def _stand_ins() -> Mapping[str, Any]:
    metadata = "torch.distributed.checkpoint.metadata."
    names = [metadata + name for name in ("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata")]
    names += [metadata + name for name in ("TensorProperties", "StorageMeta", "_MEM_FORMAT_ENCODING")]
    names += ["torch.distributed.checkpoint.filesystem._StorageInfo", "torch.serialization._get_layout"]
    names += [f"pathlib.{local}{kind}" for local in ("", "_local.") for kind in ("PosixPath", "PurePosixPath", "WindowsPath")]
    names += ["torch." + kind for kind in (*_SAFE_TYPES.values(), "uint16", "uint32", "uint64", "complex64", "complex128")]
    names += [
        "torch." + kind for kind in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
    ]
    return {name: stub(name) for name in names} | {metadata + "MetadataIndex": _Index, "torch.Size": _sizes}


def read_metadata(folder: Path) -> dict[str, Stored]:
    """The tensors that ``.metadata`` names, all of whose files are there.

    Raises:
        CheckpointError: it is no such file, asks for code, or names files that are missing.
    """
    file = folder / ".metadata"
    try:
        found = _state(load_pickle(file, allow=_stand_ins()))
    except (FormatError, OSError) as error:
        raise CheckpointError(str(error)) from error
    tensors, places = found.get("state_dict_metadata"), found.get("storage_data")
    if not isinstance(tensors, dict) or not isinstance(places, dict):
        raise CheckpointError(f"{file} names no tensors", wanted="the metadata of a distributed checkpoint")
    try:
        table = dict(_places(folder, places))
        stored = {str(name): Stored(shape) for name, each in tensors.items() if (shape := _shape(each)) is not None}
        for name, each in stored.items():
            each.chunks.extend(_chunks(file, name, tensors[name], table))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CheckpointError(f"{file} is damaged: {type(error).__name__} {error}", do="copy it again") from error
    _check_files(folder, stored)
    return stored


def _state(thing: Any) -> Mapping[str, Any]:
    """What a stand-in was given for its attributes."""
    state = getattr(thing, "state", None)
    return state if isinstance(state, dict) else {}


def _shape(entry: Any) -> tuple[int, ...] | None:
    """A tensor's; None for what is no tensor, such as a learning rate."""
    size = _state(entry).get("size")
    return size if isinstance(size, tuple) and all(isinstance(each, int) and each >= 0 for each in size) else None


Place = tuple[Path, int, int]


def _places(folder: Path, places: Mapping[Any, Any]) -> Iterator[tuple[tuple[str, tuple[int, ...]], Place]]:
    for index, info in places.items():
        key, place = _state(index), _state(info)
        name, start, length = place.get("relative_path"), place.get("offset"), place.get("length")
        if not isinstance(name, str) or not name or Path(name).name != name or name in (".", ".."):
            raise ValueError(f"a file named {name!r}")
        if not isinstance(start, int) or not isinstance(length, int) or start < 0 or length < 0:
            raise ValueError(f"a place in {name} that is no number")
        if place.get("transform_descriptors"):
            raise ValueError(f"{name} is compressed ({place['transform_descriptors']})")
        yield (str(key.get("fqn")), tuple(key.get("offset") or ())), (folder / name, start, length)


def _chunks(file: Path, name: str, entry: Any, table: Mapping[tuple[str, tuple[int, ...]], Place]) -> Iterator[Chunk]:
    chunks = _state(entry).get("chunks")
    for chunk in chunks if isinstance(chunks, list) else []:
        offsets, sizes = _state(chunk).get("offsets"), _state(chunk).get("sizes")
        if not isinstance(offsets, tuple) or not isinstance(sizes, tuple):
            raise TypeError(f"a slice of {name} without sizes")
        place = table.get((name, offsets)) or (table.get((name, ())) if not any(offsets) else None)
        if place is None:
            raise CheckpointError(f"{file} does not say where {name} from {list(offsets)} lies", do="copy the folder anew")
        yield Chunk(offsets, sizes, *place)


def _check_files(folder: Path, stored: Mapping[str, Stored]) -> None:
    files = {chunk.file for each in stored.values() for chunk in each.chunks}
    missing = sorted(file.name for file in files if not file.is_file())
    if missing:
        raise CheckpointError(
            f"{folder} lacks {len(missing)} of {len(files)} files: {', '.join(missing[:5])}",
            wanted="every file that .metadata names",
            do="copy the missing files",
        )


# ── safetensors with offsets ────────────────────────────────────────────────────────────────────────────────────────


def read_headers(folder: Path) -> dict[str, Stored]:
    """The tensors of a distributed checkpoint in safetensors; empty where the files are no slices.

    Raises:
        CheckpointError: a file is damaged, or one of the numbered files is missing.
    """
    stored: dict[str, Stored] = {}
    files = sorted(folder.glob("shard-*-model-*-of-*.safetensors"))
    for file in files:
        for name, chunk in _slices(file):
            each = stored.setdefault(name, Stored(chunk.sizes))
            each.chunks.append(chunk)
            ends = [start + size for start, size in zip(chunk.offsets, chunk.sizes, strict=True)]
            if len(ends) != len(each.shape):
                raise CheckpointError(f"{folder}: slices of {name} differ in their dimensions", do="copy the folder anew")
            each.shape = tuple(max(pair) for pair in zip(ends, each.shape, strict=True))
    torn = sorted(name for name, each in stored.items() if not _whole(each))
    if torn:
        raise CheckpointError(
            f"{folder}: {len(files)} shards hold only a part of {len(torn)} of {len(stored)} tensors ({some(torn)})",
            wanted="the shards of all ranks",
            do="copy the missing files",
        )
    return stored


def _slices(file: Path) -> Iterator[tuple[str, Chunk]]:
    try:
        with file.open("rb") as raw:
            length = struct.unpack("<Q", raw.read(8))[0]
            header = json.loads(raw.read(min(length, _LARGEST_HEADER, file.stat().st_size)))
        offsets = json.loads(header.pop("__metadata__", {}).get("DCP_SHARDING_INFO", "{}"))
        for name, entry in header.items():
            start, end = entry["data_offsets"]
            sizes = tuple(map(int, entry["shape"]))
            saved = tuple(map(int, offsets[name]["saved_offsets"])) if name in offsets else (0,) * len(sizes)
            if min((0, *sizes, *saved, start, end - start)) < 0 or len(saved) != len(sizes):
                raise ValueError(f"a slice {saved} of {sizes}")
            yield name, Chunk(saved, sizes, file, 8 + length + start, end - start, _SAFE_TYPES[entry["dtype"]])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error, RecursionError) as error:
        raise CheckpointError(f"{file} is no safetensors file: {error}", do="copy it again") from error


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def pieces_of(stored: Mapping[str, Stored], wanted: Callable[[str], bool]) -> Pieces:
    """What reads each tensor whose name is wanted."""
    return {name: partial(_read, name, each) for name, each in stored.items() if wanted(name)}


def parameters_of(stored: Mapping[str, Stored], wanted: Callable[[str], bool]) -> int:
    """How many numbers the tensors hold whose names are wanted."""
    return sum(math.prod(each.shape) for name, each in stored.items() if wanted(name))


def files_of(stored: Mapping[str, Stored]) -> str:
    """Over how many files the tensors lie, in words."""
    count = len({chunk.file for each in stored.values() for chunk in each.chunks})
    return "1 file" if count == 1 else f"{count} files"


def _whole(each: Stored) -> bool:
    return sum(math.prod(chunk.sizes) for chunk in each.chunks) == math.prod(each.shape)


def _read(name: str, each: Stored) -> torch.Tensor:
    """A tensor from its slices. What it needs in memory is checked against what the files hold."""
    import torch

    if not each.chunks or not _whole(each):
        raise ValueError(f"its slices do not make {each.shape}")
    whole: torch.Tensor | None = None
    filled = torch.zeros(0, dtype=torch.bool)
    for chunk in each.chunks:
        part = _part(name, chunk)
        if len(each.chunks) == 1 and not any(chunk.offsets):
            return part
        if whole is None:
            held = sum(min(one.length, one.file.stat().st_size) for one in each.chunks)
            if math.prod(each.shape) * part.element_size() > held:
                raise ValueError(f"{each.shape} is more than the {held} bytes that are stored")
            whole, filled = torch.empty(each.shape, dtype=part.dtype), torch.zeros(each.shape, dtype=torch.bool)
        place = tuple(slice(start, start + size) for start, size in zip(chunk.offsets, chunk.sizes, strict=True))
        whole[place], filled[place] = part, True
    if whole is None:
        raise ValueError("nothing is stored of it")
    if not filled.all():  # slices that lie on each other leave a gap, which is no weight
        raise ValueError(f"its slices leave a part of {each.shape} out")
    return whole


def _part(name: str, chunk: Chunk) -> torch.Tensor:
    import torch

    if chunk.start + chunk.length > chunk.file.stat().st_size:
        raise CheckpointError(f"{chunk.file} breaks off within {name}", do="copy it again")
    with chunk.file.open("rb") as raw:
        raw.seek(chunk.start)
        data = raw.read(chunk.length)
    if chunk.dtype:
        if not data and 0 not in chunk.sizes:
            raise ValueError(f"a slice of {chunk.sizes} is empty in {chunk.file.name}")
        if not data:
            return torch.empty(chunk.sizes, dtype=getattr(torch, chunk.dtype))
        return torch.frombuffer(bytearray(data), dtype=getattr(torch, chunk.dtype)).reshape(chunk.sizes)
    part = load_torch(data)
    if not isinstance(part, torch.Tensor) or tuple(part.shape) != chunk.sizes:
        raise ValueError(f"a slice of {chunk.sizes} is {tuple(getattr(part, 'shape', ()))} in {chunk.file.name}")
    return part


__all__ = ["Chunk", "Stored", "files_of", "parameters_of", "pieces_of", "read_headers", "read_metadata"]
