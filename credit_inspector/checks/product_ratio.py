"""Ratios of whole responses that leave every float."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from credit_inspector.checks import check
from credit_inspector.metrics.statistics import BOUND
from credit_inspector.panel import Finding, Severity, TokenLink
from credit_inspector.store import Store
from credit_inspector.table import TokenTable

CODE = "product-ratio-explodes"
COLUMNS = ("log_ratio/sequence_sum", "log_ratio/sequence_mean")


class Product(NamedTuple):
    """A response whose product of ratios is far from 1."""

    link: TokenLink
    log: float
    mean: float
    """exp(mean log-ratio), the geometric form."""


@check(CODE)
def product_ratio(store: Store) -> list[Finding]:
    """Under a rule that multiplies ratios over a response, whether the product still is a number that an update can use.

    Log-ratios add up over tokens: noise of 0.01 on each of 5,000 makes e^50.
    """
    found, responses = measure(store)
    if not found:
        return []
    worst = max(found, key=lambda product: abs(product.log))
    return [
        Finding(
            code=CODE,
            severity=Severity.WARNING,
            sentence=f"Step {worst.link.step}: the product of ratios over {worst.link.sample_id} is {power(worst.log)}; "
            f"the geometric mean is {worst.mean:.6g}.",
            how_sure=f"{len(found)} of {responses} responses beyond exp(±{BOUND:g}), where trainers hold a log-ratio",
            why="The product grows with length: a little noise on every token makes a response count for nothing or for all.",
            do="Take the ratio as exp of the mean log-ratio (GSPO, ratio_level = sequence), or token by token.",
            links=tuple(product.link for product in sorted(found, key=lambda product: -abs(product.log))[:10]),
            numbers={"log_ratio_sum": worst.log, "geometric": worst.mean, "responses": len(found)},
        )
    ]


def measure(store: Store) -> tuple[list[Product], int]:
    """``(responses whose product is far from 1, all responses)`` over the steps whose rule takes products."""
    found: list[Product] = []
    responses = 0
    for step in store.steps:
        table, _ = store.read_step(step, COLUMNS)
        if table.algorithm is None or table.algorithm.ratio_level != "product" or not all(map(table.has, COLUMNS)):
            continue
        total, mean = (table.mean_by_row(table.values(name)) for name in COLUMNS)
        responses += int(np.count_nonzero(np.isfinite(total)))
        found += _beyond(table, total, mean)
    return found, responses


def _beyond(table: TokenTable, total: np.ndarray, mean: np.ndarray) -> list[Product]:
    rows = np.flatnonzero(np.abs(np.where(np.isfinite(total), total, 0.0)) > BOUND)
    links = (TokenLink(table.step, table.rollouts[row].sample_id, 0, int(table.lengths[row])) for row in rows)
    return [Product(link, float(total[row]), float(np.exp(mean[row]))) for link, row in zip(links, rows, strict=True)]


def power(log: float) -> str:
    """``exp(50) = 5.18e+21``, or ``exp(710)`` alone where that is no float."""
    known = f"exp({log:.5g})"
    return f"{known} = {math.exp(log):.3g}" if -700 < log < math.log(np.finfo(np.float64).max) else known
