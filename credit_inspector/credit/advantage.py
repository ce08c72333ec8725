"""The advantage of every token, from rewards by the run's rule or as the trainer recorded it for each response."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from credit_inspector.advantages import estimators
from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.normalise import grouped, in_words
from credit_inspector.columns import Made
from credit_inspector.credit import credit
from credit_inspector.errors import CreditInspectorError, MissingColumn
from credit_inspector.metrics.finite import finite_where_trained
from credit_inspector.table import Floats, Provenance, TokenTable

# Trainers work in float32 from rewards that a dump may have rounded.
_RELATIVE, _ABSOLUTE = 1e-3, 1e-4


@credit(
    "advantage",
    label="advantage",
    needs=("table",),
    unit="1",
    scope="batch",
    family="assigned",
    sign="+ better than what it is compared with, − worse",
)
def advantage(table: TokenTable) -> Made:
    """How much better the response did than its baseline, recomputed from rewards where they and the rule are known.

    Where they are not, the response's recorded advantage stands in; where both are there and disagree, the note says by
    how much. A group without spread has 0: it carries no policy signal.
    """
    recorded = np.array([np.nan if r.advantage is None else r.advantage for r in table.rollouts], dtype=np.float64)
    rule = table.algorithm
    recomputed, why_not = np.full(table.n_tokens, np.nan), "the run does not say which rule it optimised"
    if rule is not None:
        try:
            recomputed, why_not = estimators[rule.advantage](table, rule), _why_nothing(table)
        except CreditInspectorError as error:
            why_not = str(error)
    known = np.isfinite(recomputed)
    if rule is not None and known.any():
        values = np.where(known, recomputed, table.to_tokens(recorded))
        return finite_where_trained(table, values, *_notes(table, rule, recomputed, recorded))
    if not np.isfinite(recorded).any():
        raise MissingColumn(f"{why_not}, and no advantage was recorded")
    note = f"as recorded for each response; not recomputed: {why_not}"
    return finite_where_trained(table, table.to_tokens(recorded), note, provenance=Provenance.RECORDED)


def _why_nothing(table: TokenTable) -> str:
    if not np.isfinite(table.reward).any():
        return "no response has a reward"
    return "no response has both a reward and a group (neither a group id nor a prompt is known)"


def _notes(table: TokenTable, rule: Algorithm, recomputed: Floats, recorded: Floats) -> Iterator[str]:
    words = in_words(rule.advantage, std=rule.std, ddof=rule.std_ddof, eps=rule.std_eps)
    yield f"{words}; rule {rule.name} ({rule.source})"
    if rule.advantage != "reinforce":
        yield from _group_notes(table, rule)
    unscored = ~np.isfinite(table.reward)
    yield _count(unscored, "without a reward")
    yield _count(~unscored & (table.group < 0) & (rule.advantage != "reinforce"), "without a group: not computed")
    yield _disagreement(table.mean_by_row(recomputed), recorded)


def _group_notes(table: TokenTable, rule: Algorithm) -> Iterator[str]:
    found = grouped(table.reward, table.group)
    single, several = found.size == 1, found.size > 1
    groups, flat = len(set(table.group[several])), len(set(table.group[several & (found.squares == 0)]))
    if flat:
        yield f"{flat} of {groups} groups have no spread: no policy signal"
    treated = "advantage 0" if rule.singleton == "zero" else "the reward itself"
    yield _count(single, f"alone in a group, so without a baseline: {treated}")


def _disagreement(by_row: Floats, recorded: Floats) -> str:
    both = np.isfinite(by_row) & np.isfinite(recorded)
    if not both.any():
        return ""
    differs = both & ~np.isclose(by_row, recorded, rtol=_RELATIVE, atol=_ABSOLUTE)
    if not differs.any():
        return "agrees with the recorded advantages"
    residual = np.abs(by_row[differs] - recorded[differs]).max()
    return (
        f"differs from the recorded advantages of {np.count_nonzero(differs)} of {np.count_nonzero(both)} responses,"
        f" by up to {residual:.4g}"
    )


def _count(which: NDArray[np.bool_], what: str) -> str:
    count = int(np.count_nonzero(which))
    return f"{count} {'response' if count == 1 else 'responses'} {what}" if count else ""
