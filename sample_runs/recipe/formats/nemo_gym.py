"""Write ``sample_runs/formats/nemo_gym`` with NeMo Gym's own models, read at commit 07d6b0d.

    PYTHONPATH=path/to/Gym python -P sample_runs/recipe/formats/nemo_gym.py

The request and the response are NeMo Gym's pydantic models (``openai_utils.py``: ``NeMoGymResponseCreateParamsNonStreaming``,
``NeMoGymResponse`` with the ``ForTraining`` items), which say what keys there are. A line is what ``rollout_collection.py``
writes with ``orjson``: request, response, reward, what the environment adds, and the ``_ng_`` keys. Log-probs are made up.
"""

from __future__ import annotations

import random
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import orjson
from tokenizers import Tokenizer

SAMPLES = Path(__file__).parents[2]
OUT = SAMPLES / "formats" / "nemo_gym"
TOKENIZER = Tokenizer.from_file(str(SAMPLES / "countdown" / "tokenizer" / "tokenizer.json"))
END = 1
TASKS = ("Use 3, 5, 7: make 22\n", "Use 2, 6, 9: make 21\n")
Turn = tuple[str, str | None]
"""What the model wrote, and what the tool answered."""
WITH_TOKENS: list[tuple[int, int, float, tuple[Turn, ...]]] = [
    (0, 1, 1.0, (("3*5+7", None),)),
    (0, 0, 1.0, (("3*5", "15\n"), ("15+7", None))),
    (1, 0, -1.0, (("2+6+9", None),)),
    (0, 3, 0.0, (("答案是 3+5*7。", None),)),
    (1, 2, 1.0, (("6*2", "12\n"), ("12+9", "21\n"), ("6*2+9", None))),
    (0, 2, 0.0, (("3+5+7", None),)),
    (1, 1, 1.0, (("9+6*2", None),)),
    (1, 3, -1.0, (("9*2+6", None),)),
]
AS_TEXT: dict[int, list[tuple[int, int, dict[str, float], tuple[Turn, ...]]]] = {
    step: [
        (task, rollout, {"correct": float((task + rollout + step) % 3 == 0), "format": float(rollout % 2)}, turns)
        for task, texts in enumerate((("3*5+7", "3+5+7", "好 3*5+7", "22"), ("2*6+9", "9+6*2", "2+6+9", "21")))
        for rollout, text in enumerate(texts)
        for turns in [((text, None),) if rollout else (("2*6", "12\n"), (text, None))]
    ]
    for step in (10, 20)
}


def main() -> None:
    """Write all of it anew."""
    shutil.rmtree(OUT / "evaluations", ignore_errors=True)
    (OUT / "evaluations").mkdir(parents=True)
    chance = random.Random(4)
    lines = [line(task, rollout, turns, chance) | {"reward": reward} for task, rollout, reward, turns in WITH_TOKENS]
    save(OUT / "rollouts.jsonl", lines)
    for step, rows in AS_TEXT.items():
        texts = [
            line(task, rollout, turns, None) | {"reward": sum(parts.values()), "reward_components": parts, **parts}
            for task, rollout, parts, turns in rows
        ]
        save(OUT / "evaluations" / f"step_{step}.jsonl", texts)
    failed = {"_ng_task_index": 1, "_ng_rollout_index": 4, "_ng_failure_class": "timeout"}
    save(OUT / "evaluations" / "step_20_failures.jsonl", [failed])


def save(file: Path, rows: list[dict[str, Any]]) -> None:
    """As NeMo Gym's dispatcher does."""
    with file.open("wb") as out:
        for row in rows:
            out.write(orjson.dumps(row) + b"\n")


def line(task: int, rollout: int, turns: tuple[Turn, ...], chance: random.Random | None) -> dict[str, Any]:
    """One rollout; with log-probs where there is a chance to draw them by."""
    models = import_module("nemo_gym.openai_utils")
    message = {"role": "user", "content": TASKS[task]}
    request = models.NeMoGymResponseCreateParamsNonStreaming(input=[message], temperature=1.0)
    response = models.NeMoGymResponse(
        id=f"resp_{task}{rollout}",
        created_at=1775583409.0,
        model="model",
        object="response",
        output=items(TASKS[task], turns, chance),
        parallel_tool_calls=True,
        tool_choice="auto",
        tools=[],
    )
    return {
        "responses_create_params": request.model_dump(),
        "response": response.model_dump(),
        "reward": None,
        "agent_ref": {"name": "countdown_agent"},
        "_ng_task_index": task,
        "_ng_rollout_index": rollout,
    }


def items(prompt: str, turns: tuple[Turn, ...], chance: random.Random | None) -> list[dict[str, Any]]:
    """The output items of all turns; each prompt is everything before it."""
    seen = TOKENIZER.encode(prompt).ids
    found: list[dict[str, Any]] = []
    for place, (text, answer) in enumerate(turns):
        ids = [*TOKENIZER.encode(text).ids, END]
        tokens: dict[str, Any] = {}
        if chance is not None:
            drawn = [-chance.randint(1, 120) / 64 for _ in ids]
            tokens = {"prompt_token_ids": list(seen), "generation_token_ids": ids, "generation_log_probs": drawn}
        if answer is None:
            content = [{"annotations": [], "text": text, "type": "output_text"}]
            found.append({"id": f"msg_{place}", "type": "message", "role": "assistant", "content": content, **tokens})
            continue
        call = {"type": "function_call", "call_id": f"call_{place}", "name": "calculate", "arguments": text, **tokens}
        found += [call, {"type": "function_call_output", "call_id": f"call_{place}", "output": answer}]
        seen = [*seen, *ids, *TOKENIZER.encode(answer).ids]
    return found


if __name__ == "__main__":
    main()
