"""Reading the rule off a TRL trainer or config, and refusing what is not computed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from trl import GRPOConfig

from credit_inspector.algorithms.from_trl import algorithm_of
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


def test_rewards_normalised_one_by_one_leave_the_advantages_as_recorded(tmp_path: Any) -> None:
    assert algorithm_of(config(tmp_path, multi_objective_aggregation="normalize_then_sum")).advantage == "gdpo"


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
        ({"importance_sampling_level": "sequence"}, "importance_sampling_level='sequence'"),
        ({"loss_type": "sapo"}, "loss_type='sapo'"),
        ({"loss_type": "vespo"}, "loss_type='vespo'"),
        ({"top_entropy_quantile": 0.2}, "top_entropy_quantile"),
        ({"off_policy_mask_threshold": 0.5}, "off_policy_mask_threshold"),
        ({"use_vllm": True}, "vllm_importance_sampling_correction"),
    ],
)
def test_rules_that_are_not_computed_are_refused_by_name(tmp_path: Any, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        algorithm_of(config(tmp_path, **settings))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_vllm_without_its_correction_is_the_plain_rule(tmp_path: Any) -> None:
    assert algorithm_of(config(tmp_path, use_vllm=True, vllm_importance_sampling_correction=False)).loss == "ppo_clip"


def test_what_is_no_grpo_trainer_is_refused() -> None:
    with pytest.raises(UsageError, match="SimpleNamespace has no loss_type; wanted a TRL GRPOTrainer or GRPOConfig"):
        algorithm_of(SimpleNamespace())
