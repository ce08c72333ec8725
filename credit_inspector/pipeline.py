"""Where it comes together: open → read → score → credit → segment → check → store. The only file that knows the order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.detect import detect
from credit_inspector.algorithms.presets import preset
from credit_inspector.checks import run_checks
from credit_inspector.columns import ColumnSpec, Inputs, compute, order
from credit_inspector.credit import credits
from credit_inspector.errors import UsageError
from credit_inspector.metrics import metrics
from credit_inspector.rollout import CheckpointAt, Problem, Rollout, Run, Step
from credit_inspector.segmenters import segmenters
from credit_inspector.spans import SpanTable
from credit_inspector.store import Meta, Store
from credit_inspector.table import Column, TokenTable
from credit_inspector.tokens import end_ids, load_tokenizer, pieces, unnamed
from credit_inspector.trainers import ReadOptions
from credit_inspector.trainers.opening import open_run, tokenised

if TYPE_CHECKING:
    from credit_inspector.checkpoints import Checkpoint
    from credit_inspector.scoring import Models

Progress = Callable[[str, int, int], None]
"""What is being done, how much is done, of how much."""

ROLES = ("policy", "before", "after", "old", "ref")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user may ask of an analysis."""

    checkpoints: Mapping[str, Path] = field(default_factory=dict)
    """By role: ``policy``, ``old``, ``ref``, ``after``; what is not given is taken from beside the run."""
    base: Path | None = None
    """The model that adapters among the checkpoints were trained on, where they do not lead there."""
    algorithm: str | None = None
    tokenizer: Path | None = None
    steps: Sequence[int] = ()
    """Only these; all when empty."""
    device: str = "auto"
    mapping: Mapping[str, str] = field(default_factory=dict)
    score: bool = True
    """Whether checkpoints are run at all."""
    columns: Sequence[str] = ()
    """Only these columns and what they need; everything known when empty."""


def analyze(source: Path, folder: Path, options: Options, progress: Progress | None = None) -> Store:
    """Analyse a run into a folder, step by step; steps that are already there are kept.

    Raises:
        FormatError, CheckpointError, UsageError: the input cannot be analysed; nothing is written.
        StoreError: the folder cannot be written.
    """
    run = open_run(source, ReadOptions(options.mapping))
    work = _Work(run, options, progress or (lambda *_: None))
    store = Store(folder)
    with store.writing():
        store.begin(work.meta(), work.tokenizer)
        done = set(store.steps)
        for number in work.steps:
            if number not in done:
                store.write_step(*work.step(number))
                work.progress(f"step {number}: done", work.steps.index(number) + 1, len(work.steps))
        store.write_findings(run_checks(store))
    return store


def in_memory(run: Run, options: Options, number: int) -> tuple[TokenTable, SpanTable | None]:
    """One step of a run, computed and not stored: for notebooks and tests."""
    return _Work(run, options, lambda *_: None).step(number)


def assign(
    source: Path | str | Run | Sequence[Rollout], algorithm: Algorithm | str | None = None, *, step: int | None = None
) -> TokenTable:
    """One step with its assigned credit, from what is recorded; no model runs. For notebooks.

    ::

        table = assign("run", "trl-1.16.0/dapo", step=120)
        table.values("credit/coefficient")          # [T]
        table.columns["advantage"].note             # the rule, in words

    Args:
        source: a run by path or opened, or rollouts.
        algorithm: the rule or a preset's name; the run's own when not given.
        step: which one; the first when not given.

    Raises:
        UsageError: no preset of that name, or a step that is not in the run.
        FormatError: the run cannot be read.
    """
    given = preset(algorithm) if isinstance(algorithm, str) else algorithm
    if isinstance(source, Path | str):
        source = open_run(Path(source), ReadOptions())
    if isinstance(source, Run):
        options = Options(steps=() if step is None else (step,), score=False)
        work = _Work(source, options, lambda *_: None)
        read = work.read(work.steps[0])
        table = TokenTable.from_rollouts(read.number, read.rollouts, problems=read.problems)
        table.algorithm = given or read.algorithm or work.algorithm
    else:
        table = TokenTable.from_rollouts(step or 0, source, algorithm=given)
    specs = known_columns()
    wanted = [name for name, spec in specs.items() if spec.family == "assigned" and "models" not in spec.needs]
    compute(Inputs(table, algorithm=table.algorithm), wanted, specs)
    return table


def open_store(path: Path, progress: Progress | None = None, options: Options | None = None) -> Store:
    """The analysis at a path: an analysis folder, a run that was analysed in its default place, or one analysed now.

    A run without an analysis is analysed from what is recorded alone (no checkpoint runs), which takes seconds.
    """
    for folder in (path, default_folder(path)):
        if Store(folder).exists:
            return Store(folder)
    return analyze(path, default_folder(path), options or Options(score=False), progress)


def default_folder(source: Path) -> Path:
    """Where the analysis of a run goes when nothing is said: beside a file, inside a folder."""
    if source.is_file():
        return source.with_name(f"{source.name}.analysis")
    return source / "analysis"


def known_columns() -> dict[str, ColumnSpec]:
    """Every column that can be made, by name."""
    return {spec.name: spec for registry in (metrics, credits) for spec in registry.members()}


class _Work:
    """One analysis: what is found out once, and the making of a step."""

    def __init__(self, run: Run, options: Options, progress: Progress) -> None:
        self.run = run
        self.options = options
        self.progress = progress
        self.steps = self._asked(run.steps, options.steps)
        self._given = {role: self._open(path) for role, path in options.checkpoints.items()}
        self.tokenizer = options.tokenizer or run.tokenizer or self._tokenizer_of_checkpoints()
        self.notes = list(run.notes)
        self.algorithm = self._find_algorithm()
        self._models: Models | None = None
        self._last: tuple[dict[str, Path], TokenTable] | None = None
        self._can_score = options.score and self._compute_is_there()
        if self._can_score and self.steps and self._off(roles := self._roles(self.steps[0])):
            self.notes.append(f"the reference is the base model of the policy's adapter, {roles['ref'].path}: none was named")

    def meta(self) -> Meta:
        given = {role: str(path) for role, path in self.options.checkpoints.items()}
        if given and self.options.base:
            given["base"] = str(self.options.base)
        beside = {f"step {at.step}": str(at.path) for at in self.run.checkpoints}
        return Meta(
            source=str(self.run.path.resolve()),
            trainer=self.run.trainer,
            algorithm=self.algorithm,
            checkpoints=given or beside,
            scored=self._can_score,
            columns=tuple(self.options.columns),
            ends=self._ends(),
            notes=tuple(self.notes),
        )

    def _ends(self) -> tuple[int, ...]:
        """Ids on which the model stops: of the checkpoints given, of those beside the run, or of the tokenizer's folder."""
        given = [checkpoint.path for checkpoint in self._given.values()]
        beside = [at.path for at in self.run.checkpoints]
        folders = [*given, *beside, *([self.tokenizer] if self.tokenizer else [])]
        return next((ends for folder in folders if (ends := end_ids(folder))), ())

    def step(self, number: int) -> tuple[TokenTable, SpanTable | None]:
        """Read, score and judge one step."""
        self.progress(f"step {number}: reading", self.steps.index(number), len(self.steps))
        step = self.read(number)
        table = TokenTable.from_rollouts(
            number, step.rollouts, algorithm=step.algorithm or self.algorithm, problems=step.problems
        )
        table.problems += self._padding_ids(table)
        spans = self._spans(table)
        models = self._models_at(number) if self._can_score else None
        inputs = Inputs(table, algorithm=table.algorithm, spans=spans, models=models)
        specs = known_columns()
        self._take_over(table, models, specs)
        wanted = self.options.columns or [name for name, spec in specs.items() if models or not _needs_models(spec, specs)]
        todo = len(order(wanted, specs, [n for n, c in table.columns.items() if c.values is not None], table.algorithm))
        made = iter(range(1, todo + 1))
        compute(inputs, wanted, specs, on_done=lambda spec: self.progress(f"step {number}: {spec.label}", next(made), todo))
        for name in sorted(set(specs) - set(table.columns)):
            table.columns[name] = Column.missing(self._why_missing())
        return table, spans

    def _take_over(self, table: TokenTable, models: Models | None, specs: Mapping[str, ColumnSpec]) -> None:
        """Two updates on one batch have the same responses: what only models and text decide is not computed twice."""
        if models is None:
            return
        roles = {role: checkpoint.path for role, checkpoint in models.checkpoints.items()}
        known = self._last
        if known and known[0] == roles and _same_text(known[1], table):
            for name, column in known[1].columns.items():
                if name in specs and name not in table.columns and _of_text_and_models(specs[name]):
                    table.columns[name] = column
        self._last = (roles, table)

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @staticmethod
    def _asked(there: tuple[int, ...], asked: Sequence[int]) -> tuple[int, ...]:
        if absent := sorted(set(asked) - set(there)):
            raise UsageError(f"step {absent[0]} is not in the run", wanted=f"one of {', '.join(map(str, there))}")
        return tuple(asked) or there

    def read(self, number: int) -> Step:
        """A step's rollouts; text-only ones get their ids once, or lose what cannot be aligned without them, and it is said."""
        step = self.run.read(number)
        if all(r.response_ids is not None and r.prompt_ids is not None for r in step.rollouts):
            return step
        return tokenised(step, load_tokenizer(self.tokenizer) if self.tokenizer else None)

    def _tokenizer_of_checkpoints(self) -> Path | None:
        of_given = (checkpoint.tokenizer for checkpoint in self._given.values())
        for path in (*of_given, *(at.path for at in self.run.checkpoints)):
            if path is not None and (path / "tokenizer.json").is_file():
                return path
        return None

    def _padding_ids(self, table: TokenTable) -> tuple[Problem, ...]:
        """Ids without a token: a model's vocabulary is often padded for the hardware, and then such an id can be sampled."""
        strange = unnamed(load_tokenizer(self.tokenizer), table.token_ids) if self.tokenizer and table.n_tokens else []
        found = []
        for number in strange:
            rows = np.unique(table.row[table.token_ids == number])
            where = "1 response" if len(rows) == 1 else f"{len(rows)} responses"
            message = f"id {number} is a padding id: the tokenizer has no token for it (in {where})"
            found.append(Problem("padding-id", message, table.rollouts[int(rows[0])].sample_id))
        return tuple(found[:20])

    def _spans(self, table: TokenTable) -> SpanTable | None:
        if self.tokenizer is None or not table.n_tokens:
            return None
        tokenizer = load_tokenizer(self.tokenizer)
        words = [pieces(tokenizer, table.token_ids[table.slice(row)]).text for row in range(table.n_rows)]
        return SpanTable.from_text(table, words, segmenters["sentence"])

    def _find_algorithm(self) -> Algorithm | None:
        if self.options.algorithm:
            return preset(self.options.algorithm)
        if self.run.algorithm:
            return self.run.algorithm
        if not self.steps:
            return None
        found = detect(self.run.read(self.steps[0]).rollouts)
        if found is None:
            self.notes.append("the rule that the run optimised is not known; name it with --algorithm")
            return None
        return found

    # ── checkpoints ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _compute_is_there(self) -> bool:
        if find_spec("torch") is None or find_spec("transformers") is None:
            if self.options.checkpoints:
                from credit_inspector.errors import MissingExtra

                raise MissingExtra("torch", "compute")
            self.notes.append('no checkpoint was run: pip install "credit-inspector[compute]" for earned credit')
            return False
        if not self.run.checkpoints and not self._given:
            self.notes.append("no checkpoint is beside the run: give one with --policy for earned credit")
            return False
        return True

    def _why_missing(self) -> str:
        return "needs a checkpoint" if not self._can_score else "was not asked for"

    def _open(self, path: Path) -> Checkpoint:
        from credit_inspector.checkpoints.opening import open_checkpoint

        return open_checkpoint(path, self.options.base)

    def _models_at(self, number: int) -> Models:
        """The models with their roles at this step."""
        if self._models is None:
            from credit_inspector.scoring import Models

            self._models = Models({}, self.options.device, progress=self.progress)
        self._models.assign(self._roles(number))
        return self._models

    def _roles(self, number: int) -> dict[str, Checkpoint]:
        """The policy is the checkpoint nearest to the weights that the step updated; an adapter's reference is its base."""
        roles = dict(self._given)
        for role, at in self._beside(number).items():
            roles.setdefault(role, self._open(at.path))
        if policy := roles.get("policy"):
            roles.setdefault("before", policy)
            if policy.base:
                roles.setdefault("ref", policy.base)
        return roles

    @staticmethod
    def _off(roles: Mapping[str, Checkpoint]) -> bool:
        """Whether the reference is the policy with its adapter off."""
        return {"policy", "ref"} <= set(roles) and roles["ref"] is roles["policy"].base

    def _beside(self, number: int) -> dict[str, CheckpointAt]:
        found = self.run.checkpoints
        if not found:
            return {}
        weights = number - 1
        earlier = [at for at in found if at.step <= weights]
        later = [at for at in found if at.step >= number]
        roles = {"policy": min(found, key=lambda at: (abs(at.step - weights), at.step))}
        if earlier:
            roles["before"] = earlier[-1]
        if later:
            roles["after"] = later[0]
        if found[0].step == 0:
            roles["ref"] = found[0]
        return roles


def _needs_models(spec: ColumnSpec, specs: Mapping[str, ColumnSpec]) -> bool:
    return "models" in spec.needs or any(_needs_models(specs[name], specs) for name in spec.needs if name in specs)


def _of_text_and_models(spec: ColumnSpec) -> bool:
    return "models" in spec.needs and set(spec.needs) <= {"table", "spans", "models"}


def _same_text(a: TokenTable, b: TokenTable) -> bool:
    def ids(table: TokenTable) -> list[bytes]:
        return [b"" if r.prompt_ids is None else r.prompt_ids.tobytes() for r in table.rollouts]

    return (
        np.array_equal(a.offsets, b.offsets)
        and np.array_equal(a.token_ids, b.token_ids)
        and np.array_equal(a.loss_mask, b.loss_mask)
        and ids(a) == ids(b)
        and (a.algorithm and a.algorithm.temperature) == (b.algorithm and b.algorithm.temperature)
    )
