"""ms-swift's completions: ``{output_dir}/completions.jsonl``, written with ``--log_completions true``.

Read in ms-swift at commit 3602360. Three trainers write three shapes under this name:

* GRPO on Hugging Face (``rlhf_trainers/grpo_trainer.py``): one line a logging step, an object of lists: ``step`` (text),
  ``prompt`` (chat template applied), ``completion``, one list for each reward function, ``advantages``, then what was gathered
  besides (``solution``, ``num_turns``) and ``entropy``, each response's mean.
* GRPO on Megatron: the same with ``gen_step`` (numbers from 0) in place of ``step``.
* Ray with Megatron (``ray/megatron/base_trainer.py``): one line a response: ``gen_step``, ``prompt``, ``completion``, ``reward``.

The lists come from queues of one generation batch that are filled at different times, so one may be shorter; and while a batch
serves several optimizer steps, its rows are written again at each of them. Such repeats are read once, at their first step.
There are no token ids, masks, log-probabilities or group ids.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from credit_inspector.rollout import CheckpointAt, Problem, Run, Step
from credit_inspector.tokens import has_tokenizer
from credit_inspector.trainers import ReadOptions, reader
from credit_inspector.trainers._rollouts import Columns, no_step, read_step
from credit_inspector.trainers._rows import Item, JsonLines, Places, Row, by_step, first_rows, kind
from credit_inspector.trainers._values import number, whole

_NAME = "completions"
_STEPS = ("step", "gen_step")
_SAMPLE_KEYS = frozenset(("gen_step", "prompt", "completion", "reward"))
_REWARDS = "rewards"
_OURS = ("prompt", "response", "reward", _REWARDS, "advantage")
_COLUMNS = Columns(mapping={name: name for name in _OURS}, numpy_text=False)
_THEIRS = ("prompt", "completion", "advantages")


@reader("ms_swift")
def open_ms_swift(path: Path, options: ReadOptions) -> Run | None:
    """Open an output folder or its ``completions.jsonl``.

    Raises:
        UsageError: on reading a step that is not there.
    """
    file = _file(path)
    first = first_rows(file, 1) if file else []
    if file is None or not first or not (_is_table(first[0]) or _is_sample(first[0])):
        return None
    table = _Fresh(file)
    steps = by_step(table, lambda row: _step_of(row.values), default=0)
    steps = {step: places for step, places in steps.items() if places.numbers or places.problems}
    home = path if path.is_dir() else path.parent
    checkpoints = _checkpoints(home)
    return Run(
        path=path,
        trainer="ms_swift",
        steps=tuple(steps),
        read=partial(_read, table, steps),
        checkpoints=checkpoints,
        tokenizer=next((at.path for at in reversed(checkpoints) if has_tokenizer(at.path)), None),
        notes=_notes(first[0], table),
    )


def _file(path: Path) -> Path | None:
    """``completions.jsonl``, in a folder or itself, perhaps compressed or renamed (``completions_old.jsonl``)."""
    if path.is_file():
        return path if path.name.startswith(_NAME) and kind(path) == "jsonl" else None
    file = path / f"{_NAME}.jsonl"
    return file if file.is_file() else None


def _is_table(row: Mapping[str, Any]) -> bool:
    """A whole logging step; its lists are of text, and its steps of one kind."""
    steps = _step_list(row)
    lists = [row.get("prompt"), row.get("completion"), steps]
    return all(isinstance(one, list) for one in lists) and _are_text(row["completion"])


def _step_list(row: Mapping[str, Any]) -> Any:
    return next((row[name] for name in _STEPS if name in row), None)


def _are_text(values: Sequence[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _is_sample(row: Mapping[str, Any]) -> bool:
    return {"gen_step", "prompt", "completion"} <= set(row) <= _SAMPLE_KEYS and isinstance(row["completion"], str)


def _step_of(row: Mapping[str, Any]) -> int | None:
    value = _step_list(row)
    return whole(value[0] if isinstance(value, list) and value else value)


def _checkpoints(home: Path) -> tuple[CheckpointAt, ...]:
    folders = {folder.name.removeprefix("checkpoint-"): folder for folder in home.glob("checkpoint-*") if folder.is_dir()}
    return tuple(CheckpointAt(step, folder) for step, folder in sorted(_numbered(folders)))


def _numbered(folders: Mapping[str, Path]) -> Iterator[tuple[int, Path]]:
    return ((int(name), folder) for name, folder in folders.items() if name.isdecimal())


def _notes(row: Mapping[str, Any], table: _Fresh) -> tuple[str, ...]:
    validation: tuple[str, ...] = ()
    if _is_table(row):
        rewards = ", ".join(_reward_names(row))
        reward = (
            f"reward is the plain sum of {rewards} (ms-swift writes no weights, its default is 1 each)"
            if rewards
            else "no reward is in the file"
        )
        validation = ("validation responses, where a run logs them, stand in the same file and nothing marks them",)
    else:
        reward = "reward is ms-swift's unweighted sum over the reward functions"
    steps = "steps are generations, counted from 0" if "gen_step" in row else "a step is the optimizer step at logging"
    mean = ("entropy is each response's mean in the order of training, which need not be that of the rows",) * ("entropy" in row)
    groups = "groups are equal prompts: ms-swift writes no group id"
    return (groups, reward, steps, *validation, *mean, *table.note())


# ── lines that repeat ───────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class _Fresh:
    """The lines of a file without rows that the line before them begins with too."""

    path: Path
    skip: dict[int, int] = field(default_factory=dict)
    """By line, how many of its first rows are repeats."""
    repeats: list[int] = field(default_factory=list)
    """Steps of lines that hold nothing new."""

    def scan(self) -> Iterator[Item]:
        """All lines with something new; which rows of theirs are repeats is remembered."""
        before: list[tuple[Any, Any]] = []
        for item in JsonLines(self.path).scan():
            if isinstance(item, Problem) or not _is_table(item.values):
                yield item
                continue
            here = list(zip(item.values["prompt"], item.values["completion"], strict=False))
            seen = len(before) if before and here[: len(before)] == before else 0
            before = here
            if seen and seen == len(here):
                self.repeats.append(_step_of(item.values) or 0)
                continue
            if seen:
                self.skip[item.number] = seen
            yield item

    def at(self, places: Places) -> Iterator[Row]:
        """The lines at these places."""
        return JsonLines(self.path).at(places)

    def note(self) -> tuple[str, ...]:
        """A sentence on what was left out."""
        if not self.repeats:
            return ()
        shown = ", ".join(map(str, self.repeats[:8])) + (" …" if len(self.repeats) > 8 else "")
        return (f"steps {shown} trained on the responses of the step before them again: read once, at the first",)


# ── one step ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _read(table: _Fresh, steps: Mapping[int, Places], step: int) -> Step:
    if step not in steps:
        raise no_step(step, steps)
    return read_step(step, _items(table, steps[step]), _COLUMNS)


def _items(table: _Fresh, places: Places) -> Iterator[Item]:
    yield from places.problems
    for row in table.at(places):
        if _is_table(row.values):
            yield from _unfolded(row, table.skip.get(row.number, 0))
        elif isinstance(row.values.get("completion"), str):
            yield Row(row.number, _values(row.values), row.problems, row.place)
        else:
            yield Problem("bad-line", f"line {row.number} holds no completions, skipped", table.path.name)


def _unfolded(row: Row, skip: int) -> Iterator[Item]:
    """A line of lists → its responses from the first new one on."""
    count = len(row.values["completion"])
    fitting, problems = _fitting(row, count)
    rewards = _reward_names(row.values)
    for place in range(skip, count):
        values = {key: value[place] if isinstance(value, list) else value for key, value in fitting.items()}
        parts = {name: values.pop(name) for name in rewards if name in values}
        found = _values(values) | ({_REWARDS: parts, "reward": _sum(parts)} if parts else {})
        yield Row(row.number, found, (*row.problems, *problems) if place == skip else (), row.place)


def _fitting(row: Row, count: int) -> tuple[dict[str, Any], list[Problem]]:
    """The columns that have a value for each response; which response a shorter list belongs to is not known."""
    found, problems = {}, []
    for key, value in row.values.items():
        if isinstance(value, list) and len(value) != count:
            what = f"line {row.number}: {count} responses, {len(value)} values of {key}, left out"
            problems.append(Problem("unequal-lists", what))
        elif key not in _STEPS:
            found[key] = value
    return found, problems


def _reward_names(row: Mapping[str, Any]) -> list[str]:
    """The reward functions: ms-swift puts them between ``completion`` and ``advantages``."""
    names = list(row)
    if "advantages" not in names:
        return []
    between = names[names.index("completion") + 1 : names.index("advantages")]
    return [name for name in between if isinstance(row[name], list)]


def _values(row: Mapping[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in row.items() if key not in (*_THEIRS, *_OURS, *_STEPS)}
    ours = {"prompt": row.get("prompt"), "response": row.get("completion"), "advantage": row.get("advantages")}
    found = rest | {name: value for name, value in ours.items() if value is not None}
    return found | {name: row[name] for name in ("reward",) if name in row}


def _sum(parts: Mapping[str, Any]) -> float | None:
    """The sum of what the reward functions gave, ``None`` where none gave a number; as ms-swift's ``nansum``."""
    given = [value for part in parts.values() if (value := number(part).value) is not None]
    return math.fsum(given) if given else None
