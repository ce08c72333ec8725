"""slime's and miles' ``Sample``: what was sampled, joined with what was trained on.

The rollout file's sample holds prompt and response in ``tokens``, of which the response is the last ``response_length``;
all its lists per token are the response's. The train file's row of the same sample (``sample_index`` = ``index``) has the
training engine's log-probs, the mask after ``remove_sample``, and advantages. Read in slime at 624b824 and miles at 31f1ca9.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from credit_inspector.errors import FormatError
from credit_inspector.rollout import Problem, Step
from credit_inspector.trainers._rollouts import Columns, no_step, read_step
from credit_inspector.trainers._rows import Row
from credit_inspector.trainers._sglang_files import Files
from credit_inspector.trainers._sglang_plain import Copier, per_token, scalar
from credit_inspector.trainers._sglang_train import Batch, Trained, load
from credit_inspector.trainers._sglang_train import read as read_train
from credit_inspector.trainers._values import flags, floats, integers, number, whole

TOKEN_COLUMNS = {
    "rollout_log_probs": "logprob/rollout",
    "log_probs": "logprob/old",
    "ref_log_probs": "logprob/ref",
    "teacher_log_probs": "logprob/teacher",
    "values": "value/old",
    "advantages": "advantage",
    "returns": "return/old",
    "kl": "kl/trainer",
    "opd_reverse_kl": "kl/teacher",
    "entropy": "entropy/policy",
    "ref_entropy": "entropy/ref",
}
"""Their names of values per token → ours."""

NOT_KEPT = (
    "rollout_routed_experts",
    "rollout_indexer_topk",
    "rollout_top_p_token_ids",
    "rollout_top_p_token_offsets",
    "multimodal_inputs",
    "multimodal_train_inputs",
)
"""Large inputs and replay data that no view has a use for."""

_OURS = (
    "sample_id",
    "group_id",
    "prompt",
    "response",
    "prompt_ids",
    "response_ids",
    "loss_mask",
    "reward",
    "advantage",
    "policy_version",
    "truncated",
)
_USED = frozenset({"index", "group_index", "tokens", "response_length", "loss_mask", "reward", "response", "prompt"})
_USED_TRAIN = frozenset(
    {"tokens", "response_lengths", "total_lengths", "loss_masks", "sample_index", "rollout_position", "local_raw_reward"}
    | {"max_seq_lens", "truncated"}
)
_MASKED = ("advantage", "return/old")
_LATEST = 4
"""A run whose newest tokens are older than so many rollouts was resumed: its versions are counted from there."""


@dataclass(slots=True)
class Sampled:
    """One sample of a rollout file."""

    place: int
    values: Mapping[Any, Any]
    ids: NDArray[np.int32] | None
    length: int | None
    """Of the response, where it fits the ids."""
    problems: list[Problem] = field(default_factory=list)

    @classmethod
    def of(cls, place: int, values: Mapping[Any, Any]) -> Sampled:
        """Read the ids."""
        tokens = per_token(values.get("tokens"))
        ids = None if tokens is None else integers(tokens)
        length = whole(scalar(values.get("response_length")))
        if ids is None:
            missing = values.get("tokens") is None
            return cls(
                place, values, None, None, [] if missing else [Problem("bad-ids", "tokens is no list of token ids", str(place))]
            )
        if len(ids) == 0 and isinstance(text := values.get("response"), str) and text:
            return cls(place, values, None, None)  # a failed sample of which the text was kept
        if length is None or not 0 <= length <= len(ids):
            said = f"{len(ids)} tokens, a response_length of {str(scalar(values.get('response_length')))[:20]}: ids left out"
            return cls(place, values, ids, None, [Problem("length-mismatch", said, str(place))])
        return cls(place, values, ids, length)

    @property
    def index(self) -> int | None:
        """Its number in the run."""
        return whole(scalar(self.values.get("index")))


# ── joining ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _key(index: int | None, ids: NDArray[np.int32] | None, length: int | None) -> tuple[int | None, bytes]:
    """Number and response (the whole sequence where there is no number), so that samples of one number stay apart."""
    tail = b"" if ids is None or length is None else ids[len(ids) - length if index is not None else 0 :].tobytes()
    return index, hashlib.blake2b(tail).digest()


def join(sampled: Sequence[Sampled], batch: Batch) -> list[tuple[Sampled | None, Trained | None]]:
    """Each sample with its row of the train file; rows without a sample stand at the end."""
    if not sampled:
        return [(None, row) for row in batch.rows]
    rows: defaultdict[tuple[int | None, bytes], list[Trained]] = defaultdict(list)
    for row in reversed(batch.rows):
        rows[_key(row.index, row.ids, row.length)].append(row)
    pairs: list[tuple[Sampled | None, Trained | None]] = []
    for one in sampled:
        same = rows.get(_key(one.index, one.ids, one.length))
        pairs.append((one, same.pop() if same else None))
    unused = {id(row) for same in rows.values() for row in same}
    loose = [row for row in batch.rows if id(row) in unused]
    if batch.rows:
        batch.problems += _unpaired(pairs, loose)
    known = {one.index for one in sampled}
    return [*pairs, *((None, row) for row in loose if row.index is None or row.index not in known)]


def _unpaired(pairs: Iterable[tuple[Sampled | None, Trained | None]], loose: Sequence[Trained]) -> Iterable[Problem]:
    known = {one.index for one, _ in pairs if one is not None and one.index is not None}
    alone = sum(row is None for _, row in pairs)
    other = sum(row.index in known for row in loose)
    if other:
        yield Problem("other-tokens", f"{other} rows of the train file have other tokens than the sample of their number")
    if alone:
        yield Problem("no-train-row", f"{alone} samples have no row in the train file: what training adds is missing there")
    if len(loose) > other:
        yield Problem("no-sample", f"{len(loose) - other} rows of the train file have no sample in the rollout file")


# ── one row ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def values_of(one: Sampled | None, row: Trained | None, copier: Copier) -> dict[str, Any]:
    """One response under our names."""
    values: dict[str, Any] = {}
    if row is not None:
        values |= _rest(row.values, _USED_TRAIN | TOKEN_COLUMNS.keys(), copier)
        values |= _present(_own_of_train(row) if one is None else {})
    if one is not None:
        values |= _rest(one.values, _USED | TOKEN_COLUMNS.keys(), copier) | _present(_own(one, copier))
    values |= _ids(one, row) | _masks(one, row) | _reward(one, row, copier)
    return values | _columns(one, row, values.get("loss_mask"))


def _rest(values: Mapping[Any, Any], used: Iterable[str], copier: Copier) -> dict[str, Any]:
    """What no name of ours has a place for, without what is empty."""
    skipped = {*used, *NOT_KEPT}
    kept = ((key, value) for key, value in values.items() if isinstance(key, str) and key not in skipped)
    copied = ((key, copier.copy(value)) for key, value in kept)
    return {key: value for key, value in copied if value is not None and not (isinstance(value, list | dict) and not value)}


def _present(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _own(one: Sampled, copier: Copier) -> dict[str, Any]:
    prompt, response = (copier.copy(one.values.get(key)) for key in ("prompt", "response"))
    status = one.values.get("status")
    return {
        "sample_id": one.index,
        "group_id": _name(one.values.get("group_index")),
        "prompt": prompt if isinstance(prompt, str | list | dict) and prompt else None,
        "response": response if isinstance(response, str) else None,
        "truncated": {"truncated": True, "completed": False}.get(status) if isinstance(status, str) else None,
        "policy_version": _version(one.values.get("weight_versions")),
    }


def _own_of_train(row: Trained) -> dict[str, Any]:
    return {
        "sample_id": row.index,
        "truncated": whole(scalar(row.values.get("truncated"))),
        "policy_version": _version(row.values.get("weight_versions")),
    }


def _name(value: Any) -> str | int | None:
    value = scalar(value)
    return value if isinstance(value, str | int) and value != "" else None


def _version(versions: Any) -> int | None:
    """The one version of the weights that sampled all of a response, as the trainer counts."""
    if not isinstance(versions, list | tuple) or not 0 < len(versions) <= 10_000:
        return None
    read = {whole(one) if isinstance(one, str | int) else None for one in versions}
    return read.pop() if len(read) == 1 else None


def _ids(one: Sampled | None, row: Trained | None) -> dict[str, Any]:
    source = one if one is not None and one.ids is not None else row
    if source is None or source.ids is None or source.length is None:
        return {}
    begin = len(source.ids) - source.length
    return {"prompt_ids": source.ids[:begin], "response_ids": source.ids[begin:]}


def _masks(one: Sampled | None, row: Trained | None) -> dict[str, Any]:
    """The trained row's mask; else the sample's, which is all 1 where it is None and all 0 for a removed sample."""
    if row is not None and (mask := per_token(row.values.get("loss_masks"))) is not None:
        return {"loss_mask": mask}
    if one is None or one.length is None:
        return {}
    own = one.values.get("loss_mask")
    if scalar(one.values.get("remove_sample")) is True:
        return {"loss_mask": np.zeros(one.length, np.bool_)}
    if own is None:
        return {"loss_mask": np.ones(one.length, np.bool_)}
    mask = per_token(own)
    if mask is None:
        one.problems.append(Problem("bad-column", "loss_mask is no list of numbers: none counts as trained", str(one.place)))
    return {"loss_mask": np.zeros(one.length, np.bool_) if mask is None else mask}


def _reward(one: Sampled | None, row: Trained | None, copier: Copier) -> dict[str, Any]:
    """The reward as it was before the trainer made it relative to the group."""
    raw = None if row is None else row.raw_reward
    known = {} if raw is None or number(raw).state == "unreadable" else {"raw_reward": raw}
    own = None if one is None else one.values.get("reward")
    if own is None:
        return {"reward": raw, **known} if one is None or known else {"reward": None}
    if isinstance(own, Mapping):
        parts = copier.copy(own)
        return {"reward": raw, "reward_parts": parts, **known} if known else {"reward": parts}
    return {"reward": copier.copy(own), **known}


def _columns(one: Sampled | None, row: Trained | None, mask: Any) -> dict[str, Any]:
    """Values per token, the sample's own before the train file's."""
    trained = flags(mask) if isinstance(mask, list | np.ndarray) else None
    found: dict[str, Any] = {}
    for theirs, ours in TOKEN_COLUMNS.items():
        value = None if one is None else one.values.get(theirs)
        value = per_token(value) if value is not None else None if row is None else row.values.get(theirs)
        if value is not None:
            found[ours] = value
    if "logprob/rollout" in found:
        found["logprob/rollout"] = _without_fill(found["logprob/rollout"], _generated(one, trained))
    for name in _MASKED:
        if name in found:
            found[name] = _only(found[name], trained)
    return found


def _generated(one: Sampled | None, trained: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
    """Which tokens the sample itself says that the policy wrote."""
    own = None if one is None else per_token(one.values.get("loss_mask"))
    return trained if one is None else None if own is None else flags(own)


def _without_fill(values: Any, generated: NDArray[np.bool_] | None) -> Any:
    """NaN for the 0.0 of tokens that were not sampled: tool results have no log-prob, and are given this one."""
    read = floats(values)
    if read is None or generated is None or len(generated) != len(read.values):
        return values
    return np.where(~generated & (read.values == 0), np.float32(np.nan), read.values)


def _only(values: Any, trained: NDArray[np.bool_] | None) -> Any:
    """Values at trained tokens: advantages are written everywhere and mean nothing outside the mask."""
    read = floats(values)
    if read is None or trained is None or len(trained) != len(read.values):
        return values
    return np.where(trained, read.values, np.float32(np.nan))


# ── one step ────────────────────────────────────────────────────────────────────────────────────────────────────────


def read(files: Files, step: int, more: Mapping[int | None, Mapping[str, Any]] | None = None) -> Step:
    """Read one rollout.

    Args:
        files: where its files are.
        step: its number.
        more: what a file beside them says about samples, by their number.

    Raises:
        FormatError: none of its files can be read.
        UsageError: there is no such rollout.
    """
    if step not in files.steps:
        raise no_step(step, files.steps)
    path = files.evals.get(step) if files.only_evals else files.rollout.get(step)
    paths = sorted(files.train.get(step, ()))
    sampled, problems = _sampled(path, required=not paths)
    batch = _trained(paths, required=not sampled)
    size = max((file.stat().st_size for file in (path, *paths) if file is not None), default=0)
    batch.problems = [*problems, *batch.problems]
    return assembled(step, sampled, batch, size, more or {}, newest=step + files.only_evals)


def assembled(
    step: int,
    sampled: Sequence[Sampled],
    batch: Batch,
    budget: int,
    more: Mapping[int | None, Mapping[str, Any]],
    *,
    newest: int,
) -> Step:
    """A step of samples and the rows that were trained on; ``newest`` is the latest version that may have sampled it."""
    copier = Copier(budget)
    pairs = join(sampled, batch)
    found = [_with(values_of(one, row, copier), more.get(one.index) if one else None) for one, row in pairs]
    _drop_zeros(found)
    problems = [*batch.problems, *_versions(found, newest)]
    if copier.left_out:
        problems.append(Problem("too-large", f"{copier.left_out} values repeat without end or are nested too deeply, left out"))
    rows = [
        Row(number, values, tuple(one.problems) if one else ())
        for number, (values, (one, _)) in enumerate(zip(found, pairs, strict=True), 1)
    ]
    return read_step(step, [*problems, *rows], columns_of(found))


def _with(values: dict[str, Any], more: Mapping[str, Any] | None) -> dict[str, Any]:
    return {**more, **values} if more else values


def _sampled(path: Path | None, *, required: bool) -> tuple[list[Sampled], list[Problem]]:
    if path is None:
        return [], []
    try:
        samples = load(path).get("samples")
        if not isinstance(samples, list):
            raise FormatError(f"{path} holds no list of samples", wanted="what --save-debug-rollout-data writes")
    except FormatError as error:
        if required:
            raise
        return [], [Problem("torn-file", str(error), path.name)]
    found = [Sampled.of(place, one) for place, one in enumerate(samples) if isinstance(one, Mapping)]
    bad = [
        Problem("bad-line", f"sample {i} is no mapping, skipped", path.name)
        for i, one in enumerate(samples)
        if not isinstance(one, Mapping)
    ]
    return found, bad


def _trained(paths: Sequence[Path], *, required: bool) -> Batch:
    try:
        return read_train(paths) if paths else Batch()
    except FormatError as error:
        if required:
            raise
        return Batch(problems=[Problem("torn-file", str(error), paths[0].name)])


def columns_of(rows: Iterable[Mapping[str, Any]]) -> Columns:
    """The names of ours that any row has."""
    names = {name for row in rows for name in row}
    mapping = {name: name for name in (*_OURS, *TOKEN_COLUMNS.values()) if name in names}
    if "reward_parts" in names:
        mapping["rewards"] = "reward_parts"
    return Columns(mapping=mapping, numpy_text=False)


def _versions(rows: Sequence[dict[str, Any]], newest: int) -> list[Problem]:
    """The trainer's versions → optimizer steps: the weights that training starts from are pushed as version 1."""
    found = [row["policy_version"] - 1 for row in rows if "policy_version" in row]
    if not found:
        return []
    fits = min(found) >= 0 and newest - _LATEST <= max(found) <= newest
    for row in rows:
        version = row.pop("policy_version", None)
        if version is not None and fits:
            row["policy_version"] = version - 1
    said = f"the newest weights that sampled it are version {max(found) + 1}: versions do not count this run's rollouts"
    return [] if fits else [Problem("weight-versions", f"{said} (a resumed run counts anew), so no policy_version is told")]


def _drop_zeros(rows: Sequence[dict[str, Any]]) -> None:
    """Leave the trainer's KL out where it is 0 everywhere: with ``--kl-coef 0`` it is not computed but filled in."""
    columns = [floats(row["kl/trainer"]) for row in rows if "kl/trainer" in row]
    if all(read is None or not read.values.any() for read in columns):
        for row in rows:
            row.pop("kl/trainer", None)


# ── the run ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def columns(files: Files) -> tuple[str, ...]:
    """The token columns that a run's first files have; a KL to a reference needs one."""
    known = files.columns - ({"kl"} if "ref_log_probs" not in files.columns else set())
    return tuple(ours for theirs, ours in TOKEN_COLUMNS.items() if theirs in known)


def notes(files: Files) -> tuple[str, ...]:
    """What has to be known about any such run."""
    has_rollouts = bool(files.rollout or files.only_evals)
    found = [
        "steps are rollout ids, which count from 0; one rollout may feed several optimizer steps",
        "groups are by group_index" if has_rollouts else "groups are equal prompts: the train files have no group_index",
        _REWARD if has_rollouts else "reward is raw_reward, before it is made relative to the group (extra: rewards)",
    ]
    if has_rollouts or "rollout_log_probs" in files.columns:
        found.append("logprob/rollout is SGLang's (rollout_log_probs); the 0.0 that tool tokens are given counts as missing")
    found += [_OLD] if files.train else ["without train_data there are no log-probs of the training engine and no advantages"]
    if has_rollouts:
        found.append(
            "policy_version is weight_versions - 1 where a response has one, since the first weights are pushed as version 1"
        )
    if files.only_evals:
        found.append("these are evaluation rollouts (eval_*.pt), which were not trained on")
    elif files.evals:
        count = f"{len(files.evals)} file{'s' if len(files.evals) > 1 else ''}"
        found.append(f"evaluation rollouts (eval_*.pt, {count}) are left out: they were not trained on")
    return tuple(found)


_REWARD = (
    "reward is Sample.reward, before it is made relative to the group (that one is rewards, in extra); of a mapping it is "
    "raw_reward where the train file has it, else its total or sum, since the file does not say --reward-key"
)
_OLD = (
    "logprob/old is the training engine's log_probs of before the update, or of the first training forward where it was not "
    "computed apart; under --use-rollout-logprobs the loss took logprob/rollout instead"
)
