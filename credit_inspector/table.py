"""The table in the middle: flat columns over all response tokens of one step.

Rollouts of different length lie end to end; ``offsets`` says where each begins (an Arrow list array's own layout), so that
every statistic by rollout or by group is one vectorised segment operation.

Letters: ``N`` rollouts, ``T`` tokens of all of them. Example, two rollouts of 3 and 2 tokens::

    offsets   = [0, 3, 5]
    token_ids = [7, 8, 2,  9, 2]
    row       = [0, 0, 0,  1, 1]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from credit_inspector.algorithm import Algorithm
from credit_inspector.errors import AlignmentError, MissingColumn
from credit_inspector.rollout import Problem, Rollout

Floats = NDArray[np.float64]


class Provenance(StrEnum):
    """Where a column's numbers come from."""

    RECORDED = "recorded"
    """The trainer wrote them."""
    RECOMPUTED = "recomputed"
    """We ran a model."""
    DERIVED = "derived"
    """Arithmetic on other columns."""
    ESTIMATED = "estimated"
    """A measurement with an error."""
    MISSING = "missing"
    """Not there; the note says why."""


@dataclass(frozen=True, slots=True)
class Column:
    """One value per token and where it is from. NaN marks tokens without a value, such as masked ones."""

    values: NDArray[np.float32] | None
    """``[T]``; ``None`` only for ``missing``."""
    provenance: Provenance
    note: str = ""
    """What a reader has to know: the model used, the rule, the reason for a missing column."""

    @classmethod
    def missing(cls, reason: str) -> Column:
        """A column that could not be had, with the reason."""
        return cls(None, Provenance.MISSING, reason)


@dataclass(kw_only=True)
class TokenTable:
    """All response tokens of one step with their columns."""

    step: int
    rollouts: tuple[Rollout, ...]
    offsets: NDArray[np.int64]
    """``[N + 1]``"""
    token_ids: NDArray[np.int32]
    """``[T]``"""
    loss_mask: NDArray[np.bool_]
    """``[T]``, true where the token is trained."""
    algorithm: Algorithm | None = None
    columns: dict[str, Column] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    # ── making ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @classmethod
    def from_rollouts(
        cls,
        step: int,
        rollouts: Sequence[Rollout],
        *,
        algorithm: Algorithm | None = None,
        problems: Sequence[Problem] = (),
    ) -> TokenTable:
        """Lay rollouts end to end. A rollout without token ids takes no tokens but keeps its row.

        A column that only some rollouts recorded is NaN for the others.

        Raises:
            AlignmentError: a recorded column is not as long as its rollout's tokens (readers catch this earlier).
        """
        lengths = [0 if r.response_ids is None else len(r.response_ids) for r in rollouts]
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
        table = cls(
            step=step,
            rollouts=tuple(rollouts),
            offsets=offsets,
            token_ids=np.concatenate([np.zeros(0, np.int32), *(r.response_ids for r in rollouts if r.response_ids is not None)]),
            loss_mask=np.concatenate([np.zeros(0, np.bool_), *map(_mask, rollouts)]),
            algorithm=algorithm,
            problems=tuple(problems),
        )
        if len(table.loss_mask) != table.n_tokens:
            raise AlignmentError(f"step {step}: {len(table.loss_mask)} mask values for {table.n_tokens} tokens")
        for name in dict.fromkeys(name for r in rollouts for name in r.columns):
            table.columns[name] = Column(table._lay_out(name), Provenance.RECORDED)
        return table

    def _lay_out(self, name: str) -> NDArray[np.float32]:
        flat = np.full(self.n_tokens, np.nan, np.float32)
        for i, rollout in enumerate(self.rollouts):
            values = rollout.columns.get(name)
            if values is None:
                continue
            if len(values) != self.lengths[i]:
                raise AlignmentError(
                    f"step {self.step}, {rollout.sample_id}: {self.lengths[i]} tokens, {len(values)} values of {name}"
                )
            flat[self.slice(i)] = values
        return flat

    # ── shape ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def n_rows(self) -> int:
        """How many rollouts."""
        return len(self.rollouts)

    @property
    def n_tokens(self) -> int:
        """How many response tokens, trained or not."""
        return len(self.token_ids)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """``[N]`` tokens of each rollout."""
        return np.diff(self.offsets)

    @cached_property
    def row(self) -> NDArray[np.int64]:
        """``[T]`` the rollout that each token belongs to."""
        return np.repeat(np.arange(self.n_rows), self.lengths)

    @cached_property
    def position(self) -> NDArray[np.int64]:
        """``[T]`` each token's place in its response, from 0."""
        return np.arange(self.n_tokens) - np.repeat(self.offsets[:-1], self.lengths)

    @cached_property
    def trained_lengths(self) -> NDArray[np.int64]:
        """``[N]`` trained tokens of each rollout."""
        return self.sum_by_row(self.loss_mask).astype(np.int64)

    @cached_property
    def n_trained(self) -> int:
        """How many tokens are trained."""
        return int(np.count_nonzero(self.loss_mask))

    @cached_property
    def nan_outside(self) -> Floats:
        """``[T]`` 0 where the token is trained, NaN elsewhere: adding it is the fastest way to leave masked tokens out."""
        return np.where(self.loss_mask, 0.0, np.nan)

    @cached_property
    def nan_outside_32(self) -> NDArray[np.float32]:
        """``nan_outside`` in a column's own type."""
        return self.nan_outside.astype(np.float32)

    @cached_property
    def group(self) -> NDArray[np.int64]:
        """``[N]`` group number of each rollout, from 0; −1 where the group is unknown."""
        numbers: dict[str, int] = {}
        return np.array(
            [-1 if r.group_id is None else numbers.setdefault(r.group_id, len(numbers)) for r in self.rollouts],
            dtype=np.int64,
        )

    @cached_property
    def reward(self) -> Floats:
        """``[N]`` scalar rewards; NaN where none was recorded."""
        return np.array([np.nan if r.reward is None else r.reward for r in self.rollouts], dtype=np.float64)

    def slice(self, row: int) -> slice:
        """The tokens of one rollout."""
        return slice(int(self.offsets[row]), int(self.offsets[row + 1]))

    def row_of(self, sample_id: str) -> int:
        """The row with this sample id.

        Raises:
            MissingColumn: there is none.
        """
        for i, rollout in enumerate(self.rollouts):
            if rollout.sample_id == sample_id:
                return i
        raise MissingColumn(f"step {self.step} has no response {sample_id!r}")

    # ── columns ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def add(self, name: str, values: ArrayLike, provenance: Provenance, note: str = "") -> None:
        """Put a column in.

        Raises:
            AlignmentError: not one value per token.
        """
        flat = np.asarray(values, dtype=np.float32)
        if flat.shape != (self.n_tokens,):
            raise AlignmentError(f"{name} has shape {flat.shape}", wanted=f"({self.n_tokens},), one value per token")
        self.columns[name] = Column(flat, provenance, note)

    def has(self, name: str) -> bool:
        """Whether the column is there with values."""
        column = self.columns.get(name)
        return column is not None and column.values is not None

    def values(self, name: str) -> Floats:
        """``[T]`` the column in float64.

        Raises:
            MissingColumn: with the reason where one is known.
        """
        column = self.columns.get(name)
        if column is None:
            raise MissingColumn(f"step {self.step} has no column {name!r}", wanted=f"one of {', '.join(self.columns)}")
        if column.values is None:
            raise MissingColumn(f"{name} is missing: {column.note}")
        return column.values.astype(np.float64)

    # ── segments ────────────────────────────────────────────────────────────────────────────────────────────────────

    def sum_by_row(self, values: ArrayLike) -> Floats:
        """``[T]`` → ``[N]``: the sum over each rollout; an empty rollout sums to 0."""
        flat = np.asarray(values)
        if flat.dtype != np.bool_:
            flat = flat.astype(np.float64, copy=False)
        total = np.zeros(self.n_rows)
        filled = self.lengths > 0
        # A segment of length 0 would make ``reduceat`` give the next one's first value.
        if filled.any():
            total[filled] = np.add.reduceat(flat, self.offsets[:-1][filled], dtype=np.float64)
        return total

    def mean_by_row(self, values: ArrayLike, where: NDArray[np.bool_] | None = None) -> Floats:
        """``[T]`` → ``[N]``: the mean over each rollout's tokens that are finite (and in ``where``); NaN where none is."""
        flat = np.asarray(values, dtype=np.float64)
        keep = np.isfinite(flat) if where is None else np.isfinite(flat) & where
        count = self.sum_by_row(keep)
        total = self.sum_by_row(np.where(keep, flat, 0.0))
        mean: Floats = np.divide(total, count, out=np.full(self.n_rows, np.nan), where=count > 0)
        return mean

    def range_by_row(self, values: Floats) -> tuple[Floats, Floats]:
        """``[T]`` → ``[N]``, ``[N]``: the smallest and the largest number of each rollout, NaN left out; NaN where none is."""
        filled = self.lengths > 0
        ends = np.full((2, self.n_rows), np.nan)
        if filled.any():
            starts = self.offsets[:-1][filled]
            ends[:, filled] = np.fmin.reduceat(values, starts), np.fmax.reduceat(values, starts)
        return ends[0], ends[1]

    def to_tokens(self, by_row: ArrayLike) -> Floats:
        """``[N]`` → ``[T]``: each rollout's value on all of its tokens."""
        return np.repeat(np.asarray(by_row, dtype=np.float64), self.lengths)

    def trained(self, values: ArrayLike) -> Floats:
        """``[T]`` → ``[T]``: NaN where the token is not trained."""
        return np.asarray(values, dtype=np.float64) + self.nan_outside


def _mask(rollout: Rollout) -> NDArray[np.bool_]:
    """Every token is trained where no mask was recorded."""
    if rollout.loss_mask is not None:
        return rollout.loss_mask
    return np.ones(0 if rollout.response_ids is None else len(rollout.response_ids), np.bool_)
