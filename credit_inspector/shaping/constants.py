"""Other constants in the reward: a shift, a scale, other values for right and wrong."""

from __future__ import annotations

import numpy as np

from credit_inspector.shaping import Change, ShapingInputs, shaping


@shaping("reward_shift", main="by")
def reward_shift(step: ShapingInputs, *, by: float = 0.0) -> Change:
    """Adds one constant to every reward. A group baseline takes it out again: nothing changes, and it is said."""
    return Change(reward=step.reward + by)


@shaping("reward_scale", main="by")
def reward_scale(step: ShapingInputs, *, by: float = 1.0) -> Change:
    """Multiplies every reward. Division by a standard deviation takes it out again, but for the eps beside it."""
    return Change(reward=step.reward * by, replaces=True)


@shaping("outcome_reward", main="right")
def outcome_reward(step: ShapingInputs, *, right: float = 1.0, wrong: float = 0.0) -> Change:
    """Instead of the reward, one number for right answers and one for wrong ones (as the recorded reward has them)."""
    reward = np.where(step.right, right, wrong)
    return Change(reward=np.where(np.isfinite(step.reward), reward, np.nan), replaces=True)
