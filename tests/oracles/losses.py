"""Loss vectors: log-probs and advantages in, d loss / d log-prob and weights out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from credit_inspector.algorithm import Algorithm
from credit_inspector.credit.kl_push import kl_push
from credit_inspector.credit.policy_push import pushed
from credit_inspector.credit.weight import token_weights
from credit_inspector.table import Column, Provenance, TokenTable
from oracles import VECTORS, Checks, Vector, close, floats, rule, table_of

# ── the rule of a vector, as a preset of that trainer spells it ─────────────────────────────────────────────────────


def loss_rule(vector: Vector) -> Algorithm:
    package = {"NeMo-RL": "nemo", "prime-rl": "prime"}.get(vector["producer"]["package"], vector["producer"]["package"])
    fields = {"trl": trl, "verl": verl, "openrlhf": openrlhf, "nemo": nemo, "slime": slime, "prime": prime}[package]
    return rule(updates_per_batch=2, **fields(vector))


def trl(vector: Vector) -> dict[str, Any]:
    params = vector["params"]
    args = params.get("args", {})
    bounds = {"clip_low": params["epsilon_low"], "clip_high": params["epsilon_high"], "count_empty": True}
    if "RLOO" in vector["producer"]["callable"]:
        return {**bounds, "ratio_level": "product", "aggregation": "seq-mean-token-mean"}
    if "GMPO" in vector["producer"]["callable"]:
        return {**bounds, "loss": "gmpo", "aggregation": "seq-mean-token-mean"}
    kind = params["loss_type"]
    modes = {"dr_grpo": "seq-mean-token-sum-norm", "luspo": "luspo"}
    sequence_means = dict.fromkeys(("grpo", "sapo"), "seq-mean-token-mean")
    absolute = {"clip_low": 0.0, "clip_bounds": "absolute"} if kind == "cispo" else {}
    return {
        **bounds,
        **absolute,
        "loss": kind if kind in ("cispo", "sapo", "vespo") else "ppo_clip",
        "ratio_level": params.get("importance_sampling_level", "token"),
        "delta": args.get("delta"),
        "aggregation": {**modes, **sequence_means}.get(kind, "token-mean"),
        "horizon": float(params["max_completion_length"]),
        "batch_tokens": 64.0 if vector["id"] == "trl.dapo.global_tokens_64" else None,
        "kl_beta": params.get("beta", 0.0),
        "kl_gradient": "ratio-weighted" if args.get("use_bias_correction_kl") else "autograd",
        "off_policy_mask": params.get("off_policy_mask_threshold"),
        # With the sampling engine's log-probs at hand TRL measures drift from them.
        "settings": {"off_policy_from_rollout": 1.0} if "sampling_log_prob" in vector["inputs"] else {},
    }


def verl(vector: Vector) -> dict[str, Any]:
    params, kind = vector["params"], vector["quantity"].partition(":")[2]
    fields = {
        "clip_low": params.get("clip_ratio_low", 0.2),
        "clip_high": params.get("clip_ratio_high", 0.2),
        "dual_clip": 3.0,
        "log_ratio_clamp": 20.0,
        "aggregation": params["loss_agg_mode"],
        "horizon": 8.0,
    }
    gspo = {"ratio_level": "sequence-token", "dual_clip": None, "log_ratio_clamp": None, "settings": {"log_ratio_max": 10.0}}
    special: dict[str, dict[str, Any]] = {
        "vanilla": {},
        "gspo": gspo,
        "gpg": {"loss": "reinforce"},
        # These two do not read ``loss_agg_mode``.
        "sapo": {"loss": "sapo", "aggregation": "seq-mean-token-mean", "settings": {"tau_pos": 1.0, "tau_neg": 1.05}},
        "geo_mean": {"loss": "gmpo", "aggregation": "seq-mean-token-mean", "log_ratio_clamp": None, "count_empty": True},
        "dro": {"loss": "dro", "settings": {"beta": params.get("dro_beta")}},
        "kl_cov": {
            "loss": "kl_cov",
            "log_ratio_clamp": None,
            "settings": {"ratio": params.get("kl_cov_ratio"), "coef": params.get("ppo_kl_coef")},
        },
    }
    return {**fields, **special.get(kind, {"loss": kind})}


def openrlhf(vector: Vector) -> dict[str, Any]:
    params = vector["params"]
    fields = {"clip_low": params["clip_eps_low"], "clip_high": params["clip_eps_high"], "dual_clip": params.get("dual_clip")}
    if params.get("policy_loss_type") == "gspo":
        ratio_from = "rollout" if "is_correction_level" in params else "old"
        return {**fields, "ratio_level": "sequence", "ratio_from": ratio_from, "aggregation": "seq-mean-token-mean"}
    mode = "token-mean" if params.get("token_level_loss", True) else "seq-mean-token-mean"
    return {**fields, "log_ratio_clamp": 20.0, "aggregation": mode, **openrlhf_correction(params)}


def openrlhf_correction(params: dict[str, Any]) -> dict[str, Any]:
    if "is_correction_level" not in params:
        return {}
    low, high = params["is_correction_threshold"]
    gates = {
        ("token", "ratio"): "weight",
        ("seq", "ratio"): "sequence-geo",
        ("token", "binary_kl"): "token-binary-kl",
        ("seq", "binary_kl"): "sequence-binary-kl",
        ("token", "tv"): "token-tv",
        ("seq", "tv"): "sequence-tv",
    }
    return {
        "rollout_weight": "token",
        "rollout_gate": gates[params["is_correction_level"], params["is_correction_gating"]],
        "rollout_low": low,
        "rollout_high": high,
        "rollout_outside": {"clip": "truncate", "mask": "mask"}[params["is_correction_mode"]],
    }


def nemo(vector: Vector) -> dict[str, Any]:
    params = vector["params"]
    fields = {
        "loss": "cispo" if params.get("use_cispo") else "ppo_clip",
        "clip_low": params["ratio_clip_min"],
        "clip_high": params["ratio_clip_max"],
        "dual_clip": params.get("ratio_clip_c"),
        "aggregation": "token-mean",
    }
    if not params.get("use_importance_sampling_correction"):
        return fields
    kind = params["truncated_importance_sampling_type"]
    return {
        **fields,
        "rollout_weight": "token",
        "rollout_gate": "sequence-geo" if kind == "seq-mask-tis" else "weight",
        "rollout_low": params["truncated_importance_sampling_ratio_min"],
        "rollout_high": params["truncated_importance_sampling_ratio"],
        "rollout_outside": "truncate" if kind == "tis" else "mask",
    }


def slime(vector: Vector) -> dict[str, Any]:
    """Its loss sums the responses' means, and divides by the batch outside."""
    params = vector["params"]
    bounds = {"clip_low": params["eps_clip"], "clip_high": params["eps_clip_high"], "dual_clip": params["eps_clip_c"]}
    return {**bounds, "aggregation": "seq-mean-token-mean", "batch_responses": 1.0}


def prime(vector: Vector) -> dict[str, Any]:
    params = vector["params"]
    return {
        "loss": "prime",
        "ratio_from": "rollout",
        "clip_low": params["dppo_mask_low"],
        "clip_high": params["dppo_mask_high"],
        "settings": {name: params[name] for name in ("adv_tau", "kl_tau")},
        "aggregation": "token-sum",
    }


# ── the step of a vector, and what the package makes of it ──────────────────────────────────────────────────────────

COLUMNS = {
    "log_prob": "logprob/policy",
    "old_log_prob": "logprob/old",
    "prev_logprobs": "logprob/old",
    "ref_log_prob": "logprob/ref",
    "reference_logprobs": "logprob/ref",
    "rollout_log_prob": "logprob/rollout",
    "generation_logprobs": "logprob/rollout",
    "sampling_log_prob": "logprob/rollout",
    "inference_log_prob": "logprob/rollout",
    "importance_sampling_ratio": "rollout_weight",
    "rollout_is_weights": "rollout_weight",
}


def step(vector: Vector) -> tuple[TokenTable, np.ndarray]:
    """The vector's batch as a table with its columns, and the advantages ``[T]``."""
    inputs = vector["inputs"]
    mask = np.atleast_2d(
        floats(next(inputs[k] for k in ("response_mask", "completion_mask", "action_mask", "mask") if k in inputs))
    )
    mask = mask * floats(inputs.get("tool_mask", 1.0))
    table = table_of(mask)

    def flat(values: Any) -> np.ndarray:
        values = floats(values)
        return np.broadcast_to(values if values.shape == mask.shape else values.reshape(len(mask), -1), mask.shape).ravel()

    given = {COLUMNS[key]: flat(values) for key, values in inputs.items() if key in COLUMNS}
    if "old_seq_log_prob" in inputs:
        # RLOO keeps a response's sum only; any tokens with that sum are the same to it.
        policy = given["logprob/policy"].reshape(mask.shape)
        apart = (policy * mask).sum(1) - floats(inputs["old_seq_log_prob"])
        given["logprob/old"] = (policy - (apart / mask.sum(1))[:, None]).ravel()
    # Float64, where a run's own columns are float32: the producers computed in it.
    table.columns.update({name: Column(values, Provenance.RECORDED) for name, values in given.items()})  # type: ignore[arg-type]
    return table, flat(inputs["advantages"])


def policy_loss(vector: Vector) -> None:
    algorithm, (table, advantage) = loss_rule(vector), step(vector)
    weight = token_weights(table, algorithm)
    push = pushed(table, algorithm, advantage, weight).push
    trained = table.loss_mask
    assert np.isnan(push.coefficient[~trained]).all()
    ours = push.coefficient - np.asarray(kl_push(table, algorithm, weight).values)
    theirs = floats(vector["outputs"]["dloss_dlogp"]).ravel()
    if np.isnan(theirs).all():
        assert vector["id"].startswith("verl.ppo.nan_outside_mask"), "only there a masked NaN spoils the producer's gradient"
        assert np.isfinite(ours[trained]).all()
        return
    close(ours[trained], theirs[trained], vector)
    assert not theirs[~trained].any()
    CLIPPED.get(vector["producer"]["package"], nothing_counted)(vector, push.clipped[trained], advantage[trained], table)


# ── clip fractions: trainers' own, where they count what our codes say ──────────────────────────────────────────────


def nothing_counted(vector: Vector, codes: np.ndarray, gain: np.ndarray, table: TokenTable) -> None:
    assert "metrics" not in vector["outputs"] or vector["producer"]["package"] == "NeMo-RL", "NeMo-RL logs no clip fraction"


def trl_clipped(vector: Vector, codes: np.ndarray, gain: np.ndarray, table: TokenTable) -> None:
    metrics = vector["outputs"]["metrics"]
    if "cispo_clip_ratio" in metrics:
        return close(((codes == 1) & (gain > 0)).mean(), metrics["cispo_clip_ratio"], vector)
    if "clip_ratio/low_mean" not in metrics:
        return None
    if "RLOO" in vector["producer"]["callable"] or (
        vector["params"].get("importance_sampling_level") == "sequence" and np.ndim(vector["inputs"]["advantages"]) == 1
    ):
        # One ratio for a response is counted once.
        codes = codes[np.unique(table.row[table.loss_mask], return_index=True)[1]]
    close((codes == -1).mean(), metrics["clip_ratio/low_mean"], vector)
    close((codes == 1).mean(), metrics["clip_ratio/high_mean"], vector)
    return None


def verl_clipped(vector: Vector, codes: np.ndarray, gain: np.ndarray, table: TokenTable) -> None:
    metrics, tokens = vector["outputs"]["metrics"], len(codes)
    kind = vector["id"].split(".")[1]
    # GMPO counts ratios that are outside on either side, also where the smaller one keeps its gradient; CISPO and DPPO
    # count tokens without an advantage too.
    if "actor/pg_clipfrac" not in metrics or kind == "gmpo":
        return
    if kind in ("cispo", "dppo_tv", "dppo_kl") and not gain.all():
        return
    # verl adds 1e-8 to the number of tokens.
    assert np.isin(codes, (1, -1)).sum() / tokens == pytest.approx(metrics["actor/pg_clipfrac"], abs=1e-8)
    assert (codes == 2).sum() / tokens == pytest.approx(metrics["actor/pg_clipfrac_lower"], abs=1e-8)


def openrlhf_clipped(vector: Vector, codes: np.ndarray, gain: np.ndarray, table: TokenTable) -> None:
    close(np.isin(codes, (1, -1)).mean(), vector["outputs"]["clip_ratio"], vector)


def slime_clipped(vector: Vector, codes: np.ndarray, gain: np.ndarray, table: TokenTable) -> None:
    theirs = floats(vector["outputs"]["clipfrac_tokens"]).ravel()[table.loss_mask]
    np.testing.assert_array_equal(np.isin(codes, (1, -1)), theirs == 1)


def prime_clipped(vector: Vector, codes: np.ndarray, gain: np.ndarray, table: TokenTable) -> None:
    metrics = vector["outputs"]["metrics"]
    close([(codes == -1).mean(), (codes == 1).mean()], [metrics["is_masked_low"], metrics["is_masked_high"]], vector)


CLIPPED: dict[str, Callable[[Vector, np.ndarray, np.ndarray, TokenTable], None]] = {
    "trl": trl_clipped,
    "verl": verl_clipped,
    "openrlhf": openrlhf_clipped,
    "slime": slime_clipped,
    "prime-rl": prime_clipped,
}


CHECKS: Checks = {
    **{vector["id"]: policy_loss for vector in VECTORS if vector["quantity"].startswith("policy-loss")},
}
