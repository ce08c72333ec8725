"""What the numbers rest on: for each, whether it was recorded, recomputed or is missing, and which tests of the data it passed.

Before any picture: values that stand beside the wrong token, fill values taken for certainty, masks that leave the end out and
groups cut in the wrong places draw pictures as pretty as right ones. A test that lacks what it needs is not passed: it could not
be run, and why is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from credit_inspector.panel import Finding
from credit_inspector.store import Store
from credit_inspector.table import Provenance


@dataclass(frozen=True, slots=True)
class Number:
    """One kind of number and where it is from."""

    name: str
    origin: str
    """``recorded``, ``recomputed``, ``derived``, ``estimated`` or ``missing``; several where steps differ."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Tested:
    """One test of the data."""

    name: str
    outcome: str
    """``passed``, ``failed`` or ``not possible``."""
    said: str
    """What was found, or what the test would need."""


@dataclass(frozen=True, slots=True)
class _Test:
    """Which findings fail a test, and of which columns at least how many it needs."""

    name: str
    passed: str
    codes: tuple[str, ...]
    columns: tuple[str, ...] = ()
    at_least: int = 0
    lacking: str = ""


_LOGPROBS = ("logprob/old", "logprob/policy", "logprob/rollout", "logprob/ref", "logprob/recomputed")
_TESTS = (
    _Test("alignment", "every recorded list has one value a token", ("length-mismatch",)),
    _Test(
        "off by one",
        "log-probs agree with those of their own token",
        ("logprobs-shifted",),
        _LOGPROBS,
        2,
        "two kinds of log-probs to hold against each other; --policy gives one",
    ),
    _Test(
        "fill values",
        "no log-prob is above 0, and none is 0 where another is far from it",
        ("logprob-above-zero", "logprobs-zero-filled"),
        _LOGPROBS,
        1,
        "recorded log-probs",
    ),
    _Test(
        "mask",
        "ends are trained, and neither rewards nor values stand on masked tokens",
        ("end-masked-out", "reward-on-masked", "masked-values-leak", "unsampled-tokens-trained"),
    ),
    _Test("groups", "advantages fit the groups that the run names", ("groups-by-position", "stored-advantages-differ")),
)


def examine(store: Store, findings: Sequence[Finding]) -> list[Tested]:
    """The outcome of each test, from what the checks found and what they had to go by."""
    by_code = {finding.code: finding for finding in reversed(findings)}
    there = _columns(store)
    rows = _rows(store)
    found = []
    for test in _TESTS:
        failed = next((by_code[code] for code in test.codes if code in by_code), None)
        lacking = _lacking(test, there, rows)
        if failed is not None:
            found.append(Tested(test.name, "failed", f"{failed.sentence} ({failed.code})"))
        elif lacking:
            found.append(Tested(test.name, "not possible", f"needs {lacking}"))
        else:
            found.append(Tested(test.name, "passed", test.passed))
    return found


def _lacking(test: _Test, there: Mapping[str, Mapping[Provenance, str]], rows: Counter[str]) -> str:
    """What a test would need and the run has not."""
    if test.name == "mask" and not rows["masks"]:
        return "a recorded loss mask; without one every token counts as trained"
    if test.name == "groups" and not (rows["groups"] and rows["advantages"] + _has(there, "advantage")):
        return "recorded advantages and groups"
    if test.name == "alignment" and not rows["ids"]:
        return "token ids or a tokenizer"
    enough = sum(_has(there, name) for name in test.columns) >= test.at_least
    return "" if enough else test.lacking


def _has(there: Mapping[str, Mapping[Provenance, str]], name: str) -> bool:
    origins = set(there.get(name, ()))
    return bool(origins & {Provenance.RECORDED, Provenance.RECOMPUTED})


def numbers(store: Store) -> list[Number]:
    """Where each number of the run is from: those of a response first, then the columns."""
    rows = _rows(store)
    found = [
        _of_rows("rewards", rows["rewards"], rows, "no response has a reward"),
        Number("groups", "recorded" if rows["given"] else "derived" if rows["groups"] else "missing", _grouping(rows)),
        _of_rows("token ids", rows["ids"], rows, "text alone; a tokenizer gives ids: --tokenizer"),
        _of_rows("loss mask", rows["masks"], rows, "every token counts as trained"),
        _of_rows("whether cut off", rows["ends"], rows, "no response says why it ended"),
    ]
    for name, origins in sorted(_columns(store).items()):
        notes = dict.fromkeys(note for note in origins.values() if note)
        found.append(Number(name, " or ".join(sorted(origins)), "; ".join(notes)))
    return found


def problems(store: Store) -> Counter[tuple[str, str]]:
    """What was wrong with the data, as kind and words, and how often."""
    found: Counter[tuple[str, str]] = Counter()
    for step in store.steps:
        table, _ = store.read_step(step, [])
        found.update((problem.kind, problem.message) for problem in table.problems)
    return found


def _of_rows(name: str, count: int, rows: Counter[str], lacking: str) -> Number:
    if not count:
        return Number(name, "missing", lacking)
    return Number(name, "recorded", f"{count:,} of {rows['responses']:,} responses")


def _grouping(rows: Counter[str]) -> str:
    names = ("given", "same prompt", "contiguous", "none")
    return ", ".join(f"{rows[name]:,} {_SOURCES[name]}" for name in names if rows[name])


_SOURCES = {
    "given": "by their id",
    "same prompt": "by equal prompts",
    "contiguous": "by blocks of rows",
    "none": "without a group",
}


def _rows(store: Store) -> Counter[str]:
    """How many responses have what."""
    found: Counter[str] = Counter()
    for step in store.steps:
        table, _ = store.read_step(step, [])
        for one in table.rollouts:
            found["responses"] += 1
            found[one.group_source] += 1
            found["groups"] += one.group_id is not None
            found["rewards"] += one.reward is not None
            found["advantages"] += one.advantage is not None
            found["ids"] += one.response_ids is not None
            found["masks"] += one.loss_mask is not None
            found["ends"] += one.truncated is not None
    return found


def _columns(store: Store) -> dict[str, dict[Provenance, str]]:
    """By column: where it is from, over all steps, with a note for each origin."""
    found: dict[str, dict[Provenance, str]] = {}
    for step in store.steps:
        for name, (origin, note) in store.provenance(step).items():
            found.setdefault(name, {}).setdefault(origin, note)
    return found
