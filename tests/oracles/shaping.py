"""What-if vectors: changed rewards in, advantages and scores out."""

from __future__ import annotations

from typing import Any

import numpy as np

from credit_inspector.rollout import Rollout
from credit_inspector.shaping import ShapingInputs, shapings, wanted
from credit_inspector.shaping.countdown import task_of
from credit_inspector.shaping.format import format_of
from credit_inspector.table import TokenTable
from credit_inspector.whatif import what_if
from oracles import Checks, Vector, close, rule


def step_of(lengths: Any, rewards: Any, **fields: Any) -> TokenTable:
    """One group of responses of these lengths, all tokens trained."""
    rollouts = [
        Rollout(
            sample_id=str(i), group_id="g", response_ids=np.zeros(int(length), np.int32), reward=float(reward), **_row(fields, i)
        )
        for i, (length, reward) in enumerate(zip(lengths, rewards, strict=True))
    ]
    return TokenTable.from_rollouts(1, rollouts, algorithm=rule(std="none"))


def _row(fields: dict[str, Any], row: int) -> dict[str, Any]:
    return {name: values[row] for name, values in fields.items()}


def shaped(table: TokenTable, name: str, right: Any = None, **settings: Any) -> np.ndarray:
    """Rewards after one shaping."""
    is_right = np.zeros(table.n_rows, bool) if right is None else np.array(right, bool)
    asked = wanted(name, settings)
    assert asked is not None
    change = asked(ShapingInputs(table=table, algorithm=rule(), right=is_right, named=name))
    assert change.reward is not None
    return change.reward


def length_penalty(vector: Vector) -> None:
    lengths = [vector["inputs"]["len_A"], vector["inputs"]["len_B"]]
    rules = {"verl_std": {"std": "group", "std_eps": 1e-6}, "trl_std": {"std": "group", "std_eps": 1e-4}, "no_std": {}}
    for row in vector["outputs"]["rows"]:
        for name, fields in rules.items():
            found = what_if(step_of(lengths, [1, 1]), {**fields, "length_penalty": row["alpha"]})
            close(found.steps[0].advantage.after, row[name], vector)


def overlong(vector: Vector) -> None:
    params, lengths = vector["params"], vector["inputs"]["lengths"]
    names = {"max": ("max_response_length", "max_new_tokens"), "buffer": ("overlong_buffer_length", "overlong_buffer_len")}
    settings = {ours: next(params[name] for name in theirs if name in params) for ours, theirs in names.items()}
    factor = params.get("overlong_buffer_penalty", params.get("factor"))
    table = step_of(lengths, np.zeros(len(lengths)))
    floor = vector["id"].startswith("openrlhf")
    close(shaped(table, "overlong", **settings, factor=factor, floor=floor), vector["outputs"]["reward"], vector)


def kimi(vector: Vector) -> None:
    table = step_of(vector["inputs"]["lengths"], np.zeros(4))
    close(shaped(table, "kimi_length", vector["inputs"]["correct"], weight=1.0), vector["outputs"]["length_reward"], vector)


def process(vector: Vector) -> None:
    responses, truth = vector["inputs"]["responses"], vector["inputs"]["ground_truth"]
    n = len(responses)
    table = step_of(np.ones(n), np.zeros(n), response=responses, extra=[{"ground_truth": truth}] * n)
    scores = vector["outputs"]["scores"]
    for part in ("all_used", "each_once", "closeness", "correct"):
        others = dict.fromkeys(("all_used", "each_once", "closeness", "correct"), 0.0)
        found = shaped(table, "process_reward", weight=1.0, **{**others, part: 1.0})
        close(found, [score[part] for score in scores], vector)
    for part in ("one_answer", "nothing_after", "nothing_before", "parsable"):
        close([getattr(format_of(text), part) for text in responses], [score[part] for score in scores], vector)
    paid = shaped(table, "format_reward", weight=1.0, parsable=True, nothing_before=True)
    kept = ("one_answer", "nothing_after", "nothing_before", "parsable")
    close(paid, [all(score[part] for part in kept) for score in scores], vector)


def tinyzero(vector: Vector) -> None:
    inputs = vector["inputs"]
    n = len(inputs["responses"])
    extra = inputs["ground_truths"]
    assert all(task_of(one) is not None for one in extra)
    table = step_of(np.ones(n), np.zeros(n), prompt=[inputs["prefix"]] * n, response=inputs["responses"], extra=extra)
    assert "tinyzero_reward" in shapings
    close(shaped(table, "tinyzero_reward"), vector["outputs"]["scores"], vector)


CHECKS: Checks = {
    "whatif.seed_AB_length_penalty": length_penalty,
    "nemo.overlong_penalty": overlong,
    "openrlhf.overlong_penalty": overlong,
    "closed.kimi_length_reward": kimi,
    "spec.countdown_process": process,
    "tinyzero.countdown": tinyzero,
}
