"""The entropy bonus as a term of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from credit_inspector.algorithm import Algorithm
from credit_inspector.columns import Inputs, compute
from credit_inspector.credit import credits as credit_columns
from credit_inspector.metrics import metrics
from credit_inspector.rollout import Rollout
from credit_inspector.table import TokenTable

SPECS = {spec.name: spec for registry in (metrics, credit_columns) for spec in registry.members()}
RULE = Algorithm(name="test", source="test", entropy_bonus=0.01, aggregation="seq-mean-token-mean")


def made(masks: Any, rule: Algorithm, entropy: Any = None) -> TokenTable:
    offsets = np.cumsum([0, *map(len, masks)])
    rollouts = [
        Rollout(
            sample_id=str(i),
            response_ids=np.zeros(len(mask), np.int32),
            loss_mask=np.asarray(mask, bool),
            advantage=1.0,
            columns={} if entropy is None else {"entropy/policy": np.asarray(entropy[offsets[i] : offsets[i + 1]], np.float32)},
        )
        for i, mask in enumerate(masks)
    ]
    table = TokenTable.from_rollouts(0, rollouts, algorithm=rule)
    compute(Inputs(table, algorithm=rule), ["credit/entropy_push", "credit/coefficient"], SPECS)
    return table


def pull(masks: Any, rule: Algorithm, entropy: Any = None) -> np.ndarray:
    return made(masks, rule, entropy).values("credit/entropy_push")


def test_it_is_the_gradient_at_the_entropy_and_leads_to_that_at_the_logits() -> None:
    """verl: loss − bonus · agg_loss(entropy), two responses of 2 and 1 tokens over four words."""
    logits = torch.tensor(np.random.default_rng(0).normal(0, 1, (3, 4)), requires_grad=True)
    log_p = torch.log_softmax(logits, -1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    (-0.01 * (entropy[:2].mean() + entropy[2]) / 2).backward()
    assert logits.grad is not None
    p, h = log_p.exp().detach(), entropy.detach()[:, None]
    slope = (-p * (log_p.detach() + h)).numpy()
    found = pull([[1, 1], [1]], RULE)
    np.testing.assert_allclose(-found[:, None] * slope, logits.grad.numpy(), rtol=1e-6)


def test_trl_takes_a_mean_over_tokens_whatever_the_aggregation() -> None:
    rule = replace(RULE, settings={"entropy_token_mean": 1.0}, batch_tokens=None)
    np.testing.assert_allclose(pull([[1, 1, 0], [1]], rule), [0.01 / 3, 0.01 / 3, np.nan, 0.01 / 3], rtol=1e-6)
    np.testing.assert_allclose(pull([[1, 1], [1]], RULE), [0.0025, 0.0025, 0.005], rtol=1e-6)


def test_trl_takes_it_over_the_tokens_of_highest_entropy() -> None:
    rule = replace(RULE, settings={"entropy_token_mean": 1.0}, top_entropy_quantile=0.5)
    np.testing.assert_allclose(pull([[1, 1, 0], [1]], rule, [3.0, 0.1, 9.0, 2.0]), [0.005, 0, np.nan, 0.005], rtol=1e-6)


def test_a_rule_without_a_bonus_pulls_on_nothing() -> None:
    table = made([[1, 0]], replace(RULE, entropy_bonus=0.0))
    np.testing.assert_array_equal(table.columns["credit/entropy_push"].values, [0, np.nan])
    assert table.columns["credit/entropy_push"].note == "the rule has no entropy bonus"


def test_no_coefficient_contains_it() -> None:
    with_bonus, without = made([[1, 1]], RULE), made([[1, 1]], replace(RULE, entropy_bonus=0.0))
    np.testing.assert_array_equal(with_bonus.values("credit/coefficient"), without.values("credit/coefficient"))
    assert "the entropy bonus (0.01) is not in it" in with_bonus.columns["credit/coefficient"].note
