"""What the entropy bonus does: a term of its own, beside every push on sampled tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from credit_inspector.algorithm import Algorithm
from credit_inspector.columns import Made
from credit_inspector.credit import credit
from credit_inspector.credit.constants import entropy_mask
from credit_inspector.credit.kept import kept
from credit_inspector.credit.weight import token_weights
from credit_inspector.metrics.finite import finite_where_trained
from credit_inspector.registry import chosen, settings_of
from credit_inspector.table import Floats, TokenTable


@credit(
    "credit/entropy_push",
    label="pull of the entropy bonus",
    needs=("table", "algorithm", "weight"),
    after=("entropy/policy", "logprob/policy", "logprob/old", "logprob/rollout"),
    unit="1 / nat",
    scope="batch",
    family="assigned",
    sign="+ spreads the distribution, − sharpens it",
)
def entropy_push(table: TokenTable, algorithm: Algorithm, weight: Floats) -> Made:
    """−dL/dH, the bonus times the token's weight: how hard the loss pulls on the entropy of the whole distribution there.

    Its gradient at the logits z is bonus · weight · dH/dz with dH/dz = −p (log p + H): no multiple of the sampled token's,
    so that no coefficient contains it. verl 0.9.1 and slime weigh entropies as the rule weighs its tokens. TRL 1.16.0 and
    OpenRLHF 0.11.2 take their mean over tokens whatever the rule's aggregation (the setting ``entropy_token_mean`` = 1), TRL
    over those alone that ``top_entropy_quantile`` trains.
    """
    if not algorithm.entropy_bonus:
        return Made(table.trained(np.zeros(table.n_tokens)), "the rule has no entropy bonus")
    each = _weights(table, algorithm, weight, **chosen(algorithm.settings, SETTINGS))
    return finite_where_trained(table, algorithm.entropy_bonus * each, f"bonus {algorithm.entropy_bonus:g}")


def _weights(table: TokenTable, algorithm: Algorithm, weight: Floats, *, entropy_token_mean: float = 0.0) -> Floats:
    """``[T]`` the weight of each token's entropy in the loss."""
    if not entropy_token_mean:
        return weight
    if algorithm.top_entropy_quantile >= 1:
        return token_weights(table, replace(algorithm, aggregation="token-mean", batch_tokens=None))
    inside = kept(table, algorithm)
    acts = inside & (entropy_mask(table, algorithm, inside).values == 1)
    return table.trained(acts / max(int(np.count_nonzero(acts)), 1))


SETTINGS = settings_of(_weights)
"""What the term takes from ``Algorithm.settings``, with its default."""
