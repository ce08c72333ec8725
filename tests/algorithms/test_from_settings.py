"""Trainers' settings as they write them: defaults give the presets, what differs is read, what is not computed is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms import (
    from_nemo,
    from_open_instruct,
    from_openrlhf,
    from_prime,
    from_skyrl,
    from_slime,
    from_tinker,
    from_trl,
    from_verl,
)
from credit_inspector.algorithms.presets import preset
from credit_inspector.algorithms.settings import Settings, namespace
from credit_inspector.errors import UsageError

READERS = (from_nemo, from_open_instruct, from_openrlhf, from_prime, from_skyrl, from_slime, from_tinker, from_trl, from_verl)

# verl 0.9.1, the parts of _generated_ppo_trainer.yaml that say something about the loss.
VERL = """
actor_rollout_ref:
  actor:
    rollout_n: ${oc.select:actor_rollout_ref.rollout.n,1}
    ppo_mini_batch_size: 256
    ppo_micro_batch_size_per_gpu: null
    clip_ratio: 0.2
    clip_ratio_low: 0.2
    clip_ratio_high: 0.2
    tau_pos: 1.0
    tau_neg: 1.05
    policy_loss: {loss_mode: vanilla, kl_cov_ratio: 0.0002, ppo_kl_coef: 0.1, dro_beta: null}
    clip_ratio_c: 3.0
    loss_agg_mode: token-mean
    loss_scale_factor: null
    entropy_coeff: 0
    use_kl_loss: false
    kl_loss_coef: 0.001
    kl_loss_type: low_var_kl
    ppo_epochs: 1
  rollout: {temperature: 1.0, n: 1}
data: {train_batch_size: 1024}
algorithm:
  rollout_correction:
    rollout_is: null
    rollout_is_threshold: 2.0
    rollout_rs: null
    rollout_rs_threshold: null
    bypass_mode: false
    loss_type: ppo_clip
    rollout_is_batch_normalize: false
  gamma: 1.0
  lam: 1.0
  adv_estimator: gae
  norm_adv_by_std_in_grpo: true
  filter_groups: {enable: false}
  use_kl_in_reward: false
  kl_penalty: kl
  kl_ctrl: {type: fixed, kl_coef: 0.001}
  use_pf_ppo: false
"""

# NeMo-RL 7ea279a, examples/configs/grpo_math_1B.yaml.
NEMO = """
grpo:
  num_prompts_per_step: 32
  num_generations_per_prompt: 16
  normalize_rewards: true
  use_leave_one_out_baseline: true
  overlong_filtering: false
  use_dynamic_sampling: false
  reward_shaping: {enabled: false}
  adv_estimator:
    name: grpo
    normalize_rewards: ${grpo.normalize_rewards}
    use_leave_one_out_baseline: ${grpo.use_leave_one_out_baseline}
    minus_baseline: true
  reward_scaling: {enabled: false}
  seq_logprob_error_threshold: null
loss_fn:
  reference_policy_kl_penalty: 0.01
  reference_policy_kl_type: k3
  kl_input_clamp_value: 20.0
  kl_output_clamp_value: 10.0
  ratio_clip_min: 0.2
  ratio_clip_max: 0.2
  ratio_clip_c: null
  use_on_policy_kl_approximation: false
  use_importance_sampling_correction: false
  truncated_importance_sampling_type: null
  truncated_importance_sampling_ratio: null
  truncated_importance_sampling_ratio_min: null
  sequence_level_importance_ratios: false
  token_level_loss: true
  use_kl_in_reward: false
  use_cispo: false
  disable_ppo_ratio: false
policy:
  train_global_batch_size: 512
  generation: {temperature: 1.0}
"""

OPENRLHF: dict[str, Any] = {
    "algo.advantage.estimator": "gae",
    "algo.advantage.gamma": 1,
    "algo.advantage.lambd": 1,
    "algo.advantage.no_std_norm": False,
    "algo.advantage.is_correction_level": "off",
    "algo.advantage.is_correction_mode": "mask",
    "algo.advantage.is_correction_gating": "ratio",
    "algo.advantage.is_correction_threshold": [0.5, 5.0],
    "algo.kl.init_coef": 0.01,
    "algo.kl.target": None,
    "algo.kl.estimator": "k1",
    "algo.kl.use_loss": False,
    "algo.kl.unbiased_gradient": False,
    "algo.dynamic_filtering_enable": False,
    "actor.eps_clip": 0.2,
    "actor.eps_clip_low_high": (0.2, 0.2),
    "actor.dual_clip": None,
    "actor.policy_loss_type": "ppo",
    "actor.loss_agg_mode": "token-mean",
    "actor.entropy_coef": None,
    "reward.clip_range": (-10, 10),
    "rollout.temperature": 1.0,
    "rollout.batch_size": 1024,
    "rollout.n_samples_per_prompt": 1,
    "train.batch_size": 128,
    "train.max_epochs": 1,
}

SLIME: dict[str, Any] = {
    "advantage_estimator": "grpo",
    "loss_type": "policy_loss",
    "rollout_batch_size": 32,
    "n_samples_per_prompt": 8,
    "global_batch_size": 256,
    "num_steps_per_rollout": None,
    "calculate_per_token_loss": False,
    "eps_clip": 0.2,
    "eps_clip_high": 0.2,
    "eps_clip_c": None,
    "kl_coef": 0.0,
    "use_kl_loss": False,
    "kl_loss_coef": 0.0,
    "kl_loss_type": "k1",
    "use_unbiased_kl": False,
    "entropy_coef": 0.0,
    "gamma": 1.0,
    "lambd": 1.0,
    "normalize_advantages": False,
    "grpo_std_normalization": True,
    "rewards_normalization": True,
    "use_rollout_logprobs": False,
    "use_tis": False,
    "tis_clip": 2.0,
    "tis_clip_low": 0,
    "use_opsm": False,
    "opsm_delta": 1e-4,
    "rollout_temperature": 1.0,
}

PRIME: dict[str, Any] = {
    "trainer": {
        "model": {"name": "small"},
        "weight_broadcast": {"type": "filesystem"},
        "loss": {"type": "default", "dppo_mask_low": 0.2, "dppo_mask_high": 0.2, "adv_tau": 1.0, "kl_tau": 0.001},
    },
    "orchestrator": {
        "algo": {"type": "grpo", "length_penalty": None},
        "train": {"sampling": {"temperature": 1.0}, "filter_zero_advantages": True},
    },
}

OPEN_INSTRUCT: dict[str, Any] = {
    "num_samples_per_prompt_rollout": 4,
    "num_mini_batches": 1,
    "num_epochs": 1,
    "beta": 0.05,
    "clip_lower": 0.2,
    "clip_higher": 0.272,
    "use_rho_correction": True,
    "rho_clamp_lower_bound": 0.0,
    "rho_clamp_upper_bound": 2.0,
    "rho_mask_lower_bound": 0.0,
    "rho_mask_upper_bound": 0.0,
    "rho_mask_sequence_level": False,
    "kl_estimator": 2,
    "loss_denominator": "token",
    "load_ref_policy": True,
    "loss_fn": "GRPOLossType.dapo",
    "use_vllm_logprobs": False,
    "filter_zero_std_samples": True,
    "advantage_normalization_type": "centered",
    "mask_truncated_completions": False,
    "temperature": 1.0,
}

TINKER: dict[str, Any] = {
    "loss_fn": "importance_sampling",
    "loss_fn_config": None,
    "num_substeps": 1,
    "remove_constant_reward_groups": False,
    "kl_penalty_coef": 0.0,
    "temperature": 1.0,
}

# SkyRL a956457, the parts of config.py that say something about the loss.
SKYRL = """
trainer:
  algorithm:
    advantage_estimator: grpo
    kl_ctrl: {type: fixed, kl_target: 0.1, horizon: 10000}
    kl_estimator_type: k3
    use_kl_in_reward: false
    use_kl_loss: true
    kl_loss_coef: 0.001
    use_entropy_loss: false
    entropy_loss_coef: 0.01
    temperature: null
    advantage_batch_normalize: false
    policy_loss_type: regular
    loss_reduction: token_mean
    grpo_norm_by_std: true
    zero_variance_filter: false
    lambd: 1.0
    gamma: 1.0
    eps_clip_low: 0.2
    eps_clip_high: 0.2
    clip_ratio_c: 3.0
    tis_imp_ratio_cap: -1.0
    use_tis: false
    off_policy_correction:
      tis_ratio_type: null
      token_tis_ratio_clip_high: 2.0
      sequence_tis_ratio_clip_high: 5.0
      sequence_mask_metric: null
      geo_mask_high: 1.01
      geo_mask_low: 0.99
      product_mask_high: 2.0
      product_mask_low: 0.5
      outlier_token_is_threshold_low: null
      outlier_token_is_threshold_high: null
      token_mask_is_threshold_low: null
      token_mask_is_threshold_high: null
    sapo: {tau_pos: 1.0, tau_neg: 1.05}
    dynamic_sampling: {type: null, max_sample_batches: 30, min_replace_ratio: 0.3}
    cispo: {cispo_eps_clip_low: 1.0, cispo_eps_clip_high: 4.0, cispo_anchor: old}
    dppo: {dppo_type: binary_tv, delta_low: 0.2, delta_high: 0.2}
    max_seq_len: null
  update_epochs_per_batch: 1
  train_batch_size: 1024
  policy_mini_batch_size: 256
  micro_train_batch_size_per_gpu: 1
generator:
  sampling_params: {temperature: 1.0, logprobs: 1}
  step_wise_trajectories: false
  apply_overlong_filtering: false
"""

WRITTEN: dict[ModuleType, Mapping[str, Any]] = {
    from_verl: yaml.safe_load(VERL),
    from_nemo: yaml.safe_load(NEMO),
    from_openrlhf: OPENRLHF,
    from_slime: SLIME,
    from_prime: PRIME,
    from_open_instruct: OPEN_INSTRUCT,
    from_tinker: TINKER,
    from_skyrl: yaml.safe_load(SKYRL),
}


def changed(written: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with some at dotted names replaced."""
    found = {**written}
    for name, value in changes.items():
        if name in found or "." not in name:
            found[name] = value
        else:
            head, rest = name.split(".", maxsplit=1)
            found[head] = changed(found.get(head) or {}, {rest: value})
    return found


def read(reader: ModuleType, **changes: Any) -> Algorithm:
    names = {name.replace("__", "."): value for name, value in changes.items()}
    return reader.algorithm_of(Settings(changed(WRITTEN[reader], names)))


def is_preset(found: Algorithm, name: str) -> None:
    assert asdict(replace(found, name=name, source="preset")) == asdict(preset(name))


ACTOR = "actor_rollout_ref__actor__"
MODE = f"{ACTOR}policy_loss__loss_mode"


@pytest.mark.parametrize(
    ("rule", "estimator", "changes"),
    [
        ("ppo", "gae", {}),
        ("grpo", "grpo", {}),
        (
            "dr_grpo",
            "grpo",
            {"algorithm__norm_adv_by_std_in_grpo": False, f"{ACTOR}loss_agg_mode": "seq-mean-token-sum-norm"},
        ),
        ("gspo", "grpo", {MODE: "gspo"}),
        ("gmpo", "grpo", {MODE: "geo_mean"}),
        ("cispo", "grpo", {MODE: "cispo"}),
        ("sapo", "grpo", {MODE: "sapo"}),
        ("dppo_tv", "grpo", {MODE: "dppo_tv"}),
        ("dppo_kl", "grpo", {MODE: "dppo_kl"}),
        ("kl_cov", "grpo", {MODE: "kl_cov"}),
        ("dro", "grpo", {MODE: "dro", f"{ACTOR}policy_loss__dro_beta": 0.1}),
        ("gpg", "gpg", {MODE: "gpg"}),
        ("rloo", "rloo", {}),
        ("reinforce_pp", "reinforce_plus_plus", {}),
        ("reinforce_pp_baseline", "reinforce_plus_plus_baseline", {}),
        ("remax", "remax", {}),
        ("opo", "opo", {}),
        ("otb", "optimal_token_baseline", {}),
        ("gdpo", "gdpo", {}),
        ("grpo_passk", "grpo_passk", {}),
        (
            "dapo",
            "grpo",
            {
                f"{ACTOR}clip_ratio_high": 0.28,
                f"{ACTOR}clip_ratio_c": 10.0,
                "algorithm__filter_groups__enable": True,
                "data__train_batch_size": 512,
                f"{ACTOR}ppo_mini_batch_size": 32,
            },
        ),
    ],
)
def test_verls_defaults_are_the_presets(rule: str, estimator: str, changes: dict[str, Any]) -> None:
    is_preset(read(from_verl, algorithm__adv_estimator=estimator, **changes), f"verl-0.9.1/{rule}")


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({f"{ACTOR}clip_ratio": 0.3}, {"clip_low": 0.2, "clip_high": 0.2}),
        ({f"{ACTOR}clip_ratio_low": None, f"{ACTOR}clip_ratio": 0.3}, {"clip_low": 0.3, "clip_high": 0.2}),
        (
            {f"{ACTOR}use_kl_loss": True, f"{ACTOR}kl_loss_type": "k3+"},
            {"kl_beta": 0.001, "kl_estimator": "low_var_kl", "kl_gradient": "straight-through"},
        ),
        (
            {f"{ACTOR}use_kl_loss": True, f"{ACTOR}kl_loss_type": "mse"},
            {"kl_estimator": "k2", "kl_gradient": "autograd"},
        ),
        ({"algorithm__use_kl_in_reward": True}, {"kl_in_reward": 0.001, "kl_in_reward_as": "scalar"}),
        (
            {"algorithm__rollout_correction__rollout_is": "sequence", "algorithm__rollout_correction__rollout_is_threshold": 3},
            {"rollout_weight": "sequence-product", "rollout_low": None, "rollout_high": 3.0, "rollout_outside": "truncate"},
        ),
        (
            {
                "algorithm__rollout_correction__rollout_is": "token",
                "algorithm__rollout_correction__rollout_is_threshold": "0.5_5.0",
            },
            {"rollout_weight": "token", "rollout_low": 0.5, "rollout_high": 5.0, "rollout_outside": "mask"},
        ),
        (
            {
                "algorithm__rollout_correction__rollout_rs": "token_k1,seq_max_k2",
                "algorithm__rollout_correction__rollout_rs_threshold": "0.6_1.4,0.1",
            },
            {"rollout_weight": "none", "rollout_reject": {"token_k1": "0.6_1.4", "seq_max_k2": "0.1"}},
        ),
        (
            {"algorithm__rollout_correction__bypass_mode": True},
            {"loss": "ppo_clip", "ratio_from": "rollout", "rollout_weight": "none", "dual_clip": 3.0},
        ),
        ({f"{ACTOR}loss_agg_mode": "seq-mean-token-sum-norm", f"{ACTOR}loss_scale_factor": 2048}, {"horizon": 2048.0}),
        ({f"{ACTOR}ppo_epochs": 2, "data__train_batch_size": 512}, {"updates_per_batch": 4}),
        ({MODE: "clip_cov"}, {"loss": "clip_cov"}),
    ],
)
def test_verls_settings(changes: dict[str, Any], fields: dict[str, Any]) -> None:
    found = read(from_verl, algorithm__adv_estimator="grpo", **changes)
    assert {name: getattr(found, name) for name in fields} == fields


def test_verls_gdpo_names_its_rewards_and_kl_in_the_reward_goes_to_tokens_in_ppo() -> None:
    weighted = {"algorithm__gdpo_reward_keys": ["right", "short"], "algorithm__gdpo_reward_weights": [1.0, 0.5]}
    assert read(from_verl, algorithm__adv_estimator="gdpo", **weighted).reward_weights == {"right": 1.0, "short": 0.5}
    assert read(from_verl, algorithm__use_kl_in_reward=True).kl_in_reward_as == "token-rewards"


@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        ("grpo", {}),
        ("gspo", {"loss_fn__sequence_level_importance_ratios": True, "loss_fn__token_level_loss": False}),
        ("cispo", {"loss_fn__use_cispo": True}),
        (
            "dapo",
            {
                "loss_fn__ratio_clip_max": 0.28,
                "loss_fn__reference_policy_kl_penalty": 0.0,
                "grpo__use_dynamic_sampling": True,
                "grpo__overlong_filtering": True,
            },
        ),
        ("gdpo", {"grpo__adv_estimator__name": "gdpo", "grpo__adv_estimator__use_leave_one_out_baseline": False}),
        ("reinforce_pp", {"grpo__adv_estimator__name": "reinforce_plus_plus"}),
    ],
)
def test_nemo_rls_defaults_are_the_presets(rule: str, changes: dict[str, Any]) -> None:
    is_preset(read(from_nemo, **changes), f"nemo-rl-7ea279a/{rule}")


def test_nemo_rls_ppo_is_the_preset_and_says_what_it_does_to_rewards() -> None:
    gae = {"name": "gae", "gae_lambda": 0.95, "gae_gamma": 1, "normalize_advantages": True, "gae_lambda_policy": None}
    top = {"num_prompts_per_step": 32, "num_generations_per_prompt": 16, "ppo_epochs": 4, "adv_estimator": gae}
    loss = {"loss_fn.ratio_clip_max": 0.28, "loss_fn.ratio_clip_c": 10, "loss_fn.reference_policy_kl_penalty": 0.0}
    written = {name: value for name, value in WRITTEN[from_nemo].items() if name != "grpo"}
    settings = Settings(changed({**written, "ppo": {**top, "reward_scaling": {"enabled": True}}}, loss))
    is_preset(from_nemo.algorithm_of(settings), "nemo-rl-7ea279a/ppo")
    assert settings.notes == [
        "NeMo-RL changes rewards by reward_scaling before advantages: the recorded ones have to be those after it"
    ]


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"grpo__use_leave_one_out_baseline": False}, {"baseline": "group", "std": "group"}),
        ({"grpo__normalize_rewards": False}, {"baseline": "leave-one-out", "std": "none"}),
        (
            {"loss_fn__use_importance_sampling_correction": True},
            {"rollout_weight": "token", "rollout_high": None, "settings": {"rollout_unknown": 0.0}},
        ),
        (
            {
                "loss_fn__use_importance_sampling_correction": True,
                "loss_fn__truncated_importance_sampling_type": "seq-mask-tis",
                "loss_fn__truncated_importance_sampling_ratio": 1.002,
                "loss_fn__truncated_importance_sampling_ratio_min": 0.999,
            },
            {"rollout_gate": "sequence-geo", "rollout_low": 0.999, "rollout_high": 1.002, "rollout_outside": "mask"},
        ),
        ({"loss_fn__disable_ppo_ratio": True}, {"loss": "reinforce"}),
        (
            {"grpo__adv_estimator__name": "reinforce_plus_plus", "loss_fn__use_kl_in_reward": True},
            {"kl_beta": 0.0, "kl_in_reward": 0.01, "kl_in_reward_as": "same-token"},
        ),
    ],
)
def test_nemo_rls_settings(changes: dict[str, Any], fields: dict[str, Any]) -> None:
    """References in the file, such as ``${grpo.normalize_rewards}``, are followed."""
    found = read(from_nemo, **changes)
    assert {name: getattr(found, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("rule", "estimator", "changes"),
    [
        ("ppo", "gae", {}),
        ("reinforce", "reinforce", {}),
        ("reinforce_baseline", "reinforce_baseline", {"rollout.n_samples_per_prompt": 8}),
        ("rloo", "rloo", {"rollout.n_samples_per_prompt": 8}),
        ("grpo", "group_norm", {"rollout.n_samples_per_prompt": 8}),
        ("dr_grpo", "dr_grpo", {"rollout.n_samples_per_prompt": 8}),
        ("gspo", "group_norm", {"rollout.n_samples_per_prompt": 8, "actor.policy_loss_type": "gspo"}),
    ],
)
def test_openrlhfs_defaults_are_the_presets_in_all_three_forms(rule: str, estimator: str, changes: dict[str, Any]) -> None:
    """Dots in the names, nested, and as the text that wandb makes of OpenRLHF's namespaces."""
    dotted = {**OPENRLHF, "algo.advantage.estimator": estimator, **changes}
    nested: dict[str, Any] = {}
    for name, value in dotted.items():
        *heads, last = name.split(".")
        place = nested
        for head in heads:
            place = place.setdefault(head, {})
        place[last] = value
    printed = {name: str(_as_namespace(value)) for name, value in nested.items()}
    for form in (dotted, nested, printed):
        assert from_openrlhf.recognises(Settings(form))
        is_preset(from_openrlhf.algorithm_of(Settings(form)), f"openrlhf-0.11.2/{rule}")


def _as_namespace(value: Any) -> Any:
    return SimpleNamespace(**{n: _as_namespace(v) for n, v in value.items()}) if isinstance(value, dict) else value


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        (
            {"algo.kl.use_loss": True, "algo.kl.estimator": "k3"},
            {"kl_beta": 0.01, "kl_in_reward": 0.0, "kl_estimator": "k3", "kl_output_clamp": 10.0},
        ),
        (
            {"algo.kl.use_loss": True, "algo.kl.unbiased_gradient": True},
            {"kl_gradient": "ratio-capped", "kl_output_clamp": None},
        ),
        (
            {"algo.advantage.is_correction_level": "token", "algo.advantage.is_correction_mode": "clip"},
            {"rollout_weight": "token", "rollout_gate": "weight", "rollout_outside": "truncate", "rollout_high": 5.0},
        ),
        (
            {
                "algo.advantage.is_correction_level": "seq",
                "algo.advantage.is_correction_gating": "binary_kl",
                "algo.advantage.is_correction_threshold": [0.0, 0.004],
            },
            {"rollout_gate": "sequence-binary-kl", "rollout_low": 0.0, "rollout_high": 0.004, "rollout_outside": "mask"},
        ),
        (
            {
                "algo.advantage.is_correction_level": "token",
                "algo.advantage.is_correction_gating": "tv",
                "algo.advantage.is_correction_threshold": [0.2],
            },
            {"rollout_gate": "token-tv", "rollout_low": 0.0, "rollout_high": 0.2, "rollout_outside": "mask"},
        ),
        (
            {"algo.advantage.is_correction_level": "token", "actor.policy_loss_type": "gspo"},
            {"ratio_level": "sequence", "ratio_from": "rollout", "rollout_weight": "none"},
        ),
        ({"actor.eps_clip_low_high": [0.1, 0.3]}, {"clip_low": 0.1, "clip_high": 0.3}),
        ({"algo.advantage.estimator": "flash_reinforce"}, {"baseline": "batch", "std": "none", "whiten": "none"}),
    ],
)
def test_openrlhfs_arguments(changes: dict[str, Any], fields: dict[str, Any]) -> None:
    settings = Settings({**OPENRLHF, **changes})
    found = from_openrlhf.algorithm_of(settings)
    assert {name: getattr(found, name) for name in fields} == fields
    assert settings.notes == ["OpenRLHF holds rewards within reward.clip_range (-10 to 10), which is not taken into account"]


@pytest.mark.parametrize(
    ("rule", "estimator"),
    [
        ("grpo", "grpo"),
        ("gspo", "gspo"),
        ("cispo", "cispo"),
        ("reinforce_pp", "reinforce_plus_plus"),
        ("reinforce_pp_baseline", "reinforce_plus_plus_baseline"),
        ("ppo", "ppo"),
    ],
)
def test_slimes_defaults_are_the_presets(rule: str, estimator: str) -> None:
    is_preset(read(from_slime, advantage_estimator=estimator), f"slime-624b824/{rule}")


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"grpo_std_normalization": False}, {"std": "none"}),
        ({"rewards_normalization": False}, {"advantage": "reinforce"}),
        ({"normalize_advantages": True}, {"whiten": "tokens", "whiten_ddof": 1}),
        ({"calculate_per_token_loss": True}, {"aggregation": "token-mean"}),
        ({"kl_coef": 0.1}, {"kl_in_reward": 0.0}),
        ({"kl_coef": 0.1, "advantage_estimator": "ppo"}, {"kl_in_reward": 0.1, "kl_in_reward_as": "token-rewards"}),
        (
            {"use_kl_loss": True, "kl_loss_coef": 0.01, "kl_loss_type": "low_var_kl", "use_unbiased_kl": True},
            {"kl_beta": 0.01, "kl_estimator": "k3", "kl_output_clamp": 10.0, "kl_gradient": "ratio-weighted"},
        ),
        ({"use_tis": True}, {"rollout_weight": "token", "rollout_high": 2.0, "rollout_outside": "truncate"}),
        ({"use_opsm": True}, {"off_policy_mask": 1e-4}),
        ({"use_rollout_logprobs": True}, {"ratio_from": "rollout"}),
        ({"num_steps_per_rollout": 4}, {"updates_per_batch": 4}),
    ],
)
def test_slimes_arguments(changes: dict[str, Any], fields: dict[str, Any]) -> None:
    found = read(from_slime, **changes)
    assert {name: getattr(found, name) for name in fields} == fields


def test_prime_rls_defaults_are_the_presets() -> None:
    ipo = {"type": "ipo", "ipo_threshold": 0.1, "adv_tau": 1.0, "kl_tau": 0.001}
    is_preset(read(from_prime), "prime-rl-559b447/default")
    is_preset(read(from_prime, trainer__loss=ipo), "prime-rl-559b447/ipo")
    is_preset(read(from_prime, orchestrator__algo={"type": "max_rl"}), "prime-rl-559b447/maxrl")
    assert read(from_prime, orchestrator__train__sampling__temperature=0.7).temperature == 0.7


def test_open_instructs_defaults_are_the_preset() -> None:
    is_preset(read(from_open_instruct), "open-instruct-e6c3044/grpo")
    found = read(from_open_instruct, advantage_normalization_type="standard", loss_fn="cispo", loss_denominator="32768")
    assert (found.std, found.std_ddof, found.loss, found.ratio_bounds) == ("group", 0, "cispo", (0.0, 1.272))
    assert (found.aggregation, found.batch_tokens) == ("token-mean", 32768.0)


def test_the_tinker_cookbooks_defaults_are_the_presets() -> None:
    for kind in ("importance_sampling", "ppo", "cispo"):
        is_preset(read(from_tinker, loss_fn=kind), f"tinker-cookbook-9dfcc3a/{kind}")
    tight = read(from_tinker, loss_fn="ppo", loss_fn_config={"clip_low_threshold": 0.9, "clip_high_threshold": 1.1})
    assert tight.ratio_bounds == (0.9, 1.1)


SKY = "trainer__algorithm__"
NO_KL = {f"{SKY}use_kl_loss": False}
ESTIMATOR, KIND = f"{SKY}advantage_estimator", f"{SKY}policy_loss_type"
CORRECTION = f"{SKY}off_policy_correction__"


@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        ("grpo", NO_KL),
        ("rloo", {ESTIMATOR: "rloo", **NO_KL}),
        ("maxrl", {ESTIMATOR: "maxrl", **NO_KL}),
        ("reinforce_pp", {ESTIMATOR: "reinforce++", **NO_KL}),
        ("cispo", {KIND: "cispo", **NO_KL}),
        ("gspo", {KIND: "gspo", f"{SKY}loss_reduction": "sequence_mean"}),
    ],
)
def test_skyrls_defaults_are_the_presets(rule: str, changes: dict[str, Any]) -> None:
    is_preset(read(from_skyrl, **changes), f"skyrl-a956457/{rule}")


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({f"{SKY}grpo_norm_by_std": False}, {"std": "none"}),
        ({f"{SKY}eps_clip_low": 0.1, f"{SKY}eps_clip_high": 0.28}, {"clip_low": 0.1, "clip_high": 0.28, "dual_clip": None}),
        ({KIND: "dual_clip"}, {"loss": "ppo_clip", "dual_clip": 3.0, "log_ratio_clamp": 20.0}),
        ({KIND: "sapo", f"{SKY}sapo__tau_neg": 1.1}, {"loss": "sapo", "settings": {"tau_pos": 1.0, "tau_neg": 1.1}}),
        ({KIND: "cispo", f"{SKY}cispo__cispo_anchor": "rollout"}, {"ratio_from": "rollout", "clip_high": 4.0}),
        ({KIND: "dppo"}, {"loss": "dppo_tv", "dual_clip": None, "ratio_from": "rollout"}),
        (
            {KIND: "dppo", f"{SKY}dppo__dppo_type": "binary_kl", "generator__sampling_params__logprobs": None},
            {"loss": "dppo_kl", "ratio_from": "old"},
        ),
        ({KIND: "importance_sampling"}, {"loss": "ppo_clip", "log_ratio_clamp": None, "clip_bounds": "absolute"}),
        ({KIND: "clip_cov"}, {"loss": "clip_cov"}),
        (
            {ESTIMATOR: "gae", f"{SKY}gamma": 0.99, f"{SKY}lambd": 0.95},
            {"advantage": "gae", "gamma": 0.99, "lam": 0.95, "observation": "ignore", "terminal": "last", "whiten": "tokens"},
        ),
        ({f"{SKY}loss_reduction": "token_mean_legacy"}, {"aggregation": "token-mean", "micro_batch": 1}),
        (
            {f"{SKY}loss_reduction": "seq_mean_token_sum_norm", f"{SKY}max_seq_len": 4096},
            {"aggregation": "seq-mean-token-sum-norm", "horizon": 4096.0},
        ),
        (
            {f"{SKY}use_kl_in_reward": True, f"{SKY}kl_estimator_type": "k1"},
            {"kl_beta": 0.0, "kl_in_reward": 0.001, "kl_in_reward_estimator": "k1", "kl_in_reward_as": "scalar"},
        ),
        ({f"{SKY}use_kl_in_reward": True, ESTIMATOR: "gae"}, {"kl_in_reward_as": "token-rewards"}),
        (
            {f"{SKY}use_tis": True, f"{SKY}tis_imp_ratio_cap": 3.0},
            {"rollout_weight": "token", "rollout_high": 3.0, "rollout_outside": "truncate"},
        ),
        ({f"{CORRECTION}tis_ratio_type": "token"}, {"rollout_weight": "token", "rollout_high": 2.0}),
        ({f"{CORRECTION}tis_ratio_type": "sequence"}, {"rollout_weight": "sequence-product", "rollout_high": 5.0}),
        (
            {f"{CORRECTION}sequence_mask_metric": "geometric"},
            {"rollout_weight": "none", "rollout_gate": "sequence-geo", "rollout_low": 0.99, "rollout_outside": "mask"},
        ),
        (
            {f"{CORRECTION}sequence_mask_metric": "product"},
            {"rollout_gate": "sequence-product", "rollout_low": 0.5, "rollout_high": 2.0},
        ),
        (
            {f"{CORRECTION}token_mask_is_threshold_low": 0.5, f"{CORRECTION}token_mask_is_threshold_high": 5.0},
            {"rollout_weight": "none", "rollout_gate": "token", "rollout_low": 0.5, "rollout_high": 5.0},
        ),
        ({f"{CORRECTION}token_mask_is_threshold_high": 5.0}, {"rollout_gate": "weight", "rollout_high": None}),
        ({f"{SKY}dynamic_sampling__type": "filter"}, {"drop_dead_groups": True}),
        ({f"{SKY}dynamic_sampling__type": "replace"}, {"drop_dead_groups": False}),
        ({f"{SKY}zero_variance_filter": True}, {"drop_dead_groups": True}),
        ({"generator__apply_overlong_filtering": True}, {"mask_truncated": True}),
        ({f"{SKY}use_entropy_loss": True}, {"entropy_bonus": 0.01}),
        ({"generator__sampling_params__temperature": 0.7}, {"temperature": 0.7}),
        ({"generator__sampling_params__temperature": 0.7, f"{SKY}temperature": 0.9}, {"temperature": 0.9}),
        ({"trainer__update_epochs_per_batch": 2, "trainer__train_batch_size": 512}, {"updates_per_batch": 4}),
    ],
)
def test_skyrls_settings(changes: dict[str, Any], fields: dict[str, Any]) -> None:
    found = read(from_skyrl, **{**NO_KL, **changes})
    assert {name: getattr(found, name) for name in fields} == fields


def test_skyrl_says_what_it_averages_in_its_own_way() -> None:
    changes = {"trainer.algorithm.use_kl_loss": False, "trainer.algorithm.use_entropy_loss": True}
    settings = Settings(changed(WRITTEN[from_skyrl], {**changes, "trainer.algorithm.advantage_estimator": "reinforce++"}))
    from_skyrl.algorithm_of(settings)
    assert [note.split(",")[0] for note in settings.notes] == [
        "SkyRL whitens advantages over all tokens of a response",
        "SkyRL averages its entropy bonus over the tokens of each micro-batch",
    ]


@pytest.mark.parametrize(
    ("reader", "changes", "said"),
    [
        (from_skyrl, {}, "use_kl_loss (a mean over responses)"),
        (from_skyrl, {ESTIMATOR: "my_own"}, "advantage_estimator='my_own'"),
        (from_skyrl, {KIND: "kl_cov"}, "policy_loss_type='kl_cov'"),
        (from_skyrl, {f"{SKY}loss_reduction": "prompt_mean"}, "loss_reduction='prompt_mean'"),
        (from_skyrl, {f"{SKY}advantage_batch_normalize": True}, "advantage_batch_normalize"),
        (from_skyrl, {"generator__step_wise_trajectories": True}, "step_wise_trajectories"),
        (from_skyrl, {**NO_KL, f"{SKY}use_kl_in_reward": True, f"{SKY}kl_ctrl__type": "adaptive"}, "adaptive KL coefficient"),
        (from_skyrl, {**NO_KL, f"{SKY}kl_estimator_type": "k4"}, "kl_estimator_type='k4'"),
        (from_skyrl, {f"{SKY}zero_variance_filter": True, f"{SKY}loss_reduction": "sequence_mean"}, "zero_variance_filter"),
        (from_skyrl, {f"{CORRECTION}outlier_token_is_threshold_high": 100}, "outlier_token_is_threshold"),
        (
            from_skyrl,
            {f"{CORRECTION}tis_ratio_type": "token", f"{CORRECTION}sequence_mask_metric": "product"},
            "more than one of",
        ),
        (from_skyrl, {f"{SKY}use_tis": True}, "tis_imp_ratio_cap"),
        (from_verl, {"algorithm__adv_estimator": "my_own"}, "adv_estimator='my_own'"),
        (from_verl, {MODE: "my_own"}, "loss_mode='my_own'"),
        (from_verl, {"algorithm__use_pf_ppo": True}, "use_pf_ppo"),
        (from_verl, {"algorithm__use_kl_in_reward": True, "algorithm__kl_ctrl__type": "adaptive"}, "adaptive KL coefficient"),
        (from_verl, {f"{ACTOR}use_kl_loss": True, MODE: "sapo"}, "weighted by another loss_agg_mode"),
        (from_verl, {MODE: "geo_mean", "algorithm__rollout_correction__rollout_is": "token"}, "'geo_mean' with rollout_is"),
        (from_verl, {f"{ACTOR}clip_ratio_low": "wide"}, "clip_ratio_low is 'wide'; wanted a finite number"),
        (from_verl, {"rllm": {"algorithm": {"adv_estimator": "grpo"}}}, "rLLM makes its own advantages"),
        (from_nemo, {"grpo__adv_estimator__name": "opd"}, "adv_estimator 'opd'"),
        (from_nemo, {"grpo__advantage_clip_high": 5.0}, "advantage_clip_high"),
        (from_nemo, {"loss_fn__use_on_policy_kl_approximation": True}, "use_on_policy_kl_approximation"),
        (from_openrlhf, {"algo.kl.target": 6.0}, "algo.kl.target"),
        (from_openrlhf, {"algo.advantage.no_std_norm": True}, "no_std_norm"),
        (from_slime, {"custom_advantage_function_path": "mine.py:f"}, "custom_advantage_function_path"),
        (from_prime, {"trainer__loss": {"type": "custom"}}, "loss 'custom'"),
        (from_prime, {"orchestrator__algo": {"type": "opd"}}, "algorithm 'opd'"),
        (from_open_instruct, {"rho_mask_upper_bound": 2.0}, "rho_mask"),
        (from_open_instruct, {"kl_estimator": 3}, "kl_estimator=3"),
        (from_tinker, {"kl_penalty_coef": 0.1}, "kl_penalty_coef"),
        (from_tinker, {"loss_fn": "dro"}, "loss_fn='dro'"),
    ],
)
def test_what_is_not_computed_is_refused_in_one_line(reader: ModuleType, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(reader, **changes)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("reader", WRITTEN, ids=lambda reader: reader.__name__.rpartition(".")[2])
def test_each_trainers_settings_are_recognised_by_its_own_reader_alone(reader: ModuleType) -> None:
    settings = Settings(WRITTEN[reader])
    assert [other for other in READERS if other.recognises(settings)] == [reader]
    assert not reader.recognises(Settings({"model_type": "qwen3", "hidden_size": 64}))


def test_references_are_followed_within_the_file_and_no_further() -> None:
    settings = Settings(
        {"a": {"b": "${c.d}"}, "c": {"d": "${e}"}, "e": 3, "f": "${gone}", "g": "${oc.select:gone, 7}", "h": "${h}"}
    )
    assert settings.number("a.b") == 3
    assert settings.number("g") == 7
    for name in ("f", "h"):
        with pytest.raises(UsageError, match=f"{name} is unknown: .* is not in the file"):
            settings.number(name)
    settings = Settings({"a": "${oc.env:HOME}", "b": "${oc.decode:1}"})
    for name in ("a", "b"):
        with pytest.raises(UsageError, match="is unknown"):
            settings.text(name)


def test_a_printed_namespace_is_read_and_not_run() -> None:
    assert namespace("namespace(a=1, b=namespace(c=(0.1, 0.2), d=None))") == {"a": 1, "b": {"c": (0.1, 0.2), "d": None}}
    for text in ("namespace(a=__import__('os').getcwd())", "namespace(a=open('x'))", "namespace(1)", "namespace(a=b)", "name"):
        assert namespace(text) is None
    assert namespace("namespace(a=" + "[" * 10_000) is None


@pytest.mark.parametrize("value", [True, "nan", "inf", [1], {"a": 1}, "1e999"])
def test_what_is_no_number(value: Any) -> None:
    with pytest.raises(UsageError, match="wanted a finite number"):
        Settings({"x": value}).number("x")


def test_yaml_reads_1e_6_as_text_and_it_is_a_number_all_the_same() -> None:
    assert Settings(yaml.safe_load("x: 1e-6")).number("x") == 1e-6
