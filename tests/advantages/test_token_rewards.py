"""Token rewards: where the reward stands, what the KL term takes off, and in which of four ways."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from credit_inspector.advantages import estimators
from credit_inspector.advantages.token_rewards import reward_kl, terminal, token_rewards
from credit_inspector.algorithm import Algorithm
from credit_inspector.errors import MissingColumn
from credit_inspector.rollout import Rollout
from credit_inspector.table import TokenTable

NAN = float("nan")


def table_of(masks: list[list[int]], rewards: list[float | None], **columns: list[list[float]]) -> TokenTable:
    """``logprob_old`` is the column ``logprob/old``."""
    return TokenTable.from_rollouts(
        0,
        [
            Rollout(
                sample_id=str(i),
                group_id="g",
                response_ids=np.zeros(len(mask), np.int32),
                loss_mask=np.array(mask, bool),
                reward=rewards[i],
                columns={name.replace("_", "/", 1): np.float32(values[i]) for name, values in columns.items()},
            )
            for i, mask in enumerate(masks)
        ],
    )


def rule(**fields: Any) -> Algorithm:
    return Algorithm(name="test", source="test", **fields)


def advantage(table: TokenTable, name: str, **fields: Any) -> np.ndarray:
    return estimators[name](table, rule(advantage=name, **fields))


# ── the KL term ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("estimator", "value"),
    [
        ("k1", lambda d: d),
        ("abs", abs),
        ("k2", lambda d: d * d / 2),
        ("k3", lambda d: np.exp(-d) - 1 + d),
        ("low_var_kl", lambda d: min(np.exp(-min(max(d, -20), 20)) - 1 + min(max(d, -20), 20), 10)),
    ],
)
def test_kl_of_trained_tokens_by_every_estimator(estimator: Any, value: Any) -> None:
    distance = [0.5, -0.25, -4.0, 30.0]
    table = table_of([[1, 1, 1, 1]], [0.0], logprob_old=[[d - 8 for d in distance]], logprob_ref=[[-8.0] * 4])
    found = reward_kl(table, rule(kl_in_reward=0.1, kl_in_reward_estimator=estimator))
    np.testing.assert_allclose(found, [0.1 * value(d) for d in distance], rtol=1e-6)


def test_nothing_stands_on_tokens_that_are_not_trained_and_an_unknown_one_is_unknown() -> None:
    table = table_of([[1, 0, 0, 1]], [0.0], logprob_old=[[-1, NAN, -1, -np.inf]], logprob_ref=[[-1.5, -1, np.inf, -1]])
    np.testing.assert_allclose(reward_kl(table, rule(kl_in_reward=2.0)), [1, 0, 0, NAN])


def test_a_kl_beyond_a_float_is_unknown() -> None:
    table = table_of([[1, 1]], [0.0], logprob_old=[[-2000.0, -1]], logprob_ref=[[-1.0, -1]])
    np.testing.assert_array_equal(reward_kl(table, rule(kl_in_reward=1.0, kl_in_reward_estimator="k3")), [NAN, 0])


def test_with_one_update_a_batch_the_policy_is_the_one_that_sampled() -> None:
    table = table_of([[1]], [0.0], logprob_policy=[[-1.0]], logprob_ref=[[-2.0]])
    np.testing.assert_array_equal(reward_kl(table, rule(kl_in_reward=1.0)), [1])
    with pytest.raises(MissingColumn, match="2 updates per batch logprob/policy is not the same"):
        reward_kl(table, rule(kl_in_reward=1.0, updates_per_batch=2))


@pytest.mark.parametrize("entered", ["token-rewards", "scalar", "to-go", "same-token"])
@pytest.mark.parametrize("name", ["reinforce_pp", "grpo"])
def test_without_a_reference_there_is_no_advantage_but_a_reason(name: str, entered: Any) -> None:
    table = table_of([[1], [1]], [1.0, 0.0], logprob_old=[[-1.0], [-1.0]])
    with pytest.raises(MissingColumn, match=r"KL term of weight 0\.1 in the reward, and logprob/ref is not there"):
        advantage(table, name, kl_in_reward=0.1, kl_in_reward_as=entered)
    assert np.isfinite(advantage(table, name, kl_in_reward=0.0, kl_in_reward_as=entered)).all()


def test_the_four_ways_in_which_it_enters_by_hand() -> None:
    """KLs 1, 2, 3 of weight 1, reward 10, discount ½: four credit assignments from one switch."""
    table = table_of([[1, 1, 1]], [10.0], logprob_old=[[0.0, 1, 2]], logprob_ref=[[-1.0, -1, -1]])
    expected = {
        ("reinforce_pp", "token-rewards"): [-1 - 1 - 0.75 + 2.5, -2 - 1.5 + 5, 7],
        ("reinforce_pp", "to-go"): [-1 - 1 - 0.75 + 2.5, -2 - 1.5 + 5, 7],
        ("reinforce_pp", "scalar"): [1, 2, 4],
        ("reinforce_pp", "same-token"): [2.5 - 1, 5 - 2, 10 - 3],
        ("reinforce", "token-rewards"): [4, 4, 4],
        ("reinforce", "scalar"): [4, 4, 4],
        ("reinforce", "to-go"): [10 - 2.75, 10 - 3.5, 7],
        ("reinforce", "same-token"): [9, 8, 7],
    }
    for (name, entered), values in expected.items():
        found = advantage(table, name, gamma=0.5, kl_in_reward=1.0, kl_in_reward_as=entered)
        np.testing.assert_allclose(found, values, err_msg=f"{name} {entered}")


@given(mask=st.lists(st.booleans(), min_size=1, max_size=8), gamma=st.sampled_from([0.5, 1.0]))
@pytest.mark.parametrize("observation", ["skip", "count", "reset"])
def test_taken_off_afterwards_or_before_returns_are_the_same(observation: Any, mask: list[bool], gamma: float) -> None:
    rng = np.random.default_rng(len(mask))
    columns = {name: [list(rng.standard_normal(len(mask)))] for name in ("logprob_old", "logprob_ref")}
    table = table_of([[int(each) for each in mask]], [1.0], **columns)
    fields = {"gamma": gamma, "observation": observation, "kl_in_reward": 0.3}
    before, after = (advantage(table, "reinforce_pp", kl_in_reward_as=each, **fields) for each in ("token-rewards", "to-go"))
    np.testing.assert_allclose(before, after, atol=1e-9)


def test_whitening_comes_after_the_kl_term() -> None:
    columns = {"logprob_old": [[1.0, 0.5], [0.25, 0]], "logprob_ref": [[0.0, 0], [0, 0]]}
    table = table_of([[1, 1], [1, 1]], [1.0, 0.0], **columns)
    found = advantage(table, "grpo", std="none", kl_in_reward=1.0, kl_in_reward_as="same-token", whiten="tokens", whiten_eps=0.0)
    raw = np.array([-0.5, 0, -0.75, -0.5])
    np.testing.assert_allclose(found, (raw - raw.mean()) / raw.std(ddof=1))


# ── rewards ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_where_a_scalar_reward_stands() -> None:
    table = table_of([[1, 1, 0, 0], [1, 1], [0, 0], []], [1.0] * 4)
    assert terminal(table, rule(terminal="last-trained")).tolist() == [1, 5, -1, -1]
    assert terminal(table, rule(terminal="last")).tolist() == [3, 5, 7, -1]
    assert terminal(table, rule(terminal="after-last")).tolist() == [2, 5, -1, -1]
    known = np.array([True, True, False, True, True, True, True, True])
    assert terminal(table, rule(terminal="after-last"), known).tolist() == [1, 5, -1, -1]


def test_summed_rewards_hold_the_kl_term_and_scores_do_not() -> None:
    columns = {"logprob_old": [[0.0, 0]], "logprob_ref": [[-1.0, -2]]}
    fields = {"kl_in_reward": 1.0}
    summed = table_of([[1, 1]], [9.0], reward_token=[[0.5, 1]], **columns)
    np.testing.assert_array_equal(token_rewards(summed, rule(**fields)).values, [0.5, 1])
    scored = table_of([[1, 1]], [9.0], reward_token_score=[[0.5, 1]], **columns)
    np.testing.assert_array_equal(token_rewards(scored, rule(**fields)).values, [-0.5, -1])
    np.testing.assert_array_equal(token_rewards(scored, rule()).values, [0.5, 1])


def test_where_summed_rewards_are_recorded_no_log_prob_is_asked_for() -> None:
    table = table_of([[1, 1], []], [9.0, None], reward_token=[[0.5, 1], []])
    np.testing.assert_array_equal(token_rewards(table, rule(kl_in_reward=1.0)).values, [0.5, 1])


def test_whitened_token_rewards_keep_their_mean() -> None:
    table = table_of([[1, 1, 0]], [9.0], reward_token=[[1, 3, 50]])
    found = token_rewards(table, rule(whiten_rewards=True, whiten_eps=0.0)).values
    np.testing.assert_allclose(found, [2 - 0.5**0.5, 2 + 0.5**0.5, 50])
