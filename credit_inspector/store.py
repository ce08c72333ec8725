"""An analysis on disk: one Parquet file a training step, written whole or not at all.

::

    analysis.json            what was analysed: source, trainer, rule, checkpoints, notes; schema_version 1
    tokenizer.json           a copy, so that the analysis opens where the run is not
    steps/step_000101.parquet  one row a response, one list a column; the unit of resuming
    findings.json            what the checks concluded

A step file holds the rollouts, every token column as ``list<float>`` under its own name, the spans as three lists, and in its
schema's metadata where each column is from. Files are written under another name, brought to the disk and renamed, so that a
reader never meets half of one and an analysis that was stopped at any moment goes on where it was. One analysis writes at a
time: the second is refused.

Numbers are compressed after their bytes are sorted by place (``BYTE_STREAM_SPLIT``): of a log-prob only sign and exponent
repeat, so that a dictionary of whole values is larger than the values. ``benchmarks/store.py`` holds the size.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from credit_inspector.algorithm import Algorithm
from credit_inspector.errors import StoreError
from credit_inspector.panel import Finding, Severity, TokenLink
from credit_inspector.rollout import Problem, Rollout
from credit_inspector.spans import SpanTable
from credit_inspector.table import Column, Provenance, TokenTable
from credit_inspector.text import to_json, whole
from credit_inspector.tokens import Pieces, load_tokenizer, pieces

SCHEMA_VERSION = 1
META, FINDINGS, TOKENIZER = "analysis.json", "findings.json", "tokenizer.json"
ROWS_A_GROUP = 128
_KEY = b"credit_inspector"
_COLUMN = "column:"
_PLAIN = (
    "sample_id",
    "group_id",
    "group_source",
    "prompt",
    "response",
    "reward",
    "advantage",
    "policy_version",
    "truncated",
)


@dataclass(frozen=True, kw_only=True)
class Meta:
    """What an analysis is about."""

    source: str
    trainer: str
    algorithm: Algorithm | None = None
    checkpoints: Mapping[str, str] = field(default_factory=dict)
    """What was asked for by role, as the user would name it."""
    scored: bool = False
    """Whether checkpoints were run."""
    columns: tuple[str, ...] = ()
    """What it was limited to; empty for every column."""
    ends: tuple[int, ...] = ()
    """Ids on which the model stops, where a checkpoint or a tokenizer says so."""
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A plain mapping."""
        plain = dataclasses.asdict(self)
        return {"schema_version": SCHEMA_VERSION, **plain}


class Store:
    """An analysis folder, to write and to read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def exists(self) -> bool:
        """Whether an analysis was begun here."""
        return (self.folder / META).is_file()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the folder for writing.

        Raises:
            StoreError: another analysis is writing here, or the folder cannot be made.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / ".lock").open("w")
        except OSError as error:
            raise StoreError(f"cannot write to {self.folder}: {error.strerror}", do="name another folder with --out") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise StoreError(
                    f"another analysis is writing to {self.folder}", do="wait for it, or name another folder with --out"
                ) from error
            self._clear()
            yield

    def _clear(self) -> None:
        """Take away what an analysis that was killed left half written."""
        ours = (self.folder.glob(f"{name}.*.tmp") for name in (META, FINDINGS, TOKENIZER))
        for file in (*chain.from_iterable(ours), *self._steps.glob("step_*.*.tmp")):
            file.unlink(missing_ok=True)

    # ── the whole ───────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, meta: Meta, tokenizer: Path | None) -> None:
        """Begin an analysis, or go on with one of the same settings; one without checkpoints gives way to one with them.

        Raises:
            StoreError: the folder holds an analysis with other settings.
        """
        if self.exists and (former := self.meta()) != meta:
            if former.scored or not meta.scored or former.source != meta.source:
                raise StoreError(
                    f"{self.folder} holds an analysis with other settings",
                    do="name another folder with --out, or delete this one",
                )
            for file in self._steps.glob("step_*.parquet"):
                file.unlink()
        self.write_meta(meta, tokenizer)

    def write_meta(self, meta: Meta, tokenizer: Path | None) -> None:
        """Write what the analysis is about, and a copy of the tokenizer."""
        if tokenizer is not None:
            source = tokenizer / TOKENIZER if tokenizer.is_dir() else tokenizer
            if source.is_file():
                self._write(self.folder / TOKENIZER, source.read_bytes())
        self._write_json(META, meta.to_json())

    def meta(self) -> Meta:
        """What the analysis is about.

        Raises:
            StoreError: no analysis, or one of another schema.
        """
        data = self._read_json(META)
        if data.pop("schema_version", None) != SCHEMA_VERSION:
            raise StoreError(f"{self.folder} was written by another version", do="analyze the run again")
        rule = data.pop("algorithm")
        return Meta(
            **{
                **data,
                "notes": tuple(data["notes"]),
                "columns": tuple(data["columns"]),
                "ends": tuple(data.get("ends", ())),
                "algorithm": Algorithm.from_json(rule) if rule else None,
            }
        )

    def write_findings(self, findings: Sequence[Finding]) -> None:
        """Write what the checks concluded."""
        self._write_json(FINDINGS, [finding_to_json(finding) for finding in findings])

    def findings(self) -> list[Finding]:
        """What the checks concluded; empty before they ran."""
        return [_finding(data) for data in self._read_json(FINDINGS)] if (self.folder / FINDINGS).is_file() else []

    # ── steps ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps that are there, ascending."""
        return tuple(sorted(int(file.stem.removeprefix("step_")) for file in self._steps.glob("step_*.parquet")))

    @property
    def _steps(self) -> Path:
        return self.folder / "steps"

    def _file(self, step: int) -> Path:
        return self._steps / f"step_{step:06d}.parquet"

    def write_step(self, table: TokenTable, spans: SpanTable | None) -> None:
        """Write one step; a reader sees all of it or nothing.

        Raises:
            StoreError: the disk is full or the folder is not writable; the store still opens.
        """
        arrow = _to_arrow(table, spans)
        split = [f"{name}.list.element" for name in arrow.column_names if name.startswith(_COLUMN)]
        others = [name for name in arrow.column_names if not name.startswith(_COLUMN)]
        with _whole_or_nothing(self._file(table.step)) as part:
            pq.write_table(
                arrow,
                part,
                compression="zstd",
                row_group_size=ROWS_A_GROUP,
                use_dictionary=[_leaf(arrow.schema.field(name)) for name in others],
                use_byte_stream_split=split,
            )

    def read_step(self, step: int, columns: Sequence[str] | None = None) -> tuple[TokenTable, SpanTable]:
        """Read one step; ``columns`` limits the token columns that are read.

        Raises:
            StoreError: the step is not there or not readable.
        """
        if not self._file(step).is_file():
            have = ", ".join(map(str, self.steps)) or "none"
            raise StoreError(f"step {step} is not in {self.folder}", wanted=f"one of {have}")
        try:
            with pq.ParquetFile(self._file(step)) as file:
                names = [name for name in file.schema_arrow.names if columns is None or _is_wanted(name, columns)]
                return _from_arrow(file.read(names), columns)
        except (OSError, pa.ArrowException, KeyError, ValueError) as error:
            raise StoreError(f"{self._file(step)} is not readable: {error}", do="delete it and analyze again") from error

    def provenance(self, step: int) -> dict[str, tuple[Provenance, str]]:
        """Where each column of a step is from, with its note; no value is read.

        Raises:
            StoreError: the step is not there or not readable.
        """
        try:
            about = json.loads(pq.read_schema(self._file(step)).metadata[_KEY])
            return {name: (Provenance(origin), note) for name, (origin, note) in about["columns"].items()}
        except (OSError, pa.ArrowException, KeyError, ValueError, TypeError) as error:
            raise StoreError(f"{self._file(step)} is not readable: {error}", do="delete it and analyze again") from error

    # ── text ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def pieces(self, ids: Sequence[int] | np.ndarray) -> Pieces:
        """The text of each token.

        Raises:
            StoreError: the analysis has no tokenizer.
        """
        return pieces(self._tokenizer(), ids)

    @property
    def has_tokenizer(self) -> bool:
        """Whether token texts can be shown."""
        return (self.folder / TOKENIZER).is_file()

    def _tokenizer(self) -> Any:
        file = self.folder / TOKENIZER
        if not file.is_file():
            raise StoreError(f"{self.folder} has no tokenizer", do="analyze again with --tokenizer or a checkpoint")
        return _tokenizer(file, file.stat().st_mtime_ns)

    # ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _write(self, target: Path, content: bytes) -> None:
        with _whole_or_nothing(target) as part:
            part.write_bytes(content)

    def _write_json(self, name: str, data: Any) -> None:
        self._write(self.folder / name, json.dumps(data, indent=1, allow_nan=False).encode())

    def _read_json(self, name: str) -> Any:
        try:
            return json.loads((self.folder / name).read_bytes())
        except FileNotFoundError as error:
            raise StoreError(f"{self.folder} holds no analysis", wanted=f"a folder with {name}") from error
        except ValueError as error:
            raise StoreError(f"{self.folder / name} is not readable: {error}", do="analyze again") from error


@lru_cache(maxsize=4)
def _tokenizer(file: Path, _changed: int) -> Any:
    return load_tokenizer(file)


@contextmanager
def _whole_or_nothing(target: Path) -> Iterator[Path]:
    """A name to write to; what is there at the end becomes ``target`` in one move.

    Raises:
        StoreError: the disk is full or the folder is not writable; what stood there before still stands.
    """
    part = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())  # some file systems tell only now that the disk is full
        part.replace(target)
    except (OSError, pa.ArrowException) as error:
        number = getattr(error, "errno", None)
        why = os.strerror(number) if number else str(error)
        do = "make room or name another folder with --out; what was written before is kept"
        raise StoreError(f"{target} could not be written: {why}", do=do) from error
    finally:
        part.unlink(missing_ok=True)


# ── Arrow ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _to_arrow(table: TokenTable, spans: SpanTable | None) -> pa.Table:
    offsets = pa.array(table.offsets.astype(np.int32))

    def ragged(values: np.ndarray) -> pa.Array:
        return pa.ListArray.from_arrays(offsets, pa.array(values, from_pandas=True))

    types = {"reward": pa.float64(), "advantage": pa.float64(), "policy_version": pa.int64(), "truncated": pa.bool_()}
    data: dict[str, Any] = {
        name: pa.array([_whole(getattr(r, name)) for r in table.rollouts], types.get(name, pa.string())) for name in _PLAIN
    }
    data["rewards"] = pa.array([to_json(r.rewards) for r in table.rollouts], pa.string())
    data["extra"] = pa.array([to_json(r.extra) for r in table.rollouts], pa.string())
    data["prompt_ids"] = pa.array([r.prompt_ids for r in table.rollouts], pa.list_(pa.int32()))
    data["has_ids"] = pa.array([r.response_ids is not None for r in table.rollouts], pa.bool_())
    data["has_mask"] = pa.array([r.loss_mask is not None for r in table.rollouts], pa.bool_())
    data["response_ids"] = ragged(table.token_ids)
    data["loss_mask"] = ragged(table.loss_mask)
    if spans is not None:
        data |= _span_lists(table, spans)
    there = {name: column for name, column in table.columns.items() if column.values is not None}
    data |= {f"{_COLUMN}{name}": ragged(column.values) for name, column in there.items() if column.values is not None}
    about = {
        "step": table.step,
        "algorithm": table.algorithm.to_json() if table.algorithm else None,
        "columns": {name: [column.provenance, column.note] for name, column in table.columns.items()},
        "problems": [[p.kind, p.message, p.where] for p in table.problems],
    }
    return pa.table(data).replace_schema_metadata({_KEY: json.dumps(about).encode()})


def _leaf(field: pa.Field) -> str:
    """A field's name among the leaves of a Parquet file."""
    return f"{field.name}.list.element" if pa.types.is_list(field.type) else str(field.name)


def _whole(value: Any) -> Any:
    return whole(value) if isinstance(value, str) else value


def _span_lists(table: TokenTable, spans: SpanTable) -> dict[str, pa.Array]:
    bounds = np.searchsorted(spans.row, np.arange(table.n_rows + 1)).astype(np.int32)
    first = table.offsets[spans.row]
    lists = {
        "span_start": pa.array((spans.start - first).astype(np.int32)),
        "span_end": pa.array((spans.end - first).astype(np.int32)),
        "span_lead": pa.array(spans.leads.astype(np.int32)),
        "span_label": pa.array(spans.label, pa.string()),
        "span_text": pa.array([whole(text) for text in spans.text], pa.string()),
    }
    return {name: pa.ListArray.from_arrays(pa.array(bounds), values) for name, values in lists.items()}


def _from_arrow(arrow: pa.Table, columns: Sequence[str] | None) -> tuple[TokenTable, SpanTable]:
    about = json.loads(arrow.schema.metadata[_KEY])
    arrow = arrow.combine_chunks()
    offsets, token_ids = _flat(arrow, "response_ids")
    mask = _flat(arrow, "loss_mask")[1].astype(bool)
    rollouts = _rollouts(arrow, offsets, token_ids, mask)
    rule = about["algorithm"]
    table = TokenTable(
        step=about["step"],
        rollouts=rollouts,
        offsets=offsets,
        token_ids=token_ids.astype(np.int32),
        loss_mask=mask,
        algorithm=Algorithm.from_json(rule) if rule else None,
        problems=tuple(Problem(*parts) for parts in about["problems"]),
    )
    for name, (provenance, note) in about["columns"].items():
        if columns is not None and name not in columns:
            continue
        missing = f"{_COLUMN}{name}" not in arrow.column_names
        values = None if missing else _flat(arrow, f"{_COLUMN}{name}")[1].astype(np.float32)
        table.columns[name] = Column(values, Provenance(provenance), note)
    return table, _spans(arrow, offsets)


def _is_wanted(name: str, columns: Sequence[str]) -> bool:
    """Whether a stored column is read: every one but the token columns that were not asked for."""
    head, sign, own = name.partition(":")
    return head != "column" or not sign or own in columns


def _flat(arrow: pa.Table, name: str) -> tuple[np.ndarray, np.ndarray]:
    column = arrow.column(name)
    if column.num_chunks == 0:
        return np.zeros(1, np.int64), np.zeros(0)
    lists = column.chunk(0)
    offsets = lists.offsets.to_numpy().astype(np.int64)
    return offsets - offsets[0], lists.flatten().to_numpy(zero_copy_only=False)


def _rollouts(arrow: pa.Table, offsets: np.ndarray, ids: np.ndarray, mask: np.ndarray) -> tuple[Rollout, ...]:
    rows = arrow.select([*_PLAIN, "rewards", "extra", "has_ids", "has_mask"]).to_pylist()
    prompts = arrow.column("prompt_ids").to_pylist()
    made = []
    for i, row in enumerate(rows):
        here = slice(offsets[i], offsets[i + 1])
        has_ids, has_mask = row.pop("has_ids"), row.pop("has_mask")
        made.append(
            Rollout(
                **{**row, "rewards": json.loads(row["rewards"]), "extra": json.loads(row["extra"])},
                prompt_ids=None if prompts[i] is None else np.array(prompts[i], np.int32),
                response_ids=ids[here].astype(np.int32) if has_ids else None,
                loss_mask=mask[here] if has_mask else None,
            )
        )
    return tuple(made)


def _spans(arrow: pa.Table, offsets: np.ndarray) -> SpanTable:
    if "span_start" not in arrow.column_names:
        empty = np.zeros(0, np.int64)
        return SpanTable(row=empty, start=empty, end=empty, label=(), text=())
    bounds, start = _flat(arrow, "span_start")
    row = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    return SpanTable(
        row=row,
        start=start.astype(np.int64) + offsets[row],
        end=_flat(arrow, "span_end")[1].astype(np.int64) + offsets[row],
        label=tuple(_flat(arrow, "span_label")[1].tolist()),
        text=tuple(_flat(arrow, "span_text")[1].tolist()),
        lead=_flat(arrow, "span_lead")[1].astype(np.int64),
    )


# ── findings ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def finding_to_json(finding: Finding) -> dict[str, Any]:
    """A plain mapping; numbers that are not finite become null."""
    return {
        **dataclasses.asdict(finding),
        "severity": finding.severity.name.lower(),
        "links": [dataclasses.asdict(link) for link in finding.links],
        "numbers": {name: value if math.isfinite(value) else None for name, value in finding.numbers.items()},
    }


def _finding(data: dict[str, Any]) -> Finding:
    numbers = {name: math.nan if value is None else value for name, value in data["numbers"].items()}
    links = tuple(TokenLink(**link) for link in data["links"])
    return Finding(**{**data, "severity": Severity[data["severity"].upper()], "links": links, "numbers": numbers})
