"""The rule of a NeMo-RL run, read from its ``config.yaml`` (it lies in every checkpoint folder; wandb keeps it too).

Checked against commit 7ea279a: ``ClippedPGLossFn`` and ``advantage_estimator.py``.
"""

from __future__ import annotations

import math
from typing import Any

from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.settings import Settings
from credit_inspector.errors import UsageError


def recognises(settings: Settings) -> bool:
    """Whether these are NeMo-RL's settings."""
    return "loss_fn.ratio_clip_min" in settings and "policy.train_global_batch_size" in settings


def algorithm_of(settings: Settings) -> Algorithm:
    """The rule that NeMo-RL's settings describe.

    Raises:
        UsageError: a setting changes the loss in a way that is not computed here.
    """
    top = "ppo" if "ppo.num_prompts_per_step" in settings else "grpo"
    estimator = settings.text(f"{top}.adv_estimator.name", "grpo")
    if problem := _not_computed(settings, top):
        raise UsageError(f"NeMo-RL's {problem} is not computed")
    fields = _advantage(settings, top, estimator) | _loss(settings) | _kl(settings, estimator) | _rollout(settings)
    if "rollout_weight" in fields:  # a weight that is no number is set to 0: nan_to_num
        fields["settings"] = fields.get("settings", {}) | {"rollout_unknown": 0.0}
    for name in ("reward_shaping", "reward_scaling"):
        if settings.flag(f"{top}.{name}.enabled", False):
            settings.note(f"NeMo-RL changes rewards by {name} before advantages: the recorded ones have to be those after it")
    return Algorithm.from_json(
        {
            "name": f"nemo-rl/{'ppo' if estimator == 'gae' else estimator}",
            "source": "recorded",
            "drop_dead_groups": settings.flag(f"{top}.use_dynamic_sampling", False),
            "mask_truncated": settings.flag(f"{top}.overlong_filtering", False),
            "temperature": settings.number("policy.generation.temperature", 1.0),
            "updates_per_batch": _updates(settings, top),
        }
        | fields
    )


def _not_computed(settings: Settings, top: str) -> str:
    for name in ("advantage_clip_low", "advantage_clip_high", "invalid_tool_call_advantage", "malformed_thinking_advantage"):
        if settings.value(f"{top}.{name}", None) is not None:
            return f"{top}.{name}"
    if settings.number("loss_fn.positive_example_nll_weight", 0.0):
        return "positive_example_nll_weight"
    if settings.value(f"{top}.seq_logprob_error_threshold", None) is not None:
        return "seq_logprob_error_threshold (masks whole responses by the engine's error)"
    return ""


def _advantage(settings: Settings, top: str, estimator: str) -> dict[str, Any]:
    where = f"{top}.adv_estimator"
    match estimator:
        case "grpo" | "gdpo":
            others = settings.flag(f"{where}.use_leave_one_out_baseline", True)
            over = "leave-one-out" if others else "group"
            std = over if settings.flag(f"{where}.normalize_rewards", True) else "none"
            fields = {"advantage": estimator, "baseline": over, "std": std, "std_ddof": 1, "std_eps": 1e-6, "singleton": "zero"}
            return fields if estimator == "grpo" else fields | _gdpo(settings, where)
        case "reinforce_plus_plus":
            minus = settings.flag(f"{where}.minus_baseline", True)
            fields = {"advantage": "reinforce_pp_baseline", "singleton": "zero"} if minus else {"advantage": "reinforce"}
            return fields | {"whiten": "tokens", "whiten_ddof": 0, "whiten_eps": 1e-8, "whiten_eps_in": "floor"}
        case "gae":
            return _gae(settings, where)
    raise UsageError(f"NeMo-RL's adv_estimator {estimator!r} is a rule that is not computed")


def _gdpo(settings: Settings, where: str) -> dict[str, Any]:
    weights = settings.items(f"{where}.reward_weights")
    if any(weight != 1 for weight in weights):
        raise UsageError(
            "NeMo-RL's reward_weights follow the names of the reward functions, which the settings do not hold",
            do="name a preset with --algorithm",
        )
    return {"whiten": "responses", "whiten_ddof": 1, "whiten_eps": 0.0, "whiten_eps_in": "deviation"}


def _gae(settings: Settings, where: str) -> dict[str, Any]:
    alpha = settings.number(f"{where}.length_adaptive_alpha", 0.0)
    lam = settings.optional(f"{where}.gae_lambda_policy")
    whitened = settings.flag(f"{where}.normalize_advantages", True)
    whiten = {"whiten": "tokens", "whiten_ddof": 1, "whiten_eps": 1e-8, "whiten_eps_in": "variance"}
    return {
        "advantage": "gae",
        "gamma": settings.number(f"{where}.gae_gamma"),
        "lam": settings.number(f"{where}.gae_lambda") if lam is None else lam,
        "observation": "skip",
        "terminal": "last-trained",
        "settings": {"length_adaptive_alpha": alpha} if alpha > 0 else {},
    } | (whiten if whitened else {})


def _loss(settings: Settings) -> dict[str, Any]:
    sequences = settings.flag("loss_fn.sequence_level_importance_ratios", False)
    token_mean = settings.flag("loss_fn.token_level_loss", True)
    fields: dict[str, Any] = {
        "aggregation": "token-mean" if token_mean else "seq-mean-token-mean",
        # It divides by the responses of the batch whose sample mask is 1, with or without a trained token.
        "count_empty": True,
    }
    if settings.flag("loss_fn.disable_ppo_ratio", False):
        return fields | {"loss": "reinforce"}
    low, high = settings.number("loss_fn.ratio_clip_min"), settings.number("loss_fn.ratio_clip_max")
    fields |= {"clip_low": low, "clip_high": high}
    if settings.flag("loss_fn.use_cispo", False):
        return fields | {"loss": "cispo", "clip_bounds": "around-one"}
    fields |= {"loss": "ppo_clip", "dual_clip": settings.optional("loss_fn.ratio_clip_c")}
    return fields | ({"ratio_level": "sequence"} if sequences else {})


def _kl(settings: Settings, estimator: str) -> dict[str, Any]:
    beta = settings.number("loss_fn.reference_policy_kl_penalty", 0.0)
    kind = settings.text("loss_fn.reference_policy_kl_type", "k3")
    in_reward = settings.flag("loss_fn.use_kl_in_reward", False)
    if beta and not in_reward and settings.flag("loss_fn.use_on_policy_kl_approximation", False):
        raise UsageError("NeMo-RL's use_on_policy_kl_approximation is not computed")
    fields: dict[str, Any] = {
        "kl_beta": 0.0 if in_reward else beta,
        "kl_estimator": kind,
        "kl_gradient": "score-weighted",
        "kl_input_clamp": settings.optional("loss_fn.kl_input_clamp_value", 20.0),
        "kl_output_clamp": settings.optional("loss_fn.kl_output_clamp_value", 10.0),
    }
    if estimator in ("gae", "reinforce_plus_plus"):  # the others know no KL term in the reward
        fields |= {
            "kl_in_reward": beta if in_reward else 0.0,
            # There calculate_kl has its own clamps, which are those of verl's low_var_kl.
            "kl_in_reward_estimator": "low_var_kl" if kind == "k3" else kind,
            "kl_in_reward_as": "token-rewards" if estimator == "gae" else "same-token",
        }
    return fields


def _rollout(settings: Settings) -> dict[str, Any]:
    if not settings.flag("loss_fn.use_importance_sampling_correction", False):
        return {}
    sequences = settings.flag("loss_fn.sequence_level_importance_ratios", False)
    fields: dict[str, Any] = {"rollout_weight": "sequence-product" if sequences else "token"}
    kind = settings.value("loss_fn.truncated_importance_sampling_type", None)
    high = settings.optional("loss_fn.truncated_importance_sampling_ratio")
    low = settings.optional("loss_fn.truncated_importance_sampling_ratio_min")
    match kind:
        case None:
            return fields
        case "tis":
            return fields | {"rollout_low": low, "rollout_high": high, "rollout_outside": "truncate"}
        case "icepop":
            return fields | {"rollout_low": low, "rollout_high": high, "rollout_outside": "mask"}
        case "seq-mask-tis":
            bounds = {"rollout_low": low, "rollout_high": high, "rollout_outside": "mask"}
            return fields | bounds | {"rollout_gate": "sequence-geo"}
    raise UsageError(f"NeMo-RL's truncated_importance_sampling_type={kind!r} is not computed")


def _updates(settings: Settings, top: str) -> int:
    responses = settings.number(f"{top}.num_prompts_per_step") * settings.number(f"{top}.num_generations_per_prompt")
    passes = settings.whole("ppo.ppo_epochs", 1) if top == "ppo" else 1
    return max(1, math.ceil(responses / settings.number("policy.train_global_batch_size"))) * passes
