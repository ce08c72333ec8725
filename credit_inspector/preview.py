"""A run and changes → what the changes would do: the what-if of a path, for Python and the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from credit_inspector.algorithms.presets import preset
from credit_inspector.errors import UsageError
from credit_inspector.panel import Panel
from credit_inspector.pipeline import Progress, open_store
from credit_inspector.store import Store
from credit_inspector.table import TokenTable
from credit_inspector.whatif import WhatIf
from credit_inspector.whatif import what_if as recompute
from credit_inspector.whatif.panels import settable


def what_if(
    run: Path | str | Store | TokenTable,
    changes: Mapping[str, Any] | Iterable[tuple[str, Any]] | None = None,
    *,
    algorithm: str | None = None,
    steps: Sequence[int] = (),
    tokens: bool = True,
    top: int = 10,
    progress: Progress | None = None,
    **more: Any,
) -> WhatIf:
    """Credit of a run before and after a change of its rule, reward, mask or weights; no model runs.

    ::

        what_if("run", clip_high=0.28, length_penalty=0.001).totals.filler
        what_if("run", {"length_penalty.only": "right"}, steps=[120])
        what_if("run", format_reward={"weight": 0.2, "nothing_before": True})

    Args:
        run: a run folder, a rollout file or an analysis, by path or opened, or one step's table.
        changes: what to change, by the keys of ``credit-inspector what-if RUN --list``, in order.
        algorithm: the preset that stands before the changes, where the run does not say its rule or is to be seen under another.
        steps: only these optimizer steps; all when empty.
        tokens: whether every token's columns are kept in the answer; without, memory is bounded by one step.
        top: how many of the most changed responses and tokens of each step are kept.
        progress: is told what is being done where the run has to be analysed first.
        more: changes by keyword.

    Raises:
        UsageError: nothing to change, a key that does not exist, or a value that it does not take.
        MissingColumn: the rule is not known, or what changes cannot be recomputed.
    """
    listed = list(changes.items() if isinstance(changes, Mapping) else changes or ())
    asked = [*listed, *more.items()]
    if not asked:
        raise UsageError(
            "nothing to change", wanted="--set KEY=VALUE, such as --set length_penalty=0.001", do="--list shows all keys"
        )
    source = open_store(Path(run), progress) if isinstance(run, Path | str) else run
    return recompute(source, asked, rule=preset(algorithm) if algorithm else None, steps=steps, tokens=tokens, top=top)


def listing(run: Path, progress: Progress | None = None, algorithm: str | None = None) -> list[Panel]:
    """Everything that can be changed, with the values that the run has, or the preset of that name."""
    store = open_store(run, progress)
    rule = preset(algorithm) if algorithm else store.meta().algorithm
    if rule is None and store.steps:
        rule = store.read_step(store.steps[0], ())[0].algorithm
    return settable(rule)
