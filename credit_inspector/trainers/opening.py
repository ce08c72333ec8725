"""A path → the run it holds, whichever trainer wrote it.

Every reader is asked. One that answers has it; two that answer are an error, since guessing would show one run as
another. A folder that no reader knows is opened by its best part: this project's record before dumps of text, which
hold less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from credit_inspector.errors import CreditInspectorError, FormatError
from credit_inspector.rollout import Run
from credit_inspector.trainers import ReadOptions, readers
from credit_inspector.trainers._rows import first_rows, kind
from credit_inspector.trainers.tokenising import tokenised

__all__ = ["open_run", "tokenised"]

_SHOWN = 6


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
        run = readers["mapped"](path, options)
        if run is not None:
            return run
    found = _recognised(path, options)
    parts = _parts(path, options, only_records=bool(found)) if path.is_dir() and "record" not in found else {}
    if not found and not parts:
        raise _unknown(path)
    run = _best(path, found, parts)
    unused = ("the mapping is not used: this format has fixed columns",) if options.mapping else ()
    return replace(run, notes=(*run.notes, *unused))


def _recognised(path: Path, options: ReadOptions) -> dict[str, Run]:
    """What each reader makes of a path, by the reader's name."""
    answers = {name: readers[name](path, options) for name in readers}
    return {name: run for name, run in answers.items() if run is not None}


def _parts(folder: Path, options: ReadOptions, *, only_records: bool) -> dict[Path, dict[str, Run]]:
    """What the folders inside a folder hold; one that is broken does not hide the others."""
    found: dict[Path, dict[str, Run]] = {}
    for inner in sorted(place for place in folder.iterdir() if place.is_dir()):
        if only_records and not (inner / "record.json").is_file():
            continue
        try:
            runs = _recognised(inner, options)
        except CreditInspectorError:
            continue
        if runs:
            found[inner] = runs
    return found


def _best(path: Path, found: Mapping[str, Run], parts: Mapping[Path, Mapping[str, Run]]) -> Run:
    """The one run to show: a record if there is one, else the only thing there is."""
    candidates = [*found.values(), *(run for runs in parts.values() for run in runs.values())]
    records = [run for run in candidates if run.trainer == "record"]
    chosen = records or candidates
    if len(chosen) > 1:
        names = " and ".join(f"{run.trainer} at {run.path}" for run in chosen[:_SHOWN])
        do = "open one of them" if parts else "say which column is which with --map, or move one away"
        raise FormatError(f"{path} holds {len(chosen)} runs: {names}", wanted="one", do=do)
    others = [run for run in candidates if run is not chosen[0]]
    notes = [f"{run.path.name}/ holds a {run.trainer} run of {len(run.steps)} steps too" for run in others]
    return replace(chosen[0], notes=(*chosen[0].notes, *notes))


def _unknown(path: Path) -> FormatError:
    known = ", ".join(name for name in readers if name != "mapped")
    if path.is_dir():
        names = sorted(inner.name + "/" * inner.is_dir() for inner in path.iterdir())
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        found = f"{path} holds {', '.join(names[:_SHOWN])}{more}" if names else f"{path} is empty"
        tables = any(kind(path / name) not in (None, "json") for name in names)
        hint = "open one of its files" if tables else "name a rollout file and its columns: --map"
        hint = "a checkpoint goes to --policy" if "config.json" in names else hint
        return FormatError(found, wanted=f"a run of {known}, or tables of rollouts", do=hint)
    return FormatError(_file_found(path), wanted=f"rollouts of {known}, or a table of them", do=_how_to_map(path))


def _file_found(path: Path) -> str:
    if kind(path) is None:
        return f"{path} is no .jsonl, .json, .csv or .parquet file"
    rows = first_rows(path)
    if not rows:
        return f"{path} is empty" if path.stat().st_size == 0 else f"{path} has no row that can be read"
    keys = list(rows[0])
    return f"{path} has the columns {', '.join(keys[:_SHOWN])}{' …' if len(keys) > _SHOWN else ''}"


def _how_to_map(path: Path) -> str:
    return "say which column is which: --map response=COLUMN --map reward=COLUMN" if first_rows(path, 1) else ""
