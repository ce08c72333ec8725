"""Write ``sample_runs/formats/areal`` with AReaL's own function, read at commit 4aef98d.

    cd sample_runs/recipe && python -m formats.areal path/to/AReaL

``WorkflowExecutor._dump_trajectory`` of ``areal/infra/workflow_executor.py`` writes the files from tensors laid out as
``workflow/rlvr.py`` lays them out: prompt and response joined, ``versions`` −1 at the prompt, one row a sample.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from formats.countdown_rows import SAMPLES, Response, decode, step
from formats.their_code import taken

OUT = SAMPLES / "formats" / "areal" / "trial0"


class File:
    """What ``aiofiles.open`` gives, without a thread."""

    def __init__(self, path: str, mode: str) -> None:
        self._file = Path(path).open(mode, encoding="utf-8")  # noqa: SIM115

    async def __aenter__(self) -> File:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._file.close()

    async def write(self, text: str) -> None:
        """Append."""
        self._file.write(text)


async def make_folder(path: str, exist_ok: bool) -> None:
    """As ``os.makedirs``."""
    os.makedirs(path, exist_ok=exist_ok)  # noqa: PTH103


def main() -> None:
    """Write all of it anew."""
    aiofiles = SimpleNamespace(open=File, os=SimpleNamespace(makedirs=make_folder))
    around = {"os": os, "json": json, "Any": Any, "aiofiles": aiofiles}
    source = Path(sys.argv[1]) / "areal" / "infra" / "workflow_executor.py"
    dump = taken(source, "WorkflowExecutor._dump_trajectory", **around)._dump_trajectory
    shutil.rmtree(OUT, ignore_errors=True)
    executor = SimpleNamespace(
        _get_dump_dir=lambda is_eval: str(OUT / ("eval-rollout" if is_eval else "rollout")),
        _get_tokenizer=lambda: SimpleNamespace(decode=lambda ids, skip_special_tokens: decode(ids)),
    )
    for number in (1, 2):
        rows = step(number)
        for group in (0, 1):
            members = [row for row in rows if row.group == group]
            write(dump, executor, members, task=2 * (number - 1) + group, version=number - 1, is_eval=False)
    write(dump, executor, step(1)[:1], task=900, version=1, is_eval=True)


def write(dump: Callable[..., Awaitable[Any]], executor: Any, rows: list[Response], **how: Any) -> None:
    """One task's trajectory of several samples, right-padded."""
    length = max(len(row.prompt_ids) + len(row.ids) for row in rows)
    tensors = {"input_ids": [], "loss_mask": [], "attention_mask": [], "versions": []}  # type: dict[str, list[list[int]]]
    for row in rows:
        prompt = len(row.prompt_ids)
        padding = [0] * (length - prompt - len(row.ids))
        tensors["input_ids"].append([*row.prompt_ids, *row.ids, *padding])
        tensors["loss_mask"].append([0] * prompt + row.mask + padding)
        tensors["attention_mask"].append([1] * (prompt + len(row.ids)) + padding)
        tensors["versions"].append([-1] * prompt + [how["version"]] * len(row.ids) + [-1] * len(padding))
    trajectory = {name: torch.tensor(values) for name, values in tensors.items()}
    trajectory["rewards"] = torch.tensor([row.reward for row in rows])
    done, reason = asyncio.run(_called(dump, executor, trajectory, how["task"], how["is_eval"]))
    assert done, reason


async def _called(dump: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    return await dump(*args)


if __name__ == "__main__":
    main()
