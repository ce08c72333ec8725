"""The figures of one step, for training logs: stable names, one number each, only what the data give."""

from __future__ import annotations

import numpy as np

from credit_inspector.columns import Inputs, compute
from credit_inspector.credit import credits
from credit_inspector.metrics import metrics
from credit_inspector.outcome import dead_groups, right, wrong
from credit_inspector.table import Floats, TokenTable

_WANTED = ("advantage", "ratio", "clip", "kl/k3", "credit/coefficient")


def figures(table: TokenTable) -> dict[str, float]:
    """Figures of a step's trained tokens, without any model.

    ``ratio/mean ratio/max clip/fraction kl/k3_mean kl/top_token_share group/dead_share length/mean length/right length/wrong
    reward/mean credit/push_total credit/push_up_share``; a figure that the data cannot give is left out, never 0.
    """
    specs = {spec.name: spec for registry in (metrics, credits) for spec in registry.members()}
    compute(Inputs(table, algorithm=table.algorithm), [name for name in _WANTED if name in specs], specs)
    found = {**_token_figures(table), **_row_figures(table)}
    return {name: float(value) for name, value in found.items() if np.isfinite(value)}


def _token_figures(table: TokenTable) -> dict[str, float]:
    found: dict[str, float] = {}
    if (ratio := _trained(table, "ratio")).size:
        found["ratio/mean"], found["ratio/max"] = ratio.mean(), ratio.max()
    if (clip := _trained(table, "clip")).size:
        found["clip/fraction"] = (clip != 0).mean()
    if (kl := _trained(table, "kl/k3")).size:
        found["kl/k3_mean"] = kl.mean()
        found["kl/top_token_share"] = kl.max() / kl.sum() if kl.sum() > 0 else np.nan
    if (push := _trained(table, "credit/coefficient")).size:
        total = np.abs(push).sum()
        found["credit/push_total"] = total
        found["credit/push_up_share"] = push[push > 0].sum() / total if total > 0 else np.nan
    return found


def _row_figures(table: TokenTable) -> dict[str, float]:
    best, other, groups = dead_groups(table)
    lengths = table.trained_lengths
    return {
        "reward/mean": _mean(table.reward[np.isfinite(table.reward)]),
        "length/mean": _mean(lengths),
        "length/right": _mean(lengths[right(table)]),
        "length/wrong": _mean(lengths[wrong(table)]),
        "group/dead_share": (best + other) / groups if groups else np.nan,
    }


def _trained(table: TokenTable, name: str) -> Floats:
    if not table.has(name):
        return np.zeros(0)
    values = table.values(name)[table.loss_mask]
    return values[np.isfinite(values)]


def _mean(values: np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else np.nan
