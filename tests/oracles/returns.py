"""Vectors of advantages that differ from token to token: returns, GAE, whitening, KL in the reward, and the critic's side."""

from __future__ import annotations

from typing import Any

import numpy as np

from credit_inspector.advantages import estimators
from credit_inspector.advantages.critic import adapted_kl_weight, value_loss
from credit_inspector.advantages.gae import estimate, value_targets
from credit_inspector.advantages.token_rewards import reward_kl, token_rewards
from credit_inspector.advantages.whiten import whitened
from credit_inspector.rollout import Rollout
from credit_inspector.table import TokenTable
from oracles import Checks, Vector, close, floats, rule

FLOAT32 = 2e-6
"""Token columns are float32, the producers' inputs were float64."""

VERL = {"whiten": "tokens", "whiten_ddof": 1, "whiten_eps": 1e-8, "whiten_eps_in": "variance"}
FLOOR = {"whiten": "tokens", "whiten_ddof": 0, "whiten_eps": 1e-8, "whiten_eps_in": "floor"}
VERL_KL = {"kl": "k1", "abs": "abs"}


def batch(mask: Any, columns: dict[str, Any] | None = None, lengths: Any = None, **by_row: Any) -> TokenTable:
    """Rows laid end to end, each cut to its length; ``by_row`` are fields of the rollouts, one value each."""
    mask = np.asarray(mask, bool)
    lengths = [mask.shape[1]] * len(mask) if lengths is None else lengths
    rollouts = [
        Rollout(
            sample_id=str(i),
            response_ids=np.zeros(n, np.int32),
            loss_mask=mask[i, :n],
            columns={name: floats(values)[i, :n].astype(np.float32) for name, values in (columns or {}).items()},
            **{name: values[i] for name, values in by_row.items()},
        )
        for i, n in enumerate(lengths)
    ]
    return TokenTable.from_rollouts(0, rollouts)


def padded(table: TokenTable, values: np.ndarray, width: int) -> np.ndarray:
    """``[T]`` → ``[B, width]`` with 0 behind a row's end and where there is nothing."""
    rows = np.zeros((table.n_rows, width))
    rows[table.row, table.position] = np.nan_to_num(values)
    return rows


def agrees(table: TokenTable, ours: np.ndarray, theirs: Any, vector: Vector, tolerance: float = FLOAT32) -> None:
    """At trained tokens; and nothing stands elsewhere, where some trainers leave numbers."""
    theirs = floats(theirs)
    mask = padded(table, table.loss_mask.astype(float), theirs.shape[1])
    close(padded(table, table.trained(ours), theirs.shape[1]), theirs * mask, vector | {"tolerance": tolerance})


def advantage(table: TokenTable, name: str, **fields: Any) -> np.ndarray:
    return estimators[name](table, rule(advantage=name, **fields))


# ── verl ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def verl_gae(vector: Vector) -> None:
    inputs, outputs = vector["inputs"], vector["outputs"]
    table = batch(inputs["response_mask"], {"reward/token": inputs["token_level_rewards"], "value/old": inputs["values"]})
    fields = {"gamma": vector["params"]["gamma"], "lam": vector["params"]["lam"]}
    agrees(table, advantage(table, "gae", **fields, **VERL), outputs["advantages"], vector)
    agrees(table, value_targets(table, rule(**fields)), outputs["returns"], vector)


def verl_gae_float64(vector: Vector) -> None:
    """The recursion and the whitening alone, in float64 as the producer had them."""
    verl_gae(vector)
    inputs, params = vector["inputs"], vector["params"]
    table = batch(inputs["response_mask"])
    rewards, values = floats(inputs["token_level_rewards"]).ravel(), floats(inputs["values"]).ravel()
    lam = np.full(table.n_rows, params["lam"])
    raw = estimate(table, rewards, values, gamma=params["gamma"], lam=lam, observation="skip")
    ours = whitened(raw, table.loss_mask, rule(**VERL))
    agrees(table, ours, vector["outputs"]["advantages"], vector, vector["tolerance"])


def verl_one_token(vector: Vector) -> None:
    inputs = vector["inputs"]
    table = batch(inputs["response_mask"], {"reward/token": inputs["token_level_rewards"], "value/old": inputs["values"]})
    assert vector["outputs"]["raises"] == "ValueError"
    np.testing.assert_array_equal(advantage(table, "gae"), [1, np.nan, np.nan])
    np.testing.assert_array_equal(advantage(table, "gae", **VERL), [0, np.nan, np.nan])


def verl_kl_penalty(vector: Vector) -> None:
    inputs, params = vector["inputs"], vector["params"]
    table = batch(
        inputs["response_mask"],
        {
            "reward/token_score": inputs["token_level_scores"],
            "logprob/old": inputs["old_log_probs"],
            "logprob/ref": inputs["ref_log_prob"],
        },
    )
    algorithm = rule(kl_in_reward=params["beta"], kl_in_reward_estimator=VERL_KL[params["kl_penalty"]])
    agrees(table, token_rewards(table, algorithm).values, vector["outputs"]["token_level_rewards"], vector)
    penalty = table.mean_by_row(reward_kl(table, algorithm), table.loss_mask).mean() / params["beta"]
    close(penalty, vector["outputs"]["reward_kl_penalty"], vector | {"tolerance": FLOAT32})


def verl_whiten(vector: Vector) -> None:
    table = batch(vector["inputs"]["mask"])
    ours = whitened(floats(vector["inputs"]["values"]).ravel(), table.loss_mask, rule(**VERL))
    close(ours.reshape(floats(vector["inputs"]["values"]).shape), vector["outputs"]["out"], vector)


def verl_otb(vector: Vector) -> None:
    inputs = vector["inputs"]
    table = batch(
        inputs["response_mask"],
        {
            "reward/token": inputs["token_level_rewards"],
            "logprob/old": inputs["old_log_probs"],
            "sum_p2/old": inputs["sum_pi_squared"],
        },
        group_id=inputs["index"],
    )
    settings = {"handle_zero_tail": float(vector["params"]["handle_zero_tail"])}
    agrees(table, advantage(table, "otb", settings=settings), vector["outputs"]["advantages"], vector)


def reinforce_pp(vector: Vector) -> None:
    inputs, outputs = vector["inputs"], vector["outputs"]
    table = batch(inputs["response_mask"], {"reward/token": inputs["token_level_rewards"]})
    resets = vector["id"].startswith("skyrl")
    fields = {"gamma": vector["params"]["gamma"], "observation": "reset" if resets else "skip"}
    agrees(table, advantage(table, "reinforce_pp", **fields), outputs["returns"], vector)
    agrees(table, advantage(table, "reinforce_pp", **fields, **VERL), outputs["advantages"], vector)


def verl_reinforce_pp_baseline(vector: Vector) -> None:
    inputs = vector["inputs"]
    rewards = floats(inputs["token_level_rewards"]).sum(1)
    table = batch(inputs["response_mask"], reward=rewards, group_id=inputs["index"])
    ours = advantage(table, "reinforce_pp_baseline", singleton="reward", **VERL)
    agrees(table, ours, vector["outputs"]["advantages"], vector, vector["tolerance"])


def verl_remax(vector: Vector) -> None:
    inputs = vector["inputs"]
    greedy = [{"reward_baselines": value} for value in inputs["reward_baselines"]]
    table = batch(inputs["response_mask"], {"reward/token": inputs["token_level_rewards"]}, extra=greedy)
    for gamma in (1.0, 0.9):
        agrees(table, advantage(table, "remax", gamma=gamma), vector["outputs"]["advantages"], vector)


def verl_value_loss(vector: Vector) -> None:
    inputs, outputs = vector["inputs"], vector["outputs"]
    table = batch(inputs["response_mask"])
    weight = table.loss_mask / table.loss_mask.sum()
    predicted, targets, old = (floats(inputs[name]).ravel() for name in ("vpreds", "returns", "values"))
    found = value_loss(predicted, targets, old, weight, clip=vector["params"]["cliprange_value"])
    close(found.loss, outputs["loss"], vector)
    close(found.clipped[table.loss_mask].mean(), outputs["clipfrac"], vector)
    agrees(table, found.gradient, outputs["dloss_dvpred"], vector, vector["tolerance"])


def verl_kl_controller(vector: Vector) -> None:
    params, inputs = vector["params"], vector["inputs"]
    weight, ours = params["init"], []
    for kl in inputs["current_kl"]:
        weight = adapted_kl_weight(weight, kl, target=params["target"], horizon=params["horizon"], responses=inputs["n_steps"])
        ours.append(weight)
    close(ours, vector["outputs"]["values"], vector)


# ── OpenRLHF ────────────────────────────────────────────────────────────────────────────────────────────────────────


def openrlhf_reward(vector: Vector) -> None:
    """Their KL part stands on masked tokens too until it is masked later; ours never does."""
    inputs, params = vector["inputs"], vector["params"]
    table = batch(
        inputs["action_mask"],
        {"logprob/old": inputs["old_log_prob"], "logprob/ref": inputs["ref_log_prob"]},
        reward=inputs["r"],
    )
    algorithm = rule(kl_in_reward=params["kl_coef"], kl_in_reward_estimator=params["kl_estimator"])
    found = token_rewards(table, algorithm).values
    assert not found[~table.loss_mask].any()
    agrees(table, found, vector["outputs"]["token_rewards"], vector)


OPENRLHF: dict[str, tuple[str, dict[str, Any]]] = {
    "gae": ("gae", {"kl_in_reward_as": "token-rewards"} | FLOOR),
    "reinforce": ("reinforce_pp", {"kl_in_reward_as": "token-rewards"} | FLOOR),
    "flash_reinforce": ("grpo", {"baseline": "batch", "std": "none", "kl_in_reward_as": "to-go"}),
}


def openrlhf_advantage(vector: Vector) -> None:
    inputs, params = vector["inputs"], vector["params"]
    name, fields = OPENRLHF[params["estimator"]]
    distance = floats(inputs["kl"])
    table = batch(
        inputs["action_mask"],
        {"value/old": inputs["values"], "logprob/old": distance - 1, "logprob/ref": np.full(distance.shape, -1)},
        reward=inputs["rewards"],
        group_id=[str(i // params["n_samples_per_prompt"]) for i in range(len(distance))],
    )
    given = {
        "gamma": params["gamma"],
        "lam": params["lambd"],
        "kl_in_reward": params["kl_coef"],
        "observation": "count",
    }
    agrees(table, advantage(table, name, **given, **fields), vector["outputs"]["advantages"], vector)


# ── NeMo-RL, slime, TRL ─────────────────────────────────────────────────────────────────────────────────────────────


def nemo_reinforce_pp(vector: Vector) -> None:
    inputs, params = vector["inputs"], vector["params"]
    table = batch(
        inputs["mask"],
        {"logprob/old": inputs["logprobs_policy"], "logprob/ref": inputs["logprobs_reference"]},
        reward=inputs["rewards"],
        group_id=[str(ids[0]) for ids in inputs["prompt_ids"]],
    )
    ours = advantage(
        table,
        "reinforce_pp_baseline",
        kl_in_reward=params["kl_coef"] if params["use_kl_in_reward"] else 0.0,
        kl_in_reward_estimator=params["kl"],
        kl_in_reward_as="same-token",
        **FLOOR,
    )
    agrees(table, ours, vector["outputs"]["advantages"], vector)


def slime_gae(vector: Vector) -> None:
    """No mask at all: a row with a hole has the same advantages on its trained tokens as one without."""
    inputs = vector["inputs"]
    rewards = floats(inputs["rewards"])
    for masked in ((), (2, 3), (7,)):
        mask = np.ones(rewards.shape, bool)
        mask[:, masked] = False
        table = batch(mask, {"value/old": inputs["values"]}, reward=rewards[:, -1])
        ours = advantage(table, "gae", observation="ignore", terminal="last", **vector["params"])
        agrees(table, ours, vector["outputs"]["advantages"], vector)


def trl_ppo(vector: Vector) -> None:
    """A row holds one slot behind its last token where the trainer's batch had room for it."""
    inputs, outputs, params = vector["inputs"], vector["outputs"], vector["params"]
    width = floats(inputs["values"]).shape[1]
    lengths = np.array(inputs["response_lengths"])
    table = batch(
        np.arange(width) < lengths[:, None],
        {"value/old": inputs["values"], "logprob/old": inputs["log_prob"], "logprob/ref": inputs["ref_log_prob"]},
        lengths=np.minimum(lengths + 1, width),
        reward=inputs["scores"],
    )
    fields = {
        "gamma": params["gamma"],
        "lam": params["lam"],
        "terminal": "after-last",
        "whiten_rewards": params["whiten_rewards"],
        "kl_in_reward": params["kl_coef"],
        "kl_in_reward_estimator": params["kl_estimator"],
    }
    rewards = token_rewards(table, rule(**fields)).values
    close(padded(table, rewards, width), outputs["rewards"], vector | {"tolerance": FLOAT32})
    agrees(table, advantage(table, "gae", **fields, **VERL), outputs["advantages"], vector)
    agrees(table, value_targets(table, rule(**fields)), outputs["returns"], vector)


# ── closed forms ────────────────────────────────────────────────────────────────────────────────────────────────────


def terminal_lambda_decay(vector: Vector) -> None:
    inputs = vector["inputs"]
    table = batch(np.ones((2, inputs["T"])), reward=[inputs["A"], -inputs["A"]], group_id=["g", "g"])
    ours = advantage(table, "traces", std="none", gamma=inputs["gamma"], lam=inputs["lam"])
    close(ours[: inputs["T"]], vector["outputs"]["advantages"], vector)


def discount(vector: Vector) -> None:
    inputs, outputs = vector["inputs"], vector["outputs"]
    table = batch(np.ones((1, max(inputs["k"]) + 1)), reward=[1.0])
    ours = advantage(table, "reinforce_pp", gamma=inputs["gamma"])
    close(ours[::-1][inputs["k"]], outputs["weight"], vector)
    close(-np.log(2) / np.log(ours[-2]), outputs["half_life"], vector)
    close(1 / (1 - ours[-2]), outputs["horizon"], vector)


CHECKS: Checks = {
    "verl.gae": verl_gae_float64,
    "verl.gae.one_valid_token_raises": verl_one_token,
    "verl.apply_kl_penalty": verl_kl_penalty,
    "verl.masked_whiten": verl_whiten,
    "verl.otb": verl_otb,
    **dict.fromkeys(("verl.reinforce_pp.", "skyrl.reinforce_pp."), reinforce_pp),
    "verl.reinforce_pp_baseline": verl_reinforce_pp_baseline,
    "verl.remax": verl_remax,
    "verl.value_loss": verl_value_loss,
    "verl.adaptive_kl_controller": verl_kl_controller,
    "openrlhf.compute_reward": openrlhf_reward,
    "openrlhf.adv.gae": openrlhf_advantage,
    "openrlhf.adv.flash_reinforce": openrlhf_advantage,
    "openrlhf.adv.reinforce.": openrlhf_advantage,
    "nemo.reinforce_pp": nemo_reinforce_pp,
    "slime.gae": slime_gae,
    "trl.ppo": trl_ppo,
    "closed.terminal_lambda_decay": terminal_lambda_decay,
    "closed.discount": discount,
}
