"""The command line: parse, call the pipeline, print. Heavy imports stand inside the commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from credit_inspector.panel import Finding
    from credit_inspector.pipeline import Progress
    from credit_inspector.store import Store

app = typer.Typer(
    name="credit-inspector",
    help="See which tokens your RL run paid, which earned it, and which did not.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, a rollout file, or an analysis folder.")]
Mapping = Annotated[list[str] | None, typer.Option("--map", metavar="OURS=THEIRS", help="Which column is what.")]
Out = Annotated[Path | None, typer.Option(help="Folder of the analysis; RUN/analysis when not given.")]
Policy = Annotated[Path | None, typer.Option(help="Checkpoint that sampled and was trained.")]
Old = Annotated[Path | None, typer.Option(help="Checkpoint that importance ratios refer to.")]
Ref = Annotated[Path | None, typer.Option(help="Reference checkpoint of the KL term.")]
After = Annotated[Path | None, typer.Option(help="A later checkpoint, for realised credit.")]
Base = Annotated[Path | None, typer.Option(help="Base model of an adapter (LoRA), or config folder of bare shards.")]
Tokenizer = Annotated[Path | None, typer.Option(help="Tokenizer folder, where the run has none.")]
Rule = Annotated[str | None, typer.Option("--algorithm", help="Preset such as trl-1.16.0/dapo, where the run names none.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Steps = Annotated[list[int] | None, typer.Option("--step", help="Only this optimizer step; may be repeated.")]

EXIT_FINDINGS, EXIT_USAGE = 1, 2


def main() -> None:
    """Run the command line; errors made on purpose are one line and exit code 2."""
    from credit_inspector.errors import CreditInspectorError

    try:
        app()
    except CreditInspectorError as error:
        _say(error)
        sys.exit(EXIT_USAGE)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(error: Exception) -> None:
    err.print(f"[bold]credit-inspector:[/bold] {escape(str(error))}", soft_wrap=True)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
    allow_type: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A type that pickles may hold because you trust it; may be repeated."),
    ] = None,
) -> None:
    if allow_type:
        from credit_inspector.pickles import ALLOWED_TYPES

        os.environ[ALLOWED_TYPES] = ",".join(allow_type)
    if version:
        from credit_inspector import __version__

        out.print(__version__)
        raise typer.Exit


# ── verbs ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


@app.command()
def scan(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH…", help="Runs, files or checkpoints.")],
    mapping: Mapping = None,
    base: Base = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Recognise a run, a file or a checkpoint: what is there, what is missing, which mapping would be used."""
    from credit_inspector.errors import CreditInspectorError
    from credit_inspector.scanning import scan as look

    seen, columns = [], _mapping(mapping)
    for path in paths:
        try:
            seen.append(look(path, columns, base))
        except CreditInspectorError as error:  # the other paths are told of all the same
            _say(error)
            continue
        if not as_json:
            out.print(f"[bold]{escape(str(path))}[/bold]  {escape(seen[-1].what)}", soft_wrap=True)
            for name, value in seen[-1].lines:
                out.print(f"  [dim]{name:<12}[/dim] {escape(value)}", soft_wrap=True)
    if as_json:
        typer.echo(json.dumps([one.to_json() for one in seen], indent=1, ensure_ascii=False))
    if len(seen) < len(paths):
        raise typer.Exit(EXIT_USAGE)


@app.command()
def analyze(  # noqa: PLR0917 - typer reads the options from the signature
    run: RunPath,
    folder: Annotated[Path | None, typer.Option("--out", help="Folder of the analysis; RUN/analysis when not given.")] = None,
    policy: Policy = None,
    old: Old = None,
    ref: Ref = None,
    after: After = None,
    base: Base = None,
    tokenizer: Tokenizer = None,
    algorithm: Rule = None,
    device: Device = "auto",
    steps: Steps = None,
    mapping: Mapping = None,
) -> None:
    """Read, score, credit, check and store; a stopped analysis goes on where it was."""
    from credit_inspector import pipeline

    checkpoints = {"policy": policy, "old": old, "ref": ref, "after": after}
    options = pipeline.Options(
        checkpoints={role: path for role, path in checkpoints.items() if path},
        base=base,
        algorithm=algorithm,
        tokenizer=tokenizer,
        steps=tuple(steps or ()),
        device=device,
        mapping=_mapping(mapping),
    )
    target = folder or pipeline.default_folder(run)
    with _progress() as progress:
        store = pipeline.analyze(run, target, options, progress)
    _print_findings(store.findings())
    err.print(
        f"analysis in {escape(str(target))}; look at it with: credit-inspector app {escape(str(target))}",
        soft_wrap=True,
    )


@app.command()
def check(
    run: RunPath,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    fail_on: Annotated[str | None, typer.Option(help="info, warning or error: exit 1 when a finding is at or above it.")] = None,
) -> None:
    """Test the data and print the findings; exit 1 when one is at or above --fail-on."""
    from credit_inspector import pipeline
    from credit_inspector.checks import run_checks
    from credit_inspector.store import finding_to_json

    bar = _severity(fail_on)
    with _progress() as progress:
        store = pipeline.open_store(run, progress)
    findings = run_checks(store)
    if as_json:
        typer.echo(json.dumps([finding_to_json(finding) for finding in findings], indent=1, ensure_ascii=False))
    else:
        _print_findings(findings)
        _print_basis(store, findings)
    if bar is not None and any(finding.severity >= bar for finding in findings):
        raise typer.Exit(EXIT_FINDINGS)


@app.command()
def report(
    run: RunPath,
    html: Annotated[Path | None, typer.Option(help="One self-contained HTML file.")] = None,
    md: Annotated[Path | None, typer.Option(help="Markdown, for a pull request.")] = None,
    as_json: Annotated[Path | None, typer.Option("--json", help="JSON, for programs.")] = None,
) -> None:
    """Write a document; without a file named, print it."""
    from credit_inspector import documents, pipeline

    with _progress() as progress:
        store = pipeline.open_store(run, progress)
    written = {"html": html, "markdown": md, "json": as_json}
    for kind, path in written.items():
        if path:
            documents.write(store, kind, path)
            err.print(f"wrote {escape(str(path))}", soft_wrap=True)
    if not any(written.values()):
        documents.show(store, out)


@app.command(name="what-if")
def what_if(  # noqa: PLR0917 - typer reads the options from the signature
    run: RunPath,
    sets: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A change; may be repeated.")] = None,
    algorithm: Rule = None,
    steps: Steps = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    top: Annotated[int, typer.Option(min=1, help="How many of the most changed responses and tokens are shown.")] = 10,
    show_keys: Annotated[bool, typer.Option("--list", help="Print what can be set, with its current value.")] = False,
) -> None:
    """Credit before and after another rule, reward, mask or weight: per token, per group and in sum."""
    from credit_inspector import preview
    from credit_inspector.reports import json as report_json
    from credit_inspector.reports import terminal
    from credit_inspector.whatif.panels import panels

    changes = _pairs("--set", sets, "KEY=VALUE, such as length_penalty=0.001")
    with _progress() as progress:
        if show_keys:
            shown = preview.listing(run, progress, algorithm)
        else:
            found = preview.what_if(
                run, changes, algorithm=algorithm, steps=steps or (), tokens=False, top=top, progress=progress
            )
            shown = panels(found, top)
    if not as_json:
        terminal.show(shown, out)
    elif show_keys:
        typer.echo(report_json.render("What can be set", shown), nl=False)
    else:
        typer.echo(json.dumps(found.to_json(top), indent=1, ensure_ascii=False, allow_nan=False))


@app.command(name="app")
def serve(
    run: RunPath,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1.")] = 8501,
) -> None:
    """Open the app on 127.0.0.1; it reads the analysis and nothing outside it."""
    from credit_inspector import pipeline

    _need_app()
    with _progress() as progress:
        store = pipeline.open_store(run, progress)
    sys.exit(_serve(store.folder, port))


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("--out", help="Folder for the analysis and the report.")] = Path(
        "credit-inspector-demo"
    ),
    no_app: Annotated[bool, typer.Option("--no-app", help="Stop before the app is served.")] = False,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1.")] = 8501,
) -> None:
    """Analyse the shipped run, print the findings, write report.html and serve the app."""
    from credit_inspector import documents, pipeline

    if not no_app:
        _need_app()
    with _progress() as progress:
        store = pipeline.analyze(_shipped_run(), folder / "analysis", pipeline.Options(), progress)
    _print_findings(store.findings())
    documents.write(store, "html", folder / "report.html")
    err.print(f"wrote {escape(str(folder / 'report.html'))}", soft_wrap=True)
    if not no_app:
        sys.exit(_serve(store.folder, port))


@app.command()
def plugins() -> None:
    """List what is installed of every kind: formats, columns, rules, checks, views."""
    from credit_inspector.catalogue import catalogue

    for kind, names in catalogue().items():
        out.print(f"[bold]{kind}[/bold]  {escape(', '.join(names))}", soft_wrap=True)


# ── in common ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _mapping(pairs: list[str] | None) -> dict[str, str]:
    return dict(_pairs("--map", pairs, "ours=theirs, such as reward=score"))


def _pairs(option: str, pairs: list[str] | None, wanted: str) -> list[tuple[str, str]]:
    from credit_inspector.errors import UsageError

    split = [pair.partition("=") for pair in pairs or []]
    if bad := [left for left, sign, right in split if not (left and sign and right)]:
        raise UsageError(f"{option} {bad[0]!r} is not a pair", wanted=wanted)
    return [(left, right) for left, _, right in split]


def _severity(name: str | None) -> int | None:
    from credit_inspector.errors import UsageError
    from credit_inspector.panel import Severity

    if name is None:
        return None
    if name.upper() not in Severity.__members__:
        raise UsageError(f"--fail-on {name!r} is no severity", wanted="info, warning or error")
    return Severity[name.upper()]


def _print_findings(findings: list[Finding]) -> None:
    from credit_inspector.panel import Findings, Panel
    from credit_inspector.reports import terminal

    if findings:
        terminal.show([Panel("Findings", (Findings(tuple(findings)),))], out)
    else:
        out.print("no findings")


def _print_basis(store: Store, findings: list[Finding]) -> None:
    from credit_inspector.panel import Panel
    from credit_inspector.reports import terminal
    from credit_inspector.views.integrity import basis

    terminal.show([Panel("Integrity", tuple(basis(store, findings)))], out)


@contextmanager
def _progress() -> Iterator[Progress]:
    """A progress line on a terminal; a line a step in files and in CI."""
    if err.is_terminal and not os.environ.get("CI"):
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        with Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeRemainingColumn(),
            console=err,
            transient=True,
        ) as bar:
            task = bar.add_task("", total=1)
            yield lambda what, done, of: bar.update(task, description=what, completed=done, total=of)
        return
    yield _one_line_a_step


def _one_line_a_step(what: str, done: int, of: int) -> None:
    if what.endswith("done"):
        err.print(f"{escape(what)} ({done} of {of})", soft_wrap=True)


def _need_app() -> None:
    from credit_inspector.errors import MissingExtra

    for package in ("streamlit", "plotly", "pandas"):
        if find_spec(package) is None:
            raise MissingExtra(package, "app")


def _shipped_run() -> Path:
    """The sample run: inside the installed package, or beside the package in a source tree."""
    from credit_inspector.errors import FormatError

    here = Path(__file__).parent
    for folder in (here / "_sample_runs" / "countdown", here.parent / "sample_runs" / "countdown"):
        if (folder / "record.json").is_file():
            return folder
    raise FormatError("the sample run is not in this installation", do="make sample-run")


def _app_script() -> Path:
    here = Path(__file__).parent
    installed, beside = here / "_app" / "main.py", here.parent / "app" / "main.py"
    return installed if installed.is_file() else beside


def _serve(folder: Path, port: int) -> int:
    """Run Streamlit on loopback, without statistics, file watching or uploads."""
    flags = {
        "server.address": "127.0.0.1",
        "server.port": str(port),
        "server.headless": "true",
        "server.fileWatcherType": "none",
        "server.maxUploadSize": "1",
        "browser.gatherUsageStats": "false",
        "client.toolbarMode": "minimal",
        "client.showErrorDetails": "type",
        "logger.hideWelcomeMessage": "true",
    }
    # A comma list would be one bad host: the flag has to be repeated.
    hosts = ["--server.allowedHosts=localhost", "--server.allowedHosts=127.0.0.1"]
    command = [
        sys.executable,
        "-m",
        "streamlit",
        "run",
        str(_app_script()),
        *(f"--{k}={v}" for k, v in flags.items()),
        *hosts,
    ]
    err.print(f"Credit Inspector on http://127.0.0.1:{port}  (Ctrl-C ends it)")
    environment = {**os.environ, "CREDIT_INSPECTOR_ANALYSIS": str(folder.resolve())}
    with subprocess.Popen(command, env=environment) as server:  # noqa: S603 - our own interpreter and flags
        try:
            return server.wait()
        except KeyboardInterrupt:
            server.terminate()
            return 0
