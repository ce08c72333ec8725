"""The checkpoints of a run by role, and what they say about its tokens.

Five roles: ``policy`` is the checkpoint nearest to the weights that a step updated, ``before`` and ``after`` the last
one before and the first one after that update, ``old`` the policy that importance ratios refer to, ``ref`` the one
that the KL term holds on to. A checkpoint opens when it is first used, one folder once however many roles name it.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from credit_inspector.checkpoints import Checkpoint
from credit_inspector.errors import CheckpointError, MissingColumn, UsageError
from credit_inspector.rollout import Problem, Rollout
from credit_inspector.scoring.batches import TOKENS, Batch, Line, batches, distinct
from credit_inspector.scoring.device import pick
from credit_inspector.scoring.head import COPIES_KL, Head, kl, logprob, same_vocabulary, score
from credit_inspector.scoring.shared import attending, refusal, too_long
from credit_inspector.table import TokenTable

ROLES = ("policy", "before", "after", "old", "ref")

Progress = Callable[[str, int, int], None]
"""What is being done, lines done, lines in all."""

HALVINGS = 8
"""How often the budgets are halved before running out of memory is an error."""

Flat = NDArray[np.float32]
T = TypeVar("T")


class Scores(NamedTuple):
    """What a model says about each response token, ``[T]`` float32 each; NaN where it cannot say."""

    logprob: Flat
    """In nats, at the sampling temperature."""
    entropy: Flat
    """In nats."""
    sum_p2: Flat
    """Σ over the vocabulary of p²."""


@dataclass(frozen=True)
class Opened:
    """A checkpoint in memory."""

    model: PreTrainedModel
    head: Head
    """At temperature 1."""
    vocabulary: int
    """Ids below it have an embedding and a logit."""
    positions: int | None
    """The longest sequence that the model was made for."""

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.head.weight.device

    def hidden(self, ids: Tensor, mask: Tensor | None = None, position: Tensor | None = None) -> Tensor:
        """``[B, W]`` → last hidden states ``[B, W, H]``, after the final norm."""
        return _hidden(self.model, ids, mask, position)

    def states(self, batch: Batch) -> Tensor:
        """``[M, H]``: the hidden states that score the batch's tokens."""
        if not batch.pieces:
            return self.hidden(batch.ids, batch.mask, batch.position)[batch.row, batch.state]
        with attending(self.model, batch.pieces):
            return self.hidden(batch.ids, None, batch.position)[batch.row, batch.state]

    @cached_property
    def unpacked(self) -> str | None:
        """Why this model's lines cannot be run packed (see ``shared``), or None where they can; tried at first use."""
        if not _takes_positions(self.model):
            return "it takes no positions"
        return refusal(self.model, lambda ids, position: self.hidden(ids, None, position), self.vocabulary)

    def packs(self, lines: Sequence[Line]) -> bool:
        """The lines can be run packed."""
        limit = too_long(self.model) if self.unpacked is None else 0
        return limit is None or all(len(line.ids) <= limit for line in lines)

    def refuses(self, ids: NDArray[np.int64]) -> Problem | None:
        """Why a sequence cannot be run, where it cannot."""
        if len(ids) and not 0 <= (worst := int(ids.max() if ids.min() >= 0 else ids.min())) < self.vocabulary:
            return Problem("vocabulary", f"id {worst} outside the model's vocabulary {self.vocabulary}")
        if self.positions is not None and len(ids) > self.positions:
            return Problem("too-long", f"{len(ids)} tokens, more than the model's {self.positions} positions")
        return None


class Models:
    """The checkpoints of a run by role.

    Args:
        checkpoints: from role to checkpoint; see ``ROLES``.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:<number>`` or ``mps``.
        budget_mb: memory for the float32 logits alive at once, and for the parameter gradients of several responses.
        progress: called after each batch.

    Raises:
        UsageError: a role or a device that does not exist.
    """

    def __init__(
        self,
        checkpoints: Mapping[str, Checkpoint],
        device: str = "auto",
        budget_mb: int = 256,
        progress: Progress | None = None,
    ) -> None:
        self.assign(checkpoints)
        self.device, self.dtype = pick(device)
        self.budget = budget_mb * 2**20
        self._progress = progress
        self._open: dict[Any, Opened] = {}
        self._halved = 0
        self.problems: tuple[Problem, ...] = ()
        """What went another way than it should have: less memory than wanted, prompts computed again and again."""
        self._memory: dict[tuple[Any, ...], tuple[weakref.ref[TokenTable], tuple[object, ...], Any]] = {}

    # ── checkpoints ─────────────────────────────────────────────────────────────────────────────────────────────────

    def assign(self, checkpoints: Mapping[str, Checkpoint]) -> None:
        """Give roles to checkpoints anew; those in memory stay there.

        Raises:
            UsageError: a role that does not exist.
        """
        if unknown := sorted(set(checkpoints) - set(ROLES)):
            raise UsageError(f"no role named {unknown[0]!r}", wanted=f"one of {', '.join(ROLES)}")
        self.checkpoints = dict(checkpoints)

    def __contains__(self, role: str) -> bool:
        return role in self.checkpoints

    def checkpoint(self, role: str) -> Checkpoint:
        """The checkpoint of a role, open or not.

        Raises:
            UsageError: no such role.
            MissingColumn: none was given.
        """
        if role not in ROLES:
            raise UsageError(f"no role named {role!r}", wanted=f"one of {', '.join(ROLES)}")
        if role not in self.checkpoints:
            raise MissingColumn(f"no checkpoint is at hand as {role!r}", do=f"give one with --{role}")
        return self.checkpoints[role]

    def opened(self, role: str) -> Opened:
        """The checkpoint of a role, in memory.

        Raises:
            MissingColumn: none was given.
            CheckpointError: it cannot be loaded, or its head is of an unknown kind.
        """
        checkpoint = self.checkpoint(role)
        key = checkpoint.path
        if key not in self._open:
            self._open[key] = _open(checkpoint.load(self.device, self.dtype))
        # Whoever shares the model may have set it to training: dropout would make every number random.
        self._open[key].model.eval()
        return self._open[key]

    def model(self, role: str) -> PreTrainedModel:
        """The model of a role, in ``eval()`` mode and without gradients."""
        return self.opened(role).model

    def note(self, role: str) -> str:
        """Names the checkpoint of a role, for a column's note: ``policy run/checkpoint-40 (float32, cpu)``."""
        name = "/".join(self.checkpoint(role).path.parts[-2:])
        return f"{role} {name} ({str(self.dtype).removeprefix('torch.')}, {self.device.type})"

    @classmethod
    def temperature_note(cls, table: TokenTable) -> str:
        """Says at which temperature the step's log-probs are taken, and why."""
        if table.algorithm is None:
            return "temperature 1, the run does not say"
        greedy = ", sampling was greedy" if table.algorithm.temperature <= 0 else ""
        return f"temperature {cls.temperature(table):g}{greedy}"

    @staticmethod
    def temperature(table: TokenTable) -> float:
        """The sampling temperature of the step; 1 where the rule is unknown or sampling was greedy."""
        given = table.algorithm.temperature if table.algorithm else 1.0
        return given if given > 0 else 1.0

    # ── scores ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def scores(self, role: str, table: TokenTable) -> Scores:
        """Log-prob, entropy and Σp² of every response token; computed once for a role's checkpoint and a table.

        NaN for the tokens of a response without prompt ids, of one that the model cannot run (recorded among
        ``table.problems``), and for a first token that nothing precedes.
        """
        opened = self.opened(role)

        def make() -> Scores:
            rows, lines = self.lines(role, table)
            head = opened.head.at(self.temperature(table))
            columns = np.full((3, table.n_tokens), np.nan, np.float32)
            for row, values in zip(rows, self._run(opened, lines, head, f"scoring with {role}"), strict=True):
                _put(columns, table, row, values)
            self._tell(table)
            return Scores(*columns)

        return self.once(("scores", self.checkpoint(role).path), make, table)

    def kl(self, role_p: str, role_q: str, table: TokenTable) -> Flat:
        """Exact KL(p‖q) over the vocabulary at each response token, ``[T]`` in nats; NaN as in ``scores``.

        Raises:
            CheckpointError: the vocabularies differ.
            UsageError: one row of logits does not fit the budget.
        """
        p, q = self.opened(role_p), self.opened(role_q)
        same_vocabulary(p.head, q.head)
        heads = [opened.head.at(self.temperature(table)) for opened in (p, q)]

        def make() -> Flat:
            rows, lines = self.lines(role_p, table, role_q)
            flat = np.full((1, table.n_tokens), np.nan, np.float32)

            def of(batch: Batch, budget: int) -> Tensor:
                return kl(heads[0], p.states(batch), heads[1], q.states(batch), budget)[None]

            for row, values in zip(rows, self._each((p, q), lines, of, f"KL from {role_p} to {role_q}"), strict=True):
                _put(flat, table, row, values)
            self._tell(table)
            return flat[0]

        return self.once(("kl", self.checkpoint(role_p).path, self.checkpoint(role_q).path), make, table)

    def logprobs(self, role: str, lines: Sequence[Line], temperature: float, what: str) -> list[Flat]:
        """For each line the log-probs of its scored tokens. Equal lines run once."""
        opened = self.opened(role)
        head = opened.head.at(temperature)

        def of(batch: Batch, budget: int) -> Tensor:
            return logprob(head, opened.states(batch), batch.target, budget)[None]

        once, twins = distinct(lines)
        found = list(self._each((opened,), once, of, what))
        return [found[twin][0] for twin in twins]

    def lines(self, role: str, table: TokenTable, *others: str) -> tuple[list[int], list[Line]]:
        """The responses that can be run, as rows and as lines that score every response token.

        The others are left out, and recorded once among ``table.problems``.
        """
        everyone = [self.opened(one) for one in (role, *others)]
        rows: list[int] = []
        lines: list[Line] = []
        problems: list[Problem] = []
        for row, rollout in enumerate(table.rollouts):
            if rollout.response_ids is None or not len(rollout.response_ids):
                continue
            line, problem = _line(rollout, everyone)
            if line:
                rows.append(row)
                lines.append(line)
            if problem:
                problems.append(problem)
        table.problems = tuple(dict.fromkeys((*table.problems, *problems)))
        return rows, lines

    def once(self, name: tuple[Any, ...], make: Callable[[], T], table: TokenTable, *beside: object) -> T:
        """What ``make`` gives for this very table (and the objects beside it), made at the first call.

        Nothing outlives the table that it belongs to.
        """
        key = (*name, table.step, self.temperature(table), id(table), *map(id, beside))
        known = self._memory.get(key)
        if known is None or known[0]() is not table:
            self._memory = {key: entry for key, entry in self._memory.items() if entry[0]() is not None}
            self._memory[key] = known = (weakref.ref(table), beside, make())
        answer: T = known[2]
        return answer

    def report(self, what: str, done: int, of: int) -> None:
        """Tell whoever follows how far the work is."""
        if self._progress:
            self._progress(what, done, of)

    def _run(self, opened: Opened, lines: Sequence[Line], head: Head, what: str) -> Iterator[Flat]:
        def of(batch: Batch, budget: int) -> Tensor:
            return torch.stack(score(head, opened.states(batch), batch.target, budget))

        once, twins = distinct(lines)
        found = list(self._each((opened,), once, of, what))
        return (found[twin] for twin in twins)

    def _each(
        self, everyone: Sequence[Opened], lines: Sequence[Line], of: Callable[[Batch, int], Tensor], what: str
    ) -> Iterator[Flat]:
        """For each line, in order, ``of``'s values ``[columns, scored]``; ``of`` is given a batch and a budget."""
        found: list[Flat] = [np.zeros((1, 0), np.float32)] * len(lines)
        left = [i for i, line in enumerate(lines) if line.scored]
        total = len(left)
        packed = self._packs(everyone, lines)
        while left:
            done: set[int] = set()
            try:
                for batch in batches([lines[i] for i in left], self.device, max(TOKENS >> self._halved, 1), packed=packed):
                    with torch.no_grad():
                        values = of(batch, self._budget(everyone)).cpu().numpy()
                    for i, part in zip(batch.lines, np.split(values, np.cumsum(batch.lengths)[:-1], axis=1), strict=True):
                        found[left[i]] = part
                        done.add(left[i])
                    self.report(what, total - len(left) + len(done), total)
            except RuntimeError as error:
                self._halve(error, max(len(lines[i].ids) for i in left if i not in done))
            left = [i for i in left if i not in done]
        return iter(found)

    def _packs(self, everyone: Sequence[Opened], lines: Sequence[Line]) -> bool:
        """The lines can be run packed by all of the models; those that cannot are named once."""
        if len(lines) < 2:
            return False
        for opened in everyone:
            if opened.unpacked is not None:
                name = type(opened.model).__name__
                self._add(Problem("unpacked", f"{name} runs padded and computes each prompt anew: {opened.unpacked}"))
        return all(opened.packs(lines) for opened in everyone)

    def _budget(self, everyone: Sequence[Opened]) -> int:
        """Bytes for logits, halved as often as memory ran out, but enough for a row."""
        row = COPIES_KL * 2 * 4 * max(len(opened.head.weight) for opened in everyone)
        return max(self.budget >> self._halved, min(self.budget, row))

    def _halve(self, error: RuntimeError, longest: int) -> None:
        """Go on with half of the budgets after running out of memory; any other error is raised again."""
        if not _out_of_memory(error):
            raise error
        # What the failed batch held is free only once its frames are.
        error.__traceback__ = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        if self._halved == HALVINGS:
            raise CheckpointError(
                f"out of memory on {self.device.type} with a sequence of {longest} tokens by itself",
                do="take another device (--device cpu) or a smaller model",
            ) from error
        self._halved += 1
        message = f"out of memory on {self.device.type}: goes on with batches of at most {TOKENS >> self._halved} tokens"
        self._add(Problem("out-of-memory", message))

    def _add(self, problem: Problem) -> None:
        self.problems = tuple(dict.fromkeys((*self.problems, problem)))

    def _tell(self, table: TokenTable) -> None:
        """What went another way than it should have stands with the step, too."""
        table.problems = tuple(dict.fromkeys((*table.problems, *self.problems)))


def _out_of_memory(error: RuntimeError) -> bool:
    """CUDA and Metal say so by type or in words, the CPU's allocator in words only."""
    words = str(error).lower()
    known = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, torch.OutOfMemoryError) or any(one in words for one in known)


def _takes_positions(model: PreTrainedModel) -> bool:
    """Models without positions of their own (ALiBi, state spaces) do not take them."""
    return "position_ids" in inspect.signature(model.base_model.forward).parameters


def _hidden(model: PreTrainedModel, ids: Tensor, mask: Tensor | None, position: Tensor | None) -> Tensor:
    body = model.base_model
    given: dict[str, Any] = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
    if position is not None and _takes_positions(model):
        given["position_ids"] = position
    states: Tensor | None = getattr(body(**given), "last_hidden_state", None)
    if states is None:
        raise CheckpointError(f"{type(model).__name__} gives no hidden states", wanted="a causal language model")
    return states


def _open(model: PreTrainedModel) -> Opened:
    model.eval()
    head = Head.of(model, lambda ids: _hidden(model, ids, None, None))
    embedding: Any = model.get_input_embeddings()
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return Opened(model, head, min(len(embedding.weight), len(head.weight)), positions)


def _line(rollout: Rollout, everyone: Sequence[Opened]) -> tuple[Line | None, Problem | None]:
    if rollout.prompt_ids is None:
        return None, Problem("no-prompt-ids", "a response without the ids of its prompt cannot be scored", rollout.sample_id)
    ids = np.concatenate([rollout.prompt_ids, rollout.response_ids]).astype(np.int64)
    for opened in everyone:
        if problem := opened.refuses(ids):
            return None, Problem(problem.kind, problem.message, rollout.sample_id)
    return Line(ids, max(len(rollout.prompt_ids), 1)), None


def _put(columns: Flat, table: TokenTable, row: int, values: Flat) -> None:
    """Write a line's values to the end of its row: where nothing precedes the first token, that one stays NaN."""
    end = int(table.offsets[row + 1])
    columns[:, end - values.shape[1] : end] = values
