"""What reading a dump costs: time beside a bare JSON parser, memory beside the file's size, and a first look at a long run.

Three promises, each measured in one run:

* **speed**: a text dump in verl's format, one file a step, read into rollouts with groups, rewards and checks. The bound is 60 %
  of the speed of ``orjson.loads`` over the same lines, whose rows are kept for the step as well. Both are taken in turn, in
  processor time, and the median of the ratios counts. A row holds 16 kB of text, which is a response of about 4,000 tokens
  and its prompt; the text is that of the shipped sample run. Shorter rows cost more beside the parser, so the ratio for rows
  of 2 kB is printed too.
* **memory**: one file of 1 GB with many steps, opened and read step by step: 600 MB at the peak, whatever the file's size.
* **scan**: a folder of 2,000 step files, recognised in 2 s.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from credit_inspector.scanning import scan
from credit_inspector.trainers.opening import open_run

SPEED, MEMORY, SCAN = 0.6, 600e6, 2.0
REPEATS = 9
SAMPLE = Path(__file__).resolve().parents[1] / "sample_runs/countdown"


def main() -> int:
    """Measure, print, judge."""
    with tempfile.TemporaryDirectory() as folder:
        found = [speed(Path(folder)), memory(Path(folder)), scanning(Path(folder))]
    for one in found:
        print(json.dumps(one))
    share = min(one["share"] for one in found)
    ok = all(one["ok"] for one in found)
    print(json.dumps({"name": "reading", "value": round(share, 3), "bound": 1.0, "ok": ok}))
    return 0 if ok else 1


def result(name: str, value: float, bound: float, share: float, **more: Any) -> dict[str, Any]:
    """One measurement; ``share`` is how far it keeps its promise, 1 being just."""
    return {"name": name, "value": round(value, 3), "bound": bound, "ok": share >= 1, "share": round(share, 3), **more}


# ── text to dump ────────────────────────────────────────────────────────────────────────────────────────────────────


def texts() -> str:
    """All responses of the sample run, one after the other."""
    run = open_run(SAMPLE)
    rollouts = [one for step in run.steps[:8] for one in run.read(step).rollouts]
    return "\n".join(one.response or "" for one in rollouts)


def rows(text: str, size: int, count: int, step: int) -> list[bytes]:
    """Lines of a step as verl's V0 trainer writes them, eight responses to a prompt."""
    lines = []
    for i in range(count):
        begin = (7919 * (step * count + i)) % (len(text) - size)
        row = {
            "input": f"user\nUse {3 + i // 8}, 4 and 9 to make 33.\n" + text[: size // 10] + "\nassistant\n",
            "output": text[begin : begin + size - size // 10],
            "gts": "33",
            "score": float(i % 3 == 0),
            "step": step,
            "acc": i % 3 == 0,
            "pred": "33",
        }
        lines.append(json.dumps(row, ensure_ascii=False).encode() + b"\n")
    return lines


def dump(folder: Path, text: str, size: int, steps: int, count: int) -> Path:
    """A folder of ``{step}.jsonl``."""
    folder.mkdir()
    for step in range(1, steps + 1):
        (folder / f"{step}.jsonl").write_bytes(b"".join(rows(text, size, count, step)))
    return folder


# ── speed ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def speed(folder: Path) -> dict[str, Any]:
    """Ours beside the bare parser, for long rows (which count) and short ones (which are told)."""
    text = texts() * 4
    ratios = {}
    for size in (16_000, 2_000):
        run = dump(folder / str(size), text, size, 6, 4_000_000 // size)
        bare, ours = partial(parse_all, run), partial(read_all, run)
        parse_all(run), read_all(run)
        pairs = [(seconds(bare), seconds(ours)) for _ in range(REPEATS)]
        ratios[size] = statistics.median(one / other for one, other in pairs)
    ratio = ratios[16_000]
    return result("reading.speed", ratio, SPEED, ratio / SPEED, rows_of_2_kB=round(ratios[2_000], 3))


def parse_all(folder: Path) -> int:
    """``orjson.loads`` over every line, a step's rows kept until the next step."""
    count = 0
    for file in sorted(folder.glob("*.jsonl")):
        with file.open("rb") as lines:
            count += len([orjson.loads(line) for line in lines])
    return count


def read_all(folder: Path) -> int:
    """Every step of the run as rollouts."""
    run = open_run(folder)
    return sum(len(run.read(step).rollouts) for step in run.steps)


def seconds(work: Callable[[], object]) -> float:
    """Processor seconds, so that other work on the machine plays a smaller part."""
    start = time.process_time()
    work()
    return time.process_time() - start


# ── memory ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def memory(folder: Path) -> dict[str, Any]:
    """The peak of a process of its own that reads a file of 1 GB."""
    file, text, size = folder / "run.jsonl", texts(), 0
    with file.open("wb") as lines:
        step = 0
        while size < 1e9:
            step += 1
            block = b"".join(rows(text, 16_000, 256, step))
            size += len(block)
            lines.write(block)
    done = subprocess.run([sys.executable, __file__, str(file)], capture_output=True, text=True, check=True)  # noqa: S603
    file.unlink()
    peak = json.loads(done.stdout)
    return result("reading.memory", peak["bytes"], MEMORY, MEMORY / peak["bytes"], rows=peak["rows"], file_bytes=size)


def peak_of_reading(file: Path) -> dict[str, int]:
    """Read a file to its end and say what memory that took."""
    count = read_all(file)
    return {"rows": count, "bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}


# ── scan ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def scanning(folder: Path) -> dict[str, Any]:
    """Seconds until a folder of 2,000 step files is recognised, the first time."""
    run = dump(folder / "long", texts(), 2_000, 2_000, 16)
    start = time.perf_counter()
    seen = scan(run, {})
    took = time.perf_counter() - start
    return result("reading.scan", took, SCAN, SCAN / took, found=dict(seen.lines)["steps"])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(peak_of_reading(Path(sys.argv[1]))))
        sys.exit(0)
    sys.exit(main())
