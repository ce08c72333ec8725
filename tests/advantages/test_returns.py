"""Returns and GAE: loops as trainers write them, and laws that hold whatever the convention."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from credit_inspector.advantages import estimators
from credit_inspector.advantages.gae import value_targets
from credit_inspector.advantages.returns import steps, to_go
from credit_inspector.algorithm import Algorithm
from credit_inspector.errors import MissingColumn
from credit_inspector.rollout import Rollout
from credit_inspector.table import TokenTable

CONVENTIONS = ("skip", "count", "reset", "ignore")
NAN = float("nan")


class Row(NamedTuple):
    """One response: mask, token rewards and values, of one length."""

    mask: list[bool]
    rewards: list[float]
    values: list[float]


def _row(draw: st.DrawFn) -> Row:
    length = draw(st.integers(0, 9))
    number = st.floats(-3, 3, width=32)
    mask = draw(st.lists(st.booleans(), min_size=length, max_size=length))
    return Row(mask, *(draw(st.lists(number, min_size=length, max_size=length)) for _ in range(2)))


ROW = st.composite(_row)()
ROWS = st.lists(ROW, min_size=1, max_size=5)
FACTOR = st.sampled_from([0.0, 0.5, 0.9, 1.0])


def table_of(rows: list[Row], **by_row: Any) -> TokenTable:
    return TokenTable.from_rollouts(
        0,
        [
            Rollout(
                sample_id=str(i),
                response_ids=np.zeros(len(row.mask), np.int32),
                loss_mask=np.array(row.mask, bool),
                columns={"reward/token": np.float32(row.rewards), "value/old": np.float32(row.values)},
                **{name: values[i] for name, values in by_row.items()},
            )
            for i, row in enumerate(rows)
        ],
    )


def advantage(table: TokenTable, name: str, **fields: Any) -> np.ndarray:
    return estimators[name](table, Algorithm(name="test", source="test", advantage=name, **fields))


def one(mask: list[int], reward: float | None = 1.0, **columns: Any) -> TokenTable:
    """One response with a scalar reward."""
    rollout = Rollout(
        sample_id="0",
        response_ids=np.zeros(len(mask), np.int32),
        loss_mask=np.array(mask, bool),
        reward=reward,
        columns={name.replace("_", "/"): np.float32(values) for name, values in columns.items()},
    )
    return TokenTable.from_rollouts(0, [rollout])


# ── twins ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def looped_return(row: Row, gamma: float, observation: str) -> list[float]:
    """Backwards over one row, as verl, OpenRLHF, SkyRL and slime write it."""
    running, found = 0.0, []
    for trained, reward in zip(row.mask[::-1], row.rewards[::-1], strict=True):
        if observation == "skip":
            running = reward + gamma * running if trained else running
        elif observation == "count":
            running = reward * trained + gamma * running
        else:
            running = reward + gamma * running
        found.append(running)
        if observation == "reset":
            running *= trained
    return found[::-1]


def looped_gae(row: Row, gamma: float, lam: float, observation: str) -> list[float]:
    following, running, found = 0.0, 0.0, []
    for trained, given_reward, given_value in zip(row.mask[::-1], row.rewards[::-1], row.values[::-1], strict=True):
        counts = observation != "count" or trained
        reward, value = given_reward * counts, given_value * counts
        here = reward + gamma * following - value + gamma * lam * running
        if observation == "skip" and not trained:
            here, value = running, following
        found.append(here)
        following, running = value, here
        if observation == "reset":
            following, running = following * trained, running * trained
    return found[::-1]


def at_trained(rows: list[Row], found: list[list[float]]) -> np.ndarray:
    flat = [
        value if trained else NAN
        for row, values in zip(rows, found, strict=True)
        for trained, value in zip(row.mask, values, strict=True)
    ]
    return np.array(flat, float)


@pytest.mark.parametrize("observation", CONVENTIONS)
@given(rows=ROWS, gamma=FACTOR)
def test_returns_are_those_of_the_trainers_loops(observation: str, rows: list[Row], gamma: float) -> None:
    ours = advantage(table_of(rows), "reinforce_pp", gamma=gamma, observation=observation)
    twin = at_trained(rows, [looped_return(row, gamma, observation) for row in rows])
    np.testing.assert_allclose(ours, twin, atol=1e-9)


@pytest.mark.parametrize("observation", CONVENTIONS)
@given(rows=ROWS, gamma=FACTOR, lam=FACTOR)
def test_gae_is_that_of_the_trainers_loops(observation: str, rows: list[Row], gamma: float, lam: float) -> None:
    ours = advantage(table_of(rows), "gae", gamma=gamma, lam=lam, observation=observation)
    twin = at_trained(rows, [looped_gae(row, gamma, lam, observation) for row in rows])
    np.testing.assert_allclose(ours, twin, atol=1e-9)


def test_the_four_conventions_by_hand() -> None:
    table = one([1, 1, 0, 0, 1, 1])
    expected = {
        "skip": [0.729, 0.81, NAN, NAN, 0.9, 1],
        "count": [0.59049, 0.6561, NAN, NAN, 0.9, 1],
        "reset": [0, 0, NAN, NAN, 0.9, 1],
        "ignore": [0.59049, 0.6561, NAN, NAN, 0.9, 1],
    }
    for observation, values in expected.items():
        np.testing.assert_allclose(advantage(table, "reinforce_pp", gamma=0.9, observation=observation), values)


@given(lengths=st.lists(st.integers(0, 70), min_size=1, max_size=4), decay=st.floats(0, 1))
def test_doubling_sums_over_every_length(lengths: list[int], decay: float) -> None:
    rng = np.random.default_rng(sum(lengths))
    rows = [rng.standard_normal(length) for length in lengths]
    after = np.concatenate([np.arange(length)[::-1] for length in lengths])
    brute = [sum(decay**k * value for k, value in enumerate(row[t:])) for row in rows for t in range(len(row))]
    np.testing.assert_allclose(to_go(np.concatenate(rows), decay, after), brute, rtol=1e-9, atol=1e-9)


# ── laws ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("observation", CONVENTIONS)
@given(rows=ROWS, gamma=FACTOR)
def test_with_lambda_1_the_advantage_is_return_minus_value(observation: str, rows: list[Row], gamma: float) -> None:
    table = table_of(rows)
    fields = {"gamma": gamma, "observation": observation}
    returns = advantage(table, "reinforce_pp", **fields)
    np.testing.assert_allclose(advantage(table, "gae", lam=1.0, **fields), returns - table.values("value/old"), atol=1e-9)


@given(rows=ROWS)
def test_one_step_errors_telescope(rows: list[Row]) -> None:
    table = table_of(rows)
    errors = advantage(table, "gae", gamma=1.0, lam=0.0)
    whole = advantage(table, "gae", gamma=1.0, lam=1.0)
    for i in range(table.n_rows):
        inside = errors[table.slice(i)][table.loss_mask[table.slice(i)]]
        if len(inside):
            first = whole[table.slice(i)][table.loss_mask[table.slice(i)]][0]
            np.testing.assert_allclose(inside.sum(), first, atol=1e-9)


@given(rows=ROWS)
def test_without_discount_skipping_and_counting_are_one(rows: list[Row]) -> None:
    table = table_of(rows)
    for name in ("reinforce_pp", "gae"):
        skipped, counted = (advantage(table, name, observation=each) for each in ("skip", "count"))
        np.testing.assert_allclose(skipped, counted, atol=1e-9)


@given(row=ROW, gamma=FACTOR, lam=FACTOR)
def test_forward_view_is_backward_view(row: Row, gamma: float, lam: float) -> None:
    """Σ δ_t e_t = Σ A_t g_t with the trace e_t = γλ e_{t−1} + g_t of any vectors g_t."""
    kept = np.flatnonzero(row.mask)
    gradient = np.random.default_rng(len(row.mask)).standard_normal((len(kept), 3))
    table = table_of([row])
    forward = advantage(table, "gae", gamma=gamma, lam=lam)[kept] @ gradient
    errors = advantage(table, "gae", gamma=gamma, lam=0.0)[kept]
    trace, backward = np.zeros(3), np.zeros(3)
    for error, each in zip(errors, gradient, strict=True):
        trace = gamma * lam * trace + each
        backward += error * trace
    np.testing.assert_allclose(forward, backward, atol=1e-9)


@pytest.mark.parametrize("name", ["reinforce_pp", "gae"])
@pytest.mark.parametrize("observation", CONVENTIONS)
@given(rows=ROWS, seed=st.integers(0, 99))
def test_a_response_depends_on_itself_alone(name: str, observation: str, rows: list[Row], seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(rows))
    fields = {"gamma": 0.9, "lam": 0.8, "observation": observation}
    together = advantage(table_of([rows[i] for i in order]), name, **fields)
    alone = [advantage(table_of([rows[i]]), name, **fields) for i in order]
    np.testing.assert_array_equal(together, np.concatenate(alone))


@pytest.mark.parametrize("name", ["reinforce_pp", "gae"])
@pytest.mark.parametrize("observation", ["skip", "count", "reset"])
@given(rows=ROWS, width=st.integers(0, 3))
def test_padding_and_what_stands_outside_the_mask_change_nothing(
    name: str, observation: str, rows: list[Row], width: int
) -> None:
    def dirtied(row: Row) -> Row:
        other = [NAN, np.inf, 7.0]
        outside = lambda values: [v if m else other[i % 3] for i, (m, v) in enumerate(zip(row.mask, values, strict=True))]  # noqa: E731
        return Row(row.mask + [False] * width, outside(row.rewards) + [NAN] * width, outside(row.values) + [5.0] * width)

    fields = {"gamma": 0.9, "lam": 0.8, "observation": observation}
    # A response that recorded no reward at all is another case.
    rows = [row for row in rows if any(row.mask)]
    clean, dirty = table_of(rows), table_of([dirtied(row) for row in rows])
    ours = advantage(dirty, name, **fields)
    np.testing.assert_array_equal(advantage(clean, name, **fields)[clean.loss_mask], ours[dirty.loss_mask])
    assert np.isnan(ours[~dirty.loss_mask]).all()


# ── where the reward stands ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_reward_on_tool_output_is_lost_as_in_verl_and_kept_where_no_mask_is_read() -> None:
    table = one([1, 1, 0], value_old=[0, 0, 0])
    for name in ("reinforce_pp", "gae"):
        for observation in ("skip", "count", "reset"):
            np.testing.assert_array_equal(advantage(table, name, terminal="last", observation=observation), [0, 0, NAN])
        np.testing.assert_array_equal(advantage(table, name, terminal="last", observation="ignore"), [1, 1, NAN])
        np.testing.assert_array_equal(advantage(table, name, terminal="last-trained"), [1, 1, NAN])


def test_one_behind_the_last_token_its_value_enters_the_bootstrap() -> None:
    fields = {"terminal": "after-last", "lam": 0.0}
    np.testing.assert_allclose(advantage(one([1, 1, 0], value_old=[0.5, 0.25, 0.75]), "gae", **fields), [-0.25, 0.5, NAN])


def test_one_behind_the_last_token_is_one_step_more() -> None:
    np.testing.assert_array_equal(advantage(one([1, 1, 0]), "reinforce_pp", terminal="after-last", gamma=0.5), [0.25, 0.5, NAN])
    table = table_of([Row([True, False], [0] * 2, [0] * 2)] * 2, reward=[1.0, 0.0], group_id=["g", "g"])
    found = advantage(table, "traces", std="none", terminal="after-last", gamma=0.5)
    np.testing.assert_array_equal(found, [0.25, NAN, -0.25, NAN])


@pytest.mark.parametrize("mask", [[1, 1], [1, 1, 0]])
def test_one_behind_the_last_token_is_the_last_one_where_no_value_is_known_there(mask: list[int]) -> None:
    table = one(mask, value_old=[0.5, 0.25, NAN][: len(mask)])
    found = advantage(table, "gae", terminal="after-last", lam=0.0)
    np.testing.assert_array_equal(found, advantage(table, "gae", terminal="last-trained", lam=0.0))
    np.testing.assert_allclose(found[:2], [-0.25, 0.75])


def test_recorded_token_rewards_come_before_the_scalar_response_by_response() -> None:
    rows = [Row([True, True], [0.25, 0.5], [0, 0]), Row([True, True], [NAN, NAN], [0, 0])]
    found = advantage(table_of(rows, reward=[9.0, 2.0]), "reinforce_pp")
    np.testing.assert_array_equal(found, [0.75, 0.5, 2, 2])


# ── what is missing ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_a_reward_a_response_has_no_advantage_and_others_keep_theirs() -> None:
    rows = [Row([True], [NAN], [0.5]), Row([True], [NAN], [0.5])]
    for name in ("reinforce_pp", "gae", "remax"):
        table = table_of(rows, reward=[None, 1.0], extra=[{"reward_baseline": 0.5}] * 2)
        assert np.isnan(advantage(table, name)[0])
        assert advantage(table, name)[1] == (1 if name == "reinforce_pp" else 0.5)


def test_an_unknown_number_reaches_back_and_not_ahead() -> None:
    rows = [Row([True] * 4, [1, NAN, 1, 1], [0, 0, 0, 0]), Row([True], [1], [0])]
    np.testing.assert_array_equal(advantage(table_of(rows), "reinforce_pp"), [NAN, NAN, 2, 1, 1])
    np.testing.assert_array_equal(advantage(table_of(rows), "reinforce_pp", gamma=0.0), [1, NAN, 1, 1, 1])


@pytest.mark.parametrize("unknown", [NAN, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_unknown(unknown: float) -> None:
    rows = [Row([True] * 3, [0, 0, 1], [0, unknown, 0.5])]
    np.testing.assert_array_equal(advantage(table_of(rows), "gae"), [NAN, NAN, 0.5])
    rows = [Row([True] * 3, [0, unknown, 1], [0, 0, 0.5])]
    np.testing.assert_array_equal(advantage(table_of(rows), "gae"), [NAN, NAN, 0.5])
    np.testing.assert_array_equal(advantage(one([1, 1], reward=unknown), "reinforce_pp"), [NAN, NAN])


def test_what_no_convention_can_do_without_is_named() -> None:
    with pytest.raises(MissingColumn, match="value/old is not there"):
        advantage(one([1, 1]), "gae")
    with pytest.raises(MissingColumn, match="greedy response"):
        advantage(one([1, 1]), "remax")


def test_an_empty_step_and_empty_responses_give_empty_arrays() -> None:
    for rows in ([], [Row([], [], [])], [Row([False, False], [1, 1], [0, 0])]):
        for name in ("reinforce_pp", "gae", "reinforce_pp_baseline", "traces"):
            for observation in CONVENTIONS:
                table = table_of(rows)
                found = table.trained(advantage(table, name, observation=observation, whiten="tokens"))
                assert found.shape == (table.n_tokens,)
                assert np.isnan(found).all()


# ── settings ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_lambda_by_trained_length() -> None:
    rows = [Row([True] * n + [False], [0.0] * (n - 1) + [1.0, 0.0], [0.5] * (n + 1)) for n in (1, 2, 10)]
    table = table_of(rows)
    found = advantage(table, "gae", lam=0.3, settings={"length_adaptive_alpha": 0.5})
    for i, (row, lam) in enumerate(zip(rows, (0.0, 0.0, 0.8), strict=True)):
        np.testing.assert_allclose(found[table.slice(i)][:-1], looped_gae(row, 1.0, lam, "skip")[:-1], atol=1e-12)


def test_the_critic_may_have_a_lambda_of_its_own() -> None:
    rows = [Row([True] * 3, [0, 0, 1], [0.5, 0.25, 0.75])]
    rule = Algorithm(name="test", source="test", lam=0.5)
    np.testing.assert_allclose(value_targets(table_of(rows), rule, lam=1.0), [1, 1, 1])
    half = np.add(looped_gae(rows[0], 1.0, 0.5, "skip"), rows[0].values)
    np.testing.assert_allclose(value_targets(table_of(rows), rule), half)


def test_traces_fall_off_by_what_is_trained_or_by_every_token() -> None:
    rows = [Row([True, False, True], [NAN] * 3, [0] * 3), Row([True], [NAN], [0])]
    table = table_of(rows, reward=[1.0, 0.0], group_id=["g", "g"])
    fields = {"std": "none", "gamma": 0.5, "lam": 0.5}
    np.testing.assert_allclose(advantage(table, "traces", **fields), [0.125, NAN, 0.5, -0.5])
    np.testing.assert_allclose(advantage(table, "traces", observation="count", **fields), [0.03125, NAN, 0.5, -0.5])


def test_runs_end_at_a_gap_only_where_the_convention_says_so() -> None:
    table = table_of([Row([True, False, True], [0] * 3, [0] * 3), Row([True], [0], [0])])
    assert steps(table, "skip").after.tolist() == [1, 0, 0]
    assert steps(table, "reset").after.tolist() == [0, 0, 0]
    assert steps(table, "count").after.tolist() == [2, 1, 0, 0]
