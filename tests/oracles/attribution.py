"""Vectors of attribution and of prefix values."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from credit_inspector.checkpoints import Checkpoint
from credit_inspector.credit.delivered import logit_share
from credit_inspector.credit.prefix_values import jumps, standard_error
from credit_inspector.credit.reshape import oar_weights
from credit_inspector.credit.weight import token_weights
from credit_inspector.rollout import Rollout
from credit_inspector.scoring import Models
from credit_inspector.scoring.alignment import WAYS, align
from credit_inspector.scoring.attribution import (
    gram,
    inner_products,
    input_gradients,
    integrated_gradients,
    leave_one_out,
    loss_share,
    pulled_back,
    shapley,
)
from credit_inspector.scoring.saliency import saliency
from credit_inspector.spans import SpanTable
from credit_inspector.table import TokenTable
from oracles import Checks, Vector, close, floats, rule, table_of

SINGLE = {"rtol": 1e-5, "atol": 2e-6}
"""Whatever runs through ``Models`` is float32."""


class Body(nn.Module):
    """h_t = tanh(Wx e_t + Wh h_{t−1} + b), with h_{−1} = 0."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__()
        self.E = nn.Embedding.from_pretrained(torch.tensor(given["E"], dtype=torch.float64))
        for name in ("Wx", "Wh", "b"):
            setattr(self, name, nn.Parameter(torch.tensor(given[name], dtype=torch.float64)))

    def states(self, embedded: Tensor) -> Tensor:
        """``[B, W, H]`` → ``[B, W, H]``"""
        state, states = torch.zeros_like(embedded[:, 0]), []
        for t in range(embedded.shape[1]):
            state = torch.tanh(embedded[:, t] @ self.Wx.T + state @ self.Wh.T + self.b)
            states.append(state)
        return torch.stack(states, 1)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, use_cache: bool = False) -> Any:
        return SimpleNamespace(last_hidden_state=self.states(self.E(input_ids)))


class TinyRNN(nn.Module):
    """The vector's network, with what the engine asks of a causal language model."""

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        super().__init__()
        self.body = Body(inputs["params"])
        weight = torch.tensor(inputs["params"]["U"], dtype=torch.float64)
        self.U = nn.Linear(*weight.shape[::-1], bias=False, dtype=torch.float64)
        self.U.weight = nn.Parameter(weight)
        self.config = SimpleNamespace(_attn_implementation=None, get_text_config=SimpleNamespace)
        self.ids = torch.tensor([*inputs["prompt"], *inputs["response"]])
        self.first = len(inputs["prompt"])
        self.answer = torch.tensor(inputs["answer_positions"])

    @property
    def base_model(self) -> Body:
        return self.body

    def get_output_embeddings(self) -> nn.Linear:
        return self.U

    def get_input_embeddings(self) -> nn.Embedding:
        return self.body.E

    def forward(self, input_ids: Tensor, use_cache: bool = False) -> Any:
        return SimpleNamespace(logits=self.U(self.body(input_ids).last_hidden_state))

    def logprobs(self, embedded: Tensor) -> Tensor:
        """``[B, W, H]`` → ``[B, R]`` log-probs of the response's tokens, in the weights' own precision."""
        log_p = self.U(self.body.states(embedded)[:, self.first - 1 : -1]).log_softmax(-1)
        return log_p.gather(-1, self.ids[self.first :].expand(len(embedded), -1)[..., None]).squeeze(-1)

    def of_parameters(self, given: Mapping[str, Tensor]) -> Tensor:
        """Parameters → ``[R]``, for ``torch.func``."""
        return functional_call(Wrapped(self), {f"network.{name}": value for name, value in given.items()}, ())

    def answer_of(self, embedded: Tensor) -> Tensor:
        """``[K, W, H]`` → ``[K]`` log-prob of the answer."""
        return self.logprobs(embedded)[:, self.answer].sum(1)


class Wrapped(nn.Module):
    def __init__(self, network: TinyRNN) -> None:
        super().__init__()
        self.network = network

    def forward(self) -> Tensor:
        return self.network.logprobs(self.network.body.E(self.network.ids)[None])[0]


def attribution(vector: Vector) -> None:
    network = TinyRNN(vector["inputs"])
    by_gradients(network, vector)
    by_inputs(network, vector)
    by_players(network, vector)
    by_the_engine(network, vector)


def by_gradients(network: TinyRNN, vector: Vector) -> None:
    outputs, parameters = vector["outputs"], dict(network.named_parameters())
    pairs = gram(network.of_parameters, parameters)
    close(pairs, outputs["gram_matrix"], vector)
    close(pairs.diagonal().sqrt(), outputs["grad_norm_all_params"], vector)
    close(gram(network.of_parameters, {"U.weight": network.U.weight}), outputs["lm_head_gram"], vector)

    coefficient = torch.tensor(vector["inputs"]["loss_coefficients"], dtype=torch.float64)
    on_answer = torch.zeros(len(coefficient), dtype=torch.float64).index_fill(0, network.answer, 1.0)
    along_answer, along_loss = (
        inner_products(network.of_parameters, parameters, pulled_back(network.of_parameters, parameters, weights))
        for weights in (on_answer, coefficient)
    )
    close(along_answer, outputs["jvp_answer_direction"], vector)
    close(along_loss, outputs["jvp_loss_direction"], vector)
    close((coefficient * along_loss).sum(), outputs["loss_grad_sq_norm"], vector)
    close(loss_share(coefficient, along_loss), outputs["loss_share"], vector)


def by_inputs(network: TinyRNN, vector: Vector) -> None:
    outputs = vector["outputs"]
    embedded = network.body.E(network.ids).detach()
    slope = input_gradients(network.answer_of, embedded[None])[0]
    close(slope.norm(dim=-1), outputs["saliency_l2"], vector)
    close((slope * embedded).sum(-1), outputs["input_x_grad"], vector)
    blank = torch.zeros_like(embedded)
    for together in (1, 7, 50):
        path = integrated_gradients(network.answer_of, embedded, blank, points=50, together=together)
        close(path.by_input, outputs["integrated_gradients_50gl"], vector)
        close(path.gap, 0, vector)
    close(network.answer_of(blank[None]).detach(), [outputs["answer_logp_zero_embeddings"]], vector)
    # Captum's trapezoid weighs its ends as whole points: n points sum to 1 − 1/n.
    close(path.by_input * (1 - 1 / 1000), outputs["integrated_gradients_1000trapz"], vector | {"tolerance": 1e-6})


def by_players(network: TinyRNN, vector: Vector) -> None:
    """Four response tokens before the answer; an absent one has the embedding 0."""
    outputs, places = vector["outputs"], vector["outputs"]["loo_players"]
    embedded = network.body.E(network.ids).detach()

    def game(there: np.ndarray) -> np.ndarray:
        inputs = embedded.repeat(len(there), 1, 1)
        inputs[:, places] *= torch.from_numpy(there)[..., None]
        return network.answer_of(inputs).detach().numpy()

    close(game(np.array([[False] * 4, [True] * 4])), [outputs["value_empty"], outputs["value_full"]], vector)
    close(leave_one_out(game, 4), outputs["loo_zero_embedding"], vector)
    close(shapley(game, 4), outputs["shapley_zero_embedding"], vector)


def by_the_engine(network: TinyRNN, vector: Vector) -> None:
    """The same network as a checkpoint: the scores, the head's closed form, gradient × input and all ways of alignment."""
    inputs, outputs = vector["inputs"], vector["outputs"]
    models = Models({"policy": _checkpoint(network)}, device="cpu")
    prompt, response = (np.array(inputs[name], np.int32) for name in ("prompt", "response"))
    table = TokenTable.from_rollouts(1, [Rollout(sample_id="0", prompt_ids=prompt, response_ids=response)])
    first, last = inputs["answer_positions"]
    spans = SpanTable(row=np.array([0]), start=np.array([first]), end=np.array([last + 1]), label=("answer",), text=("",))
    found = models.scores("policy", table)
    for ours, theirs in zip(found, ("logp", "entropy", "sum_pi_squared"), strict=True):
        np.testing.assert_allclose(ours, outputs[theirs], **SINGLE)

    states = models.opened("policy").hidden(network.ids[None])[0, len(prompt) - 1 : -1].detach().norm(dim=-1).numpy()
    head = states * logit_share(found.logprob.astype(float), found.sum_p2.astype(float))
    np.testing.assert_allclose(head, outputs["grad_norm_lm_head"], **SINGLE)

    product = saliency(models, table, spans)
    np.testing.assert_allclose(product, outputs["input_x_grad"][len(prompt) :], **SINGLE)

    direction = floats(outputs["jvp_answer_direction"])
    for way in WAYS:
        aligned = align(models, table, spans, ways=[way])
        tolerance = {"rtol": 5e-3, "atol": 2e-2} if way == "central difference" else SINGLE
        np.testing.assert_allclose(aligned.inner, direction, **tolerance)
        assert aligned.norm2[0] == pytest.approx(direction[inputs["answer_positions"]].sum(), rel=1e-5)


def _checkpoint(network: TinyRNN) -> Checkpoint:
    return Checkpoint(
        path=Path("run") / "tiny-rnn",
        format="test",
        summary="the vector's network",
        vocabulary=len(network.U.weight),
        tokenizer=None,
        load=lambda device, dtype: network.to(device, dtype).requires_grad_(False).eval(),
    )


def resampling(vector: Vector) -> None:
    """Thought anchors write 0 for the last sentence, behind which nothing was sampled; here that is no number."""
    accuracies = list(vector["inputs"]["accuracies"].values())
    theirs = vector["outputs"]["importance"]
    close(jumps(accuracies, 100).credit, theirs[:-1], vector)
    assert theirs[-1] == 0


def prefix_values(vector: Vector) -> None:
    values, outputs = vector["inputs"]["prefix_values"], vector["outputs"]
    found = jumps(values, 16, threshold=vector["inputs"]["threshold"])
    close(found.credit, outputs["delta"], vector)
    close(found.credit.sum(), outputs["total"], vector)
    assert found.pivotal.nonzero()[0].tolist() == outputs["pivotal"]
    alone = floats(outputs["standard_error_K16"])
    close(standard_error(values, 16), alone, vector)
    close(found.error, np.sqrt(alone[1:] ** 2 + alone[:-1] ** 2), vector)
    # The observed reward behind the last prefix: credits then add up to R − V(s₀).
    paid = jumps(values[:-1], 16, outcome=values[-1])
    close(paid.credit, outputs["delta"], vector)


def reshaping(vector: Vector) -> None:
    params, scores = vector["params"], floats(vector["inputs"]["raw_scores"])
    weights = oar_weights(scores, quantile=params["threshold_quantile"], beta=params["gating_beta"], keep_sum=params["sum_to_L"])
    close(weights, vector["outputs"]["weights"], vector)


def score_variance(vector: Vector) -> None:
    """tr Cov of Σ c_t ∇l_t over all sequences, with c from the package's weights; slopes from its gradient lengths."""
    outputs, logits = vector["outputs"], floats(vector["inputs"]["logits"])
    p = np.exp(logits) / np.exp(logits).sum()
    fisher = float(p @ logit_share(np.log(p), np.full(3, (p**2).sum())) ** 2)
    close(fisher, outputs["trace_fisher"], vector)
    close(p[0] * fisher, outputs["slope_terminal"], vector)
    close(p[0] * (1 - p[0]) * fisher, outputs["slope_terminal_mean_baseline"], vector)

    found: dict[str, list[float]] = {name: [] for name in outputs if isinstance(outputs[name], list)}
    for length in vector["inputs"]["T"]:
        sequences = np.array(list(product(range(3), repeat=length)))
        chance = p[sequences].prod(1)
        score = (np.eye(3)[sequences] - p).transpose(1, 0, 2)
        last, dense = (sequences[:, -1] == 0).astype(float), (sequences == 0).sum(1)
        weights = {
            name: token_weights(table_of(np.ones((1, length))), rule(aggregation=name))
            for name in ("token-sum", "seq-mean-token-mean")
        }
        for name, reward, weight in (
            ("terminal", last, "token-sum"),
            ("terminal_mean_baseline", last - p[0], "token-sum"),
            ("terminal_divided_by_T", last, "seq-mean-token-mean"),
            ("dense_total_return", dense, "token-sum"),
        ):
            gradient = reward[:, None] * np.tensordot(weights[weight], score, 1)
            found[name].append(chance @ (gradient**2).sum(1) - ((chance @ gradient) ** 2).sum())
    for name, ours in found.items():
        close(ours, outputs[name], vector)
    close(np.diff(found["terminal"]), [outputs["slope_terminal"]] * 6, vector)


CHECKS: Checks = {
    "attribution.tiny_rnn": attribution,
    "anchors.resampling_accuracy": resampling,
    "spec.prefix_value_credit": prefix_values,
    "oar.weights": reshaping,
    "closed.reinforce_variance": score_variance,
}
