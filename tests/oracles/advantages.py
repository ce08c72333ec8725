"""Vectors of one advantage a response: rewards, masks, groups and log-probs in, advantages out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from credit_inspector.advantages import estimators
from credit_inspector.algorithms.presets import preset
from credit_inspector.rollout import Rollout
from credit_inspector.table import TokenTable
from oracles import Checks, Vector, close, floats, rule, table_of

FLOAT32 = 1e-6
"""Token columns are float32, the producers' log-probs were float64."""


def by_response(name: str, rewards: Any, groups: Any, **fields: Any) -> np.ndarray:
    table = table_of(np.ones((len(rewards), 1)), floats(rewards), groups)
    return estimators[name](table, rule(advantage=name, **fields))


def by_token(name: str, mask: Any, rewards: Any, groups: Any, kl: Any = None, **fields: Any) -> np.ndarray:
    """``[B, T]`` with 0 outside the mask; ``kl`` are the distances log π_old − log π_ref."""
    mask = np.asarray(mask, bool)
    distance = np.zeros(mask.shape) if kl is None else floats(kl)
    rollouts = [
        Rollout(
            sample_id=str(i),
            group_id=str(groups[i]),
            response_ids=np.zeros(mask.shape[1], np.int32),
            loss_mask=mask[i],
            reward=float(rewards[i]),
            columns={
                "logprob/old": (distance[i] - 1).astype(np.float32),
                "logprob/ref": np.full(mask.shape[1], -1, np.float32),
            },
        )
        for i in range(len(mask))
    ]
    found = estimators[name](TokenTable.from_rollouts(0, rollouts), rule(advantage=name, **fields))
    return np.where(mask, found.reshape(mask.shape), 0.0)


def by_function(vector: Vector, rewards: Sequence[dict[str, float]], groups: Any, **fields: Any) -> None:
    rollouts = [
        Rollout(sample_id=str(i), group_id=str(groups[i]), response_ids=np.zeros(1, np.int32), rewards=each)
        for i, each in enumerate(rewards)
    ]
    ours = estimators["gdpo"](TokenTable.from_rollouts(0, rollouts), rule(advantage="gdpo", **fields))
    outputs = vector["outputs"]
    close(ours, outputs.get("advantages_per_response", outputs.get("advantages")), vector)


# ── verl ────────────────────────────────────────────────────────────────────────────────────────────────────────────

VERL_SINGLETON = {"rloo_vectorized": "zero"}


def verl_advantage(vector: Vector) -> None:
    inputs, name = vector["inputs"], vector["id"].split(".")[1]
    mask = floats(inputs["response_mask"])
    ours = by_token(
        name.removesuffix("_vectorized"),
        mask,
        floats(inputs["token_level_rewards"]).sum(-1),
        inputs["index"],
        std_eps=1e-6,
        singleton=VERL_SINGLETON.get(name, "reward"),
    )
    close(ours, vector["outputs"]["advantages"], vector)


def verl_kl_in_reward(vector: Vector) -> None:
    """The token rewards hold −β kl and, on the last token, the reward: taken apart again, and given as log-probs."""
    inputs, beta = vector["inputs"], vector["params"]["beta"]
    mask, rewards = floats(inputs["response_mask"]), [1.0, 0.0, 0.1, 1.0]
    token_rewards = floats(inputs["token_level_rewards"])
    last = mask.sum(1).astype(int) - 1
    token_rewards[np.arange(len(mask)), last] -= rewards
    kl = -token_rewards / beta
    for entered in ("scalar", "token-rewards"):
        ours = by_token(
            "grpo",
            mask,
            rewards,
            inputs["index"],
            kl,
            std_eps=1e-6,
            singleton="reward",
            kl_in_reward=beta,
            kl_in_reward_as=entered,
        )
        close(ours, vector["outputs"]["advantages"], vector | {"tolerance": FLOAT32})


# ── TRL ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def trl_advantage(vector: Vector) -> None:
    params, per_function = vector["params"], floats(vector["inputs"]["rewards_per_func"])
    rewards = np.nansum(per_function * floats(params["reward_weights"]), axis=1)
    unscored = np.isnan(per_function).all(axis=1)
    rewards[unscored] = np.nan
    groups = np.arange(len(rewards)) // params["num_generations"]
    ours = by_response("grpo", rewards, groups, std=params["scale_rewards"], std_ddof=1, std_eps=1e-4)
    assert np.isnan(ours[unscored]).all(), "what nobody scored is missing here; TRL trains it with advantage 0"
    close(np.where(unscored, 0.0, ours), vector["outputs"]["advantages"], vector)


TRL_WHITEN = {"whiten": "responses", "whiten_ddof": 1, "whiten_eps": 1e-4, "whiten_eps_in": "deviation"}


def trl_gdpo(vector: Vector) -> None:
    params, per_function = vector["params"], floats(vector["inputs"]["rewards_per_func"])
    names = [f"reward_{k}" for k in range(per_function.shape[1])]
    by_function(
        vector,
        [dict(zip(names, row, strict=True)) for row in per_function],
        np.arange(len(per_function)) // params["num_generations"],
        reward_weights=dict(zip(names, params["reward_weights"], strict=True)),
        std_eps=1e-4,
        **TRL_WHITEN,
    )


def trl_rloo(vector: Vector) -> None:
    inputs, params = vector["inputs"], vector["params"]
    rewards = floats(inputs["rewards_per_func"])[:, 0]
    distance = floats(inputs["old_log_prob"]) - floats(inputs["ref_log_prob"])
    ours = by_token(
        "rloo",
        inputs["completion_mask"],
        rewards,
        np.arange(len(rewards)) // params["num_generations"],
        distance,
        kl_in_reward=params["beta"],
        kl_in_reward_as="scalar",
        **(TRL_WHITEN if params["normalize_advantages"] else {}),
    )
    tolerance = FLOAT32 if params["beta"] else vector["tolerance"]
    close(ours[:, 0], vector["outputs"]["advantages"], vector | {"tolerance": tolerance})


# ── NeMo-RL ─────────────────────────────────────────────────────────────────────────────────────────────────────────

NEMO_DEFAULT = {"baseline": "leave-one-out", "std": "leave-one-out", "std_eps": 1e-6}


def nemo_advantage(vector: Vector) -> None:
    inputs, outputs = vector["inputs"], vector["outputs"]
    default = vector["params"].get("use_leave_one_out_baseline", True)
    ours = by_response(
        "grpo",
        inputs["rewards"],
        [ids[0] for ids in inputs["prompt_ids"]],
        **(NEMO_DEFAULT if default else {"std_eps": 1e-6}),
    )
    if default and "advantages_per_response" in outputs:
        assert abs(ours[:4].sum()) > 0.5, "the lone success keeps its distance while the failures are scaled up"
    theirs = outputs.get("advantages_per_response", floats(inputs["rewards"]) - floats(outputs.get("baseline", 0)))
    close(ours, theirs, vector)


def nemo_gdpo(vector: Vector) -> None:
    inputs = vector["inputs"]
    names = ("accuracy", "format")
    by_function(
        vector,
        [dict(zip(names, row, strict=True)) for row in zip(*(inputs[name] for name in names), strict=True)],
        [ids[0] for ids in inputs["prompt_ids"]],
        reward_weights=dict(zip(names, vector["params"]["reward_weights"], strict=True)),
        whiten="responses",
        whiten_ddof=1,
        whiten_eps=0.0,
        whiten_eps_in="deviation",
        **NEMO_DEFAULT,
    )


def verl_gdpo(vector: Vector) -> None:
    """By the preset of that name, with the run's reward functions."""
    inputs, mask = vector["inputs"], np.asarray(vector["inputs"]["response_mask"], bool)
    names = ("accuracy", "format")
    rollouts = [
        Rollout(
            sample_id=str(i),
            group_id=inputs["index"][i],
            response_ids=np.zeros(mask.shape[1], np.int32),
            loss_mask=mask[i],
            rewards={name: inputs[name][i] for name in names},
        )
        for i in range(len(mask))
    ]
    weights = dict(zip(names, vector["params"]["reward_weights"], strict=True))
    algorithm = preset("verl-0.9.1/gdpo", reward_weights=weights)
    found = estimators["gdpo"](TokenTable.from_rollouts(0, rollouts), algorithm).reshape(mask.shape)
    close(np.where(mask, found, 0.0), vector["outputs"]["advantages"], vector)


# ── OpenRLHF ────────────────────────────────────────────────────────────────────────────────────────────────────────

OPENRLHF: dict[str, tuple[str, dict[str, Any]]] = {
    "group_norm": ("grpo", {"std_eps": 1e-9}),
    "dr_grpo": ("grpo", {"std": "none"}),
    "rloo": ("rloo", {}),
    "reinforce_baseline": (
        "grpo",
        {"std": "none", "whiten": "tokens", "whiten_ddof": 0, "whiten_eps": 1e-8, "whiten_eps_in": "floor"},
    ),
}


def openrlhf_advantage(vector: Vector) -> None:
    inputs, params = vector["inputs"], vector["params"]
    groups = np.arange(len(inputs["rewards"])) // params["n_samples_per_prompt"]
    name, fields = OPENRLHF[params["estimator"]]
    with_kl = {"kl_in_reward": params["kl_coef"], "kl_in_reward_as": "to-go"}
    mask = floats(inputs["action_mask"])
    ours = by_token(name, mask, inputs["rewards"], groups, inputs["kl"], **fields, **with_kl)
    # OpenRLHF whitens without masking again.
    close(ours, floats(vector["outputs"]["advantages"]) * mask, vector)


# ── several ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def maxrl(vector: Vector) -> None:
    rewards = vector["inputs"]["rewards"]
    close(by_response("maxrl", rewards, [0] * len(rewards), std_eps=0.0), vector["outputs"]["advantages"], vector)


CONVENTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "verl grpo": ("grpo", {"std_eps": 1e-6}),
    "verl grpo no-std": ("grpo", {"std": "none"}),
    "verl rloo": ("rloo", {}),
    "trl scale_rewards=group": ("grpo", {"std_eps": 1e-4}),
    "openrlhf group_norm": ("grpo", {"std_eps": 1e-9}),
    "nemo-rl leave_one_out=True": ("grpo", NEMO_DEFAULT),
    "nemo-rl leave_one_out=False": ("grpo", {"std_eps": 1e-6}),
    "rllm grpo": ("grpo", {"std_ddof": 0, "std_eps": 1e-6}),
    "skyrl maxrl": ("maxrl", {"std_eps": 1e-6}),
    "prime-rl / tinker (mean only)": ("grpo", {"std": "none"}),
}


def conventions(vector: Vector) -> None:
    assert set(CONVENTIONS) == set(vector["outputs"])
    for name, (estimator, fields) in CONVENTIONS.items():
        ours = by_response(estimator, vector["inputs"]["rewards"], [0] * 4, **fields)
        close(ours, vector["outputs"][name], vector)


CHECKS: Checks = {
    **dict.fromkeys(("verl.grpo", "verl.rloo", "verl.opo", "verl.gpg", "verl.grpo_passk"), verl_advantage),
    "verl.grpo.kl_in_reward": verl_kl_in_reward,
    "verl.gdpo": verl_gdpo,
    "trl.adv": trl_advantage,
    "trl.adv.gdpo": trl_gdpo,
    **dict.fromkeys(("trl.rloo.group_of_1", "trl.rloo.kl", "trl.rloo.normalized"), trl_rloo),
    "nemo.grpo": nemo_advantage,
    "nemo.gdpo": nemo_gdpo,
    **dict.fromkeys((f"openrlhf.adv.{name}" for name in OPENRLHF), openrlhf_advantage),
    "closed.maxrl": maxrl,
    "conventions": conventions,
}
