"""Batches for the tests of policy losses: ragged, masked, off-policy up to e^±30, laid end to end and padded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from credit_inspector.algorithm import Algorithm
from credit_inspector.credit.policy_push import Pushed, pushed
from credit_inspector.rollout import Rollout
from credit_inspector.table import Column, Provenance, TokenTable

NOISE = (np.nan, np.inf, -np.inf, 1e30, 0.0)


@dataclass(frozen=True)
class Batch:
    """Padded ``[B, T]`` arrays; what stands at masked places is anything."""

    mask: np.ndarray
    policy: np.ndarray
    old: np.ndarray
    advantage: np.ndarray
    weight: np.ndarray

    def tensor(self, values: np.ndarray, *, grad: bool = False) -> torch.Tensor:
        """The values with 0 at masked places."""
        return torch.tensor(np.where(self.mask, values, 0.0), requires_grad=grad)


def rule(**fields: Any) -> Algorithm:
    return Algorithm(**{"name": "test", "source": "test", "updates_per_batch": 2, **fields})


def table_of(batch: Batch, lengths: np.ndarray | None = None, **columns: np.ndarray) -> TokenTable:
    """The batch as a table of float64 columns, one response a row."""
    lengths = np.full(len(batch.mask), batch.mask.shape[1]) if lengths is None else lengths
    rows = [
        Rollout(
            sample_id=str(i), response_ids=np.zeros(n, np.int32), loss_mask=mask[:n], group_id=str(i // 2), reward=float(i % 2)
        )
        for i, (n, mask) in enumerate(zip(lengths, batch.mask, strict=True))
    ]
    table = TokenTable.from_rollouts(0, rows)
    for name, values in {"logprob/policy": batch.policy, "logprob/old": batch.old, **columns}.items():
        table.columns[name] = Column(laid(values, lengths), Provenance.RECORDED)  # type: ignore[arg-type]
    return table


def laid(padded: np.ndarray, lengths: np.ndarray | None = None) -> np.ndarray:
    """``[B, T]`` → the rows end to end, each as long as ``lengths`` says."""
    lengths = np.full(len(padded), padded.shape[1]) if lengths is None else lengths
    return np.concatenate([np.zeros(0, padded.dtype), *(row[:n] for row, n in zip(padded, lengths, strict=True))])


def push(batch: Batch, **fields: Any) -> Pushed:
    """What the package makes of it under a rule with these fields."""
    return pushed(table_of(batch), rule(**fields), laid(batch.advantage), laid(batch.weight))


def one_row(policy: Any, old: Any, advantage: Any, weight: Any = 1.0) -> Batch:
    """A batch of one response, all of it trained."""
    shape = np.shape(policy)
    given = [np.broadcast_to(np.asarray(values, float), shape)[None] for values in (policy, old, advantage, weight)]
    return Batch(np.ones((1, *shape), bool), *given)


def of_ratio(ratio: Any, advantage: Any) -> Batch:
    """One response with these ratios, each token with weight 1."""
    policy = np.full(len(ratio), -50.0)
    return one_row(policy, policy - np.log(np.asarray(ratio, float)), advantage)


GAINS = (-2.5, -1.0, 0.0, 0.5, 3.0)
LOGPROBS = st.floats(-30.0, 0.0)
NEAR = st.floats(-0.6, 0.6)


@st.composite
def batches(draw: st.DrawFn, *, gain_by: str = "any", min_trained: int = 0) -> Batch:
    """Up to 4 responses of up to 6 tokens; half of the log-ratios are small, the others anything within ±30."""
    rows, width = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    tokens = rows * width

    def values(what: st.SearchStrategy[Any], count: int = tokens) -> np.ndarray:
        return np.array(draw(st.lists(what, min_size=count, max_size=count))).reshape(rows, -1)

    mask = values(st.booleans())
    mask.flat[:min_trained] = True
    policy, far = values(LOGPROBS), values(LOGPROBS)
    near = np.minimum(policy - values(NEAR), 0.0)
    old = np.where(values(st.booleans()), near, far)
    by_token = draw(st.booleans()) if gain_by == "any" else gain_by == "token"
    advantage = np.broadcast_to(values(st.sampled_from(GAINS), tokens if by_token else rows), mask.shape)
    weight = values(st.floats(0.01, 1.0))
    noise = draw(st.sampled_from(NOISE))
    masked = [np.where(mask, each, noise) for each in (policy, old, advantage, weight)]
    return Batch(mask, *masked)
