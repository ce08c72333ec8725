"""One path, one run: the best part of a folder, and one line where there is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from credit_inspector.errors import FormatError
from credit_inspector.rollout import Rollout, Run, Step
from credit_inspector.trainers import ReadOptions, readers
from credit_inspector.trainers.opening import open_run
from credit_inspector.trainers.record import write_header, write_step

VERL = json.dumps({"input": "q", "output": "a", "score": 1.0, "step": 1}) + "\n"


def record(folder: Path) -> Path:
    write_header(folder, trainer="own")
    write_step(folder, Step(1, (Rollout(sample_id="a", response="x"),)))
    return folder


def dump(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "1.jsonl").write_text(VERL)
    return folder


def test_record_before_text_dumps(tmp_path: Path) -> None:
    record(tmp_path / "record")
    dump(tmp_path / "dump")
    run = open_run(tmp_path)
    assert (run.trainer, run.path) == ("record", tmp_path / "record")
    assert "dump/ also holds a run that verl reads, with one step" in run.notes


def test_record_inside_a_trainers_folder(tmp_path: Path) -> None:
    dump(tmp_path)
    record(tmp_path / "credit")
    run = open_run(str(tmp_path))
    assert run.trainer == "record"
    assert "the folder itself also holds a run that verl reads, with one step" in run.notes


def test_dumps_inside_a_record_or_a_dump_are_said(tmp_path: Path) -> None:
    record(tmp_path / "run")
    dump(tmp_path / "run/dump")
    run = open_run(tmp_path / "run")
    assert (run.trainer, run.notes[-1]) == ("record", "dump/ also holds a run that verl reads, with one step")
    dump(tmp_path / "plain")
    dump(tmp_path / "plain/validation")
    (tmp_path / "plain/validation/2.jsonl").write_text(VERL)
    run = open_run(tmp_path / "plain")
    assert (run.path, run.notes[-1]) == (tmp_path / "plain", "validation/ also holds a run that verl reads, with 2 steps")


def test_unknown_tables_inside_a_folder(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/own.jsonl").write_text('{"response": "a", "reward": 1}\n')
    assert open_run(tmp_path).trainer == "mapped"


def test_only_part(tmp_path: Path) -> None:
    dump(tmp_path / "rollouts")
    (tmp_path / "logs").mkdir()
    assert open_run(tmp_path).trainer == "verl"


def test_two_runs_are_named(tmp_path: Path) -> None:
    record(tmp_path / "one")
    record(tmp_path / "two")
    with pytest.raises(FormatError, match=r"holds 2 runs: record at .*one and record at .*two; wanted one; open one"):
        open_run(tmp_path)


def test_two_readers_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dump(tmp_path)
    readers["verl"]
    members = dict(readers._members)

    def open_twin(path: Path, options: ReadOptions) -> Run | None:
        return Run(path=path, trainer="twin", steps=(), read=lambda step: Step(step, ()))

    monkeypatch.setattr(readers, "_members", {**members, "twin": open_twin})
    with pytest.raises(FormatError, match=r"holds 2 runs: twin at .* and verl at"):
        open_run(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "odd.jsonl",
            '{"loss": 1, "lr": 2}\n',
            r"has the columns loss, lr; wanted .*; say which column is which: --map",
        ),
        ("empty.jsonl", "", "is empty"),
        ("blank.jsonl", "\n\n", "no row that can be read"),
        ("notes.txt", "hello", r"no \.jsonl, \.json, \.csv or \.parquet file"),
    ],
)
def test_unknown_files(tmp_path: Path, name: str, content: str, words: str) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(FormatError, match=words) as caught:
        open_run(file)
    assert "\n" not in str(caught.value)


def test_unknown_folders(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="there is no"):
        open_run(tmp_path / "nowhere")
    with pytest.raises(FormatError, match="is empty"):
        open_run(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FormatError, match=r"holds config\.json; wanted a run of .*; a checkpoint goes to --policy"):
        open_run(tmp_path)


def test_mapping_that_a_format_does_not_use_is_said(tmp_path: Path) -> None:
    run = open_run(record(tmp_path), ReadOptions({"reward": "score"}))
    assert "the mapping is not used: this format has fixed columns" in run.notes


def test_opening_changes_nothing(tmp_path: Path) -> None:
    record(tmp_path / "record")
    dump(tmp_path / "dump")
    before = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in tmp_path.rglob("*") if file.is_file()}
    run = open_run(tmp_path)
    run.read(1)
    after = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in tmp_path.rglob("*") if file.is_file()}
    assert before == after


def test_a_run_some_folders_down_is_found_and_two_are_named(tmp_path: Path) -> None:
    deep = tmp_path / "logs/user/experiment/trial/rollouts"
    deep.mkdir(parents=True)
    dump(deep)
    assert open_run(tmp_path).path == deep
    (tmp_path / "logs/user/other/trial/rollouts").mkdir(parents=True)
    dump(tmp_path / "logs/user/other/trial/rollouts")
    with pytest.raises(FormatError, match=r"holds 2 runs: verl at .*experiment.* and verl at .*other"):
        open_run(tmp_path)
