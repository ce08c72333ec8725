"""Assigned credit against the trainer's own loss: torch autograd through TRL's ``GRPOTrainer._compute_loss``.

The method is called on a stand-in for the trainer whose model is a tensor of log-probs, so that its gradient is
dL/dlogπ itself. Batches are made up: ragged, with holes in the mask and with ratios far beyond every bound.
"""

from __future__ import annotations

import functools
import types
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trl.trainer.grpo_trainer import GRPOTrainer

from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.from_trl import algorithm_of
from credit_inspector.columns import Inputs, compute
from credit_inspector.credit import credits as credit_columns
from credit_inspector.losses import LossInputs, Push, losses
from credit_inspector.metrics import metrics
from credit_inspector.rollout import Rollout
from credit_inspector.table import TokenTable

SPECS = {spec.name: spec for registry in (metrics, credit_columns) for spec in registry.members()}
VLLM = {
    "vllm_importance_sampling_mode": "token_truncate",
    "vllm_importance_sampling_clip_max": 3.0,
    "vllm_importance_sampling_clip_min": None,
}
LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo")


# ── the trainer's side ──────────────────────────────────────────────────────────────────────────────────────────────


class OneProcess:
    num_processes = 1
    sync_gradients = True
    gather = gather_for_metrics = staticmethod(lambda x: x)
    reduce = staticmethod(lambda x, reduction="sum": x)
    pad_across_processes = staticmethod(lambda x, **_: x)


def trainer(**settings_: Any) -> types.SimpleNamespace:
    args = {"delta": None, "use_bias_correction_kl": True, "steps_per_generation": 1, "gradient_accumulation_steps": 1}
    args |= {key: settings_.pop(key) for key in list(settings_) if key in args}
    fields = {
        "accelerator": OneProcess(),
        "model": types.SimpleNamespace(training=True),
        "current_gradient_accumulation_steps": 1,
        "_metrics": {"train": defaultdict(list)},
        "aux_loss_enabled": False,
        "top_entropy_quantile": 1.0,
        "beta": 0.0,
        "epsilon_low": 0.2,
        "epsilon_high": 0.28,
        "loss_type": "dapo",
        "scale_rewards": "group",
        "importance_sampling_level": "token",
        "use_vllm": False,
        "vllm_importance_sampling_correction": False,
        "off_policy_mask_threshold": None,
        "_entropy_bonus_enabled": False,
        "max_completion_length": 16,
        "temperature": 1.0,
        "num_iterations": 1,
        "args": types.SimpleNamespace(**args),
    }
    stub = types.SimpleNamespace(**{**fields, **settings_})
    stub.get_high_entropy_mask = functools.partial(GRPOTrainer.get_high_entropy_mask, stub)
    stub.get_off_policy_mask = GRPOTrainer.get_off_policy_mask
    return stub


@dataclass
class Batch:
    """``[B, T]`` each, padded on the right; ``mask`` has holes, and whole rows may be masked."""

    lengths: list[int]
    mask: np.ndarray
    policy: np.ndarray
    old: np.ndarray | None
    ref: np.ndarray
    advantage: np.ndarray
    entropy: np.ndarray | None = None
    rollout_weight: np.ndarray | None = None


def trl_gradient(stub: Any, batch: Batch, tokens: int | None = None) -> np.ndarray:
    """``[B, T]`` dL/dlogπ by autograd in float64, the masked places filled with harmless numbers."""
    keep = torch.tensor(batch.mask)
    policy = torch.tensor(np.where(batch.mask, batch.policy, -1.0), requires_grad=True)
    entropy = torch.ones_like(policy) if batch.entropy is None else torch.tensor(np.where(batch.mask, batch.entropy, 1.0))
    stub._get_per_token_logps_and_entropies = lambda *a, **k: (policy, entropy, None)
    inputs = {
        "prompt_ids": torch.zeros(len(keep), 1, dtype=torch.long),
        "prompt_mask": torch.ones(len(keep), 1, dtype=torch.long),
        "completion_ids": torch.zeros(keep.shape, dtype=torch.long),
        "completion_mask": keep.double(),
        "advantages": torch.tensor(np.where(batch.mask, batch.advantage, 0.0)),
        "num_items_in_batch": keep.double().sum() if tokens is None else torch.tensor(float(tokens)),
        "ref_per_token_logps": torch.tensor(np.where(batch.mask, batch.ref, -1.0)),
    }
    if batch.old is not None:
        inputs["old_per_token_logps"] = torch.tensor(np.where(batch.mask, batch.old, -1.0))
    if batch.rollout_weight is not None:
        inputs["importance_sampling_ratio"] = torch.tensor(np.where(batch.mask, batch.rollout_weight, 1.0))
    GRPOTrainer._compute_loss(stub, None, inputs).backward()
    assert policy.grad is not None
    return policy.grad.numpy()


# ── this package's side ─────────────────────────────────────────────────────────────────────────────────────────────


def table_of(batch: Batch, algorithm: Algorithm) -> TokenTable:
    named = {
        "logprob/policy": batch.policy,
        "logprob/old": batch.old,
        "logprob/ref": batch.ref,
        "advantage": batch.advantage,
        "entropy/policy": batch.entropy,
        "rollout_weight": batch.rollout_weight,
    }
    rollouts = [
        Rollout(
            sample_id=str(i),
            response_ids=np.zeros(n, np.int32),
            loss_mask=batch.mask[i, :n],
            columns={name: values[i, :n].astype(np.float32) for name, values in named.items() if values is not None},
        )
        for i, n in enumerate(batch.lengths)
    ]
    return TokenTable.from_rollouts(0, rollouts, algorithm=algorithm)


def columns(table: TokenTable, *names: str) -> list[np.ndarray]:
    compute(Inputs(table, algorithm=table.algorithm), names, SPECS)
    return [table.values(name) for name in names]


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    seed, rows = draw(st.integers(0, 2**32 - 1)), draw(st.integers(1, 5))
    random = np.random.default_rng(seed)
    lengths = draw(st.lists(st.integers(0, 7), min_size=rows, max_size=rows).filter(any))
    shape = (rows, max(lengths))
    there = np.arange(shape[1]) < np.array(lengths)[:, None]
    mask = there & (random.random(shape) < draw(st.sampled_from([1.0, 0.7, 0.2])))
    spread = draw(st.sampled_from([0.05, 0.3, 2.0, 12.0]))
    policy = -random.exponential(1.0, shape)
    old = policy - random.normal(0, spread, shape)
    # Beyond 15 nats autograd itself loses digits: it subtracts e^−d from e^−d, which the closed form does not have.
    ref = policy - np.clip(random.normal(0, spread, shape), -15, 15)
    advantage = random.normal(0, 1, shape if draw(st.booleans()) else (rows, 1)) * random.choice([0, 1, 1, 1], (rows, 1))
    policy, old, ref, advantage = (np.asarray(a, np.float32).astype(float) for a in (policy, old, ref, advantage))
    masked = draw(st.sampled_from([np.nan, np.inf, -np.inf, 1e30, 0.0]))
    spoilt = [np.where(mask, a, masked) for a in (policy, old, ref, np.broadcast_to(advantage, shape))]
    return Batch(lengths, mask, spoilt[0], spoilt[1] if draw(st.booleans()) else None, spoilt[2], spoilt[3])


def assert_same_gradient(batch: Batch, stub: Any) -> None:
    table = table_of(batch, algorithm_of(stub))
    ours, policy, kl = columns(table, "credit/coefficient", "credit/policy_push", "credit/kl_push")
    there = np.arange(batch.mask.shape[1]) < np.array(batch.lengths)[:, None]
    theirs, mask = -trl_gradient(stub, batch)[there], batch.mask[there]
    assert np.isnan(ours[~mask]).all()
    # Where the two parts nearly cancel, what is left carries the rounding of the parts.
    size = np.abs(policy) + np.abs(kl)
    assert (np.abs(ours - theirs)[mask] <= 1e-6 * size[mask] + 1e-30).all()


@pytest.mark.parametrize("loss_type", LOSSES)
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(batch=batches(), beta=st.sampled_from([0.0, 0.04, 3.0]), corrected=st.booleans(), data=st.data())
def test_coefficient_is_the_gradient_of_trls_loss(
    loss_type: str, batch: Batch, beta: float, corrected: bool, data: st.DataObject
) -> None:
    delta = data.draw(st.sampled_from([None, 1.1, 1.5, 4.0]), label="delta")
    high = data.draw(st.sampled_from([0.2, 0.28, 5.0]), label="epsilon_high")
    more = {} if batch.old is None else {"num_iterations": 2}
    assert_same_gradient(
        batch,
        trainer(loss_type=loss_type, beta=beta, use_bias_correction_kl=corrected, delta=delta, epsilon_high=high, **more),
    )


@pytest.mark.parametrize("loss_type", LOSSES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(batch=batches(), beta=st.sampled_from([0.0, 0.1]), level=st.sampled_from(["token", "sequence"]), data=st.data())
def test_constants_before_the_loss_are_those_of_trl(
    loss_type: str, batch: Batch, beta: float, level: str, data: st.DataObject
) -> None:
    """Entropy mask, off-policy mask and recorded weights multiply the policy's part, and neither the KL term nor a mean."""
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    spoil = data.draw(st.sampled_from([np.nan, np.inf, 0.0]))
    entropy, weight = (random.exponential(1, batch.mask.shape).astype(np.float32).astype(float) for _ in range(2))
    batch = replace(batch, entropy=np.where(batch.mask, entropy, spoil))
    more: dict[str, Any] = {} if batch.old is None else {"num_iterations": 2}
    if data.draw(st.booleans(), label="vllm"):
        batch = replace(batch, rollout_weight=np.where(batch.mask, weight * (random.random(weight.shape) < 0.8), spoil))
        more |= {"use_vllm": True, "vllm_importance_sampling_correction": True, **VLLM}
    else:
        more["off_policy_mask_threshold"] = data.draw(st.sampled_from([None, 0.0, 0.05, 0.5]), label="off-policy")
    share = data.draw(st.sampled_from([1.0, 0.5, 0.2]), label="top_entropy_quantile")
    stub = trainer(loss_type=loss_type, beta=beta, importance_sampling_level=level, top_entropy_quantile=share, **more)
    assert_same_gradient(batch, stub)


@settings(max_examples=25, deadline=None)
@given(batch=batches())
def test_what_stands_at_masked_places_changes_nothing(batch: Batch) -> None:
    rule = algorithm_of(trainer(loss_type="grpo", beta=0.1, num_iterations=2))
    fill = np.random.default_rng(0).normal(0, 50, batch.mask.shape)
    other = replace(
        batch,
        **{
            name: np.where(batch.mask, getattr(batch, name), fill)
            for name in ("policy", "old", "ref", "advantage")
            if getattr(batch, name) is not None
        },
    )
    if batch.old is None:
        rule = replace(rule, updates_per_batch=1)
    names = ("ratio", "log_ratio", "kl/k1", "kl/k2", "kl/k3", "weight", "clip", "credit/coefficient")
    for name, first, second in zip(
        names, columns(table_of(batch, rule), *names), columns(table_of(other, rule), *names), strict=True
    ):
        np.testing.assert_array_equal(first, second, err_msg=name)


@settings(max_examples=25, deadline=None)
@given(batch=batches(), order=st.randoms())
def test_the_order_of_responses_changes_nothing(batch: Batch, order: Any) -> None:
    rule = algorithm_of(trainer(loss_type="dapo", beta=0.1))
    rows = list(range(len(batch.lengths)))
    order.shuffle(rows)
    taken = {name: getattr(batch, name) for name in ("mask", "policy", "old", "ref", "advantage")}
    moved = Batch([batch.lengths[i] for i in rows], **{n: None if v is None else v[rows] for n, v in taken.items()})
    first, second = table_of(batch, rule), table_of(moved, rule)
    (before,), (after,) = columns(first, "credit/coefficient"), columns(second, "credit/coefficient")
    for place, row in enumerate(rows):
        np.testing.assert_array_equal(after[second.slice(place)], before[first.slice(row)])


def test_a_trained_token_that_is_no_number_is_left_out_and_counted() -> None:
    nan, inf = np.nan, np.inf
    batch = Batch(
        [5],
        np.ones((1, 5), bool),
        policy=np.array([[-1.0, nan, -1.0, -1.0, -2.0]]),
        old=np.array([[-1.0, -1.0, -inf, -1.0, -2.0]]),
        ref=np.array([[-1.0, -1.0, -1.0, nan, -2.0]]),
        advantage=np.ones((1, 5)),
    )
    table = table_of(batch, algorithm_of(trainer(loss_type="dapo", beta=0.1, num_iterations=2)))
    (ours,) = columns(table, "credit/coefficient")
    np.testing.assert_array_equal(np.isnan(ours), [False, True, True, True, False])
    assert ours[0] == pytest.approx(0.2), "tokens left out still count in the weight, as they did in the trainer"
    assert "3 trained tokens left out: no finite value" in table.columns["credit/coefficient"].note
    assert "2 trained tokens left out: no finite value" in table.columns["credit/policy_push"].note


def test_a_dead_group_moves_through_the_kl_term_alone() -> None:
    """Advantage 0, beta .04, log-probs −1 and −1.5: the KL part of the loss is .04 · .10653, the policy part 0."""
    one = np.ones((1, 1))
    batch = Batch([1], one.astype(bool), policy=-one, old=-one, ref=-1.5 * one, advantage=0 * one)
    table = table_of(batch, algorithm_of(trainer(loss_type="dapo", beta=0.04, use_bias_correction_kl=False)))
    policy, kl, whole, k3 = columns(table, "credit/policy_push", "credit/kl_push", "credit/coefficient", "kl/k3")
    assert policy == [0.0]
    assert 0.04 * k3 == pytest.approx(0.004261, abs=5e-7)
    assert kl == pytest.approx(-0.04 * (1 - np.exp(-0.5)))
    np.testing.assert_array_equal(whole, kl)
    assert "only the KL term acts on 1 token" in table.columns["credit/coefficient"].note


def test_a_loss_of_zero_still_pushes() -> None:
    """Two responses of one token, advantages +1 and −1, ratio 1, probabilities .7, .2, .1; the first and second drawn.

    The loss is 0 by value; the gradients at the logits are .37417 and 1.06771, each times the weight ½.
    """
    probabilities, one = np.array([0.7, 0.2, 0.1]), np.ones((2, 1))
    logprob = np.log(probabilities[:2])[:, None]
    batch = Batch([1, 1], one.astype(bool), policy=logprob, old=logprob, ref=logprob, advantage=np.array([[1.0], [-1.0]]))
    table = table_of(batch, algorithm_of(trainer(loss_type="dapo")))
    table.add("sum_p2/policy", [np.sum(probabilities**2)] * 2, table.columns["logprob/policy"].provenance)
    advantage, weight, ratio, delivered = columns(table, "advantage", "weight", "ratio", "credit/delivered")
    assert np.sum(-advantage * weight * ratio) == 0
    np.testing.assert_allclose(delivered, [0.37417 / 2, -1.06771 / 2], atol=5e-6)


def test_equal_advantages_deliver_very_different_gradients() -> None:
    """Chosen probabilities .99, .5 and .1 of two words, advantage 1: √2 (1 − p)."""
    chosen, ones = np.array([[0.99, 0.5, 0.1]]), np.ones((1, 3))
    batch = Batch([3], ones.astype(bool), policy=np.log(chosen), old=np.log(chosen), ref=np.log(chosen), advantage=ones)
    rule = replace(algorithm_of(trainer(loss_type="dapo")), aggregation="token-sum")
    for temperature in (1.0, 0.5):
        table = table_of(batch, replace(rule, temperature=temperature))
        table.add("sum_p2/policy", (chosen**2 + (1 - chosen) ** 2)[0], table.columns["logprob/policy"].provenance)
        (delivered,) = columns(table, "credit/delivered")
        np.testing.assert_allclose(delivered, np.array([0.01414, 0.70711, 1.27279]) / temperature, rtol=2e-4)


def test_delivered_credit_of_a_sure_token_survives_float32() -> None:
    batch = Batch([1], np.ones((1, 1), bool), *(np.full((1, 1), -1e-8),) * 3, np.ones((1, 1)))
    table = table_of(batch, algorithm_of(trainer()))
    table.add("sum_p2/policy", [1.0], table.columns["logprob/policy"].provenance)
    (delivered,) = columns(table, "credit/delivered")
    assert 1e-8 <= delivered[0] * (1 + 1e-6) <= 1.5e-8


def test_without_log_probs_one_update_still_has_coefficients() -> None:
    nothing = np.full((1, 2), np.nan)
    batch = Batch([2], np.ones((1, 2), bool), nothing, nothing, nothing, np.ones((1, 2)))
    rule = algorithm_of(trainer(loss_type="dapo"))
    table = table_of(batch, rule)
    for name in [name for name in table.columns if name.startswith("logprob/")]:
        del table.columns[name]
    (ours,) = columns(table, "credit/coefficient")
    np.testing.assert_allclose(ours, [0.5, 0.5])
    assert "by construction" in table.columns["credit/policy_push"].note

    several = table_of(batch, replace(rule, updates_per_batch=4))
    for name in [name for name in several.columns if name.startswith("logprob/")]:
        del several.columns[name]
    compute(Inputs(several, algorithm=several.algorithm), ["credit/coefficient"], SPECS)
    column = several.columns["credit/coefficient"]
    assert column.values is None
    assert "4 updates per batch" in column.note


def test_a_kl_term_without_a_reference_is_missing_and_not_zero() -> None:
    batch = Batch([1], np.ones((1, 1), bool), *(-np.ones((1, 1)),) * 3, np.ones((1, 1)))
    table = table_of(batch, algorithm_of(trainer(beta=0.1)))
    del table.columns["logprob/ref"]
    compute(Inputs(table, algorithm=table.algorithm), ["credit/coefficient"], SPECS)
    assert table.columns["credit/coefficient"].values is None
    assert "logprob/ref" in table.columns["credit/coefficient"].note
    assert table.has("credit/policy_push")


def test_a_loss_sees_nothing_at_masked_places(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[LossInputs] = []

    def probe(inputs: LossInputs) -> Push:
        seen.append(inputs)
        return losses["reinforce"](inputs)

    monkeypatch.setitem(losses._members, "probe", replace(losses["reinforce"], name="probe", push=probe))
    ones, mask = np.ones((1, 3)), np.array([[True, False, True]])
    table = table_of(Batch([3], mask, -ones, -ones, -ones, ones), replace(algorithm_of(trainer()), loss="probe"))
    columns(table, "credit/policy_push")
    for name in ("logprob", "old", "log_ratio", "advantage", "weight"):
        np.testing.assert_array_equal(np.isnan(getattr(seen[0], name)), ~mask[0], err_msg=name)


def test_an_unknown_loss_is_missing_with_the_nearest_names() -> None:
    batch = Batch([1], np.ones((1, 1), bool), *(-np.ones((1, 1)),) * 3, np.ones((1, 1)))
    table = table_of(batch, replace(algorithm_of(trainer()), loss="ppo_clop"))
    compute(Inputs(table, algorithm=table.algorithm), ["clip"], SPECS)
    assert "did you mean ppo_clip" in table.columns["clip"].note


def test_the_entropy_bonus_is_named_as_left_out() -> None:
    batch = Batch([1], np.ones((1, 1), bool), *(-np.ones((1, 1)),) * 3, np.ones((1, 1)))
    table = table_of(batch, algorithm_of(trainer(entropy_coef=0.01)))
    columns(table, "credit/coefficient")
    assert "entropy bonus (0.01) is not in it" in table.columns["credit/coefficient"].note


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo", "luspo", "cispo"])
def test_micro_batches_of_one_optimizer_step_are_put_together_again(loss_type: str) -> None:
    """Two micro-batches of two responses, gradients accumulated; the tokens are counted over all four."""
    random = np.random.default_rng(1)
    mask = np.arange(9) < np.array([[9], [2], [5], [0]])
    policy, old, ref = (-random.exponential(1, mask.shape).astype(np.float32).astype(float) for _ in range(3))
    gain = np.broadcast_to(np.array([[1.0], [-1.0], [0.5], [2.0]]), mask.shape)
    whole = Batch([9, 2, 5, 0], mask, policy, old, ref, gain)
    accumulating = {"loss_type": loss_type, "beta": 0.1, "gradient_accumulation_steps": 2, "steps_per_generation": 2}
    stub = trainer(**accumulating, num_iterations=2, current_gradient_accumulation_steps=2)
    parts = []
    for rows in (slice(0, 2), slice(2, 4)):
        fields = {name: getattr(whole, name)[rows] for name in ("mask", "policy", "old", "ref", "advantage")}
        parts.append(trl_gradient(stub, Batch(whole.lengths[rows], **fields), tokens=int(mask.sum())))
    (ours,) = columns(table_of(whole, algorithm_of(stub)), "credit/coefficient")
    np.testing.assert_allclose(ours, -np.concatenate(parts)[mask], rtol=1e-6)
