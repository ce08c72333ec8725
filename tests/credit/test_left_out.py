"""What is left out is left out everywhere, and what arithmetic cannot make is null on disk."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from credit_inspector import pipeline
from credit_inspector.algorithm import Algorithm
from credit_inspector.rollout import Rollout
from credit_inspector.store import Store
from credit_inspector.table import TokenTable

ASSIGNED = [name for name, spec in pipeline.known_columns().items() if spec.family == "assigned"]
RULE = Algorithm(
    name="everything",
    source="test",
    updates_per_batch=2,
    drop_dead_groups=True,
    mask_truncated=True,
    rollout_reject={"token_k1": "0.1_10"},
    rollout_weight="token",
    rollout_high=2.0,
    rollout_normalize=True,
    top_entropy_quantile=0.6,
    off_policy_mask=0.1,
    kl_beta=0.1,
    kl_gradient="ratio-weighted",
    entropy_bonus=0.01,
)
SCALARS = ("logprob/policy", "logprob/old", "logprob/ref", "logprob/rollout")


def table_of(spoil: float | None = None, *, rule: Algorithm = RULE) -> TokenTable:
    """Three groups of four, the last one without spread; ``spoil`` stands at a trained token of each column in turn."""
    random = np.random.default_rng(5)
    rollouts = []
    for i in range(12):
        mask = random.random(8) < 0.8
        columns = {name: -random.exponential(1, 8).astype(np.float32) for name in SCALARS}
        columns["entropy/policy"] = random.exponential(1, 8).astype(np.float32)
        columns["sum_p2/policy"] = random.uniform(0.3, 0.9, 8).astype(np.float32)
        mask[:6] = True
        if spoil is not None and i < 4:
            for place, values in enumerate(columns.values()):
                values[place] = spoil
        rollouts.append(
            Rollout(
                sample_id=str(i),
                group_id=str(i // 4),
                response_ids=np.arange(8, dtype=np.int32),
                loss_mask=mask,
                reward=1.0 if i >= 8 else float(i % 2),
                truncated=i in (1, 6),
                columns=columns,
            )
        )
    table = TokenTable.from_rollouts(1, rollouts, algorithm=rule)
    pipeline.compute(pipeline.Inputs(table, algorithm=rule), ASSIGNED, pipeline.known_columns())
    return table


def test_a_token_that_is_left_out_has_weight_0_and_no_push_of_any_kind() -> None:
    table = table_of()
    out = table.loss_mask & (table.values("kept") == 0)
    assert 0 < out.sum() < table.n_trained
    for name in (
        "weight",
        "credit/policy_push",
        "credit/kl_push",
        "credit/coefficient",
        "credit/entropy_push",
        "credit/delivered",
    ):
        assert not table.values(name)[out].any(), name
    assert f"the rule leaves {out.sum()} tokens out" in table.columns["credit/coefficient"].note
    assert table.values("weight")[table.values("kept") == 1] == pytest.approx(1 / np.nansum(table.values("kept")))


def test_what_is_left_out_might_as_well_not_be_trained() -> None:
    """The mask itself shortened to what is kept gives every kept token the same push; a rule's constants look no further."""
    rule = replace(RULE, rollout_normalize=False, drop_dead_groups=False, count_empty=True, aggregation="seq-mean-token-mean")
    whole = table_of(rule=rule)
    inside = whole.values("kept") == 1
    rollouts = [replace(each, loss_mask=inside[whole.slice(i)]) for i, each in enumerate(whole.rollouts)]
    short = TokenTable.from_rollouts(1, rollouts, algorithm=(plain := replace(rule, mask_truncated=False, rollout_reject={})))
    pipeline.compute(pipeline.Inputs(short, algorithm=plain), ASSIGNED, pipeline.known_columns())
    for name in ("weight", "credit/policy_push", "credit/kl_push", "credit/coefficient", "credit/entropy_push"):
        np.testing.assert_array_equal(short.values(name)[inside], whole.values(name)[inside], err_msg=name)


@pytest.mark.parametrize("spoil", [np.nan, np.inf, -np.inf])
def test_no_nan_of_arithmetic_reaches_the_disk(spoil: float, tmp_path: Path) -> None:
    table = table_of(spoil)
    store = Store(tmp_path)
    store.write_step(table, None)
    (file,) = tmp_path.glob("steps/*.parquet")
    arrow = pq.read_table(file)
    made = [name for name in ASSIGNED if table.has(name)]
    assert {"weight", "rollout_weight", "credit/coefficient", "credit/kl_push"} <= set(made)
    for name in made:
        numbers = arrow[f"column:{name}"].combine_chunks().flatten()
        assert np.isfinite(numbers.drop_null().to_numpy()).all(), name
        assert numbers.null_count >= int(np.count_nonzero(~table.loss_mask)), name
    about = arrow.schema.metadata[next(iter(arrow.schema.metadata))]

    def bare(constant: str) -> float:
        raise AssertionError(f"a bare {constant} in the step's notes")

    assert json.loads(about, parse_constant=bare)["columns"]["weight"][1]
    assert "left out: no finite value" in table.columns["credit/coefficient"].note
    back, _ = store.read_step(1)
    np.testing.assert_array_equal(back.values("credit/coefficient"), table.values("credit/coefficient"))
