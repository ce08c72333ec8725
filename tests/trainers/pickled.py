"""Pickles of classes that are not here, such as a trainer's, and pickles that would do harm."""

from __future__ import annotations

import io
import os
import pickle
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from credit_inspector.errors import CreditInspectorError
from credit_inspector.trainers.opening import open_run


def body(value: Any) -> bytes:
    """A value's pickle without its head and its end."""
    return pickle.dumps(value, protocol=3)[2:-1]


def named(module: str, name: str) -> bytes:
    """A class or function by its name."""
    parts = (text.encode() for text in (module, name))
    return b"".join(b"\x8c" + bytes([len(part)]) + part for part in parts) + b"\x93"


def instance(module: str, name: str, state: bytes) -> bytes:
    """The pickle of an object with this state, as protocol 2 and later write it."""
    return b"\x80\x04" + named(module, name) + b")\x81" + state + b"b."


def called(module: str, name: str, *args: bytes) -> bytes:
    """The pickle of what a function makes of these arguments."""
    return b"\x80\x04" + named(module, name) + b"(" + b"".join(args) + b"tR."


class Evil:
    """Would leave a file behind when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.trace}",)


def evil_file(path: Path, raw: bytes) -> Path:
    """Write a harmful file, with the folders it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    return path


def does_harm(value: Any, trace: Path) -> bool:
    """Whether unpickling leaves the trace; it is removed again."""
    pickle.load(io.BytesIO(pickle.dumps(value)))  # noqa: S301
    found = trace.exists()
    trace.unlink(missing_ok=True)
    return found


def mutants(raw: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """Copies cut short, with bytes changed, taken out or put in twice."""
    draw = random.Random(seed)
    for _ in range(count):
        changed = bytearray(raw)
        for _ in range(draw.choice((1, 1, 2, 5, 20))):
            place = draw.randrange(len(changed))
            kind = draw.randrange(4)
            if kind == 0:
                changed[place] = draw.randrange(256)
            elif kind == 1:
                changed[place] ^= 1 << draw.randrange(8)
            elif kind == 2:
                del changed[place : place + draw.randrange(1, 9)]
            else:
                changed[place:place] = changed[place : place + draw.randrange(1, 9)]
            if not changed:
                changed = bytearray(b"\0")
        yield bytes(changed[: draw.randrange(1, len(changed) + 1)] if draw.random() < 0.2 else changed)


def rows_of_mutants(source: Path, file: Path, count: int) -> int:
    """How many rows are read from damaged copies of a file; one that cannot be read gives one of this project's own errors."""
    read = 0
    for raw in mutants(source.read_bytes(), count):
        file.write_bytes(raw)
        with suppress(CreditInspectorError):
            run = open_run(file)
            for number in run.steps:
                read += len(run.read(number).rollouts)
    return read
