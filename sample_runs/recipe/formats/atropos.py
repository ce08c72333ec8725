"""Write the sample of Atropos' saved groups with atroposlib's own code.

    PYTHONPATH=path/to/atroposlib python sample_runs/recipe/formats/atropos.py      # atroposlib 0.4.0 and what it imports

``ManagedServer._create_sequence_node`` makes tokens, masks and log-probs of each response, also of two turns with a tool
between, and ``BaseEnv.handle_send_to_api`` decides on each group and writes it. It drops the group whose scores are all equal.
Tokens are those of the shipped tokenizer, log-probs are made up.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from importlib import import_module
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path[0] = str(Path(__file__).parents[1])

from formats.batch_answers import EOS, FORMATS, Answer, answers, encode  # noqa: E402

OUT = FORMATS / "atropos"


def node(answer: Answer) -> Any:
    """A response as the server that Atropos puts between remembers it."""
    server = import_module("atroposlib.envs.server_handling.managed_server").ManagedServer
    logprobs = answer.logprobs("rollout")
    prompt, done = answer.prompt_ids, 0
    found: Any = None
    for place in range(0, len(answer.parts), 2):
        is_last = place + 1 == len(answer.parts)
        tokens = encode(answer.parts[place]) + [EOS] * (is_last and not answer.is_cut)
        if place:
            between = encode(answer.parts[place - 1])
            prompt, done = [*found.tokens, *between], done + len(between)
        text = "".join(answer.parts[:place])
        own = logprobs[done : done + len(tokens)]
        found = server._create_sequence_node(
            None,
            answer.prompt + text,
            None,
            prompt,
            tokens,
            own,
            answer.parts[place],
            "length" if answer.is_cut else "stop",
            extending_node=found,
        )
        done += len(tokens)
    return found


def messages(answer: Answer) -> list[dict[str, str]]:
    """The chat of a response."""
    roles = ("assistant", "tool")
    said = [{"role": roles[place % 2], "content": part} for place, part in enumerate(answer.parts)]
    return [{"role": "user", "content": answer.prompt}, *said]


def group_of(rows: list[Answer], extras: Mapping[str, Any]) -> dict[str, Any]:
    """What an environment hands over."""
    nodes = [node(one) for one in rows]
    return {
        "tokens": [one.tokens for one in nodes],
        "masks": [one.masked_tokens for one in nodes],
        "scores": [2.0 * one.reward - 1.0 for one in rows],
        "inference_logprobs": [one.logprobs for one in nodes],
        "messages": [messages(one) for one in rows],
        "generation_params": {"temperature": 1.0},
        **extras,
    }


def with_advantages(rows: list[Answer]) -> dict[str, Any]:
    """Lists that an environment may give of its own: advantages at every token, those of the prompt too."""
    nodes = [node(one) for one in rows]
    mean = sum(one.reward for one in rows) / len(rows)
    advantages = [[round(2 * (row.reward - mean), 4)] * len(one.tokens) for row, one in zip(rows, nodes, strict=True)]
    reference = [[value if value == 1.0 else value - 0.125 for value in one.logprobs] for one in nodes]
    return {
        "advantages": advantages,
        "ref_logprobs": [[0.0 if value == 1.0 else value for value in row] for row in reference],
        "overrides": [{"set_advantage_to_zero": False} for _ in rows],
        "seed": 7,
    }


def write(file: Path, groups: list[dict[str, Any]]) -> None:
    """Send groups the way an environment does, with the saving on and no trainer at the other end."""
    environment = import_module("atroposlib.envs.base").BaseEnv

    async def nothing(*_: Any) -> None: ...

    with import_module("jsonlines").open(file, "w") as writer:
        stand_in = SimpleNamespace(
            config=SimpleNamespace(
                group_size=4, ensure_scores_are_not_same=True, include_messages=True, data_path_to_save_groups=str(file)
            ),
            completion_lengths=[],
            max_token_len=1024,
            add_rollouts_for_wandb=nothing,
            jsonl_writer=writer,
        )
        for group in groups:
            send = environment.handle_send_to_api(stand_in, group, do_send_to_api=False)
            asyncio.run(send)


def main() -> None:
    """Groups as the base environment gives them, and one with advantages and a reference."""
    OUT.mkdir(parents=True, exist_ok=True)
    by_group = [list(rows) for step in (1, 2) for _, rows in groupby(answers(step), key=lambda one: one.group)]
    write(OUT / "countdown_groups.jsonl", [group_of(rows, {}) for rows in by_group])
    rows = by_group[0]
    write(OUT / "with_advantages.jsonl", [group_of(rows, with_advantages(rows))])


if __name__ == "__main__":
    main()
