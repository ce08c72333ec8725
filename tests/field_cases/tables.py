"""Small inputs → tables with the columns that need no model, and what a check says of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from credit_inspector import pipeline
from credit_inspector.algorithm import Algorithm
from credit_inspector.checks import checks, run_checks
from credit_inspector.columns import Inputs, compute
from credit_inspector.panel import Finding
from credit_inspector.rollout import Rollout
from credit_inspector.store import Meta, Store
from credit_inspector.table import TokenTable

COLUMNS = {
    "policy": "logprob/policy",
    "old": "logprob/old",
    "ref": "logprob/ref",
    "rollout": "logprob/rollout",
    "recomputed": "logprob/recomputed",
    "version": "policy_version",
    "weight": "rollout_weight",
    "advantage": "advantage",
    "k3": "kl/k3",
}


def rule(**fields: Any) -> Algorithm:
    return Algorithm(**{"name": "test/rule", "source": "recorded", "std_eps": 0.0, **fields})


def response(name: str = "s0", *, mask: Sequence[int] | None = None, **given: Any) -> Rollout:
    """One response; arguments named in ``COLUMNS`` are token columns, the others fields of a ``Rollout``."""
    columns = {COLUMNS[key]: np.array(given.pop(key), np.float32) for key in list(given) if key in COLUMNS}
    length = len(next(iter(columns.values()), mask or []))
    ids = given.pop("response_ids", np.arange(1, length + 1))
    return Rollout(
        **{
            "sample_id": name,
            "prompt_ids": np.array([9], np.int32),
            "response_ids": np.asarray(ids, np.int32),
            "loss_mask": None if mask is None else np.array(mask, np.bool_),
            "columns": columns,
            **given,
        }
    )


def table_of(*rollouts: Rollout, algorithm: Algorithm | None = None, step: int = 1) -> TokenTable:
    """One step with every assigned and policy column that can be had without a model."""
    table = TokenTable.from_rollouts(step, rollouts, algorithm=algorithm)
    specs = pipeline.known_columns()
    wanted = [name for name, spec in specs.items() if spec.family in ("assigned", "policy") and "models" not in spec.needs]
    compute(Inputs(table, algorithm=algorithm), wanted, specs)
    return table


def store_of(folder: Path, *tables: TokenTable) -> Store:
    """The analysis that these steps make."""
    store = Store(folder)
    store.write_meta(Meta(source="r", trainer="t", algorithm=tables[0].algorithm), None)
    for table in tables:
        store.write_step(table, None)
    return store


def said(code: str, folder: Path, *tables: TokenTable) -> list[Finding]:
    """What one check says; each finding has its cure."""
    findings = checks[code](store_of(folder, *tables))
    assert all(finding.code == code and finding.why and finding.do and finding.how_sure for finding in findings)
    return findings


def the(code: str, folder: Path, *tables: TokenTable) -> Finding:
    """The one thing that a check says."""
    (finding,) = said(code, folder, *tables)
    return finding


def codes(folder: Path, *tables: TokenTable) -> set[str]:
    """All that any check says."""
    return {finding.code for finding in run_checks(store_of(folder, *tables))}
