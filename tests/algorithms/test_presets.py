"""Presets are pinned, hold no field that their rule does not read, and give their trainers' numbers."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trl import GRPOConfig, RLOOConfig

import credit_inspector.algorithms
from credit_inspector.advantages import estimators
from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.from_trl import algorithm_of
from credit_inspector.algorithms.presets import preset, presets
from credit_inspector.credit.policy_push import pushed
from credit_inspector.errors import UsageError
from credit_inspector.losses import losses
from credit_inspector.rollout import Rollout
from credit_inspector.table import TokenTable
from places import ROOT

FOLDER = Path(credit_inspector.algorithms.__file__).parent

CORE = {"advantage", "loss", "aggregation", "count_empty", "kl_beta", "temperature", "updates_per_batch"}

GROUP = {"std", "std_ddof", "std_eps", "baseline", "singleton"}

# What each estimator reads beyond the core; the first set has to be stated, the second may be.
ESTIMATOR: dict[str, tuple[set[str], set[str]]] = {
    "grpo": ({"std", "singleton"}, GROUP),
    "grpo_passk": ({"std", "std_ddof", "std_eps", "singleton"}, set()),
    "gdpo": ({"std", "std_ddof", "std_eps", "singleton", "whiten", "reward_weights"}, GROUP),
    "rloo": ({"singleton"}, set()),
    "opo": ({"singleton"}, set()),
    "gpg": ({"singleton"}, {"settings"}),
    "maxrl": ({"singleton", "std_eps"}, set()),
    "gae": ({"gamma", "lam", "observation", "terminal", "whiten"}, {"whiten_rewards"}),
    "reinforce_pp": ({"gamma", "observation", "terminal", "whiten"}, set()),
    "reinforce_pp_baseline": ({"baseline", "singleton", "whiten"}, set()),
    "remax": ({"observation", "terminal"}, set()),
    "otb": ({"observation", "terminal", "singleton"}, set()),
}

CLIP = {"clip_low", "clip_high"}
LOSS: dict[str, tuple[set[str], set[str]]] = {
    "ppo_clip": (CLIP, {"clip_bounds", "dual_clip", "delta", "log_ratio_clamp", "ratio_level", "ratio_from", "settings"}),
    "cispo": ({*CLIP, "clip_bounds"}, {"log_ratio_clamp", "ratio_from"}),
    "sapo": ({"settings"}, {"log_ratio_clamp"}),
    "vespo": ({"settings"}, set()),
    "gmpo": (CLIP, set()),
    "dppo_tv": ({*CLIP, "dual_clip"}, {"log_ratio_clamp"}),
    "dppo_kl": ({*CLIP, "dual_clip"}, {"log_ratio_clamp"}),
    "kl_cov": ({"settings"}, set()),
    "dro": ({"settings"}, set()),
    "prime": ({*CLIP, "settings", "ratio_from"}, set()),
    "prime_ipo": ({*CLIP, "settings", "ratio_from"}, set()),
    "reinforce": (set(), set()),
}

# Where a field is on, others say how.
DETAILS = {
    "whiten": ({"whiten_ddof", "whiten_eps", "whiten_eps_in"}, lambda value: value != "none"),
    "kl_beta": ({"kl_estimator", "kl_gradient"}, lambda value: value > 0),
    "kl_in_reward": ({"kl_in_reward_estimator", "kl_in_reward_as"}, lambda value: value > 0),
    "rollout_weight": ({"rollout_high", "rollout_outside"}, lambda value: value != "none"),
}
ALWAYS = {
    *("kl_estimator", "kl_gradient", "kl_input_clamp", "kl_output_clamp"),
    *("kl_in_reward", "kl_in_reward_estimator", "kl_in_reward_as"),
    *("drop_dead_groups", "mask_truncated", "micro_batch", "whiten"),
    *("rollout_weight", "rollout_low", "rollout_high", "rollout_outside"),
}


def stated(name: str) -> dict[str, Any]:
    trainer, rule = name.split("/")
    return tomllib.loads((FOLDER / f"{trainer}-{rule}.toml").read_text(encoding="utf-8"))


def of_length(*lengths: int) -> TokenTable:
    rewards = [1.0, 0.0, 0.0, 0.0]
    rollouts = [
        Rollout(sample_id=str(i), group_id="g", reward=reward, rewards={"only": reward}, response_ids=np.zeros(n, np.int32))
        for i, (reward, n) in enumerate(zip(rewards, lengths, strict=True))
    ]
    return TokenTable.from_rollouts(0, rollouts)


@pytest.mark.parametrize("name", presets())
def test_a_preset_names_things_that_exist_and_is_pinned_to_a_version(name: str) -> None:
    algorithm = preset(name)
    assert (algorithm.name, algorithm.source) == (name, "preset")
    assert algorithm.advantage in estimators
    assert algorithm.loss in losses
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*-(\d+\.\d+\.\d+|[0-9a-f]{7})/[a-z_]+", name)
    assert Algorithm.from_json(algorithm.to_json()) == algorithm


@pytest.mark.parametrize("name", presets())
def test_a_presets_own_settings_are_known_to_its_estimator_or_loss(name: str) -> None:
    algorithm = preset(name)
    known = {**estimators[algorithm.advantage].settings, **losses[algorithm.loss].settings}
    assert set(algorithm.settings) <= set(known)
    assert algorithm.ratio_level in losses[algorithm.loss].levels


@pytest.mark.parametrize("name", presets())
def test_a_preset_states_what_its_rule_reads_and_nothing_else(name: str) -> None:
    """A default of ours is no fact about a trainer, and a field that changes nothing is no fact about the rule."""
    algorithm, fields = preset(name), stated(name)
    (needed, allowed), (loss_needed, loss_allowed) = ESTIMATOR[algorithm.advantage], LOSS[algorithm.loss]
    required = CORE | needed | loss_needed
    readable = required | allowed | loss_allowed | ALWAYS
    if algorithm.std != "none":
        required |= {"std_ddof", "std_eps"} & (needed | allowed)
    for field, (details, is_on) in DETAILS.items():
        readable |= details
        required |= details if is_on(getattr(algorithm, field)) else set()
    if algorithm.aggregation == "seq-mean-token-sum-norm":
        required |= {"horizon"} if algorithm.horizon else {"horizon_is_width"}
        readable |= required
    assert not required - set(fields)
    assert not set(fields) - readable


@pytest.mark.parametrize("name", presets())
def test_every_number_of_a_preset_says_where_the_trainer_has_it(name: str) -> None:
    trainer, rule = name.split("/")
    lines = (FOLDER / f"{trainer}-{rule}.toml").read_text(encoding="utf-8").splitlines()
    numbers = [line for line in lines if re.match(r"\w+ = [\d{]", line) and not line.startswith("kl_beta = 0.0")]
    assert not [line for line in numbers if "#" not in line]


# One success in four, by the trainer's own function that each preset stands for.
LONE_SUCCESS = {
    "trl-1.16.0/grpo": "trl scale_rewards=group",
    "trl-1.16.0/gspo": "trl scale_rewards=group",
    "trl-1.16.0/dr_grpo": "verl grpo no-std",
    "trl-1.16.0/rloo": "verl rloo",
    "verl-0.9.1/grpo": "verl grpo",
    "verl-0.9.1/dapo": "verl grpo",
    "verl-0.9.1/dr_grpo": "verl grpo no-std",
    "verl-0.9.1/rloo": "verl rloo",
    "verl-0.9.1/opo": "verl grpo no-std",
    "openrlhf-0.11.2/grpo": "openrlhf group_norm",
    "openrlhf-0.11.2/dr_grpo": "verl grpo no-std",
    "openrlhf-0.11.2/rloo": "verl rloo",
    "nemo-rl-7ea279a/grpo": "nemo-rl leave_one_out=True",
    "slime-624b824/grpo": "verl grpo",
    "slime-624b824/reinforce_pp_baseline": "verl grpo no-std",
    "rllm-9beb6e0/grpo": "rllm grpo",
    "skyrl-a956457/grpo": "verl grpo",
    "skyrl-a956457/maxrl": "skyrl maxrl",
    "skyrl-a956457/rloo": "verl rloo",
    "prime-rl-559b447/default": "prime-rl / tinker (mean only)",
    "prime-rl-559b447/ipo": "prime-rl / tinker (mean only)",
    "tinker-cookbook-9dfcc3a/ppo": "prime-rl / tinker (mean only)",
    "open-instruct-e6c3044/grpo": "prime-rl / tinker (mean only)",
}


@pytest.mark.parametrize("name", LONE_SUCCESS)
def test_a_lone_success_gets_what_its_trainer_gives_it(name: str) -> None:
    """The trainers' own functions on rewards [1, 0, 0, 0]."""
    oracles = json.loads((ROOT / "tests/data/oracles.json").read_text())["vectors"]
    (vector,) = [each for each in oracles if each["id"] == "conventions.group_1000"]
    table, algorithm = of_length(1, 1, 1, 1), preset(name, kl_in_reward=0.0)
    found = estimators[algorithm.advantage](table, algorithm)
    np.testing.assert_allclose(found, vector["outputs"][LONE_SUCCESS[name]], atol=vector["tolerance"])


@pytest.mark.parametrize(
    ("name", "success", "failure"),
    [
        ("verl-0.9.1/grpo_passk", 1 / (0.5 + 1e-6), 0.0),
        ("verl-0.9.1/gpg", 4 * 0.75, 4 * -0.25),
        ("verl-0.9.1/reinforce_pp", 0.75 / np.sqrt(0.25 + 1e-8), -0.25 / np.sqrt(0.25 + 1e-8)),
        ("verl-0.9.1/reinforce_pp_baseline", 0.75 / np.sqrt(0.25 + 1e-8), -0.25 / np.sqrt(0.25 + 1e-8)),
        ("verl-0.9.1/gdpo", 1.5, -0.5),
        ("openrlhf-0.11.2/reinforce", 0.75 / np.sqrt(0.1875), -0.25 / np.sqrt(0.1875)),
        ("openrlhf-0.11.2/reinforce_baseline", 0.75 / np.sqrt(0.1875), -0.25 / np.sqrt(0.1875)),
        ("nemo-rl-7ea279a/reinforce_pp", 0.75 / np.sqrt(0.1875), -0.25 / np.sqrt(0.1875)),
        ("nemo-rl-7ea279a/gdpo", 1.5, -0.5),
        ("prime-rl-559b447/maxrl", 3.0, -1.0),
        ("slime-624b824/reinforce_pp", 1.0, 0.0),
        ("ms-swift-3602360/grpo", 0.75 / (0.5 + 1e-4), -0.25 / (0.5 + 1e-4)),
        ("areal-4aef98d/grpo", 1.5 * (1 / (1 + 1e-5)), -0.5 * (1 / (1 + 1e-5))),
    ],
)
def test_a_lone_success_by_hand(name: str, success: float, failure: float) -> None:
    algorithm = preset(name, kl_in_reward=0.0)
    found = estimators[algorithm.advantage](of_length(1, 1, 1, 1), algorithm)
    np.testing.assert_allclose(found, [success, failure, failure, failure], atol=2e-6)


@pytest.mark.parametrize("name", presets())
def test_every_preset_gives_each_token_a_coefficient_where_the_run_recorded_what_it_needs(name: str) -> None:
    random = np.random.default_rng(0)
    columns = ("logprob/old", "logprob/policy", "logprob/ref", "logprob/rollout", "value/old", "sum_p2/old")
    rollouts = [
        Rollout(
            sample_id=str(i),
            group_id=str(i // 4),
            reward=float(i % 4 == 0),
            rewards={"right": float(i % 4 == 0), "short": float(i % 2)},
            response_ids=np.zeros(3 + i % 3, np.int32),
            columns={column: -0.1 - 0.1 * random.random(3 + i % 3).astype(np.float32) for column in columns},
            extra={"reward_baseline": 0.5},
        )
        for i in range(8)
    ]
    algorithm = preset(name)
    table = TokenTable.from_rollouts(0, rollouts, algorithm=algorithm)
    advantage = estimators[algorithm.advantage](table, algorithm)
    found = pushed(table, algorithm, advantage, np.full(table.n_tokens, 1 / table.n_tokens))
    assert np.isfinite(found.push.coefficient).all()
    assert np.count_nonzero(found.push.coefficient)


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "bnpo", "dr_grpo", "cispo", "sapo", "luspo", "vespo", "gspo"])
def test_trl_presets_are_what_trl_is_configured_to(loss_type: str, tmp_path: Path) -> None:
    changed: dict[str, Any] = {"loss_type": "grpo" if loss_type == "gspo" else loss_type}
    changed |= {"scale_rewards": "none"} if loss_type == "dr_grpo" else {}
    changed |= {"importance_sampling_level": "sequence"} if loss_type in ("gspo", "luspo") else {}
    found = algorithm_of(GRPOConfig(output_dir=str(tmp_path), bf16=False, use_cpu=True, **changed))
    assert found.name == f"trl-1.16.0/{loss_type}"
    assert asdict(replace(found, source="preset")) == asdict(preset(found.name))


def test_trls_rloo_preset_is_what_trl_is_configured_to(tmp_path: Path) -> None:
    found = algorithm_of(RLOOConfig(output_dir=str(tmp_path), bf16=False, use_cpu=True))
    assert asdict(replace(found, source="preset")) == asdict(preset("trl-1.16.0/rloo"))


def test_a_preset_can_be_changed_where_a_run_differs() -> None:
    changed = preset("verl-0.9.1/grpo", kl_beta=0.001, updates_per_batch=1)
    assert (changed.kl_beta, changed.updates_per_batch, changed.dual_clip) == (0.001, 1, 3.0)
    assert changed.source == "preset, with kl_beta, updates_per_batch set"
    with pytest.raises(UsageError, match="unknown algorithm setting 'beta'"):
        preset("verl-0.9.1/grpo", beta=0.1)


def test_a_wrong_name_gets_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"did you mean .*trl-1\.16\.0/dapo"):
        preset("trl-1.16/dapo")
    with pytest.raises(UsageError, match=r"did you mean .*nemo-rl-7ea279a/grpo"):
        preset("nemo-rl/grpo")
    with pytest.raises(UsageError, match=r"known: .*verl-0\.9\.1/grpo"):
        preset("@@@@")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"std": "groups"}, "std is 'groups'; wanted one of group, leave-one-out, batch, none"),
        ({"aggregation": "token_mean"}, "wanted one of token-mean"),
        ({"clip_low": "0.2"}, "clip_low is '0.2'; wanted a number"),
        ({"updates_per_batch": 1.5}, "updates_per_batch is 1.5; wanted a whole number"),
        ({"count_empty": 1}, "count_empty is 1; wanted true or false"),
        ({"horizon": True}, "horizon is True; wanted a number or nothing"),
        ({"temperature": float("nan")}, "temperature is nan; wanted a finite number"),
        ({"nonsense": 1}, "unknown algorithm setting 'nonsense'"),
    ],
)
def test_settings_that_no_algorithm_takes(setting: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        Algorithm.from_json({"name": "n", "source": "s", **setting})
    assert said in str(caught.value)


def test_an_algorithm_has_a_name_and_a_source() -> None:
    with pytest.raises(UsageError, match="without 'source'"):
        Algorithm.from_json({"name": "n"})
