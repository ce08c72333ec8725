"""What real runs look like where a check could be wrong: a fault under noise is found, and a run that is right is left alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from credit_inspector.rollout import Rollout
from credit_inspector.store import Store
from credit_inspector.table import Provenance, TokenTable
from field_cases.tables import codes, response, rule, said, table_of, the

RNG = np.random.default_rng(7)
OLD = -RNG.exponential(0.7, 300)
SEVERAL = rule(updates_per_batch=4)


def noise(size: float) -> np.ndarray:
    return RNG.normal(0, size, len(OLD))


# ── which update a step is ──────────────────────────────────────────────────────────────────────────────────────────


def test_minibatches_of_one_batch_without_versions_are_no_first_updates(tmp_path: Path) -> None:
    """Step 2 trains on other responses of the batch that step 1 began: its ratio may be anything."""
    first = table_of(response(policy=OLD, old=OLD), algorithm=SEVERAL, step=1)
    second = response(policy=OLD - 0.3, old=OLD, response_ids=np.arange(2, len(OLD) + 2))
    assert said("ratio-not-one-at-start", tmp_path, first, table_of(second, algorithm=SEVERAL, step=2)) == []


def test_responses_older_than_the_update_s_weights_have_other_log_probs(tmp_path: Path) -> None:
    """Asynchronous training: each step's responses are of another version, and three updates old."""

    def step(number: int) -> TokenTable:
        one = response(
            policy=OLD + noise(0.1), old=OLD, policy_version=number - 4, response_ids=np.arange(number, number + len(OLD))
        )
        return table_of(one, algorithm=SEVERAL, step=number)

    assert said("ratio-not-one-at-start", tmp_path, step(5), step(6)) == []


def test_identical_responses_are_at_least_a_second_update(tmp_path: Path) -> None:
    steps = [table_of(response(policy=OLD, old=OLD), algorithm=SEVERAL, step=n) for n in (7, 8)]
    assert "Step 8: ratio exactly 1 at update 2 of 4" in the("ratio-exactly-one", tmp_path, *steps).sentence


# ── log-probs ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_certain_token_may_be_unsure_to_the_reference(tmp_path: Path) -> None:
    """From 17 nats between logits on, a log-prob is exactly 0 in float32."""
    sure, unsure = np.zeros(20), np.full(20, -2.0)
    grown = response("grown", policy=sure, old=sure, rollout=sure, ref=unsure)
    lost = response("lost", policy=unsure, old=unsure, rollout=unsure, ref=sure)
    assert said("logprobs-zero-filled", tmp_path, table_of(grown, lost, algorithm=rule())) == []


@pytest.mark.parametrize(("one", "against"), [("rollout", "policy"), ("ref", "policy"), ("old", "policy"), ("rollout", "old")])
def test_a_shift_is_found_whatever_is_recorded_beside_it(tmp_path: Path, one: str, against: str) -> None:
    columns = {one: np.append(OLD[1:], -1.0) + noise(0.005), against: OLD}
    finding = the("logprobs-shifted", tmp_path, table_of(response(**columns), algorithm=SEVERAL))
    assert "one token too early" in finding.sentence


@pytest.mark.parametrize("at", [0.6, 0.8, 0.9, 1.2])
def test_a_temperature_on_one_side_is_found_in_a_sharp_policy(tmp_path: Path, at: float) -> None:
    logits = RNG.normal(0, 6, (2000, 60))
    bare, warm = (scaled - np.logaddexp.reduce(scaled, axis=1, keepdims=True) for scaled in (logits, logits / at))
    sampled = np.array([RNG.choice(60, p=np.exp(row)) for row in warm])
    rows = np.arange(2000)
    one = response(rollout=bare[rows, sampled], policy=warm[rows, sampled] + RNG.normal(0, 0.003, 2000))
    finding = the("temperature-on-one-side", tmp_path, table_of(one, algorithm=rule(temperature=at)))
    assert "the engine's log-probs lack it" in finding.sentence


# ── the reference ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_another_reference_is_found_where_two_forwards_of_one_policy_differ_by_noise(tmp_path: Path) -> None:
    one = response(policy=OLD + noise(0.01), old=OLD, ref=OLD - 0.2 + noise(0.3), policy_version=0)
    assert len(said("reference-differs-at-start", tmp_path, table_of(one, algorithm=SEVERAL))) == 1


def test_noise_between_forwards_is_no_other_reference(tmp_path: Path) -> None:
    one = response(policy=OLD + noise(0.01), old=OLD, ref=OLD + noise(0.01), policy_version=0)
    assert said("reference-differs-at-start", tmp_path, table_of(one, algorithm=SEVERAL)) == []


# ── weights ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def of_responses(weights: list[float]) -> TokenTable:
    return table_of(*(response(f"s{i}", weight=[weight] * 40) for i, weight in enumerate(weights)))


def test_one_weight_a_response_is_no_pile(tmp_path: Path) -> None:
    assert said("weights-at-cap", tmp_path / "own", of_responses([0.7, 0.9, 1.1, 1.4])) == []
    assert "pile up at 2" in the("weights-at-cap", tmp_path / "cap", of_responses([0.7, 2.0, 1.1, 2.0])).sentence


# ── a whole run that is right ───────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_said_above_a_hint_of_a_run_that_is_right(tmp_path: Path) -> None:
    """Two updates a batch, bfloat16 noise between forwards, an engine of its own, tool tokens, and a step without a reward."""
    two = rule(updates_per_batch=2, kl_beta=0.04)

    def one(batch: int, name: int, moved: float, reward: float) -> Rollout:
        rng = np.random.default_rng(100 * batch + name)
        old = -rng.exponential(0.5, 60)
        mask = [1] * 20 + [0] * 10 + [1] * 30
        there = np.where(np.array(mask) == 1, 0.0, np.nan)
        return response(
            f"{batch}-{name}",
            mask=mask,
            policy=there + np.minimum(old + moved * rng.normal(0, 0.05, 60), 0),
            old=there + old,
            ref=there + np.minimum(old + rng.normal(0, 0.01 + 0.02 * batch, 60), 0),
            rollout=there + np.minimum(old + rng.normal(0, 0.006, 60), 0),
            response_ids=rng.integers(5, 50, 60),
            reward=reward,
            group_id=f"{batch}-{name // 4}",
            policy_version=2 * batch,
        )

    def step(number: int) -> TokenTable:
        batch, update = divmod(number - 1, 2)
        rows = [one(batch, name, float(update), float((name * 7 + batch) % 3 == 0)) for name in range(16)]
        return table_of(*rows, algorithm=two, step=number)

    assert codes(tmp_path, *map(step, range(1, 7))) == set()


def test_the_shipped_run_is_right(analysis: Store) -> None:
    ours = ("ratio-", "kl-", "reference-", "logprob", "engine-", "temperature", "stale", "weights", "product", "length")
    assert not [each for each in analysis.findings() if each.code.startswith(ours) and each.severity.name != "INFO"]


# ── checkpoints of other steps ──────────────────────────────────────────────────────────────────────────────────────


def by_checkpoint(column: str, at: int, step: int, *, of: int, **recorded: np.ndarray) -> TokenTable:
    """A step whose one column was computed by a checkpoint that has taken ``at`` optimizer steps; it differs by 0.4 nats."""
    table = table_of(response(**recorded, policy_version=step - 1), algorithm=rule(updates_per_batch=of), step=step)
    values = np.minimum(OLD - 0.4 - noise(0.1), 0)
    table.add(column, values, Provenance.RECOMPUTED, f"policy run/checkpoint-{at} (float32, cpu); temperature 1")
    return table


@pytest.mark.parametrize(("at", "told"), [(40, True), (20, False)])
@pytest.mark.parametrize(
    ("column", "recorded", "of", "code"),
    [
        ("logprob/policy", "old", 4, "ratio-not-one-at-start"),
        ("logprob/old", "rollout", 4, "engine-mismatch"),
        ("logprob/policy", "rollout", 1, "engine-mismatch"),
    ],
)
def test_only_a_checkpoint_of_the_step_s_own_weights_is_evidence(
    tmp_path: Path, *, column: str, recorded: str, of: int, code: str, at: int, told: bool
) -> None:
    table = by_checkpoint(column, at, 41, of=of, **{recorded: OLD})
    assert (code in codes(tmp_path, table)) == told


def test_a_token_that_became_certain_since_a_checkpoint_is_not_filled_in(tmp_path: Path) -> None:
    table = by_checkpoint("logprob/recomputed", 20, 41, of=4, old=np.zeros(len(OLD)))
    assert said("logprobs-zero-filled", tmp_path / "earlier", table) == []
    assert (
        len(said("logprobs-zero-filled", tmp_path / "own", by_checkpoint("logprob/recomputed", 40, 41, of=4, old=0 * OLD))) == 1
    )
