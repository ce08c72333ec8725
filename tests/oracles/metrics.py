"""Metric vectors: log-probs in, ratios, KL figures and their statistics out."""

from __future__ import annotations

from itertools import product

import numpy as np
import torch

from credit_inspector.advantages.returns import discounted
from credit_inspector.algorithms.kl import kl_value
from credit_inspector.credit.kl_push import kl_gradient
from credit_inspector.metrics.sequence_ratio import sequence_mean
from credit_inspector.metrics.statistics import ess, off_policy
from credit_inspector.scoring.head import Head, kl, score
from credit_inspector.tokens import has_end, until_end
from oracles import Checks, Vector, close, floats, table_of

SINGLE = {"rtol": 2e-6, "atol": 2e-6}
"""Whatever runs through a model's head is float32."""


def mismatch(vector: Vector) -> None:
    """verl divides sums by the count + 1e-8 (``masked_mean``), which shows from the ninth digit on."""
    inputs = vector["inputs"]
    table = table_of(inputs["response_mask"])
    ours = off_policy(table, *(floats(inputs[name]).ravel() for name in ("old_log_prob", "rollout_log_prob")))
    assert set(vector["outputs"]) == set(ours) - {"mult_prob_error"}
    for name, theirs in vector["outputs"].items():
        close(ours[name], theirs, vector | {"tolerance": 1e-8})


def sample_size(vector: Vector) -> None:
    outputs, inside = vector["outputs"], floats(vector["inputs"]["mask"]) == 1
    log_ratio = floats(vector["inputs"]["log_ratio"])[inside]
    close(ess(log_ratio), (outputs["ess"], outputs["ess_fraction"]), vector)
    close(ess(log_ratio, truncate=2).fraction, outputs["ess_fraction_truncated_2"], vector)


def gspo_kl(vector: Vector) -> None:
    """slime's name for the negative of the mean log-ratio; its rows are padded to one width here, and masked."""
    inputs = vector["inputs"]
    current, old = floats(inputs["log_prob"]), floats(inputs["old_log_prob"])
    mask = np.arange(current.shape[1]) < np.array(inputs["lengths"])[:, None]
    table = table_of(mask)
    ours = table.to_tokens(sequence_mean(table, (current - old).ravel()))
    close(-ours[table.loss_mask], vector["outputs"]["seq_kl_per_token"], vector)


def head_scores(vector: Vector) -> None:
    """The head with the identity as its weights, so that hidden states are the logits."""
    logits, labels = torch.tensor(vector["inputs"]["logits"]), torch.tensor(vector["inputs"]["labels"])
    flat = logits.reshape(-1, logits.shape[-1])
    found = score(Head(torch.eye(flat.shape[1])), flat, labels.ravel(), 10**6)
    for ours, theirs in ((found.logprob, "logprobs"), (found.entropy, "entropy")):
        np.testing.assert_allclose(ours.reshape(labels.shape), vector["outputs"][theirs], **SINGLE)


def response_mask(vector: Vector) -> None:
    ids, ends = np.array(vector["inputs"]["response_id"]), vector["inputs"]["eos_token"]
    close(until_end(ids, ends), vector["outputs"]["mask"], vector)
    assert has_end(ids, ends).tolist() == [True, True, True, False]


class Sequences:
    """All 27 sequences of three tokens over three words, one row each, under two policies given as tables of logits."""

    def __init__(self, vector: Vector) -> None:
        inputs = vector["inputs"]
        self.sequences = np.array(list(product(range(3), repeat=3)))
        self.table = table_of(np.ones((27, 3)))
        numbers = {tuple(prefix): number for number, prefix in enumerate(inputs["prefixes"])}
        self.prefix = np.array([numbers[tuple(s[:t])] for s in self.sequences.tolist() for t in range(3)])
        self.logits = {name: floats(inputs[f"logits_{name}"]) for name in ("policy", "ref")}
        self.log_p = {name: z - np.logaddexp.reduce(z, axis=1, keepdims=True) for name, z in self.logits.items()}
        policy, reference = (self.log_p[name][self.prefix, self.sequences.ravel()] for name in ("policy", "ref"))
        self.distance = policy - reference
        self.chance = np.exp(self.table.sum_by_row(policy))

    def expected(self, by_token: np.ndarray) -> float:
        return float(self.chance @ self.table.sum_by_row(by_token))

    def gradient(self, coefficient: np.ndarray) -> np.ndarray:
        """E[Σ c_t ∇ log π(y_t)] at the policy's logits ``[prefixes, words]``."""
        score = np.eye(3)[self.sequences.ravel()] - np.exp(self.log_p["policy"])[self.prefix]
        each = (np.repeat(self.chance, 3) * coefficient)[:, None] * score
        total = np.zeros_like(self.logits["policy"])
        np.add.at(total, self.prefix, each)
        return total


def enumerated(vector: Vector) -> None:
    outputs, world = vector["outputs"], Sequences(vector)
    for estimator in ("k1", "k2", "k3"):
        close(world.expected(kl_value(estimator, world.distance)), outputs["expectation"][estimator], vector)
    budget = 10**6
    heads = [Head(torch.eye(3))] * 2
    states = [torch.tensor(world.logits[name], dtype=torch.float32) for name in ("policy", "ref")]
    full = kl(heads[0], states[0], heads[1], states[1], budget).double().numpy()[world.prefix]
    np.testing.assert_allclose(world.expected(full), outputs["expectation_of_sum_full_token_kl"], **SINGLE)
    assert outputs["kl_exact"] == outputs["expectation"]["k1"]

    k1 = kl_value("k1", world.distance)
    coefficients = {f"loss_{k}": kl_gradient(k, "autograd", world.distance, np.ones(1)) for k in ("k1", "k2", "k3")}
    coefficients["reward_to_go_k1"] = discounted(world.table, k1, gamma=1.0, observation="skip")
    coefficients["reward_total_k1"] = world.table.to_tokens(world.table.sum_by_row(k1))
    coefficients["reward_per_token_k1"] = k1
    assert set(coefficients) == set(outputs["grad_norm"])
    for name, coefficient in coefficients.items():
        gradient = world.gradient(coefficient)
        close(np.linalg.norm(gradient), outputs["grad_norm"][name], vector)
        close(np.linalg.norm(gradient - floats(outputs["grad_exact"])), outputs["grad_error_norm"][name], vector)


CHECKS: Checks = {
    "verl.offpolicy_metrics": mismatch,
    "verl.get_response_mask": response_mask,
    "closed.ess": sample_size,
    "closed.sequence_kl_enumeration": enumerated,
    "slime.gspo_kl": gspo_kl,
    "trl.logprobs_entropy": head_scores,
}
