"""The manual shows what the program says: its console blocks and its Python are run."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys

import pytest

from credit_inspector import presets
from credit_inspector.checkpoints import checkpoint_formats
from credit_inspector.trainers import readers
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


def test_every_format_stands_in_the_manual_once_with_its_sample() -> None:
    page = (ROOT / "docs/formats.md").read_text("utf-8")
    rollouts, checkpoints = page.partition("## Checkpoints")[::2]
    for name in readers:
        assert f"(`{name}`)" in rollouts, name
    for name in checkpoint_formats:
        assert f"(`{name}`)" in checkpoints, name
    links = set(re.findall(r"\]\(\.\./([^)]+)\)", page))
    assert {f"sample_runs/formats/{name}/README.md" for name in readers} <= links
    assert all((ROOT / link).exists() for link in links)


def test_the_changelog_counts_readers_as_there_are() -> None:
    said = re.search(r"Readers for (\d+) formats", (ROOT / "CHANGELOG.md").read_text("utf-8"))
    assert said is not None
    assert int(said[1]) == len(readers)
