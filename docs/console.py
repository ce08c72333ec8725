"""The manual's console blocks, run again: ``python docs/console.py`` writes what the program says today into the pages.

A block is ``console`` code whose first line starts with ``$ credit-inspector``; everything under it is the program's output.
Commands run beside copies of ``docs/examples`` and of the shipped run (without its checkpoints), so that nothing is left
behind. ``--check`` changes nothing and exits 1 where a page and the program differ; the tests run that.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent
RUN = DOCS.parent / "sample_runs" / "countdown"
WIDTH = "110"
_BLOCK = re.compile(r"^```console\n\$ (?P<command>credit-inspector [^\n]*)\n(?P<output>.*?)^```$", re.MULTILINE | re.DOTALL)


def renewed(page: str, folder: Path) -> str:
    """The page with every block's output as the program prints it now; commands run in ``folder``."""

    def run(block: re.Match[str]) -> str:
        return f"```console\n$ {block['command']}\n{output(block['command'], folder)}```"

    return _BLOCK.sub(run, page)


def output(command: str, folder: Path) -> str:
    """What a command prints, without the spaces that fill its lines up."""
    arguments = command.split()[1:]
    environment = {**os.environ, "COLUMNS": WIDTH, "NO_COLOR": "1", "TERM": "dumb"}
    code = "from credit_inspector.cli import main; main()"
    ran = subprocess.run(  # noqa: S603 - our own program, with arguments from our own pages
        [sys.executable, "-c", code, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if ran.returncode not in (0, 1):
        raise SystemExit(f"{command}: {ran.stderr.strip()}")
    return "".join(f"{line.rstrip()}\n" for line in ran.stdout.strip("\n").splitlines())


def main() -> int:
    """Renew all pages, or compare."""
    check, differ = "--check" in sys.argv, []
    for page in sorted(DOCS.glob("*.md")):
        before = page.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(DOCS / "examples", Path(folder) / "examples")
            shutil.copytree(RUN, Path(folder) / "countdown", ignore=shutil.ignore_patterns("checkpoints", "analysis"))
            after = renewed(before, Path(folder))
        if before != after:
            differ.append(page.name)
            if not check:
                page.write_text(after, encoding="utf-8")
    print(f"{'differ from the program' if check else 'renewed'}: {', '.join(differ) or 'none'}")
    return int(check and bool(differ))


if __name__ == "__main__":
    sys.exit(main())
