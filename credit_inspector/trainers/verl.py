"""verl's rollout dump: one JSON line a response, one file ``{global_step}.jsonl`` a step.

Written with ``trainer.rollout_data_dir=DIR`` (read in verl 0.10.0.dev, commit 1dda039). Keys: ``input``, ``output``
(decoded without special tokens, so role words stand in the text and stay there), ``score`` (the whole response's
reward before any KL penalty), ``gts``, ``step``, and whatever the reward function returned. The V1 trainer adds
``uid``, which names the prompt, the session and the output; V0 has none and shuffles rows, so groups are equal
prompts. There are no token ids and no log-probabilities in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from credit_inspector.rollout import Rollout, Run, Step
from credit_inspector.trainers import ReadOptions, reader
from credit_inspector.trainers._rollouts import Columns, no_step, read_indexed, read_step, stays_text
from credit_inspector.trainers._rows import JsonLines, by_step, first_rows
from credit_inspector.trainers._values import number, whole

_UID = re.compile(r"(?P<prompt>.+)_\d+_\d+")
_NO_NUMBERS, _NUMBERS = frozenset((str, list, dict)), frozenset((bool, int, float))
_TEXT_KEYS = frozenset({"gts", "step", "request_id"})


@reader("verl")
def open_verl(path: Path, options: ReadOptions) -> Run | None:
    """Open a dump folder, or one file of it.

    Raises:
        UsageError: on reading a step that is not there.
    """
    files = _files(path)
    first = next((rows for file in files.values() if (rows := first_rows(file, 5))), [])
    by_name = not path.is_file() or path.stem.isdecimal()
    if not first or not all(_is_verl(row) and (by_name or "step" in row) for row in first):
        return None
    columns = _columns(first[0])
    grouped = "verl's uid" if "group_id" in columns.mapping else "equal prompts: verl's V0 trainer writes no group id"
    notes = (f"groups are by {grouped}", "reward is verl's score, before any KL penalty")
    if by_name:
        by_file = partial(_read_file, files, columns)
        return Run(path=path, trainer="verl", steps=tuple(files), read=by_file, notes=notes)
    table = JsonLines(path)
    steps = by_step(table, lambda row: whole(row.values.get("step")), default=0)
    read = read_indexed(table, steps, columns, adjust=_prompt_group)
    return Run(path=path, trainer="verl", steps=tuple(steps), read=read, notes=notes)


def _files(path: Path) -> dict[int, Path]:
    """The dump's files by step; a file of any name counts when it was named by itself."""
    if path.is_file():
        return {int(path.stem) if path.stem.isdecimal() else 0: path} if path.suffix == ".jsonl" else {}
    found = path.glob("*.jsonl") if path.is_dir() else ()
    return dict(sorted((int(file.stem), file) for file in found if file.stem.isdecimal()))


def _is_verl(row: Mapping[str, Any]) -> bool:
    return all(isinstance(row.get(key), str) for key in ("input", "output")) and "score" in row


def _columns(row: Mapping[str, Any]) -> Columns:
    mapping = {"prompt": "input", "response": "output", "reward": "score", "step": "step"}
    if isinstance(row.get("uid"), str):
        mapping |= {"group_id": "uid", "sample_id": "uid"}
    elif "request_id" in row:
        mapping["sample_id"] = "request_id"
    return Columns(mapping=mapping, is_component=_is_component)


def _is_component(name: str, value: Any) -> bool:
    if type(value) in _NO_NUMBERS or name in _TEXT_KEYS or (value is None and stays_text(name)):
        return False
    return type(value) in _NUMBERS or number(value).state != "unreadable"


def _prompt_group(one: Rollout) -> Rollout:
    """``{prompt}_{session}_{output}`` → the prompt."""
    found = _UID.fullmatch(one.group_id or "")
    return replace(one, group_id=found["prompt"]) if found else one


def _read_file(files: Mapping[int, Path], columns: Columns, step: int) -> Step:
    if step not in files:
        raise no_step(step, files)
    return read_step(step, JsonLines(files[step]).scan(), columns, adjust=_prompt_group)
