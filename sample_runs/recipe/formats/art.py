"""Write the sample of ART's trajectories with ART's own code, at version 0.5.18 of openpipe-art.

    PYTHONPATH=path/to/openpipe-art python sample_runs/recipe/formats/art.py

``write_trajectory_groups_parquet`` writes the Parquet files, ``serialize_trajectory_groups`` the JSON lines of before. ART's
package is entered below its ``__init__``, which would start its backends.
"""

from __future__ import annotations

import shutil
import sys
from importlib import import_module
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path[0] = str(Path(__file__).parents[1])

from formats.batch_answers import FORMATS, Answer, answers  # noqa: E402

OUT = FORMATS / "art"
CALL = {"id": "call_0", "type": "function", "function": {"name": "calc", "arguments": '{"expression": "9+4"}'}}


def enter() -> None:
    """Make ``art`` and ``art.utils`` importable without what they import."""
    spec = find_spec("art")
    assert spec is not None
    assert spec.submodule_search_locations
    home = Path(next(iter(spec.submodule_search_locations)))
    for name, folder in (("art", home), ("art.utils", home / "utils")):
        module = ModuleType(name)
        module.__path__ = [str(folder)]
        sys.modules[name] = module


def trajectory(answer: Answer) -> Any:
    """One response as an ART rollout function returns it: choices of the API where the policy spoke."""
    kinds = import_module("art.trajectories")
    chosen = import_module("openai.types.chat.chat_completion").Choice
    said: list[Any] = [
        {"role": "system", "content": "Solve the Countdown problem."},
        {"role": "user", "content": answer.prompt.strip()},
    ]
    for place, part in enumerate(answer.parts):
        if place % 2:
            said.append({"role": "tool", "content": part.strip(), "tool_call_id": CALL["id"]})
        else:
            is_call = len(answer.parts) > place + 1
            message = {"role": "assistant", "content": part, "tool_calls": [CALL] if is_call else None}
            reason = "tool_calls" if is_call else "length" if answer.is_cut else "stop"
            said.append(chosen.model_validate({"finish_reason": reason, "index": 0, "message": message}))
    return kinds.Trajectory(
        messages_and_choices=said,
        reward=answer.reward,
        metrics={"right": bool(answer.reward), "duration": 0.5 + answer.place},
        metadata={"target": answer.target},
        tools=[{"type": "function", "function": {"name": "calc"}}] if len(answer.parts) > 1 else None,
        logs=[f"wanted {answer.target}"],
    )


def groups(step: int) -> list[Any]:
    """A step's groups."""
    kinds = import_module("art.trajectories")
    by_group = groupby(answers(step), key=lambda one: one.group)
    return [kinds.TrajectoryGroup([trajectory(one) for one in rows], metadata={"problem": name}) for name, rows in by_group]


def main() -> None:
    """A model's folder in a project, with a validation split; and the trajectories of an older run."""
    enter()
    for name in ("dot_art", "older"):
        shutil.rmtree(OUT / name, ignore_errors=True)
    write = import_module("art.utils.trajectory_logging").write_trajectory_groups_parquet
    text = import_module("art.utils.trajectory_migration").serialize_trajectory_groups
    home = OUT / "dot_art" / "countdown" / "models" / "small-llama" / "trajectories"
    for split in ("train", "val"):
        (home / split).mkdir(parents=True)
    for step in (1, 2):
        write(groups(step), home / "train" / f"{step:04d}.parquet")
    write(groups(1)[:1], home / "val" / "0001.parquet")
    (OUT / "older" / "train").mkdir(parents=True)
    for step in (1, 2):
        (OUT / "older" / "train" / f"{step:04d}.jsonl").write_text(text(groups(step)), "utf-8")


if __name__ == "__main__":
    main()
