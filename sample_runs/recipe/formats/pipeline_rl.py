"""Write ``sample_runs/formats/pipeline_rl`` with PipelineRL's own classes, read at commit 58d3934.

    cd sample_runs/recipe && python -m formats.pipeline_rl path/to/PipelineRL

``TrainingText`` of ``pipelinerl/rollouts.py`` and ``FileStreamWriter`` of ``pipelinerl/streams.py`` write the stream. Texts are
built as ``make_training_text`` of ``pipelinerl/async_llm.py`` builds them, and the lists and metadata as ``actor.py`` does; a
response that calls a tool is two texts of one rollout, one a turn.
"""

from __future__ import annotations

import os
import shutil
import sys
import typing
from abc import ABC, abstractmethod
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import orjson
import torch
from pydantic import BaseModel, Field

from formats.countdown_rows import END, SAMPLES, Response, decode, step
from formats.their_code import taken

OUT = SAMPLES / "formats" / "pipeline_rl" / "exp"
VERSIONS = {1: 0, 2: 64}
"""PipelineRL counts versions in samples trained on."""


def main() -> None:
    """Write all of it anew."""
    source = Path(sys.argv[1]) / "pipelinerl"
    types = {"List": list, "Dict": dict, "Optional": typing.Optional, "BaseModel": BaseModel, "Field": Field, "np": np}
    text_of = taken(source / "rollouts.py", "TrainingText", **types).TrainingText
    around = {"ABC": ABC, "abstractmethod": abstractmethod, "Any": Any, "Self": Self, "Path": Path, "Iterator": typing.Iterator}
    more = {"os": os, "orjson": orjson, "torch": torch, "BaseModel": BaseModel, "Literal": typing.Literal}
    names = ("StreamWriter", "SingleStreamSpec", "stream_dir", "stream_file", "FileStreamWriter")
    streams = taken(source / "streams.py", *names, **around, **more)
    shutil.rmtree(OUT, ignore_errors=True)
    with streams.FileStreamWriter(streams.SingleStreamSpec(exp_path=OUT, topic="actor")) as writer:
        for number in (1, 2):
            for group in (0, 1):
                rows = [row for row in step(number) if row.group == group]
                texts = [text for row in reversed(rows) for text in turns(text_of, row, number, 2 * number + group)]
                writer.write([text.model_dump() for text in texts])


def turns(text_of: Any, row: Response, number: int, group: int) -> list[Any]:
    """The texts of one rollout; ``actor.py`` shuffles a group's rollouts, here they stand in reverse."""
    changes = [place for place in range(1, len(row.mask)) if row.mask[place] != row.mask[place - 1]]
    ends = [place for place in (*changes, len(row.mask)) if row.mask[place - 1]]
    begins = [0, *(place for place in changes if row.mask[place])]
    found = []
    for index, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        text = _text(text_of, row, begin, end)
        text.metadata |= {"model_version": VERSIONS[number], "rollout_index": row.place, "step_index": index}
        text.group_id = f"rollout_scheduler_0_{group}"
        found.append(text)
    return found


def _text(text_of: Any, row: Response, begin: int, end: int) -> Any:
    prompt, output = [*row.prompt_ids, *row.ids[:begin]], row.ids[begin:end]
    call = SimpleNamespace(prompt=decode(prompt), output=decode(output))
    return text_of(
        text=call.prompt + call.output,
        n_predicted=len(call.output),
        input_ids=prompt + output,
        labels=[-100] * len(prompt) + output,
        logprobs=row.logprobs[begin:end],
        reward=row.reward,
        finished=output[-1] == END or row.tool,
        prompt_tokens=len(prompt),
        output_tokens=len(output),
    )


if __name__ == "__main__":
    main()
