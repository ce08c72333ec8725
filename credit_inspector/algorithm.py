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
from dataclasses import dataclass, field
from functools import cache
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from credit_inspector.errors import UsageError

Aggregation = Literal["token-mean", "token-sum", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "luspo"]
KLEstimator = Literal["k1", "abs", "k2", "k3", "low_var_kl"]
KLGradient = Literal["autograd", "ratio-weighted", "score-weighted", "ratio-capped", "straight-through"]
Observation = Literal["skip", "count", "reset", "ignore"]
RatioLevel = Literal["token", "sequence", "sequence-token", "product"]

RolloutGate = Literal[
    "weight",
    "token",
    "sequence-product",
    "sequence-geo",
    "token-binary-kl",
    "sequence-binary-kl",
    "token-tv",
    "sequence-tv",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """What a run optimised. Formulas: ``losses/`` and ``advantages/``."""

    name: str
    """Shown beside every number, such as ``trl-1.16.0/dapo``."""
    source: str
    """How it is known: ``recorded``, ``preset``, ``detected from advantages``."""

    # ── from rewards to advantages ──────────────────────────────────────────────────────────────────────────────────

    advantage: str = "grpo"
    """The estimator's name in ``advantages/``."""
    baseline: Literal["group", "leave-one-out", "batch"] = "group"
    """What ``grpo`` compares a reward with: the mean of its group, of the others in it (NeMo-RL), of the batch (AReaL)."""
    std: Literal["group", "leave-one-out", "batch", "none"] = "group"
    """Over what the standard deviation is taken that rewards are divided by."""
    std_ddof: int = 1
    std_eps: float = 1e-6
    """Added to the standard deviation."""
    singleton: Literal["zero", "reward"] = "zero"
    """The advantage of a group of one: 0 (TRL) or the reward itself (verl)."""
    gamma: float = 1.0
    """Discount for each token."""
    lam: float = 1.0
    """λ of GAE and of eligibility traces."""
    observation: Observation = "skip"
    """What discounting does at tokens that are not trained (tool output between turns): ``skip`` carries the running value over
    them, ``count`` lets the discount tick, ``reset`` sets it to 0 there (older verl; SkyRL's function by itself), ``ignore``
    takes no notice of the mask."""
    terminal: Literal["last-trained", "last", "after-last"] = "last-trained"
    """Where the response's scalar reward stands: on its last trained token (OpenRLHF, NeMo-RL), on its last token whether
    trained or not (verl, slime), or one slot behind it (TRL's PPO until 1.12)."""
    whiten: Literal["none", "tokens", "responses"] = "none"
    """Whether advantages are set to mean 0 and deviation 1 last, over all trained tokens or over responses."""
    whiten_ddof: int = 1
    whiten_eps: float = 1e-8
    whiten_eps_in: Literal["variance", "deviation", "floor"] = "variance"
    """√(var + eps) (verl), std + eps (TRL), or √max(var, eps) (OpenRLHF, NeMo-RL)."""
    whiten_rewards: bool = False
    """Whether token rewards are divided by their deviation first, their mean kept (TRL's PPO)."""
    kl_in_reward: float = 0.0
    """Weight of the KL term where it is part of the reward."""
    kl_in_reward_estimator: KLEstimator = "k1"
    kl_in_reward_as: Literal["token-rewards", "scalar", "to-go", "same-token"] = "token-rewards"
    """How it enters: as token rewards that the estimator sums up (PPO); as one sum of the response, before the group's
    statistic (verl's GRPO, TRL's RLOO); as what is still to come, after it (OpenRLHF); each token its own, after it (NeMo-RL)."""
    reward_weights: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Weights of the reward functions by name, for rules that treat them one by one (GDPO); empty: all 1."""
    drop_dead_groups: bool = False
    """DAPO's dynamic sampling: groups whose rewards are all equal take no part at all."""
    mask_truncated: bool = False
    """DAPO's overlong filter: truncated responses get advantages and are not trained."""

    # ── from advantages to a push ───────────────────────────────────────────────────────────────────────────────────

    loss: str = "ppo_clip"
    """The policy loss's name in ``losses/``."""
    ratio_level: RatioLevel = "token"
    """One ratio a token; one a response, exp(mean log-ratio), with its true gradient (GSPO) or with that of each token alone
    (GSPO-token); or the product over the response (TRL's RLOO)."""
    ratio_from: Literal["old", "rollout"] = "old"
    """Which log-probs the ratio refers to: the trainer's own before the update, or the sampling engine's (prime-rl, verl's
    bypass mode)."""
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
    top_entropy_quantile: float = 1.0
    """The share of tokens that are trained, those of highest entropy (Wang et al. 2025, TRL); the weights stay as they are."""
    off_policy_mask: float | None = None
    """Responses with A < 0 whose mean drift log π_old − log π exceeds this are left out (DeepSeek-V3.2; TRL, slime OPSM)."""
    settings: Mapping[str, float] = field(default_factory=dict, hash=False)
    """What the named estimator and loss take beyond these fields, such as ``tau_pos`` of sapo; what is left out has the
    default of its file."""

    # ── sampling engine against trainer ─────────────────────────────────────────────────────────────────────────────

    rollout_weight: Literal["none", "token", "sequence-product", "sequence-geo"] = "none"
    """The weight κ = π_old / π_rollout by which a token's loss is corrected, as a constant."""
    rollout_gate: RolloutGate = "weight"
    """What is held against the two bounds: the weight itself, another form of κ, or the binary KL or total variation of the
    sampled token, of each or as mean over the response."""
    rollout_low: float | None = None
    rollout_high: float | None = None
    rollout_outside: Literal["truncate", "mask"] = "truncate"
    """A weight outside is held at the bound (TIS), or 0 (IcePop and every kind of mask)."""
    rollout_normalize: bool = False
    """Whether weights are divided by their mean over trained tokens."""
    rollout_reject: Mapping[str, str] = field(default_factory=dict, hash=False)
    """verl's ``rollout_rs`` with its thresholds: ``{"token_k1": "0.6_1.4"}``. What is rejected leaves the loss mask, so that
    the weights of the others grow. The statistic of k1 is −log κ: its bounds are those of rollout / trainer."""

    # ── weights ─────────────────────────────────────────────────────────────────────────────────────────────────────

    aggregation: Aggregation = "token-mean"
    horizon: float | None = None
    """The constant length of ``seq-mean-token-sum-norm`` (Dr. GRPO)."""
    horizon_is_width: bool = False
    """Where no horizon is given, it is the length of the batch's longest response (verl without ``loss_scale_factor``)."""
    count_empty: bool = False
    """Whether responses without a trained token count in means over responses (TRL, and verl through its trainer: yes;
    verl's ``agg_loss`` called alone: no)."""
    micro_batch: int | None = None
    """Responses in each micro-batch, in the rows' order, where the loss is aggregated in each of them and then averaged (TRL's
    ``bnpo``, OpenRLHF): then tokens of a micro-batch with few of them weigh more."""
    batch_tokens: float | None = None
    batch_responses: float | None = None
    """What the weights divide by where the run's batch is larger than what was kept of it."""

    # ── terms beside the policy loss ────────────────────────────────────────────────────────────────────────────────

    kl_beta: float = 0.0
    """Weight of the KL term in the loss."""
    kl_estimator: KLEstimator = "k3"
    kl_gradient: KLGradient = "autograd"
    """``ratio-weighted``: TRL from 1.10 multiplies k3 by the importance ratio; ``score-weighted``: NeMo-RL multiplies by
    exp(log π − stop-gradient(log π)); ``ratio-capped``: OpenRLHF's unbiased gradient min(ρ, 10) · d; ``straight-through``: d,
    the slope of k2, under another value (verl's ``k3+``)."""
    kl_input_clamp: float | None = None
    """The distance log π − log π_ref is held within ± this first, and has no slope beyond (NeMo-RL 20, open-instruct 40)."""
    kl_output_clamp: float | None = None
    """The estimator's value is held within ± this, and has no slope beyond (OpenRLHF and NeMo-RL 10)."""
    entropy_bonus: float = 0.0
    """Weight of the entropy bonus in the loss. It pulls on the whole distribution and not on the sampled token, so no
    coefficient contains it; ``credit/entropy_push`` shows it."""

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
        plain = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in plain.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Algorithm:
        """Read what ``to_json`` wrote.

        Raises:
            UsageError: a field that does not exist or is not there, a value that the field does not take, or a number
                that is not finite.
        """
        hints = _hints()
        if unknown := sorted(set(data) - set(hints)):
            raise UsageError(f"unknown algorithm setting {unknown[0]!r}", wanted=f"one of {', '.join(sorted(hints))}")
        if absent := [name for name in ("name", "source") if name not in data]:
            raise UsageError(f"an algorithm without {absent[0]!r}", wanted="name and source")
        for key, value in data.items():
            numbers = value.values() if isinstance(value, Mapping) else (value,)
            if not all(math.isfinite(number) for number in numbers if isinstance(number, float)):
                raise UsageError(f"algorithm setting {key} is {value}", wanted="a finite number")
            if not _fits(value, hints[key]):
                raise UsageError(f"algorithm setting {key} is {value!r}", wanted=_in_words(hints[key]))
        return cls(**data)


def _fits(value: object, hint: Any) -> bool:
    if get_origin(hint) is Mapping:
        return isinstance(value, Mapping) and all(
            _fits(one, part) for pair in value.items() for one, part in zip(pair, get_args(hint), strict=True)
        )
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
    if get_origin(hint) is Mapping:
        return f"names with {_in_words(get_args(hint)[1])} each"
    names = {str: "text", float: "a number", int: "a whole number", bool: "true or false", type(None): "nothing"}
    return " or ".join(names[part] for part in get_args(hint) or (hint,))


@cache
def _hints() -> dict[str, Any]:
    """The types of a rule's fields; working them out takes longer than reading one."""
    return get_type_hints(Algorithm)
