r"""Tables on disk → rows, read as a stream: JSON lines, JSON, CSV, Parquet, plain or compressed.

A run that was killed leaves half a line, a logger in two minds leaves ``NaN``, a decoder leaves broken UTF-8. None of
that stops the reading: each thing becomes a ``Problem`` in its place among the rows. Lines end at ``\n`` only, since
JSON text may hold U+2028 and other marks that Python's own line splitting takes for ends.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import re
import sys
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, cast

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from credit_inspector.errors import FormatError
from credit_inspector.rollout import Problem
from credit_inspector.trainers._values import HALF_PAIR

BROKEN = (OSError, EOFError, zlib.error, lzma.LZMAError, pa.ArrowException)
"""What a damaged compressed file raises."""


_BATCH = 1 << 18
"""Bytes read at a time."""
_BUFFER = 1 << 18
_GLANCE_ROWS = 20
_GLANCE_ITEMS = 1_000
_GLANCE_BYTES = 4_000_000
"""As much of a file's beginning is read to recognise it; one row at least."""


class Row(NamedTuple):
    """One row of a table."""

    number: int
    """Its line in the file, or its place among the rows, from 1."""
    values: Mapping[str, Any]
    problems: tuple[Problem, ...] = ()
    place: int = 0
    """By this its table finds it again."""


Item = Row | Problem
"""What reading a table gives: its rows, and what was wrong, in order."""


@dataclass
class Places:
    """Where some rows lie in their table, 16 bytes a row, and what was wrong among them."""

    numbers: array[int] = field(default_factory=lambda: array("q"))
    places: array[int] = field(default_factory=lambda: array("q"))
    problems: list[Problem] = field(default_factory=list)

    def add(self, row: Row) -> None:
        """Remember a row."""
        self.numbers.append(row.number)
        self.places.append(row.place)


class Table(Protocol):
    """A file of rows."""

    path: Path

    def scan(self) -> Iterator[Item]:
        """All rows in order."""
        ...

    def at(self, places: Places) -> Iterator[Row]:
        """The rows at these places."""
        ...


# ── which file holds what ───────────────────────────────────────────────────────────────────────────────────────────


_KINDS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
}
_PACKED = (".gz", ".bz2", ".xz", ".zst")


def kind(path: Path) -> str | None:
    """``jsonl``, ``json``, ``csv`` or ``parquet`` by the file's name, compressed or not; else ``None``."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _PACKED:
        suffixes.pop()
    return _KINDS.get(suffixes[-1]) if suffixes else None


def open_table(path: Path) -> Table | None:
    """The table in a file, by its name; ``None`` for other files."""
    tables: dict[str | None, Callable[[Path], Table]] = {
        "jsonl": JsonLines,
        "json": JsonFile,
        "csv": CsvFile,
        "parquet": ParquetFile,
    }
    opener = tables.get(kind(path))
    return opener(path) if opener and path.is_file() else None


def first_rows(path: Path, count: int = _GLANCE_ROWS) -> list[Mapping[str, Any]]:
    """The values of the first rows, as many as can be read and 20 at most; empty for a file that is no table.

    Every reader glances at the same file, so the last few are remembered until they change.
    """
    try:
        state = path.stat()
    except OSError:
        return []
    return list(_first_rows(path, state.st_mtime_ns, state.st_size)[:count])


@lru_cache(maxsize=16)
def _first_rows(path: Path, changed: int, size: int) -> tuple[Mapping[str, Any], ...]:
    table = open_table(path)
    if table is None:
        return ()
    found: list[Mapping[str, Any]] = []
    try:
        for item in islice(table.scan(), _GLANCE_ITEMS):
            if isinstance(item, Row):
                found.append(item.values)
                if len(found) == _GLANCE_ROWS or item.place > _GLANCE_BYTES:
                    break
    except FormatError:
        pass
    return tuple(found)


def open_bytes(path: Path) -> IO[bytes]:
    """A file's bytes, decompressed by its name."""
    openers: dict[str, Callable[[Path], Any]] = {
        ".gz": gzip.open,
        ".bz2": bz2.open,
        ".xz": lzma.open,
        ".zst": lambda file: io.BufferedReader(pa.input_stream(str(file), compression="zstd")),
    }
    opener = openers.get(path.suffix.lower())
    return cast("IO[bytes]", opener(path)) if opener else path.open("rb", _BUFFER)


# ── JSON ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class JsonLines:
    """One JSON object a line."""

    path: Path

    def scan(self) -> Iterator[Item]:
        """All rows, and a problem in place of each line that is none."""
        number = place = 0
        try:
            with open_bytes(self.path) as file:
                for lines in line_batches(file):
                    for line, value in zip(lines, _objects(lines), strict=True):
                        number += 1
                        item = Row(number, value, (), place) if value is not None else self._item(line, number, place)
                        place += len(line)
                        if item is not None:
                            yield item
        except BROKEN as error:
            yield Problem("torn-file", f"breaks off after line {number}: {error}", self.path.name)

    def at(self, places: Places) -> Iterator[Row]:
        """The rows at these byte offsets; a compressed file is read through."""
        if not self._plain:
            yield from _picked(self.scan(), places)
            return
        with self.path.open("rb") as file:
            for number, place in zip(places.numbers, places.places, strict=True):
                file.seek(place)
                item = self._item(file.readline(), number, place)
                if isinstance(item, Row):
                    yield item

    @property
    def _plain(self) -> bool:
        return self.path.suffix.lower() not in _PACKED

    def _item(self, raw: bytes, number: int, place: int) -> Item | None:
        """What a line holds that is not read at first sight."""
        if not raw.strip(b" \t\r\n"):
            return None
        read = parse(raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw)
        if isinstance(read, Parsed) and isinstance(read.value, Mapping):
            notes = tuple(Problem(name, f"line {number}: {what}", self.path.name) for name, what in read.notes)
            return Row(number, read.value, notes, place)
        if not raw.endswith(b"\n"):
            return Problem("torn-line", f"line {number} incomplete ({len(raw)} bytes), skipped", self.path.name)
        what = "no JSON object" if isinstance(read, Parsed) else f"no JSON ({read})"
        return Problem("bad-line", f"line {number} is {what}, skipped", self.path.name)


def line_batches(file: IO[bytes]) -> Iterator[list[bytes]]:
    r"""A file's lines with their ends, some at a time; they end at ``\n`` alone, and none is cut, however long it is.

    Of a packed file that breaks off, what comes before the damaged place is given first.
    """
    if isinstance(file, io.BufferedReader) and isinstance(file.raw, io.FileIO):
        while lines := file.readlines(_BATCH):
            yield lines
        return
    begun: list[bytes] = []
    read = getattr(file, "read1", file.read)  # gives what could be read before a damaged place
    try:
        while chunk := read(_BATCH):
            cut = chunk.rfind(b"\n") + 1
            if not cut:
                begun.append(chunk)
                continue
            yield io.BytesIO(b"".join((*begun, chunk[:cut]))).readlines()
            begun = [chunk[cut:]]
    except BROKEN:
        yield io.BytesIO(b"".join(begun)).readlines()
        raise
    yield io.BytesIO(b"".join(begun)).readlines()


def _objects(lines: list[bytes]) -> list[dict[str, Any] | None]:
    """The JSON object on each line; ``None`` where a line needs a second look."""
    found = [_object(line) for line in lines]
    if _has_keys(b"".join(lines), sum([_keys(value) for value in found if value is not None])):
        return found
    pairs = zip(lines, found, strict=True)
    return [value if value is not None and _has_keys(line, _keys(value)) else None for line, value in pairs]


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return value if type(value) is dict else None


def _keys(value: Any) -> int:
    """How many keys JSON has, at any depth; −1 where a number may have been too large to be read exactly."""
    count = 0
    rest = [value]
    while rest:
        each = rest.pop()
        if type(each) is dict:
            count += len(each)
            each = each.values()
        elif not each or type(each[0]) not in _NESTED:
            continue  # a list of numbers is not walked; keys further on would make the counts differ
        for inner in each:
            if type(inner) in _NESTED:
                rest.append(inner)
            elif type(inner) is float and abs(inner) >= _LARGE:
                return -1
    return count


_NESTED = frozenset((dict, list))
_LARGE = 2.0**63
_MARK = int.from_bytes(b'":', "little")


def _has_keys(raw: bytes, count: int) -> bool:
    """Whether the text of JSON shows so many keys: quotes with a colon after and no backslash before.

    Inside a string a quote always has its backslash, so a key that stands twice makes this one more than ``_keys``. A writer
    that puts a space before the colon makes it less; such lines get the second look too.
    """
    if len(raw) < 4 * 1024:
        return raw.count(b'":') - raw.count(b'\\":') == count
    pairs = [np.frombuffer(raw, "<u2", count=(len(raw) - odd) // 2, offset=odd) == _MARK for odd in (0, 1)]
    seen = sum(int(np.count_nonzero(pair)) for pair in pairs)
    if seen <= count:  # with none inside of strings; the others cost more to find
        return seen == count
    ends = np.concatenate([2 * np.flatnonzero(pair) + odd for odd, pair in enumerate(pairs)])
    before = np.frombuffer(raw, np.uint8)[np.maximum(ends - 1, 0)]
    return int(np.count_nonzero(before != ord("\\"))) == count


@dataclass(frozen=True, slots=True)
class Parsed:
    """A JSON value, and what had to be mended in it."""

    value: Any
    notes: tuple[tuple[str, str], ...] = ()
    """Kind and words of each."""


def parse(raw: bytes) -> Parsed | str:
    """Read JSON as it is found: ``NaN`` and ``Infinity``, broken UTF-8, half surrogate pairs, keys given twice.

    Returns:
        What was read (the last value of a repeated key), or in words why it is no JSON.
    """
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return _tolerant(raw)
    plain = type(value) not in _NESTED or _has_keys(raw, _keys(value))
    return Parsed(value) if plain else _tolerant(raw)


def _tolerant(raw: bytes) -> Parsed | str:
    notes: list[tuple[str, str]] = []
    try:
        source = raw.decode("utf-8")
    except UnicodeDecodeError:
        source = raw.decode("utf-8", "replace")
        notes.append(("invalid-utf8", "bytes that are no UTF-8 show as U+FFFD"))
    twice: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice.extend(_repeated(pairs))
        return found

    try:
        value = json.loads(source, object_pairs_hook=unique)
        if "\\ud" in source or "\\uD" in source:
            mended = _mend(value)
            if mended != value:
                notes.append(("lone-surrogate", "half a surrogate pair shows as U+FFFD"))
            value = mended
    except RecursionError:
        return "nested too deeply"
    except ValueError as error:
        return str(error).split(":", 1)[0]
    if twice:
        notes.append(("repeated-key", f"key {twice[0]!r} stands twice, the last one counts"))
    return Parsed(value, tuple(notes))


def _repeated(pairs: list[tuple[str, Any]]) -> list[str]:
    return [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]


def _mend(value: Any) -> Any:
    """Replace what no UTF-8 text can hold, in keys and values."""
    if isinstance(value, str):
        return HALF_PAIR.sub("\ufffd", value)
    if isinstance(value, list):
        return [_mend(element) for element in value]
    if isinstance(value, dict):
        return {_mend(key): _mend(element) for key, element in value.items()}
    return value


_HOLDERS = ("rollouts", "samples", "trajectories", "episodes", "results", "records", "rows", "data")
"""Keys under which a JSON object keeps its rows."""


_STREAMED = 32_000_000
"""Bytes from which on a list of rows is read one by one."""


@dataclass
class JsonFile:
    """One JSON value that holds rows: a list of objects, an object with such a list, or one object.

    A long list is read row by row; a row in it that is damaged ends the reading, since nothing says where the next one begins.
    """

    path: Path

    def scan(self) -> Iterator[Item]:
        """All rows.

        Raises:
            FormatError: the file holds no JSON.
        """
        if self._is_long_list():
            yield from self._stream()
            return
        try:
            with open_bytes(self.path) as file:
                read = parse(file.read().removeprefix(b"\xef\xbb\xbf"))
        except BROKEN as error:
            raise FormatError(f"{self.path} cannot be read: {error}") from error
        if isinstance(read, str):
            raise FormatError(f"{self.path} is no JSON ({read})", wanted="a list of rows")
        yield from (Problem(name, what, self.path.name) for name, what in read.notes)
        for number, element in enumerate(_elements(read.value), 1):
            if isinstance(element, Mapping):
                yield Row(number, element, place=number)
            else:
                yield Problem("bad-line", f"element {number} is no JSON object, skipped", self.path.name)

    def _is_long_list(self) -> bool:
        try:
            with open_bytes(self.path) as file:
                begin = file.read(_BATCH).removeprefix(b"\xef\xbb\xbf").lstrip()
                return begin.startswith(b"[") and (self.path.stat().st_size > _STREAMED or len(file.read(_STREAMED)) == _STREAMED)
        except BROKEN:
            return False

    def _stream(self) -> Iterator[Item]:
        number = 0
        try:
            with io.TextIOWrapper(open_bytes(self.path), "utf-8-sig", "replace", newline="") as text:
                while text.read(1) != "[":
                    pass
                for number, element in enumerate(_list_elements(text), 1):
                    read = parse(element.encode("utf-8", "surrogatepass"))
                    if isinstance(read, Parsed) and isinstance(read.value, Mapping):
                        notes = tuple(Problem(name, f"element {number}: {what}", self.path.name) for name, what in read.notes)
                        yield Row(number, read.value, notes, number)
                    else:
                        yield Problem("bad-line", f"element {number} is no JSON object, skipped", self.path.name)
        except BROKEN as error:
            yield Problem("torn-file", f"breaks off after element {number}: {error}", self.path.name)

    def at(self, places: Places) -> Iterator[Row]:
        """The elements with these numbers, from 1."""
        return _picked(self.scan(), places)


_BETWEEN = re.compile(r"[\s,]*")


def _list_elements(text: IO[str]) -> Iterator[str]:
    """The elements of a list, as they stand, from a stream whose opening bracket was read.

    Raises:
        EOFError: one is damaged, or the list is never closed.
    """
    decoder = json.JSONDecoder()
    held, at, size = "", 0, _BATCH
    while chunk := text.read(size):
        held, at = held[at:] + chunk, 0
        while True:
            at = cast("re.Match[str]", _BETWEEN.match(held, at)).end()
            try:
                _, end = decoder.raw_decode(held, at)
            except (ValueError, RecursionError):
                break
            yield held[at:end]
            at = end
        if held.startswith("]", at):
            return
        size = max(_BATCH, len(held) - at)  # what is read again grows with what did not suffice
    raise EOFError("the list is not closed, or its next element is damaged")


def _elements(value: Any) -> Iterable[Any]:
    if isinstance(value, list):
        return value
    inner = (value.get(name) for name in _HOLDERS) if isinstance(value, Mapping) else ()
    return next((rows for rows in inner if isinstance(rows, list) and not _is_chat(rows)), [value])


def _is_chat(rows: list[Any]) -> bool:
    return all(isinstance(row, Mapping) and "role" in row for row in rows)


def _picked(items: Iterable[Item], places: Places) -> Iterator[Row]:
    wanted = set(places.numbers)
    return (item for item in items if isinstance(item, Row) and item.number in wanted)


# ── CSV ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class CsvFile:
    """Cells as text, so that ``007`` stays ``007``; the first line names the columns."""

    path: Path

    def scan(self) -> Iterator[Item]:
        """All rows; one with another number of cells than the first line is skipped as a problem."""
        csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
        number = 0
        try:
            with io.TextIOWrapper(open_bytes(self.path), "utf-8-sig", "replace", newline="") as file:
                head = file.readline()
                file.seek(0)
                cells = csv.reader(file, delimiter=max("\t;,", key=head.count))
                names = next(cells, [])
                for number, row in enumerate(cells, 1):
                    if row:
                        yield self._item(names, row, number)
        except (*BROKEN, csv.Error) as error:
            yield Problem("torn-file", f"breaks off after row {number}: {error}", self.path.name)

    def at(self, places: Places) -> Iterator[Row]:
        """The rows with these numbers, from 1."""
        return _picked(self.scan(), places)

    def _item(self, names: list[str], cells: list[str], number: int) -> Item:
        if len(cells) != len(names):
            what = f"row {number} has {len(cells)} cells for {len(names)} columns, skipped"
            return Problem("bad-line", what, self.path.name)
        return Row(number, dict(zip(names, cells, strict=True)), place=number)


# ── Parquet ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a Parquet file.

    Raises:
        FormatError: it is none, or breaks off.
    """
    try:
        return pq.ParquetFile(path)
    except (*BROKEN, ValueError) as error:
        raise FormatError(f"{path} is no readable Parquet file: {error}", wanted="a file that was closed") from error


def parquet_rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """A table's rows: lists of numbers as arrays, maps as mappings, everything else as plain Python values.

    Raises:
        FormatError: a column that cannot be read, such as text that is no UTF-8.
    """
    names = table.column_names
    try:
        columns = [parquet_column(column) for column in table.columns]
    except (pa.ArrowException, ValueError) as error:
        raise FormatError(f"a column cannot be read: {error}") from error
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def parquet_column(column: pa.ChunkedArray) -> list[Any]:
    """One column's values; a list of numbers is one array ``[L]`` a row, with NaN for null."""
    kind = column.type
    if pa.types.is_map(kind):
        return [None if row is None else dict(row) for row in column.to_pylist()]
    flat_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    inner = kind.value_type if flat_list else None
    if inner is None or not (pa.types.is_integer(inner) or pa.types.is_floating(inner) or pa.types.is_boolean(inner)):
        return cast("list[Any]", column.to_pylist())
    return [row for chunk in column.chunks for row in _arrays(chunk)]


def _arrays(chunk: pa.Array) -> Iterator[np.ndarray[Any, Any] | None]:
    flat = chunk.flatten().to_numpy(zero_copy_only=False)
    if flat.dtype == object:  # truth values among which some are null
        flat = np.array([np.nan if value is None else float(value) for value in flat])
    valid = chunk.is_valid().to_numpy(zero_copy_only=False)
    lengths = np.nan_to_num(chunk.value_lengths().to_numpy(zero_copy_only=False)).astype(np.int64)
    ends = np.cumsum(np.where(valid, lengths, 0))
    for there, end, length in zip(valid, ends, lengths, strict=True):
        yield flat[end - length : end] if there else None


@dataclass
class ParquetFile:
    """A Parquet file of any columns; row groups are read one by one."""

    path: Path

    def scan(self) -> Iterator[Item]:
        """All rows.

        Raises:
            FormatError: the file cannot be read.
        """
        with open_parquet(self.path) as file:
            for group, begin in _row_groups(file):
                yield from self._read(file, group, begin)

    def at(self, places: Places) -> Iterator[Row]:
        """The rows with these numbers, from 1; only the row groups that hold one are read."""
        wanted = np.array(places.numbers, dtype=np.int64)
        with open_parquet(self.path) as file:
            for group, begin in _row_groups(file):
                size = file.metadata.row_group(group).num_rows
                here = set(wanted[(wanted > begin) & (wanted <= begin + size)].tolist())
                if here:
                    yield from (row for row in self._read(file, group, begin) if row.number in here)

    def _read(self, file: pq.ParquetFile, group: int, begin: int) -> Iterator[Row]:
        try:
            table = file.read_row_group(group)
        except (*BROKEN, ValueError) as error:
            raise FormatError(f"{self.path} cannot be read: {error}") from error
        for number, values in enumerate(parquet_rows(table), begin + 1):
            yield Row(number, values, place=number)


def _row_groups(file: pq.ParquetFile) -> Iterator[tuple[int, int]]:
    """Each row group of a file and the rows before it."""
    begin = 0
    for group in range(file.metadata.num_row_groups):
        yield group, begin
        begin += file.metadata.row_group(group).num_rows


# ── rows by step ────────────────────────────────────────────────────────────────────────────────────────────────────


def by_step(table: Table, step_of: Callable[[Row], int | None], default: int) -> dict[int, Places]:
    """Where the rows of each step lie, ascending, from one reading of the table.

    A row that names no step belongs to the step of the row before it (of the first step, if none is), and a problem
    to the rows it stands among. Where no row names one, all are of the ``default`` step.
    """
    steps: dict[int, Places] = {}
    early = Places()
    current: Places | None = None
    unnamed = 0
    for item in table.scan():
        step = step_of(item) if isinstance(item, Row) else None
        if step is not None:
            current = steps.setdefault(step, Places())
        into = early if current is None else current
        if isinstance(item, Problem):
            into.problems.append(item)
        else:
            into.add(item)
            unnamed += step is None
    first = steps.setdefault(min(steps, default=default), Places())
    _put_before(first, early)
    if unnamed and unnamed < sum(len(places.numbers) for places in steps.values()):
        what = f"{unnamed} rows name no step: taken to be of the step of the row before"
        first.problems.append(Problem("no-step", what, table.path.name))
    return dict(sorted(steps.items()))


def _put_before(places: Places, early: Places) -> None:
    places.numbers = early.numbers + places.numbers
    places.places = early.places + places.places
    places.problems = early.problems + places.problems
