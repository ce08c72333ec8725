"""What holds for every policy loss: masks, missing and extreme numbers, advantages of 0, scale."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from credit_inspector.columns import Inputs, compute
from credit_inspector.credit import credits as credit_columns
from credit_inspector.credit import policy_push
from credit_inspector.credit.policy_push import pushed
from credit_inspector.errors import MissingColumn
from credit_inspector.losses import losses
from credit_inspector.table import Column, Provenance
from losses.batches import NOISE, Batch, batches, laid, of_ratio, one_row, push, rule, table_of

FEW = settings(max_examples=15, deadline=None)
SETTINGS = {"dro": {"beta": 0.5}, "kl_cov": {"ratio": 0.3}}
RULES: list[dict[str, Any]] = [
    {"loss": name, "ratio_level": level, "settings": SETTINGS.get(name, {})}
    for name in losses
    if name != "clip_cov"
    for level in losses[name].levels
]
# These have a term of their own that acts without an advantage.
PENALISED = {"dro", "prime", "prime_ipo", "kl_cov"}
PUSHED_BY_ADVANTAGE = [fields for fields in RULES if fields["loss"] not in PENALISED]


def name_of(fields: dict[str, Any]) -> str:
    return f"{fields['loss']}-{fields['ratio_level']}"


every_loss = pytest.mark.parametrize("fields", RULES, ids=name_of)


@every_loss
@FEW
@given(batch=batches(), noise=st.sampled_from(NOISE))
def test_what_stands_at_a_masked_place_changes_nothing(fields: dict[str, Any], batch: Batch, noise: float) -> None:
    given_values = (batch.policy, batch.old, batch.advantage, batch.weight)
    other = Batch(batch.mask, *(np.where(batch.mask, values, noise) for values in given_values))
    ours, theirs = push(batch, **fields).push, push(other, **fields).push
    np.testing.assert_array_equal(ours.coefficient, theirs.coefficient)
    np.testing.assert_array_equal(ours.clipped, theirs.clipped)


@every_loss
@FEW
@given(batch=batches(), size=st.integers(1, 5))
def test_working_through_a_step_in_pieces_changes_nothing(fields: dict[str, Any], batch: Batch, size: int) -> None:
    whole = push(batch, **fields).push
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy_push, "_PIECE", size)
        cut = push(batch, **fields).push
    np.testing.assert_array_equal(cut.coefficient, whole.coefficient)
    np.testing.assert_array_equal(cut.clipped, whole.clipped)


@every_loss
@FEW
@given(batch=batches(gain_by="response"))
def test_padding_changes_nothing(fields: dict[str, Any], batch: Batch) -> None:
    lengths = np.where(batch.mask.any(1), batch.mask.shape[1] - batch.mask[:, ::-1].argmax(1), 0)
    arrays = laid(batch.advantage, lengths), laid(batch.weight, lengths)
    cropped = pushed(table_of(batch, lengths), rule(**fields), *arrays).push
    whole = push(batch, **fields).push
    trained = laid(batch.mask)
    np.testing.assert_array_equal(cropped.coefficient[laid(batch.mask, lengths)], whole.coefficient[trained])


@pytest.mark.parametrize("fields", PUSHED_BY_ADVANTAGE, ids=name_of)
@FEW
@given(batch=batches())
def test_without_an_advantage_there_is_no_push_and_no_clipping(fields: dict[str, Any], batch: Batch) -> None:
    found = push(replace(batch, advantage=np.where(batch.mask, 0.0, batch.advantage)), **fields).push
    trained = laid(batch.mask)
    assert not found.coefficient[trained].any()
    assert not found.clipped.any()


@pytest.mark.parametrize("fields", PUSHED_BY_ADVANTAGE, ids=name_of)
@FEW
@given(batch=batches(), factor=st.floats(0.01, 100))
def test_the_push_scales_with_the_advantages(fields: dict[str, Any], batch: Batch, factor: float) -> None:
    found, scaled = push(batch, **fields).push, push(replace(batch, advantage=batch.advantage * factor), **fields).push
    largest = np.nanmax(np.abs(scaled.coefficient), initial=0.0)
    np.testing.assert_allclose(scaled.coefficient, found.coefficient * factor, rtol=1e-9, atol=1e-12 * largest)
    np.testing.assert_array_equal(scaled.clipped, found.clipped)


@every_loss
@FEW
@given(batch=batches(min_trained=2), place=st.integers(0, 23))
def test_a_token_without_a_log_prob_is_left_out_of_the_others_too(fields: dict[str, Any], batch: Batch, place: int) -> None:
    """As if it were masked, for the weights given; the loss that needs no ratio keeps it."""
    if fields["loss"] == "reinforce":
        return
    where = np.unravel_index(place % batch.mask.size, batch.mask.shape)
    for hole in (np.nan, -np.inf):
        old, mask = batch.old.copy(), batch.mask.copy()
        old[where], mask[where] = hole, False
        found, without = push(replace(batch, old=old), **fields).push, push(replace(batch, mask=mask), **fields).push
        np.testing.assert_array_equal(found.coefficient, without.coefficient)


@every_loss
@pytest.mark.parametrize("gain", [1.0, -1.0, 0.0])
@pytest.mark.parametrize("apart", [800.0, -800.0, np.inf, -np.inf])
def test_no_infinity_and_no_warning_at_any_ratio(fields: dict[str, Any], gain: float, apart: float) -> None:
    batch = one_row([-900.0, -1.0, -1.0], [-900.0 - apart, -1.0, -1.5], gain)
    with np.errstate(all="raise", under="ignore"):
        table = table_of(batch)
        table.columns["advantage"] = Column(laid(batch.advantage), Provenance.RECORDED)  # type: ignore[arg-type]
        table.columns["weight"] = Column(laid(batch.weight), Provenance.RECORDED)  # type: ignore[arg-type]
        specs = {spec.name: spec for spec in credit_columns.members()}
        compute(Inputs(table, algorithm=rule(**fields)), ["credit/policy_push", "clip"], specs)
    found, codes = table.columns["credit/policy_push"], table.columns["clip"]
    assert found.values is not None
    assert not np.isinf(found.values).any()
    if missing := int(np.isnan(found.values).sum()):
        assert f"{missing} trained {'token' if missing == 1 else 'tokens'} left out: no finite value" in found.note
    np.testing.assert_array_equal(np.isnan(codes.values), np.isnan(found.values))
    if gain == 0 and np.isfinite(apart) and fields["loss"] not in PENALISED:
        np.testing.assert_array_equal(found.values, [0, 0, 0])


@pytest.mark.parametrize("level", ["token", "sequence-token", "sequence", "product"])
def test_an_infinite_ratio_that_is_cut_pushes_nothing(level: str) -> None:
    batch = one_row([-1.0], [-1000.0], [1.0])
    found = push(batch, ratio_level=level).push
    np.testing.assert_array_equal([found.coefficient[0], found.clipped[0]], [0, 1])
    assert push(replace(batch, advantage=-batch.advantage), ratio_level=level).push.coefficient == np.inf
    assert push(replace(batch, advantage=-batch.advantage), ratio_level=level, dual_clip=3.0).push.coefficient == 0


def test_the_first_update_needs_no_log_probs() -> None:
    batch = of_ratio([1.0, 1.0], [1.0, -2.0])
    table = table_of(batch)
    table.columns.clear()
    for fields in RULES:
        if fields["loss"] in PENALISED or fields["loss"].startswith("dppo"):
            continue
        fewer = {**fields, "updates_per_batch": 1}
        found = pushed(table, rule(**fewer), laid(batch.advantage), laid(batch.weight))
        together = fields["ratio_level"] in {"sequence", "product"} and found.push.through == "ratio"
        sums = {"sequence": [0.5, 0.5], "product": [1.0, 1.0]}
        gmpo = [0.5, 0.5]
        expected = sums[fields["ratio_level"]] if together else gmpo if fields["loss"] == "gmpo" else [-1.0, 2.0]
        np.testing.assert_allclose(found.push.coefficient, expected, err_msg=name_of(fields))


def test_the_ratio_to_the_engine_is_the_ratio_to_its_log_probs() -> None:
    """verl's bypass mode and prime-rl: the engine's log-probs stand where the trainer's own stood."""
    batch = of_ratio([0.5, 1.1, 3.0], [1.0, -1.0, 1.0])
    table = table_of(replace(batch, old=np.full_like(batch.old, np.nan)), **{"logprob/rollout": batch.old})
    for name in ("ppo_clip", "prime", "dppo_tv", "sapo"):
        found = pushed(table, rule(loss=name, ratio_from="rollout"), laid(batch.advantage), laid(batch.weight))
        np.testing.assert_array_equal(found.push.coefficient, push(batch, loss=name).push.coefficient)
        assert "ratio to the sampling engine's log-probs" in found.note


def test_a_ratio_to_an_engine_that_nobody_recorded_is_missing() -> None:
    batch = of_ratio([1.0], [1.0])
    with pytest.raises(MissingColumn, match="logprob/rollout is not there, and test takes the ratio to the sampling engine"):
        pushed(table_of(batch), rule(ratio_from="rollout"), laid(batch.advantage), laid(batch.weight))


@every_loss
@FEW
@given(batch=batches())
def test_what_the_rule_leaves_out_has_no_push_and_is_nothing_to_the_others(fields: dict[str, Any], batch: Batch) -> None:
    """The first response ended at its limit, under a rule that does not train such."""
    table, out = table_of(batch), np.zeros_like(batch.mask)
    table.rollouts = (replace(table.rollouts[0], truncated=True), *table.rollouts[1:])
    out[0] = batch.mask[0]
    arrays = laid(batch.advantage), laid(batch.weight)
    found = pushed(table, rule(mask_truncated=True, **fields), *arrays)
    without = push(replace(batch, mask=batch.mask & ~out), **fields).push
    assert not found.push.coefficient[laid(out)].any()
    np.testing.assert_array_equal(found.push.coefficient[~laid(out)], without.coefficient[~laid(out)])
    np.testing.assert_array_equal(found.push.clipped, without.clipped)
    if out.any():
        assert f"{out.sum()} trained token{'s' if out.sum() > 1 else ''} left out by the rule" in found.note
