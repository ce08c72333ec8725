"""Metric vectors: log-probs in, ratios, KL figures and their statistics out."""

from __future__ import annotations

from credit_inspector.metrics.kl import kl_value
from oracles import Checks, Vector, close, floats


def mismatch(vector: Vector) -> None:
    inputs = vector["inputs"]
    inside = floats(inputs["response_mask"]) == 1
    distance = floats(inputs["old_log_prob"])[inside] - floats(inputs["rollout_log_prob"])[inside]
    close(-distance.mean(), vector["outputs"]["kl"], vector)
    close(kl_value("k3", -distance).mean(), vector["outputs"]["k3_kl"], vector)


CHECKS: Checks = {
    "verl.offpolicy_metrics": mismatch,
}
