"""Every reader under fire: 20,000 damaged inputs each give rows and warnings or one line, and nothing else.

No other error comes out, no input holds a reader for long, and none makes it take memory without end. The inputs are
damaged copies of the reader's samples; a failing one is kept and its path told. ``CREDIT_INSPECTOR_FUZZ`` sets another
number, and ``tests/fuzz/guided.py`` goes further where it is let run on.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from credit_inspector.errors import AlignmentError, CreditInspectorError
from credit_inspector.table import TokenTable
from credit_inspector.trainers import ReadOptions, readers
from credit_inspector.trainers.tokenising import tokenised
from fuzz.damage import damaged
from places import samples

INPUTS = int(os.environ.get("CREDIT_INSPECTOR_FUZZ", "20000"))
PARTS = 4
"""A reader's inputs in parts, which the test workers share."""
SECONDS = 10
MEMORY = 1_000_000_000
MEMORY_DISK = Path("/dev/shm")  # noqa: S108 - a folder in memory where there is one


class TookTooLong(BaseException):
    """No ``Exception``: a reader that catches all of those does not hide it."""


@contextmanager
def alarm() -> Iterator[None]:
    """Interrupt what takes the processor for longer than ``SECONDS``."""

    def late(*_: Any) -> None:
        raise TookTooLong

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def read(name: str, path: Path) -> str:
    """Open and read; what came of it: ``not mine``, ``refused`` or ``read``."""
    try:
        run = readers[name](path, ReadOptions())
        if run is None:
            return "not mine"
        steps = [run.read(number) for number in run.steps[:2]]
    except AlignmentError:
        raise
    except CreditInspectorError as error:
        if "\n" in str(error):
            raise AssertionError("an error of more than one line") from error
        return "refused"
    for step in (tokenised(step, None) for step in steps):
        TokenTable.from_rollouts(step.number, step.rollouts)
    return "read"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder to write inputs into, in memory where that can be had."""
    folder = MEMORY_DISK / f"fuzz-{os.getpid()}" if os.access(MEMORY_DISK, os.W_OK) else tmp_path
    folder.mkdir(exist_ok=True)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", list(readers))
def test_any_damage_gives_rows_or_one_line(place: Path, tmp_path: Path, name: str, part: int) -> None:
    targets = found_in(name, place)
    outcomes: dict[str, int] = {}
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(part, INPUTS, PARTS):
        rng = Random(f"{name} {number}")
        path, file, whole = chosen(targets, rng)
        file.write_bytes(damaged(file.name, whole, rng))
        try:
            with alarm():
                outcome = read(name, path)
        except (Exception, TookTooLong) as error:
            kept = shutil.copytree(path, tmp_path / "failing") if path.is_dir() else shutil.copy(path, tmp_path / path.name)
            pytest.fail(f"input {number} of {name}, kept at {kept}: {type(error).__name__}: {error}")
        finally:
            file.write_bytes(whole)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most)
    assert grown < MEMORY, f"{name} took {grown} bytes more"
    assert outcomes.get("read", 0) > 0.05 * sum(outcomes.values()), f"too few inputs got past recognition: {outcomes}"


Target = tuple[list[Path], Path, bytes]
"""Paths at which a reader finds a file, the nearest first, the file and its content."""


def found_in(name: str, place: Path) -> list[Target]:
    """Every file of the reader's samples, copied, with the paths at which the reader finds it: itself, its folder, the run."""
    copies = [copied(sample, place / f"{i}") for i, sample in enumerate(samples(name))]
    targets = []
    for copy in copies:
        for file in contents(copy):
            above = [path for path in (file, *file.parents) if path == copy or copy in path.parents]
            paths = [path for path in above if path == copy or read(name, path) == "read"]
            targets.append((paths, file, file.read_bytes()))
    return targets


def chosen(targets: list[Target], rng: Random) -> tuple[Path, Path, bytes]:
    """A file to damage, and where to open it: mostly as near as can be, which reads least beside it."""
    paths, file, whole = rng.choice(targets)
    return paths[0] if rng.random() < 0.85 else paths[-1], file, whole


def copied(sample: Path, folder: Path) -> Path:
    """A sample under its own name in a folder of ours."""
    folder.mkdir(parents=True)
    if sample.is_dir():
        return Path(shutil.copytree(sample, folder / sample.name))
    return Path(shutil.copy(sample, folder / sample.name))


def contents(path: Path) -> list[Path]:
    """The files of a sample."""
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file() and file.stat().st_size)
