"""miles' dumps: ``rollout_data/{rollout_id}.pt`` and ``train_data/{rollout_id}_{rank}.pt`` of ``--dump-details DIR``.

Read in miles at 31f1ca9 (August 2026). The samples are slime's; miles adds ``metadata`` to the rollout file, writes one train
file a rank (``cp_rank``, ``cp_size``, ``qkv_format`` say which slices of the responses it holds), and mirrors the rollout
file's token columns in ``dashboard_columns/rollout_{rollout_id}.parquet`` and chats in ``trajectory/{rollout_id}.jsonl``. The
last two are read too where they are all there is. Files of before July 2026 are slime's to the letter and are read as such,
unless one of these folders stands beside them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from credit_inspector.errors import FormatError
from credit_inspector.rollout import Problem, Run, Step
from credit_inspector.tokens import has_tokenizer
from credit_inspector.trainers import ReadOptions, reader
from credit_inspector.trainers._chats import is_chat, parted
from credit_inspector.trainers._rollouts import no_step
from credit_inspector.trainers._rows import JsonLines, ParquetFile, Row, first_rows, open_parquet
from credit_inspector.trainers._sglang_files import Files, find
from credit_inspector.trainers._sglang_samples import Sampled, assembled, columns, notes, read
from credit_inspector.trainers._sglang_train import Batch
from credit_inspector.trainers._values import whole

_TABLE = re.compile(r"rollout_(eval_)?(\d{1,12})\.parquet")
_LINES = re.compile(r"(eval_)?(\d{1,12})\.jsonl")
_TABLE_KEYS = frozenset({"sample_index", "response_length", "total_length", "tokens", "loss_mask", "rollout_log_probs"})
_LINE_KEYS = frozenset({"sample_index", "group_index", "status", "reward", "prompt", "messages"})


@reader("miles")
def open_miles(path: Path, options: ReadOptions) -> Run | None:
    """Open a dump folder, one of the folders in it, or one file.

    Raises:
        UsageError: on reading a rollout that is not there.
    """
    files = find(path)
    if files is None:
        return _open_beside(path)
    if not files.by_miles:
        return None
    tokenizer = files.root / "tokenizer"
    return Run(
        path=path,
        trainer="miles",
        steps=files.steps,
        read=partial(_read, files),
        tokenizer=tokenizer if has_tokenizer(tokenizer) else None,
        columns=columns(files),
        notes=notes(files),
    )


def _read(files: Files, step: int) -> Step:
    name = f"eval_{step}.jsonl" if files.only_evals else f"{step}.jsonl"
    chats = files.root / "trajectory" / name
    rows = JsonLines(chats).scan() if chats.is_file() else ()
    found = {whole(one.values.get("sample_index")): one.values.get("messages") for one in rows if isinstance(one, Row)}
    return read(files, step, {index: {"messages": messages} for index, messages in found.items() if is_chat(messages)})


# ── what stands beside the dumps ────────────────────────────────────────────────────────────────────────────────────


def _open_beside(path: Path) -> Run | None:
    tables = _numbered(path, "dashboard_columns", _TABLE, _is_table)
    lines = _numbered(path, "trajectory", _LINES, _is_lines)
    trained = {number for evaluation, number in {*tables, *lines} if not evaluation}
    steps = sorted(trained or {number for _, number in {*tables, *lines}})
    if not steps:
        return None
    return Run(
        path=path,
        trainer="miles",
        steps=tuple(steps),
        read=partial(_read_beside, tables, lines, not trained, tuple(steps)),
        columns=("logprob/rollout",) if tables else (),
        notes=tuple(_notes(bool(tables), bool(lines), not trained)),
    )


def _numbered(path: Path, folder: str, name: re.Pattern[str], is_one: Any) -> dict[tuple[bool, int], Path]:
    """Files by whether they are of an evaluation and by rollout; empty where the first ones are something else."""
    if path.is_file():
        files: Iterable[Path] = [path]
    else:
        files = sorted((path / folder).iterdir()) if (path / folder).is_dir() else path.glob("*") if path.is_dir() else ()
    matched = [(found, file) for file in files if (found := name.fullmatch(file.name))]
    if not any(is_one(file) for _, file in matched[:3]):
        return {}
    return {(found[1] is not None, int(found[2])): file for found, file in matched}


def _is_table(file: Path) -> bool:
    try:
        with open_parquet(file) as opened:
            return frozenset(opened.schema_arrow.names) == _TABLE_KEYS
    except FormatError:
        return False


def _is_lines(file: Path) -> bool:
    rows = first_rows(file, 5)
    return bool(rows) and all(frozenset(row) == _LINE_KEYS for row in rows)


def _read_beside(
    tables: Mapping[tuple[bool, int], Path],
    lines: Mapping[tuple[bool, int], Path],
    evaluation: bool,
    steps: tuple[int, ...],
    step: int,
) -> Step:
    if step not in steps:
        raise no_step(step, steps)
    table, chats = tables.get((evaluation, step)), lines.get((evaluation, step))
    problems: list[Problem] = []
    tokens = list(_values(ParquetFile(table).scan() if table else (), problems))
    told = {whole(one.get("sample_index")): one for one in _values(JsonLines(chats).scan() if chats else (), problems)}
    samples = [{**_chat(told.pop(whole(one.get("sample_index")), {})), **_token_row(one)} for one in tokens]
    samples += [_chat(one) for one in told.values()]
    sampled = [Sampled.of(place, one) for place, one in enumerate(samples)]
    size = sum(file.stat().st_size for file in (table, chats) if file) + 1_000_000
    return assembled(step, sampled, Batch(problems=problems), 20 * size, {}, newest=step)


def _values(items: Iterable[Row | Problem], problems: list[Problem]) -> Iterator[Mapping[str, Any]]:
    for item in items:
        if isinstance(item, Problem):
            problems.append(item)
        else:
            problems += item.problems
            yield item.values


def _token_row(values: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the token table as the sample it was made from."""
    kept = {key: values.get(key) for key in ("tokens", "response_length", "loss_mask", "rollout_log_probs")}
    return {"index": values.get("sample_index"), **kept}


def _chat(values: Mapping[str, Any]) -> dict[str, Any]:
    """A line of a trajectory as the sample it was made from."""
    if not values:
        return {}
    messages, prompt = values.get("messages"), values.get("prompt")
    kept = {key: values.get(key) for key in ("group_index", "status", "reward")}
    found = {"index": values.get("sample_index"), "prompt": prompt, **kept}
    if not is_chat(messages) or messages is None:
        return found
    begins = isinstance(prompt, list) and prompt and messages[: len(prompt)] == prompt
    parts = parted(messages, len(prompt) if begins and isinstance(prompt, list) else None)
    return {**found, "prompt": prompt or parts["prompt"], "response": parts["response"], "messages": messages}


def _notes(tables: bool, lines: bool, evaluation: bool) -> Iterator[str]:
    yield "steps are rollout ids, which count from 0"
    yield "this is what miles mirrors for its dashboard; rollout_data/*.pt holds more"
    if lines:
        yield "reward is the sample's number; a reward that is a mapping is not in these files"
        yield "response is the text of the messages after the prompt"
    else:
        yield "dashboard_columns has no reward, text or group: groups are equal prompts"
    if tables:
        yield "logprob/rollout is SGLang's (rollout_log_probs); the 0.0 that tool tokens are given counts as missing"
    if evaluation:
        yield "these are evaluation rollouts (eval), which were not trained on"
