"""The command line as a user meets it: light, one line for what is wrong, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from credit_inspector.cli import app
from credit_inspector.store import Store
from places import SAMPLE

HOSTILE = "<img src=x onerror=alert(1)>"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from credit_inspector.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['credit-inspector', '--help']\n"
        "from credit_inspector.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print([m for m in ('torch', 'pandas', 'streamlit', 'transformers', 'pyarrow', 'duckdb', 'numpy') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "[]"


def test_scan_says_what_is_there_and_what_is_missing() -> None:
    found = run("scan", str(SAMPLE), str(SAMPLE / "trl"), str(SAMPLE / "checkpoints" / "step_000000"))
    assert found.returncode == 0, found.stderr
    assert "logprob/old" in found.stdout
    assert "trl-1.16.0/dapo (recorded)" in found.stdout
    assert "token ids (the text will be tokenised once)" in found.stdout
    assert "checkpoint (" in found.stdout
    assert json.loads(run("scan", "--json", str(SAMPLE)).stdout)[0]["what"].startswith("run")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["scan", "no/such/path"], "no/such/path"),
        (["analyze", "{junk}"], "junk.bin"),
        (["check", "{sample}", "--fail-on", "loud"], "wanted info, warning or error"),
        (["scan", "{sample}", "--map", "reward"], "wanted ours=theirs"),
        (["analyze", "{sample}", "--policy", "{empty}", "--out", "{empty}/out"], "empty"),
        (["app", "{junk}"], "junk.bin"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(tmp_path: Path, arguments: list[str], said: str) -> None:
    (tmp_path / "junk.bin").write_bytes(b"\x00\x01\x02 not a rollout")
    (tmp_path / "empty").mkdir()
    names = {"junk": str(tmp_path / "junk.bin"), "sample": str(SAMPLE), "empty": str(tmp_path / "empty")}
    found = run(*(argument.format(**names) for argument in arguments))
    assert found.returncode == 2
    assert len(found.stderr.strip().splitlines()) == 1
    assert said in found.stderr
    assert not (tmp_path / "empty" / "out").exists()


def test_check_prints_json_and_fails_on_demand(analysis: Store) -> None:
    found = run("check", str(analysis.folder), "--json")
    codes = {finding["code"] for finding in json.loads(found.stdout)}
    assert "filler-paid" in codes
    assert run("check", str(analysis.folder), "--fail-on", "warning").returncode == 1
    assert run("check", str(analysis.folder)).returncode == 0


def test_a_report_in_every_form(analysis: Store, tmp_path: Path) -> None:
    names = {kind: tmp_path / f"r.{kind}" for kind in ("html", "md", "json")}
    found = run("report", str(analysis.folder), *(part for kind, path in names.items() for part in (f"--{kind}", str(path))))
    assert found.returncode == 0, found.stderr
    assert "In right answers" in names["md"].read_text()
    assert "default-src 'none'" in names["html"].read_text()
    json.loads(names["json"].read_text(), parse_constant=lambda name: pytest.fail(f"bare {name}"))


def test_text_of_a_rollout_appears_as_text(tmp_path: Path) -> None:
    rows = [{"prompt": HOSTILE, "response": f"{HOSTILE} {i} </script>", "reward": i % 2, "step": 1} for i in range(4)]
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for kind in ("html", "md"):
        assert run("report", str(tmp_path / "r.jsonl"), f"--{kind}", str(tmp_path / f"r.{kind}")).returncode == 0
        assert "<img" not in (tmp_path / f"r.{kind}").read_text()


def test_the_light_core_works_without_torch(tmp_path: Path) -> None:
    """An import hook that knows no heavy package stands in for an environment without them."""
    out = tmp_path / "analysis"
    code = (
        "import importlib.util, sys\n"
        "heavy = ('torch', 'transformers', 'pandas', 'streamlit', 'plotly', 'captum')\n"
        "found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name.split('.')[0] in heavy else found(name, *a)\n"
        "class Light:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in heavy: raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Light())\n"
        "from credit_inspector.cli import main\nmain()"
    )

    def light(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)

    assert light("scan", str(SAMPLE)).returncode == 0
    done = light("analyze", str(SAMPLE), "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert light("check", str(out)).returncode == 0
    assert light("report", str(out), "--html", str(tmp_path / "r.html")).returncode == 0
    assert Store(out).read_step(1)[0].has("credit/coefficient")
    refused = light("app", str(out))
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert 'pip install "credit-inspector[app]"' in refused.stderr


def test_scan_tells_of_every_path_and_fails_for_the_one_that_cannot_be_read(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.txt"
    good.write_text('{"prompt": "q", "response": "a", "reward": 1}\n')
    bad.write_text("hello")
    result = CliRunner().invoke(app, ["scan", str(bad), str(good)])
    assert result.exit_code == 2
    assert "run, written by mapped" in result.output
    assert "bad.txt is no file of a known trainer" in " ".join(result.output.split())
    only = CliRunner().invoke(app, ["scan", "--json", str(good), str(bad)])
    assert only.exit_code == 2
    assert '"what": "run, written by mapped"' in only.output
