"""Loss vectors: log-probs and advantages in, d loss / d log-prob and weights out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from credit_inspector.algorithm import Algorithm
from credit_inspector.credit.kl_push import kl_gradient
from credit_inspector.credit.weight import token_weights
from credit_inspector.losses import LossInputs, losses
from credit_inspector.metrics.kl import kl_value
from oracles import VECTORS, Checks, Vector, close, floats, rule, table_of


def aggregation(vector: Vector) -> None:
    inputs, params = vector["inputs"], vector["params"]
    values = floats(inputs.get("loss_mat", inputs.get("loss")))
    mask = floats(inputs["loss_mask"])
    table = table_of(mask)
    per_token = {True: "token-mean", False: "seq-mean-token-mean"}
    mode = params.get("loss_agg_mode") or per_token[params["token_level_loss"]]
    horizon = float(values.shape[1]) or 1.0
    weights = token_weights(table, rule(aggregation=mode, horizon=horizon)).reshape(mask.shape)
    assert np.isnan(weights[mask == 0]).all()
    if vector["outputs"]["loss"] == "nan":
        assert np.isnan(weights).all(), "a batch without trained tokens has no weights here, where verl's loss is 0/0"
        return
    close(np.nan_to_num(weights), vector["outputs"]["weight_per_token"], vector)
    close(np.nansum(weights * values), vector["outputs"]["loss"], vector)


def kl_estimator(vector: Vector) -> None:
    inputs, params = vector["inputs"], vector["params"]
    policy = floats(inputs.get("logprob", inputs.get("log_probs")))
    reference = floats(inputs.get("ref_logprob", inputs.get("log_probs_base")))
    kind = next(params[key] for key in ("kl_penalty", "kl_estimator", "kl_loss_type") if key in params)
    through = "straight-through" if kind.endswith("+") else "autograd"
    estimator: Any = {"k3": "low_var_kl", "k3+": "low_var_kl"}.get(kind, kind)
    distance = policy - reference
    close(kl_value(estimator, distance), vector["outputs"]["value"], vector)
    ours = kl_gradient(estimator, through, distance, np.ones_like(distance))
    close(ours, vector["outputs"]["dvalue_dlogp"], vector)


def loss_rule(vector: Vector) -> Algorithm:
    params, package = vector["params"], vector["producer"]["package"]
    if package == "trl":
        return trl_rule(params)
    if package == "verl":
        name = {"cispo": "cispo", "gpg": "reinforce"}.get(vector["quantity"].partition(":")[2], "ppo_clip")
        return rule(
            loss=name,
            clip_low=params.get("clip_ratio_low", 0.2),
            clip_high=params.get("clip_ratio_high", 0.2),
            dual_clip=3.0,
            log_ratio_clamp=20.0,
            aggregation=params["loss_agg_mode"],
            horizon=8.0,
        )
    if package == "openrlhf":
        mode = "token-mean" if params.get("token_level_loss", True) else "seq-mean-token-mean"
        bounds = {"clip_low": params["clip_eps_low"], "clip_high": params["clip_eps_high"]}
        return rule(**bounds, dual_clip=params.get("dual_clip"), log_ratio_clamp=20.0, aggregation=mode)
    if package == "NeMo-RL":
        name = "cispo" if params.get("use_cispo") else "ppo_clip"
        bounds = {"clip_low": params["ratio_clip_min"], "clip_high": params["ratio_clip_max"]}
        return rule(**bounds, loss=name, dual_clip=params.get("ratio_clip_c"), aggregation="token-mean")
    bounds = {"clip_low": params["eps_clip"], "clip_high": params["eps_clip_high"]}
    return rule(**bounds, dual_clip=params["eps_clip_c"], aggregation="seq-mean-token-mean")


def trl_rule(params: dict[str, Any]) -> Algorithm:
    kind, args = params["loss_type"], params.get("args", {})
    modes = {"grpo": "seq-mean-token-mean", "dr_grpo": "seq-mean-token-sum-norm", "luspo": "luspo"}
    absolute = {"clip_low": 0.0, "clip_bounds": "absolute", "loss": "cispo"} if kind == "cispo" else {}
    return rule(
        **{"clip_low": params["epsilon_low"], "clip_high": params["epsilon_high"], **absolute},
        delta=args.get("delta"),
        aggregation=modes.get(kind, "token-mean"),
        horizon=float(params["max_completion_length"]),
        count_empty=True,
        kl_beta=params.get("beta", 0.0),
        kl_gradient="ratio-weighted" if args.get("use_bias_correction_kl") else "autograd",
    )


def policy_loss(vector: Vector) -> None:
    inputs, algorithm = vector["inputs"], loss_rule(vector)
    mask = floats(next(inputs[key] for key in ("response_mask", "completion_mask", "action_mask", "mask") if key in inputs))
    mask = mask * floats(inputs.get("tool_mask", np.ones_like(mask)))
    table = table_of(mask)
    weight = token_weights(table, algorithm)
    if vector["id"] == "trl.dapo.global_tokens_64":
        weight = table.trained(np.full(table.n_tokens, 1 / 64))
    if vector["id"] == "slime.ppo.sum_of_sample_mean":
        weight = weight * len(mask)

    def flat(key: str) -> np.ndarray:
        values = floats(inputs[key])
        return table.trained(np.broadcast_to(values.reshape(len(mask), -1), mask.shape).ravel())

    policy = flat("log_prob")
    old = flat("prev_logprobs" if "prev_logprobs" in inputs else "old_log_prob")
    arrays = {
        "logprob": policy,
        "old": old,
        "log_ratio": policy - old,
        "advantage": flat("advantages"),
        "weight": weight,
        "rollout": np.full(table.n_tokens, np.nan),
        "kept": table.loss_mask,
    }
    push = losses[algorithm.loss](LossInputs(table=table, algorithm=algorithm, **arrays))
    ours = push.coefficient
    if algorithm.kl_beta:
        distance = policy - flat("ref_log_prob")
        slope = kl_gradient(algorithm.kl_estimator, algorithm.kl_gradient, distance, np.exp(policy - old))
        ours = ours + algorithm.kl_beta * weight * slope
    theirs = floats(vector["outputs"]["dloss_dlogp"])
    if np.isnan(theirs).all():
        assert vector["id"].startswith("verl.ppo.nan_outside_mask"), "only there a masked NaN spoils the producer's gradient"
        assert np.isfinite(ours[table.loss_mask]).all()
        return
    close(np.where(mask == 1, ours.reshape(mask.shape), 0.0), np.where(mask == 1, theirs, 0.0), vector)
    clip_counts(vector, push.clipped[table.loss_mask], len(policy[table.loss_mask]))


def clip_counts(vector: Vector, codes: np.ndarray, tokens: int) -> None:
    """Trainers' own clip fractions, where they count what our codes say."""
    metrics = vector["outputs"].get("metrics", {})
    if vector["id"].startswith(("trl.grpo", "trl.dapo", "trl.bnpo", "trl.dr_grpo")) and "delta" not in vector["id"]:
        close((codes == -1).mean(), metrics["clip_ratio/low_mean"], vector)
        close((codes == 1).mean(), metrics["clip_ratio/high_mean"], vector)
    if vector["producer"]["package"] == "verl" and "actor/pg_clipfrac" in metrics:
        # verl adds 1e-8 to the number of tokens.
        assert np.isin(codes, (1, -1)).sum() / tokens == pytest.approx(metrics["actor/pg_clipfrac"], abs=1e-8)
        assert (codes == 2).sum() / tokens == pytest.approx(metrics["actor/pg_clipfrac_lower"], abs=1e-8)


CHECKS: Checks = {
    "verl.agg_loss": aggregation,
    "openrlhf.aggregate_loss": aggregation,
    "verl.kl_penalty": kl_estimator,
    "openrlhf.approx_kl": kl_estimator,
    "slime.approx_kl": kl_estimator,
    **{vector["id"]: policy_loss for vector in VECTORS if vector["quantity"].startswith("policy-loss")},
}
