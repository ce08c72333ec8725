"""tinker-cookbook's logs: rollout summaries, captured samples, and message lists of its forks.

Seen in tinker-cookbook 0.6.1 (commit 9dfcc3a)::

    {log_path}/iteration_{N:06d}/train_rollout_summaries.jsonl     always, unless rollout_json_export=False
    {log_path}/iteration_{N:06d}/eval_{label}_rollout_summaries.jsonl
    {log_path}/capture/sample.jsonl                                with capture's JsonlFileSink
    {data_dir}/capture.sqlite                                      with capture_to_store(run_id, data_dir=...)

**Summaries** (``serialize_rollout_summaries``) hold a line a trajectory: ``group_idx, traj_idx, total_reward, final_reward``, and
of each turn its reward and *how long* prompt and answer were. No token, no text; ``train_logtree.json`` has text of some
groups, without the trajectory's number.

**Captures** (``capture/instrument.py``) hold a line a call of the sampler: ``prompt_tokens`` and, for each sample, ``tokens`` and
the sampler's ``logprobs``, under the coordinates that the user's ``capture(iteration=…, group_idx=…, traj_idx=…)`` gave; none is
set by the cookbook's own loop. They hold no reward.

Where both are there and agree on every length, a trajectory has tokens and reward. Turns are joined as ``trajectory_to_data``
joins them. The iteration is the step; ``sampling_client_step`` says how many steps the sampling weights had taken.

**Message lists** (``{"rollouts": [messages], "metrics": {...}}``, a JSON file a trajectory, as forks dump them) hold a chat and
figures such as ``public_reward`` and ``private_reward``; which of them was trained on is not said, so the reward stays open.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from credit_inspector.errors import FormatError
from credit_inspector.rollout import Problem, Run, Step
from credit_inspector.trainers import ReadOptions, reader
from credit_inspector.trainers._chats import is_chat, made, parted, word
from credit_inspector.trainers._rollouts import mismatch, no_step, own_columns, read_step
from credit_inspector.trainers._rows import Item, JsonLines, Parsed, Places, Row, first_rows, kind, parse
from credit_inspector.trainers._tinker_store import is_store, wire_rows
from credit_inspector.trainers._turns import Turn, sequences
from credit_inspector.trainers._values import as_mapping, floats, integers, number, whole

_ITERATION = re.compile(r"iteration_(\d{1,9})")
_ENDING = "_rollout_summaries.jsonl"
_TRIED = 3
_MAP = "--map response=rollouts --map reward=metrics.public_reward"
_COLUMNS = own_columns("logprob/rollout", prefix="our ")


def _ours(values: Mapping[str, Any]) -> dict[str, Any]:
    """Names that none of the file's own keys can have."""
    return {f"our {name}": value for name, value in values.items()}


@reader("tinker")
def open_tinker(path: Path, options: ReadOptions) -> Run | None:
    """Open a log folder, one iteration, a capture (folder, JSON lines or SQLite), or message lists.

    Raises:
        FormatError: a capture without a single sample.
        UsageError: on reading a step that is not there.
    """
    summaries = _summaries(path)
    capture = _capture(path)
    if summaries or capture:
        return _log(path, summaries, capture)
    files = _lists(path)
    return _message_lists(path, files) if files else None


# ── summaries ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Summaries:
    """The summaries of one split, by iteration."""

    files: Mapping[int, Path]
    split: str
    others: tuple[str, ...]


def _summaries(path: Path) -> _Summaries | None:
    if path.is_file():
        step = _step_of(path)
        return _Summaries({step: path}, path.name.removesuffix(_ENDING), ()) if _is_summary(path) else None
    if not path.is_dir():
        return None
    folders = [path, *(one for one in sorted(path.iterdir()) if _ITERATION.fullmatch(one.name) and one.is_dir())]
    found: dict[str, dict[int, Path]] = {}
    for file in (file for folder in folders for file in sorted(folder.glob(f"*{_ENDING}"))):
        found.setdefault(file.name.removesuffix(_ENDING), {})[_step_of(file)] = file
    found = {split: dict(sorted(files.items())) for split, files in found.items() if any(map(_is_summary, files.values()))}
    if not found:
        return None
    split = "train" if "train" in found else min(found)
    return _Summaries(found[split], split, tuple(name for name in found if name != split))


def _step_of(file: Path) -> int:
    name = _ITERATION.fullmatch(file.resolve().parent.name)
    if name:
        return int(name[1])
    rows = first_rows(file, 1)
    return (whole(rows[0].get("iteration")) or 0) if rows else 0


def _is_summary(file: Path) -> bool:
    rows = first_rows(file, 1) if kind(file) == "jsonl" else []
    return bool(rows) and {"group_idx", "traj_idx", "total_reward", "steps"} <= set(rows[0])


@dataclass(slots=True)
class _Summary:
    """One trajectory as its summary has it."""

    group: int | str | None
    trajectory: int | str | None
    row: Row

    @property
    def lengths(self) -> list[tuple[Any, Any]]:
        """Of each turn, tokens of the prompt and of the answer."""
        steps = self.row.values.get("steps")
        return (
            [(one.get("ob_len"), one.get("ac_len")) for one in steps if isinstance(one, Mapping)]
            if isinstance(steps, list)
            else []
        )

    def values(self) -> dict[str, Any]:
        """What it says under our names, and all of it as it was."""
        raw = self.row.values
        said = {
            "sample_id": f"{self.group}.{self.trajectory}",
            "group_id": self.group,
            "reward": raw.get("total_reward"),
            "policy_version": raw.get("sampling_client_step"),
        }
        return {**raw, **_ours(said)}


def _index(value: Any) -> int | str | None:
    """A number of a group or trajectory as it may stand in a key."""
    if isinstance(value, str):
        return value[:200]
    return whole(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _read_summaries(file: Path | None) -> tuple[list[_Summary], list[Problem]]:
    found: list[_Summary] = []
    problems: list[Problem] = []
    for item in JsonLines(file).scan() if file else ():
        if isinstance(item, Problem):
            problems.append(item)
            continue
        problems += item.problems
        if "total_reward" in item.values:
            found.append(_Summary(_index(item.values.get("group_idx")), _index(item.values.get("traj_idx")), item))
        else:
            problems.append(
                Problem("bad-line", f"line {item.number} is no summary of a rollout, skipped", file.name if file else "")
            )
    return found, problems


# ── captures ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Call:
    """One sample of one call of the sampler."""

    scope: Mapping[str, Any]
    place: int
    sample: int
    made: float
    prompt: Any
    tokens: Any
    logprobs: Any
    ended: Any
    rest: Mapping[str, Any]

    @property
    def key(self) -> tuple[Any, ...]:
        """The trajectory it belongs to; without a number each call is its own."""
        group, trajectory = _index(self.scope.get("group_idx")), _index(self.scope.get("traj_idx"))
        return (group, trajectory, self.sample) if trajectory is not None else (group, None, self.place, self.sample)

    def turn(self) -> Turn | None:
        prompt, tokens = integers(self.prompt), integers(self.tokens)
        if prompt is None or tokens is None:
            return None
        read = floats(self.logprobs) if self.logprobs is not None else None
        return Turn(prompt, tokens, read.values if read is not None and len(read.values) == len(tokens) else None)


class _Capture(Protocol):
    """Where captured samples lie."""

    def scopes(self) -> Iterator[tuple[Mapping[str, Any], Row]]:
        """The coordinates of every record, without its tokens where that can be had."""
        ...

    def calls(self, places: Places) -> Iterator[_Call | Problem]:
        """The samples at these places."""
        ...


@dataclass
class _Lines:
    """``capture/sample.jsonl``."""

    path: Path
    problems: list[Problem] = field(default_factory=list)

    def scopes(self) -> Iterator[tuple[Mapping[str, Any], Row]]:
        for item in JsonLines(self.path).scan():
            if isinstance(item, Problem):
                self.problems.append(item)
            elif item.values.get("kind") == "sample":
                scope = item.values.get("scope")
                yield scope if isinstance(scope, Mapping) else {}, item
            elif _is_wire(item.values):
                yield item.values, item

    def calls(self, places: Places) -> Iterator[_Call | Problem]:
        for row in JsonLines(self.path).at(places):
            yield from row.problems
            if _is_wire(row.values):
                yield _wire_call(row)
                continue
            scope = row.values.get("scope")
            samples = row.values.get("samples")
            if not isinstance(samples, list) or not samples:
                yield Problem("no-sample", f"line {row.number} is a call that gave nothing ({word(row.values.get('status'))})")
                continue
            rest = {key: value for key, value in row.values.items() if key not in ("prompt_tokens", "samples")}
            for place, sample in enumerate(samples):
                own = sample if isinstance(sample, Mapping) else {}
                yield _Call(
                    scope=scope if isinstance(scope, Mapping) else {},
                    place=row.number,
                    sample=place,
                    made=number(row.values.get("created_at")).value or 0.0,
                    prompt=row.values.get("prompt_tokens"),
                    tokens=own.get("tokens"),
                    logprobs=own.get("logprobs"),
                    ended=own.get("stop_reason"),
                    rest=rest,
                )


def _is_wire(values: Mapping[str, Any]) -> bool:
    """Whether a line holds one sample with its coordinates beside it, as the store's rows do."""
    return {"prompt_tokens", "sampled_tokens", "group_idx", "traj_idx"} <= set(values)


def _wire_call(row: Row) -> _Call:
    values = row.values
    taken = ("prompt_tokens", "sampled_tokens", "logprobs")
    return _Call(
        scope={name: values.get(name) for name in _SCOPE},
        place=row.number,
        sample=whole(values.get("sample_idx")) or 0,
        made=number(values.get("created_at")).value or 0.0,
        prompt=values["prompt_tokens"],
        tokens=values["sampled_tokens"],
        logprobs=values.get("logprobs"),
        ended=values.get("stop_reason"),
        rest={key: value for key, value in values.items() if key not in taken},
    )


_SCOPE = ("run_id", "run_attempt", "split", "iteration", "group_idx", "traj_idx", "purpose")
_WIRE = (
    *_SCOPE,
    "sample_idx",
    "policy_version",
    "created_at",
    "prompt_tokens",
    "sampled_tokens",
    "logprobs",
    "metadata",
    "seq_id",
)


@dataclass
class _Store:
    """``capture.sqlite``."""

    path: Path
    problems: list[Problem] = field(default_factory=list)

    def scopes(self) -> Iterator[tuple[Mapping[str, Any], Row]]:
        for place, values in enumerate(wire_rows(self.path, _SCOPE), 1):
            at = values.get("cursor")
            yield values, Row(place, values, (), at if isinstance(at, int) else 0)

    def calls(self, places: Places) -> Iterator[_Call | Problem]:
        wanted = set(places.places)
        span = (min(wanted, default=0), max(wanted, default=0))
        for values in wire_rows(self.path, _WIRE, "cursor BETWEEN ? AND ?", span):
            at = values.pop("cursor", None)
            if at not in wanted or not isinstance(at, int):
                continue
            lists = [_decoded(values.pop(name, None)) for name in ("prompt_tokens", "sampled_tokens", "logprobs")]
            about = _decoded(values.pop("metadata", None))
            yield _Call(
                scope={name: values.get(name) for name in _SCOPE},
                place=at,
                sample=whole(values.get("sample_idx")) or 0,
                made=number(values.get("created_at")).value or 0.0,
                prompt=lists[0],
                tokens=lists[1],
                logprobs=lists[2],
                ended=about.get("stop_reason") if isinstance(about, Mapping) else None,
                rest={**values, "metadata": about},
            )


def _decoded(value: Any) -> Any:
    read = parse(value.encode("utf-8", "replace")) if isinstance(value, str) else None
    return read.value if isinstance(read, Parsed) else None


def _capture(path: Path) -> _Capture | None:
    if path.is_file():
        return _capture_file(path)
    places = ("sample.jsonl", "capture/sample.jsonl", "capture.sqlite", "capture/capture.sqlite") if path.is_dir() else ()
    files = (path / place for place in places)
    return next((found for file in files if file.is_file() and (found := _capture_file(file))), None)


def _capture_file(file: Path) -> _Capture | None:
    if kind(file) == "jsonl":
        rows = first_rows(file, 1)
        if not rows:
            return None
        nested = {"kind", "scope", "created_at"} <= set(rows[0]) and rows[0]["kind"] == "sample"
        return _Lines(file) if nested or _is_wire(rows[0]) else None
    return _Store(file) if file.suffix in (".sqlite", ".db", ".sqlite3") and is_store(file) else None


@dataclass(slots=True)
class _Indexed:
    """Which samples of a capture are of which iteration."""

    steps: dict[int, Places]
    notes: list[str]
    problems: list[Problem]


_EVAL = frozenset({"eval", "evaluation", "test", "val", "validation"})


def _is_training(scope: Mapping[str, Any]) -> bool:
    words = [word(scope.get(name)).lower().partition("/")[0].partition("_")[0] for name in ("split", "purpose")]
    return not any(one in _EVAL for one in words)


def _indexed(capture: _Capture) -> _Indexed:
    """One reading: the last run in the capture, of each of its iterations the last attempt."""
    runs: dict[str, dict[bool, dict[int, dict[int, Places]]]] = {}
    last, unnamed = "", 0
    for scope, row in capture.scopes():
        last = word(scope.get("run_id"))
        step = whole(scope.get("iteration"))
        unnamed += step is None
        attempts = runs.setdefault(last, {}).setdefault(_is_training(scope), {}).setdefault(step or 0, {})
        attempts.setdefault(whole(scope.get("run_attempt")) or 0, Places()).add(row)
    splits = runs.get(last, {})
    chosen = splits.get(True) or splits.get(False) or {}
    notes = [f"the capture holds {len(runs)} runs: {last} is read"] if len(runs) > 1 else []
    if unnamed:
        notes.append(f"{unnamed} captured calls name no iteration (capture(iteration=...)): they stand in step 0")
    if chosen and not splits.get(True):
        notes.append("the capture holds samples of evaluation only: nothing was trained on them")
    steps = {step: attempts[max(attempts)] for step, attempts in sorted(chosen.items())}
    if any(len(attempts) > 1 for attempts in chosen.values()):
        notes.append("a run that was started again sampled some iterations twice: the last attempt is read")
    return _Indexed(steps, notes, list(getattr(capture, "problems", ())))


# ── a log folder ────────────────────────────────────────────────────────────────────────────────────────────────────


def _log(path: Path, summaries: _Summaries | None, capture: _Capture | None) -> Run:
    """What a run left: summaries, a capture, or both."""
    index = _indexed(capture) if capture else _Indexed({}, [], [])
    files = summaries.files if summaries else {}
    steps = tuple(sorted({*files, *index.steps}))
    if not steps:
        raise FormatError(f"{path} is a capture without a sample", do="open the log folder beside it")
    notes = list(index.notes)
    if summaries and summaries.split != "train":
        notes.append(f"there is no train split: {summaries.split} was sampled for evaluation, and nothing was trained on it")
    if summaries and summaries.others:
        notes.append(f"not read, as they were not trained on: {', '.join(summaries.others)}")
    notes += _what_there_is(summaries, capture)
    read = partial(_read_log, files, capture, index)
    return Run(path=path, trainer="tinker", steps=steps, read=read, columns=("logprob/rollout",), notes=tuple(notes))


def _what_there_is(summaries: _Summaries | None, capture: _Capture | None) -> Iterator[str]:
    if summaries:
        yield "reward is total_reward: the rewards of all turns and the group's final reward; groups are by group_idx"
    if capture:
        yield "log-probs are the sampler's, as captured; several turns are joined where each prompt extends the one before"
    if not capture:
        yield "summaries hold lengths and rewards, no tokens and no text: those need capture_to_store or JsonlFileSink"
    if not summaries:
        yield "a capture holds no rewards: they are in iteration_*/train_rollout_summaries.jsonl"


def _read_log(files: Mapping[int, Path], capture: _Capture | None, index: _Indexed, step: int) -> Step:
    if step not in files and step not in index.steps:
        raise no_step(step, {*files, *index.steps})
    summaries, problems = _read_summaries(files.get(step))
    places = index.steps.get(step)
    calls: list[_Call] = []
    if capture is not None and places is not None:
        problems += index.problems if step == min(index.steps) else []
        for call in capture.calls(places):
            if isinstance(call, Problem):
                problems.append(call)
            else:
                calls.append(call)
    return read_step(step, [*problems, *_joined(summaries, calls)], _COLUMNS)


def _joined(summaries: Sequence[_Summary], calls: Sequence[_Call]) -> Iterator[Item]:
    """Trajectories from both sides."""
    trajectories: dict[tuple[Any, ...], list[_Call]] = {}
    for call in calls:
        trajectories.setdefault(call.key, []).append(call)
    for turns in trajectories.values():
        turns.sort(key=lambda call: call.made)
    by_key = {(one.group, one.trajectory, 0): one for one in summaries}
    pairs = {key: _those_of(by_key[key], turns) for key, turns in trajectories.items() if key in by_key}
    unlike = [key for key, turns in pairs.items() if turns is None]
    if unlike:
        said = f"{len(unlike)} of {len(pairs)} trajectories have other lengths in the capture than in the summaries under the"
        yield Problem("no-match", f"{said} same group_idx and traj_idx: rewards are not joined")
        pairs = {}
    for key, turns in sorted(trajectories.items(), key=_order):
        yield from _trajectory(pairs.get(key) or turns, by_key[key] if key in pairs else None, len(turns))
    for key, summary in by_key.items():
        if key not in pairs and not unlike:
            yield Row(summary.row.number, summary.values(), place=summary.row.place)
    if summaries and calls and not pairs and not unlike:
        yield Problem("no-match", "no captured call names the group_idx and traj_idx of a summary: they stand side by side")


def _order(pair: tuple[tuple[Any, ...], Any]) -> list[tuple[float, str]]:
    """By group and trajectory; calls come in as they were answered."""
    return [(part if isinstance(part, int) else -1, str(part)) for part in pair[0]]


def _those_of(summary: _Summary, calls: Sequence[_Call]) -> Sequence[_Call] | None:
    """The calls that a summary counts: the last ones, where a trajectory was tried again; ``None`` where lengths differ."""
    wanted = [length for _, length in summary.lengths]
    there = [len(call.tokens) if isinstance(call.tokens, list) else None for call in calls]
    return calls[len(calls) - len(wanted) :] if wanted and there[-len(wanted) :] == wanted else None


def _trajectory(calls: Sequence[_Call], summary: _Summary | None, all_calls: int) -> Iterator[Item]:
    name = ".".join(str(part) for part in calls[0].key[: 2 if calls[0].key[1] is not None and not calls[0].sample else None])
    name = name.replace("None.", "")
    turns = [call.turn() for call in calls]
    known = [(call, turn) for call, turn in zip(calls, turns, strict=True) if turn is not None]
    if len(known) < len(calls):
        yield Problem("bad-ids", f"{len(calls) - len(known)} calls hold no lists of token ids, left out", name)
    if all_calls > len(calls):
        yield Problem(
            "tried-again", f"{all_calls - len(calls)} calls are of an attempt before the one that counts, left out", name
        )
    for call, turn in known:
        yield from _misfits(call, turn, name)
    parts = sequences(turn for _, turn in known)
    for place, part in enumerate(parts):
        last = known[part.turns[-1]][0]
        group = _index(last.scope.get("group_idx"))
        said = {
            **part.values(),
            "sample_id": name if len(parts) == 1 else f"{name}#{place + 1}",
            "group_id": group,
            "truncated": last.ended,
        }
        about = {} if summary is None else summary.values()
        versions = {whole(known[turn][0].rest.get("policy_version")) for turn in part.turns}
        if len(versions) == 1 and None not in versions:  # turns of one trajectory may be of several weights
            said["policy_version"] = versions.pop()
        recorded = {"calls": [known[turn][0].rest for turn in part.turns]}
        yield Row(last.place, {**about, **recorded, **_ours(said)})
    if len(parts) > 1:
        said_of = f"{len(known)} turns do not extend each other: {len(parts)} sequences, each with the trajectory's reward"
        yield Problem("several-sequences", said_of, name)


def _misfits(call: _Call, turn: Turn, name: str) -> Iterator[Problem]:
    if turn.logprobs is not None or call.logprobs is None:
        return
    read = floats(call.logprobs)
    if read is None:
        yield Problem("bad-column", "logprob/rollout is no list of numbers, left out", name)
    else:
        yield Problem("length-mismatch", mismatch(len(turn.response), len(read.values), "logprob/rollout"), name)


# ── message lists ───────────────────────────────────────────────────────────────────────────────────────────────────


def _lists(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if path.suffix == ".json" and _is_list(path) else []
    files = sorted(path.glob("rollouts_*.json")) if path.is_dir() else []
    return files if any(map(_is_list, files[:_TRIED])) else []


def _is_list(file: Path) -> bool:
    rows = first_rows(file, 2)
    return len(rows) == 1 and is_chat(rows[0].get("rollouts")) and isinstance(rows[0].get("metrics"), Mapping)


def _message_lists(path: Path, files: Sequence[Path]) -> Run:
    notes = (
        "a file is a trajectory; groups are by equal prompts; no step is written: all stand in step 0",
        "reward is metrics.reward where that is there, else open: map the one that was trained on, in one file, such as " + _MAP,
    )
    return Run(path=path, trainer="tinker", steps=(0,), read=partial(_read_lists, files), notes=notes)


def _read_lists(files: Sequence[Path], step: int) -> Step:
    if step != 0:
        raise no_step(step, (0,))
    return read_step(
        0, (item for number, file in enumerate(files, 1) for item in made(partial(_list, file, number), file.name)), _COLUMNS
    )


def _list(file: Path, number: int) -> Iterator[Item]:
    rows = first_rows(file, 1)
    if not rows or not is_chat(rows[0].get("rollouts")):
        yield Problem("bad-file", f"{file.name} holds no list of messages under rollouts, skipped", file.name)
        return
    metrics = as_mapping(rows[0].get("metrics")) or {}
    named = {key: value for key, value in metrics.items() if "reward" in key}
    scalar = next((named[key] for key in ("reward", "total_reward") if key in named), None)
    chat = parted(rows[0]["rollouts"])
    said = {
        "sample_id": file.stem,
        "prompt": chat["prompt"],
        "response": chat["response"],
        "reward": scalar,
        "rewards": {key: value for key, value in named.items() if key not in ("reward", "total_reward")},
    }
    rest = {key: value for key, value in rows[0].items() if key != "rollouts"}
    yield Row(number, {**rest, "messages": rows[0]["rollouts"], **_ours(said)}, place=number)
