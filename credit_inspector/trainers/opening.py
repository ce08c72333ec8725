"""A path → the run it holds, whichever trainer wrote it.

Every reader is asked. One that answers has it; two that answer are an error, since guessing would show one run as
another. A folder that no reader knows is opened by its best part: this project's record before dumps of text, which
hold less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from credit_inspector.algorithms.beside import find
from credit_inspector.errors import CreditInspectorError, FormatError
from credit_inspector.rollout import Run
from credit_inspector.trainers import ReadOptions, readers
from credit_inspector.trainers._rows import first_rows, kind
from credit_inspector.trainers.tokenising import tokenised

__all__ = ["open_run", "tokenised"]

_SHOWN = 6
_DEPTH, _WIDTH = 5, 500
"""So many levels of folders are looked into, and so many folders of each."""
_LISTED = "a trainer that credit-inspector plugins lists"
_ANY = "mapped"
"""The reader of any table, which is asked where no other knows what it sees."""


def open_run(path: Path | str, options: ReadOptions | None = None) -> Run:
    """Open a run folder or a rollout file.

    Args:
        path: what a trainer left on disk.
        options: a mapping given here asks the ``mapped`` reader first.

    Raises:
        FormatError: nothing there, nothing recognised, or more than one thing.
        UsageError: the mapping names what does not exist.
    """
    path, options = Path(path), options or ReadOptions()
    if not path.exists():
        raise FormatError(f"there is no {path}", wanted="a run folder or a rollout file")
    if options.mapping:
        run = readers[_ANY](path, options)
        if run is not None:
            return _with_rule(run)
    here = list(_recognised(path, _knowing(), options)) or list(_recognised(path, [_ANY], options))
    inside = _inside(path, options, everything=not here)
    if not here and not inside:
        raise _unknown(path)
    run = _with_rule(_best(path, here, inside))
    unused = ("the mapping is not used: this format has fixed columns",) if options.mapping else ()
    return replace(run, notes=(*run.notes, *unused))


def _with_rule(run: Run) -> Run:
    """The run with the rule that a configuration beside it describes, where the trainer's own record names none."""
    if run.algorithm is not None:
        return run
    found = find(run.path)
    return replace(run, algorithm=found.algorithm, notes=(*run.notes, *found.notes))


def _knowing() -> list[str]:
    """The readers that know a format."""
    return [name for name in readers if name != _ANY]


def _recognised(path: Path, names: Iterable[str], options: ReadOptions) -> Iterator[Run]:
    """What each of some readers makes of a path."""
    for name in names:
        run = readers[name](path, options)
        if run is not None:
            yield run


def _inside(path: Path, options: ReadOptions, *, everything: bool) -> list[Run]:
    """What the folders inside a folder hold; one that is broken does not hide the others.

    Where the folder itself is nothing, folders further down are looked into, level by level, as trainers nest them by user,
    experiment and trial. Tables of unknown trainers are only looked for where there is nothing else, since opening them reads
    them.
    """
    level = [path]
    for _ in range(_DEPTH if everything else 1):
        level = [place for folder in level for place in _folders(folder)][:_WIDTH]
        for names in (_knowing(), [_ANY] if everything else []):
            found: list[Run] = []
            for folder in level:
                with suppress(CreditInspectorError):
                    found += _recognised(folder, names, options)
            if found:
                return found
    return []


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(place for place in path.iterdir() if place.is_dir() and not place.is_symlink())
    except OSError:  # one that may not be read, or is no folder
        return []


def _best(path: Path, here: Sequence[Run], inside: Sequence[Run]) -> Run:
    """The one run to show: a record if there is one, else what the folder itself is, else the only thing in it."""
    records = [[run for run in runs if run.trainer == "record"] for runs in (here, inside)]
    chosen = records[0] or records[1] or here or inside
    if len(chosen) > 1:
        names = " and ".join(f"{run.trainer} at {run.path}" for run in chosen[:_SHOWN])
        do = "say which column is which with --map, or move one away" if here else "open one of them"
        raise FormatError(f"{path} holds {len(chosen)} runs: {names}", wanted="one", do=do)
    parts = _parts(chosen[0], (*here, *inside))
    others = [run for run in (*here, *inside) if run is not chosen[0] and run not in parts]
    notes = [f"{_place(run, path)} also holds a run that {run.trainer} reads, with {_steps(run)}" for run in others]
    return replace(chosen[0], notes=(*chosen[0].notes, *notes))


def _parts(chosen: Run, runs: Sequence[Run]) -> list[Run]:
    """Runs that together are the chosen one, seen from its inner folders (TRL's ``completions``, AReaL's versions)."""
    same = [run for run in runs if run is not chosen and run.trainer == chosen.trainer]
    inner = [run for run in same if chosen.path in (run.path, *run.path.parents)]
    return inner if {step for run in inner for step in run.steps} == set(chosen.steps) else []


def _steps(run: Run) -> str:
    return "one step" if len(run.steps) == 1 else f"{len(run.steps)} steps"


def _place(run: Run, path: Path) -> str:
    return "the folder itself" if run.path == path else f"{run.path.name}/"


def _unknown(path: Path) -> FormatError:
    if path.is_dir():
        names = sorted(inner.name + "/" * inner.is_dir() for inner in path.iterdir())
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        found = f"{path} holds {', '.join(names[:_SHOWN])}{more}" if names else f"{path} is empty"
        tables = any(kind(path / name) not in (None, "json") for name in names)
        hint = "open one of its files" if tables else "name a rollout file and its columns: --map"
        hint = "a checkpoint goes to --policy" if "config.json" in names else hint
        return FormatError(found, wanted=f"a run of {_LISTED}, or tables of rollouts", do=hint)
    return FormatError(_file_found(path), wanted=f"rollouts of {_LISTED}, or a table of them", do=_how_to_map(path))


def _file_found(path: Path) -> str:
    if kind(path) is None:
        return f"{path} is no file of a known trainer and no .jsonl, .json, .csv or .parquet file"
    rows = first_rows(path)
    if not rows:
        return f"{path} is empty" if path.stat().st_size == 0 else f"{path} has no row that can be read"
    keys = list(rows[0])
    return f"{path} has the columns {', '.join(keys[:_SHOWN])}{' …' if len(keys) > _SHOWN else ''}"


def _how_to_map(path: Path) -> str:
    return "say which column is which: --map response=COLUMN --map reward=COLUMN" if first_rows(path, 1) else ""
