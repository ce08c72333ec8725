"""Which rule made the stored advantages? Try the known ones on the stored rewards and see which reproduces them.

Frameworks divide by the sample deviation, the population deviation, the batch's or none, and rarely say which, yet
people compare their numbers. Letters: ``N`` responses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.normalise import Floats, Singleton, Std, grouped, in_words, leave_one_out, normalise

# TRL, verl and slime, AReaL, open-instruct, OpenRLHF (math of each: ``normalise.py``), and none at all.
_EPSILONS = (1e-4, 1e-6, 1e-5, 1e-8, 1e-9, 0.0)

# Dumps round to three or four digits.
_TOLERANCE = 1e-3

# Two rules that give the same numbers may differ by rounding.
_EXACT = 1e-9


class Rule(NamedTuple):
    """The part of an ``Algorithm`` that turns rewards into advantages."""

    advantage: str
    std: Std = "none"
    ddof: int = 1
    eps: float = 0.0
    singleton: Singleton = "zero"

    @property
    def words(self) -> str:
        """The rule as a line for a person."""
        return in_words(self.advantage, std=self.std, ddof=self.ddof, eps=self.eps)

    @property
    def settings(self) -> dict[str, Any]:
        """The fields of ``Algorithm`` that it sets."""
        return {
            "advantage": self.advantage,
            "std": self.std,
            "std_ddof": self.ddof,
            "std_eps": self.eps,
            "singleton": self.singleton,
        }

    def apply(self, rewards: ArrayLike, group: ArrayLike) -> Floats:
        """``[N]`` its advantages."""
        if self.advantage == "rloo":
            return leave_one_out(rewards, group, singleton=self.singleton)
        if self.advantage == "reinforce":
            return np.asarray(rewards, np.float64)
        return normalise(rewards, group, std=self.std, ddof=self.ddof, eps=self.eps, singleton=self.singleton)


@dataclass(frozen=True, slots=True)
class Detection:
    """What was found, in fields and in a sentence."""

    rule: Rule | None
    """``None`` when no known rule fits or the rewards cannot tell rules apart."""
    residual: float
    """Largest distance between the stored advantages and the closest rule's; NaN when nothing could be compared."""
    message: str
    blocks: int | None = None
    """The stored advantages fit groups of so many consecutive rows and not the group ids."""
    also: tuple[Rule, ...] = ()
    """Other kinds of rule that fit as well on these rewards."""


class Scored(Protocol):
    """What is looked at of a rollout."""

    @property
    def reward(self) -> float | None:
        """The scalar reward."""

    @property
    def group_id(self) -> str | None:
        """The prompt group."""

    @property
    def advantage(self) -> float | None:
        """The response's advantage as the trainer stored it."""


class _Fit(NamedTuple):
    residual: float
    rule: Rule


def detect(rollouts: Sequence[Scored]) -> Algorithm | None:
    """The rule that the rollouts' stored advantages follow, or ``None`` where none fits or the rewards cannot tell.

    Advantages say nothing about the loss that used them: its settings are those that an ``Algorithm`` has by default,
    and the ``source`` says so.
    """
    numbers: dict[str, int] = {}
    found = explain(
        [np.nan if r.reward is None else r.reward for r in rollouts],
        [-1 if r.group_id is None else numbers.setdefault(r.group_id, len(numbers)) for r in rollouts],
        [np.nan if r.advantage is None else r.advantage for r in rollouts],
    )
    if found.rule is None:
        return None
    source = "detected from advantages; loss and weights are assumed"
    return Algorithm(name=f"detected/{found.rule.advantage}", source=source, **found.rule.settings)


def explain(rewards: ArrayLike, group: ArrayLike, stored: ArrayLike, *, tolerance: float = _TOLERANCE) -> Detection:
    """Find the rule by which ``stored`` advantages follow from ``rewards``, and say how well; all ``[N]``.

    Args:
        rewards: scalar rewards, NaN where missing.
        group: group numbers, −1 where unknown.
        stored: advantages as the trainer left them, NaN where missing.
        tolerance: how far they may stand from a rule, relative to the largest of them (at least 1).
    """
    reward, number = np.asarray(rewards, np.float64), np.asarray(group, np.int64)
    target = np.asarray(stored, np.float64)
    compared = np.isfinite(reward) & np.isfinite(target)
    if not compared.any():
        return Detection(None, np.nan, "no response has both a reward and a stored advantage")
    allowed = tolerance * max(1.0, float(np.abs(target[compared]).max()))
    by_ids = _fits(reward, number, target)
    if by_ids[0].residual <= allowed:
        return _found(by_ids, reward, number, target)
    for size in _block_sizes(number):
        blocks = np.arange(len(reward)) // size
        fits = _fits(reward, blocks, target)
        if fits[0].residual <= allowed:
            found = _found(fits, reward, blocks, target)
            ids = "not the group ids" if (number >= 0).any() else "and there are no group ids"
            message = f"stored advantages match blocks of {size} consecutive rows, {ids}: {found.message}"
            return replace(found, message=message, blocks=size)
    nearest = by_ids[0]
    misses = f"{nearest.rule.words}, misses by {nearest.residual:.4g}"
    message = f"stored advantages do not match a known rule; the nearest, {misses}"
    return Detection(None, nearest.residual, message)


def _found(fits: list[_Fit], reward: Floats, group: NDArray[np.int64], target: Floats) -> Detection:
    best = fits[0]
    same = [fit.rule for fit in fits if fit.residual <= 3 * best.residual + _EXACT]
    others = {_kind(rule): rule for rule in reversed(same) if _kind(rule) != _kind(best.rule)}
    figures = grouped(reward, group)
    said = [f"{best.rule.words}; residual {best.residual:.2g}"]
    if not (figures.squares > 0).any():
        if not np.nan_to_num(target).any():
            return Detection(None, best.residual, "no group has spread: every rule gives 0, so none can be told")
        said = [f"stored advantages equal the raw rewards; residual {best.residual:.2g}"]
    elif others:
        said.append(f"on these rewards the same as {' and as '.join(rule.words for rule in others.values())}")
    if len(eps := {rule.eps for rule in same if _kind(rule) == _kind(best.rule)}) > 1:
        said.append(f"an eps of {' or '.join(f'{value:g}' for value in sorted(eps))} cannot be told apart")
    if (figures.size == 1).any():
        said.append("groups of one keep their reward" if best.rule.singleton == "reward" else "groups of one get 0")
    return Detection(best.rule, best.residual, "; ".join(said), None, tuple(others.values()))


def _kind(rule: Rule) -> tuple[str, Std, int]:
    return rule.advantage, rule.std, rule.ddof


def _fits(reward: Floats, group: NDArray[np.int64], target: Floats) -> list[_Fit]:
    """Every rule that says something about these responses, the closest first; ties keep the order of ``_rules``."""
    fits = []
    for rule in _rules(has_singletons=bool((grouped(reward, group).size == 1).any())):
        distance = np.abs(rule.apply(reward, group) - target)
        if np.isfinite(distance).any():
            fits.append(_Fit(float(np.nanmax(distance)), rule))
    return sorted(fits, key=lambda fit: fit.residual)


def _rules(*, has_singletons: bool) -> Iterator[Rule]:
    treatments: tuple[Singleton, ...] = ("zero", "reward") if has_singletons else ("zero",)
    for singleton in treatments:
        yield Rule("grpo", "none", singleton=singleton)
        for ddof in (1, 0):
            for eps in _EPSILONS:
                yield Rule("grpo", "group", ddof, eps, singleton)
                yield Rule("grpo", "batch", ddof, eps, singleton)
        yield Rule("rloo", singleton=singleton)
    yield Rule("reinforce")


def _block_sizes(group: NDArray[np.int64]) -> list[int]:
    """The groups' own size where they share one; where none is known, every even division of the rows."""
    known = group[group >= 0]
    if len(known):
        sizes = set(np.unique(known, return_counts=True)[1].tolist())
        return [size for size in sizes if len(sizes) == 1 and size > 1]
    return [size for size in range(2, len(group) + 1) if len(group) % size == 0]
