"""The figures of one step, for training logs: stable names, one number each, only what the data give.

======================================  ==============================================================================
``ratio/mean ratio/min ratio/max``      importance ratio π/π_old over trained tokens
``ratio/ess``                           effective sample size of these ratios, as a share of tokens
``ratio/left_out``                      trained tokens without a finite ratio
``ratio/sequence_mean_max``             largest geometric sequence ratio exp(mean log-ratio)
``log_ratio/sequence_sum_abs_max``      largest size of a response's summed log-ratio, in nats: the product ratio as its log
``clip/fraction``                       tokens whose push a bound cut (or held), sign-aware
``clip/low_fraction …high… …dual…``     the same by bound: lower, upper, dual clip or delta; ``…clamp…``: by the log-ratio clamp
``clip/unsigned_fraction``              tokens with a ratio outside the interval, whatever the advantage
``kl/k1_mean kl/k3_mean kl/k3_median``  estimators of KL to the reference; ``kl/top_token_share``: largest k3 of their sum
``kl/exact_mean entropy/mean``          where the whole distribution is known
``surprisal/mean``                      mean −log p of sampled tokens, which estimates the entropy
``rollout/…``                           trainer against sampling engine: ``kl_k1 kl_k3 ppl_ratio log_ppl_abs_diff chi2_token
                                        chi2_seq mult_prob_error`` (``metrics/statistics.py``)
``rollout/weight_max …weight_mean``     of raw token weights π_old/π_rollout, before any truncation
``rollout/weight_used_mean``            after truncation at the rule's bound; ``rollout/weight_truncated_share``
``ess/raw ess/truncated``               effective sample size of these weights as a share of tokens, before and after
``staleness/mean staleness/max``        optimizer steps between the sampling weights and the updated ones
``credit/push_total …push_up_share``    Σ|coefficient|, and the part of it that pushes up
``reward/mean length/mean right wrong``  by response; ``group/dead_share``: groups whose rewards are all equal
======================================  ==============================================================================
"""

from __future__ import annotations

import numpy as np

from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.kl import kl_value
from credit_inspector.columns import Inputs, compute
from credit_inspector.credit import credits
from credit_inspector.errors import MissingColumn
from credit_inspector.metrics import metrics
from credit_inspector.metrics.kl import reference_distance
from credit_inspector.metrics.ratio import old_logprob
from credit_inspector.metrics.statistics import ess, mean, off_policy, truncated
from credit_inspector.outcome import dead_groups, right, wrong
from credit_inspector.table import Floats, TokenTable

_WANTED = (
    *("advantage", "ratio", "log_ratio", "log_ratio/sequence_mean", "log_ratio/sequence_sum", "outside", "clip"),
    *("kl/k1", "kl/k3", "surprisal", "staleness", "credit/coefficient"),
)
_ROLLOUT = ("ppl_ratio", "log_ppl_abs_diff", "chi2_token", "chi2_seq", "mult_prob_error")
_CODES = {"low": -1, "high": 1, "dual": 2, "clamp": 3}


def figures(table: TokenTable) -> dict[str, float]:
    """Figures of a step's trained tokens, without any model; one that the data cannot give is left out, never 0."""
    specs = {spec.name: spec for registry in (metrics, credits) for spec in registry.members()}
    compute(Inputs(table, algorithm=table.algorithm), [name for name in _WANTED if name in specs], specs)
    found: dict[str, float] = {}
    for part in (_ratio, _clip, _kl, _openness, _rollout, _staleness, _credit, _by_row):
        found |= part(table)
    return {name: float(value) for name, value in found.items() if np.isfinite(value)}


def _ratio(table: TokenTable) -> dict[str, float]:
    if not table.has("ratio"):
        return {}
    ratio = _trained(table, "ratio")
    found = {"ratio/left_out": float(np.count_nonzero(table.loss_mask) - len(ratio))}
    if len(ratio):
        found |= {"ratio/mean": mean(ratio), "ratio/min": ratio.min(), "ratio/max": ratio.max()}
        found["ratio/ess"] = ess(_trained(table, "log_ratio")).fraction
        with np.errstate(over="ignore"):
            found["ratio/sequence_mean_max"] = np.exp(_trained(table, "log_ratio/sequence_mean").max())
        found["log_ratio/sequence_sum_abs_max"] = np.abs(_trained(table, "log_ratio/sequence_sum")).max()
    return found


def _clip(table: TokenTable) -> dict[str, float]:
    codes, outside = _trained(table, "clip"), _trained(table, "outside")
    found = {"clip/fraction": mean(codes != 0), "clip/unsigned_fraction": mean(outside != 0)}
    return found | {f"clip/{name}_fraction": mean(codes == code) for name, code in _CODES.items()}


def _kl(table: TokenTable) -> dict[str, float]:
    k1, k3 = (_divergence(table, f"kl/{estimator}") for estimator in ("k1", "k3"))
    found = {"kl/k1_mean": mean(k1), "kl/k3_mean": mean(k3), "kl/exact_mean": mean(_trained(table, "kl/exact"))}
    if len(k3):
        found["kl/k3_median"] = float(np.median(k3))
        found["kl/top_token_share"] = k3.max() / k3.sum() if k3.sum() > 0 else np.nan
    return found


def _divergence(table: TokenTable, name: str) -> Floats:
    """k1 or k3 of the trained tokens in float64 where log-probs are known, since a column holds no k3 beyond 3.4e38."""
    try:
        distance = reference_distance(table).values[table.loss_mask]
    except MissingColumn:
        return _trained(table, name)
    values = kl_value("k1" if name == "kl/k1" else "k3", distance[np.isfinite(distance)])
    return values[np.isfinite(values)]


def _openness(table: TokenTable) -> dict[str, float]:
    return {
        "entropy/mean": mean(_trained(table, "entropy/policy")),
        "surprisal/mean": mean(_trained(table, "surprisal")),
    }


def _rollout(table: TokenTable) -> dict[str, float]:
    """The trainer's forward against the sampling engine's, and the weights that correct for it."""
    try:
        engine, trainer = table.values("logprob/rollout"), old_logprob(table, table.algorithm).values
    except MissingColumn:
        return {}
    apart = off_policy(table, trainer, engine)
    found = {"rollout/kl_k1": apart["kl"], "rollout/kl_k3": apart["k3_kl"]}
    found |= {f"rollout/{name}": apart[name] for name in _ROLLOUT}
    with np.errstate(invalid="ignore"):
        log_weight = (trainer - engine)[table.loss_mask]
    weights = truncated(log_weight, np.inf)
    found |= {"rollout/weight_max": weights.raw_max, "rollout/weight_mean": weights.raw_mean}
    found["ess/raw"] = ess(log_weight).fraction
    return found | _after_truncation(log_weight, table.algorithm)


def _after_truncation(log_weight: Floats, rule: Algorithm | None) -> dict[str, float]:
    if rule is None or not rule.rollout_high or rule.rollout_weight == "none" or rule.rollout_outside != "truncate":
        return {}
    weights = truncated(log_weight, rule.rollout_high)
    return {
        "rollout/weight_used_mean": weights.used_mean,
        "rollout/weight_truncated_share": weights.share,
        "ess/truncated": ess(log_weight, rule.rollout_high).fraction,
    }


def _staleness(table: TokenTable) -> dict[str, float]:
    stale = _trained(table, "staleness")
    return {"staleness/mean": mean(stale), "staleness/max": stale.max()} if len(stale) else {}


def _credit(table: TokenTable) -> dict[str, float]:
    push = _trained(table, "credit/coefficient")
    total = np.abs(push).sum()
    if not len(push):
        return {}
    return {
        "credit/push_total": total,
        "credit/push_up_share": push[push > 0].sum() / total if total > 0 else np.nan,
    }


def _by_row(table: TokenTable) -> dict[str, float]:
    dead = dead_groups(table)
    lengths = table.trained_lengths.astype(np.float64)
    return {
        "reward/mean": mean(table.reward[np.isfinite(table.reward)]),
        "length/mean": mean(lengths),
        "length/right": mean(lengths[right(table)]),
        "length/wrong": mean(lengths[wrong(table)]),
        "group/dead_share": dead.dead / dead.groups if dead.groups else np.nan,
    }


def _trained(table: TokenTable, name: str) -> Floats:
    if not table.has(name):
        return np.zeros(0)
    values = table.values(name)[table.loss_mask]
    return values[np.isfinite(values)]
