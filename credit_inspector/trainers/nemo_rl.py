"""NeMo-RL's log folder: ``exp_{NNN}/train_data_step{N}.jsonl``, one line a sample, written by default.

Read in NeMo-RL, commit 7ea279a (``Logger.log_batched_dict_as_jsonl``, called from GRPO, PPO and distillation; off only with
``env.should_log_nemo_gym_responses``). Each line is a micro-batch of one, so every field is a list of length 1, beside ``idx``:
``token_ids``, ``token_loss_mask``, ``advantages``, ``generation_logprobs`` and ``prev_logprobs`` hold prompt and response in one
list with padding on the right, ``input_lengths`` its length without, ``content`` the text of each message without its role.

What NeMo-RL fills in is cut away: ``advantages`` stand at every place, prompt and padding too; ``generation_logprobs`` are 0
where the environment spoke; ``prev_logprobs`` are 0 everywhere where ``force_on_policy_ratio`` skipped them. With dynamic
sampling ``rewards`` are those of the batch before the filter, in its order: a row's own reward is in ``filtered_rewards``.

``val_data_step{N}.jsonl`` holds ``content`` with roles and ``rewards``. A JSON file of ``message_log`` entries (NeMo-RL with NeMo
Gym) names the tokens of each message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from credit_inspector.errors import FormatError
from credit_inspector.rollout import CheckpointAt, Problem, Rollout, Run, Step
from credit_inspector.tokens import has_tokenizer
from credit_inspector.trainers import ReadOptions, reader
from credit_inspector.trainers._joined import split
from credit_inspector.trainers._rollouts import Columns, by_prompt, mismatch, no_step, own_columns, read_step
from credit_inspector.trainers._rows import Item, JsonFile, JsonLines, Row, first_rows, kind
from credit_inspector.trainers._values import floats, integers, number, whole

_FILE = re.compile(r"(train|val)_data_step(\d{1,9})\.jsonl(?:\.(?:gz|bz2|xz|zst))?")
_CHECKPOINT = re.compile(r"step_(\d{1,9})")
_GENERATION = re.compile(r"(?P<prompt>.+)_g\d+")
_TOKENS = {
    "advantage": "advantages",
    "logprob/rollout": "generation_logprobs",
    "logprob/old": "prev_logprobs",
    "logprob/ref": "reference_policy_logprobs",
}
"""Our token columns → NeMo-RL's keys."""
_OWN = frozenset({"token_ids", "token_loss_mask", *_TOKENS.values()})
_BY_TRAINER = ("prev_logprobs", "reference_policy_logprobs")
_MARKS = ("token_ids", "token_loss_mask", "sample_loss_mask", "idx")
"""The keys that tell a file of another name."""
_OURS = "credit_inspector."
"""Before our names in a row, so that none is a key of the file."""
_PROMPT_MESSAGES = 2
"""How many messages a prompt has: the user's, after a system message or not."""


@reader("nemo_rl")
def open_nemo_rl(path: Path, options: ReadOptions) -> Run | None:
    """Open an experiment folder, the log folder above it, one file of it, or a JSON file of message logs.

    Raises:
        FormatError: the files have NeMo-RL's names and no row can be read.
        UsageError: on reading a step that is not there.
    """
    if path.is_file() and kind(path) == "json":
        return _open_message_logs(path)
    found = _files(path)
    files = found.train or found.validation
    if not files:
        return None
    first = next((rows for file in files.values() if (rows := first_rows(file, 4))), [])
    if not first and found.named:
        raise FormatError(f"{path} holds {len(files)} NeMo-RL files, none of which has a row that can be read")
    fits = _is_named if found.named else _is_marked
    if not first or not all(map(fits, first)):
        return None
    checkpoints = _checkpoints((path, found.folder, found.folder.parent))
    return Run(
        path=path,
        trainer="nemo_rl",
        steps=tuple(files),
        read=partial(_read, files, _mapping(rewarded=any("rewards" in row for row in first))),
        checkpoints=checkpoints,
        tokenizer=_tokenizer(checkpoints),
        columns=_columns(first),
        notes=(*_notes(first, validation=not found.train), *_left_out(found)),
    )


# ── which files ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Files:
    """The files of one experiment, by step."""

    folder: Path
    train: Mapping[int, Path] = field(default_factory=dict)
    validation: Mapping[int, Path] = field(default_factory=dict)
    named: bool = True


def _files(path: Path) -> _Files:
    """A log folder that holds one experiment stands for it; of several none is chosen here."""
    if path.is_file():
        return _one_file(path)
    here = _in_folder(path)
    if here.train or here.validation or not path.is_dir():
        return here
    inside = [_in_folder(folder) for folder in sorted(path.glob("exp_*")) if folder.is_dir()]
    filled = [one for one in inside if one.train or one.validation]
    return filled[0] if len(filled) == 1 else here


def _one_file(path: Path) -> _Files:
    name = _FILE.fullmatch(path.name)
    if name is None:
        return _Files(path.parent, {0: path} if kind(path) == "jsonl" else {}, named=False)
    files = {int(name[2]): path}
    return _Files(path.parent, files) if name[1] == "train" else _Files(path.parent, validation=files)


def _in_folder(folder: Path) -> _Files:
    found: dict[str, dict[int, Path]] = {"train": {}, "val": {}}
    for file in sorted(folder.glob("*_data_step*.jsonl*")) if folder.is_dir() else ():
        if (name := _FILE.fullmatch(file.name)) and file.is_file():
            found[name[1]].setdefault(int(name[2]), file)
    return _Files(folder, dict(sorted(found["train"].items())), dict(sorted(found["val"].items())))


def _is_named(row: Mapping[str, Any]) -> bool:
    """Whether a row of a file with NeMo-RL's name is NeMo-RL's: lists of one, and the place in the batch."""
    return "idx" in row and any(isinstance(row.get(key), list) for key in ("content", "token_ids", "rewards"))


def _is_marked(row: Mapping[str, Any]) -> bool:
    return all(key in row for key in _MARKS) and isinstance(row["token_ids"], list)


def _checkpoints(folders: Iterable[Path]) -> tuple[CheckpointAt, ...]:
    """``step_{N}`` beside the logs, or in ``results`` and ``checkpoints`` there."""
    found: dict[int, Path] = {}
    for folder in dict.fromkeys(folders):
        for home in (folder, folder / "results", folder / "checkpoints"):
            for place in home.glob("step_*") if home.is_dir() else ():
                name = _CHECKPOINT.fullmatch(place.name)
                if name and (place / "policy").is_dir():
                    found.setdefault(int(name[1]), place)
    return tuple(CheckpointAt(step, place) for step, place in sorted(found.items()))


def _tokenizer(checkpoints: Sequence[CheckpointAt]) -> Path | None:
    places = (checkpoint.path / "policy" / "tokenizer" for checkpoint in reversed(checkpoints))
    return next((place for place in places if has_tokenizer(place)), None)


# ── what the run holds ──────────────────────────────────────────────────────────────────────────────────────────────


def _mapping(*, rewarded: bool) -> Columns:
    """Our names; without the reward's where the files hold none, so that none is missed."""
    return own_columns(*_TOKENS, without=[] if rewarded else ["reward"], prefix=_OURS)


def _columns(first: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(name for name, key in _TOKENS.items() if any(_recorded(row, key) for row in first))


def _recorded(row: Mapping[str, Any], key: str) -> bool:
    value = _unwrapped(row.get(key))
    return isinstance(value, list) and not (key == "prev_logprobs" and _all_zero(value))


def _notes(first: Sequence[Mapping[str, Any]], *, validation: bool) -> Iterator[str]:
    if validation:
        yield "these are validation samples: no training step used them"
    yield _grouping(first[0])
    if any("filtered_rewards" in row for row in first):
        yield (
            "reward is filtered_rewards: with dynamic sampling NeMo-RL's rewards are those of the batch before the filter, "
            "in its order, and say nothing of the row they stand in"
        )
    elif any("rewards" in row for row in first):
        yield "reward is NeMo-RL's rewards, after its reward scaling and shaping where those are on"
    else:
        yield "no rewards are in these files"
    yield from _on_tokens(first)


def _grouping(row: Mapping[str, Any]) -> str:
    if _is_generation(_unwrapped(row.get("sample_id"))):
        return "groups are by NeMo-RL's sample_id without its _g ending"
    return "groups are equal prompts, as NeMo-RL's baseline has them: it writes no group id"


def _on_tokens(first: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not any("token_ids" in row for row in first):
        yield "no token ids are in these files: the prompt ends where the model first speaks, without roles after the first one"
        return
    columns = _columns(first)
    if "logprob/rollout" in columns:
        yield "logprob/rollout is generation_logprobs, the sampler's; where the environment spoke NeMo-RL fills in 0: missing"
    if "logprob/old" in columns:
        yield "logprob/old is prev_logprobs, the policy's before the update"
    elif any("prev_logprobs" in row for row in first):
        yield "prev_logprobs are all 0 (force_on_policy_ratio skips them): left out, the ratio of this run is 1"
    if "logprob/ref" not in columns:
        yield "log-probs of the reference are not in these files"


def _left_out(found: _Files) -> Iterator[str]:
    if found.train and found.validation:
        count = len(found.validation)
        yield f"{count} val_data_step {'file lies' if count == 1 else 'files lie'} beside the training data: open one by its name"


# ── one step ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _read(files: Mapping[int, Path], columns: Columns, step: int) -> Step:
    if step not in files:
        raise no_step(step, files)
    return read_step(step, _items(JsonLines(files[step]).scan()), columns, group=_groups)


def _items(items: Iterable[Item]) -> Iterator[Item]:
    """Rows under our names, and at the end what was counted over them."""
    rows = untrained = skipped = 0
    for item in items:
        if isinstance(item, Problem):
            yield item
            continue
        rows += 1
        raw = {key: _unwrapped(value) for key, value in item.values.items()}
        untrained += _is_untrained(raw)
        if _all_zero(raw.get("prev_logprobs")):
            skipped += 1
            del raw["prev_logprobs"]
        yield _row(item, raw)
    if untrained:
        what = f"{untrained} of {rows} rows have sample_loss_mask 0: kept, and no token of theirs was trained"
        yield Problem("untrained-rows", what)
    if skipped:
        yield Problem("skipped-logprobs", f"prev_logprobs are all 0 in {skipped} of {rows} rows: not computed, left out")


def _unwrapped(value: Any) -> Any:
    """What a list of one holds: NeMo-RL writes micro-batches of one."""
    return value[0] if isinstance(value, list) and len(value) == 1 and _is_packing(value[0]) else value


def _is_packing(inner: Any) -> bool:
    return isinstance(inner, list | Mapping | str | int | float) or inner is None


def _all_zero(value: Any) -> bool:
    """Whether a list holds nothing but 0: the fill of values that were not computed."""
    return isinstance(value, list) and len(value) > 1 and not any(value) and all(type(one) in (int, float) for one in value)


def _is_untrained(raw: Mapping[str, Any]) -> bool:
    return number(raw.get("sample_loss_mask")).value == 0


def _row(row: Row, raw: Mapping[str, Any]) -> Row:
    found, problems = _sequence(raw, str(row.number))
    ours = found | _texts(raw.get("content"), found) | _identity(raw, row)
    if _is_untrained(raw) and "loss_mask" in found:
        ours["loss_mask"] = np.zeros(len(found["loss_mask"]), np.bool_)
    rewards = "filtered_rewards" if "filtered_rewards" in raw else "rewards"
    ours["reward"] = raw.get(rewards)
    return _under_our_names(row, raw, ours, (*_OWN, rewards, "sample_id"), problems)


def _under_our_names(
    row: Row, raw: Mapping[str, Any], ours: Mapping[str, Any], known: Iterable[str], problems: Sequence[Problem]
) -> Row:
    values = {key: value for key, value in raw.items() if key not in known}
    values |= {_OURS + name: value for name, value in ours.items()}
    return Row(row.number, values, (*row.problems, *problems), row.place)


def _identity(raw: Mapping[str, Any], row: Row) -> dict[str, Any]:
    """The sample's name: of ``{prompt}_g{generation}`` the first part is the group's."""
    name = raw.get("sample_id")
    if not isinstance(name, str):
        index = whole(raw.get("idx"))
        return {"sample_id": str(row.number - 1 if index is None else index)}
    found = _GENERATION.fullmatch(name)
    return {"sample_id": name, "group_id": found["prompt"]} if found else {"sample_id": name}


def _is_generation(name: Any) -> bool:
    return isinstance(name, str) and _GENERATION.fullmatch(name) is not None


def _sequence(raw: Mapping[str, Any], where: str) -> tuple[dict[str, Any], list[Problem]]:
    """The joined sequence, cut."""
    if "token_ids" not in raw:
        return {}, []
    # of a file without the wrapping, a list of one token was unwrapped: put it back
    tokens = {key: [raw[key]] if isinstance(raw[key], int | float) else raw[key] for key in _OWN if raw.get(key) is not None}
    columns = {name: _without_first(key, tokens.get(key)) for name, key in _TOKENS.items()}
    found, problems = split(
        tokens.get("token_ids"),
        tokens.get("token_loss_mask"),
        columns,
        end=whole(raw.get("input_lengths")),
        trained_only=("advantage", "logprob/rollout"),
        where=where,
    )
    if "loss_mask" not in found and "prompt_ids" in found:
        del found["prompt_ids"]  # without a mask nothing says where the prompt ends
    return found, problems


def _without_first(key: str, values: Any) -> Any:
    """The first token of a sequence has no log-prob by the trainer: the 0 there is filled in."""
    filled = key in _BY_TRAINER and isinstance(values, list) and values and values[0] == 0
    return [None, *values[1:]] if filled else values


# ── text ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _texts(content: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    """Prompt and response as text, where the messages say which is which."""
    if isinstance(content, str):
        return {"response": content} if "response_ids" not in found else {}
    if not isinstance(content, list) or not content:
        return {}
    if all(isinstance(message, Mapping) for message in content):
        return _chat(content)
    if not all(isinstance(message, str) for message in content):
        return {}
    if "response_ids" not in found:
        return {"prompt": content[0], "response": "".join(content[1:])}
    return _by_spans(content, found.get("loss_mask"))


def _chat(messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A chat is the prompt up to the model's first message."""
    begin = next((k for k, message in enumerate(messages) if message.get("role") == "assistant"), len(messages))
    return {"prompt": list(messages[:begin]) or None, "response": list(messages[begin:]) or ""}


def _by_spans(content: Sequence[str], mask: Any) -> dict[str, Any]:
    """Model and environment take turns, so the spans of the mask count the messages of the response.

    Where what is left over is no prompt of one message or two, an empty message hides a turn: then no text is given.
    """
    if mask is None or not len(mask) or not mask.any():
        return {}
    turns = int(np.count_nonzero(np.diff(np.concatenate([[False], mask]).astype(np.int8)) == 1))
    ends_outside = not mask[-1]
    texts = list(content)
    while texts and not texts[-1]:
        texts.pop()
    count = 2 * turns - 1 + ends_outside
    if not 1 <= len(texts) - count <= _PROMPT_MESSAGES:
        return {}
    return {"prompt": "".join(texts[:-count]), "response": "".join(texts[-count:])}


# ── groups ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _groups(rollouts: Sequence[Rollout]) -> tuple[Rollout, ...]:
    """Equal prompts, after the prompts of samples without a trained token are found among the others'."""
    known = {one.prompt_ids.tobytes(): one.prompt_ids for one in rollouts if one.prompt_ids is not None and _has_response(one)}
    return by_prompt([one if _has_response(one) else _cut(one, known) for one in rollouts])


def _has_response(one: Rollout) -> bool:
    return one.response_ids is not None and len(one.response_ids) > 0


def _cut(one: Rollout, known: Mapping[bytes, Any]) -> Rollout:
    """A sample in which the model said nothing, with the longest prompt of the step that it begins with."""
    if one.prompt_ids is None:
        return one
    raw = one.prompt_ids.tobytes()
    prompt = max((key for key in known if raw.startswith(key)), key=len, default=b"")
    if not prompt:
        return one
    size = len(known[prompt])
    rest = one.prompt_ids[size:]
    return replace(
        one,
        prompt_ids=one.prompt_ids[:size],
        response_ids=rest,
        loss_mask=np.zeros(len(rest), np.bool_),
        columns={},
    )


# ── message logs ────────────────────────────────────────────────────────────────────────────────────────────────────


def _open_message_logs(path: Path) -> Run | None:
    first = first_rows(path, 4)
    logs = [log for row in first for log in _logs(row)]
    if not first or not logs:
        return None
    recorded = any(_messages_with(log["message_log"], "generation_logprobs") for log in logs)
    rewarded = any(_log_reward(log) is not None for log in logs)
    notes = (
        "groups are equal prompts: message logs have no group id",
        "the response begins at the first message that the model generated, one with generation_logprobs",
        f"{'' if rewarded else 'rewards, '}log-probs before the update and advantages are not in message logs",
    )
    return Run(
        path=path,
        trainer="nemo_rl",
        steps=(0,),
        read=partial(_read_logs, path, _mapping(rewarded=rewarded)),
        columns=("logprob/rollout",) if recorded else (),
        notes=notes,
    )


def _logs(values: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The message logs of a row: its own, or those of a saved exchange under ``expected_output`` beside their ``input``."""
    if _is_log(values):
        return [values]
    outputs, inputs = values.get("expected_output"), values.get("input")
    if not isinstance(outputs, list) or not outputs or not all(map(_is_log, outputs)):
        return []
    paired = inputs if isinstance(inputs, list) and len(inputs) == len(outputs) else [None] * len(outputs)
    return [{**(one if isinstance(one, Mapping) else {}), **log} for one, log in zip(paired, outputs, strict=True)]


def _is_log(values: Any) -> bool:
    messages = values.get("message_log") if isinstance(values, Mapping) else None
    if not isinstance(messages, list) or not messages:
        return False
    return all(isinstance(message, Mapping) and "role" in message and "token_ids" in message for message in messages)


def _messages_with(messages: Iterable[Mapping[str, Any]], key: str) -> bool:
    return any(isinstance(message.get(key), list) and len(message[key]) > 0 for message in messages)


def _read_logs(path: Path, columns: Columns, step: int) -> Step:
    if step != 0:
        raise no_step(step, (0,))
    items = (one for item in JsonFile(path).scan() for one in _log_items(item))
    return read_step(0, items, columns)


def _log_items(item: Item) -> Iterator[Item]:
    if isinstance(item, Problem):
        yield item
        return
    logs = _logs(item.values)
    if not logs:
        yield Problem("bad-line", f"element {item.number} holds no message log, skipped")
    for place, log in enumerate(logs):
        yield _log_row(item, log, place, len(logs))


def _log_row(row: Row, log: Mapping[str, Any], place: int, count: int) -> Row:
    where = str(place) if count > 1 else str(row.number - 1)
    found, problems = _of_messages(log["message_log"], where)
    ours = found | _log_texts(log) | {"sample_id": where, "reward": _log_reward(log)}
    first = Row(row.number, row.values, row.problems if place == 0 else (), row.place)
    return _under_our_names(first, log, ours, ("message_log", "input_message_log"), problems)


def _log_reward(log: Mapping[str, Any]) -> Any:
    result = log.get("full_result")
    inner = result.get("reward") if isinstance(result, Mapping) else None
    return next((value for value in (log.get("total_reward"), log.get("reward"), inner) if value is not None), None)


def _log_texts(log: Mapping[str, Any]) -> dict[str, Any]:
    """The text of the messages, else the request as the prompt: NeMo Gym's message logs leave the text empty."""
    messages = [{key: message.get(key) for key in ("role", "content")} for message in log["message_log"]]
    if any(message["content"] for message in messages):
        return _chat(messages)
    request = log.get("responses_create_params")
    asked = request.get("input") if isinstance(request, Mapping) else None
    return {"prompt": asked} if isinstance(asked, str | list) else {}


def _of_messages(messages: Sequence[Mapping[str, Any]], where: str) -> tuple[dict[str, Any], list[Problem]]:
    """The messages' tokens in one sequence; what the model generated is trained, as in NeMo-RL."""
    ids: list[np.ndarray[Any, Any]] = []
    masks: list[np.ndarray[Any, Any]] = []
    logprobs: list[np.ndarray[Any, Any]] = []
    problems: list[Problem] = []
    begin: int | None = None
    for message in messages:
        read = integers(message["token_ids"])
        if read is None:
            return {}, [Problem("bad-ids", "a message's token_ids are no list of token ids, left out", where)]
        generated = message.get("role") == "assistant" and "generation_logprobs" in message
        if generated and begin is None:
            begin = sum(map(len, ids))
        ids.append(read)
        masks.append(np.full(len(read), generated))
        logprobs.append(_message_logprobs(message, len(read), where, problems) if generated else np.full(len(read), np.nan))
    size = sum(map(len, ids))
    columns = {"logprob/rollout": np.concatenate(logprobs)} if _messages_with(messages, "generation_logprobs") else {}
    found, more = split(np.concatenate(ids), np.concatenate(masks), columns, begin=size if begin is None else begin, where=where)
    return found, [*problems, *more]


def _message_logprobs(message: Mapping[str, Any], length: int, where: str, problems: list[Problem]) -> np.ndarray[Any, Any]:
    read = floats(message["generation_logprobs"])
    if read is None:
        problems.append(Problem("bad-column", "logprob/rollout is no list of numbers, left out", where))
    elif len(read.values) != length:
        problems.append(Problem("length-mismatch", mismatch(length, len(read.values), "logprob/rollout"), where))
    else:
        return read.values
    return np.full(length, np.nan)
