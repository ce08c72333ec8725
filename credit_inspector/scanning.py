"""What lies at a path: a run, a rollout file, a checkpoint or an analysis; what it holds and what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from credit_inspector.checkpoints.opening import open_checkpoint
from credit_inspector.errors import CheckpointError, FormatError
from credit_inspector.rollout import Run, Step
from credit_inspector.store import Store
from credit_inspector.trainers import ReadOptions
from credit_inspector.trainers._rows import Parsed, parse
from credit_inspector.trainers.opening import open_run

_OF_CHECKPOINTS = {
    ".metadata",
    "actor",
    "adapter_config.json",
    "config.json",
    "fsdp_config.json",
    "huggingface",
    "latest",
    "latest_checkpointed_iteration.txt",
    "policy",
    "pytorch_model_fsdp_0",
}
"""Names that checkpoints have and runs have not."""
_LARGEST = 100_000_000
_SOUGHT = ("logprob/old", "logprob/policy", "logprob/ref", "logprob/rollout")


@dataclass(frozen=True, slots=True)
class Seen:
    """What was recognised."""

    path: Path
    what: str
    lines: tuple[tuple[str, str], ...]
    """Names and values, in the order to print."""

    def to_json(self) -> dict[str, object]:
        """A plain mapping."""
        return {"path": str(self.path), "what": self.what, **dict(self.lines)}


def scan(path: Path, mapping: Mapping[str, str], base: Path | None = None) -> Seen:
    """Recognise a path, from names and first rows only.

    Args:
        path: a run, a rollout file, a checkpoint or an analysis.
        mapping: which column of a table is what.
        base: of an adapter, or the folder with the config of bare shards.

    Raises:
        FormatError: nothing at the path can be read.
    """
    if Store(path).exists:
        return _analysis(path)
    try:
        run = open_run(path, ReadOptions(mapping))
    except FormatError as no_run:
        if (known := _beside_a_run(path)) is not None:
            return known
        try:
            found = open_checkpoint(path, base)
        except (CheckpointError, FormatError) as error:
            # A path that looks like a checkpoint is told about its checkpoint; anything else about rollouts.
            raise (error if path.is_dir() and _like_checkpoint(path) else no_run) from None
        lines = [("model", found.summary), ("tokenizer", str(found.tokenizer or "none"))]
        if found.base is not None:
            lines.append(("base", f"{found.base.path}, {found.base.summary}"))
        return Seen(path, f"checkpoint ({found.format})", tuple(lines))
    return _run(path, run)


def _beside_a_run(path: Path) -> Seen | None:
    """A file that trainers write beside rollouts and checkpoints, and that is neither."""
    if path.suffix != ".json" or not path.is_file() or path.stat().st_size > _LARGEST:
        return None
    read = parse(path.read_bytes())
    values = read.value if isinstance(read, Parsed) and isinstance(read.value, Mapping) else {}
    if isinstance(history := values.get("log_history"), list) and "global_step" in values:
        names = sorted({str(name) for entry in history if isinstance(entry, Mapping) for name in entry})
        lines = (("steps", str(values["global_step"])), ("logged", ", ".join(names)), ("rollouts", "none: open the run's folder"))
        return Seen(path, "trainer state, without rollouts", lines)
    if "peft_type" in values:
        lines = (
            ("kind", str(values["peft_type"])),
            ("base", str(values.get("base_model_name_or_path"))),
            ("weights", "none in this file: open the adapter's folder, with --base where the base model lies elsewhere"),
        )
        return Seen(path, "configuration of an adapter, without its weights", lines)
    return None


def _like_checkpoint(path: Path) -> bool:
    names = {file.name for file in path.iterdir()}
    by_ending = any(name.endswith((".safetensors", ".gguf", ".distcp", ".pt")) for name in names)
    return by_ending or bool(names & _OF_CHECKPOINTS) or any(name.startswith(("global_step", "iter_")) for name in names)


def _analysis(path: Path) -> Seen:
    store = Store(path)
    meta = store.meta()
    rule = meta.algorithm.name if meta.algorithm else "not known"
    return Seen(path, "analysis", (("source", meta.source), ("rule", rule), ("steps", _range(store.steps))))


def _run(path: Path, run: Run) -> Seen:
    first = run.read(run.steps[0]) if run.steps else None
    columns = set(run.columns) | {name for rollout in (first.rollouts if first else ()) for name in rollout.columns}
    lines = [("steps", _range(run.steps))]
    if first:
        lines += _rollouts(first)
    lines.append(("recorded", ", ".join(sorted(columns)) or "no token column"))
    lines.append(("rule", f"{run.algorithm.name} ({run.algorithm.source})" if run.algorithm else "not recorded: --algorithm"))
    lines.append(("checkpoints", ", ".join(f"step {at.step}" for at in run.checkpoints) or "none beside the run: --policy"))
    lines.append(("missing", _missing(run, first, columns)))
    lines += [("note", note) for note in run.notes]
    return Seen(path, f"run, written by {run.trainer}", tuple(lines))


def _rollouts(step: Step) -> list[tuple[str, str]]:
    groups = {rollout.group_id for rollout in step.rollouts if rollout.group_id is not None}
    source = ", ".join(sorted({rollout.group_source for rollout in step.rollouts}))
    rewards = sum(rollout.reward is not None for rollout in step.rollouts)
    ids = sum(rollout.response_ids is not None for rollout in step.rollouts)
    lines = [
        ("first step", f"{len(step.rollouts)} responses, {rewards} with a reward, {ids} with token ids"),
        ("groups", f"{len(groups)} ({source})"),
    ]
    return lines + [("problem", f"{problem.message} {problem.where}".strip()) for problem in step.problems[:5]]


def _missing(run: Run, step: Step | None, columns: set[str]) -> str:
    gone = [name for name in _SOUGHT if name not in columns]
    if step and not any(rollout.response_ids is not None for rollout in step.rollouts):
        gone.insert(0, "token ids (the text will be tokenised once)")
    if run.tokenizer is None:
        gone.append("tokenizer")
    return ", ".join(gone) or "nothing"


def _range(steps: tuple[int, ...]) -> str:
    if not steps:
        return "none"
    return f"{len(steps)} ({steps[0]}–{steps[-1]})" if len(steps) > 1 else f"1 ({steps[0]})"
