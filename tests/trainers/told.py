"""Files of JSON lines, and what a step says of its rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from credit_inspector.rollout import Rollout, Step

Json = dict[str, Any]


def lines(file: Path) -> list[Json]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def write(file: Path, *rows: Json) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return file


def by_name(step: Step) -> dict[str, Rollout]:
    return {one.sample_id: one for one in step.rollouts}


def kinds(step: Step) -> set[str]:
    return {problem.kind for problem in step.problems}


def numbers(values: Any) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]
