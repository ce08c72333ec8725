"""Atropos' saved groups: one line a group, written with ``--env.data_path_to_save_groups X.jsonl`` (``process`` sets it).

``BaseEnv.handle_send_to_api`` (atroposlib 0.4.0) writes each ``ScoredDataGroup`` before it goes to the trainer: lists with one
element a response, ``tokens`` (prompt and response together), ``masks`` (labels: the token's id where it is trained, -100
elsewhere), ``scores``, and where the environment gives them ``advantages``, ``ref_logprobs``, ``inference_logprobs``,
``messages``, ``overrides`` and lists of its own.

- Nothing in the file says at which optimizer step a group was trained: an environment does not know it.
- ``inference_logprobs`` are as long as ``tokens`` and hold 1.0 where no token was sampled (``ManagedServer``), also where the
  server gave fewer than there are tokens. No log-prob is 1.0: those are missing.
- A group whose scores are all equal is not written (``ensure_scores_are_not_same``), so dead groups are never seen here.
- Masks come from ``tokenize_for_trainer``, which trains on the last message only, unless told to train on all of the policy's.
- Lists that ``collect_trajectories`` began and nobody filled are empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from credit_inspector.rollout import Problem, Run, Step
from credit_inspector.trainers import ReadOptions, reader
from credit_inspector.trainers._chats import is_chat, made, parted, word
from credit_inspector.trainers._joined import split
from credit_inspector.trainers._rollouts import Columns, no_step, read_step
from credit_inspector.trainers._rows import Item, JsonLines, Row, first_rows, kind
from credit_inspector.trainers._values import floats, text

_TOKEN = {
    "ref_logprobs": "logprob/ref",
    "inference_logprobs": "logprob/rollout",
    "token_scores": "atropos/token_scores",
    "token_weights": "atropos/token_weights",
}
"""Lists of one value a token, and our names; the last two are those of an environment, which no trainer of Atropos reads."""
_PER_RESPONSE = ("tokens", "masks", "scores", "advantages", *_TOKEN, "messages", "overrides", "images")
_COLUMNS = (*_TOKEN.values(), "advantage")
_OURS = ("sample_id", "group_id", "prompt", "response", "prompt_ids", "response_ids", "loss_mask", "reward", *_COLUMNS)
_READ = Columns(mapping={name: name for name in _OURS})


_GLANCED = 8
"""Files of a folder that are looked into to recognise it."""


@reader("atropos")
def open_atropos(path: Path, options: ReadOptions) -> Run | None:
    """Open one file, or a folder of them.

    Raises:
        UsageError: on reading a step that is not there.
    """
    files = _files(path)
    if not files:
        return None
    notes = [
        "a line is a group; the file does not say at which step it was trained: all stand in step 0",
        "reward is the environment's score; groups of equal scores are dropped by Atropos before they are written",
    ]
    if len(files) > 1:
        notes.append(f"{', '.join(file.name for file in files)} are read together")
    there = {name for file in files for row in first_rows(file) for name in row}
    if there & {"token_scores", "token_weights"}:
        notes.append("token_scores and token_weights are the environment's own: kept as they are, not taken for rewards")
    if "inference_logprobs" in there:
        notes.append("inference_logprobs are the sampler's; 1.0 is what Atropos fills in where there is none: left out")
    return Run(
        path=path,
        trainer="atropos",
        steps=(0,),
        read=partial(_read, files),
        columns=_COLUMNS,
        notes=tuple(notes),
    )


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if _is_atropos(path) else []
    inside = [file for file in sorted(path.iterdir()) if kind(file) == "jsonl" and file.is_file()] if path.is_dir() else []
    if not any(map(_is_atropos, inside[:_GLANCED])):
        return []
    return [file for file in inside if _is_atropos(file)]


def _is_atropos(file: Path) -> bool:
    rows = first_rows(file, 3) if kind(file) == "jsonl" else []
    return bool(rows) and all(map(_is_group, rows))


def _is_group(row: Mapping[str, Any]) -> bool:
    """Whether a row has the three lists that every group has."""
    return isinstance(row.get("scores"), list) and _is_lists(row.get("tokens")) and _is_lists(row.get("masks"))


def _is_lists(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, list) for one in value)


def _read(files: list[Path], step: int) -> Step:
    if step != 0:
        raise no_step(step, (0,))
    return read_step(0, _items(files), _READ)


def _items(files: list[Path]) -> Iterator[Item]:
    for file in files:
        name = f"{file.stem}:" if len(files) > 1 else ""
        for item in JsonLines(file).scan():
            if isinstance(item, Problem):
                yield item
            elif _is_group(item.values):
                yield from made(partial(_responses, item, name), f"line {item.number}")
            else:
                yield Problem("bad-line", f"line {item.number} has no tokens, masks and scores, skipped", file.name)


def _responses(row: Row, name: str) -> Iterator[Item]:
    count = len(row.values["tokens"])
    parallel = {key: value for key, value in row.values.items() if _is_parallel(key, value, count)}
    rest = {key: value for key, value in row.values.items() if key not in parallel and not _is_nothing(key, value)}
    shared = {_aside(key): value for key, value in rest.items() if key not in ("tokens", "masks", "scores")}
    for key in ("masks", "scores"):
        if len(row.values[key]) != count:
            yield Problem("unequal-lists", f"line {row.number}: {count} of tokens, {len(row.values[key])} of {key}")
    foreign: list[str] = []
    for place in range(count):
        own = {key: value[place] if place < len(value) else None for key, value in parallel.items()}
        values, problems = _response(own, f"{name}{row.number}.{place}")
        foreign += _not_own(own.get("messages"), values)
        names = {"sample_id": f"{name}{row.number}.{place}", "group_id": f"{name}line {row.number}"}
        first = row.problems if place == 0 else ()
        yield Row(row.number, shared | values | names, (*first, *problems), row.place)
    if foreign:
        said_by = f"in {len(foreign)} of {count} responses the trained tokens are a message by {foreign[0]}, not by the policy"
        yield Problem("not-the-policys", said_by, f"{name}line {row.number}")


def _is_parallel(key: str, value: Any, count: int) -> bool:
    """Whether a list has one element a response: those that Atropos knows, and an environment's own of that length."""
    if not isinstance(value, list) or not value:
        return False
    return key in ("tokens", "masks", "scores") or (len(value) == count and key != "group_overrides")


def _is_nothing(key: str, value: Any) -> bool:
    return key in _PER_RESPONSE and (value is None or value == [])


def _aside(key: str) -> str:
    """An environment's own column, under a name that none of ours has."""
    return f"atropos/{key}" if key in _OURS else key


def _response(own: dict[str, Any], where: str) -> tuple[dict[str, Any], list[Problem]]:
    """One response of a group under our names, and what else it has."""
    advantage = own.get("advantages")
    columns = {ours: own.get(theirs) for theirs, ours in _TOKEN.items()}
    columns["logprob/rollout"] = _without_fill(columns["logprob/rollout"])
    per_token = isinstance(advantage, list)
    masked = ("logprob/ref", "logprob/rollout", "advantage")
    columns |= {"advantage": advantage} if per_token else {}
    values, problems = split(
        own.get("tokens"), _mask(own.get("masks"), own.get("tokens")), columns, trained_only=masked, where=where
    )
    values |= {} if per_token else {"advantage": advantage}
    rest = {_aside(key): value for key, value in own.items() if key not in ("tokens", "masks", "scores", "advantages", *_TOKEN)}
    return rest | values | {"reward": own.get("scores")} | _texts(own.get("messages"), values), problems


def _mask(labels: Any, tokens: Any) -> Any:
    """Labels → truth values. Only -100 is outside: a trained token may have the id 0."""
    read = floats(labels) if isinstance(labels, list) else None
    if read is None or not np.isfinite(read.values).all():
        return labels
    if (read.values == -100).any() or labels == tokens:
        return read.values != -100
    return labels


def _without_fill(logprobs: Any) -> Any:
    read = floats(logprobs) if isinstance(logprobs, list) else None
    if read is None:
        return logprobs
    return np.where(read.values == 1.0, np.nan, read.values)


# ── whose tokens are trained ────────────────────────────────────────────────────────────────────────────────────────


def _is_own(message: Mapping[str, Any]) -> bool:
    return message.get("role") in ("assistant", "agent")


def _is_last_alone(values: Mapping[str, Any]) -> bool:
    """Whether only the last message is trained: one block of tokens up to the end (``tokenize_for_trainer``)."""
    mask = values.get("loss_mask")
    return mask is not None and bool(len(mask)) and bool(np.all(mask))


def _texts(messages: Any, values: Mapping[str, Any]) -> dict[str, str | None]:
    """What the tokens say, for a reader who has no tokenizer."""
    if not is_chat(messages):
        return {}
    chat = parted(messages, begin=len(messages) - 1 if _is_last_alone(values) else None, own=_is_own)
    return {"prompt": text(chat["prompt"]), "response": chat["response"]}


def _not_own(messages: Any, values: Mapping[str, Any]) -> list[str]:
    """Who spoke the trained tokens, where that was not the policy: the last message is trained whoever it is by."""
    if not is_chat(messages) or not _is_last_alone(values) or _is_own(messages[-1]):
        return []
    return [word(messages[-1].get("role"))]
