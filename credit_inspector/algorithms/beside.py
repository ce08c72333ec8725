"""The rule of a run, read from the configuration that its trainer left beside it.

Looked at: the run's folder, its two parents, and in each of them the places where trainers and wandb put a configuration.
The nearest folder with one wins; two there that say different things are both named, and none is taken. A trainer's
settings become a rule in a module ``from_<trainer>.py``; to add one, drop in a file with

- ``recognises(settings) -> bool``
- ``algorithm_of(settings) -> Algorithm``, which raises ``UsageError`` where a setting changes the loss in a way that is not
  computed.

A rule that cannot be had is a note and no error: what else the run holds can still be shown.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.configs import load
from credit_inspector.algorithms.settings import Settings
from credit_inspector.errors import CreditInspectorError, FormatError

_PARENTS: Final = 2
_MOST: Final = 16

# By folder: what verl and Hydra write, wandb's runs, NeMo-RL's checkpoints, what others call it.
_PATTERNS: Final = (
    ".hydra/config.yaml",
    "config.yaml",
    "config.yml",
    "config.json",
    "args.json",
    "training_args.json",
    "files/config.yaml",
    "wandb/*/files/config.yaml",
    "outputs/*/*/.hydra/config.yaml",
    "outputs/.hydra/config.yaml",
    "step_*/config.yaml",
    "checkpoints/step_*/config.yaml",
)
# What people take for a configuration.
_NO_SETTINGS: Final = {
    "trainer_state.json": "holds steps and logged metrics and no settings of the loss",
    "training_args.bin": "is a pickle, which is never opened: opening one runs code",
}


_Configuration = tuple[str, dict[str, Any] | FormatError]
"""Where it lies, below the folder that was looked at, and what it holds or why that cannot be read."""


@dataclass(frozen=True, slots=True)
class Found:
    """What lies beside a run."""

    algorithm: Algorithm | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Candidate:
    place: str
    algorithm: Algorithm | None
    notes: tuple[str, ...]


def find(path: Path) -> Found:
    """The rule that a configuration beside a run's folder or file describes, and what there is to say about it."""
    folder = path if path.is_dir() else path.parent
    levels = (folder, *islice(folder.resolve().parents, _PARENTS))
    for level in levels:
        if candidates := list(_candidates(level)):
            return _agreed(candidates)
    return Found(notes=tuple(_without_settings(levels)))


def _candidates(folder: Path) -> Iterator[_Candidate]:
    """What trainers' configurations in a folder say; a file that is no trainer's is passed by."""
    for place, values in _configurations(folder):
        if isinstance(values, FormatError):
            yield _Candidate(place, None, (f"{values}; name a rule with --algorithm",))
            continue
        settings = Settings(values)
        for reader in _readers():
            if reader.recognises(settings):
                yield _read(place, reader, settings)
                break


def _read(place: str, reader: ModuleType, settings: Settings) -> _Candidate:
    try:
        algorithm = replace(reader.algorithm_of(settings), source=f"read from {place}")
    except CreditInspectorError as error:
        return _Candidate(place, None, (f"{place} does not give the rule: {error}; name one with --algorithm",))
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        return _Candidate(place, None, (f"{place} holds a setting that cannot be read ({why}); name a rule with --algorithm",))
    return _Candidate(place, algorithm, tuple(f"{place}: {note}" for note in settings.notes))


def _configurations(folder: Path) -> Iterator[_Configuration]:
    seen: set[Path] = set()
    found = (file for pattern in _PATTERNS for file in sorted(folder.glob(pattern)))
    for file in islice((file for file in found if _is_file(file)), _MOST):
        if (real := file.resolve()) not in seen:
            seen.add(real)
            yield file.relative_to(folder).as_posix(), _loaded(file)
    yield from _of_prime(folder)


def _of_prime(folder: Path) -> Iterator[_Configuration]:
    if (whole := _either(folder, "rl")) is not None:
        yield f"configs/{whole.name}", _loaded(whole)
        return
    files = {name: file for name in ("trainer", "orchestrator") if (file := _either(folder, name)) is not None}
    parts = {name: _loaded(file) for name, file in files.items()}
    broken = next((values for values in parts.values() if isinstance(values, FormatError)), None)
    if parts:
        yield " and ".join(f"configs/{file.name}" for file in files.values()), broken or parts


def _either(folder: Path, name: str) -> Path | None:
    files = (folder / "configs" / f"{name}{ending}" for ending in (".json", ".toml"))
    return next((file for file in files if _is_file(file)), None)


def _is_file(path: Path) -> bool:
    """Whether there is a file that may be looked at; a parent's folders may be closed."""
    try:
        return path.is_file()
    except OSError:
        return False


def _loaded(file: Path) -> dict[str, Any] | FormatError:
    try:
        return load(file)
    except FormatError as error:
        return error


def _agreed(candidates: Sequence[_Candidate]) -> Found:
    notes = tuple(dict.fromkeys(note for each in candidates for note in each.notes))
    known = [(each.place, each.algorithm) for each in candidates if each.algorithm is not None]
    if len(known) < len(candidates):
        return Found(notes=notes)
    place, algorithm = known[0]
    for other, second in known[1:]:
        if differing := _differing(algorithm, second):
            said = f"{place} and {other} disagree on the rule: {differing}; name one with --algorithm"
            return Found(notes=(*notes, said))
    return Found(algorithm, notes)


def _differing(one: Algorithm, other: Algorithm) -> str:
    """The settings in which two rules differ, in words; empty where they are the same rule."""
    plain, second = one.to_json(), other.to_json()
    names = [name for name in plain if name != "source" and plain[name] != second[name]]
    shown = [f"{name} is {plain[name]} and {second[name]}" for name in names[:3]]
    return ", ".join([*shown, f"and {len(names) - 3} more"] if len(names) > 3 else shown)


def _without_settings(levels: Sequence[Path]) -> Iterator[str]:
    """A word on files that look as if they held the rule and do not."""
    for name, why in _NO_SETTINGS.items():
        places = (place for level in levels for place in (level / name, *sorted(level.glob(f"checkpoint-*/{name}"))[:1]))
        if any(_is_file(place) for place in places):
            yield f"{name} beside the run {why}"


@cache
def _readers() -> tuple[ModuleType, ...]:
    """The modules beside this one that know a trainer's settings."""
    package = importlib.import_module(__package__)
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__) if module.name.startswith("from_"))
    return tuple(importlib.import_module(f"{__package__}.{name}") for name in names)
