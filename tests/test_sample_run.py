"""What the shipped run proves: coefficients against TRL's own loss on its batches, and the detector against the known spans."""

from __future__ import annotations

import json
import types
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch

import score
from credit_inspector import pipeline
from credit_inspector.store import Store
from credit_inspector.table import TokenTable
from credit_inspector.trainers.opening import open_run
from places import ROOT, SAMPLE

RUN = open_run(SAMPLE)


def padded(table: TokenTable, values: np.ndarray) -> torch.Tensor:
    rows = [torch.tensor(values[table.slice(i)], dtype=torch.float64) for i in range(table.n_rows)]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def trl_gradient(table: TokenTable) -> np.ndarray:
    """dL/dlogπ by autograd through TRL's own ``_compute_loss`` on the recorded batch, ``[T]``."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    rule = table.algorithm
    accelerator = types.SimpleNamespace(
        num_processes=1,
        sync_gradients=True,
        gather=lambda x: x,
        gather_for_metrics=lambda x: x,
        reduce=lambda x, reduction="sum": x,
        pad_across_processes=lambda x, dim=0, pad_index=0: x,
    )
    args = types.SimpleNamespace(delta=None, use_bias_correction_kl=rule.kl_gradient == "ratio-weighted", steps_per_generation=1)
    trainer = types.SimpleNamespace(
        accelerator=accelerator,
        model=types.SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        _metrics={"train": defaultdict(list)},
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        beta=rule.kl_beta,
        epsilon_low=rule.clip_low,
        epsilon_high=rule.clip_high,
        loss_type=rule.name.split("/")[1],
        importance_sampling_level="token",
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        off_policy_mask_threshold=None,
        _entropy_bonus_enabled=False,
        max_completion_length=112,
        args=args,
    )
    logprob = padded(table, table.values("logprob/policy")).requires_grad_()
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (logprob, torch.zeros_like(logprob), None)
    mask = padded(table, np.ones(table.n_tokens))
    ids = torch.zeros_like(mask, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :2],
        "prompt_mask": ids[:, :2],
        "completion_ids": ids,
        "completion_mask": mask,
        "advantages": torch.tensor(table.values("advantage")[table.offsets[:-1]]),
        "old_per_token_logps": padded(table, table.values("logprob/old")),
        "ref_per_token_logps": padded(table, table.values("logprob/ref")),
        "num_items_in_batch": mask.sum(),
    }
    GRPOTrainer._compute_loss(trainer, None, inputs).backward()
    return np.concatenate([logprob.grad[i, :n].numpy() for i, n in enumerate(table.lengths)])


@pytest.mark.parametrize("number", RUN.steps)
def test_coefficients_equal_autograd_through_trls_own_loss(number: int) -> None:
    """On every kept batch, within 1e-6 of the largest coefficient: float32 columns hold seven digits."""
    options = pipeline.Options(score=False, columns=("credit/coefficient",))
    table, _ = pipeline.in_memory(RUN, options, number)
    wanted = -trl_gradient(table)
    np.testing.assert_allclose(table.values("credit/coefficient"), wanted, rtol=1e-6, atol=1e-7 * np.abs(wanted).max())
    assert (np.abs(wanted) > 0).mean() > 0.2


def test_the_detector_finds_what_is_known_to_be_unearned(tmp_path: Path) -> None:
    store = pipeline.analyze(SAMPLE, tmp_path, pipeline.Options())
    judged = list(score.judge(store, SAMPLE / "filler_truth.jsonl"))
    precision, recall = score.precision_recall(judged, lambda one: one.by_evidence)
    assert precision >= 0.95
    assert recall >= 0.90
    phrases = score.precision_recall(judged, lambda one: one.by_phrases)
    assert precision > phrases[0]
    assert recall > phrases[1]
    assert "precision" in score.table(judged)


def test_nothing_in_the_package_reads_the_truth() -> None:
    package = ROOT / "credit_inspector"
    texts = [file.read_text("utf-8") for file in package.rglob("*.py") if "_sample_runs" not in file.parts]
    assert not any("filler_truth" in text for text in texts)


def test_the_run_is_what_its_readme_says(analysis: Store) -> None:
    facts = json.loads((SAMPLE / "facts.json").read_text())
    accuracy = [facts[f"step_{at.step}"]["accuracy"] for at in RUN.checkpoints]
    assert accuracy == sorted(accuracy)
    assert accuracy[-1] > accuracy[0] + 0.05
    readme = (SAMPLE / "README.md").read_text("utf-8")
    for at in RUN.checkpoints:
        assert f"{100 * facts[f'step_{at.step}']['accuracy']:.1f} %" in readme
    assert len(RUN.steps) >= 10
    size = sum(file.stat().st_size for file in SAMPLE.rglob("*") if file.is_file() and "analysis" not in file.parts)
    assert size < 25 * 2**20
