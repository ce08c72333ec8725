"""Vectors of what stands around the policy loss: weights, what is left out, rollout corrections, masks and the KL term."""

from __future__ import annotations

from typing import Any

import numpy as np

from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.kl import kl_value
from credit_inspector.credit.constants import loss_constants
from credit_inspector.credit.kept import kept
from credit_inspector.credit.kl_push import kl_push
from credit_inspector.credit.rollout_weight import rollout_weights
from credit_inspector.credit.weight import token_weights
from credit_inspector.table import Column, Provenance, TokenTable
from oracles import Checks, Vector, close, floats, rule, table_of


def table_with(mask: Any, **columns: Any) -> TokenTable:
    """A batch with its columns in float64, where a run's own are float32: the producers computed in it."""
    table = table_of(mask)
    for name, values in columns.items():
        table.columns[name.replace("_", "/")] = Column(floats(values).ravel(), Provenance.RECORDED)  # type: ignore[arg-type]
    return table


# ── weights ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def aggregation(vector: Vector) -> None:
    inputs, params = vector["inputs"], vector["params"]
    values = floats(inputs.get("loss_mat", inputs.get("loss")))
    mask = floats(inputs["loss_mask"])
    table = table_of(mask)
    per_token = {True: "token-mean", False: "seq-mean-token-mean"}
    mode = params.get("loss_agg_mode") or per_token[params["token_level_loss"]]
    weights = token_weights(table, rule(aggregation=mode, horizon_is_width=True)).reshape(mask.shape)
    assert np.isnan(weights[mask == 0]).all()
    if vector["outputs"]["loss"] == "nan":
        assert np.isnan(weights).all(), "a batch without trained tokens has no weights here, where verl's loss is 0/0"
        return
    close(np.nan_to_num(weights), vector["outputs"]["weight_per_token"], vector)
    close(np.nansum(weights * values), vector["outputs"]["loss"], vector)


# ── the KL term ─────────────────────────────────────────────────────────────────────────────────────────────────────


def kl_term(vector: Vector) -> None:
    """The estimator's value, and the column of the KL term with weight and beta 1."""
    inputs = vector["inputs"]
    policy, reference, old = (first(inputs, *names) for names in _LOGPROBS)
    table = table_with(np.ones(policy.shape), logprob_policy=policy, logprob_ref=reference)
    if old is not None:
        table.columns["logprob/old"] = Column(old.ravel(), Provenance.RECORDED)
    algorithm = kl_rule(vector)
    clamps = {"input_clamp": algorithm.kl_input_clamp, "output_clamp": algorithm.kl_output_clamp}
    close(kl_value(algorithm.kl_estimator, policy - reference, **clamps), vector["outputs"]["value"], vector)
    push = np.asarray(kl_push(table, algorithm, token_weights(table, algorithm)).values)
    # A column is float32, and so is OpenRLHF's ratio of log-probs near -30, which are exact to 1e-6 there.
    theirs = floats(vector["outputs"]["dvalue_dlogp"])
    np.testing.assert_allclose(-push.reshape(policy.shape), theirs, rtol=1e-6, atol=vector["tolerance"])


_LOGPROBS = (
    ("logprob", "log_probs", "logprobs"),
    ("ref_logprob", "log_probs_base", "logprobs_reference"),
    ("log_probs_old",),
)


def first(inputs: dict[str, Any], *names: str) -> Any:
    return next((floats(inputs[name]) for name in names if inputs.get(name) is not None), None)


def kl_rule(vector: Vector) -> Algorithm:
    params = vector["params"]
    base = {"aggregation": "token-sum", "kl_beta": 1.0}
    if "kl_penalty" in params:
        kind = params["kl_penalty"]
        plain = kind.removesuffix("+")
        gradient = "autograd" if plain == kind else "straight-through"
        return rule(**base, kl_estimator={"k3": "low_var_kl"}.get(plain, plain), kl_gradient=gradient)
    if "kl_estimator" in params:
        gradient = "ratio-capped" if params["unbiased_gradient"] else "autograd"
        return rule(**base, kl_estimator=params["kl_estimator"], kl_gradient=gradient, kl_output_clamp=10.0)
    if "kl_loss_type" in params:
        kind = params["kl_loss_type"]
        clamp = 10.0 if kind == "low_var_kl" else None
        return rule(**base, kl_estimator={"low_var_kl": "k3"}.get(kind, kind), kl_output_clamp=clamp)
    clamps = {"kl_input_clamp": params["input_clamp_value"], "kl_output_clamp": params["output_clamp_value"]}
    return rule(**base, kl_estimator=params["kl_type"], kl_gradient="score-weighted", **clamps)


# ── trainer against engine ──────────────────────────────────────────────────────────────────────────────────────────


def engines(vector: Vector, mask: np.ndarray) -> TokenTable:
    """The trainer's log-probs are the vector's log-ratios where the engine's are 0."""
    log_ratio = floats(vector["inputs"]["log_ratio"])
    return table_with(mask, logprob_old=log_ratio, logprob_rollout=np.zeros_like(log_ratio))


def verl_rollout_weight(vector: Vector) -> None:
    params, mask = vector["params"], floats(vector["inputs"]["response_mask"])
    low, _, high = str(params["rollout_is_threshold"]).rpartition("_")
    algorithm = rule(
        rollout_weight={"token": "token", "sequence": "sequence-product"}[params["rollout_is"]],
        rollout_low=float(low) if low else None,
        rollout_high=float(high),
        rollout_outside="mask" if low else "truncate",
        rollout_normalize=params.get("rollout_is_batch_normalize", False),
    )
    ours = rollout_weights(engines(vector, mask), algorithm).values.reshape(mask.shape)
    close(ours * mask, vector["outputs"]["weights"], vector)


def trl_rollout_weight(vector: Vector) -> None:
    """A response's weight stands on each of its tokens here."""
    params, mask = vector["params"], floats(vector["inputs"]["completion_mask"])
    level, _, outside = params["mode"].partition("_")
    algorithm = rule(
        rollout_weight={"token": "token", "sequence": "sequence-product"}[level],
        rollout_low=params["clip_min"],
        rollout_high=params["clip_max"],
        rollout_outside=outside,
    )
    ours = rollout_weights(engines(vector, mask), algorithm).values.reshape(mask.shape)
    theirs = np.broadcast_to(floats(vector["outputs"]["ratio"]), mask.shape)
    close(ours[mask == 1], theirs[mask == 1], vector)


def rejected(vector: Vector) -> None:
    params, mask = vector["params"], floats(vector["inputs"]["response_mask"])
    algorithm = rule(rollout_reject={params["rollout_rs"]: params["rollout_rs_threshold"]})
    close(kept(engines(vector, mask), algorithm).reshape(mask.shape), vector["outputs"]["mask"], vector)


# ── masks that keep the weights ─────────────────────────────────────────────────────────────────────────────────────


def off_policy(vector: Vector) -> None:
    """slime's rows lie end to end; here they are padded to one width, and masked."""
    inputs = vector["inputs"]
    policy, old, advantage = (floats(inputs[name]) for name in ("log_prob", "old_log_prob", "advantages"))
    table = table_of(np.arange(policy.shape[1]) < np.array(inputs["lengths"])[:, None])
    algorithm = rule(off_policy_mask=vector["params"]["opsm_delta"])
    found = loss_constants(table, algorithm, advantage.ravel(), (policy - old).ravel())
    close(found.factor[table.loss_mask], vector["outputs"]["mask"], vector)
    assert f"{vector['outputs']['clipfrac']:g} of {table.n_rows} responses" in found.note


def high_entropy(vector: Vector) -> None:
    mask = floats(vector["inputs"]["mask"])
    table = table_with(mask, entropy_policy=vector["inputs"]["entropies"])
    algorithm = rule(top_entropy_quantile=1 - vector["params"]["threshold"])
    factor = loss_constants(table, algorithm, np.ones(mask.size), np.zeros(mask.size)).factor
    close(factor.reshape(mask.shape), vector["outputs"]["mask"], vector)


CHECKS: Checks = {
    "verl.agg_loss": aggregation,
    "openrlhf.aggregate_loss": aggregation,
    "verl.kl_penalty": kl_term,
    "openrlhf.approx_kl": kl_term,
    "slime.approx_kl": kl_term,
    "nemo.kl_in_loss": kl_term,
    "verl.rollout_is": verl_rollout_weight,
    "trl.vllm_is": trl_rollout_weight,
    "verl.rollout_rs": rejected,
    "slime.opsm": off_policy,
    "trl.high_entropy_mask": high_entropy,
}
