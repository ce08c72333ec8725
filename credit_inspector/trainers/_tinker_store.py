"""The SQLite store of tinker-cookbook's capture, read without trusting it and without touching it.

``CaptureDB`` (``capture/store/db.py``, 0.6.1) keeps ``wire_rows`` in ``capture.sqlite``, in WAL mode. Only that plain table is
read: a database may hold views, virtual tables and computed columns, which are programs. What a damaged or hostile file
can cost is bounded by its size. Where a daemon left rows in the log beside the file (``-wal``), both are copied first, since
opening them in place would write.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from credit_inspector.errors import FormatError

NAME = "capture.sqlite"
_MAGIC = b"SQLite format 3\x00"
_OPS = 1_000
"""Instructions between two looks at the budget."""
_OPS_A_BYTE = 100
_MOST_TIMES = 8
"""How often a file's bytes may be read: text sits in a row once, but pages may be pointed at twice."""


def is_store(path: Path) -> bool:
    """Whether a file is an SQLite database with a table ``wire_rows``.

    Raises:
        FormatError: it has the store's own name and is damaged.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                return False
        with _opened(path) as connection:
            return bool(_columns(connection))
    except OSError:
        return False
    except FormatError:
        if path.name == NAME:
            raise
        return False


def wire_rows(path: Path, wanted: tuple[str, ...], where: str = "1", values: tuple[Any, ...] = ()) -> Iterator[dict[str, Any]]:
    """The rows for which a condition holds, in the order in which they came in.

    Args:
        path: the database.
        wanted: columns; one that the table lacks is left out.
        where: an SQL condition of ours, never of the data's.
        values: what stands for its ``?``.

    Raises:
        FormatError: the database cannot be read.
    """
    most = _MOST_TIMES * _size(path)
    with _opened(path) as connection:
        names = [name for name in ("cursor", *wanted) if name in _columns(connection)]
        query = f"SELECT {', '.join(names)} FROM wire_rows WHERE {where} ORDER BY rowid"  # noqa: S608 - names are ours
        for row in connection.execute(query, values):
            most -= sum(len(value) for value in row if isinstance(value, str | bytes))
            if most < 0:
                raise FormatError(f"{path} holds more than its size: its pages are used twice")
            yield dict(zip(names, row, strict=True))


def _columns(connection: sqlite3.Connection) -> list[str]:
    """The stored columns of ``wire_rows``; empty where that is no plain table."""
    found = connection.execute("SELECT type, sql, rootpage FROM sqlite_master WHERE name = 'wire_rows'").fetchall()
    if len(found) != 1 or found[0][0] != "table" or not found[0][2]:
        return []
    return [str(row[1]) for row in connection.execute("PRAGMA table_xinfo(wire_rows)") if row[6] == 0]


def _size(path: Path) -> int:
    wal = path.with_name(f"{path.name}-wal")
    return path.stat().st_size + (wal.stat().st_size if wal.is_file() else 0)


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        with (
            _untouched(path) as (file, how),
            closing(sqlite3.connect(f"{file.resolve().as_uri()}?{how}", uri=True)) as connection,
        ):
            size = _size(path)
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max(size, 1 << 16))
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            connection.set_progress_handler(_budget(size), _OPS)
            connection.execute("PRAGMA trusted_schema = OFF")
            yield connection
    except (sqlite3.Error, OSError, OverflowError, MemoryError, UnicodeDecodeError) as error:
        # the last where SQLite's own message quotes a damaged name
        why = " ".join(str(error).split())
        raise FormatError(f"{path} is no readable SQLite store: {why}", do="copy it again, with its -wal file") from error


@contextmanager
def _untouched(path: Path) -> Iterator[tuple[Path, str]]:
    """A file that may be opened, and how."""
    wal = path.with_name(f"{path.name}-wal")
    if not (wal.is_file() and wal.stat().st_size):
        yield path, "mode=ro&immutable=1"
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / NAME
        shutil.copyfile(path, copy)
        shutil.copyfile(wal, copy.with_name(f"{NAME}-wal"))
        yield copy, "mode=rw"


def _budget(size: int) -> Callable[[], int]:
    left = [1_000_000 + _OPS_A_BYTE * size]

    def used() -> int:
        left[0] -= _OPS
        return int(left[0] < 0)

    return used
