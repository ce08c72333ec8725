"""NeMo Gym's rollouts: one JSON line a rollout, as ``ng_collect_rollouts`` writes them to ``output_jsonl_fpath``.

Read in NeMo Gym, commit 07d6b0d (``rollout_collection.py``, ``openai_utils.py``). Keys: ``responses_create_params`` (the request,
with ``input`` and ``tools``), ``response`` whose ``output`` lists the items of all turns (``message``, ``reasoning``,
``function_call``, ``function_call_output``), ``reward``, what the environment adds, and ``_ng_task_index``, which is the group.

With a model server for training, one item of each model call holds ``prompt_token_ids``, ``generation_token_ids`` and
``generation_log_probs``. The prompt of a later call is everything before it, so what it adds to the tokens seen so far came from
tools and the environment: those tokens stand in the response outside the mask. Where a later prompt does not continue the
tokens before it (history was rewritten), the rollout falls into branches; the one with most generated tokens is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from credit_inspector.rollout import Problem, Run, Step
from credit_inspector.trainers import ReadOptions, reader
from credit_inspector.trainers._rollouts import mismatch, no_step, own_columns, read_step
from credit_inspector.trainers._rows import Item, JsonLines, Row, first_rows, kind
from credit_inspector.trainers._values import as_mapping, floats, integers

_NUMBER = re.compile(r"\d{1,9}")
_ENDINGS = re.compile(r"\.jsonl(\.(gz|bz2|xz|zst))?", re.IGNORECASE)
_SIDE_FILES = ("_failures", "_materialized_inputs")
"""Endings of the files that NeMo Gym writes beside the rollouts."""
_TRIED = 8
"""How many files of a folder are looked at before it is given up."""
_IDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
_TASK, _ROLLOUT = "_ng_task_index", "_ng_rollout_index"
_OURS = "credit_inspector."
"""Before our names in a row, since an environment may add keys of any name."""
_COLUMNS = own_columns("logprob/rollout", prefix=_OURS)


@reader("nemo_gym")
def open_nemo_gym(path: Path, options: ReadOptions) -> Run | None:
    """Open a rollout file, or a folder that holds one, or several with the step in their names.

    Raises:
        UsageError: on reading a step that is not there.
    """
    found = _rollout_files(_candidates(path))
    files = _by_number(list(found))
    if not files:
        return None
    first = [row for rows in found.values() for row in rows]
    recorded = [read_tokens(_output(row), "") for row in first]
    return Run(
        path=path,
        trainer="nemo_gym",
        steps=tuple(files),
        read=partial(_read, files),
        columns=("logprob/rollout",) if any(one.has_logprobs for one in recorded) else (),
        notes=tuple(_notes(first, files, recorded)),
    )


def _candidates(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if kind(path) == "jsonl" else []
    found = sorted(path.glob("*.jsonl*")) if path.is_dir() else []
    return [file for file in found if file.is_file() and not _stem(file).endswith(_SIDE_FILES)]


def _rollout_files(candidates: Sequence[Path]) -> dict[Path, list[Mapping[str, Any]]]:
    """Those that hold rollouts, with their first rows; a folder whose first files hold none is not read through."""
    found: dict[Path, list[Mapping[str, Any]]] = {}
    for place, file in enumerate(candidates):
        if place == _TRIED and not found:
            break
        rows = first_rows(file, 4)
        if rows and all(map(_is_rollout, rows)) and any(isinstance(row["response"].get("output"), list) for row in rows):
            found[file] = rows
    return found


def _stem(path: Path) -> str:
    return _ENDINGS.sub("", path.name)


def _by_number(files: Sequence[Path]) -> dict[int, Path]:
    """Files by step: one is step 0 or the number that ends its name; several need a number each, or none is chosen."""
    if len(files) == 1:
        return {_number(files[0]) or 0: files[0]}
    numbered = {number: file for file in files if (number := _number(file)) is not None}
    return dict(sorted(numbered.items())) if len(numbered) == len(files) else {}


def _number(file: Path) -> int | None:
    found = re.fullmatch(r".*(?:step|iter|iteration|update)s?[-_]?(\d{1,9})", _stem(file), re.IGNORECASE)
    alone = _stem(file) if _NUMBER.fullmatch(_stem(file)) else None
    return int(found[1]) if found else None if alone is None else int(alone)


def _is_rollout(row: Mapping[str, Any]) -> bool:
    return isinstance(row.get("responses_create_params"), Mapping) and isinstance(row.get("response"), Mapping)


def _output(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    response = row.get("response")
    output = response.get("output") if isinstance(response, Mapping) else None
    return [item for item in output if isinstance(item, Mapping)] if isinstance(output, list) else []


# ── what the run holds ──────────────────────────────────────────────────────────────────────────────────────────────


def _notes(first: Sequence[Mapping[str, Any]], files: Mapping[int, Path], recorded: Sequence[Tokens]) -> Iterator[str]:
    grouped = "NeMo Gym's _ng_task_index" if _TASK in first[0] else "equal prompts: these rows have no _ng_task_index"
    yield f"groups are by {grouped}"
    if any(as_mapping(row.get("reward_components")) is not None for row in first):
        yield "reward is NeMo Gym's reward, its parts are reward_components"
    else:
        yield "reward is NeMo Gym's reward"
    if any(one.response is not None for one in recorded):
        yield "tokens between two model calls are what the later prompt added: tools and environment, not trained"
        yield "logprob/rollout is generation_log_probs, the sampler's"
    else:
        yield "no token ids are in these files: the response is the text of the output items, each under its role or type"
    yield "NeMo Gym collects and does not train: advantages, log-probs of the policy and of a reference are not in its files"
    if len(files) == 1 and all(_number(file) is None for file in files.values()):
        yield "the file names no step: it is read as step 0"
    failed = [file for file in files.values() if (file.parent / f"{_stem(file)}_failures.jsonl").is_file()]
    if failed:
        yield f"failed rollouts of {len(failed)} of {len(files)} files are in files ending in _failures, which are not read"


# ── one step ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _read(files: Mapping[int, Path], step: int) -> Step:
    if step not in files:
        raise no_step(step, files)
    return read_step(step, _items(JsonLines(files[step]).scan()), _COLUMNS)


def _items(items: Iterable[Item]) -> Iterator[Item]:
    for item in items:
        if isinstance(item, Problem):
            yield item
        elif isinstance(item.values.get("response"), Mapping):
            yield _row(item)
        else:
            yield Problem("bad-line", f"line {item.number} has no response, skipped")


def _row(row: Row) -> Row:
    raw = row.values
    name = _sample_id(raw, row.number - 1)
    output = _output(raw)
    tokens = read_tokens(output, name)
    components = as_mapping(raw.get("reward_components"))
    ours: dict[str, Any] = {
        "sample_id": name,
        "group_id": raw.get(_TASK) if isinstance(raw.get(_TASK), int | str) else None,
        "prompt": _prompt(raw.get("responses_create_params")),
        "response": response_text(output),
        "reward": raw.get("reward"),
        "rewards": components,
        "truncated": _truncated(raw),
        **tokens.values,
    }
    known = ("reward",) if components is None else ("reward", "reward_components")
    rest = {key: value for key, value in raw.items() if key not in known}
    if tokens.response is not None:
        rest["response"] = _without_tokens(raw["response"])
    values = rest | {_OURS + key: value for key, value in ours.items()}
    return Row(row.number, values, (*row.problems, *tokens.problems), row.place)


def _sample_id(raw: Mapping[str, Any], place: int) -> str:
    """NeMo Gym's own id of a rollout: ``_ng_rollout_id``, else ``{task}-{rollout}``."""
    name, task, rollout = raw.get("_ng_rollout_id"), raw.get(_TASK), raw.get(_ROLLOUT)
    if isinstance(name, str) and name:
        return name
    known = all(isinstance(value, int | str) for value in (task, rollout))
    return f"{task}-{rollout}" if known else str(place)


def _prompt(request: Any) -> Any:
    """The request's instructions and input, as text or a chat."""
    if not isinstance(request, Mapping):
        return None
    asked, instructions = request.get("input"), request.get("instructions")
    if not isinstance(asked, str | list):
        return None
    if not isinstance(instructions, str) or not instructions:
        return asked
    messages = asked if isinstance(asked, list) else [{"role": "user", "content": asked}]
    return [{"role": "system", "content": instructions}, *messages]


def _truncated(raw: Mapping[str, Any]) -> bool | None:
    """Whether the model's output was cut, by the response's own word, else the environment's."""
    response = raw.get("response")
    why = response.get("incomplete_details") if isinstance(response, Mapping) else None
    if isinstance(why, Mapping):
        return True
    status = response.get("status") if isinstance(response, Mapping) else None
    if status in ("incomplete", "completed"):
        return bool(status == "incomplete")
    said = raw.get("truncated")
    return said if isinstance(said, bool) else None


def _without_tokens(response: Mapping[str, Any]) -> dict[str, Any]:
    """The response without the arrays that became tokens."""
    output = response["output"]
    kept = [
        {key: value for key, value in item.items() if key not in _IDS} if isinstance(item, Mapping) else item for item in output
    ]
    return {**response, "output": kept}


# ── text ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def response_text(output: Sequence[Mapping[str, Any]]) -> str:
    """The items' text; of several, each stands under its role, or its type where it has none."""
    parts = [(_speaker(item), said) for item in output if (said := _said(item))]
    return parts[0][1] if len(parts) == 1 else "\n".join(f"{who}\n{said}" for who, said in parts)


def _speaker(item: Mapping[str, Any]) -> str:
    found = item.get("role") or item.get("type")
    return found if isinstance(found, str) else "item"


def _said(item: Mapping[str, Any]) -> str:
    if item.get("type") == "function_call":
        return _as_json({key: item[key] for key in ("name", "arguments") if key in item})
    held = (_part(item.get(key)) for key in ("content", "summary", "output", "text", "refusal"))
    return next((text for text in held if text), "")


def _as_json(call: Mapping[str, Any]) -> str:
    try:
        return json.dumps(call, ensure_ascii=False, default=str)
    except RecursionError:
        return ""


def _part(value: Any) -> str:
    """The text of a string, or of a list of parts."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        return ""
    texts = [part if isinstance(part, str) else _said_in(part) for part in value]
    return "".join(texts)


def _said_in(part: Any) -> str:
    found = (part.get("text") or part.get("refusal")) if isinstance(part, Mapping) else None
    return found if isinstance(found, str) else ""


# ── tokens ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Tokens:
    """One rollout's tokens, from the items that hold some."""

    prompt: NDArray[np.int32] | None = None
    response: NDArray[np.int32] | None = None
    mask: NDArray[np.bool_] | None = None
    logprobs: NDArray[np.float32] | None = None
    problems: list[Problem] = field(default_factory=list)

    @property
    def has_logprobs(self) -> bool:
        """Whether any generated token has one."""
        return self.logprobs is not None

    @property
    def values(self) -> dict[str, Any]:
        """Under our names, what is there."""
        found = {
            "prompt_ids": self.prompt,
            "response_ids": self.response,
            "loss_mask": self.mask,
            "logprob/rollout": self.logprobs,
        }
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of the model."""

    prompt: NDArray[np.int32]
    generated: NDArray[np.int32]
    logprobs: NDArray[np.float32] | None

    @property
    def whole(self) -> NDArray[np.int32]:
        return np.concatenate([self.prompt, self.generated])


def read_tokens(output: Sequence[Mapping[str, Any]], where: str) -> Tokens:
    """Join the model calls of a rollout."""
    found = Tokens()
    calls = [call for item in output if (call := _call(item, where, found.problems)) is not None]
    branches = _branches(calls)
    if not branches:
        return found
    branch = max(branches, key=lambda one: sum(len(call.generated) for call in one))
    if len(branches) > 1:
        lost = sum(len(call.generated) for one in branches if one is not branch for call in one)
        what = f"later prompts do not continue the tokens before them: {len(branches)} branches, the longest is read"
        found.problems.append(Problem("branches", f"{what}, {lost} generated tokens are left out", where))
    return _joined(branch, found)


def _call(item: Mapping[str, Any], where: str, problems: list[Problem]) -> _Call | None:
    """An item's tokens; an empty generation is no call, as in NeMo-RL."""
    if not item.get("generation_token_ids"):
        return None
    prompt, generated = integers(item.get("prompt_token_ids")), integers(item["generation_token_ids"])
    if prompt is None or generated is None:
        problems.append(Problem("bad-ids", "an item's tokens are no list of token ids, left out", where))
        return None
    return _Call(prompt, generated, _logprobs(item, len(generated), where, problems))


def _logprobs(item: Mapping[str, Any], length: int, where: str, problems: list[Problem]) -> NDArray[np.float32] | None:
    value = item.get("generation_log_probs")
    if value is None or value == []:
        return None
    read = floats(value)
    if read is None:
        problems.append(Problem("bad-column", "logprob/rollout is no list of numbers, left out", where))
        return None
    if len(read.values) != length:
        problems.append(Problem("length-mismatch", mismatch(length, len(read.values), "logprob/rollout"), where))
        return None
    return read.values


def _branches(calls: Sequence[_Call]) -> list[list[_Call]]:
    """Calls in which each prompt continues all tokens before it."""
    found: list[list[_Call]] = []
    for call in calls:
        if found and _continues(call, found[-1][-1]):
            found[-1].append(call)
        else:
            found.append([call])
    return found


def _continues(call: _Call, before: _Call) -> bool:
    size = len(before.prompt) + len(before.generated)
    return len(call.prompt) >= size and bool(np.array_equal(call.prompt[:size], before.whole))


def _joined(branch: Sequence[_Call], found: Tokens) -> Tokens:
    found.prompt = branch[0].prompt
    seen = len(found.prompt)
    ids: list[NDArray[np.int32]] = []
    masks: list[NDArray[np.bool_]] = []
    logprobs: list[NDArray[np.float32]] = []
    for call in branch:
        between = call.prompt[seen:]
        ids += [between, call.generated]
        masks += [np.zeros(len(between), np.bool_), np.ones(len(call.generated), np.bool_)]
        absent = np.full(len(call.generated), np.nan, np.float32)
        logprobs += [np.full(len(between), np.nan, np.float32), absent if call.logprobs is None else call.logprobs]
        seen = len(call.prompt) + len(call.generated)
    found.response, found.mask = np.concatenate(ids), np.concatenate(masks)
    if any(call.logprobs is not None for call in branch):
        found.logprobs = np.concatenate(logprobs)
    return found
