"""verifiers' traces and its older rows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from credit_inspector.errors import FormatError
from credit_inspector.rollout import Rollout, Step
from credit_inspector.trainers import ReadOptions, readers
from credit_inspector.trainers.opening import open_run
from places import FORMATS, SAMPLE
from trainers.told import by_name, kinds, lines, numbers, write

OVER_AN_API = FORMATS / "verifiers" / "countdown--policy--default--1f0c"
WITH_TOKENS = FORMATS / "verifiers" / "countdown--policy--default--9be2"
LEGACY = FORMATS / "verifiers" / "5d2a"

Json = dict[str, Any]


def node(role: str, *ids: int, parent: int | None = None, scaffold: int = 0, **more: Any) -> Json:
    sampled = role == "assistant"
    mask = [sampled and place >= scaffold for place in range(len(ids))]
    found: Json = {
        "message": {"role": role, "content": f"{role} {ids}"},
        "sampled": sampled,
        "token_ids": list(ids),
        "mask": mask,
    }
    return found | ({} if parent is None else {"parent": parent}) | more


def trace(*nodes: Json, **more: Any) -> Json:
    rewards = {"right": {"score": 1.0, "weight": 2.0}, "short": {"score": 0.5, "weight": 0.5}}
    found: Json = {"id": "t", "task": {"type": "T", "data": {"answer": "007"}, "key": "k"}, "agent": {"name": "agent"}}
    return found | {"nodes": list(nodes), "rewards": rewards, "metrics": {}, "info": {}} | more


def episode(*traces: Json, **more: Any) -> Json:
    return {"id": "e", "env": {"id": "x"}, "task": {"type": "T", "data": {}}, "ok": True, "traces": list(traces)} | more


def read_one(folder: Path, *rows: Json) -> Step:
    run = open_run(write(folder / "traces.jsonl", *rows))
    assert run.trainer == "verifiers"
    return run.read(run.steps[0])


# ── the sample ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_evaluation_over_an_api_is_text() -> None:
    run = open_run(OVER_AN_API)
    assert (run.trainer, run.steps, run.columns) == ("verifiers", (0,), ())
    assert "groups are by task: the file names no groups" in run.notes
    step = run.read(0)
    rows = by_name(step)
    assert {name: one.reward for name, one in rows.items()} == {
        "t30": 1.5, "t31": 0.0, "t32": 1.0, "t33": None, "t34": 1.5, "t35": 0.0, "t36": 1.5,
    }  # fmt: skip
    assert [one.group_id for one in step.rollouts] == ["countdown-g1"] * 4 + ["countdown-g2"] * 3
    assert {one.group_source for one in step.rollouts} == {"given"}
    assert all(one.response_ids is None and one.loss_mask is None for one in step.rollouts)
    assert (rows["t31"].prompt, rows["t31"].response) == ("Use 3, 5, 7 to make 22.\n", "让我想想。3+5+7")
    assert rows["t32"].response == "assistant\n3*5\ntool\n15\n\nassistant\n15+7"
    assert rows["t34"].rewards == {"correct": 1.0, "brief": 1.0}
    assert rows["t34"].extra["reward_weights"] == {"correct": 1.0, "brief": 0.5}
    assert [name for name, one in rows.items() if one.truncated] == ["t35"]
    assert rows["t33"].extra["errors"][0]["message"] == "the calculator is gone"
    assert rows["t30"].extra["task"]["data"]["answer"] == "22"
    lost = [problem for problem in step.problems if problem.kind == "no-trace"]
    assert [problem.message for problem in lost] == ["line 8: an episode that left no trace: EnvError no sandbox was free"]


def test_tokens_stand_where_the_model_saw_them() -> None:
    run = open_run(WITH_TOKENS)
    step = run.read(0)
    rows = by_name(step)
    assert list(rows) == ["t40", "t41/0", "t41/1", "t42", "t43"]
    assert set(run.columns) == {
        "logprob/rollout", "logprob/ref", "logprob/policy", "entropy/policy", "advantage", "prime/rl_weights",
    }  # fmt: skip
    raw = {one["id"]: one["nodes"] for line in lines(WITH_TOKENS / "traces.jsonl") for one in line["traces"]}
    paths = {"t40": [0, 1], "t41/0": [0, 1, 4, 5], "t41/1": [6, 7], "t42": [0, 1, 2, 3], "t43": [0, 1]}
    for name, path in paths.items():
        nodes = [raw[name.split("/", maxsplit=1)[0]][place] for place in path]
        check_against_nodes(rows[name], nodes)


def check_against_nodes(one: Rollout, nodes: list[Json]) -> None:
    """Walk the nodes token by token: each sampled token takes the next of its node's compact values."""
    expected: list[Json] = []
    fields = {"logprobs": "logprob/rollout", "trainer_logprobs": "logprob/policy", "reference_logprobs": "logprob/ref",
              "entropies": "entropy/policy", "advantages": "advantage"}  # fmt: skip
    for raw in nodes:
        taken = 0
        for token, trained in zip(raw["token_ids"], raw["mask"], strict=True):
            values = {name: raw[key][taken] if trained and raw.get(key) else None for key, name in fields.items()}
            expected.append({"id": token, "trained": trained, **values})
            taken += trained
    begin = next(place for place, token in enumerate(expected) if token["trained"])
    assert one.prompt_ids is not None
    assert one.response_ids is not None
    assert one.loss_mask is not None
    assert one.prompt_ids.tolist() == [token["id"] for token in expected[:begin]]
    assert one.response_ids.tolist() == [token["id"] for token in expected[begin:]]
    assert one.loss_mask.tolist() == [token["trained"] for token in expected[begin:]]
    for name in fields.values():
        found = [None if np.isnan(value) else pytest.approx(float(value), abs=1e-6) for value in one.columns[name]]
        assert found == [token[name] for token in expected[begin:]], name


def test_ids_decode_to_the_text_also_where_a_character_is_split() -> None:
    tokenizer = Tokenizer.from_file(str(SAMPLE / "tokenizer" / "tokenizer.json"))
    rows = by_name(open_run(WITH_TOKENS).read(0))
    one = rows["t40"]
    assert one.response == "让我想想。龘 3*5+7"
    assert tokenizer.decode(one.response_ids.tolist()) == one.response  # type: ignore[union-attr]
    assert tokenizer.decode(one.prompt_ids.tolist()) == one.prompt  # type: ignore[union-attr]
    assert len(tokenizer.encode("龘").ids) == 3
    tool = rows["t42"]
    assert tokenizer.decode(tool.response_ids.tolist()) == "6*212\n12+9"  # type: ignore[union-attr]
    assert tool.loss_mask.tolist() == [True] * 4 + [False] * 3 + [True] * 5  # type: ignore[union-attr]


def test_credit_that_was_not_assigned_is_no_zero() -> None:
    one = by_name(open_run(WITH_TOKENS).read(0))["t42"]
    assert numbers(one.columns["advantage"]) == [0.25] * 4 + [None] * 8


def test_what_is_not_trained_is_left_out_with_a_word() -> None:
    step = open_run(WITH_TOKENS).read(0)
    found = {problem.kind: (problem.message, problem.where) for problem in step.problems}
    assert found["untrained-branch"] == ("a compaction that was not resumed from: left out", "t41")
    assert found["untrained-agent"] == ("a trace of judge, which is not trained: left out", "t44")
    branches = [one.extra.get("branches") for one in step.rollouts]
    assert branches == [None, 2, 2, None, None]
    assert any("several branches" in note for note in open_run(WITH_TOKENS).notes)


def test_older_rows_join_their_steps() -> None:
    run = open_run(LEGACY)
    assert (run.trainer, run.steps, run.columns) == ("verifiers", (0,), ("logprob/rollout", "advantage"))
    step = run.read(0)
    rows = by_name(step)
    assert list(rows) == ["t50", "t51", "t52", "t53", "t54", "t55/0", "t55/1"]
    assert [one.group_id for one in step.rollouts] == ["0"] * 3 + ["1"] * 4
    assert [one.reward for one in step.rollouts] == [1.5, 1.0, 0.5, 1.5, 0.5, 1.0, 1.0]
    assert rows["t50"].rewards == {"correct": 1.0, "brief": 1.0}
    assert rows["t50"].extra["metrics"] == {"correct": 1.0, "brief": 1.0, "num_turns": 1.0}
    assert not {"correct", "num_turns", "trajectory"} & set(rows["t50"].extra)
    assert [name for name, one in rows.items() if one.truncated] == ["t54"]
    raw = {
        row["trajectory"][0]["trajectory_id"]: [one["tokens"] for one in row["trajectory"]]
        for row in lines(LEGACY / "results.jsonl")
    }
    first, second = raw["t51"]
    between = second["prompt_ids"][len(first["prompt_ids"] + first["completion_ids"]) :]
    one = rows["t51"]
    assert one.prompt_ids.tolist() == first["prompt_ids"]  # type: ignore[union-attr]
    assert one.response_ids.tolist() == first["completion_ids"] + between + second["completion_ids"]  # type: ignore[union-attr]
    assert one.loss_mask.tolist() == [True] * 6 + [False] * len(between) + [True] * 5  # type: ignore[union-attr]
    sampled = one.columns["logprob/rollout"]
    expected = [*first["completion_logprobs"], *[None] * len(between), *second["completion_logprobs"]]
    assert numbers(sampled) == expected
    assert numbers(rows["t50"].columns["advantage"]) == [0.5] * 6
    assert numbers(one.columns["advantage"]) == [0.0] * 6 + [None] * len(between) + [0.0] * 5


def test_a_rewritten_prompt_begins_another_sequence() -> None:
    rows = by_name(open_run(LEGACY).read(0))
    raw = lines(LEGACY / "results.jsonl")[5]["trajectory"]
    for place, name in enumerate(("t55/0", "t55/1")):
        assert rows[name].prompt_ids.tolist() == raw[place]["tokens"]["prompt_ids"]  # type: ignore[union-attr]
        assert rows[name].response_ids.tolist() == raw[place]["tokens"]["completion_ids"]  # type: ignore[union-attr]
    assert (rows["t55/0"].response, rows["t55/1"].response) == ("6*2", "12+9")


@pytest.mark.parametrize(("prompt", "sequences"), [([1, 2, 3, 4], 1), ([1, 2, 9, 4], 2), ([1, 2], 2), ([1, 2, 3], 1)])
def test_steps_are_joined_where_the_next_prompt_begins_with_all_before(tmp_path: Path, prompt: list[int], sequences: int) -> None:
    row = {"example_id": 1, "prompt": "q", "completion": "a", "reward": 1.0, "metrics": {}}
    steps = [{"tokens": {"prompt_ids": ids, "completion_ids": [end]}} for ids, end in (([1, 2], 3), (prompt, 5))]
    step = open_run(write(tmp_path / "results.jsonl", {**row, "trajectory": steps})).read(0)
    assert len(step.rollouts) == sequences
    assert step.rollouts[0].response_ids.tolist() == ([3, *prompt[3:], 5] if sequences == 1 else [3])  # type: ignore[union-attr]


def test_the_file_and_the_folder_are_the_same(tmp_path: Path) -> None:
    for folder, name in ((WITH_TOKENS, "traces.jsonl"), (LEGACY, "results.jsonl")):
        one, other = open_run(folder).read(0), open_run(folder / name).read(0)
        assert [row.sample_id for row in one.rollouts] == [row.sample_id for row in other.rollouts]
        outer = tmp_path / name
        shutil.copytree(folder, outer / "a--b" / "run")
        assert open_run(outer / "a--b").trainer == "verifiers"


# ── traces ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_shared_turn_is_trained_in_its_first_branch_only(tmp_path: Path) -> None:
    nodes = (
        node("user", 1, 2),
        node("assistant", 3, 4, parent=0, scaffold=1, logprobs=[-0.5]),
        node("user", 5, parent=1),
        node("assistant", 6, parent=2, logprobs=[-0.25]),
        node("user", 7, parent=1),
        node("assistant", 8, parent=4, logprobs=[-0.75]),
    )
    step = read_one(tmp_path, episode(trace(*nodes), group={"id": "g"}))
    first, second = step.rollouts
    assert first.prompt_ids.tolist() == [1, 2, 3]  # type: ignore[union-attr]
    assert first.response_ids.tolist() == [4, 5, 6]  # type: ignore[union-attr]
    assert first.loss_mask.tolist() == [True, False, True]  # type: ignore[union-attr]
    assert numbers(first.columns["logprob/rollout"]) == [-0.5, None, -0.25]
    assert second.prompt_ids.tolist() == [1, 2, 3, 4, 7]  # type: ignore[union-attr]
    assert second.response_ids.tolist() == [8]  # type: ignore[union-attr]
    assert numbers(second.columns["logprob/rollout"]) == [-0.75]
    assert [one.reward for one in step.rollouts] == [2.25, 2.25]
    assert {one.group_id for one in step.rollouts} == {"g"}


def test_bare_traces_of_before_august_2026(tmp_path: Path) -> None:
    talk = (node("user", 1), node("assistant", 2, parent=0))
    info = {"group_id": "g7", "policy_version": 4, "env_name": "x"}
    step = read_one(tmp_path, trace(*talk, info=info), trace(*talk, id="u"))
    first, second = step.rollouts
    assert (first.group_id, first.policy_version, first.reward) == ("g7", 4, 2.25)
    assert (second.group_id, second.sample_id) == ("k", "u")
    assert first.extra["info"] == info


def test_rewards_that_were_not_scored_are_missing(tmp_path: Path) -> None:
    talk = (node("user", 1), node("assistant", 2, parent=0))
    rewards = {"right": None, "short": {"score": 0.5, "weight": 0.5}}
    step = read_one(
        tmp_path,
        episode(trace(*talk, id="a", rewards={})),
        episode(trace(*talk, id="b", rewards=rewards)),
        episode(trace(*talk, id="c", rewards={"right": {"score": float("nan")}, "reward": {"score": 0.0}})),
    )
    assert [one.reward for one in step.rollouts] == [None, 0.25, 0.0]
    assert step.rollouts[1].rewards == {"right": None, "short": 0.5}
    assert step.rollouts[2].rewards == {"right": None, "reward": 0.0}


def test_values_that_do_not_fit_the_mask_are_left_out(tmp_path: Path) -> None:
    user = node("user", 1)
    step = read_one(
        tmp_path,
        episode(trace(user, node("assistant", 2, 3, parent=0, logprobs=[-0.5]), id="short")),
        episode(trace(user, node("assistant", 2, 3, parent=0, mask=[True]), id="mask")),
        episode(trace(user, node("assistant", 2, 3, parent=0, logprobs="no"), id="text")),
        episode(trace(user, node("assistant", 2, 3, parent=0, token_ids=[2, -3]), id="ids")),
        episode(trace(user, node("assistant", 2, 3, parent=0, advantages=[None, 0.5]), id="null")),
    )
    rows = by_name(step)
    assert rows["short"].columns == {}
    assert rows["mask"].response_ids.tolist() == [2, 3]  # type: ignore[union-attr]
    assert rows["mask"].loss_mask.tolist() == [False, False]  # type: ignore[union-attr]
    assert rows["text"].columns == {}
    assert rows["ids"].response_ids is None
    assert numbers(rows["null"].columns["advantage"]) == [None, 0.5]
    messages = {(problem.kind, problem.where, problem.message) for problem in step.problems}
    assert ("length-mismatch", "short", "node 1: logprob/rollout: 1 values for 2 tokens, left out") in messages
    said = "node 1: 2 tokens, 1 mask value: none of its tokens counts as trained"
    assert ("length-mismatch", "mask", said) in messages
    assert ("bad-ids", "ids", "node 1: no list of token ids, left out") in messages
    assert ("bad-column", "text", "node 1: logprob/rollout is no list of numbers, left out") in messages


def test_a_turn_without_ids_among_others_is_text(tmp_path: Path) -> None:
    nodes = (node("user", 1), node("assistant", 2, parent=0), node("user", 3, parent=1), node("assistant", parent=2))
    step = read_one(tmp_path, episode(trace(*nodes)))
    assert "partial-ids" in kinds(step)
    assert step.rollouts[0].response_ids is None
    assert step.rollouts[0].response is not None


def test_parents_that_go_in_circles_end(tmp_path: Path) -> None:
    nodes = (
        node("assistant", 1, parent=1),
        node("assistant", 2, parent=0),
        node("assistant", 3, parent=True),
        node("user", 4, parent=99),
    )
    step = read_one(tmp_path, episode(trace(*nodes)))
    assert [one.response_ids.tolist() for one in step.rollouts] == [[1, 2], [3]]  # type: ignore[union-attr]
    assert sum(problem.kind == "bad-parent" for problem in step.problems) == 3


def test_branches_take_no_more_than_a_multiple_of_the_file(tmp_path: Path) -> None:
    stem = [node("assistant", *([5] * 40_000))]
    leaves = [node("assistant", 6, parent=0) for _ in range(400)]
    step = read_one(tmp_path, episode(trace(*stem, *leaves)))
    assert "too-many-branches" in kinds(step)
    held = sum(len(one.prompt_ids) + len(one.response_ids) for one in step.rollouts)  # type: ignore[arg-type]
    assert 0 < held <= 1_000_000 + 32 * 41_000


def test_thinking_and_tool_calls_are_in_the_text(tmp_path: Path) -> None:
    call = {"id": "c", "name": "calc", "arguments": "{}"}
    said = {"role": "assistant", "reasoning_content": "hm", "content": "so", "tool_calls": [call]}
    step = read_one(tmp_path, episode(trace(node("user", 1), node("assistant", 2, parent=0, message=said))))
    assert step.rollouts[0].response == "hm\nso\n" + json.dumps(call)
    assert step.rollouts[0].extra["nodes"][1]["message"] == said


@pytest.mark.parametrize(
    ("about", "truncated"),
    [
        ({"stop_condition": "max_turns"}, True),
        ({"stop_condition": "agent_completed", "calls": [{"finish_reason": "stop"}, {"finish_reason": "length"}]}, True),
        ({"stop_condition": "agent_completed", "calls": [{"finish_reason": "length"}, {"finish_reason": "stop"}]}, False),
        ({"calls": [{"finish_reason": "length"}, {"finish_reason": None, "error": {"type": "E"}}]}, True),
        ({"stop_condition": "agent_completed"}, False),
        ({}, None),
    ],
)
def test_truncated_is_as_verifiers_has_it(tmp_path: Path, about: Json, truncated: bool | None) -> None:
    step = read_one(tmp_path, episode(trace(node("user", 1), node("assistant", 2, parent=0), **about)))
    assert step.rollouts[0].truncated is truncated


def test_steps_are_the_folders_or_else_the_lines(tmp_path: Path) -> None:
    talk = trace(node("user", 1), node("assistant", 2, parent=0))
    work = [
        {"type": "train", "id": "r", "work": {"type": "train", "step": step, "policy": {"start": 1, "end": 3}}} for step in (4, 5)
    ]
    rows = [episode(talk, run=run) for run in work]
    run = open_run(write(tmp_path / "traces.jsonl", *rows, rows[0]))
    assert run.steps == (4, 5)
    assert [len(run.read(step).rollouts) for step in run.steps] == [2, 1]
    assert run.read(4).rollouts[0].policy_version == 1
    inner = open_run(write(tmp_path / "rollouts/step_9/train/effective/traces.jsonl", *rows))
    assert (inner.steps, len(inner.read(9).rollouts)) == ((9,), 2)


def test_evaluations_among_training_are_left_out(tmp_path: Path) -> None:
    talk = trace(node("user", 1), node("assistant", 2, parent=0))
    both = [episode(talk, run={"type": "train", "id": "r", "work": {"type": kind, "step": 1}}) for kind in ("train", "eval")]
    run = open_run(write(tmp_path / "traces.jsonl", *both))
    step = run.read(1)
    assert len(step.rollouts) == 1
    assert "eval-rows" in kinds(step)
    assert not any("evaluation" in note for note in run.notes)
    alone = open_run(write(tmp_path / "eval" / "traces.jsonl", both[1]))
    assert len(alone.read(1).rollouts) == 1
    assert any("evaluation" in note for note in alone.notes)


# ── older rows ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_rows_from_before_metrics_had_a_place(tmp_path: Path) -> None:
    said = {"prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "assistant", "content": "a"}], "answer": 7}
    row = {
        **said,
        "task": "t",
        "reward": 0.5,
        "example_id": 3,
        "generation_ms": 12.0,
        "exact_match": 1.0,
        "format": 0.0,
        "num_turns": 2,
    }
    run = open_run(write(tmp_path / "results.jsonl", row, row))
    one, other = run.read(0).rollouts
    assert (one.group_id, one.reward, one.response) == ("3", 0.5, "a")
    assert one.rewards == {"exact_match": 1.0, "format": 0.0}
    assert one.extra["answer"] == 7
    assert one.extra["num_turns"] == 2
    assert one.sample_id != other.sample_id


def test_steps_that_cannot_be_read(tmp_path: Path) -> None:
    row = {"example_id": 1, "prompt": "q", "completion": "a", "reward": 1.0, "metrics": {}}
    good = {"prompt_ids": [1], "completion_ids": [2, 3], "completion_mask": [1, 1], "completion_logprobs": [-0.5, -0.5]}
    steps = [
        {"tokens": {**good, "prompt_ids": "no"}, "trajectory_id": "a"},
        {"tokens": {**good, "completion_logprobs": [-0.5]}, "trajectory_id": "b"},
        {"tokens": {**good, "completion_mask": [1]}, "trajectory_id": "c"},
        {"tokens": None, "trajectory_id": "d"},
        {"tokens": {**good, "completion_mask": None}, "trajectory_id": "e"},
    ]
    run = open_run(
        write(tmp_path / "results.jsonl", *({**row, "trajectory": [step]} for step in steps), {**row, "trajectory": 5})
    )
    step = run.read(0)
    rows = by_name(step)
    assert rows["a"].response_ids is None
    assert rows["b"].columns == {}
    assert rows["c"].response_ids.tolist() == [2, 3]  # type: ignore[union-attr]
    assert rows["c"].loss_mask.tolist() == [False, False]  # type: ignore[union-attr]
    assert rows["d"].response == "a"
    assert rows["e"].loss_mask.tolist() == [True, True]  # type: ignore[union-attr]
    assert numbers(rows["e"].columns["logprob/rollout"]) == [-0.5, -0.5]
    assert len(step.rollouts) == 6
    assert {"bad-ids", "length-mismatch"} <= kinds(step)


# ── what is broken, and what is another's ───────────────────────────────────────────────────────────────────────────


def test_a_killed_run(tmp_path: Path) -> None:
    good = json.dumps(episode(trace(node("user", 1), node("assistant", 2, parent=0))))
    file = tmp_path / "traces.jsonl"
    file.write_text(f"{good}\n[1]\n{good[:-30]}\n{good[:40]}", "utf-8")
    step = open_run(file).read(0)
    assert len(step.rollouts) == 1
    assert [problem.kind for problem in step.problems if "line" in problem.kind] == ["bad-line", "bad-line", "torn-line"]


@pytest.mark.parametrize("value", [None, 5, "x", [], {}, [[]], [{}], [None], {"nodes": 1}])
@pytest.mark.parametrize("key", ["nodes", "rewards", "calls", "info", "task", "agent", "id", "stop_condition", "errors"])
def test_any_value_in_any_place_of_a_trace(tmp_path: Path, key: str, value: Any) -> None:
    good = trace(node("user", 1), node("assistant", 2, parent=0))
    step = read_one(tmp_path, episode(good), episode({**good, key: value}))
    assert len(step.rollouts) in (1, 2)


@pytest.mark.parametrize("value", [None, 5, "x", [], {}, [[]], [{}], [None], True, -1, 1e400])
@pytest.mark.parametrize(
    "key", ["parent", "message", "sampled", "token_ids", "mask", "logprobs", "loss_weights", "semantic_parents"]
)
def test_any_value_in_any_place_of_a_node(tmp_path: Path, key: str, value: Any) -> None:
    good = (node("user", 1), node("assistant", 2, parent=0, logprobs=[-0.5]))
    step = read_one(tmp_path, episode(trace(*good)), episode(trace(good[0], {**good[1], key: value})))
    assert len(step.rollouts) in (1, 2)


def test_an_empty_file_is_said_where_it_is_known_to_be_ours(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text("")
    assert readers["verifiers"](tmp_path, ReadOptions()) is None
    (tmp_path / "metadata.json").write_text("{}")
    with pytest.raises(FormatError, match="no row that can be read"):
        readers["verifiers"](tmp_path, ReadOptions())


@pytest.mark.parametrize(
    "row",
    [
        {"example_id": 1, "prompt": "q", "completion": "a"},
        {"prompt": "q", "completion": "a", "reward": 1.0},
        {"traces": [], "id": "x"},
        {"nodes": [], "rewards": [], "task": {}},
    ],
)
def test_other_rows_are_not_taken(tmp_path: Path, row: Json) -> None:
    assert readers["verifiers"](write(tmp_path / "traces.jsonl", row), ReadOptions()) is None
