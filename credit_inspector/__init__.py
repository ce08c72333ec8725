"""Credit Inspector: see which tokens your RL run paid, which earned it, and which did not.

Every per-token quantity is a named column. A metric or a credit method is a function that gives one column. A check or a view
is a function of the table.

Singular modules are the frame. Plural folders are open: to add one of a kind, drop one file in; nothing else is edited.

::

    run folder ─ trainers ─▶ Rollout ─▶ TokenTable ─ metrics, credit ─▶ TokenTable ─ segmenters ─▶ SpanTable
    training loop ─ live ──▶ Rollout ─┘                   │  ▲                            │
                                                          ▼  │                  views ─▶ Panel ─▶ app · reports
                                                         store                 checks ─▶ Finding ─▶ app · reports

Three words: **assigned** credit is what the loss told a token, **realised** what training did to it, **earned** what it
contributed to the answer.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from credit_inspector.algorithms.presets import preset, presets
    from credit_inspector.hooks.trl import attach
    from credit_inspector.pipeline import assign
    from credit_inspector.preview import what_if
    from credit_inspector.trainers.opening import open_run

__version__ = "0.1.0"

# Imported when first used: `--help` and the light core load neither torch nor pyarrow for them.
_PUBLIC = {
    "assign": "credit_inspector.pipeline",
    "attach": "credit_inspector.hooks.trl",
    "open_run": "credit_inspector.trainers.opening",
    "preset": "credit_inspector.algorithms.presets",
    "presets": "credit_inspector.algorithms.presets",
    "what_if": "credit_inspector.preview",
}

__all__ = ["__version__", "assign", "attach", "open_run", "preset", "presets", "what_if"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'credit_inspector' has no attribute {name!r}")
