"""More vectors from verl's own functions: ``python tests/oracles/from_verl.py`` with verl 0.9.1 installed writes the file again.

Wider than the first set: six responses in groups of three, two and one; holes in the masks; log-ratios up to ±30.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

OUT = Path(__file__).parents[1] / "data" / "oracles_verl.json"
B, T = 6, 10
LENGTHS = (10, 7, 1, 5, 8, 4)
GROUPS = ["p0", "p0", "p0", "p1", "p1", "p2"]


def main() -> None:
    """Write the vectors."""
    import torch

    torch.set_default_dtype(torch.float64)
    vectors = [*advantages(), *kl_terms(), *aggregations(), *losses(), *engines()]
    OUT.write_text(json.dumps({"vectors": vectors}, separators=(",", ":")) + "\n")


def vector(  # noqa: PLR0917 - a record, written in its own order
    name: str, quantity: str, function: str, params: dict[str, Any], inputs: Any, outputs: Any, tolerance: float
) -> Any:
    """One of them, in the first set's form."""
    producer = {"package": "verl", "version": "0.9.1", "callable": f"verl.trainer.ppo.{function}"}
    plain = {k: v.tolist() if hasattr(v, "tolist") else v for k, v in inputs.items()}
    given = {k: spelled(v.detach().tolist()) if hasattr(v, "detach") else v for k, v in outputs.items()}
    return {
        "id": name,
        "quantity": quantity,
        "producer": producer,
        "params": params,
        "inputs": plain,
        "outputs": given,
        "tolerance": tolerance,
    }


def spelled(value: Any) -> Any:
    """Lists in which a number that is not finite is a word."""
    if isinstance(value, list):
        return [spelled(one) for one in value]
    return value if np.isfinite(value) else str(value)


def mask_of(*, holes: bool = False, empty: bool = False) -> np.ndarray:
    """``[B, T]`` ragged; with tool tokens between turns; with a response that is not trained."""
    mask = (np.arange(T) < np.array(LENGTHS)[:, None]).astype(float)
    if holes:
        mask[0, 3:6], mask[4, 2:4] = 0, 0
    if empty:
        mask[3] = 0
    return mask


def drawn(seed: int, low: float, high: float) -> np.ndarray:
    """``[B, T]`` rounded, so that the file holds exactly what was used."""
    return np.random.default_rng(seed).uniform(low, high, (B, T)).round(6)


def rewards_at_end(mask: np.ndarray, rewards: tuple[float, ...] = (1.0, 0.0, 0.1, 1.0, 0.0, 0.7)) -> np.ndarray:
    """``[B, T]`` each response's reward on its last trained token."""
    placed = np.zeros((B, T))
    for row, reward in enumerate(rewards):
        if mask[row].any():
            placed[row, np.flatnonzero(mask[row])[-1]] = reward
    return placed


# ── advantages ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def advantages() -> Iterator[Any]:
    """Group estimators, returns and GAE."""
    import torch
    from verl.trainer.ppo import core_algos as algos

    index = np.array(GROUPS, dtype=object)
    for name, function, extra in (
        ("grpo.three_groups", algos.compute_grpo_outcome_advantage, {"epsilon": 1e-6}),
        ("grpo_vectorized.three_groups", algos.compute_grpo_vectorized_outcome_advantage, {"epsilon": 1e-6}),
        ("rloo.three_groups", algos.compute_rloo_outcome_advantage, {}),
        ("rloo_vectorized.three_groups", algos.compute_rloo_vectorized_outcome_advantage, {}),
        ("opo.three_groups", algos.compute_opo_outcome_advantage, {}),
        ("gpg.three_groups", algos.compute_gpg_outcome_advantage, {"f_norm": 1.0}),
        ("reinforce_pp_baseline.three_groups", algos.compute_reinforce_plus_plus_baseline_outcome_advantage, {}),
    ):
        mask = mask_of(holes=True)
        rewards = rewards_at_end(mask)
        found, returns = function(torch.tensor(rewards), torch.tensor(mask), index, **extra)
        inputs = {"token_level_rewards": rewards, "response_mask": mask, "index": GROUPS}
        call = f"core_algos.{function.__name__}"
        yield vector(f"verl.{name}", "advantage", call, extra, inputs, {"advantages": found, "returns": returns}, 1e-7)
    yield gdpo()
    for name, gamma, lam, holes in (("long_holes", 0.9, 0.8, True), ("undiscounted", 1.0, 1.0, True), ("td", 0.97, 0.0, False)):
        mask, values = mask_of(holes=holes), drawn(1, -1, 1)
        rewards = rewards_at_end(mask) + drawn(2, -0.1, 0.1) * mask
        found, returns = algos.compute_gae_advantage_return(
            torch.tensor(rewards), torch.tensor(values), torch.tensor(mask), torch.tensor(gamma), torch.tensor(lam)
        )
        inputs = {"token_level_rewards": rewards, "response_mask": mask, "values": values}
        outputs = {"advantages": found, "returns": returns}
        call = "core_algos.compute_gae_advantage_return"
        yield vector(f"verl.gae.{name}", "advantage", call, {"gamma": gamma, "lam": lam}, inputs, outputs, 1e-7)


def gdpo() -> Any:
    """Two reward functions, normalised one by one."""
    import torch
    from verl.trainer.ppo import core_algos as algos

    mask, weights = mask_of(), [1.0, 0.5]
    parts = {"accuracy": [1.0, 0.0, 0.0, 1.0, 0.0, 1.0], "format": [1.0, 1.0, 0.0, 0.5, 0.0, 1.0]}
    shape = {"prompts": torch.zeros(B, 1), "attention_mask": torch.tensor(np.pad(mask, ((0, 0), (1, 0)))).long()}
    shape["attention_mask"][:, 0] = 1
    found, returns = algos.compute_gdpo_outcome_advantage(
        torch.zeros(B, T),
        torch.tensor(mask),
        np.array(GROUPS, dtype=object),
        config={"gdpo_reward_keys": list(parts), "gdpo_reward_weights": weights},
        non_tensor_batch={name: np.array(values) for name, values in parts.items()},
        batch=shape,
    )
    inputs = {**parts, "response_mask": mask, "index": GROUPS}
    outputs = {"advantages": found, "returns": returns}
    call, params = "core_algos.compute_gdpo_outcome_advantage", {"reward_weights": weights}
    return vector("verl.gdpo.three_groups", "advantage", call, params, inputs, outputs, 1e-6)


# ── KL, weights ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def kl_terms() -> Iterator[Any]:
    """verl's estimators with their own gradients, at distances within and beyond the clamps."""
    import torch
    from verl.trainer.ppo import core_algos as algos

    logprob, reference = drawn(3, -30, 0), drawn(4, -30, 0)
    for kind in ("k1", "abs", "k2", "k3", "k1+", "k3+", "k2+"):
        policy = torch.tensor(logprob, requires_grad=True)
        value = algos.kl_penalty(policy, torch.tensor(reference), kind)
        value.sum().backward()
        inputs = {"logprob": logprob, "ref_logprob": reference, "log_ratio": (logprob - reference).round(6)}
        outputs = {"value": value, "dvalue_dlogp": policy.grad}
        yield vector(
            f"verl.kl_penalty.{kind}.wide", "kl-estimator", "core_algos.kl_penalty", {"kl_penalty": kind}, inputs, outputs, 1e-8
        )


def aggregations() -> Iterator[Any]:
    """How a loss is averaged, with holes and with a response that is not trained."""
    import torch
    from verl.trainer.ppo import core_algos as algos

    values = drawn(5, -2, 2)
    for mode in ("token-mean", "token-sum", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"):
        for name, mask in (("holes", mask_of(holes=True)), ("holes_and_empty", mask_of(holes=True, empty=True))):
            matrix = torch.tensor(values, requires_grad=True)
            loss = algos.agg_loss(matrix, torch.tensor(mask), mode)
            loss.backward()
            outputs = {"loss": loss, "weight_per_token": matrix.grad}
            inputs = {"loss_mat": values, "loss_mask": mask}
            params = {"loss_agg_mode": mode}
            yield vector(f"verl.agg_loss.{mode}.{name}", "aggregation", "core_algos.agg_loss", params, inputs, outputs, 1e-7)


# ── policy losses ───────────────────────────────────────────────────────────────────────────────────────────────────────


def losses() -> Iterator[Any]:
    """Every deterministic policy loss, near the bounds and far beyond them."""
    import torch
    from verl.trainer.ppo import core_algos as algos
    from verl.workers.config import ActorConfig, PolicyLossConfig

    names = {"vanilla": "ppo", "geo_mean": "gmpo", "gpg": "gpg_loss"}
    for kind in ("vanilla", "gspo", "sapo", "gpg", "geo_mean", "dppo_tv", "dppo_kl", "cispo"):
        for spread, far in (("near", 0.4), ("far", 30.0)):
            old = drawn(6, -2, -0.01)
            moved = old + drawn(7, -far, far)
            policy, mask = np.minimum(moved, -0.001).round(6), mask_of(holes=True)
            gains = np.broadcast_to(np.array([1.25, -0.75, 0.5, -1.5, 0.0, 0.8])[:, None], (B, T)).copy()
            clips = {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.28}
            config = ActorConfig(
                strategy="fsdp",
                rollout_n=1,
                ppo_micro_batch_size_per_gpu=1,
                policy_loss=PolicyLossConfig(loss_mode=kind),
                **clips,
            )
            logp = torch.tensor(policy, requires_grad=True)
            arrays = (torch.tensor(old), logp, torch.tensor(gains), torch.tensor(mask))
            loss, metrics = algos.get_policy_loss_fn(kind)(*arrays, loss_agg_mode="token-mean", config=config)
            loss.backward()
            inputs = {"log_prob": policy, "old_log_prob": old, "advantages": gains, "response_mask": mask}
            outputs = {"loss": loss, "dloss_dlogp": logp.grad, "metrics": {k: float(v) for k, v in metrics.items()}}
            params = {"loss_agg_mode": "token-mean", **clips}
            call = f"core_algos.compute_policy_loss_{kind}"
            yield vector(f"verl.{names.get(kind, kind)}.{spread}", f"policy-loss:{kind}", call, params, inputs, outputs, 1e-7)


# ── sampling engine against trainer ─────────────────────────────────────────────────────────────────────────────────────


def engines() -> Iterator[Any]:
    """Rollout weights and rejections at every level."""
    import torch
    from verl.trainer.ppo import rollout_corr_helper as helper

    log_ratio, mask = drawn(8, -0.5, 0.5), mask_of(holes=True)
    inputs = {"log_ratio": log_ratio, "response_mask": mask}
    for name, params in (
        ("token.icepop", {"rollout_is": "token", "rollout_is_threshold": "0.8_1.25"}),
        ("sequence", {"rollout_is": "sequence", "rollout_is_threshold": 1.5}),
        ("sequence.icepop", {"rollout_is": "sequence", "rollout_is_threshold": "0.5_2.0"}),
        ("sequence.normalized", {"rollout_is": "sequence", "rollout_is_threshold": 1.5, "rollout_is_batch_normalize": True}),
    ):
        weights, _ = helper.compute_rollout_correction_weights(torch.tensor(log_ratio), torch.tensor(mask), **params)
        call = "rollout_corr_helper.compute_rollout_correction_weights"
        yield vector(f"verl.rollout_is.{name}", "rollout-correction", call, params, inputs, {"weights": weights}, 1e-6)
    for option, threshold in (
        ("token_k2", "0.05"),
        ("seq_sum_k1", "0.6_1.6"),
        ("seq_sum_k2", "0.3"),
        ("seq_mean_k1", "0.9_1.1"),
        ("seq_mean_k2", "0.04"),
        ("seq_mean_k3", "0.04"),
        ("seq_max_k3", "0.1"),
    ):
        params = {"rollout_rs": option, "rollout_rs_threshold": threshold}
        found, _ = helper.compute_rollout_rejection_mask(torch.tensor(log_ratio), torch.tensor(mask), **params)
        call = "rollout_corr_helper.compute_rollout_rejection_mask"
        yield vector(f"verl.rollout_rs.{option}.{threshold}", "rollout-rejection", call, params, inputs, {"mask": found}, 1e-9)


if __name__ == "__main__":
    main()
