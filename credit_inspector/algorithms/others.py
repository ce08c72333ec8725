"""The spread of a group's other rewards, for every response of it.

Taking a response's part out of the group's sum of squares would cancel: one outlier among near-equal rewards leaves
rounding noise, which a division by it makes an advantage of. So the spreads of those before and those after a response
are grown one by one (Welford 1962) and put together (Chan et al. 1979): sums of squares only, and exactly 0 for equal
rewards.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def squares_of_others(reward: Floats, group: NDArray[np.int64]) -> Floats:
    """``[N]`` finite rewards, ``[N]`` group numbers from 0 → ``[N]`` the others' squared distances from their mean, summed."""
    order = np.argsort(group, kind="stable")
    sizes = np.bincount(group) if len(group) else np.zeros(0, np.int64)
    column = group[order]
    place = np.arange(len(group)) - (np.cumsum(sizes) - sizes)[column]
    values = np.zeros((int(sizes.max(initial=0)), len(sizes)))
    values[place, column] = reward[order]
    there = np.arange(len(values))[:, None] < sizes
    count, mean, squares = _before(values, there)
    count_after, mean_after, squares_after = _before(values[::-1], there[::-1])[:, ::-1]
    together = np.maximum(count + count_after, 1)
    apart = (mean - mean_after) ** 2 * count * count_after / together
    answer = np.zeros(len(group))
    answer[order] = (squares + squares_after + apart)[place, column]
    return answer


def _before(values: Floats, there: NDArray[np.bool_]) -> Floats:
    """``[G, K]`` → ``[3, G, K]``: count, mean and sum of squares of what stands above each place in its column."""
    found = np.zeros((3, *values.shape))
    count, mean, squares = np.zeros((3, values.shape[1]))
    for row in range(len(values)):
        found[:, row] = count, mean, squares
        after = np.maximum(count + there[row], 1)
        step = np.where(there[row], values[row] - mean, 0.0)
        squares = squares + step**2 * count / after
        mean = mean + step / after
        count = count + there[row]
    return found
