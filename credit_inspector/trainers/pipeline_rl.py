"""PipelineRL's streams of rollouts: ``streams/actor/{instance}/{partition}/{shard}.jsonl`` (``streams=files``).

Read in PipelineRL at commit 58d3934 (``streams.py``, ``rollouts.py``, ``actor.py``). One line is the list of all
``TrainingText`` of one prompt group: ``text``, ``n_predicted`` (characters of the response at its end), ``reward``,
``input_ids`` (prompt and response joined, no padding), ``labels`` (−100 outside the response), ``logprobs`` (the sampler's, for
the response's tokens alone), ``ref_logprobs`` (empty in this stream), ``group_id``, ``finished``, and ``metadata`` with
``model_version``, ``rollout_index`` and ``step_index``, the turn. ``actor_test`` holds validation. A file of
``save_samples``, one ``TrainingText`` a line, is read alike.

The actor runs ahead of the trainer and writes no optimizer step. A line's newest ``model_version`` stands for it; PipelineRL
counts versions in samples trained on. Each turn of a rollout is a text of its own and is compared with the same turn of the
group's other rollouts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from credit_inspector.rollout import Problem, Run, Step
from credit_inspector.trainers import ReadOptions, reader
from credit_inspector.trainers._joined import split
from credit_inspector.trainers._rollouts import Columns, mismatch, no_step, read_step
from credit_inspector.trainers._rows import (
    BROKEN,
    Item,
    Parsed,
    Places,
    Row,
    by_step,
    first_rows,
    kind,
    line_batches,
    open_bytes,
    parse,
)
from credit_inspector.trainers._values import flags, floats, whole

_TRAIN, _EVAL = "actor", "actor_test"
_KEYS = ("text", "n_predicted", "reward", "input_ids", "labels", "logprobs", "group_id")
_TEXTS = "texts"
_ROLLOUT, _REF = "logprob/rollout", "logprob/ref"
_LOGPROBS = {_ROLLOUT: "logprobs", _REF: "ref_logprobs"}
_OURS = ("sample_id", "group_id", "prompt", "response", "prompt_ids", "response_ids", "loss_mask", "reward", "truncated")
_COLUMNS = Columns(mapping={name: name for name in (*_OURS, *_LOGPROBS)}, numpy_text=False)
_TAKEN = ("text", "input_ids", "labels", *_LOGPROBS.values())
_GLANCE = 5
"""Lines that are tried to recognise a file."""

_Steps = Mapping[int, Sequence[tuple["_Stream", Places]]]


@reader("pipeline_rl")
def open_pipeline_rl(path: Path, options: ReadOptions) -> Run | None:
    """Open an experiment's folder, its ``streams`` or ``actor`` folder, or one file.

    Raises:
        UsageError: on reading a step that is not there.
    """
    files = _files(path)
    first = next((texts for file in files[:8] if (texts := _Stream(file).first())), None)
    if first is None:
        return None
    steps = _steps(files)
    evaluated = ("these are of the stream actor_test: validation, which no update used",) if _EVAL in files[0].parts else ()
    return Run(
        path=path,
        trainer="pipeline_rl",
        steps=tuple(steps),
        read=partial(_read, steps),
        columns=tuple(name for name, theirs in _LOGPROBS.items() if any(text.get(theirs) for text in first)),
        notes=(
            *evaluated,
            "a step is the newest model_version of a group: the actor writes no optimizer step, and versions count samples",
            "groups are PipelineRL's group_id; later turns of its rollouts are groups of their own, as in its advantages",
            "reward is the whole rollout's; advantages are not in this stream",
            "the log-probs are the sampler's, from which PipelineRL's ratio starts",
        ),
    )


def _files(path: Path) -> list[Path]:
    """The stream's files; training before validation."""
    if path.is_file():
        return [path] if kind(path) == "jsonl" else []
    if not path.is_dir():
        return []
    above = [*reversed(path.resolve().parts[-3:])]  # this folder's name, its parent's, and so on
    for topic in (_TRAIN, _EVAL):
        patterns = [f"streams/{topic}/*/*/*.jsonl", f"{topic}/*/*/*.jsonl"]
        patterns += ["*/" * (2 - depth) + "*.jsonl" for depth, name in enumerate(above) if name == topic]
        for pattern in patterns:
            if found := sorted(file for file in path.glob(pattern) if file.is_file()):
                return found
    return []


# ── lines that are lists ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class _Stream:
    """A file whose lines are lists of texts; a line is one row."""

    path: Path

    def scan(self) -> Iterator[Item]:
        """All lines, and a problem in place of each that holds no texts."""
        number = place = 0
        try:
            with open_bytes(self.path) as file:
                for raw in chain.from_iterable(line_batches(file)):
                    number += 1
                    item = self._item(raw, number, place)
                    place += len(raw)
                    if item is not None:
                        yield item
        except BROKEN as error:
            yield Problem("torn-file", f"breaks off after line {number}: {error}", self.path.name)

    def at(self, places: Places) -> Iterator[Row]:
        """The lines at these byte offsets; a compressed file is read through."""
        if self.path.suffix.lower() not in (".jsonl", ".ndjson"):
            wanted = set(places.numbers)
            yield from (item for item in self.scan() if isinstance(item, Row) and item.number in wanted)
            return
        with self.path.open("rb") as file:
            for number, place in zip(places.numbers, places.places, strict=True):
                file.seek(place)
                item = self._item(file.readline(), number, place)
                if isinstance(item, Row):
                    yield item

    def first(self) -> list[Any] | None:
        """The texts of the first line that can be read, where they are PipelineRL's."""
        try:
            with open_bytes(self.path) as file:
                listed = file.read(1) == b"["
        except BROKEN:
            return None
        if listed:
            rows = (item for item in islice(self.scan(), _GLANCE) if isinstance(item, Row))
            texts: list[Any] = next((row.values[_TEXTS] for row in rows), [])
        else:
            texts = list(first_rows(self.path, 1))
        return texts if texts and all(_is_text(text) for text in texts) else None

    def _item(self, raw: bytes, number: int, place: int) -> Item | None:
        if not raw.strip():
            return None
        read = parse(raw)
        value = read.value if isinstance(read, Parsed) else None
        texts = [value] if isinstance(value, Mapping) else value
        if isinstance(read, Parsed) and isinstance(texts, list) and all(isinstance(text, Mapping) for text in texts):
            notes = tuple(Problem(name, f"line {number}: {what}", self.path.name) for name, what in read.notes)
            return Row(number, {_TEXTS: texts}, notes, place)
        if not raw.endswith(b"\n"):
            return Problem("torn-line", f"line {number} incomplete ({len(raw)} bytes), skipped", self.path.name)
        what = "no list of texts" if isinstance(read, Parsed) else f"no JSON ({read})"
        return Problem("bad-line", f"line {number} is {what}, skipped", self.path.name)


def _is_text(text: Any) -> bool:
    return isinstance(text, Mapping) and all(key in text for key in _KEYS)


# ── one step ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _steps(files: Sequence[Path]) -> dict[int, list[tuple[_Stream, Places]]]:
    """Where each step's lines lie, over all files. A group is never parted, though its versions may differ."""
    found: dict[int, list[tuple[_Stream, Places]]] = {}
    for file in files:
        table = _Stream(file)
        for step, places in by_step(table, _newest, default=0).items():
            if places.numbers or places.problems:
                found.setdefault(step, []).append((table, places))
    return dict(sorted(found.items()))


def _newest(row: Row) -> int | None:
    versions = [version for text in row.values[_TEXTS] if (version := _of(text, "model_version")) is not None]
    return max(versions, default=None)


def _of(text: Mapping[str, Any], name: str) -> int | None:
    """A whole number of a text's metadata."""
    metadata = text.get("metadata")
    return whole(metadata.get(name)) if isinstance(metadata, Mapping) else None


def _read(steps: _Steps, step: int) -> Step:
    if step not in steps:
        raise no_step(step, steps)
    return read_step(step, _items(steps[step]), _COLUMNS)


def _items(parts: Iterable[tuple[_Stream, Places]]) -> Iterator[Item]:
    for table, places in parts:
        yield from places.problems
        for row in table.at(places):
            yield from _unfolded(row)


def _unfolded(row: Row) -> Iterator[Row]:
    """A line → one row for each of its texts."""
    for place, text in enumerate(row.values[_TEXTS]):
        values, problems = _values(text)
        yield Row(row.number, values, (*(row.problems if place == 0 else ()), *problems), row.place)


def _values(text: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    rest = {key: value for key, value in text.items() if key not in _TAKEN}
    tokens, problems = _tokens(text, where := _name(text) or "")
    prompt, response = _texts(text)
    turn = _of(text, "step_index") or 0
    group = text.get("group_id")
    finished = text.get("finished")
    named = {
        "sample_id": where or None,
        "group_id": group if group is None or not turn else f"{group}/turn-{turn}",
        "prompt": prompt,
        "response": response,
        "truncated": not finished if isinstance(finished, bool) else None,
    }
    return rest | named | tokens, problems


def _name(text: Mapping[str, Any]) -> str | None:
    """``{group}-{rollout}-{turn}``, where all three are there."""
    parts = (text.get("group_id"), _of(text, "rollout_index"), _of(text, "step_index"))
    return None if None in parts else "-".join(map(str, parts))


def _texts(text: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Prompt and response: the last ``n_predicted`` characters are the response."""
    whole_text, count = text.get("text"), whole(text.get("n_predicted"))
    if not isinstance(whole_text, str):
        return None, None
    if count is None or not 0 <= count <= len(whole_text):
        return None, whole_text
    cut = len(whole_text) - count
    return whole_text[:cut], whole_text[cut:]


def _tokens(text: Mapping[str, Any], where: str) -> tuple[dict[str, Any], list[Problem]]:
    """Ids, mask and log-probs of the response; ``{}`` for a text without ids."""
    ids, labels = text.get("input_ids"), text.get("labels")
    if not ids:
        return {}, []
    laid, problems = {}, []
    trained = flags(labels) if labels else None
    for name, theirs in _LOGPROBS.items():
        if not text.get(theirs):
            continue  # an empty list is how PipelineRL writes that there are none
        values = _laid(text[theirs], trained)
        if values is None:
            count = int(trained.sum()) if trained is not None else 0
            problems.append(Problem("length-mismatch", _misfit(text[theirs], count, name), where))
        else:
            laid[name] = values
    found, more = split(ids, labels or None, laid, where=where)
    return found, [*problems, *more]


def _laid(values: Any, trained: NDArray[np.bool_] | None) -> NDArray[np.float32] | None:
    """Values of the trained tokens alone → of the whole sequence; ``None`` where their number differs."""
    read = floats(values)
    if read is None or trained is None or len(read.values) != int(trained.sum()):
        return None
    laid = np.full(len(trained), np.nan, np.float32)
    laid[trained] = read.values
    return laid


def _misfit(values: Any, count: int, name: str) -> str:
    read = floats(values)
    return f"{name} is no list of numbers, left out" if read is None else mismatch(count, len(read.values), name)
