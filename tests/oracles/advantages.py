"""Advantage vectors: rewards, masks and groups in, advantages out."""

from __future__ import annotations

from typing import Any

import numpy as np

from credit_inspector.advantages import estimators
from oracles import Checks, Vector, close, floats, rule, table_of


def by_response(name: str, rewards: Any, groups: Any, **fields: Any) -> np.ndarray:
    table = table_of(np.ones((len(rewards), 1)), floats(rewards), groups)
    return estimators[name](table, rule(advantage=name, **fields))


def verl_advantage(vector: Vector) -> None:
    inputs = vector["inputs"]
    name = "rloo" if "rloo" in vector["id"] else "grpo"
    alone = "zero" if "vectorized" in vector["id"] else "reward"
    rewards = floats(inputs["token_level_rewards"]).sum(-1)
    ours = by_response(name, rewards, inputs["index"], std_ddof=1, std_eps=1e-6, singleton=alone)
    close(ours[:, None] * floats(inputs["response_mask"]), vector["outputs"]["advantages"], vector)


def trl_advantage(vector: Vector) -> None:
    params, per_function = vector["params"], floats(vector["inputs"]["rewards_per_func"])
    rewards = np.nansum(per_function * floats(params["reward_weights"]), axis=1)
    unscored = np.isnan(per_function).all(axis=1)
    rewards[unscored] = np.nan
    groups = np.arange(len(rewards)) // params["num_generations"]
    ours = by_response("grpo", rewards, groups, std=params["scale_rewards"], std_ddof=1, std_eps=1e-4)
    assert np.isnan(ours[unscored]).all(), "what nobody scored is missing here; TRL trains it with advantage 0"
    close(np.where(unscored, 0.0, ours), vector["outputs"]["advantages"], vector)


def trl_rloo(vector: Vector) -> None:
    rewards = floats(vector["inputs"]["rewards_per_func"])[:, 0]
    close(by_response("rloo", rewards, range(len(rewards))), vector["outputs"]["advantages"], vector)


def nemo_advantage(vector: Vector) -> None:
    inputs, outputs = vector["inputs"], vector["outputs"]
    ours = by_response("grpo", inputs["rewards"], [ids[0] for ids in inputs["prompt_ids"]], std_eps=1e-6)
    theirs = outputs.get("advantages_per_response", floats(inputs["rewards"]) - floats(outputs["baseline"]))
    close(ours, theirs, vector)


def openrlhf_advantage(vector: Vector) -> None:
    inputs = vector["inputs"]
    groups = np.arange(len(inputs["rewards"])) // vector["params"]["n_samples_per_prompt"]
    ours = by_response("grpo", inputs["rewards"], groups, std_eps=1e-9)
    close(ours[:, None] * floats(inputs["action_mask"]), vector["outputs"]["advantages"], vector)


def conventions(vector: Vector) -> None:
    rules: dict[str, tuple[str, dict[str, Any]]] = {
        "verl grpo": ("grpo", {"std_eps": 1e-6}),
        "verl grpo no-std": ("grpo", {"std": "none"}),
        "verl rloo": ("rloo", {}),
        "trl scale_rewards=group": ("grpo", {"std_eps": 1e-4}),
        "openrlhf group_norm": ("grpo", {"std_eps": 1e-9}),
        "nemo-rl leave_one_out=False": ("grpo", {"std_eps": 1e-6}),
        "rllm grpo": ("grpo", {"std_ddof": 0, "std_eps": 1e-6}),
        "prime-rl / tinker (mean only)": ("grpo", {"std": "none"}),
    }
    for name, (estimator, fields) in rules.items():
        ours = by_response(estimator, vector["inputs"]["rewards"], [0] * 4, **fields)
        close(ours, vector["outputs"][name], vector)


CHECKS: Checks = {
    "verl.grpo": verl_advantage,
    "verl.rloo": verl_advantage,
    "trl.adv": trl_advantage,
    "trl.rloo": trl_rloo,
    "nemo.grpo": nemo_advantage,
    "openrlhf.adv": openrlhf_advantage,
    "conventions": conventions,
}
