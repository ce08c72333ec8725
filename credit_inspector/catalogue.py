"""What is installed of every kind."""

from __future__ import annotations

from credit_inspector.advantages import estimators
from credit_inspector.algorithms.presets import presets
from credit_inspector.checkpoints import checkpoint_formats
from credit_inspector.checks import checks
from credit_inspector.credit import credits
from credit_inspector.losses import losses
from credit_inspector.metrics import metrics
from credit_inspector.segmenters import segmenters
from credit_inspector.shaping import shapings
from credit_inspector.sinks import sinks
from credit_inspector.trainers import readers
from credit_inspector.views import views


def catalogue() -> dict[str, list[str]]:
    """From kind to the names of its members."""
    registries = (readers, checkpoint_formats, estimators, losses, metrics, credits, segmenters, shapings, checks, views, sinks)
    found = {registry.kind: list(registry) for registry in registries}
    return {**found, "algorithms": list(presets())}
