"""The rule of a SkyRL run, read from its configuration (wandb keeps it; versions with Hydra left a ``.hydra/config.yaml``).

Checked against commit a956457: ``ppo_utils.py``, ``off_policy_correction_utils.py``, ``trainer.py`` and ``worker.py``.
"""

from __future__ import annotations

from typing import Any, Final

from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.settings import Settings
from credit_inspector.errors import UsageError

_RULE: Final = "trainer.algorithm"

# SkyRL's estimator (``ppo_utils.py``) → the name shown, and fields.
_ESTIMATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("grpo", {"advantage": "grpo", "std_ddof": 1, "std_eps": 1e-6, "singleton": "reward"}),
    "rloo": ("rloo", {"advantage": "rloo", "singleton": "zero"}),
    "maxrl": ("maxrl", {"advantage": "maxrl", "std_eps": 1e-6, "singleton": "reward"}),
    "reinforce++": ("reinforce_pp", {"advantage": "reinforce_pp", "observation": "count", "terminal": "last"}),
    "gae": ("ppo", {"advantage": "gae", "observation": "ignore", "terminal": "last"}),
}
_FROM_TOKENS: Final = ("gae", "reinforce++")
_WHITEN: Final = {"whiten": "tokens", "whiten_ddof": 1, "whiten_eps": 1e-8, "whiten_eps_in": "variance"}


def recognises(settings: Settings) -> bool:
    """Whether these are SkyRL's settings."""
    return f"{_RULE}.advantage_estimator" in settings and "trainer.policy_mini_batch_size" in settings


def algorithm_of(settings: Settings) -> Algorithm:
    """The rule that SkyRL's settings describe.

    Raises:
        UsageError: a setting changes the loss in a way that is not computed here.
    """
    estimator = settings.text(f"{_RULE}.advantage_estimator", "grpo")
    kind = settings.text(f"{_RULE}.policy_loss_type", "regular")
    if estimator not in _ESTIMATORS:
        raise UsageError(f"SkyRL's advantage_estimator={estimator!r} is a rule that is not computed")
    if problem := _not_computed(settings):
        raise UsageError(f"SkyRL's {problem} is not computed")
    fields = _advantage(settings, estimator) | _loss(settings, kind) | _rollout(settings, kind) | _weights(settings)
    fields |= _kl(settings, estimator, fields["aggregation"]) | _filters(settings, fields["aggregation"])
    name, _ = _ESTIMATORS[estimator]
    return Algorithm.from_json(
        {
            "name": f"skyrl/{name}" if kind == "regular" else f"skyrl/{name}+{kind}",
            "source": "recorded",
            "entropy_bonus": _entropy(settings),
            "temperature": _temperature(settings),
            "updates_per_batch": _updates(settings),
        }
        | fields
    )


def _not_computed(settings: Settings) -> str:
    if settings.flag("generator.step_wise_trajectories", False):
        return "step_wise_trajectories (a row for each turn, with the advantage of the last)"
    if settings.flag(f"{_RULE}.advantage_batch_normalize", False):
        return "advantage_batch_normalize (its mean counts the padding too)"
    return ""


def _advantage(settings: Settings, estimator: str) -> dict[str, Any]:
    _, known = _ESTIMATORS[estimator]
    fields = {**known}
    if estimator == "grpo":
        fields["std"] = "group" if settings.flag(f"{_RULE}.grpo_norm_by_std", True) else "none"
    if estimator in _FROM_TOKENS:
        settings.note(
            "SkyRL whitens advantages over all tokens of a response, tool output too; here over trained tokens, which is the "
            "same where all are trained"
        )
        fields |= {"gamma": settings.number(f"{_RULE}.gamma", 1.0), **_WHITEN}
    if estimator == "gae":
        fields["lam"] = settings.number(f"{_RULE}.lambd", 1.0)
    return fields


def _loss(settings: Settings, kind: str) -> dict[str, Any]:
    """The functions that are registered with ``register_policy_loss``."""
    clip = {side: settings.number(f"{_RULE}.eps_{side}", 0.2) for side in ("clip_low", "clip_high")}
    clamped = {"log_ratio_clamp": 20.0}
    match kind:
        case "regular":
            return {"loss": "ppo_clip", **clip, **clamped}
        case "dual_clip":
            return {"loss": "ppo_clip", "dual_clip": settings.number(f"{_RULE}.clip_ratio_c", 3.0), **clip, **clamped}
        case "gspo":
            return {"loss": "ppo_clip", "ratio_level": "sequence-token", "settings": {"log_ratio_max": 10.0}, **clip}
        case "clip_cov":
            return {"loss": "clip_cov", **clip}
        case "sapo":
            taus = {"tau_pos": 1.0, "tau_neg": 1.05}
            own = {name: settings.number(f"{_RULE}.sapo.{name}", default) for name, default in taus.items()}
            return {"loss": "sapo", "settings": own, **clamped}
        case "cispo":
            return {"loss": "cispo", **_cispo(settings), **clamped}
        case "dppo":
            return {**_dppo(settings), **clamped}
        case "importance_sampling":  # the ratio without bounds; it adds up advantages that are divided already
            return {"loss": "ppo_clip", "clip_bounds": "absolute", "clip_low": 0.0, "clip_high": 1e9}
    raise UsageError(f"SkyRL's policy_loss_type={kind!r} is a rule that is not computed")


def _cispo(settings: Settings) -> dict[str, Any]:
    where = f"{_RULE}.cispo"
    return {
        "clip_bounds": "around-one",
        "clip_low": settings.number(f"{where}.cispo_eps_clip_low", 1.0),
        "clip_high": settings.number(f"{where}.cispo_eps_clip_high", 4.0),
        "ratio_from": {"old": "old", "rollout": "rollout"}[settings.text(f"{where}.cispo_anchor", "old")],
    }


def _dppo(settings: Settings) -> dict[str, Any]:
    """The sampling engine's log-probs are the behaviour policy, where the engine gives them."""
    where = f"{_RULE}.dppo"
    engine = settings.optional("generator.sampling_params.logprobs", 1) is not None
    return {
        "loss": {"binary_tv": "dppo_tv", "binary_kl": "dppo_kl"}[settings.text(f"{where}.dppo_type", "binary_tv")],
        "clip_low": settings.number(f"{where}.delta_low", 0.2),
        "clip_high": settings.number(f"{where}.delta_high", 0.2),
        "dual_clip": None,
        "ratio_from": "rollout" if engine else "old",
    }


def _rollout(settings: Settings, kind: str) -> dict[str, Any]:
    """``off_policy_correction``, which multiplies the loss and leaves its divisor alone; ``use_tis`` of versions before it."""
    if kind in ("clip_cov", "importance_sampling"):  # they never look at it
        return {}
    where = f"{_RULE}.off_policy_correction"
    found = [*_tis(settings, where), *_masks(settings, where)]
    for bound in ("low", "high"):
        if settings.optional(f"{where}.outlier_token_is_threshold_{bound}") is not None:
            raise UsageError("SkyRL's outlier_token_is_threshold (masks a response by its worst token) is not computed")
    if len(found) > 1:
        raise UsageError(
            "SkyRL's off_policy_correction with more than one of weight, token mask and sequence mask is not computed"
        )
    return found[0] if found else {}


def _tis(settings: Settings, where: str) -> list[dict[str, Any]]:
    kind = settings.value(f"{where}.tis_ratio_type", None)
    high = settings.number(f"{where}.token_tis_ratio_clip_high", 2.0)
    if settings.flag(f"{_RULE}.use_tis", False):
        kind, high = "token", settings.number(f"{_RULE}.tis_imp_ratio_cap")
        if high <= 0:
            raise UsageError(f"SkyRL's use_tis with tis_imp_ratio_cap={high} is not computed", wanted="a cap above 0")
    match kind:
        case None:
            return []
        case "token":
            return [{"rollout_weight": "token", "rollout_high": high, "rollout_outside": "truncate"}]
        case "sequence":
            high = settings.number(f"{where}.sequence_tis_ratio_clip_high", 5.0)
            return [{"rollout_weight": "sequence-product", "rollout_high": high, "rollout_outside": "truncate"}]
    raise UsageError(f"SkyRL's tis_ratio_type={kind!r} is not computed")


def _masks(settings: Settings, where: str) -> list[dict[str, Any]]:
    """Masks by κ, which weigh nothing else."""
    found = []
    low, high = (settings.optional(f"{where}.token_mask_is_threshold_{bound}") for bound in ("low", "high"))
    if low is not None and high is not None:  # one of them alone does nothing
        found.append(_mask("token", low, high))
    match metric := settings.value(f"{where}.sequence_mask_metric", None):
        case None:
            return found
        case "geometric":
            low, high = settings.number(f"{where}.geo_mask_low", 0.99), settings.number(f"{where}.geo_mask_high", 1.01)
            return [*found, _mask("sequence-geo", low, high)]
        case "product":
            low, high = settings.number(f"{where}.product_mask_low", 0.5), settings.number(f"{where}.product_mask_high", 2.0)
            return [*found, _mask("sequence-product", low, high)]
    raise UsageError(f"SkyRL's sequence_mask_metric={metric!r} is not computed")


def _mask(gate: str, low: float, high: float) -> dict[str, Any]:
    return {"rollout_gate": gate, "rollout_low": low, "rollout_high": high, "rollout_outside": "mask"}


def _weights(settings: Settings) -> dict[str, Any]:
    """``apply_loss_reduction_to_advantages_minibatch``: advantages are divided, and losses added up."""
    match kind := settings.text(f"{_RULE}.loss_reduction", "token_mean"):
        case "token_mean":
            return {"aggregation": "token-mean", "count_empty": True}
        case "token_mean_legacy":
            size = settings.whole("trainer.micro_train_batch_size_per_gpu", 1)
            return {"aggregation": "token-mean", "count_empty": True, "micro_batch": size}
        case "sequence_mean":
            return {"aggregation": "seq-mean-token-mean", "count_empty": True}
        case "seq_mean_token_sum_norm":
            horizon = settings.number(f"{_RULE}.max_seq_len")
            return {"aggregation": "seq-mean-token-sum-norm", "count_empty": True, "horizon": horizon}
    raise UsageError(f"SkyRL's loss_reduction={kind!r} is not computed")


def _kl(settings: Settings, estimator: str, aggregation: str) -> dict[str, Any]:
    """``compute_approx_kl``: k3 is clamped as verl's is. In the loss it is a mean over responses, whatever the policy's is."""
    in_loss, in_reward = settings.flag(f"{_RULE}.use_kl_loss", True), settings.flag(f"{_RULE}.use_kl_in_reward", False)
    coefficient = settings.number(f"{_RULE}.kl_loss_coef", 0.001)
    written = settings.text(f"{_RULE}.kl_estimator_type", "k3")
    names = {"k1": "k1", "abs": "abs", "k2": "k2", "k3": "low_var_kl"}
    if written not in names:
        raise UsageError(f"SkyRL's kl_estimator_type={written!r} is not computed")
    if in_loss and coefficient and aggregation != "seq-mean-token-mean":
        raise UsageError(
            "SkyRL's use_kl_loss (a mean over responses) beside a loss_reduction other than sequence_mean is not computed"
        )
    if in_reward and settings.text(f"{_RULE}.kl_ctrl.type", "fixed") != "fixed":
        raise UsageError("SkyRL's kl_ctrl.type: an adaptive KL coefficient changes from step to step, which is not computed")
    fields: dict[str, Any] = {}
    if in_loss:
        fields |= {"kl_beta": coefficient, "kl_estimator": names[written], "kl_gradient": "autograd"}
    if in_reward:
        fields |= {
            "kl_in_reward": max(0.0, coefficient),
            "kl_in_reward_estimator": names[written],
            "kl_in_reward_as": "token-rewards" if estimator in _FROM_TOKENS else "scalar",
        }
    return fields


def _filters(settings: Settings, aggregation: str) -> dict[str, Any]:
    sampled = settings.value(f"{_RULE}.dynamic_sampling.type", None) == "filter"
    masked = settings.flag(f"{_RULE}.zero_variance_filter", False)
    if masked and aggregation != "token-mean":
        raise UsageError("SkyRL's zero_variance_filter (its responses still count) with a mean over responses is not computed")
    return {
        "drop_dead_groups": sampled or masked,
        "mask_truncated": settings.flag("generator.apply_overlong_filtering", False),
    }


def _entropy(settings: Settings) -> float:
    if not settings.flag(f"{_RULE}.use_entropy_loss", False):
        return 0.0
    settings.note("SkyRL averages its entropy bonus over the tokens of each micro-batch, whatever loss_reduction is")
    return settings.number(f"{_RULE}.entropy_loss_coef", 0.01)


def _temperature(settings: Settings) -> float:
    """The loss's own where it is set; otherwise that of sampling."""
    own = settings.optional(f"{_RULE}.temperature")
    return settings.number("generator.sampling_params.temperature", 1.0) if own is None else own


def _updates(settings: Settings) -> int:
    """Both count prompts; a remainder is no update."""
    batches = settings.whole("trainer.train_batch_size", 1024) // settings.whole("trainer.policy_mini_batch_size", 256)
    return max(1, batches) * settings.whole("trainer.update_epochs_per_batch", 1)
