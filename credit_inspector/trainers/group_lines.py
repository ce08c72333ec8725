"""Logs of one prompt group a line, as LSRL and other trainers in the manner of simple_GRPO write them.

LSRL's ``GenLogRecorder`` (``lsrl/lsrl.py`` at commit 29e933b, parameter ``genlog_filename``) writes ``{name}.jsonl`` beside a
``{name}.md``: ``iter``, ``Q`` (text or the dataset's row), and lists with one element a response: ``anss`` (text), ``rewards``
(each a mapping of the reward functions' values with their ``total``, or one number), ``lens`` (tokens), ``infos``. There are
no token ids, log-probs or advantages. Groups in which all rewards are equal are logged as well, also where
``skip_zero_groups`` keeps them from training.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from credit_inspector.rollout import Problem, Run, Step
from credit_inspector.trainers import ReadOptions, reader
from credit_inspector.trainers._rollouts import Columns, no_step, read_step
from credit_inspector.trainers._rows import Item, JsonLines, Places, Row, by_step, first_rows, kind
from credit_inspector.trainers._values import whole

_LISTS = {"rewards": "reward", "lens": "length", "infos": "info"}
"""Lists beside the answers, and what one element is called here."""
_OURS = ("sample_id", "group_id", "prompt", "response", "reward")
_COLUMNS = Columns(mapping={name: f"our {name}" for name in _OURS})
"""Under names that a row's own keys, such as ``answer``, cannot have."""


_GLANCED = 8
"""Files of a folder that are looked into to recognise it."""


@reader("group_lines")
def open_group_lines(path: Path, options: ReadOptions) -> Run | None:
    """Open one log, or a folder that holds one.

    Raises:
        UsageError: on reading a step that is not there.
    """
    file = _file(path)
    if file is None:
        return None
    table = JsonLines(file)
    steps = by_step(table, lambda row: whole(row.values.get("iter")), default=0)
    notes = (
        "a line is a group; a step is LSRL's iter, one generated batch, which may be trained in parts",
        "reward is the sum that LSRL calls total; no token ids, log-probs or advantages are written",
        "groups whose rewards are all equal are logged too, also where skip_zero_groups keeps them from training",
    )
    return Run(path=path, trainer="group_lines", steps=tuple(steps), read=partial(_read, table, steps), notes=notes)


def _file(path: Path) -> Path | None:
    if path.is_dir():
        tables = [file for file in sorted(path.iterdir()) if kind(file) == "jsonl"]
        found = [file for file in tables[:_GLANCED] if _is_log(file)]
        return found[0] if len(found) == 1 else None
    return path if _is_log(path) else None


def _is_log(file: Path) -> bool:
    rows = first_rows(file, 3) if kind(file) == "jsonl" and file.is_file() else []
    return bool(rows) and all(map(_is_group, rows))


def _is_group(row: Mapping[str, Any]) -> bool:
    answers = row.get("anss")
    return isinstance(answers, list) and "Q" in row and isinstance(row.get("rewards"), list)


def _read(table: JsonLines, steps: Mapping[int, Places], step: int) -> Step:
    if step not in steps:
        raise no_step(step, steps)
    return read_step(step, _items(steps[step].problems, table.at(steps[step])), _COLUMNS)


def _items(problems: Iterable[Item], rows: Iterable[Row]) -> Iterator[Item]:
    yield from problems
    for row in rows:
        if _is_group(row.values):
            yield from _responses(row)
        else:
            yield Problem("bad-line", f"line {row.number} is no group with anss and rewards, skipped")


def _responses(row: Row) -> Iterator[Item]:
    answers = row.values["anss"]
    lists = {name: row.values[name] for name in _LISTS if isinstance(row.values.get(name), list)}
    shared = {key: value for key, value in row.values.items() if key not in ("anss", "Q", *lists)}
    for name, values in lists.items():
        if len(values) != len(answers):
            yield Problem("length-mismatch", f"line {row.number}: {len(answers)} answers, {len(values)} of {name}")
    for place, answer in enumerate(answers):
        own = {_LISTS[name]: values[place] if place < len(values) else None for name, values in lists.items()}
        reward = own.pop("reward", None)
        ours = {"our sample_id": f"{row.number}.{place}", "our group_id": f"line {row.number}", "our prompt": row.values["Q"]}
        values = shared | own | ours | {"our response": answer, "our reward": reward}
        yield Row(row.number, values, row.problems if place == 0 else (), row.place)
