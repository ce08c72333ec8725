"""Pickle and torch files, read without running anything of theirs.

A pickle is a program: what is named in it is imported and called as it is opened. Here only names from a list are looked
up, and what the list gives for them is plain data or a stub of ours; any other name ends the reading and is told. Nothing
is ever tried again with the protection off. A user who trusts a type says so by its name (``--allow-type``,
``CREDIT_INSPECTOR_ALLOW_TYPES``); it is then imported as itself.

A file cannot ask for more memory than it is large, either: sizes stand checked before they are allocated.

Trainers that leave such files: verl (``gen_batch.dp``, ``tq_batch.pt``), SkyRL, ROLL (pickles), slime and miles (torch).
"""

from __future__ import annotations

import importlib
import math
import os
import pickle
import re
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from credit_inspector.errors import FormatError, MissingExtra, UsageError

ALLOWED_TYPES = "CREDIT_INSPECTOR_ALLOW_TYPES"
"""Environment variable: names of types that the user trusts, with commas between."""

_BLOCKED = re.compile(
    r"(?:GLOBAL|[Uu]nsupported global:?|[Uu]nsupported class) (?:GLOBAL )?([\w.]+)|but got (?:<class '|<function )?([\w.]+)"
)
"""How torch names what it refuses."""
_REASON = re.compile(r"WeightsUnpickler error:\s*(.+)")
_DTYPE = re.compile(r"[<>|=]?(?:[biufSUV]\d{1,6}|O8?|\?)")


class Stub:
    """An object of a foreign class, held as what it was made from; its code is never looked up.

    ``args`` are those of its constructor or rebuilding function, ``state`` is what its ``__setstate__`` would have been
    given (for most classes the instance's ``__dict__``).
    """

    name: ClassVar[str] = ""
    args: tuple[Any, ...] = ()
    state: Any = None

    def __init__(self, *args: Any, **_: Any) -> None:
        self.args = args

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __reduce__(self) -> Any:
        raise TypeError(f"a stub of {self.name} stands for a foreign object and is not written")


def stub(name: str) -> type[Stub]:
    """An inert class that stands for the class or function of that dotted name."""
    return type(name.rpartition(".")[2], (Stub,), {"name": name})


# ── pickles ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def load_pickle(source: Path | bytes, *, allow: Mapping[str, Any] | None = None) -> Any:
    """Read a pickle.

    Args:
        source: a file or its bytes.
        allow: what stands for a dotted name, such as ``{"verl.protocol.DataProto": stub("verl.protocol.DataProto")}``.
            Plain containers, numpy arrays and numpy scalars are allowed as they are.

    Raises:
        FormatError: it asks for a name outside the list, or is no whole pickle.
    """
    raw = source.read_bytes() if isinstance(source, Path) else source
    where = str(source) if isinstance(source, Path) else "the pickle"
    reader = _Unpickler(raw, {**_PLAIN, **(allow or {}), **trusted()})
    try:
        return reader.load()
    except _Refused as refused:
        raise _not_run(where, str(refused)) from None
    except MemoryError:
        raise FormatError(f"{where} asks for more memory than there is", wanted="a pickle of rollouts") from None
    except Exception as error:  # a damaged program fails in any way
        raise FormatError(f"{where} is no readable pickle: {error or type(error).__name__}", do="copy it again") from error


def trusted() -> dict[str, Any]:
    """What the user trusts by name, imported.

    Raises:
        UsageError: a name that cannot be imported.
    """
    names = [name.strip() for name in os.environ.get(ALLOWED_TYPES, "").split(",")]
    return {name: _imported(name) for name in names if name}


def _imported(name: str) -> Any:
    module, _, inner = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), inner)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"--allow-type {name}: {error}", wanted="a dotted name such as package.module.Type") from None


def _not_run(where: str, name: str) -> FormatError:
    return FormatError(
        f"{where}: the pickle asks for {name}, which is more than data, and was not run",
        wanted="plain containers, numbers and arrays",
        do=f"where you trust that type: credit-inspector --allow-type {name} …",
    )


class _Refused(Exception):
    """A name outside the list."""


_RENAMED = {"__builtin__": "builtins", "copy_reg": "copyreg"}
"""Modules as protocols 0 to 2 spell them."""


_LOADS: Mapping[int, Callable[[Any], None]] = dict(pickle._Unpickler.dispatch)
"""What the interpreter does at each code."""


class _Unpickler(pickle._Unpickler):
    """Looks names up in a list only, and checks what would be allocated or hashed.

    It stands on the interpreter that is written in Python: its memo is a mapping, while the one in C lets a file size it.
    """

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(_LOADS)
    stack: list[Any]
    read: Callable[[int], bytes]
    append: Callable[[Any], None]

    def __init__(self, raw: bytes, allowed: Mapping[str, Any]) -> None:
        super().__init__(BytesIO(raw))
        self._allowed = allowed
        self._size = len(raw)

    def find_class(self, module: str, name: str) -> Any:
        full = f"{_RENAMED.get(module, module)}.{name}"
        if full not in self._allowed:
            raise _Refused(full)
        return self._allowed[full]

    def persistent_load(self, pid: Any) -> Any:
        raise _Refused(f"a persistent object ({str(pid)[:40]})")

    def get_extension(self, code: int) -> None:
        raise _Refused(f"extension {code}")

    def _load_bytearray8(self) -> None:
        length = int.from_bytes(self.read(8), "little")
        if length > self._size:
            raise EOFError("breaks off in a bytearray")
        self.append(bytearray(self.read(length)))

    def _load_build(self) -> None:
        state, inst = self.stack[-1], self.stack[-2]
        if isinstance(inst, np.dtype):
            _check_dtype_state(inst, state)
            self.stack.pop()
            return
        if not hasattr(inst, "__setstate__"):
            raise _Refused(f"a state for {type(inst).__name__}")
        _LOADS[pickle.BUILD[0]](self)

    def _load_setitem(self) -> None:
        _check_keys(self.stack[-2:-1])
        _LOADS[pickle.SETITEM[0]](self)

    def _load_setitems(self) -> None:
        _check_keys(self.stack[::2])
        _LOADS[pickle.SETITEMS[0]](self)

    def _load_dict(self) -> None:
        _check_keys(self.stack[::2])
        _LOADS[pickle.DICT[0]](self)

    def _load_additems(self) -> None:
        _check_keys(self.stack)
        _LOADS[pickle.ADDITEMS[0]](self)

    def _load_frozenset(self) -> None:
        _check_keys(self.stack)
        _LOADS[pickle.FROZENSET[0]](self)

    dispatch[pickle.BYTEARRAY8[0]] = _load_bytearray8
    dispatch[pickle.BUILD[0]] = _load_build
    dispatch[pickle.SETITEM[0]] = _load_setitem
    dispatch[pickle.SETITEMS[0]] = _load_setitems
    dispatch[pickle.DICT[0]] = _load_dict
    dispatch[pickle.ADDITEMS[0]] = _load_additems
    dispatch[pickle.FROZENSET[0]] = _load_frozenset


def _check_keys(keys: Collection[Any]) -> None:
    """Only plain keys: hashing tuples of tuples can take for ever."""
    for key in keys:
        flat = not isinstance(key, tuple) or not any(isinstance(part, tuple) for part in key)
        if isinstance(key, Stub) or not flat:
            raise ValueError(f"a key of type {type(key).__name__}")


# ── numpy's own pickles ─────────────────────────────────────────────────────────────────────────────────────────────


def _dtype(kind: Any, *_: Any) -> np.dtype[Any]:
    if kind is bool or not isinstance(kind, str) or not _DTYPE.fullmatch(kind):
        raise ValueError(f"a dtype {str(kind)[:40]!r}")
    return np.dtype(kind)


def _check_dtype_state(dtype: np.dtype[Any], state: Any) -> None:
    """A plain dtype's state says its byte order again and nothing more."""
    if not isinstance(state, tuple) or len(state) < 3 or state[1] not in ("<", "|", "=") or state[2] is not None:
        raise ValueError(f"a state of {dtype} that is not plain")


def _check_array_state(state: Any) -> None:
    if not isinstance(state, tuple) or len(state) != 5:
        raise ValueError("an array without a state")
    _, shape, dtype, _, raw = state
    if not isinstance(shape, tuple) or not all(isinstance(size, int) and size >= 0 for size in shape):
        raise ValueError("an array without a shape")
    if not isinstance(dtype, np.dtype) or not isinstance(raw, bytes | list):
        raise ValueError("an array without values")
    count = math.prod(shape)
    if dtype.hasobject != isinstance(raw, list) or len(raw) != (count if dtype.hasobject else count * dtype.itemsize):
        raise ValueError(f"an array of shape {shape} with {len(raw)} values")


class _Array(np.ndarray[Any, Any]):
    """An array whose state is checked before it is taken."""

    def __setstate__(self, state: Any) -> None:
        _check_array_state(state)
        super().__setstate__(state)


def _reconstruct(*_: Any) -> np.ndarray[Any, Any]:
    """As numpy begins an array: empty, its state follows."""
    return np.empty((0,), np.int8).view(_Array)


def _from_buffer(raw: Any, dtype: Any, shape: Any, order: Any = "C") -> np.ndarray[Any, Any]:
    if not isinstance(raw, bytes | bytearray) or not isinstance(dtype, np.dtype) or dtype.hasobject:
        raise ValueError("an array without values")
    return np.frombuffer(raw, dtype).reshape(shape, order="F" if order == "F" else "C")


def _scalar(dtype: Any, raw: Any = b"") -> Any:
    if not isinstance(dtype, np.dtype) or dtype.hasobject or not isinstance(raw, bytes) or len(raw) != dtype.itemsize:
        raise ValueError("a numpy scalar without a value")
    return np.frombuffer(raw, dtype)[0].item()


def _ordered(*items: Any) -> OrderedDict[Any, Any]:
    return OrderedDict(*items)


def _default(*_: Any) -> dict[Any, Any]:
    """A ``defaultdict`` without its factory, which would be called."""
    return {}


def _plain() -> Iterator[tuple[str, Any]]:
    for core in ("numpy.core", "numpy._core"):
        yield f"{core}.multiarray._reconstruct", _reconstruct
        yield f"{core}.multiarray.scalar", _scalar
        yield f"{core}.numeric._frombuffer", _from_buffer
    yield from (("numpy.ndarray", np.ndarray), ("numpy.dtype", _dtype))
    yield from (("collections.OrderedDict", _ordered), ("collections.defaultdict", _default))
    yield "builtins.object", object
    for kind in (set, frozenset, list, dict, tuple, bytearray, complex):
        yield f"builtins.{kind.__name__}", _bounded(kind)
    yield from (("_codecs.encode", _encoded), ("copyreg._reconstructor", _reconstructor))


def _bounded(kind: Callable[..., Any]) -> Callable[..., Any]:
    """A container made from what is there: ``bytearray(10 ** 12)`` would be an allocation."""

    def make(*args: Any) -> Any:
        if any(not isinstance(each, list | tuple | dict | bytes | float) for each in args):
            raise ValueError(f"a {getattr(kind, '__name__', 'value')} of {type(args[0]).__name__}")
        return kind(*args)

    return make


def _reconstructor(kind: Any, *_: Any) -> Stub:
    """How protocols 0 and 1 begin an object; its state follows."""
    if not isinstance(kind, type) or not issubclass(kind, Stub):
        raise ValueError("an object of a type that is no stub")
    return kind()


def _encoded(text: Any, encoding: Any = "latin1") -> bytes:
    """How protocol 2 spells bytes."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise ValueError("bytes in another spelling")
    return text.encode("latin1")


_PLAIN: Mapping[str, Any] = dict(_plain())


# ── torch files ─────────────────────────────────────────────────────────────────────────────────────────────────────


def load_torch(source: Path | bytes, *, allow: Mapping[str, Any] | None = None, mmap: bool = False) -> Any:
    """Read a file of ``torch.save`` by torch's restricted loader, on the CPU.

    Args:
        source: a file or its bytes.
        allow: objects that stand for dotted names beyond what torch itself allows (tensors and plain containers);
            numpy arrays and scalars are allowed as they are.
        mmap: leave tensors on disk until they are read (files in the zip format only).

    Raises:
        FormatError: it asks for a name outside the list, is damaged, or claims to be larger than it is.
        MissingExtra: torch is not installed.
    """
    try:
        import torch
    except ImportError:
        raise MissingExtra("torch", "compute") from None
    where = str(source) if isinstance(source, Path) else "the torch file"
    size = source.stat().st_size if isinstance(source, Path) else len(source)
    file: Any = str(source) if isinstance(source, Path) else BytesIO(source)
    _check_archive(source, size, where)
    listed = {**_numpy_for_torch(), **(allow or {}), **trusted()}
    try:
        with warnings.catch_warnings(), _listed(listed):
            warnings.simplefilter("ignore")  # what is odd in a file is in the error where it matters
            found = torch.load(file, map_location="cpu", weights_only=True, mmap=(mmap and zipfile.is_zipfile(file)) or None)
    except MemoryError:
        raise FormatError(f"{where} asks for more memory than there is") from None
    except Exception as error:  # torch, zip and pickle each raise their own
        raise _torch_error(where, error) from error
    if not mmap:
        _check_tensors(found, size, where)
    return found


@contextmanager
def _listed(names: Mapping[str, Any]) -> Iterator[None]:
    """Let torch trust these names and what it was told before, but for what others put under the same names.

    tensordict registers functions that allocate as it is imported; a stub of ours for the same name goes before.
    """
    from torch.serialization import add_safe_globals, clear_safe_globals, get_safe_globals

    held: list[Any] = get_safe_globals()
    clear_safe_globals()
    ours: list[Any] = [(value, name) for name, value in names.items()]
    add_safe_globals([*(each for each in held if _listed_as(each) not in names), *ours])
    try:
        yield
    finally:
        new: list[Any] = [each for each in get_safe_globals() if each not in ours]  # a module may register as it is loaded
        clear_safe_globals()
        add_safe_globals([*held, *new])


def _listed_as(trusted_by_torch: Any) -> str:
    if isinstance(trusted_by_torch, tuple) and len(trusted_by_torch) == 2:
        return str(trusted_by_torch[1])
    return f"{getattr(trusted_by_torch, '__module__', '')}.{getattr(trusted_by_torch, '__qualname__', '')}"


def _torch_error(where: str, error: Exception) -> FormatError:
    """The error without torch's own advice, which is to turn the protection off."""
    if blocked := _BLOCKED.search(str(error)):
        return _not_run(where, blocked[1] or blocked[2])
    reason = _REASON.search(str(error))
    lines = [reason[1]] if reason else str(error).splitlines()
    said = lines[0][:200] if lines else type(error).__name__
    return FormatError(f"{where} is no readable torch file: {said}", do="copy it again")


def _numpy_for_torch() -> dict[str, Any]:
    """What numpy's arrays are rebuilt from, under the names of numpy 1 and 2."""
    found: dict[str, Any] = {"numpy.ndarray": np.ndarray, "numpy.dtype": _dtype, f"{__name__}._Array": _Array}
    for name in ("?", *"bhilqBHILQ", *"efd", "O", "U", "S"):
        kind = type(np.dtype(name))
        found[f"{kind.__module__}.{kind.__qualname__}"] = kind
    for core in ("numpy.core", "numpy._core"):
        found[f"{core}.multiarray._reconstruct"] = _reconstruct
        found[f"{core}.multiarray.scalar"] = _scalar
    return found


def _check_archive(source: Path | bytes, size: int, where: str) -> None:
    """Tensors are stored as they are; an archive that swells on reading was not written by torch."""
    with suppress(zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        with zipfile.ZipFile(source if isinstance(source, Path) else BytesIO(source)) as archive:
            claimed = sum(each.file_size for each in archive.infolist())
        if claimed > 2 * size + 1_000_000:
            raise FormatError(f"{where} of {size} bytes claims to hold {claimed}", wanted="a file of torch.save")


_SCALARS = frozenset((int, float, str, bool, type(None)))


def _check_tensors(found: Any, size: int, where: str) -> None:
    """A tensor may repeat its storage (stride 0) without end; none holds more than a file of its size could mean."""
    import torch

    seen: set[int] = set()
    rest = [found]
    while rest:
        each = rest.pop()
        if type(each) in _SCALARS:
            continue
        if isinstance(each, torch.Tensor) and not each.is_nested:
            if each.layout is torch.strided and each.numel() * each.element_size() > max(64 * size, 1_000_000):
                raise FormatError(f"{where} of {size} bytes claims a tensor of shape {tuple(each.shape)}")
        elif isinstance(each, Mapping | list | tuple) and id(each) not in seen:
            seen.add(id(each))
            rest.extend(each.values() if isinstance(each, Mapping) else each)
