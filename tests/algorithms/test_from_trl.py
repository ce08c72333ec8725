"""Reading the rule off a TRL trainer, its config or a mapping of it, and refusing what is not computed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from trl import GRPOConfig, RLOOConfig
from trl.experimental.gmpo import GMPOConfig

from credit_inspector.algorithms.from_trl import algorithm_of
from credit_inspector.algorithms.presets import preset
from credit_inspector.errors import UsageError


def config(tmp_path: Any, **settings: Any) -> GRPOConfig:
    return GRPOConfig(output_dir=str(tmp_path), bf16=False, use_cpu=True, **settings)


def test_a_config_with_everything_changed(tmp_path: Any) -> None:
    found = algorithm_of(
        config(
            tmp_path,
            loss_type="grpo",
            beta=0.04,
            epsilon=0.1,
            epsilon_high=0.3,
            delta=4.0,
            scale_rewards="batch",
            temperature=0.7,
            use_bias_correction_kl=False,
            entropy_coef=0.01,
        )
    )
    assert (found.kl_beta, found.clip_low, found.clip_high, found.delta) == (0.04, 0.1, 0.3, 4.0)
    assert (found.std, found.temperature, found.kl_gradient, found.entropy_bonus) == ("batch", 0.7, "autograd", 0.01)
    assert (found.aggregation, found.count_empty, found.horizon) == ("seq-mean-token-mean", True, None)


def test_a_trainers_own_attributes_come_before_its_config() -> None:
    args = SimpleNamespace(epsilon=0.5, epsilon_high=None, delta=2.0, gradient_accumulation_steps=1)
    trainer = SimpleNamespace(
        loss_type="dapo", beta=0.0, epsilon_low=0.2, epsilon_high=0.28, scale_rewards=True, temperature=1.0, args=args
    )
    found = algorithm_of(trainer)
    assert (found.name, found.clip_low, found.clip_high, found.delta) == ("trl/dapo", 0.2, 0.28, 2.0)
    assert (found.std, found.kl_gradient) == ("group", "autograd"), "a version without the setting lacks the correction"


def test_cispo_bounds_the_ratio_itself_from_above_only(tmp_path: Any) -> None:
    found = algorithm_of(config(tmp_path, loss_type="cispo", epsilon_high=5.0))
    assert (found.loss, found.clip_bounds, found.ratio_bounds) == ("cispo", "absolute", (0.0, 5.0))


def test_rewards_normalised_one_by_one_are_gdpo_over_responses(tmp_path: Any) -> None:
    found = algorithm_of(config(tmp_path, multi_objective_aggregation="normalize_then_sum", scale_rewards="none"))
    assert (found.advantage, found.std, found.std_ddof, found.std_eps) == ("gdpo", "group", 1, 1e-4)
    assert (found.whiten, found.whiten_ddof, found.whiten_eps, found.whiten_eps_in) == ("responses", 1, 1e-4, "deviation")
    assert found.reward_weights == {}


def test_reward_weights_have_the_names_of_the_functions_only_on_a_trainer(tmp_path: Any) -> None:
    args = config(tmp_path, multi_objective_aggregation="normalize_then_sum", reward_weights=[1.0, 0.5])
    trainer = SimpleNamespace(args=args, reward_func_names=["right", "short"], reward_weights=torch.tensor([1.0, 0.5]))
    assert algorithm_of(trainer).reward_weights == {"right": 1.0, "short": 0.5}
    with pytest.raises(UsageError, match="reward_weights stand there without the names"):
        algorithm_of(args)
    assert algorithm_of(config(tmp_path, reward_weights=[1.0, 0.5])).reward_weights == {}, "they are in the scalar reward"


@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        ({"importance_sampling_level": "sequence"}, {"loss": "ppo_clip", "ratio_level": "sequence", "aggregation": "token-mean"}),
        ({"loss_type": "sapo", "sapo_temperature_neg": 1.2}, {"loss": "sapo", "settings": {"tau_pos": 1.0, "tau_neg": 1.2}}),
        ({"loss_type": "luspo", "importance_sampling_level": "sequence"}, {"aggregation": "luspo", "ratio_level": "sequence"}),
        ({"loss_type": "vespo", "importance_sampling_level": "sequence"}, {"loss": "vespo", "ratio_level": "token"}),
        ({"top_entropy_quantile": 0.2}, {"top_entropy_quantile": 0.2}),
        ({"off_policy_mask_threshold": 0.5}, {"off_policy_mask": 0.5, "settings": {}}),
        ({"off_policy_mask_threshold": 0.5, "use_vllm": True}, {"settings": {"off_policy_from_rollout": 1.0}}),
        ({"entropy_coef": 0.01, "loss_type": "grpo"}, {"entropy_bonus": 0.01, "settings": {"entropy_token_mean": 1.0}}),
        ({"mask_truncated_completions": True}, {"mask_truncated": True}),
        ({"loss_type": "bnpo", "per_device_train_batch_size": 16}, {"micro_batch": 16, "aggregation": "token-mean"}),
        ({"loss_type": "dapo", "per_device_train_batch_size": 16}, {"micro_batch": None}),
    ],
)
def test_what_the_fields_express(tmp_path: Any, settings: dict[str, Any], fields: dict[str, Any]) -> None:
    found = algorithm_of(config(tmp_path, **settings))
    assert {name: getattr(found, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ("sequence-product", None, 3.0, "mask")),
        ({"vllm_importance_sampling_mode": "sequence_truncate"}, ("sequence-product", None, 3.0, "truncate")),
        ({"vllm_importance_sampling_mode": "token_mask", "vllm_importance_sampling_clip_min": 0.5}, ("token", 0.5, 3.0, "mask")),
        (
            {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_cap": 2.0},
            ("token", None, 2.0, "truncate"),
        ),
        ({"vllm_importance_sampling_clip_max": None}, ("sequence-product", None, None, "mask")),
        ({"vllm_importance_sampling_correction": False}, ("none", None, None, "truncate")),
    ],
)
def test_vllms_log_probs_against_the_trainers(tmp_path: Any, settings: dict[str, Any], expected: tuple[Any, ...]) -> None:
    found = algorithm_of(config(tmp_path, use_vllm=True, **settings))
    assert found.rollout_gate == "weight"
    assert (found.rollout_weight, found.rollout_low, found.rollout_high, found.rollout_outside) == expected


def test_a_version_without_modes_held_each_tokens_weight_below_its_cap() -> None:
    """TRL 0.23: ``torch.clamp(torch.exp(old - sampling), max=vllm_importance_sampling_cap)``."""
    old = {"loss_type": "dapo", "beta": 0.0, "epsilon": 0.2, "scale_rewards": True, "temperature": 1.0, "num_generations": 8}
    vllm = {"use_vllm": True, "vllm_importance_sampling_correction": True, "vllm_importance_sampling_cap": 2.0}
    found = algorithm_of({**old, **vllm})
    assert (found.rollout_weight, found.rollout_high, found.rollout_outside) == ("token", 2.0, "truncate")


def test_a_mapping_of_a_config_is_the_config(tmp_path: Any) -> None:
    """What ``TrainingArguments.to_dict`` gives wandb, and the same where everything has become text."""
    args = config(tmp_path, loss_type="grpo", beta=0.04, epsilon_high=0.28, gradient_accumulation_steps=8)
    direct = replace(algorithm_of(args), name="trl/grpo")
    assert algorithm_of(args.to_dict()) == direct
    assert algorithm_of({name: str(value) for name, value in args.to_dict().items()}) == direct


def test_rloo(tmp_path: Any) -> None:
    args = RLOOConfig(output_dir=str(tmp_path), bf16=False, use_cpu=True, normalize_advantages=True, beta=0.1, epsilon=0.3)
    found = algorithm_of(args)
    assert (found.name, found.advantage, found.loss, found.ratio_level) == ("trl-1.16.0/rloo", "rloo", "ppo_clip", "product")
    assert (found.kl_beta, found.kl_in_reward, found.kl_in_reward_as, found.clip_high) == (0.0, 0.1, "scalar", 0.3)
    assert (found.whiten, found.whiten_eps, found.whiten_eps_in) == ("responses", 1e-4, "deviation")
    with pytest.raises(UsageError, match="reward_clip_range"):
        algorithm_of(RLOOConfig(output_dir=str(tmp_path), bf16=False, use_cpu=True, reward_clip_range=(0, 1)))


def test_gmpo_has_bounds_on_the_log_ratio(tmp_path: Any) -> None:
    found = algorithm_of(GMPOConfig(output_dir=str(tmp_path), bf16=False, use_cpu=True))
    assert (found.name, found.loss, found.clip_low, found.aggregation) == ("trl-1.16.0/gmpo", "gmpo", 0.4, "seq-mean-token-mean")


def test_ppo_of_trl_1_12() -> None:
    """Its ``PPOConfig`` with every setting at its default, as ``to_dict`` writes it."""
    rule = {"num_ppo_epochs": 4, "num_mini_batches": 1, "cliprange": 0.2, "kl_coef": 0.05, "kl_estimator": "k1"}
    rest = {"gamma": 1.0, "lam": 0.95, "whiten_rewards": False, "temperature": 0.7, "per_device_train_batch_size": 8}
    found = algorithm_of({**rule, **rest})
    assert replace(found, name="trl-1.12.0/ppo", source="preset") == preset("trl-1.12.0/ppo")


@pytest.mark.parametrize(
    ("accumulate", "per_generation", "iterations", "updates"),
    [
        (1, None, 1, 1),
        (8, None, 1, 1),
        (8, 4, 2, 1),
        (8, 4, 1, 1),
        (4, 8, 1, 2),
        (2, 8, 2, 8),
        (1, None, 3, 3),
        (8, 3, 1, 2),
    ],
)
def test_updates_per_batch(tmp_path: Any, accumulate: int, per_generation: int | None, iterations: int, updates: int) -> None:
    found = algorithm_of(
        config(
            tmp_path,
            gradient_accumulation_steps=accumulate,
            steps_per_generation=per_generation,
            num_iterations=iterations,
        )
    )
    assert found.updates_per_batch == updates


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"loss_type": "vespo", "use_vllm": True, "vllm_importance_sampling_mode": "token_mask"}, "vespo with vllm_importance"),
        ({"importance_sampling_level": "paragraph"}, "importance_sampling_level='paragraph'"),
        ({"loss_type": "new"}, "loss_type='new'"),
    ],
)
def test_rules_that_are_not_computed_are_refused_by_name(tmp_path: Any, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        algorithm_of(config(tmp_path, **settings))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_grpo_trainer_is_refused() -> None:
    with pytest.raises(UsageError, match="SimpleNamespace has no loss_type; wanted a TRL GRPOTrainer or GRPOConfig"):
        algorithm_of(SimpleNamespace())
