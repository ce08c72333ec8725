"""Arithmetic in the text of a response, worked out without ever running it; no shaping of its own.

Two readers. ``exact`` takes +, −, *, / and parentheses over non-negative integers and gives a fraction. ``as_python`` gives what
Python's ``eval`` gives for digits, + − * / ( ) . and white space, floats and ``**`` and ``//`` included: TinyZero's scorer calls
``eval``, and its scores can only be repeated by that. Both are bounded: a number beyond ``BITS`` is given up on.
"""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections.abc import Callable
from fractions import Fraction
from typing import Final

LONGEST: Final = 4096
"""Characters of an expression; a longer one is not read."""
BITS: Final = 100_000
"""Bits of the largest integer that is worked out."""
DEEPEST: Final = 200
"""Parentheses and signs inside each other."""

_TOKEN = re.compile(r"\s*(?:([0-9]+)|([-+*/()]))", re.ASCII)

Number = int | float | complex


def exact(text: str) -> Fraction | None:
    """The value; ``None`` where the text is no such expression, divides by zero or is out of bounds."""
    tokens = _tokens(text)
    if not tokens:
        return None
    reader = _Reader(tokens)
    try:
        value = reader.sum(0)
    except (_Unreadable, ZeroDivisionError):
        return None
    return value if reader.at_end else None


def numbers_in(text: str) -> list[int]:
    """The runs of digits in a text as integers, in order; those of more than 100 digits are left out."""
    return [int(run) for run in re.findall(r"[0-9]+", text) if len(run) <= 100]


class _Unreadable(Exception):
    """Not an expression of this grammar."""


def _tokens(text: str) -> list[str]:
    text = text.strip()
    if not text or len(text) > LONGEST:
        return []
    found, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            return []
        found.append(match[1] or match[2])
        at = match.end()
    return found


class _Reader:
    """Recursive descent: sum → product → signed → number or parenthesis."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.at = 0

    @property
    def at_end(self) -> bool:
        return self.at == len(self.tokens)

    def sum(self, depth: int) -> Fraction:
        value = self._product(depth)
        while self._next() in ("+", "-"):
            minus = self._take() == "-"
            other = self._product(depth)
            value = _held(value - other if minus else value + other)
        return value

    def _product(self, depth: int) -> Fraction:
        value = self._signed(depth)
        while self._next() in ("*", "/"):
            divide = self._take() == "/"
            other = self._signed(depth)
            value = _held(value / other if divide else value * other)
        return value

    def _signed(self, depth: int) -> Fraction:
        minus = False
        while self._next() in ("+", "-"):
            minus ^= self._take() == "-"
        value = self._number(depth)
        return -value if minus else value

    def _number(self, depth: int) -> Fraction:
        taken = self._take()
        if taken.isdigit():
            if len(taken) > 1000:  # beyond any puzzle, and Python's own limit is near
                raise _Unreadable
            return Fraction(int(taken))
        if taken != "(" or depth >= DEEPEST:
            raise _Unreadable
        value = self.sum(depth + 1)
        if self._take() != ")":
            raise _Unreadable
        return value

    def _next(self) -> str:
        return "" if self.at_end else self.tokens[self.at]

    def _take(self) -> str:
        if self.at_end:
            raise _Unreadable
        self.at += 1
        return self.tokens[self.at - 1]


def _held(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > BITS:
        raise _Unreadable
    return value


# ── as Python's eval ────────────────────────────────────────────────────────────────────────────────────────────────────

_ALLOWED = re.compile(r"^[\d+\-*/().\s]+$")
_BINARY: Final[dict[type[ast.operator], Callable[..., Number]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}
_UNARY: Final[dict[type[ast.unaryop], Callable[..., Number]]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


def as_python(text: str) -> Number | None:
    """What ``eval`` gives; ``None`` where it raises or gives no number, for another character, and beyond the bounds.

    The text is parsed and never compiled or run; each operation is Python's own on two numbers.
    """
    if not _ALLOWED.match(text) or len(text) > LONGEST:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse(text.lstrip(" \t"), mode="eval")  # as eval does
        return _value(tree.body)
    except (SyntaxError, ValueError, ArithmeticError, TypeError, RecursionError, MemoryError):
        return None


def _value(root: ast.expr) -> Number:
    """Work a tree out from the leaves up, without recursion."""
    order, waiting = [], [root]
    while waiting:
        node = waiting.pop()
        order.append(node)
        waiting += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
    values: dict[int, Number] = {}
    for node in reversed(order):
        values[id(node)] = _step(node, values)
    return values[id(root)]


def _step(node: ast.expr, values: dict[int, Number]) -> Number:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return node.value
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _UNARY[type(node.op)](values[id(node.operand)])
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = values[id(node.left)], values[id(node.right)]
        _bound(node.op, left, right)
        return _BINARY[type(node.op)](left, right)
    raise TypeError(type(node).__name__)


def _bound(sign: ast.operator, left: Number, right: Number) -> None:
    """Refuse a power or a product that would fill the memory."""
    if not (isinstance(left, int) and isinstance(right, int)):
        return
    bits = left.bit_length()
    if isinstance(sign, ast.Pow) and right > 0 and abs(left) > 1 and bits * right > BITS:
        raise OverflowError
    if isinstance(sign, ast.Mult) and bits + right.bit_length() > BITS:
        raise OverflowError
