"""Which tokens an answer has, what a mask leaves, and on which tokens the KL term is quiet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from credit_inspector.algorithm import Algorithm
from credit_inspector.errors import CreditInspectorError, MissingColumn, UsageError
from credit_inspector.rollout import Rollout
from credit_inspector.shaping import Change, ShapingInputs, shapings, wanted
from credit_inspector.shaping.answer_span import tokens_of
from credit_inspector.shaping.masks import normalised
from credit_inspector.table import Provenance, TokenTable

WORDS = (("say ", "<answer", ">4", "2", "</", "answer>"), ("none",), ("<answer>", "7", "", "</answer>", "!"))


def step(words: Sequence[Sequence[str]] | None = WORDS, named: str = "answer_only", **fields: Any) -> ShapingInputs:
    texts = words or WORDS
    rollouts = [
        Rollout(sample_id=str(i), response_ids=np.arange(len(each), dtype=np.int32), reward=1.0) for i, each in enumerate(texts)
    ]
    table = TokenTable.from_rollouts(1, rollouts)
    rule = Algorithm(name="t", source="t", **fields)
    return ShapingInputs(
        table=table,
        algorithm=rule,
        right=np.ones(len(texts), bool),
        words=None if words is None else texts.__getitem__,
        named=named,
    )


def run(inputs: ShapingInputs, name: str, **settings: Any) -> Change:
    asked = wanted(name, settings)
    assert asked is not None
    return asked(inputs)


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, [2, 3, 8, 9]),
        ({"fit": "contained"}, [3, 8, 9]),
        ({"fit": "starts-in"}, [3, 8, 9]),
        ({"tags": "1"}, [0, 1, 2, 3, 4, 5, 7, 8, 9, 10]),
        ({"tags": "1", "fit": "contained"}, [1, 2, 3, 4, 5, 7, 8, 9, 10]),
    ],
)
def test_answer_tokens_by_character(settings: dict[str, Any], kept: list[int]) -> None:
    """One piece holds a tag's end and the answer's first character; an empty one goes with the "7" before it."""
    mask = run(step(), "answer_only", **settings).loss_mask
    assert mask is not None
    assert np.flatnonzero(mask).tolist() == kept


@given(st.lists(st.sampled_from(["", "a", "bc", "def"]), min_size=1, max_size=8), st.data())
def test_fit_by_brute_force(words: list[str], data: st.DataObject) -> None:
    text = "".join(words)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    at, cover = 0, []
    for word in words:
        cover.append(set(range(at, at + len(word))))
        at += len(word)
    span = set(range(start, end))
    tests = {
        "overlap": lambda covered: bool(covered & span),
        "contained": lambda covered: bool(covered) and covered <= span,
        "starts-in": lambda covered: bool(covered) and min(covered) in span,
    }
    for fit, inside in tests.items():
        found = tokens_of(words, start, end, fit)  # type: ignore[arg-type]
        for i, word in enumerate(words):
            if word:
                assert found[i] == inside(cover[i])
            elif i and any(words[:i]):
                assert found[i] == found[i - 1]


def test_kept_denominators_are_a_factor_and_no_mask() -> None:
    found = run(step(), "answer_only", denominators="kept")
    assert found.loss_mask is None
    assert found.weight is not None
    assert found.weight.sum() == 4
    assert "1 response has none" in found.note


def test_no_answer_anywhere_is_said() -> None:
    with pytest.raises(MissingColumn, match="no response has an answer"):
        run(step([["a"], ["b"]]), "answer_only")
    with pytest.raises(MissingColumn, match="--tokenizer"):
        run(step(None), "answer_only")


@pytest.mark.parametrize(
    ("fields", "pools"),
    [
        ({"aggregation": "token-mean"}, [0] * 12),
        ({"aggregation": "token-mean", "micro_batch": 2}, [0] * 7 + [1] * 5),
        ({"aggregation": "seq-mean-token-mean"}, [0] * 6 + [1] + [2] * 5),
    ],
)
def test_normalised_weights_sum_to_the_tokens_that_the_rule_divides_by(fields: dict[str, Any], pools: list[int]) -> None:
    weight = np.array([0.1, 2, 3, 0, 1, 1, 0.5, 4, 1, 0, 0, 0.25])
    found = normalised(step(**fields), weight)
    for pool in set(pools):
        inside = np.array(pools) == pool
        assert found[inside].sum() == pytest.approx(inside.sum())
        np.testing.assert_allclose(found[inside] / found[inside].sum(), weight[inside] / weight[inside].sum())


def test_constant_denominators_keep_their_weights() -> None:
    weight = np.linspace(0, 1, 12)
    np.testing.assert_array_equal(normalised(step(aggregation="token-sum"), weight), weight)


def test_filler_comes_from_the_analysis() -> None:
    inputs = step(named="filler_mask")
    with pytest.raises(MissingColumn, match=r"filler_mask.*credit/unearned"):
        run(inputs, "filler_mask")
    inputs.table.add("credit/unearned", [1, 1, 0, 0, np.nan, 0, 1, 0, 0, 0, 0, 0], Provenance.ESTIMATED)
    mask = run(inputs, "filler_mask").loss_mask
    assert mask is not None
    assert np.flatnonzero(~mask).tolist() == [0, 1, 6]
    np.testing.assert_allclose(run(inputs, "filler_weight", inside=0.2).weight, np.where(mask, 1.0, 0.2))


@pytest.mark.parametrize(
    ("tokens", "hit"),
    [
        ("none", [6]),
        (" say | 2 ", [0, 3]),
        (":digit", [3, 8]),
        (":special", [7, 10]),
        (":punctuation", [4, 11]),
        (":answer|none", [2, 3, 6, 8, 9]),
    ],
)
def test_kl_ignore_by_text_and_class(tokens: str, hit: list[int]) -> None:
    found = run(step(named="kl_ignore", kl_beta=0.1), "kl_ignore", tokens=tokens, factor=0.25)
    assert found.kl is not None
    np.testing.assert_allclose(found.kl[hit], 0.25)
    assert np.count_nonzero(found.kl != 1) == len(hit)


def test_kl_ignore_knows_its_classes() -> None:
    with pytest.raises(UsageError, match=":punctuation"):
        run(step(named="kl_ignore"), "kl_ignore", tokens=":wrong")


@pytest.mark.parametrize("name", list(shapings))
def test_every_shaping_is_described_and_its_settings_are_typed(name: str) -> None:
    shaping = shapings[name]
    assert len(shaping.doc) > 20
    assert not shaping.main or shaping.main in shaping.settings
    for key, default in shaping.settings.items():
        assert shaping.read({key: "none" if default is None else str(default)}) == {key: default}


@pytest.mark.parametrize(
    ("name", "given_"),
    [
        ("length_penalty", {"alpha": "x"}),
        ("length_penalty", {"only": "some"}),
        ("answer_only", {"tags": "2"}),
        ("overlong", {"max": "inf"}),
    ],
)
def test_a_value_of_another_type_is_one_line(name: str, given_: dict[str, str]) -> None:
    with pytest.raises(CreditInspectorError, match="wanted"):
        wanted(name, given_)


def test_a_switch_is_on_or_off() -> None:
    assert wanted("answer_only", {}, "0") is None
    assert wanted("answer_only", {}, 1) is not None
    assert wanted("answer_only", {}, "on") is not None
    with pytest.raises(UsageError):
        wanted("answer_only", {}, "0.5")
