"""Before any picture: for each number where it is from, and for each test of the data whether it passed or could not be run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from credit_inspector import pipeline
from credit_inspector.checks import run_checks
from credit_inspector.cli import app
from credit_inspector.integrity import examine, numbers, problems
from credit_inspector.store import Store

IDS = [5, 6, 7, 8, 9, 10, 11, 12]
OLD = [-0.1, -2.0, -0.4, -3.0, -0.2, -1.5, -0.7, -2.5]


def store_of(folder: Path, *rows: dict[str, Any]) -> Store:
    file = folder / "run.jsonl"
    file.write_text("".join(json.dumps({"schema_version": 1, "step": 1, "prompt": "q", **row}) + "\n" for row in rows))
    return pipeline.open_store(file)


def row(name: str, **values: Any) -> dict[str, Any]:
    return {"sample_id": name, "response_ids": IDS, "reward": 1.0, **values}


def outcomes(store: Store) -> dict[str, tuple[str, str]]:
    return {one.name: (one.outcome, one.said) for one in examine(store, run_checks(store))}


def test_text_and_rewards_alone_pass_nothing(tmp_path: Path) -> None:
    store = store_of(
        tmp_path, {"sample_id": "a", "response": "x", "reward": 1}, {"sample_id": "b", "response": "y", "reward": None}
    )
    found = outcomes(store)
    assert {outcome for outcome, _ in found.values()} == {"not possible"}
    assert "tokenizer" in found["alignment"][1]
    assert "--policy" in found["off by one"][1]
    rows = {one.name: (one.origin, one.note) for one in numbers(store)}
    assert rows["rewards"] == ("recorded", "1 of 2 responses")
    assert rows["groups"] == ("derived", "2 by equal prompts")
    assert rows["token ids"][0] == rows["loss mask"][0] == rows["logprob/old"][0] == "missing"
    assert problems(store)[("missing-values", "reward: 1 missing of 2 values")] == 1


def test_a_sound_run_passes_what_can_be_run(tmp_path: Path) -> None:
    near = [value - 0.001 for value in OLD]
    rows = [row(name, loss_mask=[True] * 8, **{"logprob/old": OLD, "logprob/rollout": near}) for name in "ab"]
    found = outcomes(store_of(tmp_path, *rows))
    passed = {name for name, (outcome, _) in found.items() if outcome == "passed"}
    assert passed == {"alignment", "off by one", "fill values", "mask"}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("alignment", {"logprob/old": [*OLD, -1.0]}),
        ("off by one", {"logprob/old": OLD, "logprob/rollout": [*OLD[1:], -1.0]}),
        ("fill values", {"logprob/old": OLD, "logprob/rollout": [0.0] * 8}),
        ("fill values", {"logprob/old": [1.0, *OLD[1:]]}),
    ],
)
def test_each_fault_fails_its_test_with_the_finding_that_says_so(tmp_path: Path, name: str, values: dict[str, Any]) -> None:
    rows = [row(each, loss_mask=[True] * 8, **values) for each in "abcd"]
    outcome, said = outcomes(store_of(tmp_path, *rows))[name]
    assert outcome == "failed"
    assert said.endswith(")")


def test_check_prints_it(tmp_path: Path) -> None:
    store_of(tmp_path, row("a", **{"logprob/rollout": OLD}), row("b", **{"logprob/rollout": OLD}))
    printed = CliRunner().invoke(app, ["check", str(tmp_path / "run.jsonl")], env={"COLUMNS": "200"}).output
    assert "Tests of the data" in printed
    assert "off by one" in printed
    for word in ("recorded", "missing", "logprob/rollout"):
        assert word in printed
