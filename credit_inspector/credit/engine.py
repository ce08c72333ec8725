"""The trainer against the engine that sampled, as rules use it: log κ = log π_old − log π_rollout of each sampled token."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from credit_inspector.algorithm import Algorithm
from credit_inspector.errors import MissingColumn
from credit_inspector.metrics.ratio import old_logprob
from credit_inspector.table import Floats, TokenTable

_ENGINE = "logprob/rollout"


class Engine(NamedTuple):
    """Both log-probs of every trained token and what follows from them; arrays are ``[T]``."""

    trainer: Floats
    """log π_old by the trainer's own forward; 0 where not trained."""
    rollout: Floats
    """log π_rollout by the engine that sampled; 0 where not trained."""
    log_kappa: Floats
    """Their difference; 0 where not trained and where one of the two is no number."""
    unknown: NDArray[np.bool_]
    """Trained tokens without a difference: engines leave log-probs out, as NaN."""
    note: str


def engine(table: TokenTable, algorithm: Algorithm, purpose: str) -> Engine:
    """Compare the two on trained tokens.

    Raises:
        MissingColumn: one of the two is not there; the message says for which ``purpose`` the rule asks for it.
    """
    if not table.has(_ENGINE):
        raise MissingColumn(f"{_ENGINE} is not there, and {algorithm.name} {purpose}", wanted="the sampling engine's log-probs")
    inside, old = table.loss_mask, old_logprob(table, algorithm)
    trainer, rollout = (np.where(inside, values, 0.0) for values in (old.values, table.values(_ENGINE)))
    with np.errstate(invalid="ignore"):
        log_kappa = trainer - rollout
    unknown = np.isnan(log_kappa)
    return Engine(trainer, rollout, np.where(unknown, 0.0, log_kappa), unknown, old.note)
