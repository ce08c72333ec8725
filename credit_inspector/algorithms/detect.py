"""Which rule made the stored advantages? Try the known ones on the stored rewards and see which reproduces them.

Frameworks divide by the sample deviation, the population deviation, the batch's, that of the others or none, and rarely
say which, yet people compare their numbers. Letters: ``N`` responses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.against_group import gpg, maxrl, opo, passk
from credit_inspector.algorithms.normalise import Baseline, Floats, Singleton, Std, grouped, leave_one_out, normalise
from credit_inspector.algorithms.words import in_words

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
    baseline: Baseline = "group"

    @property
    def words(self) -> str:
        """The rule as a line for a person."""
        return in_words(self.advantage, std=self.std, ddof=self.ddof, eps=self.eps, baseline=self.baseline)

    @property
    def settings(self) -> dict[str, Any]:
        """The fields of ``Algorithm`` that it sets."""
        return {
            "advantage": self.advantage,
            "baseline": self.baseline,
            "std": self.std,
            "std_ddof": self.ddof,
            "std_eps": self.eps,
            "singleton": self.singleton,
        }

    def apply(self, rewards: ArrayLike, group: ArrayLike, lengths: ArrayLike | None = None) -> Floats:
        """``[N]`` its advantages; all NaN where it needs the trained ``lengths`` ``[N]`` and they are not known."""
        reward = np.asarray(rewards, np.float64)
        match self.advantage:
            case "rloo":
                return leave_one_out(reward, group, singleton=self.singleton)
            case "reinforce":
                return reward
            case "maxrl":
                return maxrl(reward, group, eps=self.eps, singleton=self.singleton)
            case "gpg":
                return gpg(reward, group, singleton=self.singleton)
            case "opo" if lengths is not None:
                return opo(reward, group, lengths, singleton=self.singleton)
            case "opo":
                return np.full_like(reward, np.nan)
            case "grpo_passk":
                return passk(reward, group, std=self.std, ddof=self.ddof, eps=self.eps, singleton=self.singleton)
        return normalise(
            reward,
            group,
            baseline=self.baseline,
            std=self.std,
            ddof=self.ddof,
            eps=self.eps,
            singleton=self.singleton,
        )


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

    @property
    def response_ids(self) -> NDArray[np.int32] | None:
        """``[L]`` its tokens."""

    @property
    def loss_mask(self) -> NDArray[np.bool_] | None:
        """``[L]`` which of them are trained; all where it is not known."""

    @property
    def columns(self) -> Mapping[str, NDArray[np.float32]]:
        """``[L]`` each; ``advantage`` where the trainer stored one number a token."""


class _Case(NamedTuple):
    """What rules are tried on; ``[N]`` each."""

    reward: Floats
    group: NDArray[np.int64]
    target: Floats
    lengths: Floats | None


class _Fit(NamedTuple):
    residual: float
    rule: Rule


def detect(rollouts: Sequence[Scored]) -> Algorithm | None:
    """The rule that the rollouts' stored advantages follow, or ``None`` where none fits or the rewards cannot tell.

    Advantages say nothing about the loss that used them: its settings are those that an ``Algorithm`` has by default,
    and the ``source`` says so. Where the trainer stored one advantage a token and it is the same on all trained tokens
    of a response, that is the response's.
    """
    found = explain_rollouts(rollouts)
    if found.rule is None:
        return None
    source = "detected from advantages; loss and weights are assumed"
    return Algorithm(name=f"detected/{found.rule.advantage}", source=source, **found.rule.settings)


def explain_rollouts(rollouts: Sequence[Scored]) -> Detection:
    """``explain`` for rollouts: the rule that their stored advantages follow, and how well."""
    numbers: dict[str, int] = {}
    tokens = [_token_advantages(rollout) for rollout in rollouts]
    if varied := sum(np.ptp(values) > _TOLERANCE * max(1.0, float(np.abs(values).max())) for values in tokens if len(values)):
        found = f"stored advantages differ between the tokens of {varied} of {len(tokens)} responses"
        return Detection(None, np.nan, f"{found}: no rule of one number a response")
    lengths = [_trained(rollout) for rollout in rollouts]
    return explain(
        [np.nan if r.reward is None else r.reward for r in rollouts],
        [-1 if r.group_id is None else numbers.setdefault(r.group_id, len(numbers)) for r in rollouts],
        [_stored(rollout, values) for rollout, values in zip(rollouts, tokens, strict=True)],
        lengths=None if None in lengths else lengths,  # type: ignore[arg-type]
    )


def explain(
    rewards: ArrayLike,
    group: ArrayLike,
    stored: ArrayLike,
    *,
    lengths: ArrayLike | None = None,
    tolerance: float = _TOLERANCE,
) -> Detection:
    """Find the rule by which ``stored`` advantages follow from ``rewards``, and say how well; all ``[N]``.

    Args:
        rewards: scalar rewards, NaN where missing.
        group: group numbers, −1 where unknown.
        stored: advantages as the trainer left them, NaN where missing.
        lengths: trained tokens, where known: one rule weighs by them.
        tolerance: how far they may stand from a rule, relative to the largest of them (at least 1).
    """
    number, target = np.asarray(group, np.int64), np.asarray(stored, np.float64)
    case = _Case(np.asarray(rewards, np.float64), number, target, None if lengths is None else np.asarray(lengths, np.float64))
    compared = np.isfinite(case.reward) & np.isfinite(target)
    if not compared.any():
        return Detection(None, np.nan, "no response has both a reward and a stored advantage")
    allowed = tolerance * max(1.0, float(np.abs(target[compared]).max()))
    by_ids = _fits(case)
    if by_ids[0].residual <= allowed:
        return _found(by_ids, case)
    for size in _block_sizes(number):
        blocks = case._replace(group=np.arange(len(number)) // size)
        fits = _fits(blocks)
        if fits[0].residual <= allowed:
            found = _found(fits, blocks)
            ids = "not the group ids" if (number >= 0).any() else "and there are no group ids"
            message = f"stored advantages match blocks of {size} consecutive rows, {ids}: {found.message}"
            return replace(found, message=message, blocks=size)
    nearest = by_ids[0]
    misses = f"{nearest.rule.words}, misses by {nearest.residual:.4g}"
    message = f"stored advantages do not match a known rule; the nearest, {misses}"
    return Detection(None, nearest.residual, message)


def _found(fits: list[_Fit], case: _Case) -> Detection:
    best = fits[0]
    same = [fit.rule for fit in fits if fit.residual <= 3 * best.residual + _EXACT]
    others = {_kind(rule): rule for rule in reversed(same) if _kind(rule) != _kind(best.rule)}
    also = tuple(reversed(others.values()))
    figures = grouped(case.reward, case.group)
    said = [f"{best.rule.words}; residual {best.residual:.2g}"]
    if not (figures.squares > 0).any() and best.rule.baseline != "batch":
        if not np.nan_to_num(case.target).any():
            return Detection(None, best.residual, _nothing_told(figures.size))
        said = [f"{_equals_raw(case.target)}; residual {best.residual:.2g}"]
    elif also:
        said.append(f"on these rewards the same as {' and as '.join(rule.words for rule in also)}")
    if len(eps := {rule.eps for rule in same if _kind(rule) == _kind(best.rule)}) > 1:
        said.append(f"an eps of {' or '.join(f'{value:g}' for value in sorted(eps))} cannot be told apart")
    if (figures.size == 1).any() and best.rule.baseline != "batch":
        said.append("groups of one keep their reward" if best.rule.singleton == "reward" else "groups of one get 0")
    return Detection(best.rule, best.residual, "; ".join(said), None, also)


def _nothing_told(size: Floats) -> str:
    zeroed = "; a group of one has no baseline: its stored value is zeroed" if (size == 1).any() else ""
    return f"no group has spread: every rule of a group gives 0, so none can be told{zeroed}"


def _equals_raw(target: Floats) -> str:
    if np.count_nonzero(np.isfinite(target)) == 1:
        return "stored value equals the raw reward"
    return "stored values equal the raw rewards"


def _kind(rule: Rule) -> tuple[str, Baseline, Std, int]:
    return rule.advantage, rule.baseline, rule.std, rule.ddof


def _fits(case: _Case) -> list[_Fit]:
    """Every rule that says something about these responses, the closest first.

    Those that the closest beats by no more than rounding come in the order of ``_rules``, the plainer first.
    """
    fits = []
    figures = grouped(case.reward, case.group)
    for rule in _rules(has_singletons=bool((figures.size == 1).any())):
        ours = rule.apply(case.reward, case.group, case.lengths)
        distance = np.abs(ours - case.target)
        # Pass@k of a tie is 0 everywhere: where there is something to pay, that says nothing about a rule.
        says_nothing = (figures.squares > 0).any() and not np.nan_to_num(ours).any()
        if np.isfinite(distance).any() and not says_nothing:
            fits.append(_Fit(float(np.nanmax(distance)), rule))
    closest = min(fit.residual for fit in fits)
    return sorted(fits, key=lambda fit: max(fit.residual, closest + _EXACT))


def _rules(*, has_singletons: bool) -> Iterator[Rule]:
    treatments: tuple[Singleton, ...] = ("zero", "reward") if has_singletons else ("zero",)
    for singleton in treatments:
        yield Rule("grpo", "none", singleton=singleton)
        for ddof in (1, 0):
            for eps in _EPSILONS:
                yield Rule("grpo", "group", ddof, eps, singleton)
                yield Rule("grpo", "batch", ddof, eps, singleton)
        yield Rule("rloo", singleton=singleton)
        yield Rule("grpo", "leave-one-out", 1, 1e-6, singleton, "leave-one-out")
        for eps in (0.0, 1e-6):
            yield Rule("maxrl", eps=eps, singleton=singleton)
        yield Rule("gpg", singleton=singleton)
        yield Rule("opo", singleton=singleton)
        yield Rule("grpo_passk", "none", singleton=singleton)
        yield Rule("grpo_passk", "group", 1, 1e-6, singleton)
    yield Rule("reinforce")
    yield Rule("grpo", baseline="batch")
    for ddof in (1, 0):
        for eps in _EPSILONS:
            yield Rule("grpo", "batch", ddof, eps, baseline="batch")


def _block_sizes(group: NDArray[np.int64]) -> list[int]:
    """The groups' own size where they share one; where none is known, every even division of the rows."""
    known = group[group >= 0]
    if len(known):
        sizes = set(np.unique(known, return_counts=True)[1].tolist())
        return [size for size in sizes if len(sizes) == 1 and size > 1]
    return [size for size in range(2, len(group) + 1) if len(group) % size == 0]


def _token_advantages(rollout: Scored) -> Floats:
    """The finite advantages of its trained tokens where the trainer stored one a token and none for the whole."""
    tokens = rollout.columns.get("advantage")
    if tokens is None or rollout.advantage is not None:
        return np.zeros(0)
    known = rollout.loss_mask is not None and len(rollout.loss_mask) == len(tokens)
    trained = tokens[rollout.loss_mask] if known else tokens
    return trained[np.isfinite(trained)].astype(np.float64)


def _stored(rollout: Scored, tokens: Floats) -> float:
    if rollout.advantage is not None:
        return rollout.advantage
    return float(tokens[0]) if len(tokens) else np.nan


def _trained(rollout: Scored) -> int | None:
    if rollout.response_ids is None:
        return None
    return len(rollout.response_ids) if rollout.loss_mask is None else int(np.count_nonzero(rollout.loss_mask))
