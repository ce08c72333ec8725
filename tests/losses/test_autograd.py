"""Every closed form against autograd of the loss written the long way, at every level of the ratio.

The long way is padded ``[B, T]`` torch in float64: what the trainers' own functions do, without their aggregation, for which
random weights stand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from credit_inspector.algorithm import Algorithm
from credit_inspector.credit.policy_push import pushed
from losses.batches import Batch, batches, laid, push, rule, table_of

Torch = torch.Tensor
FEW = settings(max_examples=40, deadline=None)
LEVELS = ("token", "sequence", "sequence-token", "product")


class Long:
    """A batch in torch, with the ratio at the rule's level; its gradient comes back to ``policy``."""

    def __init__(self, batch: Batch, algorithm: Algorithm) -> None:
        self.rule, self.settings = algorithm, algorithm.settings
        self.mask = torch.tensor(batch.mask, dtype=torch.float64)
        self.n = self.mask.sum(1, keepdim=True).clamp(min=1)
        self.policy = batch.tensor(batch.policy, grad=True)
        self.old, self.gain, self.weight = map(batch.tensor, (batch.old, batch.advantage, batch.weight))
        self.token = (self.policy - self.old) * self.mask
        clamp = math.inf if algorithm.log_ratio_clamp is None else algorithm.log_ratio_clamp
        self.log_ratio = self.level().clamp(-clamp, min(clamp, algorithm.settings.get("log_ratio_max", math.inf)))
        self.ratio = self.log_ratio.exp()

    def level(self) -> Torch:
        total = self.token.sum(1, keepdim=True)
        match self.rule.ratio_level:
            case "token":
                return self.token
            case "product":
                return total.expand_as(self.mask)
            case "sequence":
                return (total / self.n).expand_as(self.mask)
            case _:
                return self.policy - self.policy.detach() + (total / self.n).detach()

    def gradient(self, loss: Torch) -> np.ndarray:
        (self.weight * self.mask * loss).sum().backward()
        assert self.policy.grad is not None
        return self.policy.grad.numpy()


def ppo_clip(x: Long) -> Torch:
    low, high = x.rule.ratio_bounds
    bounded = x.ratio if x.rule.delta is None else x.ratio.clamp(max=x.rule.delta)
    worse = torch.maximum(-x.gain * bounded, -x.gain * x.ratio.clamp(low, high))
    if x.rule.dual_clip is None:
        return worse
    return torch.where(x.gain < 0, torch.minimum(-x.gain * x.rule.dual_clip, worse), worse)


def cispo(x: Long) -> Torch:
    low, high = x.rule.ratio_bounds
    return -x.ratio.clamp(low, high).detach() * x.gain * x.policy


def reinforce(x: Long) -> Torch:
    return -x.gain * x.policy


def either(condition: Torch, yes: float, no: float) -> Torch:
    """``torch.where`` of two numbers would be float32."""
    return torch.where(condition, torch.tensor(yes, dtype=torch.float64), torch.tensor(no, dtype=torch.float64))


def sapo(x: Long) -> Torch:
    tau = either(x.gain > 0, x.settings.get("tau_pos", 1.0), x.settings.get("tau_neg", 1.05))
    return -torch.sigmoid(tau * (x.ratio - 1)) * 4 / tau * x.gain


def dppo(x: Long, open_above: Torch, open_below: Torch) -> Torch:
    valid = torch.where(x.gain > 0, open_above, open_below).detach().double()
    cap = math.inf if x.rule.dual_clip is None else x.rule.dual_clip
    return -x.gain * x.ratio.clamp(max=cap).detach() * x.policy * valid


def dppo_tv(x: Long) -> Torch:
    apart = x.policy.exp() - x.old.exp()
    return dppo(x, apart <= x.rule.clip_high, apart >= -x.rule.clip_low)


def dppo_kl(x: Long) -> Torch:
    p, q = x.policy.exp(), x.old.exp()
    kl = q * (x.old - x.policy) + (1 - q) * torch.log((1.0 - q + 1e-8) / (1.0 - p + 1e-8))
    return dppo(x, (kl <= x.rule.clip_high) | (p <= q), (kl <= x.rule.clip_low) | (p >= q))


def prime(x: Long) -> Torch:
    apart = x.policy.exp() - x.old.exp()
    invalid = torch.where(x.gain > 0, apart > x.rule.clip_high, apart < -x.rule.clip_low)
    return penalised(x, invalid)


def prime_ipo(x: Long) -> Torch:
    apart = x.policy.exp() - x.old.exp()
    return penalised(x, (apart > x.rule.clip_high) | (apart < -x.rule.clip_low))


def penalised(x: Long, invalid: Torch) -> Torch:
    adv_tau, kl_tau = x.settings.get("adv_tau", 1.0), x.settings.get("kl_tau", 1e-3)
    return -(~invalid).double() * adv_tau * x.gain * x.ratio + kl_tau * x.token**2


def dro(x: Long) -> Torch:
    return -(x.policy * x.gain - 0.5 * x.settings["beta"] * x.token.square())


def vespo(x: Long) -> Torch:
    given_or = x.settings.get
    with torch.no_grad():
        log_w = (x.token.clamp(-20, 20) * x.mask).sum(1, keepdim=True).clamp(math.log(1e-8), 20.0)
        up = x.gain >= 0
        k = either(up, given_or("k_pos", 2.0), given_or("k_neg", 3.0))
        lam = either(up, given_or("lambda_pos", 3.0), given_or("lambda_neg", 2.0)).clamp(min=1e-4)
        phi = torch.exp(lam + k * log_w - lam * log_w.exp()).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    return -phi * x.gain * x.policy


CLIPPED: list[dict[str, Any]] = [
    {"clip_high": 0.28},
    {"dual_clip": 1.05},
    {"dual_clip": 3.0, "log_ratio_clamp": 20.0},
    {"delta": 1.1, "clip_high": 0.28},
    {"delta": 4.0},
    {"clip_low": 0.5, "clip_high": 3.0, "clip_bounds": "absolute"},
    {"settings": {"log_ratio_max": 10.0}},
]
CISPO: list[dict[str, Any]] = [
    {"clip_high": 0.28, "log_ratio_clamp": 20.0},
    {"clip_low": 0.0, "clip_high": 5.0, "clip_bounds": "absolute"},
]
OF_ANY_LEVEL: list[tuple[Callable[[Long], Torch], dict[str, Any]]] = [
    *((ppo_clip, fields) for fields in CLIPPED),
    *((cispo, fields) for fields in CISPO),
    (reinforce, {}),
    (sapo, {}),
    (sapo, {"log_ratio_clamp": 2.0, "settings": {"tau_pos": 0.5, "tau_neg": 3.0}}),
]
OF_TOKENS: list[tuple[Callable[[Long], Torch], dict[str, Any]]] = [
    (dppo_tv, {"clip_low": 0.1, "clip_high": 0.15, "dual_clip": 3.0, "log_ratio_clamp": 20.0}),
    (dppo_tv, {}),
    (dppo_kl, {"clip_low": 0.05, "clip_high": 0.02, "dual_clip": 20.0, "log_ratio_clamp": 20.0}),
    (prime, {}),
    (prime, {"clip_low": 0.05, "clip_high": 0.3, "settings": {"adv_tau": 0.7, "kl_tau": 0.5}}),
    (prime_ipo, {"clip_low": 0.1, "clip_high": 0.1}),
    (dro, {"settings": {"beta": 0.5}}),
    (vespo, {}),
    (vespo, {"settings": {"k_pos": 1.0, "lambda_pos": 0.5, "k_neg": 0.3, "lambda_neg": 0.0}}),
]
CASES = [
    *(pytest.param(loss, {**fields, "ratio_level": level}) for loss, fields in OF_ANY_LEVEL for level in LEVELS),
    *(pytest.param(loss, fields) for loss, fields in OF_TOKENS),
]


def agrees(ours: np.ndarray, batch: Batch, theirs: np.ndarray) -> None:
    trained = laid(batch.mask)
    assert np.isnan(ours[~trained]).all()
    scale = np.abs(theirs).max(initial=1.0)
    np.testing.assert_allclose(ours[trained], laid(theirs)[trained], rtol=1e-9, atol=1e-12 * scale)


@pytest.mark.parametrize(("loss", "fields"), CASES)
@FEW
@given(batch=batches())
def test_the_coefficient_is_autograd_of_the_loss(loss: Callable[[Long], Torch], fields: dict[str, Any], batch: Batch) -> None:
    long = Long(batch, rule(loss=loss.__name__, **fields))
    theirs = long.gradient(loss(long))
    agrees(push(batch, loss=loss.__name__, **fields).push.coefficient, batch, theirs)


@pytest.mark.parametrize("fields", CLIPPED)
@FEW
@given(batch=batches())
def test_a_code_stands_exactly_where_no_gradient_comes_through(fields: dict[str, Any], batch: Batch) -> None:
    found = push(batch, **fields).push
    trained = laid(batch.mask)
    stopped = (found.clipped != 0) | (laid(batch.advantage) == 0)
    np.testing.assert_array_equal((found.coefficient == 0)[trained], stopped[trained])
    assert not found.clipped[~trained].any()


@FEW
@given(batch=batches())
def test_gmpo_is_autograd_of_verl_s_loss(batch: Batch) -> None:
    low, high = 0.4, 0.3
    rows = len(batch.mask)
    weight = np.where(batch.mask, 1 / rows / np.maximum(batch.mask.sum(1, keepdims=True), 1), np.nan)
    batch = Batch(batch.mask, batch.policy, batch.old, batch.advantage, weight)
    long = Long(batch, rule())
    sign = torch.sign(long.gain)
    smaller = sign * torch.minimum(sign * long.token, sign * long.token.clamp(-low, high))
    ratio = torch.exp((smaller * long.mask).sum(1) / long.n[:, 0])
    advantage = (long.gain * long.mask).sum(1) / long.n[:, 0]
    torch.mean(-advantage * ratio).backward()
    assert long.policy.grad is not None
    found = push(batch, loss="gmpo", clip_low=low, clip_high=high).push
    agrees(found.coefficient, batch, long.policy.grad.numpy())


@pytest.mark.parametrize("micro_batch", [None, 2])
@FEW
@given(batch=batches(min_trained=1))
def test_kl_cov_is_autograd_of_verl_s_loss(micro_batch: int | None, batch: Batch) -> None:
    share, coef = 0.3, 0.7
    long = Long(batch, rule())
    loss = -long.gain * long.ratio
    chosen = torch.zeros_like(loss, dtype=torch.bool)
    size = micro_batch or len(batch.mask)
    for first in range(0, len(batch.mask), size):
        places = [(i, t) for i, t in np.argwhere(batch.mask) if first <= i < first + size]
        gains, logs = (np.array([values[place] for place in places]) for values in (batch.advantage, batch.policy))
        covariance = (gains - gains.mean()) * (logs - logs.mean()) if places else np.zeros(0)
        order = sorted(range(len(places)), key=lambda i: -covariance[i])
        count = max(1, int(len(places) * share))
        gaps = covariance[order[: count + 1]]
        assume(len(gaps) <= count or gaps[count - 1] - gaps[count] > 1e-9)
        for i in order[:count]:
            chosen[places[i]] = True
    theirs = long.gradient(torch.where(chosen, loss + coef * long.token.abs(), loss))
    found = push(batch, loss="kl_cov", micro_batch=micro_batch, settings={"ratio": share, "coef": coef}).push
    agrees(found.coefficient, batch, theirs)
    assert not found.clipped.any()


# ── rollout weights ─────────────────────────────────────────────────────────────────────────────────────────────────

KAPPA = st.lists(st.sampled_from([0.0, 1e-3, 0.5, 1.0, 1.7, 5.0]), min_size=24, max_size=24)


def corrected(batch: Batch, kappa: list[float], **fields: Any) -> tuple[np.ndarray, np.ndarray]:
    """The coefficients under recorded weights, and the weights ``[B, T]``."""
    weights = np.array(kappa[: batch.mask.size]).reshape(batch.mask.shape)
    table = table_of(batch, rollout_weight=np.where(batch.mask, weights, np.nan))
    found = pushed(table, rule(**fields), laid(batch.advantage), laid(batch.weight))
    return found.push.coefficient, weights


@pytest.mark.parametrize("level", LEVELS)
@FEW
@given(batch=batches(), kappa=KAPPA)
def test_a_rollout_weight_is_a_constant_before_the_loss(level: str, batch: Batch, kappa: list[float]) -> None:
    for loss in (ppo_clip, sapo):
        ours, weights = corrected(batch, kappa, loss=loss.__name__, ratio_level=level)
        long = Long(batch, rule(ratio_level=level))
        agrees(ours, batch, long.gradient(torch.tensor(weights) * loss(long)))


@pytest.mark.parametrize("of_response", [False, True])
@FEW
@given(batch=batches(), kappa=KAPPA)
def test_vespo_puts_the_rollout_weight_into_its_product(of_response: bool, batch: Batch, kappa: list[float]) -> None:
    """TRL's ``importance_sampling_ratio`` has one column for a response where the correction is a sequence's."""
    weights = np.array(kappa[: batch.mask.size]).reshape(batch.mask.shape)
    if of_response:
        weights = np.broadcast_to(weights[:, :1], batch.mask.shape)
    ours, _ = corrected(batch, list(weights.ravel()), loss="vespo", rollout_weight="sequence-product" if of_response else "token")
    long = Long(batch, rule())
    given_ratio = torch.tensor(weights[:, :1]) if of_response else torch.where(long.mask > 0, torch.tensor(weights), 1.0)
    with torch.no_grad():
        total = (long.token.clamp(-20, 20) * long.mask).sum(1, keepdim=True)
        total += given_ratio.log().clamp(math.log(1e-8), 20.0).sum(1, keepdim=True)
        log_w = total.clamp(math.log(1e-8), 20.0)
        up = long.gain >= 0
        k, lam = either(up, 2.0, 3.0), either(up, 3.0, 2.0)
        phi = torch.exp(lam + k * log_w - lam * log_w.exp())
    agrees(ours, batch, long.gradient(-phi * long.gain * long.policy))


@FEW
@given(batch=batches(), kappa=KAPPA)
def test_gmpo_weighs_a_response_by_the_geometric_mean(batch: Batch, kappa: list[float]) -> None:
    batch = Batch(batch.mask, batch.policy, batch.old, batch.advantage, np.ones(batch.mask.shape))
    ours, weights = corrected(batch, kappa, loss="gmpo")
    mean = (np.log(weights + 1e-10) * batch.mask).sum(1, keepdims=True) / np.maximum(batch.mask.sum(1, keepdims=True), 1)
    plain = push(batch, loss="gmpo").push.coefficient.reshape(batch.mask.shape)
    expected = np.where(batch.mask, plain * np.exp(mean), np.nan).ravel()
    np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-12 * np.nanmax(np.abs(expected), initial=1.0))
