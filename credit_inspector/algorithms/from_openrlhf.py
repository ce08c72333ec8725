"""The rule of an OpenRLHF run, read from the arguments of ``openrlhf.cli.train_ppo_ray``.

OpenRLHF writes no configuration of its own: wandb keeps the arguments, each group of them as the text of a namespace.
Checked against OpenRLHF 0.11.2, whose names have dots (``algo.advantage.estimator``).
"""

from __future__ import annotations

import math
from typing import Any, Final

from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.settings import Settings
from credit_inspector.errors import UsageError

_GROUP_NORM = {"std": "group", "std_ddof": 1, "std_eps": 1e-9}

# ``experience_maker.py``, compute_advantages_and_returns. Rewards of all but ``gae`` and ``reinforce`` are compared first
# and stand on the last trained token then; without discount every token gets the response's number.
_ESTIMATORS: dict[str, dict[str, Any]] = {
    "gae": {"advantage": "gae"},
    "reinforce": {"advantage": "reinforce_pp"},
    "rloo": {"advantage": "rloo", "singleton": "zero"},
    "reinforce_baseline": {"advantage": "reinforce_pp_baseline", "baseline": "group", "singleton": "zero"},
    "group_norm": {"advantage": "grpo", "baseline": "group", "singleton": "zero", **_GROUP_NORM},
    "dr_grpo": {"advantage": "grpo", "baseline": "group", "std": "none", "singleton": "zero"},
    "flash_reinforce": {"advantage": "grpo", "baseline": "batch", "std": "none"},
}
_WHITENED = ("gae", "reinforce", "reinforce_baseline")
_FROM_TOKENS = ("gae", "reinforce")

_IS: Final = "algo.advantage.is_correction"


def recognises(settings: Settings) -> bool:
    """Whether these are OpenRLHF's arguments."""
    return "algo.advantage.estimator" in settings and "actor.eps_clip" in settings


def algorithm_of(settings: Settings) -> Algorithm:
    """The rule that OpenRLHF's arguments describe.

    Raises:
        UsageError: an argument changes the loss in a way that is not computed here.
    """
    estimator = settings.text("algo.advantage.estimator")
    if estimator not in _ESTIMATORS:
        raise UsageError(f"OpenRLHF's estimator {estimator!r} is a rule that is not computed")
    gspo = settings.text("actor.policy_loss_type", "ppo") == "gspo"
    fields = _advantage(settings, estimator) | _loss(settings, gspo) | _kl(settings, estimator, gspo)
    if not gspo:
        fields |= _rollout(settings)
    _say_what_clips_rewards(settings)
    bonus = settings.optional("actor.entropy_coef") or 0.0
    return Algorithm.from_json(
        {
            "name": f"openrlhf/{'gspo' if gspo else 'ppo' if estimator == 'gae' else estimator}",
            "source": "recorded",
            "entropy_bonus": bonus,
            "settings": {"entropy_token_mean": 1.0} if bonus else {},
            "temperature": settings.number("rollout.temperature", 1.0),
            "updates_per_batch": _updates(settings),
        }
        | fields
    )


def _advantage(settings: Settings, estimator: str) -> dict[str, Any]:
    fields = {**_ESTIMATORS[estimator]}
    if estimator in _FROM_TOKENS:
        fields |= {"gamma": settings.number("algo.advantage.gamma", 1.0), "observation": "count", "terminal": "last-trained"}
    if estimator == "gae":
        fields["lam"] = settings.number("algo.advantage.lambd", 1.0)
    if estimator in _WHITENED:
        if settings.flag("algo.advantage.no_std_norm", False):
            raise UsageError("OpenRLHF's no_std_norm (advantages get mean 0 and keep their deviation) is not computed")
        fields |= {"whiten": "tokens", "whiten_ddof": 0, "whiten_eps": 1e-8, "whiten_eps_in": "floor"}
    if settings.flag("algo.dynamic_filtering_enable", False):
        fields["drop_dead_groups"] = True
    return fields


def _loss(settings: Settings, gspo: bool) -> dict[str, Any]:
    both = settings.number("actor.eps_clip")
    low, high = settings.items("actor.eps_clip_low_high") or [both, both]
    aggregation = settings.text("actor.loss_agg_mode", "token-mean")
    fields = {"loss": "ppo_clip", "clip_low": low, "clip_high": high, "dual_clip": settings.optional("actor.dual_clip")}
    if gspo:
        # Its ratio refers to the sampling engine wherever the correction is on.
        rollout = settings.text(f"{_IS}_level", "off") != "off"
        level = {"ratio_level": "sequence", "ratio_from": "rollout" if rollout else "old"}
        return fields | level | {"aggregation": "seq-mean-token-mean", "count_empty": True}
    return fields | {"log_ratio_clamp": 20.0, "aggregation": aggregation, "count_empty": True}


def _rollout(settings: Settings) -> dict[str, Any]:
    """``PolicyLoss.forward``: a kept token has its own weight, whatever the gate looks at."""
    level = settings.text(f"{_IS}_level", "off")
    if level == "off":
        return {}
    gating, mode = settings.text(f"{_IS}_gating", "ratio"), settings.text(f"{_IS}_mode", "mask")
    bounds = settings.items(f"{_IS}_threshold")
    low, high = bounds if len(bounds) == 2 else (0.0, *bounds)
    gates = {
        ("ratio", "token"): "weight",
        ("ratio", "seq"): "sequence-geo",
        ("binary_kl", "token"): "token-binary-kl",
        ("binary_kl", "seq"): "sequence-binary-kl",
        ("tv", "token"): "token-tv",
        ("tv", "seq"): "sequence-tv",
    }
    if (gating, level) not in gates:
        raise UsageError(f"OpenRLHF's is_correction_gating={gating!r} is not computed")
    return {
        "rollout_weight": "token",
        "rollout_gate": gates[gating, level],
        "rollout_low": float(low),
        "rollout_high": float(high),
        "rollout_outside": "truncate" if mode == "clip" else "mask",
    }


def _kl(settings: Settings, estimator: str, gspo: bool) -> dict[str, Any]:
    beta = settings.number("algo.kl.init_coef", 0.01)
    if beta and settings.value("algo.kl.target", None) is not None:
        raise UsageError("OpenRLHF's algo.kl.target: an adaptive KL coefficient changes from step to step")
    kind = settings.text("algo.kl.estimator", "k1")
    unbiased = settings.flag("algo.kl.unbiased_gradient", False)
    in_loss = settings.flag("algo.kl.use_loss", False)
    if in_loss and beta and (gspo or settings.text("actor.loss_agg_mode", "token-mean") != "token-mean"):
        raise UsageError("OpenRLHF's KL loss is a mean over tokens beside a policy loss over responses, which is not computed")
    return {
        "kl_beta": beta if in_loss else 0.0,
        "kl_estimator": kind,
        "kl_gradient": "ratio-capped" if unbiased else "autograd",
        "kl_output_clamp": None if unbiased else 10.0,
        "kl_in_reward": 0.0 if in_loss else max(beta, 0.0),
        "kl_in_reward_estimator": kind,
        "kl_in_reward_as": "token-rewards" if estimator in _FROM_TOKENS else "to-go",
    }


def _say_what_clips_rewards(settings: Settings) -> None:
    if bounds := settings.items("reward.clip_range"):
        low, high = bounds
        settings.note(f"OpenRLHF holds rewards within reward.clip_range ({low:g} to {high:g}), which is not taken into account")


def _updates(settings: Settings) -> int:
    responses = settings.number("rollout.batch_size") * settings.number("rollout.n_samples_per_prompt", 1)
    per_update = settings.number("train.batch_size")
    return max(1, math.ceil(responses / per_update)) * settings.whole("train.max_epochs", 1)
