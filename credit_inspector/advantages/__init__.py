"""Advantage estimators: rewards → one advantage per token.

To add one, drop a file in that decorates a function with ``@estimator``. It gets the step's table and the run's algorithm and
returns ``[T]``: NaN where no advantage can be computed (no reward, no group), 0 for a group without spread.
"""

from __future__ import annotations

from collections.abc import Callable

from credit_inspector.algorithm import Algorithm
from credit_inspector.registry import Registry
from credit_inspector.table import Floats, TokenTable

Estimator = Callable[[TokenTable, Algorithm], Floats]

estimators: Registry[Estimator] = Registry("advantages", __name__)


def estimator(name: str) -> Callable[[Estimator], Estimator]:
    """Put an estimator in under its name in ``Algorithm.advantage``."""
    return lambda function: estimators.add(name, function)


__all__ = ["Estimator", "estimator", "estimators"]
