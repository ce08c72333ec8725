"""A GGUF file, as llama.cpp runs it: settings, vocabulary and weights in one, mostly quantised.

transformers reads it with the ``gguf`` package and turns every block back into plain numbers. Those are not the numbers that
were trained: log-probabilities differ from those of training, which the summary says. The header is walked here first, within
the bounds of the file, since its counts and lengths are taken at their word afterwards.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from credit_inspector.checkpoints import Checkpoint, CheckpointOptions, checkpoint_format
from credit_inspector.checkpoints._loading import in_words, load_pretrained, some
from credit_inspector.errors import CheckpointError, MissingExtra

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_MAGIC = b"GGUF"
_SPLIT = re.compile(r".*-\d{5}-of-\d{5}\.gguf")
_OTHERS = re.compile(r".*\.safetensors|pytorch_model.*\.bin|adapter_config\.json")
"""With these a folder is of another format."""
_FIXED: Mapping[int, str] = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
"""Value types of one size; 8 is a string, 9 a list."""
_STRING, _LIST = 8, 9
_BYTES = {0: 4, 1: 2, 30: 2}
"""Of one number, for the types that are not quantised."""
_TYPES = (
    *("F32", "F16", "Q4_0", "Q4_1", "", "", "Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K"),
    *("IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8", "I16", "I32", "I64", "F64", "IQ1_M"),
    "BF16",
)
_MOST_DIMENSIONS = 4
_DENSEST = 8
"""Parameters a byte; more than the tightest quantisation stores."""


class _Tensor(NamedTuple):
    name: str
    shape: tuple[int, ...]
    """Fastest dimension first, as the file has it."""
    kind: int


class _Header(NamedTuple):
    settings: Mapping[str, Any]
    """Numbers and strings; lists are left out."""
    tensors: list[_Tensor]


@checkpoint_format("gguf")
def open_gguf(path: Path, _options: CheckpointOptions) -> Checkpoint | None:
    """Recognise a ``.gguf`` file, or a folder with one and without other weights; its weights are not read.

    Raises:
        CheckpointError: there are several, it is one part of several, or its header does not hold together.
    """
    file = _file(path)
    if file is None:
        return None
    header = _read_header(file)
    beside = file.parent / "tokenizer.json"
    return Checkpoint(
        path=file,
        format="gguf",
        summary=_summary(header, beside.is_file()),
        vocabulary=_vocabulary(header),
        tokenizer=file.parent if beside.is_file() else None,
        load=partial(_load, file),
    )


def _file(path: Path) -> Path | None:
    if path.is_file():
        return path if path.suffix.lower() == ".gguf" else None
    if not path.is_dir() or any(_OTHERS.fullmatch(inner.name) for inner in path.iterdir()):
        return None
    files = sorted(inner for inner in path.iterdir() if inner.suffix.lower() == ".gguf" and inner.is_file())
    if not files:
        return None
    if len(files) > 1 and not all(_SPLIT.fullmatch(file.name) for file in files):
        found = f"{path} holds {len(files)} GGUF files: {some([file.name for file in files])}"
        raise CheckpointError(found, wanted="one of them", do=f"name {files[0]}")
    return files[0]


def _summary(header: _Header, tokenizer: bool) -> str:
    counts: dict[str, int] = {}
    for tensor in header.tensors:
        kind = _TYPES[tensor.kind] if tensor.kind < len(_TYPES) else f"type {tensor.kind}"
        counts[kind] = counts.get(kind, 0) + math.prod(tensor.shape)
    kinds = sorted(counts, key=lambda kind: -counts[kind])
    words = f", vocabulary {_vocabulary(header):,}" if _vocabulary(header) else ""
    parts = [
        f"{header.settings['general.architecture']} in GGUF ({', '.join(kinds[:3])}), {in_words(sum(counts.values()))}{words}"
    ]
    if any(tensor.kind not in _BYTES for tensor in header.tensors):
        parts.append("quantised: turned back into plain numbers, whose log-probabilities differ from those of training")
    if not tokenizer:
        parts.append("no tokenizer.json beside it")
    return "; ".join(parts)


def _vocabulary(header: _Header) -> int:
    return next(
        (tensor.shape[1] for tensor in header.tensors if tensor.name == "token_embd.weight" and len(tensor.shape) == 2), 0
    )


# ── loading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _load(file: Path, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    for package in ("gguf", "accelerate"):
        if find_spec(package) is None:
            raise MissingExtra(package, "gguf")
    settings: dict[str, Any] = {"gguf_file": file.name}
    try:
        import transformers

        # newer ones would keep the blocks and fetch kernels for them
        settings["quantization_config"] = transformers.GgufConfig(dequantize=True)
    except ImportError:
        raise MissingExtra("transformers", "compute") from None
    except AttributeError:
        pass
    return load_pretrained(file.parent, file.stat().st_size, device, dtype, **settings)


# ── the header ──────────────────────────────────────────────────────────────────────────────────────────────────────


class _Walk:
    """Values one after another, none of which may reach beyond the end."""

    def __init__(self, raw: mmap.mmap) -> None:
        self.raw = raw
        self.place = 0

    def number(self, code: str) -> Any:
        """One number of that format."""
        (value,) = struct.unpack_from(code, self.raw, self.place)
        self.place += struct.calcsize(code)
        return value

    def count(self, least: int) -> int:
        """How many follow, each at least that many bytes long."""
        number = int(self.number("<Q"))
        if number * least > len(self.raw) - self.place:
            raise ValueError(f"{number} entries do not fit into the file")
        return number

    def skip(self, size: int) -> None:
        """Go on by that many bytes."""
        if size > len(self.raw) - self.place:
            raise ValueError("it breaks off")
        self.place += size

    def text(self) -> str:
        """A string with its length before it."""
        size = self.count(1)
        self.skip(size)
        return bytes(self.raw[self.place - size : self.place]).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        """One setting; None for a list, which is passed over."""
        if kind in _FIXED:
            return self.number(_FIXED[kind])
        if kind == _STRING:
            return self.text()
        if kind != _LIST:
            raise ValueError(f"a value of type {kind}")
        inner = int(self.number("<I"))
        if inner in _FIXED:
            width = struct.calcsize(_FIXED[inner])
            self.skip(self.count(width) * width)
        elif inner == _STRING:
            for _ in range(self.count(8)):
                self.skip(self.count(1))
        else:
            raise ValueError(f"a list of type {inner}")
        return None


def _read_header(file: Path) -> _Header:
    try:
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as raw:
            header = _walk(_Walk(raw))
    except (OSError, ValueError, struct.error, OverflowError) as error:
        raise CheckpointError(
            f"{file} is no GGUF file that can be read: {error}", wanted="GGUF version 2 or 3", do="copy it again"
        ) from error
    if _parts(header.settings) > 1 or _SPLIT.fullmatch(file.name):
        do = f"join them: llama-gguf-split --merge {file} JOINED.gguf"
        raise CheckpointError(f"{file} is one of several parts of a GGUF model", wanted="one file", do=do)
    return header


def _walk(walk: _Walk) -> _Header:
    if bytes(walk.raw[:4]) != _MAGIC:
        raise ValueError("it does not begin with GGUF")
    walk.place = 4
    version = walk.number("<I")
    if version not in (2, 3):
        raise ValueError(f"version {version}")
    tensors, pairs = walk.count(24), walk.count(13)
    settings: dict[str, Any] = {}
    for _ in range(pairs):
        name = walk.text()
        settings[name] = walk.value(int(walk.number("<I")))
    table = [_tensor(walk) for _ in range(tensors)]
    if not isinstance(settings.get("general.architecture"), str):
        raise ValueError("it names no architecture")
    if not table and _parts(settings) < 2:
        raise ValueError("it holds no tensors")
    alignment = settings.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"an alignment of {alignment!r}")
    _check_sizes(table, len(walk.raw) - -(-walk.place // alignment) * alignment)
    return _Header(settings, [tensor for tensor, _ in table])


def _parts(settings: Mapping[str, Any]) -> int:
    """Of how many files it is one."""
    parts = settings.get("split.count")
    return parts if isinstance(parts, int) else 1


def _tensor(walk: _Walk) -> tuple[_Tensor, int]:
    """A line of the table, and where the tensor begins in the data."""
    name = walk.text()
    dimensions = walk.number("<I")
    if dimensions > _MOST_DIMENSIONS:
        raise ValueError(f"a tensor of {dimensions} dimensions")
    shape = tuple(int(walk.number("<Q")) for _ in range(dimensions))
    return _Tensor(name, shape, int(walk.number("<I"))), int(walk.number("<Q"))


def _check_sizes(table: list[tuple[_Tensor, int]], data: int) -> None:
    for tensor, start in table:
        size = math.prod(tensor.shape)
        least = size * _BYTES[tensor.kind] if tensor.kind in _BYTES else -(-size // _DENSEST)
        if start + least > data:
            raise ValueError(f"it breaks off in {tensor.name} of shape {tensor.shape}")
