"""verifiers' traces: a graph of messages → one row a branch, under this project's names.

A line of ``traces.jsonl`` is an ``Episode`` with its ``traces`` (since August 2026), or one bare trace (before). A trace holds
``nodes``; each names its ``parent`` and the tokens that its message *adds*, so that the nodes from a root to a leaf give one
sequence as the model saw it. Values of sampled tokens (``logprobs``, ``advantages`` …) stand compactly, one for each true place
of the node's ``mask``; here they come out at their tokens, with NaN between them.

Read in verifiers 0.4.0 (``v1/graph.py``, ``v1/trace.py``) and commit a60a606. Which tokens are trained is prime-rl's rule
(commit 559b447, ``trajectories.iter_trainable_branches``): a model turn that several branches share is trained in the first of
them and context in the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from credit_inspector.rollout import Problem
from credit_inspector.trainers._joined import split
from credit_inspector.trainers._rollouts import mismatch, own_columns
from credit_inspector.trainers._rows import Item, Row
from credit_inspector.trainers._values import flags, floats, integers, number, text, whole

COMPACT: Mapping[str, str] = {
    "logprobs": "logprob/rollout",
    "reference_logprobs": "logprob/ref",
    "trainer_logprobs": "logprob/policy",
    "entropies": "entropy/policy",
    "advantages": "advantage",
}
"""A node's values over its sampled tokens → our names."""
STREAMS: Mapping[str, str] = {name: f"prime/{name}_weights" for name in ("rl", "ce", "ref_kl")}
"""A node's ``loss_weights``, one for each of its tokens → columns under prime-rl's own names."""

TOKEN_COLUMNS = (*COMPACT.values(), *STREAMS.values())
COLUMNS = own_columns(*TOKEN_COLUMNS)

_CUT_SHORT = frozenset(
    {
        "max_turns",
        "max_input_tokens",
        "max_output_tokens",
        "max_total_tokens",
        "context_length",
        "compaction_failed",
    }
)
"""Stop conditions that verifiers itself counts as truncated (``Trace.is_truncated``)."""
_ARRAYS = ("token_ids", "mask", "loss_weights", *COMPACT)
_EXPANSION, _ALWAYS = 32, 1_000_000
"""How many times a trace's own size its branches may hold together, since each repeats what it shares with others."""


def is_episode(row: Mapping[str, Any]) -> bool:
    """Whether a line is an episode of traces."""
    traces = row.get("traces")
    return isinstance(traces, list) and isinstance(row.get("task"), Mapping) and "env" in row and "id" in row


def is_trace(row: Mapping[str, Any]) -> bool:
    """Whether a line is one bare trace."""
    nodes = row.get("nodes")
    return isinstance(nodes, list) and isinstance(row.get("rewards"), Mapping) and isinstance(row.get("task"), Mapping)


def work_of(row: Mapping[str, Any]) -> tuple[str | None, int | None]:
    """What a line was made for, ``train`` or ``eval``, and the step at which it was begun."""
    run = row.get("run")
    if not isinstance(run, Mapping):
        return None, None
    work = _mapping(run.get("work")) or run
    kind, step = work.get("type"), work.get("step")
    return kind if isinstance(kind, str) else None, None if isinstance(step, bool) else whole(step)


def samples(row: Row) -> Iterator[Item]:
    """The rows of one line: one for each branch that holds a model turn of its own."""
    yield from row.problems
    try:
        yield from _of_episode(row.values, row) if is_episode(row.values) else _of_trace(row.values, {}, row)
    except RecursionError:
        yield Problem("bad-line", f"line {row.number} is nested too deeply, skipped")


def notes(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """What there is to say of rows made here."""
    if any(row.get("branches") for row in rows):
        yield "a trace with several branches is as many rows, each with the trace's whole reward: groups count it that often"


def _of_episode(episode: Mapping[str, Any], row: Row) -> Iterator[Item]:
    traces = [trace for trace in episode["traces"] if isinstance(trace, Mapping)]
    rest = {key: value for key, value in episode.items() if key not in ("traces", "group", "task")}
    for trace in traces:
        shared = {"group": episode.get("group"), "episode": rest}
        yield from _of_trace(trace, shared, row)
    if not traces:
        errors = episode.get("errors")
        why = f": {_error(errors[-1])}" if isinstance(errors, list) and errors else ""
        yield Problem("no-trace", f"line {row.number}: an episode that left no trace{why}", _name(episode) or "")


def _error(error: Any) -> str:
    found = [error.get(key) for key in ("type", "message")] if isinstance(error, Mapping) else [error]
    return " ".join(str(part) for part in found if part is not None)[:120]


# ── one trace ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Node:
    """One message and the tokens that it adds."""

    raw: Mapping[str, Any]
    parent: int | None
    sampled: bool
    ids: NDArray[np.int32]
    mask: NDArray[np.bool_]
    values: dict[str, NDArray[np.float32]] = field(default_factory=dict)

    @property
    def message(self) -> Mapping[str, Any]:
        message = self.raw.get("message")
        return message if isinstance(message, Mapping) else {}

    @property
    def role(self) -> str:
        role = self.message.get("role")
        return role if isinstance(role, str) else ""


def _of_trace(trace: Mapping[str, Any], shared: Mapping[str, Any], row: Row) -> Iterator[Item]:
    name = _name(trace)
    where = name or str(row.number)
    agent = trace.get("agent")
    if isinstance(agent, Mapping) and agent.get("trainable") is False:
        yield Problem("untrained-agent", f"a trace of {agent.get('name') or 'an agent'}, which is not trained: left out", where)
        return
    problems: list[Problem] = []
    nodes = _nodes(trace.get("nodes"), problems, where)
    branches = list(_branches(nodes, problems, where))
    if not branches:
        problems.append(Problem("no-response", "a trace without a model turn, left out", where))
    yield from problems
    about = _about(trace, shared)
    for place, (path, fresh) in enumerate(branches):
        part = None if name is None else f"{name}/{place}" if len(branches) > 1 else name
        found, misfits = _branch(nodes, path, fresh, part or where)
        found |= {"branch": place, "branches": len(branches)} if len(branches) > 1 else {}
        yield Row(row.number, {**about, **found, "sample_id": part}, tuple(misfits), row.place)


def _name(values: Mapping[str, Any]) -> str | None:
    name = values.get("id")
    return name if isinstance(name, str) and name else None


def _about(trace: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    """What all branches of a trace have in common."""
    scores, reward = _rewards(trace.get("rewards"))
    rest = {key: value for key, value in trace.items() if key not in ("id", "nodes", "rewards")}
    found = {f"trace_{key}" if key in COLUMNS.mapping else key: value for key, value in rest.items()}
    found |= {key: value for key, value in shared.items() if value is not None}
    weights = {name: part.get("weight") for name, part in _mapping(trace.get("rewards")).items() if isinstance(part, Mapping)}
    return found | {
        "group_id": _group(trace, shared),
        "reward": reward,
        "rewards": scores,
        "reward_weights": weights,
        "truncated": _truncated(trace),
        "policy_version": _version(trace, shared),
    }


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _group(trace: Mapping[str, Any], shared: Mapping[str, Any]) -> str | None:
    """The group that the trainer named; else the task, as each task of an evaluation is tried several times."""
    group, info, task = _mapping(shared.get("group")), _mapping(trace.get("info")), _mapping(trace.get("task"))
    named = (group.get("id"), shared.get("group"), info.get("group_id"), task.get("key"), task.get("hash"))
    return next((str(one) for one in named if isinstance(one, str | int) and one != ""), None)


def _version(trace: Mapping[str, Any], shared: Mapping[str, Any]) -> int | None:
    run = _mapping(_mapping(shared.get("episode")).get("run"))
    policy = _mapping(_mapping(run.get("work")).get("policy"))
    return whole(policy.get("start", _mapping(trace.get("info")).get("policy_version")))


def _rewards(value: Any) -> tuple[dict[str, Any], float | None]:
    """Each reward's own score, and the sum of score times weight over those that were given."""
    scores: dict[str, Any] = {}
    total: list[float] = []
    for name, part in _mapping(value).items():
        scores[name] = part.get("score") if isinstance(part, Mapping) else part
        score = number(scores[name]).value
        weight = number(part.get("weight", 1.0)).value if isinstance(part, Mapping) else 1.0
        if score is not None and weight is not None:
            total.append(score * weight)
    return scores, sum(total) if total else None


def _truncated(trace: Mapping[str, Any]) -> bool | None:
    stop, calls = trace.get("stop_condition"), trace.get("calls")
    if isinstance(stop, str) and stop in _CUT_SHORT:
        return True
    good = [call for call in calls if isinstance(call, Mapping) and call.get("error") is None] if isinstance(calls, list) else []
    if good:
        return good[-1].get("finish_reason") == "length"
    return False if isinstance(stop, str) else None


# ── nodes and branches ──────────────────────────────────────────────────────────────────────────────────────────────


def _nodes(value: Any, problems: list[Problem], where: str) -> list[_Node]:
    raw = [node if isinstance(node, Mapping) else {} for node in value] if isinstance(value, list) else []
    return [_node(node, place, problems, where) for place, node in enumerate(raw)]


def _node(raw: Mapping[str, Any], place: int, problems: list[Problem], where: str) -> _Node:
    ids = integers(raw.get("token_ids") or [])
    if ids is None:
        problems.append(Problem("bad-ids", f"node {place}: no list of token ids, left out", where))
        ids = np.zeros(0, np.int32)
    node = _Node(raw, _parent(raw, place, problems, where), raw.get("sampled") is True, ids, np.zeros(len(ids), np.bool_))
    if len(ids):
        node.mask = _node_mask(raw, node, place, problems, where)
        _fill(node, place, problems, where)
    return node


def _parent(raw: Mapping[str, Any], place: int, problems: list[Problem], where: str) -> int | None:
    """A node stands after its parent, so the way up always ends."""
    parent = raw.get("parent")
    if parent is None:
        return None
    if isinstance(parent, int) and not isinstance(parent, bool) and 0 <= parent < place:
        return parent
    problems.append(Problem("bad-parent", f"node {place} names no node before it as its parent: taken for a beginning", where))
    return None


def _node_mask(raw: Mapping[str, Any], node: _Node, place: int, problems: list[Problem], where: str) -> NDArray[np.bool_]:
    value = raw.get("mask")
    read = flags(value) if value else None
    if read is not None and len(read) == len(node.ids):
        return read
    if value or node.sampled:
        count = 0 if read is None else len(read)
        said = f"node {place}: {mismatch(len(node.ids), count, 'loss_mask')}: none of its tokens counts as trained"
        problems.append(Problem("length-mismatch", said, where))
    return node.mask


def _fill(node: _Node, place: int, problems: list[Problem], where: str) -> None:
    """Put a node's values at its tokens."""
    sampled = int(node.mask.sum())
    for key, name in COMPACT.items():
        found = _numbers(node.raw.get(key), sampled, f"node {place}: {name}", problems, where)
        if found is not None:
            node.values[name] = np.full(len(node.ids), np.nan, np.float32)
            node.values[name][node.mask] = found
    for key, name in STREAMS.items():
        found = _numbers(_mapping(node.raw.get("loss_weights")).get(key), len(node.ids), f"node {place}: {name}", problems, where)
        if found is not None:
            node.values[name] = found


def _numbers(value: Any, count: int, what: str, problems: list[Problem], where: str) -> NDArray[np.float32] | None:
    if value is None or (isinstance(value, list) and not value):
        return None
    read = floats(value)
    if read is None:
        problems.append(Problem("bad-column", f"{what} is no list of numbers, left out", where))
    elif len(read.values) != count:
        said = f"{what}: {len(read.values)} values for {count} tokens, left out"
        problems.append(Problem("length-mismatch", said, where))
    else:
        return read.values
    return None


def _branches(nodes: Sequence[_Node], problems: list[Problem], where: str) -> Iterator[tuple[list[int], set[int]]]:
    """Each way from a root to a leaf, and the model turns in it that no branch before it had."""
    budget = _ALWAYS + _EXPANSION * sum(1 + len(node.ids) for node in nodes)
    sizes = np.zeros(len(nodes), np.int64)
    for place, node in enumerate(nodes):
        sizes[place] = 1 + len(node.ids) + (0 if node.parent is None else sizes[node.parent])
    parents = {node.parent for node in nodes}
    resumed = {link.get("node") for node in nodes for link in _links(node) if link.get("type") == "compaction"}
    taken: set[int] = set()
    for leaf in (place for place in range(len(nodes)) if place not in parents):
        if leaf not in resumed and any(link.get("type") == "compaction_attempt" for link in _links(nodes[leaf])):
            problems.append(Problem("untrained-branch", "a compaction that was not resumed from: left out", where))
            continue
        budget -= int(sizes[leaf])
        if budget < 0:
            problems.append(
                Problem("too-many-branches", "its branches repeat too much of each other: the rest is left out", where)
            )
            return
        path = _path(nodes, leaf)
        fresh = {place for place in path if nodes[place].sampled} - taken
        taken |= fresh
        if fresh:
            yield path, fresh


def _links(node: _Node) -> list[Mapping[str, Any]]:
    links = node.raw.get("semantic_parents")
    found = [link for link in links if isinstance(link, Mapping)] if isinstance(links, list) else []
    return [link for link in found if isinstance(link.get("node"), int)]


def _path(nodes: Sequence[_Node], leaf: int) -> list[int]:
    path: list[int] = []
    place: int | None = leaf
    while place is not None:
        path.append(place)
        place = nodes[place].parent
    return path[::-1]


# ── one branch ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _branch(nodes: Sequence[_Node], path: Sequence[int], fresh: set[int], where: str) -> tuple[dict[str, Any], list[Problem]]:
    parts = [nodes[place] for place in path]
    found: dict[str, Any] = {"nodes": [_without_arrays(node.raw) for node in parts]}
    begin = next(place for place, number in enumerate(path) if number in fresh)
    found["prompt"] = [node.message for node in parts[:begin]] or None
    found["response"] = _said([node.message for node in parts[begin:]])
    problems: list[Problem] = []
    if any(len(node.ids) for node in parts):
        if all(len(nodes[place].ids) for place in fresh):
            tokens, problems = _tokens(parts, [place in fresh for place in path], where)
            found |= tokens
        else:
            problems.append(Problem("partial-ids", "a model turn without token ids among others with them: read as text", where))
    return found, problems


def _without_arrays(raw: Mapping[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in raw.items() if key not in _ARRAYS}
    other = {name: weights for name, weights in _mapping(raw.get("loss_weights")).items() if name not in STREAMS}
    return rest | ({"loss_weights": other} if other else {})


def _tokens(parts: Sequence[_Node], fresh: Sequence[bool], where: str) -> tuple[dict[str, Any], list[Problem]]:
    ids = np.concatenate([node.ids for node in parts])
    mask = np.concatenate([node.mask & own for node, own in zip(parts, fresh, strict=True)])
    names = [name for name in TOKEN_COLUMNS if any(name in node.values for node in parts)]
    columns = {name: np.concatenate([_column(node, name) for node in parts]) for name in names}
    own = fresh.index(True)
    begin = None if mask.any() else sum(len(node.ids) for node in parts[:own])  # where no mask says where the turn begins
    return split(ids, mask, columns, begin=begin, trained_only=tuple(COMPACT.values()), where=where)


def _column(node: _Node, name: str) -> NDArray[np.float32]:
    found = node.values.get(name)
    return np.full(len(node.ids), np.nan, np.float32) if found is None else found


def _said(messages: Sequence[Mapping[str, Any]]) -> str:
    """A response's text: of one message what it says, of several each under its role."""
    if len(messages) == 1:
        return _words(messages[0])
    return "\n".join(f"{message.get('role')}\n{_words(message)}" for message in messages)


def _words(message: Mapping[str, Any]) -> str:
    """The thinking, the text and the tool calls of a message, in that order."""
    calls = message.get("tool_calls")
    parts = [text(message.get("reasoning_content")), text(message.get("content"))]
    parts += [json.dumps(call, ensure_ascii=False, default=str) for call in calls] if isinstance(calls, list) else []
    return "\n".join(part for part in parts if part)
