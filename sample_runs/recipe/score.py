"""Score the detector of unearned spans on a sample run whose spans are of known kind.

    python sample_runs/recipe/score.py sample_runs/countdown

Right answers only. A span of ``filler_truth.jsonl`` counts as found when most of its tokens are marked in ``credit/unearned``,
which never reads that file. *Precision*: of the spans found, the share that is filler, a dead end or restated. *Recall*: of
those, the share found. Beside it a list of phrases, as many tools have one.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import countdown
from credit_inspector import pipeline
from credit_inspector.outcome import right
from credit_inspector.store import Store

PHRASES = re.compile(
    r"let me|let us|wait|hmm|okay|alright|\bwell\b|\bso,|i think|i need|i want|step by step|check|careful|maybe|again|"
    r"interesting|moment|让我|想想|试试|等一下|好的|继续|慢慢|再看|没问题",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Judged:
    """A span of known kind and whether each way of finding found it."""

    kind: str
    by_evidence: bool
    by_phrases: bool

    @property
    def unearned(self) -> bool:
        """Whether its kind earns nothing."""
        return self.kind in countdown.UNEARNED


def main() -> None:
    """Print precision and recall, for all and for each kind."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--analysis", type=Path, help="an analysis made before; a fresh one when not given")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.analysis or Path(scratch)
        store = pipeline.analyze(options.run, folder, pipeline.Options())
        judged = list(judge(store, options.run / "filler_truth.jsonl"))
    print(table(judged))


def judge(store: Store, truth_file: Path) -> Iterator[Judged]:
    """Every span of known kind in right answers; an answer trained on in two steps counts once."""
    lines = map(json.loads, truth_file.read_text(encoding="utf-8").splitlines())
    truth = {line["sample_id"]: line for line in lines}
    seen: set[str] = set()
    for step in store.steps:
        table, _ = store.read_step(step, ["credit/unearned"])
        marked = table.values("credit/unearned") == 1
        for row in np.flatnonzero(right(table)):
            name = table.rollouts[row].sample_id
            if name in seen:
                continue
            seen.add(name)
            here = table.slice(int(row))
            begins = np.cumsum([0, *(len(text) for text in store.pieces(table.token_ids[here]).text)])[:-1]
            for span in truth[name]["spans"]:
                inside = (begins >= span["start"]) & (begins < span["end"])
                text = truth[name]["text"][span["start"] : span["end"]]
                yield Judged(span["kind"], bool(marked[here][inside].mean() > 0.5), bool(PHRASES.search(text)))


def precision_recall(judged: list[Judged], found: Callable[[Judged], bool]) -> tuple[float, float]:
    """Over spans of known kind; NaN where nothing was found or nothing was to be found."""
    known = [one for one in judged if one.kind != "other"]
    hits = sum(found(one) and one.unearned for one in known)
    flagged, wanted = sum(map(found, known)), sum(one.unearned for one in known)
    return hits / flagged if flagged else np.nan, hits / wanted if wanted else np.nan


def table(judged: list[Judged]) -> str:
    """The figures as text, with the share of each kind that was marked."""
    ways: dict[str, Callable[[Judged], bool]] = {
        "evidence": lambda one: one.by_evidence,
        "phrase list": lambda one: one.by_phrases,
    }
    lines = [f"{'':12}{'spans':>7}" + "".join(f"{name + ' precision':>23}{'recall':>9}" for name in ways)]
    for kind in ("all", *countdown.UNEARNED):
        of_kind = [one for one in judged if kind in ("all", one.kind) or not one.unearned]
        count = sum(one.unearned for one in of_kind)
        figures = (precision_recall(of_kind, found) for found in ways.values())
        lines.append(f"{kind:12}{count:7}" + "".join(f"{p:23.3f}{r:9.3f}" for p, r in figures))
    lines += ["", "wrongly marked, of the spans that earned:"]
    for kind in ("plan", "work", "answer"):
        of_kind = [one for one in judged if one.kind == kind]
        shares = (sum(map(found, of_kind)) / len(of_kind) if of_kind else np.nan for found in ways.values())
        lines.append(f"{kind:12}{len(of_kind):7}" + "".join(f"{share:23.3f}{'':9}" for share in shares))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
