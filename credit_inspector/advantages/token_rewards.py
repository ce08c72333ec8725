"""Token rewards: where a response's reward stands, and the KL term where it is part of the reward.

Estimators that sum over tokens (returns, GAE) start from these. In order: what the trainer recorded as the rewards that its
estimator summed (``reward/token``, the KL term in it); what it recorded as scores before the KL term
(``reward/token_score``); the response's one reward at ``Algorithm.terminal``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from credit_inspector.advantages.whiten import whitened
from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.kl import kl_value
from credit_inspector.errors import MissingColumn
from credit_inspector.table import Floats, TokenTable

SUMMED, SCORED = "reward/token", "reward/token_score"


class TokenRewards(NamedTuple):
    """Rewards and where they count."""

    values: Floats
    """``[T]`` 0 where there is none, NaN where it is unknown."""
    acts: NDArray[np.bool_]
    """``[T]`` the tokens whose rewards and values count: the trained ones, and with ``after-last`` the slot behind them."""


def reward_kl(table: TokenTable, algorithm: Algorithm) -> Floats:
    """``[T]`` β · estimator(log π_old − log π_ref) on trained tokens, 0 elsewhere: what the KL term takes off a reward.

    The sampling policy's log-probs by the trainer's own forward are compared with the reference's; no gradient passes
    (InstructGPT; verl 0.9.1 ``apply_kl_penalty``, OpenRLHF 0.11.2 ``compute_reward``). NaN on a trained token whose
    log-probs or KL are not finite.

    Raises:
        MissingColumn: one of the two was not recorded.
    """
    old = old_or_policy(table, algorithm, "logprob")
    if not table.has("logprob/ref"):
        raise MissingColumn(
            f"the rule has a KL term of weight {algorithm.kl_in_reward:g} in the reward, and logprob/ref is not there",
            wanted="the reference's log-probs",
        )
    reference = table.values("logprob/ref")
    known = table.loss_mask & np.isfinite(old) & np.isfinite(reference)
    distance = np.where(known, old, 0.0) - np.where(known, reference, 0.0)
    value = algorithm.kl_in_reward * kl_value(algorithm.kl_in_reward_estimator, distance)
    return np.where(known & np.isfinite(value), value, np.where(table.loss_mask, np.nan, 0.0))


def old_or_policy(table: TokenTable, algorithm: Algorithm, kind: str) -> Floats:
    """``[T]`` the column ``kind/old``, or ``kind/policy`` where one update a batch makes the two the same.

    Raises:
        MissingColumn: neither is there, or they are not the same.
    """
    if table.has(f"{kind}/old"):
        return table.values(f"{kind}/old")
    if algorithm.updates_per_batch == 1 and table.has(f"{kind}/policy"):
        return table.values(f"{kind}/policy")
    several = f", and with {algorithm.updates_per_batch} updates per batch {kind}/policy is not the same"
    raise MissingColumn(
        f"{kind}/old is not there{several if algorithm.updates_per_batch > 1 else f', nor {kind}/policy'}",
        wanted="the trainer's own figures of the policy that sampled",
    )


def token_rewards(table: TokenTable, algorithm: Algorithm, known: NDArray[np.bool_] | None = None) -> TokenRewards:
    """The rewards that an estimator sums up.

    With ``terminal`` = ``last`` a reward on a token that is not trained (a response that ends in tool output) is lost to every
    estimator that sums over trained tokens: so it is in verl. With ``after-last`` it stands on the token behind the last
    trained one where the trainer's row has such a token, a pad slot of mask 0, that is in ``known`` ``[T]`` (has a value);
    else on the last trained one, which is the same at λ = 1 (TRL's PPO until 1.12 does that where a row has no room).

    Raises:
        MissingColumn: the KL term needs log-probs that nobody recorded.
    """
    slot = terminal(table, algorithm, known)
    placed = slot >= 0
    rewards = np.zeros(table.n_tokens)
    rewards[slot[placed]] = np.where(np.isfinite(table.reward), table.reward, np.nan)[placed]
    rewards, _ = _over(table, SCORED, rewards)
    summed, complete = _over(table, SUMMED, rewards)
    if algorithm.kl_in_reward and not complete and algorithm.kl_in_reward_as in ("token-rewards", "scalar"):
        kl = reward_kl(table, algorithm)
        if algorithm.kl_in_reward_as == "scalar":
            of_response, kl = table.sum_by_row(kl), np.zeros(table.n_tokens)
            kl[slot[placed]] = of_response[placed]
        summed, _ = _over(table, SUMMED, rewards - kl)
    acts = table.loss_mask.copy()
    acts[slot[placed]] |= algorithm.terminal == "after-last"
    if algorithm.whiten_rewards:
        summed = np.where(acts, whitened(summed, acts, algorithm, keep_mean=True), summed)
    return TokenRewards(summed, acts)


def terminal(table: TokenTable, algorithm: Algorithm, known: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
    """``[N]`` the token on which each response's reward stands by ``Algorithm.terminal``; −1 where there is none."""
    if algorithm.terminal == "last":
        return np.where(table.lengths > 0, table.offsets[1:] - 1, -1)
    trained = np.flatnonzero(table.loss_mask)
    last = np.full(table.n_rows, -1)
    # The last write to a row is its last trained token.
    last[table.row[trained]] = trained
    if algorithm.terminal == "last-trained":
        return last
    behind = last + 1
    room = (last >= 0) & (behind < table.offsets[1:])
    if known is not None:
        room[room] = known[behind[room]]
    return np.where(room, behind, last)


def _over(table: TokenTable, name: str, rewards: Floats) -> tuple[Floats, bool]:
    """A recorded column in the place of ``rewards`` in every response that has it, and whether all with tokens do."""
    if not table.has(name):
        return rewards, False
    stored = table.values(name)
    finite = np.isfinite(stored)
    # On a token that is not trained a missing reward is no reward; on a trained one it is unknown.
    stored = np.where(finite, stored, np.where(table.loss_mask, np.nan, 0.0))
    has = table.sum_by_row(finite) > 0
    return np.where(table.to_tokens(has) > 0, stored, rewards), bool(has[table.lengths > 0].all())
