"""The law of every column: one value per token, described, missing with a reason, deaf to what is masked."""

from __future__ import annotations

import numpy as np
import pytest

from credit_inspector import pipeline
from credit_inspector.rollout import Rollout
from credit_inspector.store import Store
from credit_inspector.table import Provenance, TokenTable

SPECS = pipeline.known_columns()
ARITHMETIC = [name for name, spec in SPECS.items() if "models" not in spec.needs and "spans" not in spec.needs]


@pytest.mark.parametrize("name", SPECS)
def test_it_is_described(name: str) -> None:
    spec = SPECS[name]
    assert spec.label
    assert len(spec.doc.split()) > 5
    assert spec.scope in {"token", "rollout", "group", "batch"}
    assert spec.unit


@pytest.mark.parametrize("name", SPECS)
def test_on_the_sample_run_it_has_a_value_for_every_token_or_says_why_not(name: str, analysis: Store) -> None:
    for step in analysis.steps:
        table, _ = analysis.read_step(step)
        column = table.columns[name]
        if column.values is None:
            assert column.provenance is Provenance.MISSING
            assert column.note
        else:
            assert column.values.shape == (table.n_tokens,)
            assert not np.isinf(column.values).any()


def masked_table(noise: float) -> TokenTable:
    rng = np.random.default_rng(3)
    rollouts = []
    for i in range(8):
        n = 5
        mask = np.array([True, True, False, True, True])
        drawn = {name: -rng.exponential(1, n) for name in ("logprob/policy", "logprob/old", "logprob/ref", "logprob/rollout")}
        drawn["sum_p2/policy"] = rng.uniform(0.2, 0.9, n)
        columns = {name: np.where(mask, values, noise).astype(np.float32) for name, values in drawn.items()}
        rollouts.append(
            Rollout(
                sample_id=str(i),
                group_id=str(i // 4),
                prompt_ids=np.array([1], np.int32),
                loss_mask=mask,
                response_ids=np.arange(n, dtype=np.int32),
                reward=float(rng.integers(0, 2)),
                policy_version=0,
                columns=columns,
            )
        )
    rule = pipeline.preset("trl-1.16.0/dapo", kl_beta=0.04)
    return TokenTable.from_rollouts(1, rollouts, algorithm=rule)


@pytest.mark.parametrize("noise", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("name", ARITHMETIC)
def test_what_stands_at_a_masked_place_changes_nothing(name: str, noise: float) -> None:
    tables = masked_table(0.0), masked_table(noise)
    for table in tables:
        pipeline.compute(pipeline.Inputs(table, algorithm=table.algorithm), [name], SPECS)
    trained = tables[0].loss_mask
    np.testing.assert_array_equal(tables[0].values(name)[trained], tables[1].values(name)[trained])
    if name not in tables[0].rollouts[0].columns:
        assert np.isnan(tables[1].values(name)[~trained]).all()
