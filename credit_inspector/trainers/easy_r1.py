r"""EasyR1's logged generations: ``{save_checkpoint_path}/generations.log``, blocks of text.

Written by ``FileGenerationLogger`` (``verl/utils/logger/gen_logger.py`` of EasyR1 at commit b44b311) with ``file`` among
``trainer.logger`` and ``trainer.val_generations_to_log`` above 0. One block a response::

    [prompt] {prompt}\n[output] {response}\n[ground_truth] {answer}\n[score] {score}\n\n

Releases before pull request 188 have no ``[ground_truth]``. These are **validation** responses, a fixed choice of them at each
validation; EasyR1 writes no training response. No step is written either: ``experiment_log.jsonl`` beside the file says at which
steps there was a validation, and where the blocks divide evenly among those, each gets its share.

The text is free and may hold the marks itself. A block in which a mark is missing or stands twice is skipped as a problem: to
guess would let a response write its own score.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from credit_inspector.errors import FormatError
from credit_inspector.rollout import CheckpointAt, Problem, Run, Step
from credit_inspector.trainers import ReadOptions, reader
from credit_inspector.trainers._rollouts import Columns, no_step, read_step
from credit_inspector.trainers._rows import Item, JsonLines, Row
from credit_inspector.trainers._values import number, whole

_NAME, _LOG = "generations.log", "experiment_log.jsonl"
_SUFFIXES = (".log", ".txt")
_BEGIN, _SCORE, _TRUTH = b"[prompt] ", b"[score] ", b"[ground_truth] "
_PROMPT, _OUTPUT, _GROUND_TRUTH, _SCORED = "[prompt] ", "\n[output] ", "\n[ground_truth] ", "\n[score] "
_OURS = ("sample_id", "prompt", "response", "reward")
_COLUMNS = Columns(mapping={name: name for name in _OURS}, numpy_text=False)
_NO_NUMBER = {"missing": math.nan, "infinite": math.inf}
_NOTES = (
    "these are validation responses, which no update used: EasyR1 writes no others",
    "groups are equal prompts: EasyR1 writes no group id",
    "reward is EasyR1's score, the sum of the response's token rewards; token ids and log-probs are not in the file",
)


@reader("easy_r1")
def open_easy_r1(path: Path, options: ReadOptions) -> Run | None:
    """Open a folder of checkpoints with its ``generations.log``, or such a file.

    Raises:
        FormatError: no block of the file can be read.
        UsageError: on reading a step that is not there.
    """
    file = path / _NAME if path.is_dir() else path
    if not _is_log(file):
        return None
    blocks = _index(file)
    if not blocks.truths and not any(isinstance(item, Row) for item in _read_blocks(blocks, range(len(blocks.begins)))):
        if file.name != _NAME:
            return None
        raise FormatError(f"{file} holds no block that can be read", wanted="[prompt], [output], [ground_truth], [score]")
    steps, how = _steps(file.parent, len(blocks.begins))
    return Run(
        path=path,
        trainer="easy_r1",
        steps=tuple(steps),
        read=partial(_read, blocks, steps),
        checkpoints=_checkpoints(file.parent),
        notes=(*_NOTES, how),
    )


def _is_log(file: Path) -> bool:
    if file.suffix.lower() not in _SUFFIXES or not file.is_file():
        return False
    try:
        with file.open("rb") as opened:
            return opened.read(len(_BEGIN)) == _BEGIN
    except OSError:
        return False


def _checkpoints(home: Path) -> tuple[CheckpointAt, ...]:
    folders = {folder.name.removeprefix("global_step_"): folder / "actor" for folder in home.glob("global_step_*")}
    numbered = sorted((int(name), actor) for name, actor in folders.items() if name.isdecimal() and actor.is_dir())
    return tuple(CheckpointAt(step, actor) for step, actor in numbered)


# ── where the blocks lie ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class _Blocks:
    """The blocks of a file, by where they begin."""

    file: Path
    begins: array[int] = field(default_factory=lambda: array("q"))
    size: int = 0
    truths: bool = False
    """Whether any block names a ground truth; then all must."""


def _index(file: Path) -> _Blocks:
    """One pass over the lines: a block begins at ``[prompt]`` after a score and an empty line."""
    found = _Blocks(file)
    complete = array("b")  # by block, whether it names a ground truth
    before = (_SCORE, b"\n")  # the file's beginning is a block's
    with file.open("rb") as lines:
        for line in lines:
            if line.startswith(_BEGIN) and before[0].startswith(_SCORE) and before[1] == b"\n":
                found.begins.append(found.size)
                complete.append(0)
            if complete:
                complete[-1] |= line.startswith(_TRUTH)
            found.size += len(line)
            before = (before[1], line[: len(_SCORE)])
    found.truths = any(complete)
    if found.truths:
        found.begins = _joined(found.begins, complete)
    return found


def _joined(begins: array[int], complete: array[int]) -> array[int]:
    """A block ends behind its ground truth: what begins before that was written by the response."""
    kept = begins[:1]
    ended = complete[0]
    for begin, has_truth in zip(begins[1:], complete[1:], strict=True):
        if ended:
            kept.append(begin)
            ended = 0
        ended |= has_truth
    return kept


def _steps(home: Path, count: int) -> tuple[dict[int, range], str]:
    """Which blocks belong to which validation, and a sentence on how that is known."""
    steps = _validations(home / _LOG)
    if steps and count % len(steps) == 0 and len(set(steps)) == len(steps):
        share = count // len(steps)
        found = {step: range(at * share, (at + 1) * share) for at, step in enumerate(steps)}
        how = f"steps are not in the file: its {count} blocks are shared out in order among the validations of {_LOG}"
        return dict(sorted(found.items())), how
    reason = f"the {len(steps)} validations of {_LOG} do not divide {count} blocks" if steps else f"no {_LOG} names validations"
    return {0: range(count)}, f"steps are not in the file and {reason}: all blocks are shown as step 0"


def _validations(log: Path) -> list[int]:
    """The steps at which EasyR1 validated, in order."""
    if not log.is_file():
        return []
    rows = (item.values for item in JsonLines(log).scan() if isinstance(item, Row))
    steps = (whole(row.get("step")) for row in rows if isinstance(row.get("val"), Mapping) and "reward_score" in row["val"])
    return [step for step in steps if step is not None]


# ── blocks → rows ───────────────────────────────────────────────────────────────────────────────────────────────────


def _read(blocks: _Blocks, steps: Mapping[int, range], step: int) -> Step:
    if step not in steps:
        raise no_step(step, steps)
    return read_step(step, _read_blocks(blocks, steps[step]), _COLUMNS)


def _read_blocks(blocks: _Blocks, wanted: Sequence[int]) -> Iterator[Item]:
    try:
        with blocks.file.open("rb") as file:
            for at in wanted:
                begin = blocks.begins[at]
                end = blocks.begins[at + 1] if at + 1 < len(blocks.begins) else blocks.size
                file.seek(begin)
                yield _item(file.read(end - begin), at + 1, begin, blocks)
    except OSError as error:
        yield Problem("torn-file", f"cannot be read: {error}", blocks.file.name)


def _item(raw: bytes, number: int, place: int, blocks: _Blocks) -> Item:
    name = blocks.file.name
    text = raw.decode("utf-8", "replace")
    values = _values(text, truths=blocks.truths)
    if isinstance(values, str):
        torn = not raw.endswith(b"\n\n")
        kind, what = ("torn-block", "breaks off") if torn else ("bad-block", values)
        return Problem(kind, f"block {number} {what}, skipped", name)
    decoded = Problem("invalid-utf8", f"block {number}: bytes that are no UTF-8 show as U+FFFD", name)
    problems = () if "\ufffd" not in text or raw.decode("utf-8", "ignore") == text else (decoded,)
    return Row(number, values | {"sample_id": str(number)}, problems, place)


def _values(text: str, *, truths: bool) -> dict[str, Any] | str:
    """A block's fields, or why it is none. Each mark stands in it once, in order."""
    marks = [_OUTPUT, *([_GROUND_TRUTH] if truths else []), _SCORED]
    body = "\n" + text
    if body.count("\n" + _PROMPT) != 1 or any(text.count(mark) != 1 for mark in marks):
        return "lacks a mark or has one twice"
    fields = []
    rest = text.removeprefix(_PROMPT)
    for mark in marks:
        before, found, rest = rest.partition(mark)
        if not found:
            return "has its marks in another order"
        fields.append(before)
    score = rest.rstrip("\n")
    read = number(score)
    if read.state == "unreadable" or "\n" in score:
        return "has no number as its score"
    named = dict(zip(("prompt", "response", "ground_truth"), fields, strict=False))
    return named | {"reward": _NO_NUMBER.get(read.state, read.value)}
