"""The rule of a prime-rl run, read from ``configs/`` in its output folder.

``rl.json`` (``rl.toml`` before 0.8) holds sections ``trainer`` and ``orchestrator``; where only the two parts were written,
they are files of those names. Checked against commit 559b447: ``loss.py`` and ``orchestrator/algo/``.
"""

from __future__ import annotations

from typing import Any

from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.settings import Settings
from credit_inspector.errors import UsageError


def recognises(settings: Settings) -> bool:
    """Whether these are prime-rl's settings."""
    return "trainer.weight_broadcast" in settings or ("trainer.model" in settings and "orchestrator" in settings)


def algorithm_of(settings: Settings) -> Algorithm:
    """The rule that prime-rl's settings describe.

    Raises:
        UsageError: a setting changes the loss in a way that is not computed here.
    """
    if "orchestrator" not in settings:
        raise UsageError("prime-rl's trainer settings do not say how advantages are made", wanted="orchestrator.json beside them")
    algo, loss = settings.text("orchestrator.algo.type", "grpo"), settings.text("trainer.loss.type", "default")
    fields = _advantage(settings, algo) | _loss(settings, loss)
    return Algorithm.from_json(
        {
            "name": f"prime-rl/{algo}" if loss == "default" else f"prime-rl/{algo}+{loss}",
            "source": "recorded",
            # The trainer has no log-probs of its own before the update: the ratio refers to the sampling engine's.
            "ratio_from": "rollout",
            "aggregation": "token-mean",
            "count_empty": True,
            # Tokens with advantage 0 are taken out of the batch before it is shipped (train_sink.py).
            "drop_dead_groups": settings.flag("orchestrator.train.filter_zero_advantages", True),
            "kl_beta": 0.0,
            "temperature": _temperature(settings),
            "updates_per_batch": 1,
        }
        | fields
    )


def _advantage(settings: Settings, algo: str) -> dict[str, Any]:
    if settings.value("orchestrator.algo.length_penalty", None) is not None:
        settings.note("prime-rl shapes rewards by their length before advantages: the recorded ones have to be those after it")
    match algo:
        case "grpo":
            return {"advantage": "grpo", "baseline": "group", "std": "none", "singleton": "zero"}
        case "max_rl":
            return {"advantage": "maxrl", "std_eps": 0.0, "singleton": "zero"}
    raise UsageError(f"prime-rl's algorithm {algo!r} is a rule that is not computed")


def _loss(settings: Settings, loss: str) -> dict[str, Any]:
    where = "trainer.loss"
    taus = {"adv_tau": settings.number(f"{where}.adv_tau", 1.0), "kl_tau": settings.number(f"{where}.kl_tau", 1e-3)}
    match loss:
        case "default":
            low, high = (settings.number(f"{where}.dppo_mask_{side}", 0.2) for side in ("low", "high"))
            return {"loss": "prime", "clip_low": low, "clip_high": high, "settings": taus}
        case "ipo":
            both = settings.number(f"{where}.ipo_threshold", 0.1)
            return {"loss": "prime_ipo", "clip_low": both, "clip_high": both, "settings": taus}
    raise UsageError(f"prime-rl's loss {loss!r} is a rule that is not computed")


def _temperature(settings: Settings) -> float:
    for name in ("orchestrator.train.sampling.temperature", "orchestrator.sampling.temperature"):
        if name in settings:
            return settings.number(name)
    return 1.0
