"""Constants before the loss: rollout weights by hand, the two masks against TRL's own functions."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trl.trainer.grpo_trainer import GRPOTrainer

from credit_inspector.algorithm import Algorithm
from credit_inspector.columns import Inputs, compute
from credit_inspector.credit import credits as credit_columns
from credit_inspector.credit.constants import loss_constants
from credit_inspector.credit.rollout_weight import rollout_weights
from credit_inspector.errors import MissingColumn, UsageError
from credit_inspector.metrics import metrics
from credit_inspector.rollout import Rollout
from credit_inspector.table import Column, Provenance, TokenTable

SPECS = {spec.name: spec for registry in (metrics, credit_columns) for spec in registry.members()}
RULE = Algorithm(name="test", source="test")
NAN, INF = np.nan, np.inf


def table_of(masks: Any, **columns: Any) -> TokenTable:
    """``columns`` are ``[T]``, under names with ``_`` for ``/``; kept in float64."""
    rollouts = [
        Rollout(sample_id=str(i), response_ids=np.zeros(len(mask), np.int32), loss_mask=np.asarray(mask, bool))
        for i, mask in enumerate(masks)
    ]
    table = TokenTable.from_rollouts(0, rollouts)
    for name, values in columns.items():
        table.columns[name.replace("_", "/")] = Column(np.asarray(values, float), Provenance.RECORDED)  # type: ignore[arg-type]
    return table


def kappas(masks: Any, *kappa: float, engine: float = 0.0) -> TokenTable:
    with np.errstate(divide="ignore"):
        log_kappa = np.log(np.array(kappa))
    return table_of(masks, logprob_old=log_kappa + engine, logprob_rollout=np.full(len(kappa), engine))


def factor(table: TokenTable, rule: Algorithm, advantage: Any = None, log_ratio: Any = None) -> np.ndarray:
    ones = np.ones(table.n_tokens)
    drift = np.zeros(table.n_tokens) if log_ratio is None else np.asarray(log_ratio, float)
    return loss_constants(table, rule, ones if advantage is None else np.asarray(advantage, float), drift).factor


# ── rollout weight ──────────────────────────────────────────────────────────────────────────────────────────────────

KAPPA = (3.0, 1.2, 0.4, 1.0)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"rollout_weight": "none"}, (1, 1, 1, 1)),
        ({"rollout_weight": "token"}, (3, 1.2, 0.4, 1)),
        ({"rollout_weight": "token", "rollout_high": 2}, (2, 1.2, 0.4, 1)),
        ({"rollout_weight": "token", "rollout_low": 0.5, "rollout_high": 2}, (2, 1.2, 0.5, 1)),
        ({"rollout_weight": "token", "rollout_low": 0.5, "rollout_high": 2, "rollout_outside": "mask"}, (0, 1.2, 0, 1)),
        ({"rollout_weight": "sequence-product"}, (3.6, 3.6, 0.4, 0.4)),
        ({"rollout_weight": "sequence-product", "rollout_high": 3}, (3, 3, 0.4, 0.4)),
        ({"rollout_weight": "sequence-product", "rollout_high": 3, "rollout_outside": "mask"}, (0, 0, 0.4, 0.4)),
        ({"rollout_weight": "sequence-geo"}, (3.6**0.5, 3.6**0.5, 0.4**0.5, 0.4**0.5)),
        (
            {"rollout_weight": "token", "rollout_gate": "sequence-geo", "rollout_high": 1.8, "rollout_outside": "mask"},
            (0, 0, 0.4, 1),
        ),
        (
            {"rollout_weight": "token", "rollout_gate": "sequence-product", "rollout_low": 0.5, "rollout_outside": "mask"},
            (3, 1.2, 0, 0),
        ),
        (
            {"rollout_weight": "sequence-product", "rollout_gate": "token", "rollout_high": 2.5, "rollout_outside": "mask"},
            (0, 3.6, 0.4, 0.4),
        ),
        ({"rollout_weight": "none", "rollout_gate": "token", "rollout_high": 2, "rollout_outside": "mask"}, (0, 1, 1, 1)),
    ],
)
def test_weights_by_form_gate_and_bounds(fields: Any, expected: Any) -> None:
    """Two responses of two tokens."""
    np.testing.assert_allclose(factor(kappas([[1, 1], [1, 1]], *KAPPA), replace(RULE, **fields)), expected, rtol=1e-12)


@pytest.mark.parametrize(("level", "expected"), [("token", (0, 0.9 / 0.8, 1)), ("sequence", (0.9 / 0.8, 0.9 / 0.8, 0))])
def test_the_binary_kl_is_that_of_the_sampled_token(level: str, expected: Any) -> None:
    """Engine and trainer at 0.8/0.5, 0.8/0.9 and 0.5/0.5: 0.22315, 0.04440 and 0 nats; means 0.1338 and 0."""
    rollout, trainer = np.array([0.8, 0.8, 0.5]), np.array([0.5, 0.9, 0.5])
    table = table_of([[1, 1], [1]], logprob_old=np.log(trainer), logprob_rollout=np.log(rollout))
    high, low = (0.1, 0.0) if level == "token" else (0.2, 0.01)
    rule = replace(RULE, rollout_weight="token", rollout_gate=f"{level}-binary-kl", rollout_outside="mask")
    found = factor(table, replace(rule, rollout_low=low, rollout_high=high))
    if level == "sequence":
        expected = (0.5 / 0.8, *expected[1:])
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_sequences_are_those_of_trained_tokens_and_masked_places_are_not_read() -> None:
    table = table_of([[1, 0, 1]], logprob_old=[np.log(2), NAN, np.log(2)], logprob_rollout=[0, INF, 0])
    found = rollout_weights(table, replace(RULE, rollout_weight="sequence-geo")).values
    np.testing.assert_allclose(found[[0, 2]], 2)


def test_normalised_weights_have_the_mean_1() -> None:
    table = kappas([[1, 1], [1, 0], [1, 1]], 4.0, 1.0, 1.0, 99.0, 1.0, 0.5)
    of_tokens = factor(table, replace(RULE, rollout_weight="token", rollout_high=2.0, rollout_normalize=True))
    np.testing.assert_allclose(of_tokens[table.loss_mask], np.array([2, 1, 1, 1, 0.5]) / 1.1)
    of_responses = factor(table, replace(RULE, rollout_weight="sequence-product", rollout_high=2.0, rollout_normalize=True))
    np.testing.assert_allclose(of_responses[table.loss_mask], np.array([2, 2, 1, 0.5, 0.5]) / (3.5 / 3))


def test_weights_that_are_all_masked_are_not_divided_by_their_mean() -> None:
    rule = replace(RULE, rollout_weight="token", rollout_high=1.0, rollout_outside="mask", rollout_normalize=True)
    np.testing.assert_array_equal(factor(kappas([[1, 1]], 2.0, 3.0), rule), [0, 0])


@pytest.mark.parametrize(
    ("weight", "unknown", "expected"),
    [
        ("token", 1.0, (1, 2)),
        ("token", 0.0, (0, 2)),
        ("sequence-product", 1.0, (2, 2)),
        ("sequence-product", 0.0, (0, 0)),
        ("sequence-geo", 1.0, (2**0.5, 2**0.5)),
    ],
)
def test_a_token_that_the_engine_did_not_score(weight: Any, unknown: float, expected: Any) -> None:
    """TRL corrects nothing there; NeMo-RL gives the weight 0, and so to a product over the response."""
    table = table_of([[1, 1]], logprob_old=[-1.0, np.log(2)], logprob_rollout=[NAN, 0.0])
    rule = replace(RULE, rollout_weight=weight, settings={"rollout_unknown": unknown})
    found = loss_constants(table, rule, np.ones(2), np.zeros(2))
    np.testing.assert_allclose(found.factor, expected)
    assert f"1 without a log-prob of the engine: weight {unknown:g}" in found.note
    if unknown == 1:
        np.testing.assert_array_equal(factor(table, replace(rule, settings={})), found.factor)


def test_an_impossible_token_is_held_at_the_bound_or_masked_or_has_no_weight() -> None:
    table = kappas([[1, 1]], INF, 1.0)
    assert factor(table, replace(RULE, rollout_weight="token", rollout_high=2.0))[0] == 2
    assert factor(table, replace(RULE, rollout_weight="token", rollout_high=2.0, rollout_outside="mask"))[0] == 0
    compute(Inputs(table, algorithm=replace(RULE, rollout_weight="token")), ["rollout_weight"], SPECS)
    made = table.columns["rollout_weight"]
    np.testing.assert_array_equal(made.values, [NAN, 1])
    assert "1 trained token left out: no finite value" in made.note


def test_recorded_weights_are_used_as_they_are_and_made_ones_are_made_again() -> None:
    rule = replace(RULE, rollout_weight="token", rollout_high=2.0)
    table = kappas([[1, 1]], 9.0, 1.0)
    made = Column(np.array([7.0, 7.0], np.float32), Provenance.DERIVED)
    table.columns["rollout_weight"] = made
    np.testing.assert_allclose(factor(table, rule), [2, 1])
    table.columns["rollout_weight"] = replace(made, provenance=Provenance.RECORDED)
    found = loss_constants(table, rule, np.ones(2), np.zeros(2))
    np.testing.assert_array_equal(found.factor, [7, 7])
    assert found.note == "rollout weights as recorded"


def test_the_column_says_what_was_done() -> None:
    table = kappas([[1, 1, 0]], 9.0, 1.0, 9.0)
    compute(Inputs(table, algorithm=replace(RULE, rollout_weight="token", rollout_high=2.0)), ["rollout_weight"], SPECS)
    found = table.columns["rollout_weight"]
    np.testing.assert_array_equal(found.values, [2, 1, NAN])
    assert "rollout weight token, 1 of 2 tokens outside 2 held at them" in found.note
    plain = table_of([[1]])
    compute(Inputs(plain, algorithm=RULE), ["rollout_weight"], SPECS)
    assert plain.columns["rollout_weight"].values == [1]
    assert plain.columns["rollout_weight"].note == "the rule does not correct for the sampling engine"


def test_what_cannot_be_is_refused() -> None:
    table = kappas([[1]], 1.0)
    with pytest.raises(UsageError, match="rollout_outside truncate with rollout_gate sequence-geo"):
        factor(table, replace(RULE, rollout_weight="token", rollout_gate="sequence-geo", rollout_high=2.0))
    with pytest.raises(MissingColumn, match="logprob/rollout is not there, and test weights tokens by it"):
        factor(table_of([[1]], logprob_old=[-1.0]), replace(RULE, rollout_weight="token"))


# ── the masks ───────────────────────────────────────────────────────────────────────────────────────────────────────

ONE_PROCESS = SimpleNamespace(pad_across_processes=lambda x, **_: x, gather=lambda x: x)


@st.composite
def batches(draw: st.DrawFn) -> tuple[np.ndarray, np.random.Generator]:
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = draw(st.integers(1, 5)), draw(st.integers(1, 8))
    return random.random(shape) < draw(st.sampled_from([1.0, 0.6, 0.2])), random


@settings(max_examples=100, deadline=None)
@given(
    batch=batches(),
    share=st.floats(0, 1, exclude_max=True) | st.sampled_from([0.1, 0.2, 0.3, 0.5, 0.7]),
    digits=st.integers(0, 6),
)
def test_the_tokens_of_highest_entropy_are_those_of_trl(batch: Any, share: float, digits: int) -> None:
    mask, random = batch
    entropy = np.round(random.exponential(1.0, mask.shape), digits).astype(np.float32)
    trl = SimpleNamespace(accelerator=ONE_PROCESS)
    theirs = GRPOTrainer.get_high_entropy_mask(trl, torch.tensor(entropy), torch.tensor(mask), 1 - share).numpy()
    table = table_of(mask, entropy_policy=np.where(mask, entropy, NAN).ravel())
    ours = factor(table, replace(RULE, top_entropy_quantile=share)).reshape(mask.shape)
    np.testing.assert_array_equal(ours[mask], theirs[mask])


def test_a_rank_meant_to_be_whole_is_whole() -> None:
    """11 tokens, the upper 70 %: the third of ten steps, whose rank is 3.0000000000000004 in float64."""
    table = table_of([[1] * 11], entropy_policy=np.arange(11.0))
    np.testing.assert_array_equal(factor(table, replace(RULE, top_entropy_quantile=0.7)), np.arange(11) >= 3)


def test_a_token_without_an_entropy_has_no_coefficient_and_is_in_no_quantile() -> None:
    table = table_of([[1, 1, 1, 0]], entropy_policy=[1.0, NAN, 3.0, 9.0])
    found = loss_constants(table, replace(RULE, top_entropy_quantile=0.5), np.ones(4), np.zeros(4))
    np.testing.assert_array_equal(found.factor[:3], [0, NAN, 1])
    assert "1 of 2 tokens, those of highest entropy, are trained" in found.note
    with pytest.raises(MissingColumn, match="entropy/policy is not there, and test trains the 50% of tokens"):
        factor(table_of([[1]]), replace(RULE, top_entropy_quantile=0.5))


@settings(max_examples=100, deadline=None)
@given(batch=batches(), threshold=st.floats(-0.5, 0.5), holes=st.booleans(), from_engine=st.booleans())
def test_the_off_policy_mask_is_that_of_trl(batch: Any, threshold: float, holes: bool, from_engine: bool) -> None:
    mask, random = batch
    policy, start = (-random.exponential(1.0, mask.shape) for _ in range(2))
    start[:, 1:] = np.where(holes & (random.random(start[:, 1:].shape) < 0.3), NAN, start[:, 1:])
    mask[:, 0] = True  # a token with a log-prob in every response
    advantage = random.normal(0, 1, mask.shape) * random.choice([0, 1, 1], mask.shape)
    theirs = GRPOTrainer.get_off_policy_mask(*map(torch.tensor, (advantage, policy, start, mask.astype(float))), threshold)
    rule = replace(RULE, off_policy_mask=threshold, settings={"off_policy_from_rollout": float(from_engine)})
    spoilt = np.where(mask, policy - start, INF).ravel()
    table = table_of(mask)
    if from_engine:
        table = table_of(mask, logprob_policy=np.where(mask, policy, NAN).ravel(), logprob_rollout=start.ravel())
        spoilt = np.full(mask.size, NAN)
    ours = factor(table, rule, np.where(mask, advantage, NAN).ravel(), spoilt).reshape(mask.shape)
    np.testing.assert_array_equal(ours[mask], theirs.numpy()[mask])


def test_a_response_whose_drift_nobody_knows_is_not_pushed_down_by_a_guess() -> None:
    table = table_of([[1, 1]])
    found = factor(table, replace(RULE, off_policy_mask=0.1), advantage=[-1.0, 1.0], log_ratio=[NAN, NAN])
    np.testing.assert_array_equal(found, [NAN, 1])


def test_the_constants_are_multiplied_and_each_says_what_it_did() -> None:
    table = kappas([[1, 1], [1, 1]], 3.0, 1.0, 1.0, 1.0)
    table.columns["entropy/policy"] = Column(np.array([2.0, 1.0, 2.0, 1.0], np.float32), Provenance.RECORDED)
    rule = replace(RULE, rollout_weight="token", rollout_high=2.0, top_entropy_quantile=0.5, off_policy_mask=0.1)
    found = loss_constants(table, rule, np.array([1.0, 1, -1, -1]), np.array([0, 0, -1.0, -1]))
    np.testing.assert_array_equal(found.factor, [2, 0, 0, 0])
    said = ("rollout weight token", "2 of 4 tokens, those of highest entropy", "off-policy mask: 1 of 2 responses")
    assert all(part in found.note for part in said)
