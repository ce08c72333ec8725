"""Columns that the checkpoints give: the policy's own distribution, and its distance from the reference."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from credit_inspector.algorithm import Algorithm
from credit_inspector.checkpoints import Checkpoint
from credit_inspector.columns import Inputs, compute
from credit_inspector.metrics import metrics
from credit_inspector.rollout import Rollout
from credit_inspector.scoring import Models
from credit_inspector.table import Provenance, TokenTable

VOCABULARY = 37
SPECS = {spec.name: spec for spec in metrics.members()}
ROLES = {"logprob/policy": "policy", "logprob/old": "old", "logprob/ref": "ref", "logprob/after": "after"}


def _checkpoint(seed):
    def load(device, dtype):
        torch.manual_seed(seed)
        size = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        return LlamaForCausalLM(LlamaConfig(**size, intermediate_size=24, initializer_range=0.3)).to(device, dtype)

    path = Path("run") / f"step-{seed}"
    return Checkpoint(path=path, format="test", summary="", vocabulary=VOCABULARY, tokenizer=None, load=load)


@pytest.fixture(scope="module")
def models():
    return Models({role: _checkpoint(seed) for seed, role in enumerate(ROLES.values())}, device="cpu")


def _table(**recorded):
    rng = np.random.default_rng(0)
    prompt, response = (rng.integers(0, VOCABULARY, n).astype(np.int32) for n in (3, 6))
    mask = np.array([1, 1, 0, 0, 1, 1], bool)
    columns = {name: np.full(6, value, np.float32) for name, value in recorded.items()}
    rollout = Rollout(sample_id="a", prompt_ids=prompt, response_ids=response, loss_mask=mask, columns=columns)
    rule = Algorithm(name="test", source="recorded", temperature=0.7)
    return TokenTable.from_rollouts(3, [rollout], algorithm=rule)


@pytest.mark.parametrize(("name", "role"), [*ROLES.items(), ("logprob/recomputed", "policy")])
def test_each_log_prob_is_its_checkpoints_and_names_it(models, name, role):
    table = _table()
    compute(Inputs(table=table, models=models), [name], SPECS)
    column = table.columns[name]
    wanted = np.where(table.loss_mask, models.scores(role, table).logprob, np.nan)
    np.testing.assert_array_equal(column.values, wanted)
    assert column.provenance is Provenance.RECOMPUTED
    assert f"{role} run/step-" in column.note
    assert "temperature 0.7" in column.note


def test_a_recorded_log_prob_stands_and_the_recomputed_one_beside_it(models):
    table = _table(**{"logprob/policy": -1.0})
    compute(Inputs(table=table, models=models), ["logprob/policy", "logprob/recomputed"], SPECS)
    assert (table.values("logprob/policy") == -1).all()
    assert table.columns["logprob/policy"].provenance is Provenance.RECORDED
    assert not (table.values("logprob/recomputed") == -1).any()


def test_without_the_checkpoint_the_column_is_missing_with_the_cure():
    table = _table()
    alone = Models({"policy": _checkpoint(0)}, device="cpu")
    compute(Inputs(table=table, models=alone), ["logprob/after", "kl/exact"], SPECS)
    assert table.columns["logprob/after"].values is None
    assert "give one with --after" in table.columns["logprob/after"].note
    assert "give one with --ref" in table.columns["kl/exact"].note


def test_entropy_and_sum_p2_lie_between_certain_and_even(models):
    table = _table()
    compute(Inputs(table=table, models=models), ["entropy/policy", "sum_p2/policy"], SPECS)
    entropy, sum_p2 = (table.values(name)[table.loss_mask] for name in ("entropy/policy", "sum_p2/policy"))
    assert ((entropy > 0) & (entropy < math.log(VOCABULARY))).all()
    assert ((sum_p2 > 1 / VOCABULARY) & (sum_p2 < 1)).all()
    # Rényi entropy of order 2 never exceeds Shannon's.
    assert (-np.log(sum_p2) <= entropy + 1e-6).all()


def test_exact_kl_is_positive_and_from_a_model_to_itself_nothing(models):
    table = _table()
    compute(Inputs(table=table, models=models), ["kl/exact"], SPECS)
    assert (table.values("kl/exact")[table.loss_mask] > 0).all()
    same = Models({role: _checkpoint(0) for role in ("policy", "ref")}, device="cpu")
    again = _table()
    compute(Inputs(table=again, models=same), ["kl/exact"], SPECS)
    assert (again.values("kl/exact")[again.loss_mask] == 0).all()


def test_masked_tokens_have_no_value(models):
    names = [name for name in SPECS if SPECS[name].needs == ("table", "models")]
    table = _table()
    compute(Inputs(table=table, models=models), names, SPECS)
    assert len(names) == 8
    for name in names:
        np.testing.assert_array_equal(np.isfinite(table.values(name)), table.loss_mask)


_LIGHT = """
import sys
sys.modules["torch"] = None
from credit_inspector.metrics import metrics
from credit_inspector.credit import credits
assert "kl/exact" in metrics and "credit/influence" in credits
from credit_inspector.errors import MissingExtra
try:
    import credit_inspector.scoring
except MissingExtra as error:
    print(error)
"""


def test_the_columns_are_known_without_torch_and_running_them_says_what_to_install():
    done = subprocess.run([sys.executable, "-c", _LIGHT], capture_output=True, text=True, check=True)
    assert 'this needs torch, which is not installed; pip install "credit-inspector[compute]"' in done.stdout
