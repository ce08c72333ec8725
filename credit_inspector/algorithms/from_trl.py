"""The rule of a TRL ``GRPOTrainer`` or ``GRPOConfig``, read from its attributes.

Checked against TRL 1.16.0. A setting that a version does not have is a rule that it does not have: the neutral value
holds.
"""

from __future__ import annotations

import math
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from credit_inspector.algorithm import Aggregation, Algorithm, KLGradient
from credit_inspector.errors import UsageError

# ``num_items_in_batch`` counts the trained tokens of the generation batch over all processes, and the loss divides by
# its share for one accumulation window: with one optimizer step per generation batch that is 1 / all its trained
# tokens.
_AGGREGATIONS: dict[str, Aggregation] = {
    "grpo": "seq-mean-token-mean",
    "bnpo": "token-mean",
    "dapo": "token-mean",
    "cispo": "token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
    "luspo": "luspo",
}

_ABSENT: Any = object()


def algorithm_of(trainer: Any) -> Algorithm:
    """The rule that a TRL ``GRPOTrainer``, a ``GRPOConfig`` or anything with their attributes optimises.

    Rewards that are normalised one by one (``normalize_then_sum``) name the estimator ``gdpo``: while there is none of
    that name, advantages are those recorded.

    Raises:
        UsageError: an attribute is missing, or a setting changes the loss in a way that is not computed here.
    """
    loss_type = str(_get(trainer, "loss_type"))
    if problem := _not_computed(trainer, loss_type):
        raise UsageError(f"TRL's {problem} is a rule that is not computed")
    low, high = _bounds(trainer)
    cispo = loss_type == "cispo"
    summed = _get(trainer, "multi_objective_aggregation", "sum_then_normalize") == "sum_then_normalize"
    length = _get(trainer, "max_completion_length", None)
    return Algorithm.from_json(
        {
            "name": f"{_trl_name(trainer)}/{loss_type}",
            "source": "recorded",
            "advantage": "grpo" if summed else "gdpo",
            "std": _std(_get(trainer, "scale_rewards")),
            "std_ddof": 1,
            "std_eps": 1e-4,
            "singleton": "zero",
            "loss": "cispo" if cispo else "ppo_clip",
            "clip_low": 0.0 if cispo else low,
            "clip_high": high,
            "clip_bounds": "absolute" if cispo else "around-one",
            "delta": None if cispo else _get(trainer, "delta", None),
            "aggregation": _AGGREGATIONS[loss_type],
            "horizon": float(length) if loss_type == "dr_grpo" and length else None,
            "count_empty": True,
            "kl_beta": float(_get(trainer, "beta")),
            "kl_estimator": "k3",
            "kl_gradient": _kl_gradient(trainer),
            "entropy_bonus": float(_get(trainer, "entropy_coef", 0.0)),
            "temperature": float(_get(trainer, "temperature")),
            "updates_per_batch": _updates(trainer),
        }
    )


def _not_computed(trainer: Any, loss_type: str) -> str:
    level = _get(trainer, "importance_sampling_level", "token")
    if level != "token":
        return f"importance_sampling_level={level!r} (one ratio for a whole response)"
    if loss_type not in _AGGREGATIONS:
        return f"loss_type={loss_type!r}"
    if _get(trainer, "top_entropy_quantile", 1.0) < 1:
        return "top_entropy_quantile below 1 (only high-entropy tokens are trained)"
    if _get(trainer, "off_policy_mask_threshold", None) is not None:
        return "off_policy_mask_threshold (drops whole responses by their drift)"
    if _get(trainer, "use_vllm", False) and _get(trainer, "vllm_importance_sampling_correction", False):
        return "vllm_importance_sampling_correction (weights by the engine's log-probs)"
    return ""


def _bounds(trainer: Any) -> tuple[float, float]:
    """The config says ``epsilon``, the trainer ``epsilon_low``; an ``epsilon_high`` of ``None`` is the lower one."""
    low = _get(trainer, "epsilon_low", None)
    low = float(_get(trainer, "epsilon") if low is None else low)
    high = _get(trainer, "epsilon_high", None)
    return low, low if high is None else float(high)


def _std(scale_rewards: Any) -> str:
    return {True: "group", False: "none"}.get(scale_rewards, str(scale_rewards))


def _kl_gradient(trainer: Any) -> KLGradient:
    return "ratio-weighted" if _get(trainer, "use_bias_correction_kl", False) else "autograd"


def _updates(trainer: Any) -> int:
    """Optimizer steps on one generation batch; 1 exactly where TRL takes the current log-probs for the old ones."""
    accumulated = int(_get(trainer, "gradient_accumulation_steps", 1))
    steps = _get(trainer, "steps_per_generation", None) or accumulated
    passes = int(steps) * int(_get(trainer, "num_iterations", 1))
    return 1 if accumulated % passes == 0 else max(2, math.ceil(passes / accumulated))


def _get(trainer: Any, name: str, default: Any = _ABSENT) -> Any:
    for holder in (trainer, getattr(trainer, "args", None)):
        if (value := getattr(holder, name, _ABSENT)) is not _ABSENT:
            return value
    if default is _ABSENT:
        raise UsageError(f"{type(trainer).__name__} has no {name}", wanted="a TRL GRPOTrainer or GRPOConfig")
    return default


def _trl_name(trainer: Any) -> str:
    if not any(kind.__module__.partition(".")[0] == "trl" for kind in type(trainer).__mro__):
        return "trl"
    try:
        return f"trl-{version('trl')}"
    except PackageNotFoundError:
        return "trl"
