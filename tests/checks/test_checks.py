"""Each check finds its planted fault with the number that can be worked out by hand, and is silent without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from credit_inspector.checks import checks, run_checks
from credit_inspector.panel import Severity
from credit_inspector.rollout import Rollout
from credit_inspector.spans import SpanTable
from credit_inspector.store import Meta, Store
from credit_inspector.table import Provenance, TokenTable

Plant = Callable[[TokenTable], None]


def store_of(tmp_path: Path, *, rewards: list[float], plant: Plant) -> Store:
    """One step of as many responses of four tokens as there are rewards, in groups of four."""
    rollouts = [
        Rollout(
            sample_id=f"s{i}",
            group_id=f"g{i // 4}",
            prompt_ids=np.array([9], np.int32),
            response_ids=np.array([1, 2, 3, 4], np.int32),
            reward=reward,
            policy_version=0,
        )
        for i, reward in enumerate(rewards)
    ]
    table = TokenTable.from_rollouts(1, rollouts)
    plant(table)
    n = table.n_rows
    start = np.sort(np.concatenate([table.offsets[:-1], table.offsets[:-1] + 2]))
    spans = SpanTable(
        row=np.repeat(np.arange(n), 2), start=start, end=start + 2, label=("sentence",) * 2 * n, text=("t",) * 2 * n
    )
    store = Store(tmp_path)
    store.write_meta(Meta(source="r", trainer="t"), None)
    store.write_step(table, spans)
    return store


def codes(store: Store) -> set[str]:
    return {finding.code for finding in run_checks(store)}


def clean(table: TokenTable) -> None:
    """Right answers paid up, wrong ones down, nothing unearned, nothing shared, log-probs that agree."""
    sign = np.where(table.to_tokens(table.reward) > 0, 1.0, -1.0)
    table.add("credit/delivered", 0.1 * sign, Provenance.DERIVED)
    table.add("credit/unearned", np.zeros(table.n_tokens), Provenance.ESTIMATED)
    table.add("credit/contrast", np.zeros(table.n_tokens), Provenance.ESTIMATED)
    table.add("logprob/old", np.full(table.n_tokens, -1.0), Provenance.RECORDED)
    table.add("logprob/recomputed", np.full(table.n_tokens, -1.001), Provenance.RECOMPUTED, "policy checkpoints/step_000000")


def test_silent_on_a_clean_run(tmp_path: Path) -> None:
    assert codes(store_of(tmp_path, rewards=[1, 0, 1, 0] * 4, plant=clean)) == set()


def first_half_unearned(table: TokenTable) -> None:
    clean(table)
    table.add("credit/unearned", table.position < 2, Provenance.ESTIMATED)


def wrong_share_with_right(table: TokenTable) -> None:
    clean(table)
    table.add("credit/contrast", np.where(table.position == 0, 0.5, 0.0), Provenance.ESTIMATED)


def shifted(table: TokenTable) -> None:
    clean(table)
    table.add("logprob/recomputed", np.full(table.n_tokens, -1.3), Provenance.RECOMPUTED, "policy checkpoints/step_000000")


def one_token_owns_the_kl(table: TokenTable) -> None:
    clean(table)
    table.token_ids[:] = np.arange(table.n_tokens)
    table.add("kl/k3", np.where(np.arange(table.n_tokens) == 3, 5.0, 0.01), Provenance.DERIVED)


@pytest.mark.parametrize(
    ("plant", "rewards", "code", "number"),
    [
        (first_half_unearned, [1, 0, 1, 0] * 4, "filler-paid", ("share", 0.5)),
        (wrong_share_with_right, [1, 0, 1, 0] * 4, "good-work-punished", ("share", 0.25)),
        (shifted, [1, 0, 1, 0] * 4, "recorded-logprobs-differ", ("mean_abs_difference", 0.3)),
        (one_token_owns_the_kl, [1, 0, 1, 0] * 4, "kl-owned-by-few", ("share", (5 + 4 * 0.01) / (5 + 63 * 0.01))),
        (clean, [1, 1, 1, 1, 0, 0, 0, 0, 1, 0, 1, 0], "dead-groups", ("share", 2 / 3)),
    ],
)
def test_a_planted_fault_is_found_and_only_it(
    tmp_path: Path, plant: Plant, rewards: list[float], code: str, number: tuple[str, float]
) -> None:
    store = store_of(tmp_path, rewards=rewards, plant=plant)
    assert codes(store) == {code}
    (finding,) = checks[code](store)
    assert finding.numbers[number[0]] == pytest.approx(number[1], rel=1e-3)
    assert finding.why
    assert finding.do


def test_severity_follows_the_interval(tmp_path: Path) -> None:
    (finding,) = checks["filler-paid"](store_of(tmp_path, rewards=[1, 0, 1, 0] * 4, plant=first_half_unearned))
    assert finding.severity is Severity.ERROR
    assert (finding.links[0].start, finding.links[0].end) == (0, 2)


def test_a_check_without_its_columns_says_nothing(tmp_path: Path) -> None:
    assert codes(store_of(tmp_path, rewards=[1, 0, 1, 0], plant=lambda _: None)) == set()
