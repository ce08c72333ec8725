"""Adding a format is one file and its sample: a copy of the package gets one more reader, and nothing else is edited."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from places import ROOT

READER = '''
"""A home-grown trainer that writes ``*.homegrown``: a line for each response, ids and log-probs with bars between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from credit_inspector.rollout import Run
from credit_inspector.trainers import ReadOptions, reader
from credit_inspector.trainers._rollouts import FIELDS, Columns, read_step
from credit_inspector.trainers._rows import Row

COLUMNS = Columns(mapping={name: name for name in (*FIELDS, "logprob/old")})


@reader("homegrown")
def open_homegrown(path: Path, options: ReadOptions) -> Run | None:
    """Open one file."""
    if path.suffix != ".homegrown" or not path.is_file():
        return None
    return Run(path=path, trainer="homegrown", steps=(0,), read=lambda step: read_step(step, rows(path), COLUMNS),
               columns=("logprob/old",))


def rows(path: Path) -> Iterator[Row]:
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        prompt, ids, logprobs, reward = line.split("|")
        yield Row(number, {"prompt": prompt, "response_ids": [int(i) for i in ids.split()],
                           "logprob/old": [float(x) for x in logprobs.split()], "reward": reward})
'''
SAMPLE = "q|5 6|-0.5 -0.25|1\nq|7|-0.125|0\n"


def test_one_file_and_its_sample_are_enough(tmp_path: Path) -> None:
    package = shutil.copytree(
        ROOT / "credit_inspector", tmp_path / "credit_inspector", ignore=shutil.ignore_patterns("__pycache__")
    )
    (package / "trainers" / "homegrown.py").write_text(READER)
    sample = tmp_path / "run.homegrown"
    sample.write_text(SAMPLE)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"}

    def run(*words: str) -> str:
        code = "from credit_inspector.cli import main; main()"
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    (seen,) = json.loads(run("scan", "--json", str(sample)))
    assert seen["what"] == "run, written by homegrown"
    assert seen["recorded"] == "logprob/old"
    assert "2 responses, 2 with a reward, 2 with token ids" in seen["first step"]
    assert "homegrown" in run("plugins")
    assert "Tests of the data" in run("check", str(sample))
