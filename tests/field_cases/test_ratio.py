"""What users reported about ratios, clipping and log-probs, each as a small input with the answer that can be worked out by
hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from credit_inspector import assign
from credit_inspector.checks import run_checks
from credit_inspector.checks._engine import tempered
from credit_inspector.metrics.statistics import truncated
from credit_inspector.panel import Severity
from credit_inspector.pipeline import Options, analyze
from credit_inspector.rollout import Rollout
from credit_inspector.store import Store
from credit_inspector.table import TokenTable
from field_cases.tables import codes, response, rule, said, store_of, table_of, the

SEVERAL = rule(updates_per_batch=4)

# ── updates of one batch ────────────────────────────────────────────────────────────────────────────────────────────


def update(step: int, old: float = -1.0, *, policy: float = -1.0, of: int = 4, version: int | None = 0) -> TokenTable:
    one = response(policy=[policy] * 4, old=[old] * 4, policy_version=version)
    return table_of(one, algorithm=rule(updates_per_batch=of), step=step)


def test_c01_a_ratio_of_1_is_expected_with_one_update_per_batch(tmp_path: Path) -> None:
    steps = [update(n, of=1, version=n - 1) for n in (1, 2)]
    finding = the("ratio-one-by-construction", tmp_path, *steps)
    assert finding.severity is Severity.INFO
    assert "clipping inactive by construction" in finding.sentence
    assert "on-policy step" in steps[0].columns["ratio"].note
    assert {f for f in codes(tmp_path / "all", *steps) if f.startswith("ratio-")} == {"ratio-one-by-construction"}


def test_c01_a_ratio_of_1_at_a_second_update_is_told(tmp_path: Path) -> None:
    finding = the("ratio-exactly-one", tmp_path, update(1), update(2))
    assert finding.severity is Severity.WARNING
    assert "ratio exactly 1 at update 2 of 4: weights did not change or old log-probs were recomputed" in finding.sentence
    assert "Step 2:" in finding.sentence


def test_c01_the_batch_is_known_by_its_responses_where_no_version_is(tmp_path: Path) -> None:
    steps = [update(n, version=None) for n in (0, 1, 2)]
    assert the("ratio-exactly-one", tmp_path, *steps).numbers["steps"] == 2  # which update the first one is cannot be told
    other = table_of(response(policy=[-2.0] * 2, old=[-2.0] * 2), algorithm=SEVERAL, step=6)
    again = [update(n, version=None) for n in (7, 8)]
    finding = the("ratio-exactly-one", tmp_path / "again", other, *again)
    assert "Step 8: ratio exactly 1 at update 2 of 4" in finding.sentence


@pytest.mark.parametrize(
    "steps",
    [
        [update(1), update(2, old=-1.1)],
        [update(1), update(2, version=1)],
        [update(1), update(7)],
        [update(1, of=1), update(2, of=1)],
    ],
    ids=["moved", "another batch", "a gap", "one update"],
)
def test_c01_is_silent_where_the_ratio_moves_or_the_update_is_a_first_one(tmp_path: Path, steps: list[TokenTable]) -> None:
    assert said("ratio-exactly-one", tmp_path, *steps) == []


def test_c01_a_ratio_that_is_not_1_at_a_first_update_is_told(tmp_path: Path) -> None:
    finding = the("ratio-not-one-at-start", tmp_path, update(1, old=-1.1))
    assert "ratio is not 1 at update 1 of 4: old and current log-probs differ by 0.1 nats on average" in finding.sentence
    for n, quiet in enumerate((update(1, old=-1.001), update(5, old=-1.1), update(5, old=-1.1, of=1))):
        assert said("ratio-not-one-at-start", tmp_path / str(n), quiet) == []


# ── engine and trainer ──────────────────────────────────────────────────────────────────────────────────────────────

ENGINE = [-1.0, -2.0, -0.1]


def test_c02_a_difference_that_kernels_explain_is_none(tmp_path: Path) -> None:
    table = table_of(response(policy=[-1.02, -1.9, -0.1], rollout=ENGINE), algorithm=rule())
    apart = table.values("log_ratio/rollout")
    np.testing.assert_allclose(apart, [-0.02, 0.10, 0], atol=1e-6)
    np.testing.assert_allclose(np.exp(apart), [0.9802, 1.1052, 1], atol=5e-5)
    assert np.exp(apart).mean() == pytest.approx(1.02846, abs=1e-5)
    assert np.exp(np.abs(apart)).mean() == pytest.approx(1.04179, abs=1e-5)
    assert said("engine-mismatch", tmp_path, table) == []


def test_c02_a_difference_that_matters_is_told_with_its_worst_token(tmp_path: Path) -> None:
    table = table_of(response(policy=[-1.02, -1.7, -0.1], rollout=ENGINE), algorithm=rule())
    finding = the("engine-mismatch", tmp_path, table)
    assert finding.severity is Severity.WARNING
    assert "mean exp|d| of 1.123, above 1.05; worst is token 1 of s0 with +0.3 nats" in finding.sentence
    assert finding.numbers["mean_error"] == pytest.approx(1.1233, abs=1e-4)
    assert (finding.links[0].start, finding.links[0].end) == (1, 2)


def test_c03_a_temperature_on_one_side_explains_the_ratio(tmp_path: Path) -> None:
    engine, trainer = np.log(1 / (1 + np.exp(-2))), np.log(1 / (1 + np.exp(-4)))
    np.testing.assert_allclose([engine, trainer], [-0.126928, -0.018150], atol=1e-6)
    for bare, columns in (
        ("engine", {"rollout": [engine], "policy": [trainer]}),
        ("trainer", {"rollout": [trainer], "policy": [engine]}),
    ):
        table = table_of(response(**columns), algorithm=rule(temperature=0.5))
        ratio = np.exp(table.values("log_ratio/rollout")[0])
        assert ratio == pytest.approx(1.1149 if bare == "engine" else 1 / 1.1149, abs=5e-5)
        finding = the("temperature-on-one-side", tmp_path / bare, table)
        assert "explained by temperature 0.5 on one side (residual" in finding.sentence
        assert f"the {bare}'s log-probs lack it" in finding.sentence
        assert finding.numbers["residual"] == pytest.approx(0, abs=1e-6)
        assert codes(tmp_path / f"all {bare}", table) & {"engine-mismatch", "engine-constant-factor"} == set()


def test_c03_a_whole_vocabulary_is_explained_too(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 4, (400, 50))
    log_p = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    sampled = np.array([rng.choice(50, p=np.exp(row)) for row in log_p])
    cold = logits / 0.6
    cold -= np.logaddexp.reduce(cold, axis=1, keepdims=True)
    rows = np.arange(400)
    one = response(rollout=log_p[rows, sampled], policy=cold[rows, sampled], extra={"temperature": 0.6})
    assert the("temperature-on-one-side", tmp_path, table_of(one, algorithm=rule())).numbers["temperature"] == 0.6
    noise = response(rollout=log_p[rows, sampled], policy=log_p[rows, sampled] + rng.normal(0, 0.1, 400))
    table = table_of(noise, algorithm=rule(temperature=0.6))
    assert said("temperature-on-one-side", tmp_path / "noise", table) == []
    assert len(said("engine-mismatch", tmp_path / "mismatch", table)) == 1


@given(st.floats(-30, -1e-6), st.floats(0.2, 5))
def test_c03_two_choices_at_a_temperature_are_exact(logprob: float, at: float) -> None:
    other = np.log(-np.expm1(logprob))
    brute = logprob / at - np.logaddexp(logprob / at, other / at)
    assert tempered(np.array([logprob]), at)[0] == pytest.approx(brute, abs=1e-9, rel=1e-9)


def kept_mass(factor: float, **sampling: float) -> TokenTable:
    engine = -np.linspace(0.5, 3, 10)
    return table_of(response(rollout=engine, policy=engine + np.log(factor), extra=sampling), algorithm=rule())


def test_c05_a_constant_factor_fits_renormalised_sampling(tmp_path: Path) -> None:
    table = kept_mass(0.9, top_p=0.9)
    np.testing.assert_allclose(np.exp(table.values("log_ratio/rollout")), 0.9, rtol=1e-5)
    finding = the("engine-constant-factor", tmp_path, table)
    assert finding.severity is Severity.INFO
    assert "is 0.9: a constant factor, fits renormalised sampling" in finding.sentence
    assert finding.numbers["factor"] == pytest.approx(0.9)
    assert finding.numbers["spread"] == pytest.approx(0, abs=1e-5)
    assert "engine-mismatch" not in codes(tmp_path / "all", table)


@pytest.mark.parametrize("sampling", [{"top_p": 1.0}, {}])
def test_c05_without_a_cut_the_factor_is_a_warning_without_the_hint(tmp_path: Path, sampling: dict[str, float]) -> None:
    finding = the("engine-constant-factor", tmp_path, kept_mass(0.9, **sampling))
    assert finding.severity is Severity.WARNING
    assert "renormalised" not in finding.sentence
    assert "is 0.9 on every token" in finding.sentence


def test_c05_a_kept_mass_that_varies_fits_too(tmp_path: Path) -> None:
    engine = -np.linspace(0.5, 3, 10)
    mass = np.linspace(0.81, 0.99, 10)
    one = response(rollout=engine, policy=engine + np.log(mass), extra={"top_p": 0.8})
    finding = the("engine-constant-factor", tmp_path, table_of(one, algorithm=rule()))
    assert "between top-p 0.8 and 1 on every token, fits renormalised sampling" in finding.sentence


# ── clipping ────────────────────────────────────────────────────────────────────────────────────────────────────────


def clipping(ratio: list[float], advantage: list[float], **fields: object) -> TokenTable:
    one = response(policy=np.log(ratio), old=np.zeros(len(ratio)), advantage=advantage)
    return table_of(one, algorithm=rule(updates_per_batch=2, aggregation="token-sum", **fields))


def test_c04_only_tokens_whose_gradient_is_cut_are_clipped() -> None:
    table = clipping([1.5, 1.5, 0.5, 0.5], [1, -1, 1, -1])
    clipped, outside = table.values("clip") != 0, table.values("outside") != 0
    np.testing.assert_array_equal(clipped, [1, 0, 0, 1])
    assert (clipped.mean(), outside.mean()) == (0.5, 1.0)
    np.testing.assert_array_equal(table.values("credit/policy_push") == 0, clipped)


def test_c07_dual_clip_is_counted_apart() -> None:
    table = clipping([10, 2.5, 10], [-1, -1, 1], dual_clip=3.0)
    np.testing.assert_array_equal(table.values("clip"), [2, 0, 1])
    np.testing.assert_allclose(table.values("credit/policy_push"), [0, -2.5, 0])
    assert "1 at the upper bound, 1 by dual clip" in table.columns["clip"].note


def test_c12_each_side_has_its_bound() -> None:
    ratio, advantage = [1.25, 1.3, 0.85, 0.75], [1.0, 1, -1, -1]
    table = clipping(ratio, advantage, clip_low=0.2, clip_high=0.28)
    np.testing.assert_array_equal(table.values("clip") != 0, [0, 1, 0, 1])
    same = clipping(ratio, advantage, clip_low=0.2, clip_high=0.2)
    assert (same.values("clip") != 0).mean() == 0.75


# ── whole responses ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("tokens", "total", "words"), [(5_000, 50, "exp(50) = 5.18e+21;"), (71_000, 710, "is exp(710);")])
def test_c06_a_product_grows_with_length_and_is_shown_as_a_log(tmp_path: Path, tokens: int, total: float, words: str) -> None:
    one = response(policy=np.full(tokens, -0.99), old=np.full(tokens, -1.0))
    table = table_of(one, algorithm=rule(updates_per_batch=2, ratio_level="product"))
    mean, summed = (table.values(f"log_ratio/sequence_{name}")[0] for name in ("mean", "sum"))
    assert np.exp(mean) == pytest.approx(1.01005, abs=5e-6)
    assert summed == pytest.approx(total, rel=1e-4)
    finding = the("product-ratio-explodes", tmp_path, table)
    assert words in finding.sentence
    assert "the geometric mean is 1.01005" in finding.sentence
    assert "inf" not in finding.sentence
    geometric = table_of(one, algorithm=rule(updates_per_batch=2, ratio_level="sequence"))
    assert said("product-ratio-explodes", tmp_path / "geometric", geometric) == []


# ── alignment ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_c09_more_log_probs_than_tokens_is_an_error_of_that_row(tmp_path: Path) -> None:
    ids = [4, 5, 6, 7, 2]
    rows = [
        {"step": 1, "uid": "p", "score": score, "response_ids": ids, "old_log_probs": [-0.5] * n, "finish_reason": "stop"}
        for score, n in ((1, 6), (0, 5))
    ]
    file = tmp_path / "run.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = assign(file, rule())
    np.testing.assert_allclose(table.mean_by_row(table.values("advantage")), [0.7071, -0.7071], atol=5e-5)
    np.testing.assert_allclose(table.mean_by_row(table.values("logprob/old")), [np.nan, -0.5])
    store = analyze(file, tmp_path / "analysis", Options(score=False))
    (finding,) = (each for each in store.findings() if each.code == "length-mismatch")
    assert finding.severity is Severity.ERROR
    assert "5 tokens, 6 log-probs" in finding.sentence
    assert finding.numbers == {"responses": 1, "columns": 1}
    ratio = store.read_step(1)[0]
    assert not ratio.has("kl/k1")


def test_c09_is_silent_where_every_value_has_its_token(tmp_path: Path) -> None:
    assert said("length-mismatch", tmp_path, update(1)) == []


LOGPROBS = -np.random.default_rng(3).exponential(1.0, 40)


@pytest.mark.parametrize(("by", "word"), [(1, "early"), (-1, "late")])
def test_c10_log_probs_beside_the_neighbour_are_told(tmp_path: Path, by: int, word: str) -> None:
    recorded = np.roll(LOGPROBS, -by)
    recorded[-1 if by > 0 else 0] = -1.0
    table = table_of(response(old=recorded, recomputed=LOGPROBS))
    finding = the("logprobs-shifted", tmp_path, table)
    assert finding.severity is Severity.ERROR
    assert f"logprob/old stands one token too {word}" in finding.sentence
    assert finding.numbers["moved"] < 0.1 * finding.numbers["own"]


@pytest.mark.parametrize("recorded", [LOGPROBS, LOGPROBS + 0.1, LOGPROBS[::-1].copy(), np.full(40, -1.0)])
def test_c10_is_silent_where_no_neighbour_fits(tmp_path: Path, recorded: np.ndarray) -> None:
    assert said("logprobs-shifted", tmp_path, table_of(response(old=recorded, recomputed=LOGPROBS))) == []


def test_c10_a_shift_does_not_reach_over_responses(tmp_path: Path) -> None:
    """One token a response: there is no neighbour to fit."""
    rows = [response(f"s{i}", old=[LOGPROBS[i + 1]], recomputed=[LOGPROBS[i]]) for i in range(30)]
    assert said("logprobs-shifted", tmp_path, table_of(*rows)) == []


def test_c10_a_missing_log_prob_is_missing_and_a_filled_one_is_told(tmp_path: Path) -> None:
    scored = [-0.10536, -2.30259, -0.22314]
    missing = table_of(response(old=[np.nan, *scored], policy=[-0.7, *scored]), algorithm=SEVERAL)
    np.testing.assert_allclose(missing.values("log_ratio"), [np.nan, 0, 0, 0], atol=1e-6)
    assert said("logprobs-zero-filled", tmp_path / "missing", missing) == []
    filled = table_of(response(old=[0, *scored], policy=[-0.7, *scored]), algorithm=SEVERAL)
    finding = the("logprobs-zero-filled", tmp_path, filled)
    assert "1 log-probs of trained tokens are exactly 0" in finding.sentence
    assert "logprob/old" in finding.sentence
    sure = table_of(response(old=[0.0, -1], policy=[-1e-4, -1], ref=[-0.9, -1]), algorithm=SEVERAL)
    assert said("logprobs-zero-filled", tmp_path / "sure", sure) == []


# ── versions and weights ────────────────────────────────────────────────────────────────────────────────────────────


def test_c11_staleness_and_both_ratios_are_kept_apart(tmp_path: Path) -> None:
    scored = [-1.1, -1, -1, -1]
    one = response(version=[3, 3, 4, 4], rollout=[-1.0] * 4, old=scored, policy=scored)
    table = table_of(one, algorithm=rule(updates_per_batch=2), step=6)
    np.testing.assert_array_equal(table.values("ratio"), 1)
    np.testing.assert_allclose(np.exp(table.values("log_ratio/rollout")), [0.9048, 1, 1, 1], atol=5e-5)
    stale = table.values("staleness")
    assert (stale.mean(), stale.max()) == (1.5, 2)
    finding = the("stale-versions", tmp_path, table)
    assert finding.severity is Severity.WARNING
    assert "tokens were sampled 1.5 updates before, 2 at most" in finding.sentence
    assert finding.numbers["mixed"] == 1
    corrected = table_of(one, algorithm=rule(updates_per_batch=2, rollout_weight="token", rollout_high=2.0), step=6)
    assert the("stale-versions", tmp_path / "corrected", corrected).severity is Severity.INFO


@pytest.mark.parametrize(("step", "version"), [(1, 0), (2, 0), (3, 2), (5, None)])
def test_c11_updates_on_one_batch_are_not_stale(tmp_path: Path, step: int, version: int | None) -> None:
    table = table_of(response(old=[-1.0], policy_version=version), algorithm=rule(updates_per_batch=2), step=step)
    assert said("stale-versions", tmp_path, table) == []


RAW = np.log([5, 0.5, 1])


def test_c27_weights_are_told_before_and_after_their_cap(tmp_path: Path) -> None:
    figures = truncated(RAW, 2.0)
    np.testing.assert_allclose(figures, [5, 2.1667, 1.1667, 1 / 3], rtol=1e-4)
    one = response(old=RAW, rollout=np.zeros(3))
    table = table_of(one, algorithm=rule(rollout_weight="token", rollout_high=2.0))
    np.testing.assert_allclose(table.values("rollout_weight"), [2, 0.5, 1], rtol=1e-6)
    finding = the("weights-at-cap", tmp_path, table)
    assert "33 % of the correction weights are held there (raw maximum 5, mean 2.1667; used mean 1.1667)" in finding.sentence


def test_c27_where_only_used_weights_are_stored_the_raw_maximum_is_unknown(tmp_path: Path) -> None:
    used = response(weight=[2, 0.5, 1])
    capped = table_of(used, algorithm=rule(rollout_weight="token", rollout_high=2.0))
    finding = the("weights-at-cap", tmp_path, capped)
    assert "values pile up at 2: 33 %" in finding.sentence
    assert "raw maximum unknown" in finding.sentence
    assert np.isnan(finding.numbers["raw_max"])
    many = table_of(response(weight=[2.0] * 6 + [0.5, 1] * 4))
    assert "values pile up at 2" in the("weights-at-cap", tmp_path / "no rule", many).sentence


@pytest.mark.parametrize("weights", [[1.0] * 20, [2.0] * 20, [0.9, 1, 1, 1, 1, 1, 1], list(np.linspace(0.5, 1.9, 20))])
def test_c27_is_silent_where_nothing_piles_up(tmp_path: Path, weights: list[float]) -> None:
    assert said("weights-at-cap", tmp_path, table_of(response(weight=weights))) == []


def test_a_clean_run_gives_no_word_about_its_ratios(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    old = -rng.exponential(1.0, 400)

    def step(number: int, moved: float) -> TokenTable:
        one = response(
            policy=np.minimum(old + moved * rng.normal(0, 0.05, 400), 0),
            old=old,
            rollout=np.minimum(old + rng.normal(0, 0.005, 400), 0),
            reward=1.0,
            policy_version=0,
        )
        return table_of(one, Rollout(sample_id="empty"), algorithm=rule(updates_per_batch=2), step=number)

    spoken = codes(tmp_path, step(1, 0), step(2, 1))
    assert not {
        code for code in spoken if code.startswith(("ratio-", "engine-", "temp", "logprob", "stale", "weights", "product"))
    }


def test_a_store_without_steps_gives_no_word(tmp_path: Path) -> None:
    store = store_of(tmp_path, update(1))
    for file in (store.folder / "steps").iterdir():
        file.unlink()
    assert run_checks(Store(tmp_path)) == []
