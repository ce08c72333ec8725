"""What-ifs against sums worked out by hand, laws that hold for every change, and the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import credit_inspector
from credit_inspector.algorithm import Algorithm
from credit_inspector.checks.filler_paid import measure
from credit_inspector.errors import MissingColumn, UsageError
from credit_inspector.reports import terminal
from credit_inspector.rollout import Rollout
from credit_inspector.shaping import shapings
from credit_inspector.store import Store
from credit_inspector.table import Provenance, TokenTable
from credit_inspector.whatif import WhatIf, keys, plan, what_if
from credit_inspector.whatif.changed import with_rewards
from credit_inspector.whatif.panels import panels

RULE = Algorithm(name="test/grpo", source="recorded", std_eps=0.0, count_empty=True)
FIELDS = [field.name for field in fields(Algorithm) if field.name not in ("name", "source")]


def table_of(
    lengths: Sequence[int], rewards: Sequence[float | None], groups: Sequence[str] | None = None, **rule: Any
) -> TokenTable:
    rollouts = [
        Rollout(
            sample_id=f"s{i}",
            group_id=groups[i] if groups else "g",
            response_ids=np.arange(lengths[i], dtype=np.int32),
            reward=rewards[i],
        )
        for i in range(len(lengths))
    ]
    return TokenTable.from_rollouts(1, rollouts, algorithm=replace(RULE, **rule))


def random_step(seed: int, **rule: Any) -> TokenTable:
    """Three groups, holes in the mask, two updates a batch: log-probs of every kind."""
    draw = np.random.default_rng(seed)
    rollouts = []
    for i in range(9):
        length = int(draw.integers(1, 9))
        columns = {
            f"logprob/{name}": draw.normal(-1, 0.4, length).astype(np.float32) for name in ("policy", "old", "ref", "rollout")
        }
        rollouts.append(
            Rollout(
                sample_id=f"s{i}",
                group_id=f"g{i // 3}",
                response_ids=draw.integers(0, 50, length).astype(np.int32),
                loss_mask=draw.random(length) < 0.8,
                reward=float(draw.integers(0, 3)),
                rewards={"right": 1.0, "style": float(draw.random())},
                truncated=bool(draw.random() < 0.2),
                columns={**columns, "entropy/policy": draw.random(length).astype(np.float32)},
            )
        )
    values = {"updates_per_batch": 2, "kl_beta": 0.05, "std_eps": 1e-4, "settings": {}, **rule}
    return TokenTable.from_rollouts(1, rollouts, algorithm=replace(RULE, **values))


def coefficients(found: WhatIf) -> tuple[np.ndarray, np.ndarray]:
    pair = found.steps[0].columns["credit/coefficient"]
    return pair.before, pair.after


# ── by hand ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_length_penalty_by_hand() -> None:
    """Four responses on one group, on-policy, token-mean: coefficient = advantage / tokens."""
    lengths, rewards = [4, 2, 3, 1], np.array([1.0, 1.0, 0.0, 0.0])
    found = what_if(table_of(lengths, rewards.tolist()), {"length_penalty": 0.1})
    before, after = coefficients(found)
    for reward, values in ((rewards, before), (rewards - 0.1 * np.array(lengths), after)):
        advantage = (reward - reward.mean()) / reward.std(ddof=1)
        np.testing.assert_allclose(values, np.repeat(advantage, lengths) / 10, rtol=1e-6)
    assert found.measure == "credit/coefficient"
    assert any("delivered credit is not known" in note for note in found.notes)
    np.testing.assert_allclose(found.totals.size["credit/coefficient"][0], np.abs(after).sum() / np.abs(before).sum(), rtol=1e-6)
    np.testing.assert_allclose(
        found.totals.size["credit/coefficient"][1], np.sqrt((after**2).sum() / (before**2).sum()), rtol=1e-6
    )
    right = np.repeat([True, True, False, False], lengths)
    pushes = found.totals.push["credit/coefficient"]
    np.testing.assert_allclose(pushes["right"], [before[right].sum(), after[right].sum()], rtol=1e-5)
    np.testing.assert_allclose(pushes["wrong"], [before[~right].sum(), after[~right].sum()], rtol=1e-5)


def test_a_right_answer_that_a_penalty_pushes_down() -> None:
    found = what_if(table_of([60, 90, 100, 40], [1, 1, 1, -1]), {"overlong.max": 100, "overlong.buffer": 20})
    step = found.steps[0]
    np.testing.assert_allclose(step.reward.after, [1, 0.5, 0, -1])
    np.testing.assert_allclose(step.advantage.after, [1.0247, 0.4392, -0.1464, -1.3175], atol=1e-4)
    assert step.advantage.before[2] == pytest.approx(0.5)
    assert [link.sample_id for link in found.totals.turned] == ["s2"]
    assert step.contribution is not None
    np.testing.assert_allclose(step.contribution[2], -0.625 / 0.85391, rtol=1e-4)
    assert found.totals.responses_up_to_down == 1
    assert step.flips["up to down"] == 100


def test_a_constant_changes_nothing_and_it_is_said() -> None:
    found = what_if(table_of([1, 2, 3, 4], [1, 0, 0, 1]), {"reward_shift": -0.45})
    assert found.nothing_changes
    assert "nothing changes" in found.notes[0]
    assert any("constant inside every group" in note for note in found.notes)
    half = what_if(table_of([3, 3, 3, 4], [1, 0, 0, 1], ["a", "a", "b", "b"], std="none"), {"length_penalty": 0.1})
    assert not half.nothing_changes
    assert any("in 1 of 2 groups the change of the reward is the same" in note for note in half.notes)


def test_the_deviation_erases_the_size_of_a_penalty() -> None:
    """Two right answers alone in a group: any penalty gives ∓0.7071, and without the deviation half of itself times 9 tokens."""
    table = table_of([20, 11], [1, 1])
    found = what_if(table, {"length_penalty": 0.01})
    np.testing.assert_allclose(found.steps[0].advantage.after, [-0.7071, 0.7071], atol=1e-4)
    assert found.doubling == pytest.approx(0, abs=1e-6)
    assert any("erases its size" in note for note in found.notes)
    assert (found.totals.groups.before, found.totals.groups.after, found.totals.groups.gained) == (0, 1, 1)
    plain = what_if(table, {"std": "none", "length_penalty": 0.01})
    np.testing.assert_allclose(plain.steps[0].advantage.after, [-0.045, 0.045], rtol=1e-5)
    assert plain.doubling == pytest.approx(1)
    assert not any("erases" in note for note in plain.notes)


def test_losing_all_signal() -> None:
    found = what_if(table_of([2, 2, 2, 2], [1, 0, 1, 0], ["a", "a", "b", "b"]), {"outcome_reward": 1, "outcome_reward.wrong": 1})
    assert (found.totals.groups.lost, found.totals.groups.after) == (2, 0)
    assert found.steps[0].flips["lost"] == 8
    assert np.isnan(found.totals.up_length[1])


# ── masks and weights ───────────────────────────────────────────────────────────────────────────────────────────────

WORDS = (("a", "b", "<answer>", "1", "+", "2", "</answer>"), ("c", "<answer>", "7", "</answer>"), ("x", "y"))


def answered(**rule: Any) -> tuple[TokenTable, np.ndarray]:
    table = table_of([7, 4, 2], [1, 0, 0], **rule)
    return table, np.array([False, False, False, True, True, True, False, False, False, True, False, False, False])


@pytest.mark.parametrize(
    ("aggregation", "grows"),
    [
        ("token-mean", [13 / 4] * 4),
        ("seq-mean-token-mean", [7 / 3] * 3 + [4.0]),
        ("token-sum", [1.0] * 4),
        ("seq-mean-token-sum", [1.0] * 4),
    ],
)
def test_training_on_the_answer_alone_makes_its_step_larger(aggregation: str, grows: list[float]) -> None:
    """c' = c · N / N' under token-mean, c · |y| / |span| under seq-mean-token-mean; the empty response still counts."""
    table, inside = answered(aggregation=aggregation)
    found = what_if(table, {"answer_only": 1}, words=WORDS.__getitem__)
    before, after = coefficients(found)
    np.testing.assert_allclose(after[inside] / before[inside], grows, rtol=1e-6)
    assert np.isnan(after[~inside]).all()
    assert "loss_mask" in found.steps[0].changed


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean", "token-sum", "seq-mean-token-sum"])
def test_kept_denominators_keep_the_answer_s_step(aggregation: str) -> None:
    table, inside = answered(aggregation=aggregation)
    before, after = coefficients(
        what_if(table, {"answer_only": True, "answer_only.denominators": "kept"}, words=WORDS.__getitem__)
    )
    np.testing.assert_array_equal(after[inside], before[inside])
    assert not after[~inside].any()


def test_a_mask_twice_is_a_mask_once() -> None:
    table, _ = answered()
    table.add("credit/unearned", np.arange(13) % 2, Provenance.ESTIMATED)
    one = [("answer_only", 1), ("filler_mask", 1)]
    other = what_if(table, one[::-1], words=WORDS.__getitem__)
    _, after = coefficients(what_if(table, one, words=WORDS.__getitem__))
    np.testing.assert_array_equal(coefficients(other)[1], after)
    masked = shapings["answer_only"]
    assert masked.main == ""
    again = what_if(table, [("answer_only", 1), ("answer_only", 1)], words=WORDS.__getitem__)
    np.testing.assert_array_equal(coefficients(again)[1], coefficients(what_if(table, one[:1], words=WORDS.__getitem__))[1])


@given(st.integers(0, 10_000), st.floats(0.125, 3, width=16))
def test_a_weight_multiplies_policy_and_kl_push_alike(seed: int, inside: float) -> None:
    table = random_step(seed)
    marked = (np.arange(table.n_tokens) % 3 == 0).astype(float)
    table.add("credit/unearned", marked, Provenance.ESTIMATED)
    before, after = coefficients(what_if(table, {"filler_weight": float(inside)}))
    np.testing.assert_allclose(after, before * np.where(marked == 1, inside, 1.0), rtol=1e-5, atol=1e-9)


def test_ignoring_the_kl_leaves_the_policy_push() -> None:
    table = random_step(3)
    table.add("credit/unearned", np.arange(table.n_tokens) % 2, Provenance.ESTIMATED)
    found = what_if(table, {"kl_ignore": ":unearned"})
    without = what_if(table, {"kl_beta": 0})
    (before, after), (_, bare) = coefficients(found), coefficients(without)
    quiet = np.arange(table.n_tokens) % 2 == 1
    np.testing.assert_allclose(after[quiet], bare[quiet], rtol=1e-6)
    np.testing.assert_array_equal(after[~quiet], before[~quiet])
    assert not np.allclose(before[quiet & table.loss_mask], bare[quiet & table.loss_mask])


# ── laws ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.integers(0, 10_000))
def test_no_change_changes_nothing(seed: int) -> None:
    found = what_if(random_step(seed), {})
    assert found.nothing_changes
    for pair in found.steps[0].columns.values():
        np.testing.assert_array_equal(pair.before, pair.after)
    assert found.totals.size["credit/coefficient"] == (1.0, 1.0)


@pytest.mark.parametrize("key", FIELDS)
def test_setting_a_field_to_its_own_value_changes_nothing(key: str) -> None:
    table = random_step(1)
    value = table.algorithm.to_json()[key] if table.algorithm else None
    for spelled in (value, json.dumps(value) if isinstance(value, dict) else str(value)):
        found = what_if(table, {key: spelled})
        assert found.nothing_changes, found.steps[0].changed
        assert not found.changed


@pytest.mark.parametrize("settings", [{"length_penalty": 0}, {"reward_scale": 1}, {"answer_only": 0}, {"filler_weight": 1}])
def test_a_shaping_of_no_size_changes_nothing(settings: dict[str, Any]) -> None:
    table = random_step(2)
    table.add("credit/unearned", np.ones(table.n_tokens), Provenance.ESTIMATED)
    assert what_if(table, settings).nothing_changes


def test_the_order_of_changes_counts() -> None:
    table = table_of([4, 2, 3, 1], [1, 1, 0, 0], std="none")
    penal = what_if(table, [("length_penalty", 0.1), ("reward_scale", 10)]).steps[0].reward.after
    scaled = what_if(table, [("reward_scale", 10), ("length_penalty", 0.1)]).steps[0].reward.after
    np.testing.assert_allclose(penal, 10 * np.array([0.6, 0.8, -0.3, -0.1]))
    np.testing.assert_allclose(scaled, [9.6, 9.8, -0.3, -0.1])


def test_what_is_added_is_a_component_of_its_own() -> None:
    table = random_step(4, reward_weights={"right": 2.0})
    found = what_if(table, {"length_penalty": 0.5})
    assert found.after.reward_weights == {"right": 2.0}
    gdpo = replace(table, algorithm=replace(table.algorithm, advantage="gdpo", whiten="none"))
    once, twice = (what_if(gdpo, {"length_penalty": size}).steps[0].advantage.after for size in (0.5, 1.0))
    assert "advantage" in what_if(gdpo, {"length_penalty": 0.5}).steps[0].changed
    np.testing.assert_allclose(once, twice, rtol=1e-2)  # each component has a deviation of its own


@pytest.mark.parametrize("column", ["reward/token", "reward/token_score"])
def test_recorded_token_rewards_change_with_the_reward(column: str) -> None:
    """Returns are summed over recorded token rewards: a penalty lands where the response's reward stands."""
    table = table_of([4, 2, 3, 1], [1, 1, 0, 0], advantage="reinforce_pp", whiten="none")
    plain = what_if(table, {"length_penalty": 0.1}).steps[0].columns["advantage"]
    rewards = np.zeros(10)
    rewards[table.offsets[1:] - 1] = table.reward
    table.add(column, rewards, Provenance.RECORDED)
    pair = what_if(table, {"length_penalty": 0.1}).steps[0].columns["advantage"]
    np.testing.assert_allclose(pair.before, plain.before, rtol=1e-6)
    np.testing.assert_allclose(pair.after, np.repeat([0.6, 0.8, -0.3, -0.1], [4, 2, 3, 1]), rtol=1e-5)
    np.testing.assert_allclose(pair.after, plain.after, rtol=1e-6)


def test_a_mask_takes_the_reward_to_the_last_token_that_is_left() -> None:
    table, inside = answered(advantage="reinforce_pp", whiten="none")
    rewards = np.zeros(13)
    rewards[table.offsets[1:] - 1] = table.reward
    table.add("reward/token", rewards, Provenance.RECORDED)
    found = what_if(table, {"answer_only": 1}, words=WORDS.__getitem__)
    np.testing.assert_allclose(found.steps[0].columns["advantage"].after[inside], [1, 1, 1, 0])


# ── what is missing ─────────────────────────────────────────────────────────────────────────────────────────────────


def recorded_only() -> TokenTable:
    rollouts = [
        Rollout(sample_id=f"s{i}", group_id="g", response_ids=np.zeros(3, np.int32), advantage=value)
        for i, value in enumerate([1.0, -1.0])
    ]
    return TokenTable.from_rollouts(1, rollouts, algorithm=RULE)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"std": "none"}, "only recorded"),
        ({"advantage": "rloo"}, "only recorded"),
        ({"length_penalty": 0.1}, "no response has one"),
    ],
)
def test_recorded_advantages_alone_cannot_be_changed(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(MissingColumn, match=said):
        what_if(recorded_only(), settings)


def first_is_right(_prompt: str, response: str, _extra: dict[str, Any]) -> float:
    return float(response == "0")


def test_a_reward_of_one_s_own_where_none_was_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rewards_of_a_test", sys.modules[__name__])
    rollouts = tuple(replace(rollout, response=str(i)) for i, rollout in enumerate(recorded_only().rollouts))
    found = what_if(replace(recorded_only(), rollouts=rollouts), {"reward": "rewards_of_a_test:first_is_right"})
    np.testing.assert_allclose(found.steps[0].advantage.before, [1, -1])
    np.testing.assert_allclose(found.steps[0].advantage.after, [0.7071, -0.7071], atol=1e-4)
    assert any("no reward was recorded" in note for note in found.notes)


def test_recorded_advantages_stand_where_they_are_not_touched() -> None:
    found = what_if(recorded_only(), {"aggregation": "token-sum"})
    np.testing.assert_allclose(coefficients(found)[1], [1, 1, 1, -1, -1, -1])


def test_text_without_tokens_is_one_line_that_says_what_to_give() -> None:
    texts = [Rollout(sample_id=str(i), group_id="g", response="a b", reward=float(i)) for i in range(2)]
    with pytest.raises(MissingColumn, match="no response has tokens; analyze again with --tokenizer"):
        what_if(TokenTable.from_rollouts(1, texts, algorithm=RULE), {"std": "none"})


def test_another_rule_may_stand_before_the_change() -> None:
    """Where the run names none, or to see it under another one."""
    table = table_of([2, 2], [1.0, 0.0])
    other = replace(RULE, name="other", std="none")
    for run in (table, replace(table, algorithm=None)):
        found = what_if(run, {"std_eps": 0.5}, rule=other)
        assert found.before == other
        assert found.nothing_changes


def test_without_a_rule_it_says_what_is_missing() -> None:
    with pytest.raises(MissingColumn, match="--algorithm"):
        what_if(replace(recorded_only(), algorithm=None), {"clip_high": 1})


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("clip_hihg", 1, "did you mean clip_high"),
        ("lenght_penalty", 1, "length_penalty"),
        ("length_penalty.alfa", 1, "wanted one of alpha, only"),
        ("clip_high", "x", "wanted a finite number"),
        ("clip_high", "nan", "wanted a finite number"),
        ("clip_high", "none", "wanted a finite number"),
        ("std", "all", "one of group"),
        ("loss", "ppo_clipp", "ppo_clip"),
        ("algorithm", "trl-1.16.0/dappo", "trl-1.16.0/dapo"),
        ("name", "x", "nothing named"),
        ("settings.nonsense", 1, "nothing named"),
    ],
)
def test_a_bad_key_or_value_is_one_line(key: str, value: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        plan({key: value}, RULE)
    assert "\n" not in str(raised.value)


def test_values_are_read_in_the_field_s_type() -> None:
    found = plan(
        {"dual_clip": "3", "micro_batch": "4", "drop_dead_groups": "1", "reward_weights.format": "0.5", "std": "none"}, RULE
    ).after
    assert (found.dual_clip, found.micro_batch, found.drop_dead_groups, found.std) == (3.0, 4, True, "none")
    assert found.reward_weights == {"format": 0.5}
    assert plan({"dual_clip": "none"}, found).after.dual_clip is None


def test_a_preset_takes_the_whole_rule_but_not_what_the_run_fixes() -> None:
    run = replace(RULE, temperature=0.7, updates_per_batch=4, horizon=256.0)
    found = plan([("algorithm", "trl-1.16.0/dr_grpo"), ("clip_high", "0.3")], run)
    assert (found.after.name, found.after.temperature, found.after.updates_per_batch) == ("trl-1.16.0/dr_grpo", 0.7, 4)
    assert (found.after.horizon, found.after.clip_high, found.after.std) == (256.0, 0.3, "none")
    assert "what the run fixes" in found.notes[0]


def test_keys_do_not_collide() -> None:
    names = keys()
    assert len(set(names)) == len(names)


# ── the shipped run ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_filler_share_before_is_the_check_s(analysis: Store) -> None:
    paid = measure(analysis)
    assert paid is not None
    found = what_if(analysis, {"filler_mask": 1}, tokens=False)
    pair = found.totals.filler["credit/delivered"]
    for ours, theirs in (
        (pair.before.value, paid.share.value),
        (pair.before.low, paid.share.low),
        (pair.before.high, paid.share.high),
    ):
        assert ours == pytest.approx(theirs, rel=1e-5)  # recomputed here, in part recorded there
    assert pair.after.value == 0
    assert pair.low <= pair.change <= pair.high < 0
    assert not found.steps[0].columns
    assert len(found.steps) == len(analysis.steps)


def test_stored_credit_is_what_the_before_side_shows(analysis: Store) -> None:
    step = analysis.steps[0]
    table, _ = analysis.read_step(step)
    found = what_if(analysis, {"clip_high": 0.28}, steps=[step])
    for name, pair in found.steps[0].columns.items():
        np.testing.assert_allclose(pair.before, table.values(name), rtol=1e-5, atol=1e-9)


def test_from_python_by_path_and_by_keyword(analysis: Store) -> None:
    step = analysis.steps[0]
    found = credit_inspector.what_if(
        str(analysis.folder), steps=[step], format_reward={"weight": 0.2, "nothing_before": True}, clip_high=0.28
    )
    assert found.changed == {"clip_high": (0.2, 0.28)}
    assert "nothing_before=True" in found.shapings[0]
    with pytest.raises(UsageError, match="nothing to change"):
        credit_inspector.what_if(analysis)


def test_panels_show_what_changed_and_only_that(analysis: Store) -> None:
    found = what_if(analysis, {"kimi_length": 0.5, "clip_high": "0.28"}, steps=[analysis.steps[0]])
    (panel,) = panels(found, top=3)
    grids = {block.title: block for block in panel.blocks if hasattr(block, "title")}
    assert [row[0] for row in grids["Rule"].rows] == ["clip_high", "kimi_length"]
    assert len(grids["Responses that changed most"].rows) == 3
    for grid in grids.values():
        assert all(len(row) == len(grid.head) for row in grid.rows)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from credit_inspector.cli import main; main()", "what-if", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_line(analysis: Store) -> None:
    folder, step = str(analysis.folder), str(analysis.steps[0])
    found = run(folder, "--set", "length_penalty=0.001", "--set", "length_penalty.only=right", "--step", step, "--top", "2")
    assert found.returncode == 0, found.stderr
    for said in ("alpha=0.001 only=right", "on unearned tokens", "Responses that changed most", "Tokens that changed most"):
        assert said in found.stdout
    printed = run(folder, "--set", "kimi_length=1", "--step", step, "--json")
    document = json.loads(printed.stdout, parse_constant=lambda name: pytest.fail(f"bare {name}"))
    assert len(document["steps"]) == 1
    assert document["steps"][0]["responses"][0]["advantage"]
    listed = run(folder, "--list")
    assert "clip_high" in listed.stdout
    assert "length_penalty" in listed.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--set KEY=VALUE"),
        (["--set", "clip_high"], "not a pair"),
        (["--set", "clip_hi=1"], "did you mean"),
        (["--step", "7"], ""),
    ],
)
def test_bad_use_is_one_line_and_exit_code_two(analysis: Store, arguments: list[str], said: str) -> None:
    found = run(str(analysis.folder), *arguments)
    assert found.returncode == 2
    assert len(found.stderr.strip().splitlines()) == 1
    assert said in found.stderr


def test_text_of_the_run_is_shown_and_not_obeyed(tmp_path: Path) -> None:
    hostile = "[bold red]\x1b[31m<img src=x> :smile: `x`"
    rollouts = [
        Rollout(sample_id=f"{hostile}{i}", group_id=hostile, response=hostile, response_ids=np.zeros(3, np.int32), reward=i)
        for i in range(3)
    ]
    table = TokenTable.from_rollouts(1, rollouts, algorithm=RULE)
    found = what_if(table, {"std": "none", "reward_scale": 2}, words=lambda _: (hostile, "b", "c"))
    with (tmp_path / "out").open("w") as file:
        console = Console(width=300, record=True, file=file, force_terminal=False)
        terminal.show(panels(found), console)
    text = console.export_text()
    assert text.count("[bold red]") > 6
    assert ":smile:" in text
    assert "\x1b" not in text
    json.dumps(found.to_json(), allow_nan=False)


def test_a_token_reward_whose_new_value_is_unknown_is_unknown_and_no_zero() -> None:
    table = table_of([3, 3], [1.0, 0.0])
    table.add("reward/token", [0, 0, 1, 0, 0, 0], Provenance.RECORDED)
    changed = with_rewards(table, "x", np.array([np.nan, 0.5]), RULE)
    np.testing.assert_array_equal(changed.values("reward/token"), [0, 0, np.nan, 0, 0, 0.5])
