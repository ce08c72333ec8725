"""Length penalties, as trainers and papers have them.

|y| is the number of trained tokens where a method counts what the policy wrote, and of all response tokens where a trainer
counts them. A response without a reward stays without one, and one whose tokens are not known is left without.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from credit_inspector.errors import MissingColumn, UsageError
from credit_inspector.shaping import Change, ShapingInputs, shaping
from credit_inspector.table import Floats, TokenTable

Who = Literal["all", "right"]


@shaping("length_penalty", main="alpha")
def length_penalty(step: ShapingInputs, *, alpha: float = 0.001, only: Who = "all") -> Change:
    """Reward − alpha · |y|, |y| the trained tokens; ``only=right`` leaves wrong answers as they are."""
    taken = np.where(_who(step, only), alpha * step.lengths, 0.0)
    return Change(reward=step.reward - taken)


@shaping("overlong", main="max")
def overlong(
    step: ShapingInputs,
    *,
    max: float | None = None,  # noqa: A002 - the trainers' word
    buffer: float | None = None,
    factor: float = 1.0,
    floor: bool = True,
) -> Change:
    """DAPO's soft overlong punishment: 0 up to max − buffer tokens, then down to −factor at max.

    ``floor=1`` never takes more than factor (TRL ``get_soft_overlong_punishment``, OpenRLHF ``apply_overlong_penalty``);
    ``floor=0`` goes on beyond max (verl's ``dapo`` reward manager, NeMo-RL ``apply_reward_shaping``). All response tokens count.
    """
    most, soft = _given(step, "max", max), _given(step, "buffer", buffer)
    if soft > most:
        raise UsageError(f"overlong.buffer is {soft:g}", wanted=f"at most overlong.max, {most:g}")
    lengths = np.where(np.isnan(step.lengths), np.nan, step.table.lengths)
    penalty = overlong_penalty(lengths, most, soft, factor, floor=floor)
    hit = int(np.count_nonzero(penalty < 0))
    return Change(
        reward=step.reward + penalty, note=f"overlong: {hit} of {len(penalty)} responses are beyond {most - soft:g} tokens"
    )


def overlong_penalty(lengths: Floats, most: float, buffer: float, factor: float, *, floor: bool) -> Floats:
    """``[N]`` token counts → what is added to rewards, 0 or less (Yu et al. 2025, DAPO, equation 13)."""
    over: Floats = np.maximum(lengths - (most - buffer), 0.0)
    held = np.minimum(over, buffer) if floor else over
    added: Floats = 0.0 - held / buffer * factor
    return added


@shaping("kimi_length", main="weight")
def kimi_length(step: ShapingInputs, *, weight: float = 1.0) -> Change:
    """Kimi k1.5's length reward, times weight: λ = 0.5 − (|y| − min) / (max − min) inside the group; wrong ones min(0, λ).

    Kimi Team 2025, section 2.3.3. A group whose responses are equally long gets 0.
    """
    added = kimi_reward(step.lengths, step.right, step.table.group)
    return Change(reward=step.reward + weight * added)


def kimi_reward(lengths: Floats, right: NDArray[np.bool_], group: NDArray[np.int64]) -> Floats:
    """``[N]`` λ of each response; 0 without a group, and in a group of equal lengths; NaN without a length."""
    low, high = _extreme(np.fmin, lengths, group, np.inf), _extreme(np.fmax, lengths, group, -np.inf)
    wide = (group >= 0) & (high > low)
    scaled: Floats = 0.5 - np.divide(lengths - low, high - low, out=np.full(len(lengths), 0.5), where=wide)
    return np.where(np.isnan(lengths), np.nan, np.where(right, scaled, np.minimum(scaled, 0.0)))


@shaping("prime_length", main="output")
def prime_length(step: ShapingInputs, *, output: float = 0.1, input: float = 0.0, turns: float = 0.0) -> Change:  # noqa: A002
    """prime-rl's penalty: reward − the group's mean reward · (output · out/max + input · in/max + turns · turns/max).

    prime-rl 559b447 ``algo/grpo.py``: ``out`` counts trained tokens, ``in`` all other tokens with the prompt, maxima are the
    group's and at least 1. A group whose mean reward is 0 is not penalised.
    """
    table = step.table
    out = step.lengths
    prompt = np.array([0 if r.prompt_ids is None else len(r.prompt_ids) for r in table.rollouts], dtype=np.float64)
    counted = ((output, out), (input, prompt + table.lengths - out), (turns, _turns(table)))
    share = np.zeros(table.n_rows)
    for weight, values in counted:
        share += weight * values / np.maximum(_extreme(np.fmax, values, table.group, 0.0), 1.0)
    return Change(reward=step.reward - _group_mean(step.reward, table.group) * share)


@shaping("concise", main="alpha")
def concise(step: ShapingInputs, *, alpha: float = 0.5, length: float | None = None) -> Change:
    """Instead of the reward, "correct and concise": 1 − alpha · min(|y|, length) / length for a right answer, else 0."""
    most = _given(step, "length", length)
    used = np.minimum(step.lengths, most) / most
    reward = np.where(step.right, 1.0 - alpha * used, 0.0)
    return Change(reward=np.where(np.isfinite(step.reward), reward, np.nan), replaces=True)


@shaping("stop_properly", main="coef")
def stop_properly(step: ShapingInputs, *, coef: float = 0.0) -> Change:
    """ProRL's stop-properly penalty: a truncated response's reward times coef (0 to 1), or coef itself where it is negative.

    OpenRLHF 0.11 ``apply_stop_properly_penalty``; NeMo-RL takes 0 to 1 alone.
    """
    if coef > 1:
        raise UsageError(f"stop_properly.coef is {coef:g}", wanted="0 to 1, or a negative reward")
    told = np.array([rollout.truncated is not None for rollout in step.table.rollouts])
    if not told.any():
        raise MissingColumn("stop_properly: the run does not say which responses were truncated")
    cut = np.array([bool(rollout.truncated) for rollout in step.table.rollouts])
    shaped = np.where(np.isfinite(step.reward), coef, np.nan) if coef < 0 else step.reward * coef
    unknown = f", of {np.count_nonzero(~told)} it is not known" if not told.all() else ""
    note = f"stop_properly: {np.count_nonzero(cut)} of {len(cut)} responses are truncated{unknown}"
    return Change(reward=np.where(cut, shaped, step.reward), note=note)


def _who(step: ShapingInputs, only: Who) -> NDArray[np.bool_]:
    return step.right if only == "right" else np.ones(step.table.n_rows, np.bool_)


def _given(step: ShapingInputs, name: str, value: float | None) -> float:
    if value is None or value <= 0:
        raise UsageError(
            f"{step.named}.{name} is not given", wanted="a number of tokens above 0", do=f"--set {step.named}.{name}=TOKENS"
        )
    return value


def _extreme(which: np.ufunc, values: Floats, group: NDArray[np.int64], start: float) -> Floats:
    """``[N]`` the group's smallest or largest value on each of its responses; the response's own without a group."""
    found = np.full(int(group.max(initial=-1)) + 1, start)
    inside = group >= 0
    which.at(found, group[inside], values[inside])
    return np.where(inside, np.append(found, start)[group], values)


def _group_mean(values: Floats, group: NDArray[np.int64]) -> Floats:
    scored = np.isfinite(values) & (group >= 0)
    count = np.bincount(group[scored], minlength=int(group.max(initial=-1)) + 1)
    total = np.bincount(group[scored], weights=values[scored], minlength=len(count))
    mean = np.divide(total, count, out=np.zeros(len(count)), where=count > 0)
    return np.where(group >= 0, np.append(mean, 0.0)[group], values)


def _turns(table: TokenTable) -> Floats:
    """``[N]`` stretches of trained tokens: one a turn of the policy."""
    before = np.append(False, table.loss_mask[:-1]) if table.n_tokens else table.loss_mask
    begins = table.loss_mask & (~before | (table.position == 0))
    return table.sum_by_row(begins)
