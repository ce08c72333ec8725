"""The rule of an open-instruct GRPO run (``grpo_fast.py``), read from its arguments as wandb keeps them.

Checked against commit e6c3044: ``grpo_utils.py`` and ``data_loader.py``.
"""

from __future__ import annotations

from typing import Any

from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.settings import Settings
from credit_inspector.errors import UsageError


def recognises(settings: Settings) -> bool:
    """Whether these are open-instruct's arguments."""
    return "num_samples_per_prompt_rollout" in settings and "clip_higher" in settings


def algorithm_of(settings: Settings) -> Algorithm:
    """The rule that open-instruct's arguments describe.

    Raises:
        UsageError: an argument changes the loss in a way that is not computed here.
    """
    scaled = settings.text("advantage_normalization_type", "centered") == "standard"
    fields = _loss(settings) | _weights(settings) | _kl(settings) | _rollout(settings)
    return Algorithm.from_json(
        {
            "name": f"open-instruct/{settings.text('loss_fn', 'dapo')}",
            "source": "recorded",
            "advantage": "grpo",
            "baseline": "group",
            "std": "group" if scaled else "none",
            "std_ddof": 0,
            "std_eps": 1e-8,
            "singleton": "zero",
            "drop_dead_groups": settings.flag("filter_zero_std_samples", True),
            "mask_truncated": settings.flag("mask_truncated_completions", False),
            "temperature": settings.number("temperature", 1.0),
            "updates_per_batch": settings.whole("num_mini_batches", 1) * settings.whole("num_epochs", 1),
        }
        | fields
    )


def _loss(settings: Settings) -> dict[str, Any]:
    rollout = {"ratio_from": "rollout" if settings.flag("use_vllm_logprobs", False) else "old"}
    low, high = settings.number("clip_lower"), settings.number("clip_higher")
    kind = settings.text("loss_fn", "dapo")
    if kind == "cispo":
        return rollout | {"loss": "cispo", "clip_bounds": "absolute", "clip_low": 0.0, "clip_high": 1 + high}
    if kind != "dapo":
        raise UsageError(f"open-instruct's loss_fn={kind!r} is a rule that is not computed")
    return rollout | {"loss": "ppo_clip", "clip_low": low, "clip_high": high}


def _weights(settings: Settings) -> dict[str, Any]:
    denominator = settings.value("loss_denominator", "token")
    if denominator != "token":
        # One constant under the sum of all tokens.
        constant = settings.number("loss_denominator")
        return {"aggregation": "token-mean", "batch_tokens": constant, "count_empty": True}
    return {"aggregation": "token-mean", "count_empty": True}


def _kl(settings: Settings) -> dict[str, Any]:
    loaded = settings.flag("load_ref_policy", True)
    number = settings.whole("kl_estimator", 2)
    beta = settings.number("beta", 0.0) if loaded else 0.0
    if beta and number == 3:
        raise UsageError("open-instruct's kl_estimator=3 (the ratio times the distance) is not computed")
    kind = ("k1", "k2", "k3", "k3")[number]
    return {"kl_beta": beta, "kl_estimator": kind, "kl_gradient": "autograd", "kl_input_clamp": 40.0}


def _rollout(settings: Settings) -> dict[str, Any]:
    """``compute_rho_correction``: ρ is the engine's weight; a bound of 0 is off, and masks are looked at before the clamp."""
    if not settings.flag("use_rho_correction", False):
        return {}
    masked = settings.number("rho_mask_lower_bound", 0.0) or settings.number("rho_mask_upper_bound", 0.0)
    if masked:
        raise UsageError("open-instruct's rho_mask bounds (a mask beside a clamp) are not computed")
    sequence = settings.flag("rho_mask_sequence_level", False)
    return {
        "rollout_weight": "sequence-geo" if sequence else "token",
        "rollout_low": settings.number("rho_clamp_lower_bound", 0.0) or None,
        "rollout_high": settings.number("rho_clamp_upper_bound", 0.0) or None,
        "rollout_outside": "truncate",
    }
