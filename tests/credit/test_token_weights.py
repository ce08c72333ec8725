"""Weights against autograd of the loss written the long way: padded rows, blocks of them, one mean after another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from credit_inspector.algorithm import Algorithm
from credit_inspector.columns import Inputs, compute
from credit_inspector.credit import credits as credit_columns
from credit_inspector.credit.weight import token_weights
from credit_inspector.errors import UsageError
from credit_inspector.rollout import Rollout
from credit_inspector.table import Column, TokenTable

SPECS = {spec.name: spec for spec in credit_columns.members()}
RULE = Algorithm(name="test", source="test", horizon=7.0)
AGGREGATIONS = ("token-mean", "token-sum", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "luspo")


def table_of(masks: Any, **fields: list[Any]) -> TokenTable:
    """One row for each mask; ``fields`` are those of ``Rollout``, one value a row."""
    rollouts = []
    for i, mask in enumerate(masks):
        kept = np.asarray(mask, bool)
        own = {name: values[i] for name, values in fields.items()}
        rollouts.append(Rollout(sample_id=str(i), response_ids=np.zeros(len(kept), np.int32), loss_mask=kept, **own))
    return TokenTable.from_rollouts(0, rollouts)


def column(table: TokenTable, rule: Algorithm) -> Column:
    compute(Inputs(table, algorithm=rule), ["weight"], SPECS)
    return table.columns["weight"]


def aggregated(loss: torch.Tensor, mask: torch.Tensor, rule: Algorithm) -> torch.Tensor:
    """The loss of one block of padded rows, as trainers write it; an empty block has the loss 0 (TRL clamps its divisors)."""
    inside = torch.where(mask, loss, 0.0)
    tokens, lengths = mask.sum(), mask.sum(1)
    rows = torch.tensor(len(mask)) if rule.count_empty else (lengths > 0).sum()
    if rule.batch_tokens:
        tokens = torch.tensor(rule.batch_tokens, dtype=torch.float64)
    if rule.batch_responses:
        rows = torch.tensor(rule.batch_responses, dtype=torch.float64)
    if rule.aggregation == "token-mean":
        return inside.sum() / tokens.clamp(min=1)
    if rule.aggregation == "token-sum":
        return inside.sum()
    each = inside.sum(1)
    if rule.aggregation == "seq-mean-token-mean":
        each = each / lengths.clamp(min=1)
    if rule.aggregation == "seq-mean-token-sum-norm":
        each = each / rule.horizon
    return each.sum() / rows.clamp(min=1)


def long_way(masks: list[list[bool]], rule: Algorithm) -> np.ndarray:
    """``[T]`` autograd's weights, the rows cut into micro-batches."""
    width = max((len(mask) for mask in masks), default=0)
    padded = torch.tensor([mask + [False] * (width - len(mask)) for mask in masks], dtype=torch.bool).reshape(len(masks), width)
    loss = torch.zeros(padded.shape, dtype=torch.float64, requires_grad=True)
    size = rule.micro_batch or len(masks)
    blocks = [aggregated(loss[i : i + size], padded[i : i + size], rule) for i in range(0, len(masks), size)]
    torch.stack(blocks).mean().backward()
    assert loss.grad is not None
    there = np.arange(width) < np.array([len(mask) for mask in masks])[:, None]
    return loss.grad.numpy()[there]


MASKS = st.lists(st.lists(st.booleans(), max_size=6), min_size=1, max_size=7)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@settings(max_examples=60, deadline=None)
@given(masks=MASKS, counted=st.booleans(), size=st.none() | st.integers(1, 8))
def test_weights_are_the_gradient_of_the_aggregated_loss(aggregation: Any, masks: Any, counted: bool, size: int | None) -> None:
    rule = replace(RULE, aggregation=aggregation, count_empty=counted, micro_batch=size)
    ours, theirs = token_weights(table_of(masks), rule), long_way(masks, rule)
    trained = np.array([each for mask in masks for each in mask], bool)
    np.testing.assert_allclose(ours[trained], theirs[trained], rtol=1e-12)
    assert np.isnan(ours[~trained]).all()
    assert not theirs[~trained].any()


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@settings(max_examples=25, deadline=None)
@given(masks=MASKS, tokens=st.floats(1, 500), responses=st.floats(1, 50))
def test_the_runs_own_counts_are_divided_by(aggregation: Any, masks: Any, tokens: float, responses: float) -> None:
    rule = replace(RULE, aggregation=aggregation, batch_tokens=tokens, batch_responses=responses)
    trained = np.array([each for mask in masks for each in mask], bool)
    np.testing.assert_allclose(token_weights(table_of(masks), rule)[trained], long_way(masks, rule)[trained], rtol=1e-12)


@pytest.mark.parametrize(("aggregation", "given"), [("token-mean", "batch_tokens"), ("seq-mean-token-mean", "batch_responses")])
def test_micro_batches_change_nothing_where_the_run_counts_for_all_of_them(aggregation: Any, given: str) -> None:
    table = table_of([[1] * 5, [1], [1, 0, 1]])
    rule = replace(RULE, aggregation=aggregation, **{given: 10.0})
    np.testing.assert_array_equal(token_weights(table, rule), token_weights(table, replace(rule, micro_batch=1)))


def test_micro_batches_of_100_and_2_tokens() -> None:
    table = table_of([[1] * 100, [1] * 2])
    weights = token_weights(table, replace(RULE, micro_batch=1))
    np.testing.assert_allclose(weights, [0.005] * 100 + [0.25] * 2)
    np.testing.assert_allclose(token_weights(table, RULE), 1 / 102)
    assert "averaged in micro-batches of 1 responses" in column(table, replace(RULE, micro_batch=1)).note


def test_the_sum_of_responses_means_is_a_mean_over_one_response() -> None:
    """slime's ``sum_of_sample_mean``."""
    table = table_of([[1] * 4, [1, 0, 1], [0, 0]])
    weights = token_weights(table, replace(RULE, aggregation="seq-mean-token-mean", batch_responses=1.0))
    np.testing.assert_allclose(weights, [0.25] * 4 + [0.5, np.nan, 0.5] + [np.nan] * 2)


def test_the_width_is_that_of_the_longest_response_trained_or_not() -> None:
    table = table_of([[1, 0, 1, 0, 0], [1]])
    rule = replace(RULE, aggregation="seq-mean-token-sum-norm", horizon=None, horizon_is_width=True)
    np.testing.assert_allclose(token_weights(table, rule)[[0, 2, 5]], 1 / (2 * 5))
    assert "that of the batch's longest response" in column(table, rule).note
    wider = table_of([[1, 0, 1, 0, 0, 0, 0, 0], [1]])
    np.testing.assert_allclose(token_weights(wider, rule)[[0, 2, 8]], 1 / (2 * 8))


@settings(max_examples=40, deadline=None)
@given(masks=MASKS, order=st.randoms(), aggregation=st.sampled_from(AGGREGATIONS), counted=st.booleans())
def test_order_and_padding_change_no_weight(masks: Any, order: Any, aggregation: Any, counted: bool) -> None:
    rule = replace(RULE, aggregation=aggregation, count_empty=counted)
    table = table_of(masks)
    rows = list(range(len(masks)))
    order.shuffle(rows)
    moved = table_of([[*masks[row], False, False] for row in rows])
    first, second = token_weights(table, rule), token_weights(moved, rule)
    for place, row in enumerate(rows):
        np.testing.assert_array_equal(second[moved.slice(place)][: len(masks[row])], first[table.slice(row)])


def test_what_the_rule_leaves_out_is_in_no_divisor() -> None:
    """A group without spread, a truncated response, and four tokens that are left."""
    table = table_of([[1, 1], [1], [1] * 5, [1, 1, 0, 1, 1]], group_id=["a", "a", "b", "b"], reward=[1.0, 1.0, 0.0, 1.0])
    rollouts = [replace(each, truncated=i == 2) for i, each in enumerate(table.rollouts)]
    table = TokenTable.from_rollouts(0, rollouts)
    for aggregation, expected in (("token-mean", 1 / 4), ("seq-mean-token-mean", 1 / 4), ("seq-mean-token-sum", 1.0)):
        rule = replace(RULE, aggregation=aggregation, drop_dead_groups=True, mask_truncated=True)  # type: ignore[arg-type]
        weights = token_weights(table, rule)
        np.testing.assert_allclose(weights[8:], np.array([1, 1, np.nan, 1, 1]) * expected)
        assert not weights[:8].any()
        counted = token_weights(table, replace(rule, count_empty=True))
        part = 1.0 if aggregation == "token-mean" else 0.5
        np.testing.assert_allclose(counted, weights * part, err_msg="the masked response counts, the dropped group never")
    note = column(table, rule).note
    assert "4 trained tokens of 1 responses" in note
    assert "8 trained tokens left out, weight 0" in note
    assert "2 responses of dropped groups are no part of the batch" in note


def test_micro_batches_are_cut_once_dropped_groups_are_gone() -> None:
    table = table_of([[1, 1], [1], [1] * 3, [1]], group_id=["a", "b", "a", "b"], reward=[1.0, 0.0, 1.0, 1.0])
    weights = token_weights(table, replace(RULE, drop_dead_groups=True, micro_batch=2))
    np.testing.assert_allclose(weights, [0, 0, 0.5, 0, 0, 0, 0.5])


def test_several_updates_are_said() -> None:
    note = column(table_of([[1]]), replace(RULE, updates_per_batch=4)).note
    assert "4 updates per batch: weights are those of the whole batch as one step" in note


@pytest.mark.parametrize("field", ["batch_tokens", "batch_responses", "micro_batch"])
def test_a_divisor_of_0_is_refused(field: str) -> None:
    rule = replace(RULE, aggregation="seq-mean-token-mean" if field == "batch_responses" else "token-mean", **{field: 0})
    with pytest.raises(UsageError, match=f"{field} 0; wanted"):
        token_weights(table_of([[1]]), rule)
