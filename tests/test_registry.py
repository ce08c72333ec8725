"""Open folders: look-up, suggestions, no two of one name; and dropping a file in is enough."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from credit_inspector.errors import UsageError
from credit_inspector.metrics import metrics
from credit_inspector.registry import Registry


def test_a_wrong_name_gets_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean ratio"):
        metrics["ratoi"]


def test_two_of_one_name_are_refused() -> None:
    registry: Registry[int] = Registry("numbers", "credit_inspector.metrics")
    registry.add("one", 1)
    with pytest.raises(UsageError, match="two numbers are named 'one'"):
        registry.add("one", 2)


def test_one_more_file_is_one_more_metric(tmp_path: Path) -> None:
    package = tmp_path / "extra.py"
    package.write_text(
        "from credit_inspector.metrics import metric\n"
        "@metric('planted', label='planted', needs=('logprob/policy',), unit='nats', scope='token', family='policy')\n"
        "def planted(policy):\n    '''Minus the log-probability.'''\n    return -policy\n"
    )
    info = tmp_path / "extra-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: extra\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[credit_inspector.metrics]\nplanted = extra\n")
    code = "from credit_inspector.metrics import metrics; print('planted' in metrics, metrics['planted'].doc)"
    found = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "True Minus the log-probability."
