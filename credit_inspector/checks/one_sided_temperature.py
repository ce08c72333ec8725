"""A temperature that only one side applied."""

from __future__ import annotations

from credit_inspector.checks import check
from credit_inspector.checks._engine import SURE, steps_apart
from credit_inspector.checks.recorded_fits import NOISE
from credit_inspector.panel import Finding, Severity
from credit_inspector.store import Store

CODE = "temperature-on-one-side"


@check(CODE)
def one_sided_temperature(store: Store) -> list[Finding]:
    """Where the run sampled at a temperature other than 1, whether the engine's or the trainer's log-probs lack it.

    Both are tried: the one side's log-probs at that temperature against the other's as they are, on tokens that the model is
    sure of, for there the rest of the vocabulary hardly matters.
    """
    found = [step for step in steps_apart(store) if step.cause == "temperature"]
    if not found:
        return []
    worst = max(found, key=lambda step: step.error)
    at, other = worst.temperature, {"engine": "trainer", "trainer": "engine"}[worst.untempered]
    return [
        Finding(
            code=CODE,
            severity=Severity.ERROR if worst.residual <= NOISE else Severity.WARNING,
            sentence=f"Step {worst.step}: the ratio of trainer to engine is {worst.ratio:.5g} on average, explained by "
            f"temperature {at:g} on one side (residual {worst.residual:.2g} nats): the {worst.untempered}'s log-probs lack it.",
            how_sure=f"{len(found)} of {len(store.steps)} steps; residual over tokens of probability {SURE:g} or more",
            why="Ratios then differ from 1 with identical weights, most on the tokens that the policy is least sure of.",
            do=f"Divide the {worst.untempered}'s logits by the temperature before the log-softmax, as the {other} does.",
            cannot_tell="A policy that training has sharpened since it sampled differs in a similar way.",
            numbers={
                "temperature": at,
                "ratio": worst.ratio,
                "residual": worst.residual,
                "mean_error": worst.error,
                "steps": len(found),
            },
        )
    ]
