"""Write ``sample_runs/formats/ms_swift`` with ms-swift's own writer, read at commit 3602360.

    cd sample_runs/recipe && python -m formats.ms_swift path/to/ms-swift

``JsonlWriter`` of ``swift/utils/io_utils.py`` writes the files. The tables are spelled to the letter of ``GRPOTrainer.log``
(Hugging Face) and of ``_maybe_log_completions`` (Ray with Megatron).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any, Literal

import numpy as np
import torch

from formats.countdown_rows import END, SAMPLES, Response, decode, step
from formats.their_code import taken

OUT = SAMPLES / "formats" / "ms_swift"


def main() -> None:
    """Write all of it anew."""
    source = Path(sys.argv[1]) / "swift" / "utils"
    check = taken(source / "utils.py", "check_json_format", torch=torch, Any=Any, Sequence=Sequence, Mapping=Mapping)
    writer = taken(
        source / "io_utils.py",
        "JsonlWriter",
        os=os,
        json=json,
        Queue=Queue,
        Thread=Thread,
        is_master=lambda: True,
        Literal=Literal,
        check_json_format=check.check_json_format,
        Union=typing.Union,
        Dict=dict,
        List=list,
    ).JsonlWriter
    for name in ("grpo", "ray_megatron"):
        shutil.rmtree(OUT / name, ignore_errors=True)
    hugging_face, ray = (writer(str(OUT / name / "completions.jsonl")) for name in ("grpo", "ray_megatron"))
    hugging_face.append(table(1, step(1)))
    hugging_face.append(table(2, step(1)))  # the same batch serves two optimizer steps
    hugging_face.append({**table(3, step(2)), "num_turns": [1, 1, 1, 1, 1, 1, 2]})  # a queue that was filled later
    for number in (1, 2):
        ray.append([sample(number - 1, row) for row in step(number)])


def table(number: int, rows: list[Response]) -> dict[str, list[Any]]:
    """A logging step of GRPO on Hugging Face."""
    rewards = np.array([row.reward for row in rows]).reshape(-1, 4)
    format_reward = np.array([_well_formed(row) for row in rows]).reshape(-1, 4)
    total = rewards + format_reward
    advantages = (total - total.mean(1, keepdims=True)) / (total.std(1, ddof=1, keepdims=True) + 1e-4)
    return {
        "step": [str(number)] * len(rows),
        "prompt": [row.prompt for row in rows],
        "completion": [_completion(row) for row in rows],
        "Countdown": rewards.ravel().tolist(),
        "Format": format_reward.ravel().tolist(),
        "advantages": torch.tensor(advantages.ravel(), dtype=torch.float32).tolist(),
        "solution": [row.prompt.rpartition(" ")[2].strip(".\n") for row in rows],
    }


def sample(number: int, row: Response) -> dict[str, Any]:
    """A response of GRPO on Ray with Megatron."""
    reward = row.reward + _well_formed(row)
    return {"gen_step": number, "prompt": row.prompt, "completion": _completion(row), "reward": float(reward)}


def _completion(row: Response) -> str:
    return decode([token for token in row.ids if token != END])


def _well_formed(row: Response) -> float:
    return float("<answer>" in row.text)


if __name__ == "__main__":
    main()
