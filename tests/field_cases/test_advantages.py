"""What users reported about advantages, each as a small input with the answer that can be worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from credit_inspector import assign
from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.detect import explain
from credit_inspector.checks import checks
from credit_inspector.panel import Finding, Severity
from credit_inspector.rollout import Rollout
from credit_inspector.store import Meta, Store
from credit_inspector.table import Provenance, TokenTable
from credit_inspector.tokens import until_end

GRPO = Algorithm(name="test/grpo", source="preset", std_eps=0.0)


def rows(n: int, tokens: int = 3, **each: Sequence[Any]) -> list[Rollout]:
    """``n`` responses; ``each`` gives a field of ``Rollout`` for every one of them."""
    return [
        Rollout(
            **{
                "sample_id": f"s{i}",
                "group_id": "g",
                "prompt_ids": np.array([9], np.int32),
                "response_ids": np.arange(1, tokens + 1, dtype=np.int32),
                **{name: values[i] for name, values in each.items()},
            }
        )
        for i in range(n)
    ]


def one(mask: Sequence[int], columns: Mapping[str, Sequence[float]], **more: Any) -> list[Rollout]:
    """One response with a mask and recorded token columns."""
    recorded = {name: np.array(values, np.float32) for name, values in columns.items()}
    mask_of = [np.array(mask, np.bool_)]
    return rows(1, len(mask), loss_mask=mask_of, columns=[recorded], **{name: [value] for name, value in more.items()})


def stored(folder: Path, *steps: TokenTable) -> Store:
    """The analysis that these steps make."""
    store = Store(folder)
    store.write_meta(Meta(source="r", trainer="t", algorithm=steps[0].algorithm), None)
    for table in steps:
        store.write_step(table, None)
    return store


def found(code: str, folder: Path, *steps: TokenTable) -> list[Finding]:
    """What one check says."""
    return checks[code](stored(folder, *steps))


def the(code: str, folder: Path, *steps: TokenTable) -> Finding:
    """The one thing that a check says."""
    (finding,) = found(code, folder, *steps)
    assert finding.code == code
    assert finding.why
    assert finding.do
    return finding


def advantages(table: TokenTable) -> np.ndarray:
    return table.mean_by_row(table.values("advantage"))


# ── groups ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a02_groups_come_from_ids_and_blocks_of_rows_are_told(tmp_path: Path) -> None:
    rewards = [1.0, 0.0, 1.0, 0.0]
    interleaved = rows(4, group_id=["p", "q", "p", "q"], reward=rewards, advantage=[0.7071, -0.7071, 0.7071, -0.7071])
    table = assign(interleaved, GRPO)
    np.testing.assert_array_equal(table.values("advantage/recomputed"), 0)
    finding = the("groups-by-position", tmp_path, table)
    assert finding.severity is Severity.WARNING
    assert "match blocks of 2 consecutive rows, not the group ids" in finding.sentence
    assert finding.numbers["block"] == 2


def test_a02_is_silent_where_advantages_follow_the_ids(tmp_path: Path) -> None:
    table = assign(rows(4, group_id=["p", "p", "q", "q"], reward=[1.0, 0, 1, 0], advantage=[0.7071, -0.7071] * 2), GRPO)
    assert found("groups-by-position", tmp_path, table) == []


# ── which rule ──────────────────────────────────────────────────────────────────────────────────────────────────────

EIGHT = [1.0, 1, 1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        (0.6250, -0.3750, "reward − group mean"),
        (1.2076, -0.7246, "group std with ddof 1"),
        (1.2910, -0.7746, "group std with ddof 0"),
        (0.7143, -0.4286, "reward − mean of the others in the group"),
    ],
)
def test_a03_the_normaliser_of_stored_advantages_is_named(tmp_path: Path, right: float, wrong: float, words: str) -> None:
    values = [right if reward else wrong for reward in EIGHT]
    detection = explain(EIGHT, np.zeros(8, int), values)
    assert detection.rule is not None
    assert words in detection.message
    said = found("stored-advantages-differ", tmp_path, assign(rows(8, reward=EIGHT, advantage=values), GRPO))
    if "ddof 1" in words:
        assert said == []
    else:
        assert "differ from the run's rule test/grpo" in said[0].sentence
        assert "they follow " in said[0].sentence
        assert words in said[0].sentence


@pytest.mark.parametrize("rule", [GRPO, None])
def test_a03_what_follows_no_rule_is_told_with_its_residual(tmp_path: Path, rule: Algorithm | None) -> None:
    values = [2.0 if reward else -0.1 for reward in EIGHT]
    finding = the("stored-advantages-differ", tmp_path, assign(rows(8, reward=EIGHT, advantage=values), rule))
    assert "do not match a known rule" in finding.sentence
    assert finding.numbers["residual"] > 0.1


# ── tokens ──────────────────────────────────────────────────────────────────────────────────────────────────────────

GAE = Algorithm(name="test/gae", source="preset", advantage="gae", lam=0.95)


def test_a09_values_at_masked_places_are_left_out_and_a_leak_is_told(tmp_path: Path) -> None:
    columns = {"value/old": [0, 0, 100], "reward/token": [0, 1, 0], "advantage": [5.7, 6, 0]}
    table = assign(one([1, 1, 0], columns), GAE)
    np.testing.assert_allclose(table.values("advantage/recomputed"), [0.95, 1, np.nan], rtol=1e-6)
    finding = the("masked-values-leak", tmp_path, table)
    assert "Stored advantages depend on masked values" in finding.sentence
    assert finding.numbers["residual"] == pytest.approx(5)
    assert checks["stored-advantages-differ"](Store(tmp_path)) == []


def test_a09_the_next_slot_as_next_value_is_told_too(tmp_path: Path) -> None:
    columns = {"value/old": [0, 0, 100], "reward/token": [0, 1, 0], "advantage": [95.95, 101, 0]}
    finding = the("masked-values-leak", tmp_path, assign(one([1, 1, 0], columns), GAE))
    assert finding.numbers["residual"] == pytest.approx(100)


@pytest.mark.parametrize("stored_as", [[0.95, 1, 0], [3.0, 4.0, 0]])
def test_a09_is_silent_where_a_leak_explains_nothing(tmp_path: Path, stored_as: list[float]) -> None:
    columns = {"value/old": [0, 0, 100], "reward/token": [0, 1, 0], "advantage": stored_as}
    assert found("masked-values-leak", tmp_path, assign(one([1, 1, 0], columns), GAE)) == []
    assert len(checks["stored-advantages-differ"](Store(tmp_path))) == (stored_as[0] == 3)


@pytest.mark.parametrize(
    ("mask", "gamma", "right", "stops"),
    [
        ([1, 1, 0, 0, 1, 1], 1.0, [1, 1, np.nan, np.nan, 1, 1], [0, 0, 0, 0, 1, 1]),
        ([1, 0, 1], 0.5, [0.5, np.nan, 1], [0, 0, 1]),
    ],
)
def test_a10_a_return_passes_over_tool_output(
    tmp_path: Path, mask: list[int], gamma: float, right: list[float], stops: list[float]
) -> None:
    rule = Algorithm(name="test/returns", source="preset", advantage="reinforce_pp", gamma=gamma)
    rewards = [0.0] * (len(mask) - 1) + [1.0]
    for name, values in (("bad", stops), ("good", right)):
        table = assign(one(mask, {"reward/token": rewards, "advantage": values}), rule)
        np.testing.assert_allclose(table.values("advantage/recomputed"), right)
        said = found("credit-stops-at-mask", tmp_path / name, table)
        assert len(said) == (name == "bad")
        if said:
            assert said[0].sentence.startswith("Credit stops at a masked span: ")
            assert said[0].numbers["tokens"] == np.count_nonzero(np.nan_to_num(right) != stops)
            assert checks["stored-advantages-differ"](Store(tmp_path / name)) == []


def test_a10_a_rule_that_stops_there_itself_is_told(tmp_path: Path) -> None:
    rule = Algorithm(name="test/returns", source="preset", advantage="reinforce_pp", observation="reset")
    table = assign(one([1, 1, 0, 0, 1, 1], {"reward/token": [0, 0, 0, 0, 0, 1]}), rule)
    assert the("credit-stops-at-mask", tmp_path, table).numbers["tokens"] == 2


def test_d02_observation_tokens_are_no_steps() -> None:
    columns = {"value/old": [0] * 6, "reward/token": [0] * 5 + [1]}
    mask = [1, 1, 0, 0, 1, 1]
    table = assign(one(mask, columns), GAE)
    np.testing.assert_allclose(table.values("advantage"), [0.857375, 0.9025, np.nan, np.nan, 0.95, 1], rtol=1e-6)
    counted = assign(one(mask, columns), replace(GAE, observation="count"))
    np.testing.assert_allclose(counted.values("advantage")[:2], [0.7738, 0.8145], rtol=1e-4)


# ── reward components ───────────────────────────────────────────────────────────────────────────────────────────────


def scored(parts: Mapping[str, Sequence[float]], **more: Sequence[Any]) -> list[Rollout]:
    """Responses whose reward is the sum of these components."""
    each = [dict(zip(parts, values, strict=True)) for values in zip(*parts.values(), strict=True)]
    return rows(len(each), rewards=each, reward=[sum(values.values()) for values in each], **more)


def test_a05_a_right_answer_below_the_mean_names_the_component(tmp_path: Path) -> None:
    table = assign(scored({"correct": [1, 1, 1, -1], "overlong": [0, -0.5, -1, 0]}), GRPO)
    np.testing.assert_allclose(advantages(table), [1.0247, 0.4392, -0.1464, -1.3175], atol=5e-5)
    finding = the("right-but-negative", tmp_path, table)
    assert "1 of 3 right answers are correct but negative, 1 of them because of 'overlong'" in finding.sentence
    assert "s2 has A = -0.1464, without 'overlong' +0.5" in finding.sentence
    assert finding.numbers["advantage_without"] == pytest.approx(0.5)
    assert [link.sample_id for link in finding.links] == ["s2"]


def test_a05_is_silent_where_right_answers_stay_above(tmp_path: Path) -> None:
    table = assign(scored({"correct": [1, 1, 1, -1], "overlong": [0, -0.1, -0.2, 0]}), GRPO)
    assert found("right-but-negative", tmp_path, table) == []


def test_a13_a_component_that_varies_only_between_prompts(tmp_path: Path) -> None:
    table = assign(scored({"f": [2, 2, -8, -8]}, group_id=["p", "p", "q", "q"]), GRPO)
    np.testing.assert_array_equal(advantages(table), 0)
    finding = the("reward-component-idle", tmp_path, table)
    assert "'f' varies only between prompts (batch std 5.7735, 0 inside every group)" in finding.sentence
    assert finding.severity is Severity.WARNING


def test_a13_components_that_cancel(tmp_path: Path) -> None:
    table = assign(scored({"f1": [1, 0, 1, 0], "f2": [0, 1, 0, 1]}), GRPO)
    np.testing.assert_array_equal(advantages(table), 0)
    finding = the("reward-components-cancel", tmp_path, table)
    assert "'f1' and 'f2' cancel (correlation -1)" in finding.sentence
    assert finding.numbers["std"] == pytest.approx(0.57735, rel=1e-4)


def test_a22_a_constant_penalty_does_nothing(tmp_path: Path) -> None:
    table = assign(scored({"base": [1, 0, 0, 1], "term": [-0.45] * 4}), GRPO)
    np.testing.assert_allclose(advantages(table), [0.8660, -0.8660, -0.8660, 0.8660], atol=5e-5)
    finding = the("reward-component-idle", tmp_path, table)
    assert "'term' is constant inside every group (-0.45)" in finding.sentence
    assert finding.severity is Severity.INFO


def test_a22_is_not_flagged_where_the_batch_is_the_baseline(tmp_path: Path) -> None:
    parts = {"base": [1, 0, 0, 1], "term": [-0.45, -0.45, 0.3, 0.3]}
    run = scored(parts, group_id=["p", "p", "q", "q"])
    assert found("reward-component-idle", tmp_path / "a", assign(run, replace(GRPO, baseline="batch", std="batch"))) == []
    assert len(found("reward-component-idle", tmp_path / "b", assign(run, GRPO))) == 1


def test_components_that_all_act_are_no_finding(tmp_path: Path) -> None:
    table = assign(scored({"correct": [1, 0, 1, 0], "format": [0.1, 0.1, 0, 0]}), GRPO)
    for code in ("reward-component-idle", "reward-components-cancel", "right-but-negative"):
        assert found(code, tmp_path / code, table) == []


# ── rewards and groups that are too few ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.7, "stored value equals the raw reward"),
        (0.0, "stored value is zeroed"),
        (np.nan, "stored value is missing"),
        (0.3, "stored value is neither 0 nor the reward"),
        (None, "no advantage was stored"),
    ],
)
def test_a08_a_group_of_one_has_no_baseline(tmp_path: Path, value: float | None, words: str) -> None:
    table = assign(rows(1, reward=[0.7], advantage=[value]), GRPO)
    np.testing.assert_array_equal(table.values("advantage/recomputed"), 0)
    finding = the("group-of-one", tmp_path, table)
    assert "single-row group, with no baseline" in finding.sentence
    assert words in finding.sentence
    assert finding.severity is Severity.WARNING


@pytest.mark.parametrize("rule", [replace(GRPO, baseline="batch"), replace(GRPO, advantage="reinforce"), None])
def test_a08_is_silent_where_no_group_is_needed(tmp_path: Path, rule: Algorithm | None) -> None:
    assert found("group-of-one", tmp_path, assign(rows(1, reward=[0.7], advantage=[0.7]), rule)) == []


def test_a06_a_missing_reward_is_left_out_and_told(tmp_path: Path) -> None:
    table = assign(rows(4, reward=[1, 0, None, 1]), GRPO)
    np.testing.assert_allclose(advantages(table), [0.5774, -1.1547, np.nan, 0.5774], atol=5e-5)
    finding = the("rewards-missing", tmp_path, table)
    assert "1 of 4 responses (25 %) have no reward" in finding.sentence
    assert [link.sample_id for link in finding.links] == ["s2"]
    assert all(np.isfinite(number) for number in finding.numbers.values())


def test_a06_one_scored_response_gets_0_and_the_others_nothing(tmp_path: Path) -> None:
    table = assign(rows(3, reward=[np.nan, None, 1]), GRPO)
    np.testing.assert_array_equal(advantages(table), [np.nan, np.nan, 0])
    assert "1 response alone in a group" in table.columns["advantage"].note
    assert the("rewards-missing", tmp_path, table).numbers["responses"] == 2


def test_a06_a_reward_that_the_trainer_took_for_0_is_told(tmp_path: Path) -> None:
    table = assign(rows(4, reward=[1, 0, None, 1], advantage=[0.866, -0.866, -0.866, 0.866]), GRPO)
    assert "1 of them have a stored advantage all the same" in the("rewards-missing", tmp_path, table).sentence


def test_a06_is_silent_with_all_rewards_and_with_none(tmp_path: Path) -> None:
    assert found("rewards-missing", tmp_path / "all", assign(rows(2, reward=[1, 0]), GRPO)) == []
    assert found("rewards-missing", tmp_path / "none", assign(rows(2, advantage=[1, -1]), GRPO)) == []


def test_a07_all_cut_at_the_cap(tmp_path: Path) -> None:
    cut = rows(4, 256, reward=[0.0] * 4, truncated=[True] * 4, loss_mask=[np.zeros(256, np.bool_)] * 4)
    table = assign(cut, GRPO)
    assert table.n_trained == 0
    for column in table.columns.values():
        assert column.values is None or np.isnan(column.values).all()
    finding = the("all-cut-at-cap", tmp_path, table)
    assert finding.severity is Severity.WARNING
    assert "all responses hit the cap; rewards there say nothing about correctness: 4 of 4 truncated (100 %)" in finding.sentence
    assert "mean length of terminated responses n/a" in finding.sentence
    assert np.isnan(finding.numbers["terminated_length"])
    assert finding.numbers["trained_tokens"] == 0


@pytest.mark.parametrize(("cut", "says"), [([True, False, None, False], 1), ([False] * 4, 0), ([None] * 4, 0)])
def test_a07_some_cut_is_a_note_and_none_is_nothing(tmp_path: Path, cut: list[bool | None], says: int) -> None:
    said = found("all-cut-at-cap", tmp_path, assign(rows(4, reward=[1, 0, 1, 0], truncated=cut), GRPO))
    assert [finding.severity for finding in said] == [Severity.INFO] * says
    assert all(finding.numbers["share"] == pytest.approx(1 / 3) for finding in said)


# ── groups without a signal ─────────────────────────────────────────────────────────────────────────────────────────


def test_a01_dead_groups_get_0_and_are_counted(tmp_path: Path) -> None:
    groups = ["p"] * 4 + ["q"] * 4 + ["r"] * 4
    table = assign(rows(12, group_id=groups, reward=[1, 1, 1, 1, 0, 0, 0, 0, 1, 0, 1, 0]), GRPO)
    np.testing.assert_allclose(advantages(table), [0] * 8 + [0.8660, -0.8660] * 2, atol=5e-5)
    assert "2 of 3 groups have no spread: no policy signal" in table.columns["advantage"].note
    finding = the("dead-groups", tmp_path, table)
    assert "2 of 3 groups (67 %) carry no policy signal: 1 all-max, 1 all-min." in finding.sentence
    assert (finding.numbers["all_best"], finding.numbers["all_min"]) == (1, 1)


@pytest.mark.parametrize(
    ("rewards", "kinds"),
    [([0.0] * 4, "0 all-max, 2 all-min."), ([1.0] * 4, "2 all-max, 0 all-min."), ([0, 0, 0.5, 0.5, 1, 0], "1 all in between.")],
)
def test_a01_where_all_fail_no_group_is_at_its_best(tmp_path: Path, rewards: list[float], kinds: str) -> None:
    table = assign(rows(len(rewards), group_id=list("ppqqrr")[: len(rewards)], reward=rewards), GRPO)
    assert kinds in the("dead-groups", tmp_path, table).sentence


@pytest.mark.parametrize("rule", [replace(GRPO, baseline="batch", std="batch"), GAE, replace(GRPO, advantage="reinforce")])
def test_a01_is_silent_where_a_group_is_no_baseline(tmp_path: Path, rule: Algorithm) -> None:
    assert found("dead-groups", tmp_path, assign(rows(4, group_id=list("ppqq"), reward=[1, 1, 0, 0]), rule)) == []


def test_a12_in_a_dead_group_only_the_kl_acts(tmp_path: Path) -> None:
    rule = replace(GRPO, kl_beta=0.04)
    columns = {"logprob/policy": np.full(3, -1, np.float32), "logprob/ref": np.full(3, -1.5, np.float32)}
    table = assign(rows(2, reward=[1, 1], columns=[columns] * 2), rule)
    np.testing.assert_array_equal(table.values("credit/policy_push"), 0)
    k3 = np.expm1(-0.5) + 0.5
    assert 0.04 * k3 == pytest.approx(0.004261, abs=5e-7)
    table.add("kl/k3", np.full(table.n_tokens, k3), Provenance.DERIVED)
    finding = the("dead-groups", tmp_path, table)
    assert "only KL acts here, 0.004261 a token (β 0.04)" in finding.sentence
    assert finding.numbers["kl_term"] == pytest.approx(0.004261, abs=5e-7)


# ── weights ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("aggregation", "short", "long"),
    [("seq-mean-token-mean", 0.25, -0.0625), ("token-mean", 0.1, -0.1), ("seq-mean-token-sum-norm", 0.05, -0.05)],
)
def test_a04_the_aggregation_decides_what_a_token_gets(aggregation: Any, short: float, long: float) -> None:
    ids = [np.arange(2, dtype=np.int32), np.arange(8, dtype=np.int32)]
    rule = Algorithm(name="test", source="preset", advantage="reinforce", aggregation=aggregation, horizon=10)
    table = assign(rows(2, response_ids=ids, reward=[1, -1]), rule)
    push = table.values("weight") * table.values("advantage")
    np.testing.assert_allclose(push, [short] * 2 + [long] * 8, rtol=1e-6)
    assert aggregation in table.columns["weight"].note


def test_a11_dropped_tokens_leave_the_divisor_too() -> None:
    ids = [np.arange(n, dtype=np.int32) for n in (5, 10, 15)]
    rule = replace(GRPO, mask_truncated=True)
    run = rows(3, response_ids=ids, reward=[1, 0, 1], truncated=[True, False, False])
    assert np.nansum(assign(run, rule).values("weight")) == pytest.approx(25 / 25)
    assert np.nansum(assign(run, replace(rule, batch_tokens=30)).values("weight")) == pytest.approx(0.8333, abs=5e-5)


# ── rewards and ends on masked places ───────────────────────────────────────────────────────────────────────────────

RETURNS = Algorithm(name="test/returns", source="preset", advantage="reinforce_pp")


def test_a26_reward_on_padding_is_told_with_where_it_belongs(tmp_path: Path) -> None:
    columns = {"reward/token": [0, 0, 0, 1, 0], "advantage": [1, 1, 1, 0, 0]}
    table = assign(one([1, 1, 1, 0, 0], columns), RETURNS)
    np.testing.assert_array_equal(table.values("advantage/recomputed"), [0, 0, 0, np.nan, np.nan])
    finding = the("reward-on-masked", tmp_path, table)
    assert "Reward mass 1 (100 %) on masked positions" in finding.sentence
    assert "index 2 in s0" in finding.sentence
    assert "stored advantages contain it and cannot be reproduced from this mask" in finding.sentence
    assert finding.severity is Severity.WARNING
    assert checks["stored-advantages-differ"](Store(tmp_path)) == []


def test_a26_where_the_rule_counts_the_slot_behind_the_end_it_is_a_note(tmp_path: Path) -> None:
    columns = {"reward/token": [0, 0, 0, 1, 0], "advantage": [1, 1, 1, 0, 0]}
    table = assign(one([1, 1, 1, 0, 0], columns), replace(RETURNS, terminal="after-last"))
    np.testing.assert_array_equal(table.values("advantage/recomputed")[:3], 1)
    finding = the("reward-on-masked", tmp_path, table)
    assert finding.severity is Severity.INFO
    assert finding.numbers["lost"] == 0


def test_a_terminal_reward_on_tool_output_is_lost(tmp_path: Path) -> None:
    run = one([1, 1, 0], {}, reward=1.0)
    table = assign(run, replace(RETURNS, terminal="last"))
    np.testing.assert_array_equal(table.values("advantage")[:2], 0)
    assert the("reward-on-masked", tmp_path / "last", table).numbers["lost"] == 1
    assert found("reward-on-masked", tmp_path / "trained", assign(run, RETURNS)) == []
    assert found("reward-on-masked", tmp_path / "grpo", assign(run, GRPO)) == []


def with_tokenizer(folder: Path, table: TokenTable) -> Store:
    """The analysis with a tokenizer in which 2 is ``<eos>`` and nothing else is special."""
    tokenizer = Tokenizer(WordLevel({**{f"w{i}": i for i in range(10) if i != 2}, "<eos>": 2}, unk_token="w0"))
    tokenizer.add_special_tokens(["<eos>"])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return stored(folder, table)


@pytest.mark.parametrize(("mask", "says"), [([1, 1, 1, 0, 0], 0), ([1, 1, 0, 0, 0], 1)])
def test_d03_the_first_end_token_is_an_action(tmp_path: Path, mask: list[int], says: int) -> None:
    ids = np.array([5, 6, 2, 2, 2], np.int32)
    np.testing.assert_array_equal(until_end(ids, [2]), [True, True, True, False, False])
    run = one(mask, {}, response_ids=ids, reward=1.0)
    table = assign(run, Algorithm(name="t", source="preset", advantage="reinforce"))
    np.testing.assert_array_equal(np.isfinite(table.values("advantage")), mask)
    said = checks["end-masked-out"](with_tokenizer(tmp_path, table))
    assert len(said) == says
    for finding in said:
        assert finding.sentence.startswith("The terminating EOS is masked out in 1 of 1 responses")
        assert (finding.links[0].start, finding.links[0].end) == (2, 3)


def test_d03_is_silent_where_tool_output_or_a_cap_ends_the_response(tmp_path: Path) -> None:
    tool = assign(one([1, 1, 0, 0, 0], {}, response_ids=np.array([5, 6, 2, 7, 8], np.int32)), None)
    assert checks["end-masked-out"](with_tokenizer(tmp_path / "tool", tool)) == []
    cut = assign(one([1, 1, 0], {}, response_ids=np.array([5, 6, 2], np.int32), truncated=True), None)
    assert checks["end-masked-out"](with_tokenizer(tmp_path / "cut", cut)) == []
    assert found("end-masked-out", tmp_path / "no tokenizer", tool) == []


NAN = float("nan")


@pytest.mark.parametrize(("mask", "says"), [([1, 1, 0, 0, 1, 1], 0), ([1] * 6, 1)])
def test_d02_tool_output_that_is_trained_is_told(tmp_path: Path, mask: list[int], says: int) -> None:
    columns = {"logprob/rollout": [-0.1, -0.7, NAN, NAN, -0.2, -0.1]}
    said = found("unsampled-tokens-trained", tmp_path, assign(one(mask, columns, reward=1.0), GRPO))
    assert len(said) == says
    for finding in said:
        assert "2 of 6 trained tokens (33 %) have no log-prob from the sampler" in finding.sentence
        assert (finding.links[0].start, finding.links[0].end) == (2, 4)


def test_d02_the_kl_is_a_mean_over_trained_tokens() -> None:
    mask = [1, 1, 0, 0, 1, 1]
    kl = np.array([0.1, 0.1, 5, 5, 0.1, 0.1])
    table = assign(one(mask, {}, reward=1.0), GRPO)
    assert table.mean_by_row(table.trained(kl))[0] == pytest.approx(0.1)
    assert kl.mean() == pytest.approx(1.733, abs=5e-4)


@pytest.mark.parametrize(("penalty", "cut", "says"), [([0] * 4, 2, 1), ([0, 0, -1, 0], 2, 0), ([0] * 4, 9, 0)])
def test_a05_a_penalty_that_is_0_although_responses_were_cut_off(
    tmp_path: Path, penalty: list[float], cut: int, says: int
) -> None:
    parts = {"correct": [1, 1, 1, -1], "overlong": penalty}
    table = assign(scored(parts, truncated=[row == cut for row in range(4)]), GRPO)
    said = found("penalty-never-acts", tmp_path, table)
    assert len(said) == says
    for finding in said:
        assert "'overlong' is 0 on every response, although 1 were cut off" in finding.sentence


# ── no alarm without a fault ────────────────────────────────────────────────────────────────────────────────────────

CODES = (
    "all-cut-at-cap",
    "credit-stops-at-mask",
    "end-masked-out",
    "group-of-one",
    "groups-by-position",
    "masked-values-leak",
    "penalty-never-acts",
    "reward-component-idle",
    "reward-components-cancel",
    "reward-on-masked",
    "rewards-missing",
    "right-but-negative",
    "stored-advantages-differ",
    "unsampled-tokens-trained",
)


def healthy(rule: Algorithm) -> list[Rollout]:
    """A multi-turn run with everything recorded, of which all is in order under the rule."""
    rng = np.random.default_rng(0)
    mask = np.array([1, 1, 0, 0, 1, 1], np.bool_)
    values = np.where(mask, rng.normal(size=(8, 6)), 50.0).astype(np.float32)
    parts = [{"correct": float(i % 2), "overlong": -0.125 * (i % 3)} for i in range(8)]
    run = rows(
        8,
        6,
        group_id=list("ppppqqqq"),
        loss_mask=[mask] * 8,
        response_ids=[np.array([5, 6, 7, 8, 9, 2], np.int32)] * 8,
        truncated=[False] * 8,
        rewards=parts,
        reward=[sum(each.values()) for each in parts],
        columns=[{"value/old": values[i], "logprob/rollout": np.where(mask, -0.5, np.nan).astype(np.float32)} for i in range(8)],
    )
    ours = assign(run, rule)
    tokens = ours.values("advantage/recomputed").astype(np.float32)
    return [
        replace(each, columns={**each.columns, "advantage": np.nan_to_num(tokens[ours.slice(i)])}) for i, each in enumerate(run)
    ]


@pytest.mark.parametrize(
    "rule",
    [GRPO, replace(GRPO, std="none"), replace(GRPO, advantage="rloo"), GAE, replace(GAE, observation="count"), RETURNS],
    ids=lambda rule: f"{rule.advantage} {rule.observation} {rule.std}",
)
def test_a_healthy_run_raises_no_alarm(tmp_path: Path, rule: Algorithm) -> None:
    store = with_tokenizer(tmp_path, assign(healthy(rule), rule))
    assert {code: checks[code](store) for code in CODES if checks[code](store)} == {}


@pytest.mark.parametrize("code", CODES)
def test_a_check_says_nothing_of_an_empty_or_bare_run(tmp_path: Path, code: str) -> None:
    assert found(code, tmp_path / "bare", assign(rows(2, group_id=[None, None]), None)) == []
    assert found(code, tmp_path / "no tokens", assign(rows(2, response_ids=[None, None], reward=[1, 0]), GRPO)) == []
    assert checks[code](Store(tmp_path / "nothing")) == []


def test_the_shipped_run_has_no_warning(analysis: Store) -> None:
    assert [finding.sentence for code in CODES for finding in checks[code](analysis)] == []
