"""An analysis that is killed at any moment goes on where it was and ends with the same files, byte for byte."""

from __future__ import annotations

import json
import os
import random
import resource
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from credit_inspector.store import Store
from places import SAMPLE

STEPS = (1, 2, 3)
KILLS, TRIES = 20, 12

# Imports once and forks for every command: [run, out, scored, kill after seconds, kill at which move of a file, at which side].
WARM = """
import json, os, signal, sys, time
from pathlib import Path
import pandas, pyarrow.parquet, tokenizers
from credit_inspector import catalogue, cli, pipeline
catalogue.catalogue()
if sys.argv[1:] == ["scored"]:
    import torch, transformers.models.auto.modeling_auto, transformers.models.llama.modeling_llama
    import credit_inspector.scoring

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def trap(number, side):
    left, move, write = [number], Path.replace, pyarrow.parquet.write_table
    def moved(self, target):
        left[0] -= 1
        if left[0] == 0 and side == "before":
            die()
        answer = move(self, target)
        if left[0] == 0 and side == "after":
            die()
        return answer
    def written(table, where, **options):
        write(table, where, **options)
        if left[0] == 1 and side == "within":
            os.truncate(where, os.path.getsize(where) // 2)
            die()
    Path.replace, pyarrow.parquet.write_table = moved, written

def work(run, out, scored):
    if scored:
        wanted = pipeline.Options(steps=(1, 2), columns=("logprob/recomputed", "credit/realised"), device="cpu")
        pipeline.analyze(Path(run), Path(out), wanted)
        return 0
    sys.argv = ["credit-inspector", "analyze", run, "--out", out]
    try:
        cli.main()
    except SystemExit as end:
        return end.code or 0

for line in sys.stdin:
    run, out, scored, seconds, number, side = json.loads(line)
    begin = time.monotonic()
    child = os.fork()
    if not child:
        os.dup2(2, 1)
        code = 9
        try:
            trap(number, side)
            code = work(run, out, scored)
        finally:
            os._exit(code)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps([status, time.monotonic() - begin]), flush=True)
"""


class Warm:
    """A process with everything imported, which runs analyses in forks of itself and kills them when told."""

    def __init__(self, *flags: str) -> None:
        command = [sys.executable, "-c", WARM, *flags]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "CI": "1"}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=environment)

    def begin(
        self, run: Path, out: Path, *, scored: bool = False, seconds: float | None = None, number: int = 0, side: str = ""
    ) -> None:
        self._process.stdin.write(json.dumps([str(run), str(out), scored, seconds, number, side]) + "\n")
        self._process.stdin.flush()

    @property
    def busy(self) -> bool:
        return not select.select([self._process.stdout], [], [], 0.05)[0]

    def end(self) -> tuple[int, float]:
        status, seconds = json.loads(self._process.stdout.readline())
        return status, seconds

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(timeout=60)


@dataclass(frozen=True)
class Whole:
    """A run, and its analysis that nobody stopped."""

    run: Path
    files: dict[str, bytes]
    seconds: float
    seen: set[tuple[int, ...]]
    """The steps that a reader found while it went on."""


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    process = Warm()
    yield process
    process.close()


@pytest.fixture(scope="module")
def whole(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("whole")
    run, seen = copy_of_the_run(folder / "run"), set()
    warm.begin(run, folder / "out")
    while warm.busy:
        store = Store(folder / "out")
        seen.add(store.steps)
        assert all(store.read_step(step)[0].n_tokens for step in store.steps)
    status, seconds = warm.end()
    assert status == 0
    return Whole(run, files(folder / "out"), seconds, seen)


def copy_of_the_run(folder: Path, checkpoints: bool = False) -> Path:
    (folder / "steps").mkdir(parents=True)
    shutil.copy(SAMPLE / "record.json", folder)
    shutil.copytree(SAMPLE / "tokenizer", folder / "tokenizer")
    for step in STEPS:
        shutil.copy(SAMPLE / "steps" / f"step_{step:06d}.parquet", folder / "steps")
    if checkpoints:
        for name in ("step_000000", "step_000120"):
            shutil.copytree(SAMPLE / "checkpoints" / name, folder / "checkpoints" / name)
    return folder


def files(folder: Path) -> dict[str, bytes]:
    """Every file of an analysis by name, the lock aside."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def differing(one: dict[str, bytes], other: dict[str, bytes]) -> list[str]:
    return [name for name in sorted(one | other) if one.get(name) != other.get(name)]


def content(folder: Path, step: int) -> object:
    """Everything in a step, whatever the order of its columns: values, origins, notes, problems, responses."""
    stored = pq.read_table(folder / "steps" / f"step_{step:06d}.parquet")
    about = json.loads(stored.schema.metadata[b"credit_inspector"])
    names = sorted(stored.column_names)
    return about, [(name, str(stored.schema.field(name).type), stored[name].to_pylist()) for name in names]


def check_what_is_there(out: Path, expected: dict[str, bytes]) -> None:
    """Between the kill and the resuming: what has a final name is whole and right."""
    store = Store(out)
    for step in store.steps:
        store.read_step(step)
    there = {name: data for name, data in files(out).items() if not name.endswith(".tmp")} if out.exists() else {}
    assert not [name for name, data in there.items() if data != expected[name]]


def test_a_reader_sees_the_steps_come(whole: Whole) -> None:
    assert set(whole.seen) <= {STEPS[:n] for n in range(len(STEPS) + 1)}
    assert {name for name in whole.files if name.startswith("steps/")} == {f"steps/step_{n:06d}.parquet" for n in STEPS}


def test_killed_at_random_moments_and_resumed(warm: Warm, whole: Whole, tmp_path: Path) -> None:
    """Twenty kills in four analyses: of each five, four while it makes steps and one anywhere up to its end."""
    chance, killed, reached = random.Random(5), 0, set()
    for trial in range(TRIES):
        out = tmp_path / str(trial)
        for part in (0.25, 0.25, 0.25, 0.25, 1.0):
            warm.begin(whole.run, out, seconds=chance.uniform(0, part * whole.seconds))
            status, _ = warm.end()
            assert status in {0, -9}
            killed += status == -9
            reached.add(Store(out).steps)
            check_what_is_there(out, whole.files)
        warm.begin(whole.run, out)
        assert warm.end()[0] == 0
        assert differing(files(out), whole.files) == []
        if killed >= KILLS:
            break
    assert killed >= KILLS
    assert len(reached) > 1, "every kill met the same stage: the moments were not spread"


def test_killed_at_every_move_of_a_file(warm: Warm, whole: Whole, tmp_path: Path) -> None:
    """Tokenizer, settings, each step, findings: killed before the move, after it, and with half a file written."""
    out = tmp_path / "out"
    moments = [(1, "before"), (1, "after"), (2, "before"), (2, "after")]
    for _ in STEPS:
        moments += [(3, "within"), (3, "before"), (3, "after")]
    moments += [(3, "before"), (3, "after")]
    for number, side in moments:
        warm.begin(whole.run, out, number=number, side=side)
        assert warm.end()[0] == -9, (number, side)
        if side != "after":
            assert list(out.rglob("*.tmp")), "the kill came too early to leave anything"
        check_what_is_there(out, whole.files)
    warm.begin(whole.run, out)
    assert warm.end()[0] == 0
    assert differing(files(out), whole.files) == []


def test_killed_between_scored_steps_and_resumed(tmp_path: Path) -> None:
    """With models: the second step is the same whether the first was scored just before it or in another process.

    Its batch is the first step's, so that an unstopped analysis takes columns over which a resumed one computes again. Only
    the order in which the columns stand in the file depends on that.
    """
    pytest.importorskip("torch")
    run, process = copy_of_the_run(tmp_path / "run", checkpoints=True), Warm("scored")
    try:
        process.begin(run, tmp_path / "whole", scored=True)
        assert process.end()[0] == 0
        process.begin(run, tmp_path / "out", scored=True, number=4, side="before")
        assert process.end()[0] == -9
        assert Store(tmp_path / "out").steps == (1,)
        process.begin(run, tmp_path / "out", scored=True)
        assert process.end()[0] == 0
    finally:
        process.close()
    assert Store(tmp_path / "out").read_step(2)[0].has("credit/realised")
    for step in (1, 2):
        assert content(tmp_path / "out", step) == content(tmp_path / "whole", step)
    assert {"steps/step_000002.parquet"} >= set(differing(files(tmp_path / "out"), files(tmp_path / "whole")))


def command_line(*arguments: str, largest_file: int | None = None) -> subprocess.CompletedProcess[str]:
    """The command line, where no file can grow beyond ``largest_file`` bytes: the system then refuses as a full disk does."""

    def limit() -> None:
        if largest_file:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))

    command = [sys.executable, "-c", "from credit_inspector.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limit)


def test_a_full_disk_is_one_line_and_the_store_still_opens(warm: Warm, whole: Whole, tmp_path: Path) -> None:
    out = tmp_path / "out"
    sizes = {name: len(data) for name, data in whole.files.items()}
    first, second = (sizes[f"steps/step_{n:06d}.parquet"] for n in STEPS[:2])
    room = (max(first, sizes["tokenizer.json"]) + second) // 2
    assert max(first, sizes["tokenizer.json"]) < room < second
    found = command_line("analyze", str(whole.run), "--out", str(out), largest_file=room)
    assert found.returncode == 2
    (line,) = [line for line in found.stderr.splitlines() if not line.startswith("step ")]
    assert "step_000002.parquet could not be written: File too large; make room" in line
    assert found.stdout == ""
    assert Store(out).steps == STEPS[:1]
    assert not list(out.rglob("*.tmp"))
    check_what_is_there(out, whole.files)
    warm.begin(whole.run, out)
    assert warm.end()[0] == 0
    assert differing(files(out), whole.files) == []


def test_a_second_analysis_of_the_folder_is_refused_in_one_line(whole: Whole, tmp_path: Path) -> None:
    with Store(tmp_path / "out").writing():
        found = command_line("analyze", str(whole.run), "--out", str(tmp_path / "out"))
    assert found.returncode == 2
    assert found.stdout == ""
    (line,) = found.stderr.splitlines()
    assert "another analysis is writing to" in line
    assert files(tmp_path / "out") == {}
