"""Figures as lines of JSON: ``credit.jsonl`` in the run's folder, one object a step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from credit_inspector.sinks import sink

NAME = "credit.jsonl"


class JsonLines:
    """Appends ``{"step": …, name: value, …}``; each line is complete on disk when ``scalars`` returns."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / NAME).open("a", encoding="utf-8")

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Append one line."""
        self._file.write(json.dumps({"step": step, **values}, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@sink("jsonl")
def open_jsonl(folder: Path) -> JsonLines:
    """Open ``credit.jsonl`` for appending."""
    return JsonLines(folder)
