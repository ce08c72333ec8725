"""Which tokens the loss cut, and by which of its bounds."""

from __future__ import annotations

import numpy as np

from credit_inspector.algorithm import Algorithm
from credit_inspector.columns import Made
from credit_inspector.credit import credit
from credit_inspector.credit.policy_push import pushed
from credit_inspector.metrics.finite import finite_where_trained
from credit_inspector.table import Floats, TokenTable

_NAMES = {1: "at the upper bound", -1: "at the lower bound", 2: "by dual clip, delta or a cap", 3: "by the log-ratio clamp"}


@credit(
    "clip",
    label="clipped",
    needs=("table", "algorithm", "advantage", "weight"),
    after=("logprob/policy", "logprob/old", "logprob/rollout"),
    after_where={"entropy/policy": lambda rule: rule.top_entropy_quantile < 1},
    unit="code",
    scope="batch",
    family="assigned",
)
def clip(table: TokenTable, algorithm: Algorithm, advantage: Floats, weight: Floats) -> Made:
    """Whether a bound cut the token's push: 0 no, +1 upper, −1 lower, 2 dual clip, delta or a cap, 3 log-ratio clamp.

    Sign-aware: a token outside the interval whose push still counts is 0, and so is one with advantage 0 and one that the
    rule leaves out. CISPO holds a token at its bound and cuts none; each loss says in ``losses/`` what its codes mean. Where
    a response has one ratio, the code is that of the token's own term in it.
    """
    found = pushed(table, algorithm, advantage, weight)
    codes = np.where(np.isfinite(found.push.coefficient), found.push.clipped, np.nan)
    return finite_where_trained(table, codes, _counts(codes[table.loss_mask]), found.note)


def _counts(codes: Floats) -> str:
    known = int(np.count_nonzero(~np.isnan(codes)))
    found = {name: int(np.count_nonzero(codes == code)) for code, name in _NAMES.items()}
    said = ", ".join(f"{count} {name}" for name, count in found.items() if count)
    return f"of {known} tokens {said}" if said else f"none of {known} tokens"
