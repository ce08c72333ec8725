"""Shapings: what a step would have been with another reward, another loss mask or other weights.

To add one, drop a file in that decorates a function with ``@shaping``. It gets a ``ShapingInputs`` and its settings, which are
its keyword-only parameters with their defaults, and returns a ``Change``::

    @shaping("length_penalty", main="alpha")
    def length_penalty(step: ShapingInputs, *, alpha: float = 0.001) -> Change:
        '''Reward minus alpha for each trained token.'''
        return Change(reward=step.reward - alpha * step.table.trained_lengths)

A user then says ``--set length_penalty=0.01`` (the main setting) or ``--set length_penalty.alpha=0.01``. Several shapings are
applied in the order given, each to what the former ones left. Text of a response is data: nothing in it is ever run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, get_type_hints

import numpy as np
from numpy.typing import NDArray

from credit_inspector.algorithm import Algorithm
from credit_inspector.errors import MissingColumn, UsageError
from credit_inspector.registry import Registry, settings_of
from credit_inspector.shaping.values import is_on, read
from credit_inspector.spans import SpanTable
from credit_inspector.table import Floats, TokenTable

Words = Callable[[int], Sequence[str]]
"""From a row to the text of each of its tokens."""


@dataclass(frozen=True, kw_only=True)
class ShapingInputs:
    """What a shaping sees of one step."""

    table: TokenTable
    """As the shapings before it left rewards and loss mask."""
    algorithm: Algorithm
    right: NDArray[np.bool_]
    """``[N]`` right answers by the *recorded* reward (``outcome.right``), whatever was shaped since."""
    spans: SpanTable | None = None
    words: Words | None = None
    """Text of each token; ``None`` where no tokenizer is known."""
    named: str = ""
    """The shaping's own name, for messages."""

    @property
    def reward(self) -> Floats:
        """``[N]`` rewards so far; NaN where none was recorded."""
        return self.table.reward

    @property
    def lengths(self) -> Floats:
        """``[N]`` trained tokens of each response; NaN where its tokens are not known."""
        known = np.array([rollout.response_ids is not None for rollout in self.table.rollouts], np.bool_)
        return np.where(known, self.table.trained_lengths, np.nan)

    @cached_property
    def responses(self) -> tuple[str | None, ...]:
        """``[N]`` the text of each response: as recorded, else from its tokens."""
        return tuple(self._text(row) for row in range(self.table.n_rows))

    def _text(self, row: int) -> str | None:
        recorded = self.table.rollouts[row].response
        if recorded is not None or self.words is None:
            return recorded
        return "".join(self.words(row))

    def token_texts(self) -> list[Sequence[str]]:
        """``[N]`` the text of each response's tokens.

        Raises:
            MissingColumn: no tokenizer is known.
        """
        if self.words is None:
            raise MissingColumn(f"{self.named} needs the text of each token", do="analyze again with --tokenizer")
        return [self.words(row) for row in range(self.table.n_rows)]

    def column(self, name: str) -> Floats:
        """``[T]`` a column that the analysis has.

        Raises:
            MissingColumn: it is not there; the line says which shaping asked.
        """
        try:
            return self.table.values(name)
        except MissingColumn as error:
            raise MissingColumn(f"{self.named}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a shaping changes; what is ``None`` stays."""

    reward: Floats | None = None
    """``[N]`` new rewards."""
    replaces: bool = False
    """Whether the reward is another one, rather than the former one with something added."""
    loss_mask: NDArray[np.bool_] | None = None
    """``[T]`` new loss mask: the weights are then those of a batch with fewer trained tokens."""
    weight: Floats | None = None
    """``[T]`` factor on the token's weight in the loss; the denominators stay."""
    kl: Floats | None = None
    """``[T]`` factor on the KL term alone."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Shaping:
    """A named shaping with its settings."""

    name: str
    main: str
    """The setting that ``NAME=VALUE`` gives; empty where the value only switches it on or off."""
    settings: Mapping[str, Any]
    """Its settings with their defaults."""
    hints: Mapping[str, Any]
    """The type of each setting."""
    make: Callable[..., Change]
    doc: str

    def read(self, given: Mapping[str, object]) -> dict[str, Any]:
        """Settings from text, each in its type.

        Raises:
            UsageError: a setting that it does not have, or a value that the setting does not take.
        """
        for name in given:
            if name not in self.settings:
                raise UsageError(
                    f"{self.name} has no setting {name!r}", wanted=f"one of {', '.join(self.settings) or '(it has none)'}"
                )
        return {name: read(f"{self.name}.{name}", value, self.hints[name]) for name, value in given.items()}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A shaping with the settings that a user gave."""

    shaping: Shaping
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, step: ShapingInputs) -> Change:
        """What it changes."""
        return self.shaping.make(step, **self.settings)

    @property
    def text(self) -> str:
        """``length_penalty alpha=0.001``, defaults included."""
        full = {**self.shaping.settings, **self.settings}
        return " ".join((self.shaping.name, *(f"{name}={_short(value)}" for name, value in full.items())))


shapings: Registry[Shaping] = Registry("shaping", __name__)


def shaping(name: str, *, main: str = "") -> Callable[[Callable[..., Change]], Callable[..., Change]]:
    """Put a shaping in under the name that ``--set`` takes."""

    def put(function: Callable[..., Change]) -> Callable[..., Change]:
        hints = get_type_hints(function)
        doc = inspect.cleandoc(function.__doc__ or "")
        shapings.add(name, Shaping(name, main, settings_of(function), hints, function, doc))
        return function

    return put


def wanted(name: str, given: Mapping[str, object], value: object = None) -> Wanted | None:
    """A shaping from what a user set; ``None`` where it is switched off.

    Args:
        name: the shaping's name.
        given: settings by name.
        value: what was given for the shaping itself: its main setting, or on and off.
    """
    chosen = shapings[name]
    settings = dict(given)
    if value is not None and chosen.main:
        settings.setdefault(chosen.main, value)
    elif value is not None and not is_on(name, value):
        return None
    return Wanted(chosen, chosen.read(settings))


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)


__all__ = ["Change", "Shaping", "ShapingInputs", "Wanted", "Words", "shaping", "shapings", "wanted"]
