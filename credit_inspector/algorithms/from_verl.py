"""The rule of a verl run, read from its Hydra configuration (``.hydra/config.yaml``, or what wandb keeps of it).

Checked against verl 0.9.1. A setting that a version does not have is a rule that it does not have.
"""

from __future__ import annotations

import math
from typing import Any, Final

from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.settings import Settings
from credit_inspector.errors import UsageError

_ACTOR: Final = "actor_rollout_ref.actor"

# verl's estimator (``core_algos.py``) → fields. GRPO, pass@k and GDPO say on their own how they use the deviation.
_ESTIMATORS: dict[str, dict[str, Any]] = {
    "gae": {"advantage": "gae"},
    "grpo": {"advantage": "grpo", "singleton": "reward"},
    "grpo_vectorized": {"advantage": "grpo", "singleton": "zero"},
    "grpo_passk": {"advantage": "grpo_passk", "singleton": "zero"},
    "gdpo": {"advantage": "gdpo", "singleton": "reward"},
    "rloo": {"advantage": "rloo", "singleton": "reward"},
    "rloo_vectorized": {"advantage": "rloo", "singleton": "zero"},
    "opo": {"advantage": "opo", "singleton": "reward"},
    "gpg": {"advantage": "gpg", "singleton": "reward"},
    "reinforce_plus_plus": {"advantage": "reinforce_pp"},
    "reinforce_plus_plus_baseline": {"advantage": "reinforce_pp_baseline", "singleton": "reward"},
    "remax": {"advantage": "remax"},
    "optimal_token_baseline": {"advantage": "otb", "singleton": "reward"},
    "tir_optimal_token_baseline": {"advantage": "tir_otb", "singleton": "reward"},
}
_WHITENED = ("gae", "gdpo", "reinforce_plus_plus", "reinforce_plus_plus_baseline")
_WITH_STD = ("grpo", "grpo_vectorized", "grpo_passk", "gdpo")
_FROM_TOKENS = ("gae", "reinforce_plus_plus", "remax", "optimal_token_baseline", "tir_optimal_token_baseline")


def recognises(settings: Settings) -> bool:
    """Whether these are verl's settings."""
    return f"{_ACTOR}.ppo_mini_batch_size" in settings and "algorithm.adv_estimator" in settings


def algorithm_of(settings: Settings) -> Algorithm:
    """The rule that verl's settings describe.

    Raises:
        UsageError: a setting changes the loss in a way that is not computed here.
    """
    if "rllm.algorithm.adv_estimator" in settings:
        raise UsageError("rLLM makes its own advantages beside verl's loss", do="name rllm-9beb6e0/grpo where it is the rule")
    estimator = settings.text("algorithm.adv_estimator")
    bypass = settings.flag("algorithm.rollout_correction.bypass_mode", False)
    mode = settings.text(f"{_ACTOR}.policy_loss.loss_mode", "vanilla")
    fields = _advantage(settings, estimator) | (_bypass(settings) if bypass else _loss(settings, mode))
    fields |= _weights(settings, "vanilla" if bypass else mode) | _kl(settings, estimator)
    if fields["kl_beta"] and fields["aggregation"] != settings.text(f"{_ACTOR}.loss_agg_mode", "token-mean"):
        raise UsageError(f"verl's loss_mode={mode!r} with a KL loss that is weighted by another loss_agg_mode is not computed")
    if not bypass:
        fields |= _rollout(settings, mode)
    name = "ppo" if estimator == "gae" else estimator
    return Algorithm.from_json(
        {
            "name": f"verl/{name}" if mode == "vanilla" else f"verl/{name}+{mode}",
            "source": "recorded",
            "entropy_bonus": settings.number(f"{_ACTOR}.entropy_coeff", 0.0),
            "temperature": settings.number("actor_rollout_ref.rollout.temperature", 1.0),
            "updates_per_batch": _updates(settings),
        }
        | fields
    )


def _advantage(settings: Settings, estimator: str) -> dict[str, Any]:
    if estimator not in _ESTIMATORS:
        raise UsageError(f"verl's adv_estimator={estimator!r} is a rule that is not computed")
    if settings.flag("algorithm.use_pf_ppo", False):
        raise UsageError("verl's use_pf_ppo is a rule that is not computed: it draws responses at random")
    fields: dict[str, Any] = {**_ESTIMATORS[estimator]}
    if estimator in _WITH_STD:
        normed = settings.flag("algorithm.norm_adv_by_std_in_grpo", True)
        fields |= {"std": "group" if normed else "none", "std_ddof": 1, "std_eps": 1e-6}
    if estimator in _WHITENED:
        fields |= {"whiten": "tokens", "whiten_ddof": 1, "whiten_eps": 1e-8, "whiten_eps_in": "variance"}
    if estimator in _FROM_TOKENS:
        fields |= {"observation": "skip", "terminal": "last"}
    if estimator in ("gae", "reinforce_plus_plus"):
        fields["gamma"] = settings.number("algorithm.gamma", 1.0)
    if estimator == "gae":
        fields["lam"] = settings.number("algorithm.lam", 1.0)
    if estimator == "gdpo":
        fields["reward_weights"] = _reward_weights(settings)
    if settings.flag("algorithm.filter_groups.enable", False):
        fields["drop_dead_groups"] = True
    return fields


def _reward_weights(settings: Settings) -> dict[str, float]:
    names, weights = settings.items("algorithm.gdpo_reward_keys"), settings.items("algorithm.gdpo_reward_weights")
    if weights and len(weights) != len(names):
        raise UsageError(f"{len(names)} gdpo_reward_keys and {len(weights)} gdpo_reward_weights", wanted="one for each")
    return {str(name): float(weight) for name, weight in zip(names, weights or [1.0] * len(names), strict=True)}


def _clip(settings: Settings) -> dict[str, Any]:
    """``clip_ratio_low`` and ``_high`` win over ``clip_ratio``, which alone changes nothing."""
    both = settings.number(f"{_ACTOR}.clip_ratio", 0.2)
    low, high = (settings.optional(f"{_ACTOR}.clip_ratio_{side}", both) for side in ("low", "high"))
    return {"clip_low": both if low is None else low, "clip_high": both if high is None else high}


def _loss(settings: Settings, mode: str) -> dict[str, Any]:
    """``policy_loss.loss_mode``: which of ``core_algos.py``'s losses, with what it reads of the actor's settings."""
    where = f"{_ACTOR}.policy_loss"
    clip, clamped = _clip(settings), {"log_ratio_clamp": 20.0}
    capped = clip | clamped | {"dual_clip": settings.optional(f"{_ACTOR}.clip_ratio_c")}
    own: dict[str, float] = {}
    if mode == "sapo":
        own = {name: settings.number(f"{_ACTOR}.{name}") for name in ("tau_pos", "tau_neg")}
    elif mode == "kl_cov":
        ratio, coef = settings.number(f"{where}.kl_cov_ratio", 0.0002), settings.number(f"{where}.ppo_kl_coef", 1.0)
        own = {"ratio": ratio, "coef": coef}
    elif mode == "dro":
        own = {"beta": settings.number(f"{where}.dro_beta")}
    losses: dict[str, dict[str, Any]] = {
        "vanilla": {"loss": "ppo_clip", **capped},
        "gspo": {"loss": "ppo_clip", "ratio_level": "sequence-token", "settings": {"log_ratio_max": 10.0}, **clip},
        "cispo": {"loss": "cispo", "clip_bounds": "around-one", **clip, **clamped},
        "dppo_tv": {"loss": "dppo_tv", **capped},
        "dppo_kl": {"loss": "dppo_kl", **capped},
        "geo_mean": {"loss": "gmpo", **clip},
        "sapo": {"loss": "sapo", "settings": own, **clamped},
        "gpg": {"loss": "reinforce"},
        "dro": {"loss": "dro", "settings": own},
        "kl_cov": {"loss": "kl_cov", "settings": own},
        "clip_cov": {"loss": "clip_cov", **clip},
    }
    if mode not in losses:
        raise UsageError(f"verl's loss_mode={mode!r} is a rule that is not computed")
    return losses[mode]


def _bypass(settings: Settings) -> dict[str, Any]:
    """Bypass mode: the ratio refers to the sampling engine's log-probs (``compute_policy_loss_bypass_mode``)."""
    where = "algorithm.rollout_correction"
    if settings.value(f"{where}.rollout_rs", None) is not None:
        raise UsageError("verl's bypass_mode with rollout_rs is a rule that is not computed")
    if settings.text(f"{where}.loss_type", "ppo_clip") == "ppo_clip":
        return _loss(settings, "vanilla") | {"ratio_from": "rollout"}
    if settings.value(f"{where}.rollout_is", None) is None:
        return {"loss": "reinforce"}
    low, high = _bounds(settings.value(f"{where}.rollout_is_threshold", 2.0))
    normalised = settings.flag(f"{where}.rollout_is_batch_normalize", False)
    if settings.text(f"{where}.rollout_is") != "token" or low is not None or normalised:
        raise UsageError("verl's bypass_mode with loss_type=reinforce is computed for token weights held from above only")
    bounds = {"clip_bounds": "absolute", "clip_low": 0.0, "clip_high": high}
    return {"loss": "cispo", "ratio_from": "rollout", "log_ratio_clamp": 20.0, **bounds}


def _rollout(settings: Settings, mode: str) -> dict[str, Any]:
    """``algorithm.rollout_correction`` (``rollout_corr_helper.py``), and ``tis_imp_ratio_cap`` of versions before it."""
    where = "algorithm.rollout_correction"
    fields: dict[str, Any] = {}
    cap = settings.optional(f"{_ACTOR}.tis_imp_ratio_cap")
    if settings.value("algorithm.rollout_is", None):
        raise UsageError("verl's algorithm.rollout_is is of a version whose rollout correction is not computed")
    if cap is not None and cap > 0:
        fields |= {"rollout_weight": "token", "rollout_high": cap, "rollout_outside": "truncate"}
    if settings.value(f"{where}.rollout_is", None) is not None:
        if mode == "geo_mean":
            raise UsageError("verl's loss_mode='geo_mean' with rollout_is is a rule that is not computed")
        low, high = _bounds(settings.value(f"{where}.rollout_is_threshold", 2.0))
        fields |= {
            "rollout_weight": {"token": "token", "sequence": "sequence-product"}[settings.text(f"{where}.rollout_is")],
            "rollout_low": low,
            "rollout_high": high,
            "rollout_outside": "truncate" if low is None else "mask",
            "rollout_normalize": settings.flag(f"{where}.rollout_is_batch_normalize", False),
        }
    if settings.value(f"{where}.rollout_rs", None) is not None:
        kinds = [kind.strip() for kind in str(settings.value(f"{where}.rollout_rs")).split(",") if kind.strip()]
        bounds = [each.strip() for each in str(settings.value(f"{where}.rollout_rs_threshold")).split(",")]
        bounds = bounds * len(kinds) if len(bounds) == 1 else bounds
        fields["rollout_reject"] = dict(zip(kinds, bounds, strict=True))
    return fields


def _bounds(threshold: Any) -> tuple[float | None, float]:
    """One number is the upper bound of TIS; ``lower_upper`` are those of IcePop."""
    low, _, high = str(threshold).rpartition("_")
    return (float(low) if low else None), float(high)


def _weights(settings: Settings, mode: str) -> dict[str, Any]:
    aggregation = settings.text(f"{_ACTOR}.loss_agg_mode", "token-mean")
    if mode in ("sapo", "geo_mean"):
        aggregation = "seq-mean-token-mean"
    fields: dict[str, Any] = {"aggregation": aggregation, "count_empty": True}
    if aggregation == "seq-mean-token-sum-norm":
        factor = settings.optional(f"{_ACTOR}.loss_scale_factor")
        fields |= {"horizon_is_width": True} if factor is None else {"horizon": factor}
    return fields


def _kl(settings: Settings, estimator: str) -> dict[str, Any]:
    in_loss, in_reward = settings.flag(f"{_ACTOR}.use_kl_loss", False), settings.flag("algorithm.use_kl_in_reward", False)
    kind, gradient = _estimator(settings.text(f"{_ACTOR}.kl_loss_type", "low_var_kl"))
    reward_kind, _ = _estimator(settings.text("algorithm.kl_penalty", "kl"))
    fields: dict[str, Any] = {
        "kl_beta": settings.number(f"{_ACTOR}.kl_loss_coef", 0.001) if in_loss else 0.0,
        "kl_estimator": kind,
        "kl_gradient": gradient,
    }
    if estimator == "gdpo":  # it reads each function's own reward, which the KL term never enters
        return fields
    if in_reward and settings.text("algorithm.kl_ctrl.type", "fixed") != "fixed":
        raise UsageError("verl's kl_ctrl.type: an adaptive KL coefficient changes from step to step, which is not computed")
    return fields | {
        "kl_in_reward": settings.number("algorithm.kl_ctrl.kl_coef") if in_reward else 0.0,
        "kl_in_reward_estimator": reward_kind,
        "kl_in_reward_as": "token-rewards" if estimator in _FROM_TOKENS else "scalar",
    }


def _estimator(kind: str) -> tuple[str, str]:
    """``kl_penalty`` in ``core_algos.py``; a plus is the gradient of k2 under another value."""
    plain = kind.removesuffix("+")
    names = {"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "low_var_kl", "k3": "low_var_kl"}
    if plain not in names:
        raise UsageError(f"verl's KL estimator {kind!r} is not computed")
    straight = kind.endswith("+") and names[plain] != "k2"
    return names[plain], "straight-through" if straight else "autograd"


def _updates(settings: Settings) -> int:
    """``ppo_mini_batch_size`` counts prompts, as ``train_batch_size`` does."""
    prompts, mini = settings.number("data.train_batch_size"), settings.number(f"{_ACTOR}.ppo_mini_batch_size")
    return max(1, math.ceil(prompts / mini)) * settings.whole(f"{_ACTOR}.ppo_epochs", 1)
