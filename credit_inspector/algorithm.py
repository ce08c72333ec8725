"""The rule that a run optimised, as data.

One ``Algorithm`` says everything that assigned credit depends on: how rewards became advantages, how the loss turned an
advantage into a push, how tokens were weighted, where the KL term stood, and the temperature. Trainers differ in each
of these under one name ("GRPO"), so nothing here has a hidden default: presets in ``algorithms/*.toml`` are pinned to a
trainer's version, and ``source`` says how the rule came to be known.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from credit_inspector.errors import UsageError

Aggregation = Literal["token-mean", "token-sum", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "luspo"]
KLEstimator = Literal["k1", "abs", "k2", "k3", "low_var_kl"]
KLGradient = Literal["autograd", "ratio-weighted", "straight-through"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """What a run optimised. Formulas: ``losses/`` and ``advantages/``."""

    name: str
    """Shown beside every number, such as ``trl-1.16.0/dapo``."""
    source: str
    """How it is known: ``recorded``, ``preset``, ``detected from advantages``."""

    advantage: str = "grpo"
    """The estimator's name in ``advantages/``."""
    std: Literal["group", "batch", "none"] = "group"
    """Over what the standard deviation is taken that rewards are divided by."""
    std_ddof: int = 1
    std_eps: float = 1e-6
    """Added to the standard deviation."""
    singleton: Literal["zero", "reward"] = "zero"
    """The advantage of a group of one: 0 (TRL) or the reward itself (verl)."""

    loss: str = "ppo_clip"
    """The policy loss's name in ``losses/``."""
    clip_low: float = 0.2
    clip_high: float = 0.2
    clip_bounds: Literal["around-one", "absolute"] = "around-one"
    """``around-one``: the ratio's bounds are 1 − clip_low and 1 + clip_high; ``absolute``: clip_low and clip_high are
    themselves the bounds, and a clip_low of 0 is none (TRL's CISPO)."""
    dual_clip: float | None = None
    """verl's ``clip_ratio_c``: for A < 0 no push beyond this ratio."""
    delta: float | None = None
    """TRL's two-sided bound on the ratio."""
    log_ratio_clamp: float | None = None
    """verl's and OpenRLHF's ±20 on the log-ratio; the gradient is zero beyond."""

    aggregation: Aggregation = "token-mean"
    horizon: float | None = None
    """The constant length of ``seq-mean-token-sum-norm`` (Dr. GRPO)."""
    count_empty: bool = False
    """Whether responses without a trained token count in means over responses (TRL, and verl through its trainer: yes;
    verl's ``agg_loss`` called alone: no)."""

    kl_beta: float = 0.0
    """Weight of the KL term in the loss."""
    kl_estimator: KLEstimator = "k3"
    kl_gradient: KLGradient = "autograd"
    """``ratio-weighted``: TRL from 1.10 multiplies k3 by the importance ratio."""
    kl_in_reward: float = 0.0
    """Weight of the KL term where it is part of the reward."""
    entropy_bonus: float = 0.0
    """Weight of the entropy bonus in the loss. It pulls on the whole distribution and not on the sampled token, so no
    coefficient contains it."""

    temperature: float = 1.0
    """Of sampling; logits are divided by it before the softmax."""
    updates_per_batch: int = 1
    """How many optimizer steps train on one batch of responses."""

    @property
    def ratio_bounds(self) -> tuple[float, float]:
        """The importance ratio's lower and upper bound."""
        if self.clip_bounds == "absolute":
            return self.clip_low, self.clip_high
        return 1 - self.clip_low, 1 + self.clip_high

    def to_json(self) -> dict[str, Any]:
        """A plain mapping; ``from_json`` reads it back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Algorithm:
        """Read what ``to_json`` wrote.

        Raises:
            UsageError: a field that does not exist or is not there, a value that the field does not take, or a number
                that is not finite.
        """
        hints = get_type_hints(cls)
        if unknown := sorted(set(data) - set(hints)):
            raise UsageError(f"unknown algorithm setting {unknown[0]!r}", wanted=f"one of {', '.join(sorted(hints))}")
        if absent := [name for name in ("name", "source") if name not in data]:
            raise UsageError(f"an algorithm without {absent[0]!r}", wanted="name and source")
        for key, value in data.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise UsageError(f"algorithm setting {key} is {value}", wanted="a finite number")
            if not _fits(value, hints[key]):
                raise UsageError(f"algorithm setting {key} is {value!r}", wanted=_in_words(hints[key]))
        return cls(**data)


def _fits(value: object, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) is UnionType:
        return any(_fits(value, part) for part in get_args(hint))
    if hint in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, int | float if hint is float else hint)


def _in_words(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    names = {str: "text", float: "a number", int: "a whole number", bool: "true or false", type(None): "nothing"}
    return " or ".join(names[part] for part in get_args(hint) or (hint,))
