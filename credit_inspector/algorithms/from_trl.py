"""The rule of a TRL trainer or its configuration: GRPO, RLOO and the PPO of versions up to 1.12.

Read off a live trainer, off its configuration object, or out of a file (what wandb keeps of it). Checked against TRL
1.16.0, and 1.12.0 for PPO and GSPO-token. A setting that a version does not have is a rule that it does not have: the
neutral value holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from credit_inspector.algorithm import Aggregation, Algorithm, KLGradient
from credit_inspector.algorithms.settings import ABSENT, Settings
from credit_inspector.errors import UsageError

# ``num_items_in_batch`` counts the trained tokens of the generation batch over all processes, and the loss divides by
# its share for one accumulation window: with one optimizer step per generation batch that is 1 / all its trained
# tokens.
_AGGREGATIONS: dict[str, Aggregation] = {
    "grpo": "seq-mean-token-mean",
    "sapo": "seq-mean-token-mean",
    "bnpo": "token-mean",
    "dapo": "token-mean",
    "cispo": "token-mean",
    "vespo": "token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
    "luspo": "luspo",
}

_LEVELS: Final = {"token": "token", "sequence": "sequence", "sequence_token": "sequence-token"}

_MODES: Final = {
    "token_truncate": ("token", "truncate"),
    "token_mask": ("token", "mask"),
    "sequence_truncate": ("sequence-product", "truncate"),
    "sequence_mask": ("sequence-product", "mask"),
}

_VESPO: Final = ("k_pos", "lambda_pos", "k_neg", "lambda_neg")

# Trainers under trl.experimental with a loss of their own that is known here.
_KNOWN_EXPERIMENTS: Final = ("ppo", "gspo_token", "gmpo")


def recognises(settings: Settings) -> bool:
    """Whether these are the settings of one of TRL's trainers (ms-swift's have the same names and another meaning)."""
    if "rlhf_type" in settings or "rollout_batch_size" in settings:
        return False
    ppo = "num_ppo_epochs" in settings and "cliprange" in settings
    return ppo or ("num_generations" in settings and "epsilon" in settings and "beta" in settings)


def algorithm_of(trainer: Any) -> Algorithm:
    """The rule that a TRL trainer, its configuration, a mapping of it or anything with their attributes optimises.

    Raises:
        UsageError: a setting is missing, or changes the loss in a way that is not computed here.
    """
    source = _Source(trainer)
    experiment = _experiment(trainer)
    if experiment not in ("", *_KNOWN_EXPERIMENTS):
        raise UsageError(f"TRL's experimental {type(trainer).__name__} is a rule that is not computed")
    if source.get("num_ppo_epochs", None) is not None:
        kind, fields = "ppo", _ppo(source)
    elif source.get("loss_type", None) is None and source.get("normalize_advantages", None) is not None:
        kind, fields = "rloo", _rloo(source)
    else:
        kind, fields = _grpo(source, gmpo=experiment == "gmpo")
    return Algorithm.from_json({"name": f"{_trl_name(trainer)}/{kind}", "source": "recorded", **fields})


def _grpo(source: _Source, *, gmpo: bool) -> tuple[str, dict[str, Any]]:
    loss_type = str(source.get("loss_type"))
    if loss_type not in _AGGREGATIONS:
        raise UsageError(f"TRL's loss_type={loss_type!r} is a rule that is not computed")
    level = str(source.get("importance_sampling_level", "token"))
    if level not in _LEVELS:
        raise UsageError(f"TRL's importance_sampling_level={level!r} is a rule that is not computed")
    fields = _advantages(source) | {
        "mask_truncated": source.flag("mask_truncated_completions"),
        "kl_beta": float(source.get("beta")),
        "kl_estimator": "k3",
        "kl_gradient": "autograd" if gmpo else _kl_gradient(source),
        "entropy_bonus": 0.0 if gmpo else float(source.get("entropy_coef", 0.0)),
        "temperature": float(source.get("temperature")),
        "updates_per_batch": _updates(source),
    }
    if gmpo:
        return "gmpo", fields | _gmpo(source)
    fields |= _loss(source, loss_type, level) | _weights(source, loss_type) | _left_out(source) | _rollout(source, loss_type)
    fields["settings"] = fields.get("settings", {}) | _beyond_fields(source, fields)
    named = {("grpo", "sequence"): "gspo", ("grpo", "sequence_token"): "gspo_token", ("luspo", "sequence"): "luspo"}
    plain = loss_type if level == "token" else f"{loss_type}+{level}"
    return named.get((loss_type, level), plain), fields


def _advantages(source: _Source) -> dict[str, Any]:
    fields = {"std": _std(source.get("scale_rewards")), "std_ddof": 1, "std_eps": 1e-4, "singleton": "zero"}
    if source.get("multi_objective_aggregation", "sum_then_normalize") == "sum_then_normalize":
        return {"advantage": "grpo", **fields}
    # scale_rewards is not looked at there: each function over its group, then the sum over responses.
    whiten = {"whiten": "responses", "whiten_ddof": 1, "whiten_eps": 1e-4, "whiten_eps_in": "deviation"}
    return fields | {"advantage": "gdpo", "std": "group", "reward_weights": _reward_weights(source), **whiten}


def _reward_weights(source: _Source) -> dict[str, float]:
    """By name, as a live trainer has them; a configuration has the weights alone, so that they have to be equal."""
    weights = _plain(source.get("reward_weights", None))
    names = source.get("reward_func_names", None)
    if weights is None or (names is None and all(weight == 1 for weight in weights)):
        return {}
    if names is None:
        raise UsageError(
            "TRL's reward_weights stand there without the names of the reward functions",
            wanted="the trainer itself",
            do="record it with credit_inspector.attach",
        )
    return {str(name): float(weight) for name, weight in zip(names, weights, strict=True)}


def _loss(source: _Source, loss_type: str, level: str) -> dict[str, Any]:
    low, high = _bounds(source)
    ratio = {"ratio_level": _LEVELS[level]}
    match loss_type:
        case "cispo":
            return ratio | {"loss": "cispo", "clip_bounds": "absolute", "clip_low": 0.0, "clip_high": high}
        case "sapo":
            taus = {f"tau_{side}": float(source.get(f"sapo_temperature_{side}")) for side in ("pos", "neg")}
            return ratio | {"loss": "sapo", "settings": taus}
        case "vespo":  # its own product of ratios, whatever the level says
            return {"loss": "vespo", "settings": {name: float(source.get(f"vespo_{name}")) for name in _VESPO}}
    delta = source.get("delta", None)
    clip = {"clip_low": low, "clip_high": high, "delta": None if delta is None else float(delta)}
    return ratio | {"loss": "ppo_clip", **clip}


def _gmpo(source: _Source) -> dict[str, Any]:
    """``trl.experimental.gmpo``: bounds on the log-ratio, the mean over responses, and none of GRPO's other settings."""
    low, high = _bounds(source)
    if float(source.get("top_entropy_quantile", 1.0)) < 1:
        raise UsageError("TRL's gmpo with top_entropy_quantile (a mean over some tokens) is a rule that is not computed")
    return {
        "loss": "gmpo",
        "clip_low": low,
        "clip_high": high,
        "aggregation": "seq-mean-token-mean",
        "count_empty": True,
    }


def _weights(source: _Source, loss_type: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"aggregation": _AGGREGATIONS[loss_type], "count_empty": True}
    if loss_type == "dr_grpo":
        length = source.get("max_completion_length", None)
        fields["horizon"] = float(length) if length else None
    if loss_type == "bnpo":
        size = source.get("per_device_train_batch_size", None)
        fields["micro_batch"] = int(size) if size else None
    return fields


def _left_out(source: _Source) -> dict[str, Any]:
    threshold = source.get("off_policy_mask_threshold", None)
    return {
        "top_entropy_quantile": float(source.get("top_entropy_quantile", 1.0)),
        "off_policy_mask": None if threshold is None else float(threshold),
    }


def _beyond_fields(source: _Source, fields: Mapping[str, Any]) -> dict[str, float]:
    """Where the entropy bonus is a mean of its own, and the drift of a response starts at vLLM's log-probs."""
    own = {"entropy_token_mean": 1.0} if fields["entropy_bonus"] else {}
    from_engine = fields["off_policy_mask"] is not None and source.flag("use_vllm")
    return own | ({"off_policy_from_rollout": 1.0} if from_engine else {})


def _rollout(source: _Source, loss_type: str) -> dict[str, Any]:
    """The log-probs of vLLM against the trainer's; versions without a mode held each token's weight below ``…_cap``."""
    if not (source.flag("use_vllm") and source.flag("vllm_importance_sampling_correction")):
        return {}
    if loss_type == "vespo":
        raise UsageError(
            "TRL's vespo with vllm_importance_sampling_correction (inside its weight) is a rule that is not computed"
        )
    mode = str(source.get("vllm_importance_sampling_mode", "token_truncate"))
    if mode not in _MODES:
        raise UsageError(f"TRL's vllm_importance_sampling_mode={mode!r} is a rule that is not computed")
    cap = source.get("vllm_importance_sampling_cap", None)
    high = source.get("vllm_importance_sampling_clip_max", cap) if cap is None else cap
    low = source.get("vllm_importance_sampling_clip_min", None)
    weight, outside = _MODES[mode]
    return {
        "rollout_weight": weight,
        "rollout_low": None if low is None else float(low),
        "rollout_high": None if high is None else float(high),
        "rollout_outside": outside,
    }


def _rloo(source: _Source) -> dict[str, Any]:
    if source.get("reward_clip_range", None) is not None:
        raise UsageError("TRL's reward_clip_range (rewards are held within bounds before the baseline) is not computed")
    low, high = _bounds(source)
    fields: dict[str, Any] = {
        "advantage": "rloo",
        "singleton": "zero",
        "kl_in_reward": float(source.get("beta")),
        "kl_in_reward_estimator": "k1",
        "kl_in_reward_as": "scalar",
        "mask_truncated": source.flag("mask_truncated_completions"),
        "loss": "ppo_clip",
        "ratio_level": "product",
        "clip_low": low,
        "clip_high": high,
        "aggregation": "seq-mean-token-mean",
        "count_empty": True,
        "kl_beta": 0.0,
        "temperature": float(source.get("temperature")),
        "updates_per_batch": _updates(source),
    }
    if source.flag("normalize_advantages"):
        fields |= {"whiten": "responses", "whiten_ddof": 1, "whiten_eps": 1e-4, "whiten_eps_in": "deviation"}
    return fields


def _ppo(source: _Source) -> dict[str, Any]:
    """``trl/experimental/ppo`` of 1.9 to 1.12, and ``trl/trainer/ppo_trainer.py`` before."""
    clip = float(source.get("cliprange"))
    return {
        "advantage": "gae",
        "gamma": float(source.get("gamma")),
        "lam": float(source.get("lam")),
        "observation": "skip",
        "terminal": "after-last",
        "whiten": "tokens",
        "whiten_ddof": 1,
        "whiten_eps": 1e-8,
        "whiten_eps_in": "variance",
        "whiten_rewards": source.flag("whiten_rewards"),
        "kl_in_reward": float(source.get("kl_coef")),
        "kl_in_reward_estimator": str(source.get("kl_estimator", "k1")),
        "kl_in_reward_as": "token-rewards",
        "loss": "ppo_clip",
        "clip_low": clip,
        "clip_high": clip,
        "aggregation": "token-mean",
        "count_empty": True,
        "micro_batch": int(source.get("per_device_train_batch_size")),
        "kl_beta": 0.0,
        "temperature": float(source.get("temperature")),
        "updates_per_batch": int(source.get("num_ppo_epochs")) * int(source.get("num_mini_batches", 1)),
    }


def _bounds(source: _Source) -> tuple[float, float]:
    """The config says ``epsilon``, the trainer ``epsilon_low``; an ``epsilon_high`` of ``None`` is the lower one."""
    low = source.get("epsilon_low", None)
    low = float(source.get("epsilon") if low is None else low)
    high = source.get("epsilon_high", None)
    return low, low if high is None else float(high)


def _std(scale_rewards: Any) -> str:
    return {True: "group", False: "none"}.get(scale_rewards, str(scale_rewards))


def _kl_gradient(source: _Source) -> KLGradient:
    return "ratio-weighted" if source.flag("use_bias_correction_kl") else "autograd"


def _updates(source: _Source) -> int:
    """Optimizer steps on one generation batch; 1 exactly where TRL takes the current log-probs for the old ones."""
    accumulated = int(source.get("gradient_accumulation_steps", 1))
    steps = source.get("steps_per_generation", None) or accumulated
    passes = int(steps) * int(source.get("num_iterations", 1))
    return 1 if accumulated % passes == 0 else max(2, math.ceil(passes / accumulated))


class _Source:
    """Settings by name: a mapping's, or attributes of a trainer and of its ``args``."""

    def __init__(self, trainer: Any) -> None:
        self._kind = type(trainer).__name__
        self._settings = Settings(trainer) if isinstance(trainer, Mapping) else trainer
        self._holders = () if isinstance(self._settings, Settings) else (trainer, getattr(trainer, "args", None))

    def get(self, name: str, default: Any = ABSENT) -> Any:
        """The setting; ``default`` where there is none."""
        if isinstance(self._settings, Settings) and (default is not ABSENT or name in self._settings):
            return self._settings.value(name, default)
        for holder in self._holders:
            if (value := getattr(holder, name, ABSENT)) is not ABSENT:
                return value
        if default is ABSENT:
            raise UsageError(f"{self._kind} has no {name}", wanted="a TRL GRPOTrainer or GRPOConfig")
        return default

    def flag(self, name: str) -> bool:
        """Whether something is on; off where there is no such setting."""
        value = self.get(name, False)
        return value.lower() == "true" if isinstance(value, str) else bool(value)


def _plain(values: Any) -> list[float] | None:
    """Weights from a tensor, a list or its text."""
    if values is None:
        return None
    if isinstance(values, str):
        return Settings({"weights": values}).items("weights")
    return list(values.tolist() if hasattr(values, "tolist") else values)


def _experiment(trainer: Any) -> str:
    """The folder of ``trl.experimental`` that the trainer's class is from; empty for the others."""
    modules = (kind.__module__ for kind in type(trainer).__mro__)
    return next((module.split(".")[2] for module in modules if module.startswith("trl.experimental.")), "")


def _trl_name(trainer: Any) -> str:
    if not any(kind.__module__.partition(".")[0] == "trl" for kind in type(trainer).__mro__):
        return "trl"
    try:
        return f"trl-{version('trl')}"
    except PackageNotFoundError:
        return "trl"
