"""The law of readers, run on every one: it knows its own sample and no other does, arrays align, twice is the same.

A new reader puts its sample into ``sample_runs/formats/<its name>/``, beside a README that says who wrote it. The files written
below are shapes that the samples do not have.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from credit_inspector.rollout import Rollout, Run, Step
from credit_inspector.table import TokenTable
from credit_inspector.trainers import ReadOptions, readers
from credit_inspector.trainers.opening import open_run
from credit_inspector.trainers.record import write_header, write_jsonl, write_step
from places import FORMATS, samples


def lines(file: Path, *rows: dict[str, Any]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return file


def steps() -> list[Step]:
    ids = np.array([3, 4, 2], np.int32)
    values = {"logprob/old": np.array([-0.5, np.nan, -0.25], np.float32)}
    mask = np.array([True, False, True])
    rows = [
        Rollout(sample_id=name, group_id="g", group_source="given", prompt="q", response="ab", reward=reward,
                response_ids=ids, prompt_ids=ids[:1], loss_mask=mask, columns=values)
        for name, reward in (("a", 1.0), ("b", 0.0))
    ]  # fmt: skip
    return [Step(number, tuple(rows)) for number in (1, 2)]


def record_folder(folder: Path) -> Path:
    write_header(folder, trainer="own")
    for step in steps():
        write_step(folder, step)
    return folder


def record_lines(folder: Path) -> Path:
    return write_jsonl(folder / "run.jsonl", steps())


def record_step(folder: Path) -> Path:
    return write_step(folder, steps()[0])


def trl_folder(folder: Path) -> Path:
    (folder / "completions").mkdir()
    for step in (1, 2):
        columns = {"step": [step] * 4, "prompt": ["p", "p", "q", "q"], "completion": [f"{step}{i}" for i in range(4)]}
        table = pa.table({**columns, "right": [1.0, 0.0, None, 0.0], "advantage": [0.7, -0.7, 0.0, 0.0]})
        pq.write_table(table, folder / f"completions/completions_{step:05d}.parquet")
    return folder


def trl_file(folder: Path) -> Path:
    return trl_folder(folder) / "completions/completions_00001.parquet"


def verl_v0(folder: Path) -> Path:
    row = {"input": "q", "output": "a", "gts": "4", "score": 1.0}
    for step in (1, 2):
        lines(folder / f"{step}.jsonl", {**row, "step": step}, {**row, "step": step, "score": float("nan")})
    return folder


def verl_v1(folder: Path) -> Path:
    row = {"input": "q", "output": "a", "score": 1.0, "step": 7}
    return lines(folder / "7.jsonl", {**row, "uid": "x_0_0"}, {**row, "uid": "x_1_0"})


def mapped_lines(folder: Path) -> Path:
    row = {"question": "q", "answer_text": "a", "completion": "b", "completion_ids": [1, 2], "logprobs": [-0.5, -0.5]}
    return lines(folder / "own.jsonl", {**row, "score": 1}, {**row, "score": None})


def mapped_csv(folder: Path) -> Path:
    file = folder / "own.csv"
    file.write_text("prompt,response,reward\nq,a,1\nq,b,0\n")
    return file


def shipped(path: Path) -> Callable[[Path], Path]:
    """A shipped sample, copied so that a reader which wrote into its source would be seen."""

    def copy(folder: Path) -> Path:
        return Path(shutil.copytree(path, folder / path.name) if path.is_dir() else shutil.copy(path, folder))

    copy.__name__ = path.name
    return copy


SAMPLES: dict[str, list[Callable[[Path], Path]]] = {
    "record": [record_folder, record_lines, record_step],
    "trl": [trl_folder, trl_file],
    "verl": [verl_v0, verl_v1],
    "mapped": [mapped_lines, mapped_csv],
}
EVERY: list[tuple[str, Callable[[Path], Path]]] = [
    *((name, write) for name, writers in SAMPLES.items() for write in writers),
    *((name, shipped(path)) for name in readers for path in samples(name)),
]


@pytest.mark.parametrize("name", list(readers))
def test_every_reader_has_a_sample_that_says_who_wrote_it(name: str) -> None:
    assert samples(name)
    said = (FORMATS / name / "README.md").read_text("utf-8")
    assert "own code" in said or "to the letter" in said


def test_every_sample_has_a_reader() -> None:
    assert {folder.name for folder in FORMATS.iterdir() if folder.is_dir()} == set(readers)


@pytest.mark.parametrize(("name", "write"), EVERY)
def test_recognises_its_own_and_no_other_does(tmp_path: Path, name: str, write: Callable[[Path], Path]) -> None:
    path = write(tmp_path)
    answers = {other: readers[other](path, ReadOptions()) for other in readers}
    assert [other for other, run in answers.items() if run is not None] == [name]
    run = open_run(path)
    assert run.trainer == name
    assert run.steps == tuple(sorted(run.steps))
    assert run.steps


@pytest.mark.parametrize(("name", "write"), EVERY)
def test_arrays_align(tmp_path: Path, name: str, write: Callable[[Path], Path]) -> None:
    run = open_run(write(tmp_path))
    for number in run.steps:
        step = run.read(number)
        assert step.number == number
        assert len({one.sample_id for one in step.rollouts}) == len(step.rollouts) > 0
        table = TokenTable.from_rollouts(number, step.rollouts)
        assert set(table.columns) <= set(run.columns)
        for one in step.rollouts:
            assert one.reward is None or np.isfinite(one.reward)
            assert (one.group_id is None) == (one.group_source == "none")
            assert (one.response is not None) or (one.response_ids is not None)


@pytest.mark.parametrize(("name", "write"), EVERY)
def test_the_source_is_never_modified(tmp_path: Path, name: str, write: Callable[[Path], Path]) -> None:
    path = write(tmp_path)
    before = content(tmp_path)
    run = readers[name](path, ReadOptions())
    assert run is not None
    for number in run.steps:
        run.read(number)
    assert content(tmp_path) == before


def content(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize(("name", "write"), EVERY)
def test_reading_twice_gives_the_same(tmp_path: Path, name: str, write: Callable[[Path], Path]) -> None:
    path = write(tmp_path)
    first, second = open_run(path), open_run(path)
    assert (first.notes, first.steps, first.columns) == (second.notes, second.steps, second.columns)
    for number in first.steps:
        same_step(first.read(number), first.read(number))
        same_step(first.read(number), second.read(number))


def same_step(one: Step, other: Step) -> None:
    assert one.problems == other.problems
    for row, twin in zip(one.rollouts, other.rollouts, strict=True):
        for name in (field.name for field in fields(Rollout)):
            np.testing.assert_equal(getattr(row, name), getattr(twin, name))


def test_nothing_claims_nothing(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("hello")
    for path in (tmp_path, tmp_path / "README.md", tmp_path / "nowhere"):
        found: list[Run | None] = [readers[name](path, ReadOptions()) for name in readers]
        assert found == [None] * len(found)
