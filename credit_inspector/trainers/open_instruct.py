"""open-instruct's traces: ``{run_name}_rollouts_{shard:06d}.jsonl``, one line a response, and ``{run_name}_metadata.jsonl``.

Written with ``--save_traces --rollouts_save_path DIR`` (``rl_utils.py`` of open-instruct at commit e6c3044). A line is a
``RolloutRecord``: ``step``, ``sample_idx`` and ``prompt_idx`` (both count from 0 within the step), ``prompt_tokens`` and
``response_tokens`` (unpadded), ``reward``, ``advantage`` (one number), ``finish_reason``, ``dataset``, ``ground_truth``,
``request_info`` (what tools did) and ``logprobs`` (the sampler's, or null). A shard takes 10,000 responses, a step lies in one.

Text is not in it. Neither is the mask: tokens that a tool wrote stand among the response's, with a log-probability of 0.0 that
is fill. In a response that called tools such zeros are therefore missing here, and which tokens were the tools' stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from credit_inspector.errors import FormatError
from credit_inspector.rollout import Problem, Run, Step
from credit_inspector.trainers import ReadOptions, reader
from credit_inspector.trainers._rollouts import Columns, no_step, read_step
from credit_inspector.trainers._rounds import Rounds, marked
from credit_inspector.trainers._rows import Item, JsonLines, Places, Row, by_step, first_rows, kind
from credit_inspector.trainers._values import floats, number, whole

_SHARD = re.compile(r"(?P<run>.+)_rollouts_(?P<shard>\d+)\.(?:jsonl|ndjson)(?:\.\w+)?")
_METADATA = "_metadata.jsonl"
_KEYS = ("step", "sample_idx", "prompt_idx", "prompt_tokens", "response_tokens", "finish_reason")
_LOGPROB = "logprob/rollout"
_OURS = {
    "sample_id": "sample_id",
    "group_id": "group_id",
    "prompt_ids": "prompt_ids",
    "response_ids": "response_ids",
    "reward": "reward",
    "advantage": "advantage",
    "truncated": "truncated",
    _LOGPROB: _LOGPROB,
}
_TAKEN = ("step", "prompt_tokens", "response_tokens", "logprobs")
"""Keys that become ours; all others stay in ``extra`` as they are."""

_NOTES = (
    "groups are open-instruct's step and prompt_idx; steps count from 0",
    "reward is the whole response's; the log-probs are the sampler's (vLLM, as processed by its sampling settings)",
    "which tokens tools wrote is not in the files: where a response called tools, theirs count as trained",
    "a log-prob of exactly 0 in a response that called tools is taken for open-instruct's fill, and is missing",
    "text is not in the files: a tokenizer shows it",
)

_Steps = Mapping[int, Sequence[tuple[JsonLines, Places]]]


@reader("open_instruct")
def open_open_instruct(path: Path, options: ReadOptions) -> Run | None:
    """Open a folder of traces, a run's metadata file (all of its shards), or one shard.

    Raises:
        FormatError: the folder holds the traces of several runs.
    """
    files = _files(path)
    first = next((rows for file in islice(files, 8) if (rows := first_rows(file, 5))), [])
    if not first or not _is_trace(first[0]):
        return None
    _check_one_run(path, files)
    steps = _steps(files)
    return Run(
        path=path,
        trainer="open_instruct",
        steps=tuple(steps),
        read=partial(_read, steps),
        columns=(_LOGPROB,) if any(isinstance(row.get("logprobs"), list) for row in first) else (),
        notes=_NOTES,
    )


def _files(path: Path) -> list[Path]:
    """The shards in order; any table of lines counts when it was named by itself."""
    if path.is_file():
        if path.name.endswith(_METADATA):
            run = path.name.removesuffix(_METADATA)
            return [file for file in _files(path.parent) if _run_of(file) == run]
        return [path] if kind(path) == "jsonl" else []
    found = (file for file in path.iterdir() if file.is_file()) if path.is_dir() else ()
    return sorted((file for file in found if _SHARD.fullmatch(file.name)), key=lambda file: (_run_of(file), file.name))


def _run_of(file: Path) -> str:
    found = _SHARD.fullmatch(file.name)
    return found["run"] if found else ""


def _is_trace(row: Mapping[str, Any]) -> bool:
    return all(key in row for key in _KEYS)


def _check_one_run(path: Path, files: Sequence[Path]) -> None:
    if len(runs := sorted({_run_of(file) for file in files})) > 1:
        shown = ", ".join(runs[:4]) + (" …" if len(runs) > 4 else "")
        found = f"{path} holds open-instruct traces of {len(runs)} runs: {shown}"
        raise FormatError(found, wanted="one run", do=f"open its {runs[0]}{_METADATA} or one of its shards")


def _steps(files: Sequence[Path]) -> dict[int, list[tuple[JsonLines, Places]]]:
    """Where each step's lines lie, over all shards."""
    found: dict[int, list[tuple[JsonLines, Places]]] = {}
    for file in files:
        table = JsonLines(file)
        for step, places in by_step(table, lambda row: whole(row.values.get("step")), default=0).items():
            if places.numbers or places.problems:
                found.setdefault(step, []).append((table, places))
    return dict(sorted(found.items()))


def _read(steps: _Steps, step: int) -> Step:
    if step not in steps:
        raise no_step(step, steps)
    return read_step(step, _items(steps[step]), Columns(mapping=_OURS, numpy_text=False))


def _items(parts: Sequence[tuple[JsonLines, Places]]) -> Iterator[Item]:
    """The rows under our names, and what there is to say about them together."""
    rounds = Rounds()
    called = 0
    for table, places in parts:
        yield from places.problems
        for row in table.at(places):
            tools = _called_tools(row.values.get("request_info"))
            called += tools
            yield Row(row.number, _values(row.values, rounds, tools), row.problems, row.place)
    if called:
        what = (
            f"{called} response{'s' * (called > 1)} called tools: which tokens tools wrote is not recorded, all count as trained"
        )
        yield Problem("tool-tokens", what)
    if rounds.repeated:
        times = rounds.repeated + 1
        yield Problem("repeated-step", f"the step stands {times} times, as after a restart: each time has groups of its own")


def _values(row: Mapping[str, Any], rounds: Rounds, tools: bool) -> dict[str, Any]:
    again = rounds.of("", _name(row.get("sample_idx")))
    step, prompt, sample = (_name(row.get(key)) for key in ("step", "prompt_idx", "sample_idx"))
    names = {"sample_id": sample, "group_id": None if prompt is None else f"{step}-{prompt}"}
    return {
        **{key: value for key, value in row.items() if key not in _TAKEN},
        **{key: name if name is None else marked(name, again) for key, name in names.items()},
        "prompt_ids": row.get("prompt_tokens"),
        "response_ids": row.get("response_tokens"),
        "truncated": row.get("finish_reason"),
        _LOGPROB: _logprobs(row.get("logprobs"), tools),
    }


def _name(value: Any) -> str | None:
    """An index as text; ``None`` where it is none."""
    found = whole(value)
    return None if found is None else str(found)


def _logprobs(value: Any, tools: bool) -> Any:
    """The sampler's log-probs; zeros of a response that called tools stand for tokens that were not sampled."""
    read = floats(value) if tools else None
    return value if read is None else np.where(read.values == 0.0, np.float32(np.nan), read.values)


def _called_tools(info: Any) -> bool:
    """Whether anything but the policy wrote into the response (``num_calls`` counts the environment's answers too)."""
    if not isinstance(info, Mapping):
        return False
    calls = number(info.get("num_calls")).value or 0.0
    return calls > 0 or info.get("tool_calleds") is True
