"""A reward function of the user's own.

The only shaping that runs code, and it runs only what the user named on the command line or in a call. Nothing that a run's
files say is ever imported.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from credit_inspector.errors import UsageError
from credit_inspector.shaping import Change, ShapingInputs, shaping


@shaping("reward", main="function")
def reward(step: ShapingInputs, *, function: str = "", weight: float = 1.0, add: bool = False) -> Change:
    """A function of your own, as ``package.module:function``: called with prompt, response and extra, it returns a number.

    ``extra`` holds what the trainer recorded beside the response. It stands instead of the reward, or with ``add=1`` is added to
    it; ``None`` leaves a response without a reward (with ``add=1``: as it was). A module in the current folder is found too.
    """
    score = _load(function)
    values = np.full(step.table.n_rows, np.nan)
    for row, rollout in enumerate(step.table.rollouts):
        text = step.responses[row]
        if text is not None:
            values[row] = _call(score, function, rollout.sample_id, (rollout.prompt, text, dict(rollout.extra)))
    scored = np.isfinite(values)
    unscored = int(np.count_nonzero(~scored))
    left = "keep the reward they had" if add else "got none"
    note = f"reward {function}: {unscored} of {len(values)} responses {left}" if unscored else ""
    if add:
        return Change(reward=np.where(scored, step.reward + weight * values, step.reward), note=note)
    return Change(reward=weight * values, replaces=True, note=note)


def _load(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise UsageError(f"reward is {name!r}", wanted="package.module:function")
    here = str(Path.cwd())
    sys.path.append(here)  # last, so that no file of that folder stands in for an installed module
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise UsageError(f"reward {name} cannot be loaded: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(here)
    if not callable(found):
        raise UsageError(f"reward {name} is {type(found).__name__}", wanted="a function of prompt, response, extra")
    return found  # type: ignore[no-any-return]


def _call(score: Callable[..., Any], name: str, sample: str, arguments: tuple[Any, ...]) -> float:
    try:
        value = score(*arguments)
        number = math.nan if value is None else float(value)
    except Exception as error:
        raise UsageError(f"reward {name} failed on response {sample}: {type(error).__name__}: {error}") from error
    return number if math.isfinite(number) else math.nan
