"""Rows → rollouts, for every reader whose rows name one response each.

A reader says which of the file's columns hold what (``Columns``); here the values are read, checked against the
tokens they belong to, counted where something is missing, and the rows put into prompt groups.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from credit_inspector.errors import UsageError
from credit_inspector.rollout import GroupSource, Problem, Rollout, Step
from credit_inspector.trainers._rows import Item, Places, Row, Table
from credit_inspector.trainers._values import (
    Floats,
    as_mapping,
    cut_off,
    flags,
    floats,
    from_numpy_text,
    integers,
    number,
    text,
    whole,
)

FIELDS = (
    "step",
    "sample_id",
    "group_id",
    "prompt",
    "response",
    "prompt_ids",
    "response_ids",
    "loss_mask",
    "reward",
    "rewards",
    "advantage",
    "policy_version",
    "truncated",
)
"""The names under which a row's own values are known; every other name is a token column."""

_STAYS_TEXT = re.compile(
    r"(gts?|gold.*|ground_?truth.*|.*answer.*|labels?|solution.*|target.*|reference.*|pred.*|expected.*|.*_?u?id"
    r"|.*text.*|feedback|.*name|.*source|content|question|problem|input|output|prompt|response|completion|query)",
    re.IGNORECASE,
)
"""Columns that are text by meaning: a gold answer ``007`` is no number."""


@lru_cache(maxsize=4096)
def stays_text(column: str) -> bool:
    """Whether a column is text by meaning: a gold answer, a label, an id."""
    return _STAYS_TEXT.fullmatch(column) is not None


_TOTALS = ("total", "reward", "score", "overall", "final")


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """What a file's columns hold."""

    mapping: Mapping[str, str]
    """Our names → the file's, for ``FIELDS`` and token columns. ``a.b`` is the value ``b`` inside column ``a``."""
    is_component: Callable[[str, Any], bool] = lambda name, value: False
    """Whether a column outside the mapping is a reward function's value."""
    numpy_text: bool = True
    """Whether text in other columns may stand for a number (JSON written with ``default=str``)."""
    claimed: frozenset[str] = field(init=False)
    """The file's columns that the mapping uses."""
    token_columns: tuple[str, ...] = field(init=False)
    """Names of the mapping whose values may be lists, one value a token."""

    def __post_init__(self) -> None:
        names = self.mapping.values()
        claimed = frozenset(names) | frozenset(name.partition(".")[0] for name in names)
        tokens = tuple(name for name in self.mapping if name not in FIELDS or name == "advantage")
        object.__setattr__(self, "claimed", claimed)
        object.__setattr__(self, "token_columns", tokens)


def own_columns(*token_columns: str, without: Collection[str] = (), prefix: str = "") -> Columns:
    """The columns of rows that a reader has already put under this project's names.

    Args:
        token_columns: names of columns with a value a token; ``FIELDS`` are always meant.
        without: names that the format does not have, so that their absence is not counted.
        prefix: stands before each name in a row, where the file's own keys may be the same words.
    """
    names = (name for name in dict.fromkeys((*FIELDS, *token_columns)) if name not in without)
    return Columns(mapping={name: prefix + name for name in names}, numpy_text=False)


class Tally:
    """Counts what is wrong while the rows of one step are read."""

    def __init__(self, *, count_converted: bool = True) -> None:
        self._found: list[Problem] = []
        self._states: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._converted: Counter[int] = Counter()
        self._count_converted = count_converted

    def add(self, kind: str, message: str, where: str = "") -> None:
        """One thing that was wrong."""
        self._found.append(Problem(kind, message, where))

    def extend(self, problems: Iterable[Problem]) -> None:
        """Things that others found."""
        self._found.extend(problems)

    def converted(self, row: Row) -> None:
        """A value that stood there as text."""
        self._converted[row.number] += self._count_converted

    def count(self, name: str, **states: int) -> None:
        """How many values of a column were ``finite``, ``missing``, ``infinite`` or ``unreadable``."""
        self._states[name].update(states)

    def finite(self, name: str) -> None:
        """One value that was as it should be."""
        self._states[name]["finite"] += 1

    def number(self, name: str, value: Any, row: Row) -> float | None:
        """Read a number and count how that went."""
        read = number(value)
        self._states[name][read.state] += 1
        if read.converted:
            self.converted(row)
        return read.value

    def problems(self) -> tuple[Problem, ...]:
        """All of it, counts in one sentence each."""
        return (*self._found, *self._missing(), *self._text())

    def _missing(self) -> Iterable[Problem]:
        for name, states in self._states.items():
            if name == "advantage" and states["missing"] == states.total():
                continue  # a trainer that stores none for any response lacks nothing
            parts = [f"{states[state]} {state}" for state in ("missing", "infinite", "unreadable") if states[state]]
            if parts:
                yield Problem("missing-values", f"{name}: {', '.join(parts)} of {states.total()} values")

    def _text(self) -> Iterable[Problem]:
        lines = [(line, count) for line, count in self._converted.items() if count]
        if lines:
            shown = ", ".join(_fields(count, line, i == 0) for i, (line, count) in enumerate(lines[:3]))
            rest = f" and in {len(lines) - 3} more lines" if len(lines) > 3 else ""
            yield Problem("text-converted", f"text converted: {shown}{rest}")


def _fields(count: int, line: int, first: bool) -> str:
    return f"{count} field{'s' if count > 1 else ''} in line {line}" if first else f"{count} in line {line}"


# ── one row ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def look_up(values: Mapping[str, Any], name: str | None) -> Any:
    """A row's value: the column of that name, else of ``a.b`` the value ``b`` inside ``a``; else ``None``."""
    if name is None or name in values:
        return None if name is None else values[name]
    head, dot, rest = name.partition(".")
    inner = values.get(head) if dot else None
    return look_up(inner, rest) if isinstance(inner, Mapping) else None


@dataclass(slots=True)
class _Reader:
    """One row on its way to a rollout."""

    row: Row
    place: int
    columns: Columns
    tally: Tally
    rewards: dict[str, float | None] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    def get(self, name: str) -> Any:
        column = self.columns.mapping.get(name)
        return None if column is None else look_up(self.row.values, column)

    def identity(self, name: str) -> str | None:
        value = self.get(name)
        nothing = value is None or value == "" or (isinstance(value, float) and math.isnan(value))
        return None if nothing else str(value)

    def ids(self, name: str) -> NDArray[np.int32] | None:
        value = self.get(name)
        read = None if value is None else integers(value)
        if read is None and value is not None:
            self.tally.add("bad-ids", f"{name} is no list of token ids, left out", self.where)
        return read

    @property
    def where(self) -> str:
        return self.identity("sample_id") or str(self.place)

    def reward(self) -> float | None:
        """The scalar; components of a mapping go to ``rewards``, a list per token or turn is summed."""
        if "reward" not in self.columns.mapping:
            return None
        value = self.get("reward")
        if (components := as_mapping(value)) is not None:
            return self._from_components(components)
        read = floats(value) if isinstance(value, list | np.ndarray) and len(value) > 1 else None
        if read is not None and np.isfinite(read.values).any():
            value = float(np.nansum(read.values.astype(np.float64)))
        return self.tally.number("reward", value, self.row)

    def _from_components(self, value: Mapping[str, Any]) -> float | None:
        total = next((key for key in _TOTALS if key in value and not isinstance(value[key], Mapping)), None)
        weighted = {key: _weighted(part) for key, part in value.items() if key != total}
        self.components({key: part for key, (part, _) in weighted.items()})
        if total is not None:
            return self.tally.number("reward", value[total], self.row)
        scored = [(self.rewards[key], weight) for key, (_, weight) in weighted.items() if self.rewards.get(key) is not None]
        summed = sum(part * weight for part, weight in scored if part is not None) if scored else None
        return self.tally.number("reward", summed, self.row)

    def components(self, found: Mapping[str, Any]) -> None:
        """Put reward functions' own values in; what is neither number nor missing is ``extra``."""
        for key, value in found.items():
            if number(value).state == "unreadable":
                self.extra[key] = value
            else:
                self.rewards[key] = self.tally.number(key, value, self.row)

    def rest(self) -> None:
        """Sort what no name of ours claims."""
        for key, value in self.row.values.items():
            if key in self.columns.claimed:
                continue
            plain = self.unquoted(key, value)
            if self.columns.is_component(key, plain):
                self.rewards[key] = self.tally.number(key, plain, self.row)
            else:
                self.extra[key] = plain

    def unquoted(self, key: str, value: Any) -> Any:
        """A value without the quotes that ``default=str`` put around it."""
        if not self.columns.numpy_text or not isinstance(value, str) or stays_text(key):
            return value
        plain = from_numpy_text(value)
        if plain is not value:
            self.tally.converted(self.row)
        return plain

    def texts(self) -> dict[str, str | None]:
        """Prompt and response; a chat is kept in ``extra`` as it was, since text alone does not say who spoke."""
        found = {}
        for name in ("prompt", "response"):
            value = self.get(name)
            found[name] = text(value)
            if value is not None and not isinstance(value, str):
                self.extra[name] = value
        return found


def _weighted(part: Any) -> tuple[Any, float]:
    """A component's value and weight; verifiers writes ``{"score": …, "weight": …}``."""
    if isinstance(part, Mapping) and "score" in part:
        weight = number(part.get("weight", 1.0)).value
        return part["score"], 1.0 if weight is None else weight
    return part, 1.0


def rollout(row: Row, place: int, columns: Columns, tally: Tally) -> Rollout:
    """Read one row; its place among the step's rows is its name where the file gives none."""
    reader = _Reader(row, place, columns, tally)
    ids = reader.ids("response_ids")
    mask, token_columns = _per_token(reader, None if ids is None else len(ids))
    reward = reader.reward()
    if (components := as_mapping(reader.get("rewards"))) is not None:
        reader.components(components)
    reader.rest()
    group = reader.identity("group_id")
    return Rollout(
        sample_id=reader.where,
        group_id=group,
        group_source="none" if group is None else "given",
        prompt_ids=reader.ids("prompt_ids"),
        response_ids=ids,
        loss_mask=mask,
        columns=token_columns,
        reward=reward,
        advantage=_advantage(reader),
        policy_version=whole(reader.get("policy_version")),
        truncated=cut_off(reader.get("truncated")),
        **reader.texts(),
        rewards=reader.rewards,
        extra=reader.extra,
    )


def _advantage(reader: _Reader) -> float | None:
    if "advantage" not in reader.columns.mapping or _is_list(reader.get("advantage")):
        return None
    return reader.tally.number("advantage", reader.get("advantage"), reader.row)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple | np.ndarray)


def _per_token(reader: _Reader, length: int | None) -> tuple[NDArray[np.bool_] | None, dict[str, NDArray[np.float32]]]:
    """The mask and the token columns that fit the tokens; without tokens all of them, to be checked once there are."""
    mask = _mask(reader, length)
    found: dict[str, NDArray[np.float32]] = {}
    for name in reader.columns.token_columns:
        value = reader.get(name)
        if value is None or (name == "advantage" and not _is_list(value)):
            continue
        read = floats(value)
        if read is None:
            reader.tally.add("bad-column", f"{name} is no list of numbers, left out", reader.where)
        elif length is not None and len(read.values) != length:
            reader.tally.add("length-mismatch", mismatch(length, len(read.values), name), reader.where)
        else:
            found[name] = read.values
            _count_missing(reader.tally, name, read, mask)
    return mask, found


def _mask(reader: _Reader, length: int | None) -> NDArray[np.bool_] | None:
    value = reader.get("loss_mask")
    mask = None if value is None else flags(value)
    if mask is None and value is not None:
        reader.tally.add("bad-column", "loss_mask is no list of truth values, left out", reader.where)
    if mask is not None and length is not None and len(mask) != length:
        said = f"{mismatch(length, len(mask), 'loss_mask')}: which are trained is not known, so none counts as trained"
        reader.tally.add("length-mismatch", said, reader.where)
        return np.zeros(length, np.bool_)
    return mask


def _count_missing(tally: Tally, name: str, read: Floats, mask: NDArray[np.bool_] | None) -> None:
    """Count over trained tokens only: that a masked token has no value is right."""
    trained = read.values if mask is None or len(mask) != len(read.values) else read.values[mask]
    absent = int(np.isnan(trained).sum())
    infinite = min(read.infinite, absent)
    unreadable = min(read.unreadable, absent - infinite)
    missing = absent - infinite - unreadable
    tally.count(name, finite=len(trained) - absent, missing=missing, infinite=infinite, unreadable=unreadable)


def mismatch(tokens: int, values: int, name: str) -> str:
    """``5 tokens, 6 log-probs``."""
    return f"{tokens} {'token' if tokens == 1 else 'tokens'}, {values} {noun(name, values)}"


def noun(name: str, count: int) -> str:
    """What one calls the values of a column."""
    many = "" if count == 1 else "s"
    if name.startswith("logprob/"):
        return f"log-prob{many}"
    return f"mask value{many}" if name == "loss_mask" else f"value{many} of {name}"


@dataclass(slots=True)
class _Quick:
    """The short way for rows of plain text with a plain reward, which most of a text dump is.

    It gives what ``rollout`` gives, or ``None`` where a row needs that longer way.
    """

    columns: Columns
    tally: Tally
    by_prompt: bool
    """Whether groups are equal prompts, the rows having no ids of groups."""
    prompts: dict[str, str | None] = field(default_factory=dict)
    _names: tuple[str, ...] = field(init=False)

    @property
    def fits(self) -> bool:
        """Whether the file's columns are such that it may be tried."""
        mapping = self.columns.mapping
        return mapping.keys() <= _QUICK and mapping.keys() >= {"prompt", "response", "reward"}

    def __post_init__(self) -> None:
        named = self.columns.mapping.get
        self._names = tuple(named(name, _NOWHERE) for name in ("prompt", "response", "reward", "sample_id", "group_id"))

    def rollout(self, row: Row, place: int) -> Rollout | None:
        """Read one row."""
        get = row.values.get
        prompt, response, reward, name, group = [get(column) for column in self._names]
        value = _plain(reward)
        if type(prompt) is not str or type(response) is not str or value is None:
            return None
        rest = self._rest(row.values)
        if rest is None or type(name) not in _NAMING or type(group) not in _NAMING:
            return None
        rewards, extra = rest
        self.tally.finite("reward")
        for key in rewards:
            self.tally.finite(key)
        source: GroupSource = "given" if group else "none"
        if self.by_prompt:
            group = self._prompt(prompt)
            source = "same prompt"
        return Rollout(
            sample_id=name or str(place),
            group_id=group or None,
            group_source=source,
            prompt=prompt,
            response=response,
            reward=value,
            rewards=rewards,
            extra=extra,
        )

    def _prompt(self, prompt: str) -> str | None:
        key = self.prompts.get(prompt)
        if key is None:
            key = self.prompts[prompt] = prompt_key(Rollout(sample_id="", prompt=prompt))
        return key

    def _rest(self, values: Mapping[str, Any]) -> tuple[dict[str, float | None], dict[str, Any]] | None:
        columns = self.columns
        claimed, is_component = columns.claimed, columns.is_component
        rewards: dict[str, float | None] = {}
        extra: dict[str, Any] = {}
        for key, value in values.items():
            if key in claimed:
                continue
            if type(value) is str and columns.numpy_text and not stays_text(key):
                return None
            if not is_component(key, value):
                extra[key] = value
            elif (plain := _plain(value)) is not None:
                rewards[key] = plain
            else:
                return None
        return rewards, extra


_NOWHERE = "\0"
"""No column's name."""
_NAMING = frozenset((str, type(None)))
_QUICK = frozenset({"step", "sample_id", "group_id", "prompt", "response", "reward"})


def _plain(value: Any) -> float | None:
    """A number that needs no reading; ``None`` for everything else."""
    kind = type(value)
    if kind is float:
        return value if math.isfinite(value) else None
    return float(value) if kind is bool or (kind is int and abs(value) < 2**53) else None


# ── the rows of one step ────────────────────────────────────────────────────────────────────────────────────────────


Grouping = Callable[[Sequence[Rollout]], tuple[Rollout, ...]]


def read_step(
    number: int,
    items: Iterable[Item],
    columns: Columns,
    *,
    adjust: Callable[[Rollout], Rollout] = lambda one: one,
    group: Grouping | None = None,
    count_converted: bool = True,
) -> Step:
    """Read the rows of one step.

    Args:
        number: the step.
        items: its rows, and problems found with them.
        columns: what they hold.
        adjust: a trainer's last word on each rollout.
        group: puts rollouts into prompt groups; by default by given id, else by equal prompts.
        count_converted: whether text in place of numbers is worth a word (a CSV file holds nothing else).
    """
    tally = Tally(count_converted=count_converted)
    found: list[Rollout] = []
    quick = _Quick(columns, tally, by_prompt=group is None and "group_id" not in columns.mapping)
    may_be_quick = quick.fits
    for item in items:
        if isinstance(item, Problem):
            tally.extend([item])
            continue
        if item.problems:
            tally.extend(item.problems)
        try:
            one = quick.rollout(item, len(found)) if may_be_quick else None
            found.append(adjust(one or rollout(item, len(found), columns, tally)))
        except RecursionError:
            tally.add("bad-line", f"line {item.number} is nested too deeply, skipped")
    _count_absent(found, tally)
    rollouts = (group or by_prompt)(named(_without_loose(found, tally)))
    return Step(number, rollouts, tally.problems())


def read_indexed(table: Table, steps: Mapping[int, Places], columns: Columns, **how: Any) -> Callable[[int], Step]:
    """The reader of one step of a table that was indexed (``by_step``); ``how`` as for ``read_step``."""

    def read(step: int) -> Step:
        if step not in steps:
            raise no_step(step, steps)
        items: Iterable[Item] = chain(steps[step].problems, table.at(steps[step]))
        return read_step(step, items, columns, **how)

    return read


def no_step(step: int, steps: Iterable[int]) -> UsageError:
    """What to raise for a step that a run does not have."""
    known = sorted(steps)
    shown = ", ".join(map(str, known)) if len(known) <= 12 else f"{known[0]} to {known[-1]}"
    return UsageError(f"no step {step} in this run", wanted=f"one of {shown}" if known else "")


def _count_absent(rollouts: Sequence[Rollout], tally: Tally) -> None:
    """Count reward components that other rows of the step have."""
    for name in dict.fromkeys(name for one in rollouts for name in one.rewards):
        if absent := sum(name not in one.rewards for one in rollouts):
            tally.count(name, missing=absent)


def _without_loose(rollouts: Sequence[Rollout], tally: Tally) -> list[Rollout]:
    """Take off values per token where neither ids nor text say what the tokens were."""
    loose = [
        one.response_ids is None and one.response is None and bool(one.columns or one.loss_mask is not None) for one in rollouts
    ]
    if not any(loose):
        return list(rollouts)
    for one in compress(rollouts, loose):
        tally.add("no-tokens", "values per token, but neither ids nor text of the response", one.sample_id)
    pairs = zip(rollouts, loose, strict=True)
    return [replace(one, columns={}, loss_mask=None) if is_loose else one for one, is_loose in pairs]


def named(rollouts: Sequence[Rollout]) -> tuple[Rollout, ...]:
    """Make sample ids that repeat unique."""
    taken: set[str] = set()
    found = []
    for one in rollouts:
        name = one.sample_id
        if name in taken:
            name = next(other for k in range(2, len(rollouts) + 2) if (other := f"{name}#{k}") not in taken)
        taken.add(name)
        found.append(one if name == one.sample_id else replace(one, sample_id=name))
    return tuple(found)


def prompt_key(one: Rollout) -> str | None:
    """A short name for a prompt, equal for equal prompts in any step; by ids where known, else by text."""
    if one.prompt_ids is not None:
        raw = b"ids" + one.prompt_ids.astype("<i4").tobytes()
    elif one.prompt is not None:
        raw = one.prompt.encode("utf-8", "replace")
    else:
        return None
    return f"prompt-{hashlib.blake2b(raw, digest_size=5).hexdigest()}"


def by_prompt(rollouts: Sequence[Rollout]) -> tuple[Rollout, ...]:
    """Groups by given id, else by equal prompts.

    A row without an id whose prompt has exactly one id elsewhere in the step joins that group. Row order plays no part:
    gathered or balanced batches interleave prompts.
    """
    if all(one.group_id is not None for one in rollouts):
        return tuple(rollouts)
    given: defaultdict[str | None, set[str]] = defaultdict(set)
    for one in rollouts:
        if one.group_id is not None:
            given[prompt_key(one)].add(one.group_id)
    return tuple(one if one.group_id is not None else _grouped(one, given) for one in rollouts)


def _grouped(one: Rollout, given: Mapping[str | None, set[str]]) -> Rollout:
    key = prompt_key(one)
    if key is None:
        return one
    known = given.get(key, set())
    source: GroupSource = "same prompt"
    return replace(one, group_id=next(iter(known)) if len(known) == 1 else key, group_source=source)
