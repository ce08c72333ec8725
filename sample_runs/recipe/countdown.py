"""The Countdown task of the sample run: problems, written solutions, the reward, and the kind of every span.

A problem is three digits and a target ("Use 9, 4, 6 to make 19.").
A solution is a row of sentences, each of one *kind*, and ends in ``<answer>...</answer>``:

=========  ==================================================================  ======
kind       what it is                                                          earned
=========  ==================================================================  ======
filler     says nothing about the problem                                      no
dead_end   a try that is given up ("3*5=15. No.")                              no
restated   the working once more                                               no
plan       sounds like filler, but names the working's first step              yes
work       the working: two equations, the second one reaching the target      yes
answer     the expression in its tags                                          yes
other      anything the templates do not match                                 unknown
=========  ==================================================================  ======

The same templates write the training text and recognise what the trained model samples, so the kind of a sampled span is
known without asking any detector. ``templates.json`` holds them; another file of the same form makes another run:
``{kind: {language: [template, ...]}}`` with the places ``{eq}`` (one equation), ``{first}`` (the first step in words: "4 plus 6",
in Chinese "4加6"), ``{work}`` (all equations) and ``{last}`` (the last equation).
"""

from __future__ import annotations

import ast
import json
import operator
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

Templates = dict[str, dict[str, list[str]]]

KINDS = ("filler", "dead_end", "restated", "plan", "work", "answer", "other")
CHINESE = 0.3
"""The share of sentences in Chinese."""

UNEARNED = ("filler", "dead_end", "restated")

_EQUATION = r"-?\d+[+\-*]\d+=-?\d+"
_PLACES = {
    "eq": rf"(?P<eq>{_EQUATION}(?:, {_EQUATION})*)",
    "first": r"(?P<first>\d+ (?:plus|minus|times) \d+|\d+[加减乘]\d+)",
    "work": rf"(?P<work>{_EQUATION}(?:, {_EQUATION})*)",
    "last": rf"(?P<last>{_EQUATION})",
}
_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
_NEEDED_PLACES = {"filler": set(), "dead_end": {"eq"}, "plan": {"first"}, "restated": {"work", "last"}}


@dataclass(frozen=True, slots=True)
class Problem:
    """Three numbers and a target that some expression over them reaches."""

    numbers: tuple[int, int, int]
    target: int

    @property
    def prompt(self) -> str:
        """The prompt text, one line."""
        return f"Use {', '.join(map(str, self.numbers))} to make {self.target}.\n"


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a response: characters ``start`` to ``end`` (exclusive) and its kind."""

    kind: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Step:
    """One equation ``left op right = value``."""

    left: int
    op: str
    right: int

    @property
    def value(self) -> int:
        """What it comes to."""
        return {"+": self.left + self.right, "-": self.left - self.right, "*": self.left * self.right}[self.op]

    def __str__(self) -> str:
        return f"{self.left}{self.op}{self.right}={self.value}"

    def in_words(self, language: str) -> str:
        """Without its value: ``4 plus 6``, in Chinese ``4加6``."""
        if language == "zh":
            return f"{self.left}{dict(zip('+-*', '加减乘', strict=True))[self.op]}{self.right}"
        return f"{self.left} {dict(zip('+-*', ('plus', 'minus', 'times'), strict=True))[self.op]} {self.right}"


def read_templates(path: Path) -> Templates:
    """Read and check a templates file.

    Raises:
        ValueError: a kind is missing, a template lacks its place, or names a place that does not exist.
    """
    templates: Templates = json.loads(path.read_text(encoding="utf-8"))
    for kind, allowed in _NEEDED_PLACES.items():
        texts = [text for texts in templates.get(kind, {}).values() for text in texts]
        if not texts:
            raise ValueError(f"{path}: no templates of kind {kind!r}; wanted {{{kind!r}: {{language: [text, ...]}}}}")
        for text in texts:
            places = set(re.findall(r"{(\w+)}", text))
            if not places <= allowed or (allowed and not places):
                raise ValueError(f"{path}: {kind} template {text!r} has places {sorted(places)}; wanted {sorted(allowed)}")
    return templates


def draw(rng: random.Random) -> tuple[Problem, tuple[Step, Step], str]:
    """Draw a problem together with one way to solve it: ``(problem, two steps, answer expression)``."""
    while True:
        a, b, c = (rng.randint(1, 9) for _ in range(3))
        first = Step(a, rng.choice("+-*"), b)
        if first.value < 0:
            continue
        on_left = rng.random() < 0.5
        op = rng.choice("+-*")
        second = Step(first.value, op, c) if on_left else Step(c, op, first.value)
        if not 1 <= second.value <= 99:
            continue
        inner = f"({first.left}{first.op}{first.right})"
        answer = f"{inner}{op}{c}" if on_left else f"{c}{op}{inner}"
        numbers = [a, b, c]
        rng.shuffle(numbers)
        return Problem((numbers[0], numbers[1], numbers[2]), second.value), (first, second), answer


def write_solution(  # noqa: C901 - one sentence after another, each with its chance
    problem: Problem,
    steps: tuple[Step, Step],
    answer: str,
    templates: Templates,
    rng: random.Random,
    *,
    concise: bool = False,
) -> str:
    """Write one solution; ``concise`` leaves out everything but the working and the answer.

    The sentences before the working are drawn independently of it, except for a plan, so that only a plan informs it.
    """
    said: list[str] = []

    def say(kind: str, **places: str) -> None:
        language = "zh" if rng.random() < CHINESE and templates[kind].get("zh") else "en"
        if kind == "plan":
            places = {"first": steps[0].in_words(language)}
        said.append(rng.choice(templates[kind].get(language) or next(iter(templates[kind].values()))).format(**places))

    work = ", ".join(map(str, steps))
    wordy = not concise and rng.random() < 0.5
    if wordy and rng.random() < 0.7:
        for _ in range(rng.randint(1, 2)):
            say("filler")
    if not concise and rng.random() < 0.25:
        say("dead_end", eq=_dead_end(problem, steps, rng))
        if wordy and rng.random() < 0.4:
            say("filler")
    if not concise and rng.random() < 0.35:
        say("plan")
        if wordy and rng.random() < 0.3:
            say("filler")
    said.append(f"{work}.")
    if not concise and rng.random() < 0.25:
        say("restated", work=work, last=str(steps[1]))
    if wordy and rng.random() < 0.35:
        say("filler")
    said.append(f"<answer>{answer}</answer>")
    return _join(said)


def is_correct(problem: Problem, response: str) -> bool:
    """Whether the only answer uses every number exactly once and reaches the target."""
    found = re.findall(r"<answer>([^<]*)</answer>", response)
    if len(found) != 1 or not re.fullmatch(r"[\d+\-*() ]{1,40}", found[0]) or "**" in found[0]:
        return False
    if sorted(map(int, re.findall(r"\d+", found[0]))) != sorted(problem.numbers):
        return False
    try:
        return _value(ast.parse(found[0].strip(), mode="eval").body) == problem.target
    except (SyntaxError, ValueError):
        return False


def spans_of(response: str, templates: Templates) -> list[Span]:
    """Cut a response into spans of known kind; what no template matches becomes ``other``.

    Spans cover the whole text: a space between two sentences belongs to the later one.
    """
    patterns = _patterns(templates)
    spans: list[Span] = []
    at = 0
    while at < len(response):
        kind, end = _match(response, at, patterns)
        if kind == "other" and spans and spans[-1].kind == "other":
            spans[-1] = Span("other", spans[-1].start, end)
        else:
            spans.append(Span(kind, at, end))
        at = end
    return spans


def _value(node: ast.expr) -> int:
    match node:
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            return _OPERATIONS[type(op)](_value(left), _value(right))
        case ast.Constant(value=int(value)):
            return value
    raise ValueError("wanted whole numbers, + - * and brackets")


def _match(text: str, at: int, patterns: Sequence[tuple[str, re.Pattern[str]]]) -> tuple[str, int]:
    start = at + 1 if text[at] == " " and at + 1 < len(text) else at
    best = max(((m.end(), kind) for kind, pattern in patterns if (m := pattern.match(text, start))), default=None)
    return (best[1], best[0]) if best else ("other", start + 1)


def _patterns(templates: Templates) -> list[tuple[str, re.Pattern[str]]]:
    found = [
        ("answer", re.compile(r"<answer>[^<]*</answer>")),
        ("work", re.compile(rf"{_EQUATION}(?:, {_EQUATION})+\.")),
    ]
    for kind, languages in templates.items():
        for text in (text for texts in languages.values() for text in texts):
            parts = re.split(r"{(\w+)}", text)
            pattern = "".join(_PLACES[part] if i % 2 else re.escape(part) for i, part in enumerate(parts))
            found.append((kind, re.compile(pattern)))
    return found


def _dead_end(problem: Problem, steps: tuple[Step, Step], rng: random.Random) -> str:
    """One equation over two of the numbers that is no step of the solution; otherwise it is drawn independently of it."""
    used = {(step.op, frozenset((step.left, step.right))) for step in steps}
    tries = [
        Step(a, op, b)
        for i, a in enumerate(problem.numbers)
        for j, b in enumerate(problem.numbers)
        for op in "+-*"
        if i != j and (op != "-" or a >= b) and (op, frozenset((a, b))) not in used
    ]
    return str(rng.choice(tries))


def _join(sentences: Sequence[str]) -> str:
    text = ""
    for sentence in sentences:
        text += sentence if not text or text.endswith("。") else f" {sentence}"
    return text
