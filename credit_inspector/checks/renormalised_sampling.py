"""Sampler log-probs over the tokens that sampling kept."""

from __future__ import annotations

from credit_inspector.checks import check
from credit_inspector.checks._engine import FLAT, Apart, steps_apart
from credit_inspector.panel import Finding, Severity
from credit_inspector.store import Store

CODE = "engine-constant-factor"


@check(CODE)
def renormalised_sampling(store: Store) -> list[Finding]:
    """Steps in which trainer and engine differ by one factor on all tokens, or by factors between the run's top-p and 1.

    With top-p or top-k an engine may report probabilities over the tokens that it kept, and the trainer over all. The ratio
    is then the kept mass, and no change of the policy.
    """
    found = [step for step in steps_apart(store) if step.cause == "factor"]
    if not found:
        return []
    worst = max(found, key=lambda step: step.error)
    fits = _cuts(worst) and worst.factor < 1
    even = worst.residual <= FLAT
    what = "a constant factor" if even else f"between top-p {worst.top_p:g} and 1 on every token"
    hint = f": {what}, fits renormalised sampling" if fits else " on every token"
    sampling = "top-p and top-k" if fits else "whether top-p or top-k cut the vocabulary, and the logits' scale"
    return [
        Finding(
            code=CODE,
            severity=Severity.INFO if fits else Severity.WARNING,
            sentence=f"Step {worst.step}: the ratio of trainer to engine is {worst.factor:.4g}{hint}.",
            how_sure=f"{len(found)} of {len(store.steps)} steps; {worst.tokens} tokens of step {worst.step} with "
            f"a spread of {worst.residual:.2g} nats",
            why="A factor that no token escapes is no change of the policy, and every ratio to the engine contains it.",
            do=f"Ask the engine for log-probs before truncation, or correct the trainer's for it; look at {sampling}.",
            cannot_tell=""
            if fits
            else "The run's responses say no top-p below 1 or top-k, so what makes the factor is not known.",
            numbers={"factor": worst.factor, "spread": worst.residual, "mean_error": worst.error, "steps": len(found)},
        )
    ]


def _cuts(step: Apart) -> bool:
    """Whether the run says that sampling left tokens out."""
    return step.top_p < 1 or step.top_k > 0
