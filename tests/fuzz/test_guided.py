"""Coverage-guided inputs for every reader, where atheris is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from credit_inspector.trainers import readers

RUNS = int(os.environ.get("CREDIT_INSPECTOR_FUZZ", "20000")) // 20


@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris is not installed")
@pytest.mark.parametrize("name", list(readers))
def test_inputs_that_reach_further(tmp_path: Path, name: str) -> None:
    script = Path(__file__).with_name("guided.py")
    words = [sys.executable, str(script), name, f"-atheris_runs={RUNS}", "-seed=1", "-max_len=100000", "-rss_limit_mb=4000"]
    same = {**os.environ, "PYTHONHASHSEED": "0"}  # with the seed, every run draws the same inputs
    done = subprocess.run(words, cwd=tmp_path, env=same, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, f"{done.stderr[-3000:]}\n{list(tmp_path.iterdir())}"
    assert f"Done {RUNS}" in done.stderr
