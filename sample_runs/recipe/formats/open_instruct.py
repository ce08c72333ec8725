"""Write ``sample_runs/formats/open_instruct`` with open-instruct's own functions, read at commit e6c3044.

    cd sample_runs/recipe && python -m formats.open_instruct path/to/open-instruct

``save_rollout_metadata`` and ``_save_rollouts`` of ``open_instruct/rl_utils.py`` write the files; the shard number of the second
step is given, since 10,000 responses are not written here. The advantages are those of ``data_loader.py`` (standard).
"""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from formats.countdown_rows import SAMPLES, Response, encode, step
from formats.their_code import taken

OUT = SAMPLES / "formats" / "open_instruct" / "traces"
RUN = "countdown_grpo__1__1766000000"


def main() -> None:
    """Write all of it anew."""
    source = Path(sys.argv[1]) / "open_instruct"
    module = taken(
        source / "rl_utils.py",
        *("RolloutMetadata", "RolloutRecord", "save_rollout_metadata", "_get_request_info_for_sample", "_save_rollouts"),
        os=os,
        json=json,
        datetime=dt,
        np=np,
        dataclass=dataclass,
        asdict=asdict,
        utils=SimpleNamespace(get_git_commit=lambda: "e6c3044"),
        logger=SimpleNamespace(info=print),
        data_types=SimpleNamespace(RequestInfo=Any, GenerationResult=Any),
        model_utils=SimpleNamespace(Batch=Any),
    )
    shutil.rmtree(OUT, ignore_errors=True)
    module.save_rollout_metadata(str(OUT), RUN, "countdown/llama-1m")
    for number, shard in ((1, 0), (2, 1)):
        rows = step(number)
        module._save_rollouts(str(OUT), RUN, number, batch(rows), result(rows), advantages(rows), 4, shard)


def batch(rows: list[Response]) -> SimpleNamespace:
    """What ``_save_rollouts`` reads of a ``Batch``."""
    target = [encode(row.prompt.rpartition(" ")[2].strip(".\n")) for row in rows]
    return SimpleNamespace(
        queries=[row.prompt_ids for row in rows],
        scores=[row.reward for row in rows],
        datasets=["countdown"] * len(rows),
        ground_truths=target,
    )


def result(rows: list[Response]) -> SimpleNamespace:
    """What it reads of a ``GenerationResult``."""
    info = SimpleNamespace(
        num_calls=[int(row.tool) for row in rows],
        timeouts=[0] * len(rows),
        tool_errors=[""] * len(rows),
        tool_outputs=["36" if row.tool else "" for row in rows],
        tool_runtimes=[0.01 if row.tool else 0.0 for row in rows],
        tool_calleds=[row.tool for row in rows],
        tool_call_stats=[],
        rollout_states=[{"step_count": int(row.tool), "rewards": [], "done": False, "info": {}} for row in rows],
    )
    reasons = ["stop" if row.ids[-1] == 1 else "length" for row in rows]
    return SimpleNamespace(
        responses=[row.ids for row in rows],
        finish_reasons=reasons,
        request_info=info,
        logprobs=[row.logprobs for row in rows],
    )


def advantages(rows: list[Response]) -> np.ndarray[Any, Any]:
    """``(r − mean) / (std + 1e-8)`` within groups of four."""
    scores = np.array([row.reward for row in rows]).reshape(-1, 4)
    centred = scores - scores.mean(axis=-1, keepdims=True)
    spread: np.ndarray[Any, Any] = (centred / (scores.std(axis=-1, keepdims=True) + 1e-8)).ravel()
    return spread


if __name__ == "__main__":
    main()
