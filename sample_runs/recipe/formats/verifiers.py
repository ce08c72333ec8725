"""Write ``sample_runs/formats/verifiers`` with verifiers' own code.

    python -P sample_runs/recipe/formats/verifiers.py v1        # needs verifiers 0.4.0
    python -P sample_runs/recipe/formats/verifiers.py legacy    # needs verifiers 0.1.14

``v1``: ``write_episode`` (``v1/utils/trace_store.py``) appends each episode. ``legacy``: ``parse_response_tokens`` makes the
tokens of a step, ``state_to_output`` the row, ``save_outputs`` and ``save_metadata`` the files: ``vf-eval -s -C trajectory``.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from formats.traces import EOS, FORMATS, START, Said, Talk, encode, episode, logprobs, talk

OUT = FORMATS / "verifiers"
FIRST, SECOND = "Use 3, 5, 7 to make 22.\n", "Use 2, 6, 9 to make 21.\n"
OVER_AN_API = [
    talk("t30", "g1", FIRST, "3*5+7", correct=1.0, brief=1.0),
    talk("t31", "g1", FIRST, "让我想想。3+5+7", correct=0.0, brief=0.0),
    talk("t32", "g1", FIRST, "3*5", "15\n", "15+7", correct=1.0, brief=0.0),
    talk("t33", "g1", FIRST, "3*7", error="the calculator is gone", correct=None, brief=None),
    talk("t34", "g2", SECOND, "6*2+9", correct=1.0, brief=1.0),
    talk("t35", "g2", SECOND, "6+9", "15\n", "15+2. Wait. Wait.", cut=True, correct=0.0, brief=0.0),
    talk("t36", "g2", SECOND, "2*6+9", correct=1.0, brief=1.0),
]
SUMMED_UP = Talk(
    "t41",
    "g1",
    (
        Said("user", FIRST),
        Said("assistant", "3*5=15", 0),
        Said("user", "Sum up.", 1),
        Said("assistant", "15.", 2),
        Said("user", "Sum up.", 1),
        Said("assistant", "15, 7", 4),
        Said("user", "15, 7"),
        Said("assistant", "15+7", 6),
    ),
    {"correct": 1.0, "brief": 0.5},
)
"""Two tries to shorten the conversation; the harness went on from the second."""
WITH_TOKENS = [
    talk("t40", "g1", FIRST, "让我想想。龘 3*5+7", correct=1.0, brief=0.0),
    SUMMED_UP,
    talk("t42", "g2", SECOND, "6*2", "12\n", "12+9", correct=1.0, brief=1.0),
    talk("t43", "g2", SECOND, "6+9", cut=True, correct=0.0, brief=1.0),
]
JUDGE = Talk("t44", "g2", (Said("user", "Is 12+9 right?\n"), Said("assistant", "Yes.", 0)), {"judge": 1.0}, agent="judge")


def main() -> None:
    """Write the half that the installed version can write."""
    {"v1": write_v1, "legacy": write_legacy}[sys.argv[1]]()


def write_v1() -> None:
    """Two runs: over an API, and with a client that trains."""
    store = import_module("verifiers.v1.utils.trace_store")
    runs = {
        "countdown--policy--default--1f0c": [episode([one], with_tokens=False) for one in OVER_AN_API],
        "countdown--policy--default--9be2": [_annotated(one) for one in WITH_TOKENS],
    }
    lost = episode([OVER_AN_API[-1]], error="no sandbox was free")
    lost.id = "e37"
    runs["countdown--policy--default--1f0c"].append(lost)
    for name, episodes in runs.items():
        shutil.rmtree(OUT / name, ignore_errors=True)
        (OUT / name).mkdir(parents=True)
        for one in episodes:
            store.write_episode(OUT / name, one)


def _annotated(one: Talk) -> Any:
    """With what a trainer puts on the nodes, and one node to which it assigned no credit."""
    found = episode([one, JUDGE] if one.name == "t42" else [one], group=True)
    links = {3: ("compaction_attempt", 1), 5: ("compaction_attempt", 1), 7: ("compaction", 5)} if one is SUMMED_UP else {}
    for place, node in enumerate(found.traces[0].nodes):
        if place in links:
            kind, source = links[place]
            node.semantic_parents = [import_module("verifiers.v1.semantic").ParentLink(node=source, type=kind)]
        if node.sampled:
            count = len(node.logprobs)
            node.trainer_logprobs = [value - 0.015625 for value in node.logprobs]
            node.reference_logprobs = logprobs(f"{one.name} {place} reference", count)
            node.entropies = [-value for value in logprobs(f"{one.name} {place} entropy", count)]
            node.advantages = [0.25 if one.scores["correct"] else -0.25] * count if place != 3 else None
            node.loss_weights = {"rl": [float(trained) for trained in node.mask]}
    return found


# ── before version 1 ────────────────────────────────────────────────────────────────────────────────────────────────


def write_legacy() -> None:
    """One run with ``-C trajectory``."""
    saving = import_module("verifiers.utils.save_utils")
    folder = OUT / "5d2a"
    shutil.rmtree(folder, ignore_errors=True)
    states = [_state(one, place // 3, place) for place, one in enumerate(LEGACY)]
    for state in states:
        group = [other["reward"] for other in states if other["example_id"] == state["example_id"]]
        for step in state["trajectory"]:
            step["reward"], step["advantage"] = state["reward"], state["reward"] - sum(group) / len(group)
    outputs = [saving.state_to_output(state, ["trajectory"]) for state in states]
    saving.save_outputs(outputs, folder)
    saving.save_metadata(_metadata(folder), folder)


LEGACY = [
    talk("t50", "g0", FIRST, "3*5+7", correct=1.0, brief=1.0),
    talk("t51", "g0", FIRST, "让我想想。龘", "15\n", "15+7", correct=1.0, brief=0.0),
    talk("t52", "g0", FIRST, "3+5+7", correct=0.0, brief=1.0),
    talk("t53", "g1", SECOND, "6*2+9", correct=1.0, brief=1.0),
    talk("t54", "g1", SECOND, "2+6+9", cut=True, correct=0.0, brief=1.0),
    talk("t55", "g1", SECOND, "6*2", "12\n", "12+9", correct=1.0, brief=0.0),
]
REWRITTEN = "t55"
"""Its second prompt does not begin with the tokens of the first turn: the environment left the first answer out."""


def _state(one: Talk, example: int, seed: int) -> Any:
    types = import_module("verifiers.types")
    metrics = {"correct": one.scores["correct"] or 0.0, "brief": one.scores["brief"] or 0.0}
    messages = [_message(said) for said in one.said]
    return types.State(
        input=types.RolloutInput(
            prompt=messages[:1], example_id=example, answer="22" if example == 0 else "21", task="countdown"
        ),
        completion=messages[1:],
        reward=metrics["correct"] + 0.5 * metrics["brief"],
        metrics={**metrics, "num_turns": float(sum(said.role == "assistant" for said in one.said))},
        is_completed=True,
        is_truncated=one.said[-1].cut,
        stop_condition="max_total_tokens_reached" if one.said[-1].cut else "has_final_answer",
        timing=types.RolloutTiming(start_time=START + seed),
        trajectory=_steps(one, messages),
    )


def _message(said: Said) -> dict[str, str]:
    return {"role": said.role, "content": said.text} | ({"tool_call_id": "call-1"} if said.role == "tool" else {})


def _steps(one: Talk, messages: list[dict[str, str]]) -> list[Any]:
    """One a model call; each prompt holds all tokens before it."""
    types, parsing = import_module("verifiers.types"), import_module("verifiers.utils.response_utils")
    steps, before = [], list[int]()
    for place, said in enumerate(one.said):
        spoken = encode(said.text) + [EOS] * (said.role == "assistant" and not said.cut)
        if said.role == "assistant":
            is_rewritten = one.name == REWRITTEN and place > 1
            prompt = encode(one.said[0].text + one.said[2].text) if is_rewritten else before
            tokens = types.ResponseTokens(
                prompt_ids=prompt,
                prompt_mask=[0] * len(prompt),
                completion_ids=spoken,
                completion_mask=[1] * len(spoken),
                completion_logprobs=logprobs(f"{one.name} {place}", len(spoken)),
            )
            response = _response(said, tokens)
            steps.append(
                types.TrajectoryStep(
                    prompt=[messages[0], messages[2]] if is_rewritten else messages[:place],
                    completion=[messages[place]],
                    response=_response(said, None),
                    tokens=asyncio.run(parsing.parse_response_tokens(response)),
                    reward=None,
                    advantage=None,
                    is_truncated=said.cut,
                    trajectory_id=one.name,
                    extras={},
                )
            )
        before = before + spoken
    return steps


def _response(said: Said, tokens: Any) -> Any:
    types = import_module("verifiers.types")
    finish = "length" if said.cut else "stop"
    message = types.ResponseMessage(content=said.text, finish_reason=finish, is_truncated=said.cut, tokens=tokens)
    return types.Response(id="r", created=int(START), model="countdown", message=message)


def _metadata(folder: Path) -> dict[str, Any]:
    return {
        "env_id": "countdown",
        "env_args": {},
        "model": "countdown",
        "base_url": "http://localhost:8000/v1",
        "num_examples": 2,
        "rollouts_per_example": 3,
        "sampling_args": {"temperature": 1.0},
        "date": "2026-04-20",
        "time": 1.5,
        "avg_reward": 1.0,
        "avg_metrics": {"correct": 0.667, "brief": 0.667, "num_turns": 1.333},
        "avg_error": 0.0,
        "pass_at_k": {},
        "pass_all_k": {},
        "pass_threshold": 0.5,
        "usage": None,
        "version_info": {"vf_version": "0.1.14", "vf_commit": None, "env_version": None, "env_commit": None},
        "state_columns": ["trajectory"],
        "path_to_save": folder,
        "tools": None,
    }


if __name__ == "__main__":
    main()
