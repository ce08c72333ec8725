"""rLLM's episodes: one JSON file each, of training and of evaluation.

Training, with ``rllm.episode_logging.log_episodes=true`` (``EpisodeLogger`` at commit 9beb6e0; ``trainer.log_episodes`` of its
older trainers)::

    episodes/{train|val}_step_{N}_epoch_{E}/episode_hash{8}_id{task}_{rollout}.json      and batch_summary.json

with ``training_step, epoch, episode_id, task, task_hash, is_correct, termination_reason, metrics`` and ``trajectories``, each
with ``name, uid, reward`` and ``steps`` (``chat_completions``, ``model_response``, ``action``, ``reward`` and so on). Token ids
and log-probs, which a step has in memory, are not written.

Evaluation, ``rllm eval --save-episodes`` (``EvalEpisodeStore``, on by default): ``episodes/episode_{i:06d}_{task}.json`` beside
``meta.json``, the whole ``Episode.model_dump``, so ``prompt_ids, response_ids, logprobs, weight_version, advantage`` too.

- A group is ``{task id}:{trajectory name}``, the task id being what stands before the colon of the episode's id
  (``_build_trajectory_groups``).
- A trajectory without a reward has its last step's (``_validate_and_propagate_rewards``).
- Steps whose prompt continues the one before are one sequence; others are sequences of their own with the same reward.
- ``0.0`` is what a step's reward is until somebody sets it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from credit_inspector.rollout import Problem, Run, Step
from credit_inspector.trainers import ReadOptions, reader
from credit_inspector.trainers._chats import is_chat, made, parted, word
from credit_inspector.trainers._rollouts import Columns, mismatch, no_step, read_step
from credit_inspector.trainers._rows import Item, Parsed, Row, first_rows, parse
from credit_inspector.trainers._turns import Turn, sequences
from credit_inspector.trainers._values import floats, integers, text, whole

_FOLDER = re.compile(r"(train|val)_step_(\d{1,9})_epoch_(\d{1,9})")
_FILE = re.compile(r"episode_.+\.json")
_TRIED = 3
_OURS = (
    "sample_id",
    "group_id",
    "prompt",
    "response",
    "prompt_ids",
    "response_ids",
    "loss_mask",
    "reward",
    "policy_version",
    "truncated",
    "advantage",
    "logprob/rollout",
)
_COLUMNS = Columns(mapping={name: name for name in _OURS}, numpy_text=False)
_ENDED = {"max_response_length_exceeded": True, "max_prompt_length_exceeded": True, "env_done": False}
_HEAVY = ("trajectories", "steps", "chat_completions", "prompt_ids", "response_ids", "logprobs", "routing_matrices")

_Files = Mapping[int, Sequence[Path]]


@reader("rllm")
def open_rllm(path: Path, options: ReadOptions) -> Run | None:
    """Open a run's folder, ``episodes``, one step's folder or one episode.

    Raises:
        UsageError: on reading a step that is not there.
    """
    if path.is_file():
        return _run(path, {_step_of(path): [path]}, _notes("")) if path.suffix == ".json" and _is_episode(path) else None
    home = path / "episodes" if (path / "episodes").is_dir() else path
    if not home.is_dir():
        return None
    by_split = _folders(home)
    for split in ("train", "val"):
        if split in by_split:
            unread = ", ".join(map(str, by_split.get("val", ())))
            other = f"not read: validation at step {unread}" if unread else ""
            said = "there is no training here: these are validation's episodes" if split == "val" else other
            return _run(path, by_split[split], _notes(said))
    files = _episodes(home)
    if not files:
        return None
    said = "an evaluation's episodes: nothing was trained on them, and all stand in step 0"
    return _run(path, {0: files}, _notes(said))


def _run(path: Path, files: _Files, notes: tuple[str, ...]) -> Run:
    read = partial(_read, files)
    return Run(
        path=path, trainer="rllm", steps=tuple(sorted(files)), read=read, columns=("logprob/rollout", "advantage"), notes=notes
    )


def _notes(first: str) -> tuple[str, ...]:
    return (
        *((first,) if first else ()),
        "groups are rLLM's: the task of an episode and the name of the trajectory",
        "reward is the trajectory's, else its last step's; a trajectory of several sequences gives each of them the same",
        "token ids and the sampler's log-probs are there only where rLLM wrote whole steps, as its evaluation does",
    )


# ── which files ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _folders(home: Path) -> dict[str, dict[int, list[Path]]]:
    """Files by step of each split; epochs of one step stand together."""
    inside = [home] if _FOLDER.fullmatch(home.name) else sorted(home.iterdir())
    found: dict[str, dict[int, list[Path]]] = {}
    for folder in inside:
        name = _FOLDER.fullmatch(folder.name)
        if name and folder.is_dir() and (files := _episodes(folder)):
            found.setdefault(name[1], {}).setdefault(int(name[2]), []).extend(files)
    return found


def _episodes(folder: Path) -> list[Path]:
    files = sorted(file for file in folder.glob("episode_*.json") if _FILE.fullmatch(file.name))
    return files if any(map(_is_episode, files[:_TRIED])) else []


def _is_episode(file: Path) -> bool:
    """Whether a file's trajectories, which are its rows, are rLLM's."""
    if not file.is_file() or not (rows := first_rows(file, 1)):
        return False
    keys = set(rows[0])
    return "steps" in keys and keys >= {"uid", "name", "reward"} and isinstance(_load(file), Mapping)


def _load(file: Path) -> Mapping[str, Any] | str:
    """An episode, or what is wrong with the file."""
    try:
        read = parse(file.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    except OSError as error:
        return str(error)
    value = read.value if isinstance(read, Parsed) else None
    if not isinstance(value, Mapping) or not isinstance(value.get("trajectories"), list):
        return read if isinstance(read, str) else "no episode with trajectories"
    return value if "episode_id" in value or "is_correct" in value else "no episode of rLLM's"


def _step_of(file: Path) -> int:
    episode = _load(file)
    return (whole(episode.get("training_step")) or 0) if isinstance(episode, Mapping) else 0


# ── one step ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _read(files: _Files, step: int) -> Step:
    if step not in files:
        raise no_step(step, files)
    return read_step(step, _items(files[step]), _COLUMNS)


def _items(files: Sequence[Path]) -> Iterator[Item]:
    for number, file in enumerate(files, 1):
        episode = _load(file)
        if isinstance(episode, str):
            yield Problem("bad-file", f"{file.name} cannot be read ({episode}), skipped", file.name)
        else:
            yield from made(partial(_episode, episode, number, file.name), file.name)


def _episode(episode: Mapping[str, Any], number: int, where: str) -> Iterator[Item]:
    name = word(episode.get("episode_id")) or word(episode.get("id")) or where
    task = name.partition(":")[0] if ":" in name else word(episode.get("task_hash"))
    trajectories = [one for one in episode["trajectories"] if isinstance(one, Mapping)]
    if len(trajectories) < len(episode["trajectories"]):
        yield Problem("bad-line", f"{where}: a trajectory is no object, skipped", where)
    shared = {key: value for key, value in episode.items() if key not in _HEAVY}
    reason = episode.get("termination_reason")
    for place, one in enumerate(trajectories):
        role = word(one.get("name"))
        values = {
            "sample_id": name if len(trajectories) == 1 else f"{name}/{role or place}",
            "group_id": f"{task}:{role}" if task else None,
            "reward": _reward(one),
            "truncated": _ENDED.get(reason) if isinstance(reason, str) else None,
            "episode": shared,
            "trajectory": {key: value for key, value in one.items() if key not in _HEAVY},
        }
        yield from _sequences(one, values, number, where)


def _reward(trajectory: Mapping[str, Any]) -> Any:
    steps = trajectory.get("steps")
    last = steps[-1] if isinstance(steps, list) and steps else None
    given = trajectory.get("reward")
    return last.get("reward") if given is None and isinstance(last, Mapping) else given


def _sequences(trajectory: Mapping[str, Any], values: dict[str, Any], number: int, where: str) -> Iterator[Item]:
    raw = trajectory.get("steps")
    steps = [one for one in raw if isinstance(one, Mapping)] if isinstance(raw, list) else []
    if not steps:
        yield Problem("no-response", f"{values['sample_id']} has no steps: rLLM does not train on it", where)
        return
    for step in steps:
        yield from _misfits(step, values["sample_id"])
    parts = _by_ids(steps) or _by_chat(steps)
    for place, (own, turns) in enumerate(parts):
        last = steps[turns[-1]]
        name = values["sample_id"] if len(parts) == 1 else f"{values['sample_id']}#{place + 1}"
        recorded = {"steps": [_light(steps[turn]) for turn in turns], "messages": _chat(last)}
        known = {"policy_version": last.get("weight_version"), "advantage": last.get("advantage") if len(turns) == 1 else None}
        yield Row(number, values | own | recorded | known | {"sample_id": name}, place=number)
    if len(parts) > 1:
        said_of = f"its {len(steps)} steps do not continue each other: {len(parts)} sequences, each with the trajectory's reward"
        yield Problem("several-sequences", said_of, values["sample_id"])


def _misfits(step: Mapping[str, Any], where: str) -> Iterator[Problem]:
    ids, values = step.get("response_ids"), step.get("logprobs")
    if not isinstance(ids, list) or not ids or values is None or values == []:
        return
    read = floats(values)
    if read is None:
        yield Problem("bad-column", "logprob/rollout is no list of numbers, left out", where)
    elif len(read.values) != len(ids):
        yield Problem("length-mismatch", mismatch(len(ids), len(read.values), "logprob/rollout"), where)


def _light(step: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in step.items() if key not in _HEAVY}


_Part = tuple[dict[str, Any], list[int]]


def _by_ids(steps: Sequence[Mapping[str, Any]]) -> list[_Part]:
    """Sequences by token ids; empty where a step has none."""
    turns = [_turn(step) for step in steps]
    known = [turn for turn in turns if turn is not None]
    if len(known) < len(turns):
        return []
    return [(_text(steps, one.turns) | one.values(), one.turns) for one in sequences(known)]


def _turn(step: Mapping[str, Any]) -> Turn | None:
    prompt, response = integers(step.get("prompt_ids")), integers(step.get("response_ids"))
    if prompt is None or response is None or not len(response):
        return None
    read = floats(step.get("logprobs"))
    fits = read is not None and len(read.values) == len(response)
    return Turn(prompt, response, read.values if read is not None and fits else None)


def _text(steps: Sequence[Mapping[str, Any]], turns: Sequence[int]) -> dict[str, Any]:
    """The words of a sequence that is known by its ids."""
    return _chat_parts(steps[turns[-1]], steps[turns[0]])


def _by_chat(steps: Sequence[Mapping[str, Any]]) -> list[_Part]:
    """Sequences by messages: a step that holds all of the one before continues it."""
    found: list[list[int]] = []
    for place, step in enumerate(steps):
        before = _chat(steps[place - 1]) if place else []
        if found and before and _chat(step)[: len(before)] == before:
            found[-1].append(place)
        else:
            found.append([place])
    return [(_chat_parts(steps[turns[-1]], steps[turns[0]]), turns) for turns in found]


def _chat(step: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    messages = step.get("chat_completions")
    return list(messages or ()) if is_chat(messages) else []


def _chat_parts(last: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    """Prompt and response: the first step's last message is the first that the policy wrote."""
    messages, begun = _chat(last), _chat(first)
    if not messages:
        prompt = next((first[key] for key in ("observation", "input") if first.get(key) is not None), None)
        said = next((last[key] for key in ("model_response", "output", "action") if last.get(key)), None)
        return {"prompt": text(prompt), "response": text(said)}
    by_policy = bool(begun) and begun[-1].get("role") == "assistant"
    found = parted(messages, begin=len(begun) - by_policy if begun else None)
    if found["response"] is None and last.get("model_response"):
        found["response"] = text(last["model_response"])
    return {"prompt": found["prompt"], "response": found["response"]}
