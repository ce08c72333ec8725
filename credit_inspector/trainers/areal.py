"""AReaL's trajectories: ``rollout/{version}/{task_id}.jsonl``, one small file a task, one line a response.

Written with ``rollout.dump_to_file=true`` into ``{fileroot}/logs/{user}/{experiment}/{trial}/`` (``workflow_executor.py`` of
AReaL at commit 4aef98d); validation goes to ``eval-rollout/`` beside it. A line: ``task_id`` (the prompt group), ``sample_idx``,
``seqlen``, ``prompt_len``, ``head_version`` and ``tail_version`` (the oldest and the newest weights that wrote the sequence),
``reward``, ``prompt`` and ``completion`` (text, special tokens kept). There are no token ids and no log-probabilities, and no
optimizer step: the folder's number is the newest weights' version, which AReaL counts in updates.

AReaL gives prompt tokens the version −1 and takes the minimum over them too, so ``head_version`` is −1 in its own workflows and
says nothing about the response. It cuts the sequence at ``seqlen`` minus the trained tokens: where tool tokens stand between
model turns, the cut is too late and the prompt holds the beginning of the response.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from credit_inspector.rollout import Problem, Run, Step
from credit_inspector.trainers import ReadOptions, reader
from credit_inspector.trainers._rollouts import Columns, no_step, read_step
from credit_inspector.trainers._rounds import Rounds, marked
from credit_inspector.trainers._rows import Item, JsonLines, Places, Row, by_step, first_rows, kind
from credit_inspector.trainers._values import whole

_TRAIN, _EVAL = "rollout", "eval-rollout"
_KEYS = ("task_id", "sample_idx", "seqlen", "prompt_len", "head_version", "tail_version", "prompt", "completion")
_OURS = ("sample_id", "group_id", "prompt", "response", "reward", "policy_version")
_COLUMNS = Columns(mapping={name: name for name in _OURS}, numpy_text=False)
_TAKEN = ("prompt", "completion")

_NOTES = (
    "a step is a version of the weights: AReaL writes the newest one that sampled the response, and not the update that used it",
    "groups are AReaL's task_id",
    "reward is the whole response's; token ids, masks and log-probs are not in the files",
    "the prompt ends where AReaL cut it (seqlen minus trained tokens): too late where tool tokens stand between model turns",
    "head_version −1 is AReaL's mark of prompt tokens; the sampling version is taken where head and tail are equal, else unknown",
)


@reader("areal")
def open_areal(path: Path, options: ReadOptions) -> Run | None:
    """Open a trial's log folder, its ``rollout`` or ``eval-rollout`` folder, one version's folder, or one file.

    Raises:
        UsageError: on reading a version that is not there.
    """
    if path.is_file():
        return _open_file(path)
    home = next((inner for inner in (path / _TRAIN, path / _EVAL, path) if _versions(inner)), None)
    versions = _versions(home) if home else {}
    if not versions and path.name.isdecimal() and _tasks(path):
        home, versions = path.parent, {int(path.name): path}
    if home is None or not _is_areal_folder(versions.values()):
        return None
    evaluated = (f"these are {_EVAL} responses: validation, which no update used",) if home.name == _EVAL else ()
    reads = partial(_read_version, versions)
    return Run(path=path, trainer="areal", steps=tuple(versions), read=reads, notes=(*evaluated, *_NOTES))


def _open_file(path: Path) -> Run | None:
    rows = first_rows(path, 1) if kind(path) == "jsonl" else []
    if not rows or not _is_areal(rows[0]):
        return None
    table = JsonLines(path)
    steps = by_step(table, lambda row: whole(row.values.get("tail_version")), default=0)
    reads = partial(_read_places, table, steps)
    evaluated = (f"these are {_EVAL} responses: validation, which no update used",) if _EVAL in path.parts[-3:] else ()
    return Run(path=path, trainer="areal", steps=tuple(steps), read=reads, notes=(*evaluated, *_NOTES))


def _versions(folder: Path) -> dict[int, Path]:
    """The folders named by a version, ascending; their files are not looked at."""
    found = (inner for inner in folder.iterdir() if inner.name.isdecimal()) if folder.is_dir() else ()
    return dict(sorted((int(inner.name), inner) for inner in found if inner.is_dir()))


def _tasks(folder: Path) -> list[Path]:
    found = (file for file in folder.glob("*.jsonl") if file.stem.isdecimal())
    return sorted(found, key=lambda file: int(file.stem))


def _is_areal_folder(folders: Any) -> bool:
    """By the first file that has rows, of a few: there are thousands."""
    files = (file for folder in islice(folders, 4) for file in islice(folder.glob("*.jsonl"), 4) if file.stem.isdecimal())
    first = next((rows for file in files if (rows := first_rows(file, 1))), [])
    return bool(first) and _is_areal(first[0])


def _is_areal(row: Mapping[str, Any]) -> bool:
    return all(key in row for key in _KEYS)


def _read_version(versions: Mapping[int, Path], step: int) -> Step:
    if step not in versions:
        raise no_step(step, versions)
    return _step(step, (item for file in _tasks(versions[step]) for item in JsonLines(file).scan()))


def _read_places(table: JsonLines, steps: Mapping[int, Places], step: int) -> Step:
    if step not in steps:
        raise no_step(step, steps)
    return _step(step, (*steps[step].problems, *table.at(steps[step])))


def _step(step: int, items: Any) -> Step:
    return read_step(step, _items(items), _COLUMNS)


def _items(items: Iterator[Item] | Sequence[Item]) -> Iterator[Item]:
    """The rows under our names, and what there is to say about them together."""
    rounds = Rounds()
    prompts: dict[str, str] = {}
    unlike: set[str] = set()
    for item in items:
        if isinstance(item, Problem):
            yield item
            continue
        values = _values(item.values, rounds)
        group, prompt = values["group_id"], values["prompt"]
        if isinstance(group, str) and isinstance(prompt, str) and prompts.setdefault(group, prompt) != prompt:
            unlike.add(group)
        yield Row(item.number, values, item.problems, item.place)
    if unlike:
        tasks = f"{len(unlike)} task{'s' * (len(unlike) > 1)}"
        what = f"{tasks} with responses under unlike prompts: several turns, or cut too late where tools wrote"
        yield Problem("unlike-prompts", what, ", ".join(sorted(unlike)[:5]))
    if rounds.repeated:
        what = f"{rounds.repeated} times a task was written again, as after a restart: each time has a group of its own"
        yield Problem("repeated-task", what)


def _values(row: Mapping[str, Any], rounds: Rounds) -> dict[str, Any]:
    task, sample = row.get("task_id"), row.get("sample_idx")
    again = rounds.of(task, sample)
    group = None if task is None else marked(str(task), again)
    head, tail = whole(row.get("head_version")), whole(row.get("tail_version"))
    return {
        **{key: value for key, value in row.items() if key not in _TAKEN},
        "sample_id": None if group is None or sample is None else f"{group}-{sample}",
        "group_id": group,
        "prompt": row.get("prompt"),
        "response": row.get("completion"),
        "policy_version": tail if tail is not None and tail == head and tail >= 0 else None,
    }
