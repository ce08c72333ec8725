"""Any table of rollouts: JSON lines, JSON, CSV or Parquet, plain or compressed, with a mapping of its columns.

``ReadOptions.mapping`` says which column holds what, in our names (``reward`` → ``score``); what it leaves out is
guessed from the spellings that trainers and home-grown scripts use, and the mapping in use stands in the run's notes.
``a.b`` names the value ``b`` inside column ``a``. A row may also hold a whole group or step as parallel lists (ROLL,
ms-swift, LSRL, Atropos): it is then read as one rollout for each response.

This reader comes last: without a mapping it takes nothing that another reader recognises.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from credit_inspector.errors import CreditInspectorError, FormatError, UsageError
from credit_inspector.rollout import Run, Step
from credit_inspector.trainers import ReadOptions, reader, readers
from credit_inspector.trainers._rollouts import FIELDS, Columns, look_up, no_step, read_step
from credit_inspector.trainers._rows import Item, Places, Row, Table, by_step, first_rows, kind, open_table
from credit_inspector.trainers._values import as_mapping, floats, number, whole

_SPELLINGS: Mapping[str, str] = {
    "response": (
        "response responses output outputs completion completions output_response model_response generation generated_text anss"
    ),
    "step": "step global_step training_step train_step gen_step iteration iter rollout_id",
    "sample_id": "sample_id sample_idx sample_index traj_id trajectory_id rollout_idx _ng_rollout_index uuid",
    "group_id": (
        "group_id group _ng_task_index uid prompt_id prompt_uid group_idx group_index prompt_idx prompt_index "
        "problem_id question_id example_id task_id"
    ),
    "prompt": "prompt prompts input input_prompt query question problem instruction q responses_create_params.input",
    "prompt_ids": "prompt_ids prompt_token_ids prompt_tokens",
    "response_ids": (
        "response_ids response_token_ids response_tokens completion_ids completion_token_ids "
        "completion_tokens output_ids output_token_ids generation_token_ids"
    ),
    "loss_mask": "loss_mask response_mask completion_mask action_mask",
    "reward": "reward score total_reward final_reward reward_score rewards scores return",
    "rewards": "reward_components reward_breakdown rewards scores",
    "advantage": "advantage advantages adv",
    "policy_version": "policy_version weight_version sampling_client_step head_version",
    "truncated": "truncated is_truncated finish_reason stop_reason",
    "logprob/old": "old_logprobs old_log_probs old_logprob old_log_prob old_logps old_per_token_logps prev_logprobs",
    "logprob/policy": "policy_logprobs policy_log_probs trainer_logprobs per_token_logps",
    "logprob/ref": "ref_logprobs ref_log_probs ref_logprob ref_log_prob ref_logps ref_per_token_logps",
    "logprob/rollout": (
        "rollout_logprobs rollout_log_probs sampling_logprobs sampling_per_token_logps generation_logprobs "
        "generation_log_probs inference_logprobs logprobs log_probs"
    ),
    "entropy/policy": "entropy entropys entropies",
    "value/old": "old_values values critic_values value_preds values_old old_value value",
    "reward/token": "token_level_rewards token_rewards per_token_rewards",
    "reward/token_score": "token_level_scores token_scores per_token_scores",
}
"""Columns as others spell them, the surest first. Bare ``logprobs`` are the sampler's wherever trainers write them."""

_COMPONENT = re.compile(r"(.*reward.*|.*score.*|acc|accuracy|correct|correctness|format.*|schema_valid)", re.IGNORECASE)
_STEP_IN_NAME = re.compile(r"(?:.*(?:step|iter|iteration|rollout|update|batch)s?[-_]?)?(\d{1,9})", re.IGNORECASE)
_ENDINGS = re.compile(r"(\.(jsonl|ndjson|json|csv|tsv|parquet|gz|bz2|xz|zst))+$", re.IGNORECASE)


@reader("mapped")
def open_mapped(path: Path, options: ReadOptions) -> Run | None:
    """Open a table, or a folder of tables of one kind.

    Raises:
        FormatError: the mapping names a column that is not there, or no row can be read.
        UsageError: the mapping gives something that is no name of ours.
    """
    _check_names(options.mapping)
    files = _files(path) or _json_files(path, options.mapping)
    if not files or not (options.mapping or all(map(_unclaimed, {path, files[0]}))):
        return None
    first = {file: rows for file in files if (rows := first_rows(file)) and _is_likely(rows, options, path)}
    if not first:
        return None
    rows = [row for rows in first.values() for row in rows]
    _check_columns(path, options.mapping, rows)
    _check_alike(path, {file: guess(rows, options.mapping) for file, rows in first.items()})
    mapping = guess(rows, options.mapping)
    steps = _steps([table for file in first if (table := open_table(file))], mapping)
    return Run(
        path=path,
        trainer="mapped",
        steps=tuple(steps),
        read=partial(_read, steps, mapping),
        columns=tuple(name for name in mapping if name not in FIELDS),
        notes=_notes(mapping, options.mapping),
    )


def _json_files(path: Path, mapping: Mapping[str, str]) -> list[Path]:
    """A folder's ``.json`` files that hold every column of a mapping: without one they are mostly configurations."""
    files = [file for file in sorted(path.iterdir()) if kind(file) == "json"] if mapping and path.is_dir() else []
    return [file for file in files if all(_holds(first_rows(file, 1), column) for column in mapping.values())]


def _holds(rows: Sequence[Mapping[str, Any]], column: str) -> bool:
    return any(column in row or look_up(row, column) is not None for row in rows)


def _files(path: Path) -> list[Path]:
    """The file, or a folder's tables of the kind that it has most of."""
    if path.is_file():
        return [path] if kind(path) else []
    found: dict[str, list[Path]] = {}
    for file in sorted(path.iterdir()) if path.is_dir() else ():
        if file.is_file() and (name := kind(file)) and name != "json":
            found.setdefault(name, []).append(file)
    return max(found.values(), key=len, default=[])


def _unclaimed(path: Path) -> bool:
    """Whether no other reader takes the path, or finds it to be its own and broken."""
    try:
        return all(name == "mapped" or readers[name](path, ReadOptions()) is None for name in readers)
    except CreditInspectorError:
        return False


# ── the mapping ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _is_likely(rows: Sequence[Mapping[str, Any]], options: ReadOptions, path: Path) -> bool:
    """Whether a file holds rollouts: responses, or at least rewards where the file itself was named."""
    found = guess(rows, options.mapping)
    wanted = {"response", "response_ids", *(("reward",) if path.is_file() else ()), *options.mapping}
    return any(name in found for name in wanted)


def _check_names(mapping: Mapping[str, str]) -> None:
    for name in mapping:
        if name not in FIELDS and "/" not in name:
            near = difflib.get_close_matches(name, (*FIELDS, *_SPELLINGS), n=2, cutoff=0.5)
            columns = "logprob/old, logprob/policy, logprob/ref, logprob/rollout, value/old, reward/token"
            known = f"known: {', '.join(FIELDS)}, {columns}"
            raise UsageError(f"--map {name}: no such name", do=f"did you mean {' or '.join(near)}?" if near else known)


def _check_columns(path: Path, given: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> None:
    for name, column in given.items():
        if not _holds(rows, column):
            there = ", ".join(dict.fromkeys(key for row in rows for key in row))
            raise FormatError(f"{path} has no column {column!r} for {name}", wanted=f"one of {there}", do="mend --map")


def _check_alike(path: Path, mappings: Mapping[Path, Mapping[str, str]]) -> None:
    """Refuse a folder of unlike tables; one that only lacks a column of the others is alike (columns come and go)."""
    seen: dict[str, tuple[str, Path]] = {}
    for file, mapping in mappings.items():
        for name, column in mapping.items():
            other, where = seen.setdefault(name, (column, file))
            if other != column:
                found = f"{path} holds unlike tables: {name} is {other} in {where.name}, {column} in {file.name}"
                raise FormatError(found, wanted="tables of one kind", do="open one of them")


def guess(rows: Sequence[Mapping[str, Any]], given: Mapping[str, str]) -> dict[str, str]:
    """The mapping for some first rows: what is given, then for each name the first spelling with fitting values."""
    columns = {_plain(name): name for row in reversed(rows) for name in row}
    columns |= {path: path for spellings in _SPELLINGS.values() for path in spellings.split() if "." in path}
    found = dict(given)
    parallel = any(_responses(row, found) is not None for row in rows)
    for name, spellings in _SPELLINGS.items():
        known = [columns[one] for one in spellings.split() if one in columns]
        free = [column for column in known if name not in found and column not in found.values()]
        fitting = (column for column in free if _fits(name, [look_up(row, column) for row in rows], parallel))
        if (column := next(fitting, None)) is not None:
            found[name] = column
        if name in ("response", "response_ids"):
            parallel = any(_responses(row, found) is not None for row in rows)
    own = [name for name in columns.values() if "/" in name and name not in found and name not in found.values()]
    return found | {name: name for name in own if _are(_is_numbers, [row.get(name) for row in rows])}


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace(" ", "_")


def _fits(name: str, values: Sequence[Any], parallel: bool) -> bool:
    """Whether a column's first values are of the kind that our name holds, or parallel lists of it."""
    test = _TESTS.get(name, _is_numbers)
    if name in ("response", "response_ids") or parallel:
        return _are(test, values) or _are(lambda value: isinstance(value, list) and _are(test, value), values)
    return _are(test, values)


def _are(test: Callable[[Any], bool], values: Iterable[Any]) -> bool:
    there = [value for value in values if value is not None]
    return bool(there) and all(test(value) for value in there)


def _is_text(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(key in value for key in ("content", "text", "output", "Q"))
    return isinstance(value, str) or (isinstance(value, list) and _are(lambda one: isinstance(one, Mapping), value))


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return number(value).state != "unreadable" or (isinstance(value, str) and len(value) < 20)


def _is_reward(value: Any) -> bool:
    return as_mapping(value) is not None or _is_number(value)


def _is_numbers(value: Any) -> bool:
    return floats(value) is not None


_TESTS: Mapping[str, Callable[[Any], bool]] = {
    "step": lambda value: whole(value) is not None,
    "sample_id": _is_scalar,
    "group_id": _is_scalar,
    "prompt": _is_text,
    "response": _is_text,
    "reward": _is_reward,
    "rewards": lambda value: as_mapping(value) is not None,
    "advantage": lambda value: _is_number(value) or _is_numbers(value),
    "policy_version": lambda value: whole(value) is not None,
    "truncated": lambda value: isinstance(value, bool | str),
}


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────────


_Steps = Mapping[int, Sequence[tuple[Table, Places]]]


def _steps(tables: Sequence[Table], mapping: Mapping[str, str]) -> dict[int, list[tuple[Table, Places]]]:
    """Where each step's rows lie, over all files."""

    def step_of(row: Row) -> int | None:
        value = look_up(row.values, mapping.get("step"))
        return whole(value[0] if isinstance(value, list) and value else value)

    found: dict[int, list[tuple[Table, Places]]] = {}
    for table in tables:
        in_name = None if "step" in mapping else _STEP_IN_NAME.fullmatch(_ENDINGS.sub("", table.path.name))
        for step, places in by_step(table, step_of, int(in_name[1]) if in_name else 0).items():
            found.setdefault(step, []).append((table, places))
    return dict(sorted(found.items()))


def _read(steps: _Steps, mapping: Mapping[str, str], step: int) -> Step:
    if step not in steps:
        raise no_step(step, steps)
    kinds = {kind(table.path) for table, _ in steps[step]}
    columns = Columns(mapping=mapping, is_component=_is_component, numpy_text="parquet" not in kinds)
    return read_step(step, _items(steps[step], mapping), columns, count_converted="csv" not in kinds)


def _is_component(name: str, value: Any) -> bool:
    readable = not isinstance(value, str | list) and number(value).state != "unreadable"
    return readable and bool(_COMPONENT.fullmatch(name))


def _items(parts: Sequence[tuple[Table, Places]], mapping: Mapping[str, str]) -> Iterator[Item]:
    for table, places in parts:
        yield from places.problems
        for row in table.at(places):
            yield from _unfolded(row, mapping)


def _unfolded(row: Row, mapping: Mapping[str, str]) -> Iterator[Row]:
    """A row of parallel lists → one row for each response; other rows as they are."""
    count = _responses(row.values, mapping)
    if count is None:
        yield row
        return
    for place in range(count):
        values = {key: value[place] if _is_parallel(value, count) else value for key, value in row.values.items()}
        yield Row(row.number, values, row.problems if place == 0 else (), row.place)


def _responses(values: Mapping[str, Any], mapping: Mapping[str, str]) -> int | None:
    """How many responses a row of parallel lists holds; ``None`` for a row of one response."""
    texts = look_up(values, mapping.get("response"))
    if isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts):
        return len(texts)
    ids = look_up(values, mapping.get("response_ids"))
    if isinstance(ids, list) and ids and all(isinstance(one, list | np.ndarray) for one in ids):
        return len(ids)
    return None


def _is_parallel(value: Any, count: int) -> bool:
    chat = isinstance(value, list) and all(isinstance(one, Mapping) and "role" in one for one in value)
    return isinstance(value, list | np.ndarray) and len(value) == count and not chat


def _notes(mapping: Mapping[str, str], given: Mapping[str, str]) -> tuple[str, ...]:
    notes = ["mapping: " + ", ".join(f"{name}={column}" for name, column in mapping.items())]
    if guessed := [name for name in mapping if name not in given]:
        notes.append(f"guessed from the columns' names: {', '.join(guessed)}; change one with --map NAME=COLUMN")
    if "step" not in mapping:
        notes.append("no column holds the step: it is the number in the file's name, or else 0")
    return tuple(notes)
