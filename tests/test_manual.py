"""The manual shows what the program says: its console blocks and its Python are run."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys

import pytest

from credit_inspector import presets
from places import ROOT

PAGES = sorted((ROOT / "docs").glob("*.md"))


def test_the_console_blocks_are_the_programs_output() -> None:
    ran = subprocess.run([sys.executable, ROOT / "docs" / "console.py", "--check"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{ran.stdout}{ran.stderr}: run make manual"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_of_a_page_gives_what_stands_under_it(page: os.PathLike[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert doctest.testfile(str(page), module_relative=False).failed == 0


def test_the_readme_counts_presets_as_there_are() -> None:
    found = re.search(r"one of (\d+) presets", (ROOT / "README.md").read_text())
    assert found
    assert int(found[1]) == len(presets())
