"""TRL's completions: ``completions/completions_{step:05d}.parquet`` in the output folder of GRPO or RLOO.

Written with ``log_completions=True`` at every ``logging_steps`` (seen in TRL 1.16.0): ``step``, ``prompt`` and
``completion`` (text, or a chat as a list of messages), a column for each reward function (NaN where it returned
None), columns from ``log_extra``, and ``advantage``, one number a response. There are no token ids,
log-probabilities, masks or group ids. TRL keeps a group's rows together, so groups are blocks of equal prompts.

One batch of responses may serve several optimizer steps (``steps_per_generation``, ``num_iterations``); TRL then
writes the same rows again at each of them. Such repeats are read once, at their first step, so that no response
counts twice.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path

import pyarrow as pa

from credit_inspector.errors import FormatError
from credit_inspector.rollout import CheckpointAt, Problem, Rollout, Run, Step
from credit_inspector.tokens import has_tokenizer
from credit_inspector.trainers import ReadOptions, reader
from credit_inspector.trainers._rollouts import Columns, by_prompt, no_step, prompt_key, read_indexed, read_step
from credit_inspector.trainers._rows import ParquetFile, Row, by_step, open_parquet, parquet_rows
from credit_inspector.trainers._values import whole

_FILE = re.compile(r"completions_(\d+)\.parquet")
_KNOWN = ("step", "prompt", "completion", "advantage")


@reader("trl")
def open_trl(path: Path, options: ReadOptions) -> Run | None:
    """Open an output folder, its ``completions`` folder, or one file.

    Raises:
        FormatError: none of the files can be read.
    """
    files = _files(path)
    if not files or not (schema := _schema(list(files.values()), path)):
        return None
    home = path.parent if path.name == "completions" else path
    checkpoints = _checkpoints(home)
    rewards, how = _reward_columns(schema, checkpoints)
    if path.is_file() and not _FILE.search(path.name):
        steps, read = _by_column(path, rewards)
        return Run(path=path, trainer="trl", steps=steps, read=read, notes=(how,))
    files, repeats = _once(files)
    return Run(
        path=path,
        trainer="trl",
        steps=tuple(files),
        read=partial(_read, files, rewards),
        checkpoints=checkpoints,
        tokenizer=_tokenizer(home, checkpoints),
        notes=tuple(note for note in (how, repeats) if note),
    )


def _files(path: Path) -> dict[int, Path]:
    if path.is_file() and path.suffix == ".parquet":
        found = _FILE.search(path.name)
        return {int(found[1]) if found else 0: path}
    folders = (path / "completions", path) if path.is_dir() else ()
    for folder in folders:
        numbers = {file: _FILE.fullmatch(file.name) for file in folder.glob("completions_*.parquet")}
        if files := {int(found[1]): file for file, found in numbers.items() if found}:
            return dict(sorted(files.items()))
    return {}


def _schema(files: Sequence[Path], path: Path) -> pa.Schema | None:
    """The columns of the first file that can be read, where they are TRL's."""
    for file in files:
        try:
            with open_parquet(file) as opened:
                schema = opened.schema_arrow
        except FormatError:
            continue
        return schema if all(name in schema.names for name in _KNOWN) else None
    if path.is_dir():
        raise FormatError(f"{path} holds {len(files)} completions files, none of which is readable Parquet")
    return None


def _checkpoints(home: Path) -> tuple[CheckpointAt, ...]:
    if not home.is_dir():
        return ()
    folders = {folder.name.removeprefix("checkpoint-"): folder for folder in home.glob("checkpoint-*")}
    numbered = sorted((int(name), folder) for name, folder in folders.items() if name.isdecimal() and folder.is_dir())
    return tuple(CheckpointAt(step, folder) for step, folder in numbered)


def _tokenizer(home: Path, checkpoints: Sequence[CheckpointAt]) -> Path | None:
    folders = [home, *(checkpoint.path for checkpoint in reversed(checkpoints))]
    return next((folder for folder in folders if has_tokenizer(folder)), None)


# ── which columns are rewards ───────────────────────────────────────────────────────────────────────────────────────


def _reward_columns(schema: pa.Schema, checkpoints: Sequence[CheckpointAt]) -> tuple[tuple[str, ...], str]:
    """Names of the reward functions' columns and, in a sentence, how they were told apart and summed.

    The metrics of a checkpoint name the reward functions (``rewards/<name>/mean``); without one every numeric column
    counts, also numbers that a reward function put there with ``log_extra``.
    """
    numeric = [field.name for field in schema if _is_numeric(field.type) and field.name not in _KNOWN]
    named = _logged_rewards(checkpoints)
    rewards = tuple(name for name in numeric if not named or name in named)
    if not rewards:
        return (), "no column holds a reward"
    found = "" if named else "; every numeric column is taken for a reward function's"
    if len(rewards) == 1:
        return rewards, f"reward is the column {rewards[0]}{found}"
    summed = f"reward is the plain sum of {', '.join(rewards)} (TRL writes no weights, its default is 1 each)"
    return rewards, summed + found


def _is_numeric(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def _logged_rewards(checkpoints: Sequence[CheckpointAt]) -> set[str]:
    for checkpoint in reversed(checkpoints):
        try:
            state = json.loads((checkpoint.path / "trainer_state.json").read_bytes())
            history = [entry for entry in state["log_history"] if isinstance(entry, dict)]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
        keys = {key for entry in history for key in entry}
        return {key[len("rewards/") : -len("/mean")] for key in keys if re.fullmatch("rewards/.+/mean", key)}
    return set()


# ── files that repeat ───────────────────────────────────────────────────────────────────────────────────────────────


_ALIKE = 256
"""Bytes by which files of the same rows may differ in size: the step is another number."""


def _size(file: Path) -> tuple[int, int] | None:
    """Rows and uncompressed bytes, which tell the content of most files apart without reading them.

    By row group and not by column: pyarrow ends the process where the sizes of a damaged file's columns are asked for.
    """
    try:
        with open_parquet(file) as opened:
            about = opened.metadata
            groups = [about.row_group(group).total_byte_size for group in range(about.num_row_groups)]
            return about.num_rows, sum(groups)
    except FormatError:
        return None


def _is_alike(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] == other[0] and abs(one[1] - other[1]) <= _ALIKE


def _once(files: Mapping[int, Path]) -> tuple[dict[int, Path], str]:
    """The files without those that repeat the one before them, and a sentence on it."""
    kept: dict[int, Path] = {}
    repeats: list[int] = []
    before: tuple[tuple[int, int], Path] | None = None
    for step, file in files.items():
        here = _size(file)
        if before and here and _is_alike(here, before[0]) and _same_rows(before[1], file):
            repeats.append(step)
            continue
        kept[step] = file
        before = (here, file) if here else None
    if not repeats:
        return kept, ""
    shown = ", ".join(map(str, repeats[:8])) + (" …" if len(repeats) > 8 else "")
    return kept, f"steps {shown} trained on the responses of the step before them again: read once, at the first"


def _same_rows(one: Path, other: Path) -> bool:
    try:
        first, second = (_table(file) for file in (one, other))
    except FormatError:
        return False
    names = [name for name in first.column_names if name != "step"]
    rest = [name for name in second.column_names if name != "step"]
    try:
        return names == rest and repr(first.select(names).to_pylist()) == repr(second.select(names).to_pylist())
    except UnicodeDecodeError:  # text that is no UTF-8: it is told of where the step is read
        return False


# ── one step ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _table(file: Path) -> pa.Table:
    with open_parquet(file) as opened:
        try:
            return opened.read()
        except (OSError, pa.ArrowException) as error:
            raise FormatError(f"{file} cannot be read: {error}") from error


def _columns(rewards: tuple[str, ...]) -> Columns:
    mapping = {"prompt": "prompt", "response": "completion", "advantage": "advantage", "step": "step"}
    return Columns(mapping=mapping, is_component=lambda name, _: name in rewards, numpy_text=False)


def _read(files: Mapping[int, Path], rewards: tuple[str, ...], step: int) -> Step:
    if step not in files:
        raise no_step(step, files)
    rows = [Row(place, values) for place, values in enumerate(parquet_rows(_table(files[step])), 1)]
    problems = _other_columns(rewards, rows)
    return read_step(step, [*problems, *rows], _columns(rewards), adjust=_sum_rewards, group=_blocks)


def _by_column(path: Path, rewards: tuple[str, ...]) -> tuple[tuple[int, ...], Callable[[int], Step]]:
    """Steps of a file whose name has no number, such as several files put together."""
    table = ParquetFile(path)
    steps = by_step(table, lambda row: whole(row.values["step"]), default=0)
    return tuple(steps), read_indexed(table, steps, _columns(rewards), adjust=_sum_rewards, group=_blocks)


def _other_columns(rewards: tuple[str, ...], rows: Sequence[Row]) -> list[Problem]:
    absent = [name for name in rewards if rows and name not in rows[0].values]
    return [Problem("missing-column", f"{name} is in other steps' files, not in this one") for name in absent]


def _sum_rewards(one: Rollout) -> Rollout:
    """The sum of what the reward functions gave, ``None`` where none gave a number; as TRL's ``nansum``."""
    given = [value for value in one.rewards.values() if value is not None]
    return replace(one, reward=math.fsum(given)) if given else one


def _blocks(rollouts: Sequence[Rollout]) -> tuple[Rollout, ...]:
    """Groups as blocks of equal prompts.

    All of TRL's groups have one size, so a longer block holds several groups of one prompt, which happens where a
    dataset repeats a prompt. Rows that alternate between prompts were not left in TRL's order: they are grouped by
    prompt alone.
    """
    blocks = [list(block) for _, block in groupby(rollouts, prompt_key)]
    size = math.gcd(*(len(block) for block in blocks))
    prompts = [prompt_key(block[0]) for block in blocks]
    if size == 1 and len(set(prompts)) < len(prompts):
        return by_prompt(rollouts)
    found = []
    seen: dict[str | None, int] = {}
    for block, key in zip(blocks, prompts, strict=True):
        for start in range(0, len(block), size if size > 1 else len(block)):
            seen[key] = seen.get(key, 0) + 1
            name = key if seen[key] == 1 else f"{key}#{seen[key]}"
            part = block[start : start + size] if size > 1 else block
            found += [replace(one, group_id=name, group_source="contiguous") for one in part]
    return tuple(found)
