"""The rule of a run of the Tinker cookbook's RL loop, read from the ``config.json`` in its log folder.

Checked against commit 9dfcc3a: ``tinker_cookbook/rl/train.py`` and ``rl/data_processing.py``; the losses are those of the
service (``tutorials/202_loss_functions.py``).
"""

from __future__ import annotations

from typing import Any, Final

from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.settings import Settings
from credit_inspector.errors import UsageError

# The service's own bounds on the ratio where loss_fn_config names none.
_BOUNDS: Final = {"ppo": (0.8, 1.2), "cispo": (0.0, 4.0)}

# importance_sampling has none.
_NO_BOUND: Final = 1e9


def recognises(settings: Settings) -> bool:
    """Whether these are the cookbook's settings."""
    return all(name in settings for name in ("loss_fn", "num_substeps", "remove_constant_reward_groups"))


def algorithm_of(settings: Settings) -> Algorithm:
    """The rule that the cookbook's settings describe.

    Raises:
        UsageError: a setting changes the loss in a way that is not computed here.
    """
    if settings.number("kl_penalty_coef", 0.0):
        raise UsageError("Tinker's kl_penalty_coef (each token's KL against the batch's mean KL) is not computed")
    kind = settings.text("loss_fn")
    return Algorithm.from_json(
        {
            "name": f"tinker-cookbook/{kind}",
            "source": "recorded",
            "advantage": "grpo",
            "baseline": "group",
            "std": "none",
            "singleton": "zero",
            "drop_dead_groups": settings.flag("remove_constant_reward_groups", False),
            # The ratio is that of the trained policy to the one that sampled.
            "ratio_from": "rollout",
            "aggregation": "token-sum",
            "count_empty": True,
            "kl_beta": 0.0,
            "temperature": settings.number("temperature", 1.0),
            "updates_per_batch": settings.whole("num_substeps", 1),
            **_loss(settings, kind),
        }
    )


def _loss(settings: Settings, kind: str) -> dict[str, Any]:
    if kind == "importance_sampling":
        return {"loss": "ppo_clip", "clip_bounds": "absolute", "clip_low": 0.0, "clip_high": _NO_BOUND}
    if kind not in _BOUNDS:
        raise UsageError(f"Tinker's loss_fn={kind!r} is a rule that is not computed")
    low, high = _BOUNDS[kind]
    return {
        "loss": "ppo_clip" if kind == "ppo" else "cispo",
        "clip_bounds": "absolute",
        "clip_low": settings.number("loss_fn_config.clip_low_threshold", low),
        "clip_high": settings.number("loss_fn_config.clip_high_threshold", high),
    }
