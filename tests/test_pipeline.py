"""The whole way on the shipped run, and that a stopped analysis goes on to the same end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from credit_inspector import pipeline
from credit_inspector.checks import recorded_fits
from credit_inspector.errors import FormatError, StoreError, UsageError
from credit_inspector.store import Store
from credit_inspector.trainers.opening import open_run
from places import SAMPLE

RECORDED = ("logprob/policy", "logprob/old", "logprob/ref", "logprob/rollout", "advantage", "entropy/policy")
MODELS = ("sum_p2/policy", "kl/exact", "credit/realised", "credit/earned", "credit/alignment", "credit/unearned")


def test_every_column_is_there_with_where_it_is_from(analysis: Store) -> None:
    table, spans = analysis.read_step(analysis.steps[0])
    assert set(pipeline.known_columns()) | set(RECORDED) == set(table.columns)
    for name in RECORDED:
        assert table.columns[name].provenance == "recorded"
    for name in (*MODELS, "credit/coefficient", "credit/delivered"):
        assert table.has(name), table.columns[name].note
        assert np.isfinite(table.values(name)).any()
    assert len(spans) > table.n_rows


def test_the_reference_checkpoint_gives_the_recorded_log_probs(analysis: Store) -> None:
    """Step 1 was sampled by the checkpoint of step 0: what TRL recorded is what we compute."""
    assert recorded_fits.measure(analysis)[1] < 1e-4
    table, _ = analysis.read_step(1)
    np.testing.assert_allclose(table.values("logprob/recomputed"), table.values("logprob/old"), atol=2e-3)
    assert np.abs(table.values("logprob/rollout") - table.values("logprob/old")).max() < 1e-3


def test_realised_is_the_difference_of_two_checkpoints(analysis: Store) -> None:
    table, _ = analysis.read_step(1)
    realised = table.values("logprob/after") - table.values("logprob/recomputed")
    np.testing.assert_allclose(table.values("credit/realised"), realised, atol=1e-4)
    assert np.abs(realised).max() > 0.1


def test_two_updates_on_one_batch_share_what_only_text_and_models_decide(analysis: Store) -> None:
    first, second = (analysis.read_step(step)[0] for step in analysis.steps[:2])
    np.testing.assert_array_equal(first.values("credit/earned"), second.values("credit/earned"))
    assert not np.array_equal(first.values("credit/coefficient"), second.values("credit/coefficient"))
    alone = pipeline.in_memory(open_run(SAMPLE), pipeline.Options(columns=("credit/deletion",)), analysis.steps[1])[0]
    np.testing.assert_allclose(alone.values("credit/deletion"), second.values("credit/deletion"), atol=1e-5)


def test_a_killed_analysis_goes_on_and_ends_the_same(tmp_path: Path, analysis: Store) -> None:
    command = [sys.executable, "-c", "from credit_inspector.cli import main; main()", "analyze", str(SAMPLE)]
    command += [part for step in analysis.steps for part in ("--step", str(step))] + ["--out", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ))
    while not list(tmp_path.glob("steps/*.parquet")) and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    first = next(iter(sorted(tmp_path.glob("steps/*.parquet"))))
    made = first.stat().st_mtime_ns
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert first.stat().st_mtime_ns == made
    for step in analysis.steps:
        one, other = Store(tmp_path).read_step(step)[0], analysis.read_step(step)[0]
        for name, column in other.columns.items():
            np.testing.assert_allclose(one.columns[name].values, column.values, rtol=1e-3, atol=2e-3, err_msg=name)
    assert [f.code for f in Store(tmp_path).findings()] == [f.code for f in analysis.findings()]


def test_text_only_completions_are_tokenised_once_and_recomputed(tmp_path: Path) -> None:
    """TRL's own parquet with a checkpoint: token values that the trainer did not leave are recomputed and say so."""
    run = open_run(SAMPLE / "trl")
    options = pipeline.Options(
        checkpoints={"policy": SAMPLE / "checkpoints" / "step_000000"},
        algorithm="trl-1.16.0/dapo",
        steps=(run.steps[0],),
        columns=("logprob/policy", "credit/coefficient", "sum_p2/policy"),
    )
    table, _ = pipeline.in_memory(run, options, run.steps[0])
    assert table.columns["logprob/policy"].provenance == "recomputed"
    assert {p.kind for p in table.problems} >= {"retokenised"}
    assert np.isfinite(table.values("logprob/policy")).mean() > 0.9


def test_bad_input_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    out = tmp_path / "out"
    with pytest.raises(FormatError):
        pipeline.analyze(tmp_path / "notes.txt", out, pipeline.Options())
    with pytest.raises(UsageError, match="step 99999 is not in the run"):
        pipeline.analyze(SAMPLE, out, pipeline.Options(steps=(99999,)))
    with pytest.raises(UsageError, match="did you mean"):
        pipeline.analyze(SAMPLE, out, pipeline.Options(algorithm="trl-1.16.0/dappo"))
    assert not out.exists()


def test_one_bad_rollout_among_good_ones_is_counted_and_shown(tmp_path: Path) -> None:
    rows = [{"prompt": "p", "response": f"r{i}", "reward": i % 2, "step": 1} for i in range(4)]
    lines = [json.dumps(row) for row in rows] + ['{"prompt": "p", "resp']
    (tmp_path / "rollouts.jsonl").write_text("\n".join(lines))
    store = pipeline.analyze(tmp_path / "rollouts.jsonl", tmp_path / "out", pipeline.Options(score=False))
    table, _ = store.read_step(1)
    assert table.n_rows == 4
    assert any(p.kind == "torn-line" for p in table.problems)


def test_other_settings_do_not_mix_with_an_analysis_that_is_there(tmp_path: Path) -> None:
    def options(**changes: object) -> pipeline.Options:
        return pipeline.Options(steps=(1,), columns=("sum_p2/policy", "advantage"), **changes)

    light = pipeline.analyze(SAMPLE, tmp_path, options(score=False))
    assert not light.read_step(1)[0].has("sum_p2/policy")
    assert pipeline.analyze(SAMPLE, tmp_path, options()).read_step(1)[0].has("sum_p2/policy")
    with pytest.raises(StoreError, match="other settings"):
        pipeline.analyze(SAMPLE, tmp_path, options(algorithm="verl-0.9.1/grpo"))


def test_assign_gives_a_steps_assigned_credit_without_a_model(analysis: Store) -> None:
    """The same numbers as the analysis, from a path, an opened run or rollouts; under the run's rule or another."""
    step = analysis.steps[1]
    stored = analysis.read_step(step)[0]
    table = pipeline.assign(SAMPLE, step=step)
    for name in ("advantage", "weight", "clip", "credit/coefficient"):
        np.testing.assert_allclose(table.values(name), stored.values(name), rtol=1e-6, err_msg=name)
    of_rollouts = pipeline.assign(table.rollouts, table.algorithm)
    np.testing.assert_array_equal(of_rollouts.values("credit/coefficient"), table.values("credit/coefficient"))
    other = pipeline.assign(SAMPLE, "trl-1.16.0/dr_grpo", step=step)
    assert "group std" not in other.columns["advantage"].note
    with pytest.raises(UsageError, match="no algorithm named"):
        pipeline.assign(SAMPLE, "trl/grpo")
