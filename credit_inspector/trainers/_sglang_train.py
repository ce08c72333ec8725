"""What slime and miles trained on → one mapping a response, with its values per token whole.

slime since August 2026 (``format_version`` 2) writes one file a rollout: the ranks' parts are put together and in order.
slime before and miles write one file a rank: columns of the rank's own responses. Ranks of tensor parallelism repeat one
another, only the last pipeline stage has log-probs, and with context parallelism a rank holds two chunks of each response
(``slice_log_prob_with_cp``), which are put together here where all are there.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from credit_inspector.errors import FormatError
from credit_inspector.pickles import load_torch, stub
from credit_inspector.rollout import Problem
from credit_inspector.trainers._sglang_files import COLUMN_KEYS
from credit_inspector.trainers._sglang_plain import per_token, scalar
from credit_inspector.trainers._values import floats, integers, whole

PER_TOKEN = tuple(key for key in COLUMN_KEYS if key != "loss_mask")
_BATCH = frozenset(
    {
        "raw_reward",
        "global_batch_sizes",
        "num_microbatches",
        "micro_batch_indices",
        "num_rollouts",
        "dynamic_global_batch_size",
        "prompt_group_sizes",
        "step_slots",
        "step_adapter_names",
        "step_adapter_batch_sizes",
        "n_adapters",
    }
)
"""Columns of the whole batch: their places are not those of the rank's responses, however many there are."""

_OBJECTS = ("miles.utils.types.AdapterRef", "miles.utils.types.RewardSpec")
"""miles' own small records inside a sample, held as stubs."""


def load(path: Path) -> Mapping[Any, Any]:
    """A dump's mapping.

    Raises:
        FormatError: it is damaged, holds more than data, or is no mapping.
    """
    found = load_torch(path, allow={name: stub(name) for name in _OBJECTS})
    if not isinstance(found, Mapping):
        raise FormatError(f"{path} holds a {type(found).__name__}", wanted="a mapping with the key samples or rollout_data")
    return found


@dataclass(slots=True)
class Trained:
    """One response as it was trained on."""

    values: dict[str, Any]
    """Under the trainer's names; values per token are lists or arrays of the response's length."""
    ids: NDArray[np.int32] | None
    length: int | None
    """Of the response."""
    raw_reward: Any = None

    @property
    def index(self) -> int | None:
        """The number of the sample in the rollout file."""
        return whole(self.values.get("sample_index"))


@dataclass(slots=True)
class Batch:
    """Everything that was trained on in one rollout."""

    rows: list[Trained] = field(default_factory=list)
    raw_rewards: list[Any] = field(default_factory=list)
    """Of the whole rollout, in its order."""
    problems: list[Problem] = field(default_factory=list)


def read(paths: Sequence[Path]) -> Batch:
    """Read the train files of one rollout.

    Raises:
        FormatError: not one of them can be read.
    """
    batch = Batch()
    gathered: dict[Any, _Parts] = {}
    errors: list[FormatError] = []
    for path in paths:
        try:
            _take(load(path), batch, gathered)
        except FormatError as error:
            errors.append(error)
            batch.problems.append(Problem("torn-file", str(error), path.name))
    if errors and len(errors) == len(paths):
        raise errors[0]
    batch.rows += [parts.joined() for parts in gathered.values()]
    batch.problems += _sliced(gathered.values())
    _raw_rewards(batch)
    return batch


def _take(payload: Mapping[Any, Any], batch: Batch, gathered: dict[Any, _Parts]) -> None:
    columns = payload.get("rollout_data")
    raw = payload.get("raw_reward")
    if isinstance(columns, Mapping):
        raw = columns.get("raw_reward")
        _gather(columns, Slot.of(payload), gathered)
    else:
        samples = payload.get("samples")
        for sample in samples if isinstance(samples, list) else []:
            if isinstance(sample, Mapping):
                values = _named(sample)
                batch.rows.append(Trained(values, *_ids(values)))
            else:
                batch.problems.append(Problem("bad-line", f"a {type(sample).__name__} in place of a trained sample, skipped"))
    if not batch.raw_rewards and isinstance(raw, list | tuple):
        batch.raw_rewards = list(raw)


def _named(sample: Mapping[Any, Any]) -> dict[str, Any]:
    values = {key: value for key, value in sample.items() if isinstance(key, str)}
    for key in PER_TOKEN:
        if key in values:
            values[key] = per_token(values[key])
    for key in ("sample_index", "rollout_position", "response_lengths", "total_lengths"):
        if key in values:
            values[key] = scalar(values[key])
    return values


def _ids(values: Mapping[str, Any]) -> tuple[NDArray[np.int32] | None, int | None]:
    """All ids of a row, and how many of them are the response's."""
    tokens = per_token(values.get("tokens"))
    ids = None if tokens is None else integers(tokens)
    length = whole(values.get("response_lengths"))
    fits = length is not None and ids is not None and 0 <= length <= len(ids)
    return ids, length if fits else None


def _raw_rewards(batch: Batch) -> None:
    """Give each row its reward: by the rank's own list, by its place in the rollout, else by the order of sample numbers."""
    places = _places(batch)
    for row, place in zip(batch.rows, places, strict=True):
        own = scalar(row.values.get("local_raw_reward"))
        if own is not None:
            row.raw_reward = own
        elif place is not None and 0 <= place < len(batch.raw_rewards):
            row.raw_reward = scalar(batch.raw_rewards[place])


def _places(batch: Batch) -> list[int | None]:
    rows = batch.rows
    given = [whole(row.values.get("rollout_position")) for row in rows]
    if None not in given and len(set(given)) == len(rows):
        return given
    indices = [row.index for row in rows]
    known = [index for index in indices if index is not None]
    if len(set(known)) == len(rows) == len(batch.raw_rewards):
        order = {index: place for place, index in enumerate(sorted(known))}
        return [None if index is None else order[index] for index in indices]
    return [None] * len(rows)


# ── one file a rank ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Slot:
    """Which part of each response a rank's file holds."""

    rank: int
    cp_rank: int | None
    """``None`` where the file does not say it (slime, and miles before August 2026)."""
    cp_size: int
    padded: bool
    """Whether chunks are of the padded length (``qkv_format`` bshd)."""

    @classmethod
    def of(cls, payload: Mapping[Any, Any]) -> Slot:
        """As the file says."""
        rank, cp_rank, cp_size = (whole(scalar(payload.get(key))) for key in ("rank", "cp_rank", "cp_size"))
        return cls(rank or 0, cp_rank, cp_size or 1, payload.get("qkv_format") == "bshd")


@dataclass(slots=True)
class _Parts:
    """One response's values, from every rank that holds some."""

    values: dict[str, Any]
    ids: NDArray[np.int32] | None
    length: int | None
    fields: dict[str, dict[Slot, NDArray[Any]]] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    """Names of what could not be put together."""

    def joined(self) -> Trained:
        """The response with whole values per token."""
        values = dict(self.values)
        for name, parts in self.fields.items():
            found = self._whole(parts)
            if found is None:
                self.lost.append(name)
            else:
                values[name] = found
        return Trained(values, self.ids, self.length)

    def _whole(self, parts: Mapping[Slot, NDArray[Any]]) -> NDArray[Any] | None:
        slots = list(parts)
        if slots[0].cp_rank is None:
            found = next((part for part in parts.values() if len(part) == self.length), None)
            return self._legacy(parts) if found is None else found
        if slots[0].cp_size == 1:
            return parts[slots[0]]
        chunks: dict[int, NDArray[Any]] = {}
        for slot, part in parts.items():
            chunks.setdefault(-1 if slot.cp_rank is None else slot.cp_rank, part)
        return self._assembled(chunks, slots[0].cp_size, slots[0].padded)

    def _legacy(self, parts: Mapping[Slot, NDArray[Any]]) -> NDArray[Any] | None:
        """Order the slices of files without ``cp_rank`` by rank: what is equal on two ranks is one slice."""
        probe = self.fields.get("rollout_log_probs") or self.fields.get("log_probs") or {}
        seen: list[NDArray[Any]] = []
        chunks: dict[int, NDArray[Any]] = {}
        for slot in sorted(probe, key=lambda one: one.rank):
            place = next((i for i, one in enumerate(seen) if np.array_equal(one, probe[slot])), len(seen))
            seen += [probe[slot]] if place == len(seen) else []
            if slot in parts:
                chunks.setdefault(place, parts[slot])
        return self._assembled(chunks, len(seen), padded=False) if len(seen) > 1 else None

    def _assembled(self, chunks: Mapping[int, NDArray[Any]], size: int, padded: bool) -> NDArray[Any] | None:
        if self.ids is None or self.length is None or len(chunks) != size or set(chunks) != set(range(size)):
            return None
        span = whole(scalar(self.values.get("max_seq_lens"))) if padded else len(self.ids)
        if span is None or not 0 < span < 2**40:
            return None
        found = np.full(self.length, np.nan, np.float32)
        for rank, part in chunks.items():
            places = cp_places(len(self.ids), self.length, rank, size, span)
            if len(part) != len(places):
                return None
            found[places] = part
        return found


def cp_places(total: int, response: int, rank: int, size: int, span: int) -> NDArray[np.int64]:
    """Which response tokens a context-parallel rank holds, in order.

    The sequence is cut into ``2 × size`` chunks, of which rank r has the r-th from the front and from the back; the
    log-prob of a token lies where the token before it does.
    """
    prompt, chunk = total - response, -(-span // (2 * size))
    found = []
    for part in (rank, 2 * size - 1 - rank):
        begin, end = max(part * chunk, prompt - 1), min((part + 1) * chunk, total - 1)
        found.append(np.arange(begin, max(begin, end)) - (prompt - 1))
    return np.concatenate(found)


def _gather(columns: Mapping[Any, Any], slot: Slot, gathered: dict[Any, _Parts]) -> None:
    """Add one rank's responses to what other ranks gave."""
    twins: Counter[Any] = Counter()
    for row in _transposed(columns):
        values = _named(row)
        ids, length = _ids(values)
        fields = {key: values.pop(key) for key in PER_TOKEN if key in values}
        index, digest = whole(values.get("sample_index")), None if ids is None else hashlib.blake2b(ids.tobytes()).digest()
        twins[index, digest] += 1
        parts = gathered.setdefault((index, digest, twins[index, digest]), _Parts(values, ids, length))
        for name, part in fields.items():
            read = None if part is None else floats(part)
            if read is not None:
                parts.fields.setdefault(name, {}).setdefault(slot, read.values)


_RENAMED = {"sample_indices": "sample_index", "partition": "rollout_position"}


def _transposed(columns: Mapping[Any, Any]) -> Iterator[dict[str, Any]]:
    """Columns → rows; what has another length than there are responses is of the batch."""
    lengths = columns.get("response_lengths")
    count = len(lengths) if isinstance(lengths, list | tuple) else 0
    rows = {
        _RENAMED.get(key, key): value
        for key, value in columns.items()
        if isinstance(key, str) and key not in _BATCH and _is_per_row(value, count)
    }
    for place in range(count):
        yield {key: value[place] for key, value in rows.items()}


def _is_per_row(value: Any, count: int) -> bool:
    if isinstance(value, list | tuple):
        return len(value) == count
    shape: Any = getattr(value, "shape", None)
    return bool(shape) and int(shape[0]) == count


def _sliced(gathered: Any) -> Iterator[Problem]:
    lost = Counter(name for parts in gathered for name in parts.lost)
    for name, count in lost.items():
        said = f"{name}: slices of {count} responses cannot be put together, left out (context parallelism; ranks missing)"
        yield Problem("sliced-column", said)
