"""A reward function of the user's own: what it is given, what it may answer, and that its errors are one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from credit_inspector.algorithm import Algorithm
from credit_inspector.errors import UsageError
from credit_inspector.rollout import Rollout
from credit_inspector.shaping import Change, ShapingInputs, wanted
from credit_inspector.table import TokenTable

CODE = """
def score(prompt, response, extra):
    return None if response == "x" else len(prompt) + len(response) + extra.get("bonus", 0)
def broken(prompt, response, extra):
    raise ValueError("no\\nidea")
number = 3
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_rewards_of_a_test.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)


def change(name: str, **settings: Any) -> Change:
    texts, extras = ["ab", "x", "abc"], [{"bonus": 10}, {}, {}]
    rollouts = [
        Rollout(sample_id=f"s{i}", response_ids=np.zeros(1, np.int32), reward=1.0, prompt="p", response=text, extra=extra)
        for i, (text, extra) in enumerate(zip(texts, extras, strict=True))
    ]
    table = TokenTable.from_rollouts(1, rollouts)
    asked = wanted("reward", settings, f"own_rewards_of_a_test:{name}")
    assert asked is not None
    return asked(ShapingInputs(table=table, algorithm=Algorithm(name="t", source="t"), right=np.zeros(3, bool), named="reward"))


def test_it_stands_instead_of_the_reward_or_is_added() -> None:
    found = change("score")
    np.testing.assert_allclose(found.reward, [13, np.nan, 4])
    assert found.replaces
    assert "1 of 3" in found.note
    np.testing.assert_allclose(change("score", add=True, weight=0.1).reward, [2.3, 1, 1.4])


def test_errors_are_one_line() -> None:
    with pytest.raises(UsageError, match="failed on response s0: ValueError: no idea") as raised:
        change("broken")
    assert "\n" not in str(raised.value)
    for name, said in (("missing", "AttributeError"), ("number", "wanted a function")):
        with pytest.raises(UsageError, match=said):
            change(name)
    with pytest.raises(UsageError, match=r"package\.module:function"):
        wanted("reward", {}, "nothing")(None)  # type: ignore[misc, arg-type]
