"""The rule of a slime run, read from its arguments as wandb keeps them.

Checked against commit 624b824: ``slime/backends/megatron_utils/loss.py`` and ``slime/utils/ppo_utils.py``.
"""

from __future__ import annotations

import math
from typing import Any

from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.settings import Settings
from credit_inspector.errors import UsageError

_OF_GROUPS = ("grpo", "gspo", "cispo")

_CUSTOM = (
    "custom_advantage_function_path",
    "custom_reward_post_process_path",
    "custom_tis_function_path",
    "custom_pg_loss_reducer_function_path",
)


def recognises(settings: Settings) -> bool:
    """Whether these are slime's arguments."""
    return "advantage_estimator" in settings and "rollout_batch_size" in settings and "calculate_per_token_loss" in settings


def algorithm_of(settings: Settings) -> Algorithm:
    """The rule that slime's arguments describe.

    Raises:
        UsageError: an argument changes the loss in a way that is not computed here.
    """
    if problem := _not_computed(settings):
        raise UsageError(f"slime's {problem} is a rule that is not computed")
    estimator = settings.text("advantage_estimator")
    fields = _advantage(settings, estimator) | _loss(settings, estimator) | _kl(settings, estimator)
    if settings.flag("use_tis", False):
        low = settings.number("tis_clip_low", 0.0)
        high = settings.number("tis_clip", 2.0)
        fields |= {"rollout_weight": "token", "rollout_low": low, "rollout_high": high, "rollout_outside": "truncate"}
    if settings.flag("use_opsm", False):
        fields["off_policy_mask"] = settings.number("opsm_delta")
    return Algorithm.from_json(
        {
            "name": f"slime/{estimator}",
            "source": "recorded",
            "entropy_bonus": settings.number("entropy_coef", 0.0),
            "temperature": settings.number("rollout_temperature", 1.0),
            "updates_per_batch": _updates(settings),
        }
        | fields
    )


def _not_computed(settings: Settings) -> str:
    if (kind := settings.text("loss_type", "policy_loss")) != "policy_loss":
        return f"loss_type={kind!r}"
    if settings.flag("use_opd", False):
        return "use_opd (distillation in the advantages)"
    return next((name for name in _CUSTOM if settings.value(name, None) is not None), "")


def _advantage(settings: Settings, estimator: str) -> dict[str, Any]:
    # Rewards are compared with their group before they are advantages: _post_process_rewards in slime/ray/rollout.py.
    normed = settings.flag("rewards_normalization", True)
    if estimator in _OF_GROUPS:
        std = settings.flag("grpo_std_normalization", True)
        group: dict[str, Any] = {
            "advantage": "grpo",
            "std": "group" if std else "none",
            "std_ddof": 1,
            "std_eps": 1e-6,
            "singleton": "zero",
        }
        fields: dict[str, Any] = group if normed else {"advantage": "reinforce"}
    elif estimator == "reinforce_plus_plus_baseline":
        fields = {"advantage": "reinforce_pp_baseline" if normed else "reinforce", "singleton": "zero"}
    elif estimator == "reinforce_plus_plus":
        gamma = settings.number("gamma", 1.0)
        fields = {"advantage": "reinforce_pp", "gamma": gamma, "observation": "count", "terminal": "last-trained"}
    elif estimator == "ppo":
        gamma, lam = settings.number("gamma", 1.0), settings.number("lambd", 1.0)
        fields = {"advantage": "gae", "gamma": gamma, "lam": lam, "observation": "ignore", "terminal": "last"}
    else:
        raise UsageError(f"slime's advantage_estimator={estimator!r} is a rule that is not computed")
    if settings.flag("normalize_advantages", False):
        fields |= {"whiten": "tokens", "whiten_ddof": 1, "whiten_eps": 1e-8, "whiten_eps_in": "variance"}
    return fields


def _loss(settings: Settings, estimator: str) -> dict[str, Any]:
    low = settings.number("eps_clip", 0.2)
    high = settings.optional("eps_clip_high")
    per_token = settings.flag("calculate_per_token_loss", False)
    fields: dict[str, Any] = {
        "ratio_from": "rollout" if settings.flag("use_rollout_logprobs", False) else "old",
        "clip_low": low,
        "clip_high": low if high is None else high,
        "aggregation": "token-mean" if per_token else "seq-mean-token-mean",
        "count_empty": True,
    }
    if estimator == "cispo":
        return fields | {"loss": "cispo", "clip_bounds": "around-one"}
    level = {"ratio_level": "sequence"} if estimator == "gspo" else {}
    return fields | level | {"loss": "ppo_clip", "dual_clip": settings.optional("eps_clip_c")}


def _kl(settings: Settings, estimator: str) -> dict[str, Any]:
    kind = settings.text("kl_loss_type", "k1")
    in_loss = settings.flag("use_kl_loss", False)
    fields: dict[str, Any] = {
        "kl_beta": settings.number("kl_loss_coef", 0.0) if in_loss else 0.0,
        "kl_estimator": "k3" if kind == "low_var_kl" else kind,
        "kl_gradient": "ratio-weighted" if settings.flag("use_unbiased_kl", False) else "autograd",
        "kl_output_clamp": 10.0 if kind == "low_var_kl" else None,
    }
    if estimator not in _OF_GROUPS:  # get_grpo_returns leaves the KL term out
        fields |= {
            "kl_in_reward": settings.number("kl_coef", 0.0),
            "kl_in_reward_estimator": kind,
            "kl_in_reward_as": "same-token" if estimator == "reinforce_plus_plus_baseline" else "token-rewards",
        }
    return fields


def _updates(settings: Settings) -> int:
    if (steps := settings.value("num_steps_per_rollout", None)) is not None:
        return int(steps)
    responses = settings.number("rollout_batch_size") * settings.number("n_samples_per_prompt", 1)
    return max(1, math.ceil(responses / settings.number("global_batch_size")))
