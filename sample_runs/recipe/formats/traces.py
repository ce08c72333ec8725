"""Countdown conversations as verifiers' own ``Episode`` and ``Trace`` objects, for the samples of verifiers and of prime-rl.

A conversation is a list of messages, each with the place of the one that it follows; log-probs are made up, in steps of 1/64.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

FOLDER = Path(__file__).parents[2]
FORMATS = FOLDER / "formats"
EOS = 1
START = 1787300000.0
"""The clock of the samples, so that they come out the same each time."""


@dataclass(frozen=True)
class Said:
    """One message; what a model says is sampled, and ends unless it was cut."""

    role: str
    text: str
    after: int | None = None
    """The message that it follows, by its place; ``None`` begins a conversation."""
    cut: bool = False


@dataclass(frozen=True)
class Talk:
    """One rollout: its messages and what they earned."""

    name: str
    group: str
    said: tuple[Said, ...]
    scores: Mapping[str, float | None]
    stop: str = "agent_completed"
    error: str | None = None
    agent: str = "agent"


WEIGHTS = {"correct": 1.0, "brief": 0.5, "judge": 1.0}


def talk(
    name: str, group: str, prompt: str, *turns: str, cut: bool = False, error: str | None = None, **scores: float | None
) -> Talk:
    """A conversation without branches: the model and a calculator in turn."""
    roles = ("assistant", "tool") * len(turns)
    said = [Said("user", prompt)]
    for place, (role, text) in enumerate(zip(roles, turns, strict=False)):
        said.append(Said(role, text, place, cut and place == len(turns) - 1))
    return Talk(name, group, tuple(said), scores, "max_total_tokens" if cut else "agent_completed", error)


@cache
def _tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(FOLDER / "countdown" / "tokenizer" / "tokenizer.json"))


def encode(text: str) -> list[int]:
    """A text's token ids."""
    ids: list[int] = _tokenizer().encode(text, add_special_tokens=False).ids
    return ids


def logprobs(name: str, count: int) -> list[float]:
    """Numbers below 0 that are the same whenever they are asked for."""
    draw = random.Random(name)
    return [-draw.randint(1, 128) / 64 for _ in range(count)]


def trace(one: Talk, *, with_tokens: bool = True) -> Any:
    """The ``Trace`` of a conversation."""
    vf, task = import_module("verifiers.v1"), import_module("verifiers.v1.task")
    parts, agents = import_module("verifiers.v1.trace"), import_module("verifiers.v1.configs.agent")
    problem = task.WireTaskData(idx=int(one.group[1:]), prompt=one.said[0].text, answer=_target(one.said[0].text))
    failed = [parts.Error(type="ToolError", message=one.error)] if one.error else []
    return vf.Trace[task.WireTaskData, vf.State, agents.WireAgentConfig](
        id=one.name,
        task=parts.TraceTask(type="CountdownTask", data=problem, key=f"countdown-{one.group}", hash=None),
        agent=parts.AgentInfo(config=agents.WireAgentConfig(), name=one.agent, trainable=one.agent == "agent"),
        nodes=[_node(one, place, with_tokens) for place in range(len(one.said))],
        calls=[_call(one, place) for place, said in enumerate(one.said) if said.role == "assistant"],
        rewards={
            name: None if score is None else {"score": score, "weight": WEIGHTS[name]} for name, score in one.scores.items()
        },
        metrics={"num_turns": float(sum(said.role == "assistant" for said in one.said))},
        is_completed=True,
        ok=not failed,
        stop_condition="error" if failed else one.stop,
        errors=failed,
        timing=parts.Timing(start=START),
    )


def _target(prompt: str) -> str:
    return prompt.rpartition("make ")[2].removesuffix(".\n")


def _node(one: Talk, place: int, with_tokens: bool) -> dict[str, Any]:
    said = one.said[place]
    message: dict[str, Any] = {"role": said.role, "content": said.text}
    if said.role == "tool":
        message["tool_call_id"] = f"call-{place}"
    node = {"parent": said.after, "message": message, "sampled": said.role == "assistant", "timestamp": START + place}
    return node | (_tokens(one, place) if with_tokens else {})


def _tokens(one: Talk, place: int) -> dict[str, Any]:
    """What a message adds: a model's turn takes the line end before it along, as a chat template's opening."""
    said = one.said[place]
    begins = said.text.removesuffix("\n") if said.text.endswith("\n") else said.text
    if said.role != "assistant":
        ids = encode(begins)
        return {"token_ids": ids, "mask": [False] * len(ids), "is_content": [True] * len(ids)}
    opening = encode("\n") if place and one.said[said.after or 0].text.endswith("\n") else []
    spoken = encode(said.text) + [EOS] * (not said.cut)
    return {
        "token_ids": opening + spoken,
        "mask": [False] * len(opening) + [True] * len(spoken),
        "is_content": [False] * len(opening) + [True] * len(spoken),
        "logprobs": logprobs(f"{one.name} {place}", len(spoken)),
    }


def _call(one: Talk, place: int) -> dict[str, Any]:
    return {"node": place, "model": "countdown", "finish_reason": "length" if one.said[place].cut else "stop"}


def episode(
    talks: Sequence[Talk], *, group: bool = False, run: Any = None, with_tokens: bool = True, error: str | None = None
) -> Any:
    """The ``Episode`` of one or several agents; with an ``error`` it left no trace."""
    whole = import_module("verifiers.v1.episode")
    traces = [trace(one, with_tokens=with_tokens) for one in talks]
    errors = [import_module("verifiers.v1.trace").Error(type="EnvError", message=error)] if error else []
    return whole.Episode(
        id=f"e{talks[0].name[1:]}",
        env=whole.EnvInfo(id="countdown", name="countdown"),
        task=traces[0].task,
        group=whole.GroupInfo(id=talks[0].group) if group else None,
        run=run,
        ok=error is None and all(one.ok for one in traces),
        errors=errors,
        traces=[] if error else traces,
    )
