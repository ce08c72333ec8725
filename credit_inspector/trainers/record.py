"""This project's own record of a run, which keeps what credit needs: token ids, masks and log-probabilities.

A folder::

    record.json                  schema_version 1, trainer, algorithm, tokenizer, notes
    steps/step_000001.parquet    one file an optimizer step, one row a response
    tokenizer/                   optional
    checkpoints/step_000000/     optional; the number is how many optimizer steps the weights have taken

Columns: ``sample_id``, ``group_id``, ``group_source``, ``prompt``, ``response``, ``prompt_ids`` and ``response_ids``
``list<int32>``, ``loss_mask`` ``list<bool>``, ``policy_version``, ``reward``, ``rewards`` ``map<string, double>``,
``advantage``, ``truncated``, ``extra`` (JSON text), and a ``list<float>`` for each token column under this project's
name (``logprob/old``; the advantage of each token is ``advantage/token``, since ``advantage`` is the sequence's one
number). A step under another rule than the run's has it in the file's metadata.

The same keys, one response a line with ``step`` and ``schema_version``, may also stand in one ``*.jsonl`` file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from credit_inspector.algorithm import Algorithm
from credit_inspector.errors import CreditInspectorError, FormatError
from credit_inspector.rollout import CheckpointAt, Problem, Rollout, Run, Step
from credit_inspector.text import to_json
from credit_inspector.tokens import has_tokenizer
from credit_inspector.trainers import ReadOptions, reader
from credit_inspector.trainers._rollouts import FIELDS, Columns, no_step, own_columns, read_indexed, read_step
from credit_inspector.trainers._rows import (
    Item,
    JsonLines,
    Row,
    by_step,
    first_rows,
    kind,
    open_parquet,
    parquet_rows,
    parse,
)
from credit_inspector.trainers._values import HALF_PAIR, as_mapping, whole

SCHEMA_VERSION = 1
ROWS_PER_GROUP = 128
"""One response is read with its row group: 6 ms of 10 M tokens at this size."""

_STEP_FILE = re.compile(r"step_(\d+)\.parquet")
_VERSION_KEY = b"credit_inspector.schema_version"
_STEP_KEY = b"credit_inspector.step"
_ALGORITHM_KEY = b"credit_inspector.algorithm"
_PROBLEMS_KEY = b"credit_inspector.problems"
_OWN = (*FIELDS, "group_source", "extra", "schema_version")
_EACH = "/token"
_RENAMED = frozenset(name + _EACH for name in FIELDS if name != "reward")
"""``reward/token`` is a column's own name: the reward of each token is never called ``reward``."""


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def write_header(
    folder: Path,
    *,
    trainer: str,
    algorithm: Algorithm | None = None,
    tokenizer: str | None = None,
    notes: Sequence[str] = (),
) -> Path:
    """Begin a recorded run, or rewrite the header of one.

    Args:
        folder: made if it is not there.
        trainer: what ran, with its version: ``trl 1.16.0``.
        algorithm: the rule that the run optimises.
        tokenizer: where the tokenizer lies, relative to ``folder``.
        notes: what a reader has to know, one sentence each.
    """
    header = {
        "schema_version": SCHEMA_VERSION,
        "trainer": trainer,
        "algorithm": None if algorithm is None else algorithm.to_json(),
        "tokenizer": tokenizer,
        "notes": list(notes),
    }
    folder.mkdir(parents=True, exist_ok=True)
    return _replace(folder / "record.json", lambda file: file.write_text(to_json(header, indent=2) + "\n", "utf-8"))


def write_step(folder: Path, step: Step) -> Path:
    """Write one step of a recorded run; a step written before is replaced. Readers never see half a file."""
    steps = folder / "steps"
    steps.mkdir(parents=True, exist_ok=True)
    table = _table(step)
    return _replace(
        steps / f"step_{step.number:06d}.parquet",
        lambda file: pq.write_table(table, file, compression="zstd", row_group_size=ROWS_PER_GROUP),
    )


def write_jsonl(path: Path, steps: Iterable[Step]) -> Path:
    """Write steps as JSON lines, one response each; a missing number is ``null``."""

    def write(file: Path) -> None:
        with file.open("w", encoding="utf-8") as lines:
            for step in steps:
                lines.writelines(to_json(_line(step.number, rollout)) + "\n" for rollout in step.rollouts)

    return _replace(path, write)


def _replace(path: Path, write: Callable[[Path], object]) -> Path:
    unfinished = path.with_name(f"{path.name}.tmp")
    write(unfinished)
    return unfinished.replace(path)


def _table(step: Step) -> pa.Table:
    rows = step.rollouts
    names = list(dict.fromkeys(name for row in rows for name in row.columns))
    fields: dict[str, tuple[pa.DataType, list[Any]]] = {
        "sample_id": (pa.string(), [_text(row.sample_id) for row in rows]),
        "group_id": (pa.string(), [_text(row.group_id) for row in rows]),
        "group_source": (pa.string(), [row.group_source for row in rows]),
        "prompt": (pa.large_string(), [_text(row.prompt) for row in rows]),
        "response": (pa.large_string(), [_text(row.response) for row in rows]),
        "prompt_ids": (pa.list_(pa.int32()), [row.prompt_ids for row in rows]),
        "response_ids": (pa.list_(pa.int32()), [row.response_ids for row in rows]),
        "loss_mask": (pa.list_(pa.bool_()), [row.loss_mask for row in rows]),
        "policy_version": (pa.int64(), [row.policy_version for row in rows]),
        "reward": (pa.float64(), [_finite(row.reward) for row in rows]),
        "rewards": (pa.map_(pa.string(), pa.float64()), [_map(row.rewards) for row in rows]),
        "advantage": (pa.float64(), [_finite(row.advantage) for row in rows]),
        "truncated": (pa.bool_(), [row.truncated for row in rows]),
        "extra": (pa.large_string(), [to_json(row.extra) if row.extra else None for row in rows]),
    }
    arrays = {name: pa.array(values, kind) for name, (kind, values) in fields.items()}
    arrays |= {_stored_as(name): _ragged([row.columns.get(name) for row in rows]) for name in names}
    return pa.table(arrays).replace_schema_metadata(_metadata(step))


def _ragged(values: Sequence[NDArray[np.float32] | None]) -> pa.ListArray:
    """Lists of numbers in which a missing one is null, as every reader of Parquet knows it."""
    offsets = np.cumsum([0, *(0 if one is None else len(one) for one in values)]).astype(np.int32)
    flat = np.concatenate([np.zeros(0, np.float32), *(np.asarray(one, np.float32) for one in values if one is not None)])
    absent = pa.array([one is None for one in values], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat, from_pandas=True), mask=absent)


def _metadata(step: Step) -> dict[bytes, bytes]:
    found = {_VERSION_KEY: str(SCHEMA_VERSION).encode(), _STEP_KEY: str(step.number).encode()}
    if step.algorithm is not None:
        found[_ALGORITHM_KEY] = to_json(step.algorithm.to_json()).encode()
    if step.problems:
        found[_PROBLEMS_KEY] = to_json([[p.kind, p.message, p.where] for p in step.problems]).encode()
    return found


def _line(number: int, one: Rollout) -> dict[str, Any]:
    fields = {name: getattr(one, name) for name in FIELDS if name != "step"}
    return {
        "schema_version": SCHEMA_VERSION,
        "step": number,
        **fields,
        "group_source": one.group_source,
        "extra": one.extra,
        **{_stored_as(name): values for name, values in one.columns.items()},
    }


def _stored_as(name: str) -> str:
    return name + _EACH if name + _EACH in _RENAMED else name


def _map(rewards: Mapping[str, float | None]) -> list[tuple[str, float | None]]:
    return [(HALF_PAIR.sub("\ufffd", name), _finite(value)) for name, value in rewards.items()]


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _text(value: str | None) -> str | None:
    return None if value is None else HALF_PAIR.sub("\ufffd", value)


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@reader("record")
def open_record(path: Path, options: ReadOptions) -> Run | None:
    """Open a recorded run: its folder, one step's file, or JSON lines.

    Raises:
        FormatError: a header that cannot be read, or one of a later schema.
    """
    if path.is_dir():
        return _open_folder(path) if (path / "record.json").is_file() else None
    if path.suffix == ".parquet" and path.is_file():
        return _open_step_file(path)
    if path.name == "record.json" and path.is_file():
        return _open_folder(path.parent)
    return _open_lines(path)


def _open_folder(folder: Path) -> Run:
    header = _header(folder / "record.json")
    files = {
        int(found[1]): file for file in (folder / "steps").glob("step_*.parquet") if (found := _STEP_FILE.fullmatch(file.name))
    }
    files = dict(sorted(files.items()))
    checkpoints = _checkpoints(folder / "checkpoints")
    said = header.get("notes")
    notes = tuple(str(note) for note in said) if isinstance(said, list) else ()
    trainer = header.get("trainer")
    return Run(
        path=folder,
        trainer="record",
        steps=tuple(files),
        read=partial(_read, files),
        checkpoints=checkpoints,
        algorithm=_algorithm(header.get("algorithm"), folder / "record.json"),
        tokenizer=_tokenizer(folder, header.get("tokenizer"), checkpoints),
        columns=_token_columns(files.values()),
        notes=(*([f"recorded from {trainer}"] if trainer else []), *notes),
    )


def _header(file: Path) -> Mapping[str, Any]:
    read = parse(file.read_bytes())
    header = None if isinstance(read, str) else read.value
    if not isinstance(header, Mapping):
        raise FormatError(f"{file} is no JSON object", wanted="the header of a recorded run")
    version = header.get("schema_version")
    if version != SCHEMA_VERSION:
        raise FormatError(f"{file} has schema_version {version!r}", wanted=str(SCHEMA_VERSION), do="update credit-inspector")
    return header


def _algorithm(data: Any, file: Path) -> Algorithm | None:
    if data is None:
        return None
    try:
        return Algorithm.from_json(data)
    except (CreditInspectorError, TypeError) as error:
        raise FormatError(f"{file} holds an algorithm that cannot be read: {error}") from error


def _checkpoints(folder: Path) -> tuple[CheckpointAt, ...]:
    found = [(re.fullmatch(r"step_(\d+)", inner.name), inner) for inner in folder.glob("step_*") if inner.is_dir()]
    return tuple(sorted((CheckpointAt(int(n[1]), inner) for n, inner in found if n), key=lambda at: at.step))


def _tokenizer(folder: Path, named: Any, checkpoints: Sequence[CheckpointAt]) -> Path | None:
    folders = [folder / named] if isinstance(named, str) else []
    folders += [folder / "tokenizer", folder, *(at.path for at in checkpoints)]
    return next((place for place in folders if _holds_tokenizer(place)), None)


def _holds_tokenizer(place: Path) -> bool:
    try:
        return place.is_file() or has_tokenizer(place)
    except (OSError, ValueError):  # a name that no file can have
        return False


def _token_columns(files: Iterable[Path]) -> tuple[str, ...]:
    """The token columns of the first step that can be read."""
    for file in files:
        try:
            with open_parquet(file) as opened:
                return _names(_mapping(opened.schema_arrow))
        except FormatError:
            continue
    return ()


def _mapping(schema: pa.Schema) -> dict[str, str]:
    lists = (field for field in schema if pa.types.is_list(field.type) or pa.types.is_large_list(field.type))
    return {field.name: field.name for field in lists if field.name not in _OWN and pa.types.is_floating(field.type.value_type)}


def _open_step_file(path: Path) -> Run | None:
    try:
        with open_parquet(path) as opened:
            metadata, schema = opened.schema_arrow.metadata or {}, opened.schema_arrow
    except FormatError:
        return None
    if _VERSION_KEY not in metadata:
        return None
    step = whole(metadata.get(_STEP_KEY, b"0").decode("utf-8", "replace")) or 0
    columns = _names(_mapping(schema))
    return Run(path=path, trainer="record", steps=(step,), read=partial(_read, {step: path}), columns=columns)


def _read(files: Mapping[int, Path], step: int) -> Step:
    if step not in files:
        raise no_step(step, files)
    with open_parquet(files[step]) as opened:
        try:
            table = opened.read()
        except (OSError, ValueError, pa.ArrowException) as error:
            raise FormatError(f"{files[step]} cannot be read: {error}") from error
    metadata = table.schema.metadata or {}
    rows = (Row(number, values) for number, values in enumerate(parquet_rows(table), 1))
    items: list[Item] = [*_stored_problems(metadata), *rows]
    found = _own_step(step, items, list(_mapping(table.schema)))
    stored = metadata.get(_ALGORITHM_KEY)
    algorithm = None if stored is None else _algorithm(_stored(stored), files[step])
    return Step(step, found.rollouts, tuple(dict.fromkeys(found.problems)), algorithm)


def _stored(raw: bytes) -> Any:
    read = parse(raw)
    return None if isinstance(read, str) else read.value


def _stored_problems(metadata: Mapping[bytes, bytes]) -> list[Problem]:
    stored = _stored(metadata.get(_PROBLEMS_KEY, b"[]"))
    return [Problem(*map(str, entry)) for entry in stored or [] if isinstance(entry, list) and len(entry) == 3]


# ── rows of ours ────────────────────────────────────────────────────────────────────────────────────────────────────


def _own_step(step: int, items: Iterable[Item], columns: Sequence[str]) -> Step:
    return read_step(step, items, _own_columns(columns), adjust=_restored)


def _own_columns(columns: Sequence[str]) -> Columns:
    return own_columns(*columns)


def _restored(one: Rollout) -> Rollout:
    """Put back what ``rollout`` does not know the names of."""
    extra = dict(one.extra)
    own = as_mapping(extra.pop("extra", None)) or {}
    source = extra.pop("group_source", None)
    extra.pop("schema_version", None)
    columns = {name.removesuffix(_EACH) if name in _RENAMED else name: v for name, v in one.columns.items()}
    if one.group_id is not None and source in ("same prompt", "contiguous"):
        one = replace(one, group_source=source)
    return replace(one, columns=columns, extra={**extra, **own})


def _open_lines(path: Path) -> Run | None:
    if kind(path) != "jsonl" or not path.is_file():
        return None
    rows = first_rows(path)
    if not rows or not all(_is_own(row) for row in rows):
        return None
    columns = tuple(dict.fromkeys(name for row in rows for name in row if _is_token_column(name, row[name])))
    table = JsonLines(path)
    steps = by_step(table, lambda row: whole(row.values.get("step")), default=0)
    read = read_indexed(table, steps, _own_columns(columns), adjust=_restored)
    return Run(path=path, trainer="record", steps=tuple(steps), read=read, columns=_names(columns))


def _is_own(row: Mapping[str, Any]) -> bool:
    """Ours and not another format with a ``schema_version``: lists of numbers have names of ours."""
    lists = [name for name, value in row.items() if isinstance(value, list) and name not in _OWN]
    return (
        row.get("schema_version") == SCHEMA_VERSION
        and "sample_id" in row
        and ("response" in row or "response_ids" in row)
        and all("/" in name for name in lists)
    )


def _is_token_column(name: str, value: Any) -> bool:
    return name not in _OWN and isinstance(value, list)


def _names(columns: Iterable[str]) -> tuple[str, ...]:
    return tuple(name.removesuffix(_EACH) if name in _RENAMED else name for name in columns)
