"""Write the sample of rLLM's episodes with rLLM's own code, at commit 9beb6e0.

    PYTHONPATH=path/to/rllm python sample_runs/recipe/formats/rllm.py

``EpisodeLogger.log_episodes_batch`` writes what training leaves, ``EvalEpisodeStore.write`` what an evaluation does. Episodes
are ``rllm.types.Episode``; tokens are those of the shipped tokenizer, log-probs are made up.
"""

from __future__ import annotations

import shutil
import sys
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).parents[1])

from formats.batch_answers import EOS, FORMATS, Answer, answers, encode  # noqa: E402

OUT = FORMATS / "rllm"


class TerminationReason(Enum):
    """As in ``rllm/workflows/workflow.py``, whose module starts the engines."""

    ENV_DONE = "env_done"
    MAX_RESPONSE_LENGTH_EXCEEDED = "max_response_length_exceeded"


def steps(answer: Answer) -> list[Any]:
    """A response's turns; the chat of each holds all of the one before."""
    step = import_module("rllm.types").Step
    chat: list[dict[str, str]] = [{"role": "user", "content": answer.prompt.strip()}]
    found = []
    prompt, logprobs = answer.prompt_ids, answer.logprobs("rollout")
    for place in range(0, len(answer.parts), 2):
        is_last = place + 1 == len(answer.parts)
        if place:
            between = encode(answer.parts[place - 1])
            chat = [*chat, {"role": "tool", "content": answer.parts[place - 1].strip()}]
            prompt, logprobs = [*prompt, *between], logprobs[len(between) :]
        ids = encode(answer.parts[place]) + [EOS] * (is_last and not answer.is_cut)
        chat = [*chat, {"role": "assistant", "content": answer.parts[place]}]
        found.append(
            step(
                prompt_ids=prompt,
                response_ids=ids,
                logprobs=logprobs[: len(ids)],
                chat_completions=chat,
                model_response=answer.parts[place],
                action=answer.parts[place].strip(),
                reward=answer.reward if is_last else 0.0,
                done=is_last,
                weight_version=answer.step - 1,
            )
        )
        prompt, logprobs = [*prompt, *ids], logprobs[len(ids) :]
    return found


def episode(answer: Answer) -> Any:
    """One response as a workflow returns it."""
    kinds = import_module("rllm.types")
    task = {"question": answer.prompt.strip(), "ground_truth": str(answer.target)}
    solver = kinds.Trajectory(
        uid=f"{answer.group}-{answer.place}", name="solver", task=task, steps=steps(answer), reward=answer.reward
    )
    return kinds.Episode(
        id=f"{answer.group}:{answer.place}",
        task=task,
        termination_reason=TerminationReason.MAX_RESPONSE_LENGTH_EXCEEDED if answer.is_cut else TerminationReason.ENV_DONE,
        is_correct=bool(answer.reward),
        trajectories=[solver],
        metrics={"turns": (len(answer.parts) + 1) // 2},
    )


def main() -> None:
    """A training run with one validation, and an evaluation."""
    logger = import_module("rllm.utils.episode_logger").EpisodeLogger
    store = import_module("rllm.eval.episode_store").EvalEpisodeStore
    for name in ("training", "evaluation"):
        shutil.rmtree(OUT / name, ignore_errors=True)
    log = logger(base_dir=str(OUT / "training"))
    for step in (1, 2):
        log.log_episodes_batch([episode(one) for one in answers(step)], step, "train", 0)
    log.log_episodes_batch([episode(one) for one in answers(1)[:1]], 1, "val", 0)
    kept = store(OUT / "evaluation")
    kept.write_meta({"dataset": "countdown", "model": "small-llama", "agent": "solver", "timestamp": "20260101_000000"})
    for place, one in enumerate(answers(1)[:4]):
        kept.write(place, episode(one))


if __name__ == "__main__":
    main()
