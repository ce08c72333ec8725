"""Write ``sample_runs/formats/easy_r1`` with EasyR1's own loggers, read at commit b44b311.

    cd sample_runs/recipe && python -m formats.easy_r1 path/to/EasyR1

``FileGenerationLogger`` (``verl/utils/logger/gen_logger.py``) and ``FileLogger`` (``verl/utils/logger/logger.py``) write the
files, called in the order in which ``RayPPOTrainer._validate`` and its caller do. The responses have no special tokens, as EasyR1
decodes them.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import typing
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from formats.countdown_rows import END, SAMPLES, Response, decode, step
from formats.their_code import taken

OUT = SAMPLES / "formats" / "easy_r1" / "checkpoints"


def main() -> None:
    """Write all of it anew."""
    source = Path(sys.argv[1]) / "verl" / "utils"
    around = {"os": os, "json": json, "Any": Any, "ABC": ABC, "abstractmethod": abstractmethod, "dataclass": dataclass}
    types = {"List": list, "Tuple": tuple, "Optional": typing.Optional, "Union": typing.Union}
    names = ("GenerationLogger", "FileGenerationLogger")
    generations = taken(source / "logger" / "gen_logger.py", *names, **around, **types).FileGenerationLogger
    unflatten = taken(source / "py_functional.py", "unflatten_dict", **around, **types).unflatten_dict
    logger = taken(
        source / "logger" / "logger.py", "Logger", "FileLogger", unflatten_dict=unflatten, **around, **types
    ).FileLogger
    shutil.rmtree(OUT, ignore_errors=True)
    config = {"trainer": {"save_checkpoint_path": str(OUT), "val_generations_to_log": 8}}
    metrics, texts = logger(config), generations(config)
    (OUT / "experiment_config.json").unlink()  # it names a place of the machine that wrote it
    for number, at in ((1, 0), (2, 5)):
        rows = step(number)
        texts.log([_sample(row) for row in rows], at)
        metrics.log({"val/reward_score": sum(row.reward for row in rows) / len(rows)}, at)
    metrics.log({"actor/pg_loss": 0.01, "actor/grad_norm": 0.5}, 6)


def _sample(row: Response) -> tuple[str, str, str, float]:
    answer = row.prompt.rpartition(" ")[2].strip(".\n")
    return row.prompt, decode([token for token in row.ids if token != END]), answer, row.reward


if __name__ == "__main__":
    main()
