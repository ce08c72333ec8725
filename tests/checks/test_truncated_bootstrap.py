"""A response that was cut off is bootstrapped with 0 by every trainer with a critic, and that is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from credit_inspector.algorithm import Algorithm
from credit_inspector.checks import checks
from credit_inspector.checks.truncated_bootstrap import CODE
from credit_inspector.panel import Severity, TokenLink
from credit_inspector.rollout import Rollout
from credit_inspector.store import Meta, Store
from credit_inspector.table import TokenTable

RULE = Algorithm(name="test", source="preset")


def found(tmp_path: Path, truncated: list[bool | None], **fields: object) -> list[tuple[str, Severity, tuple[TokenLink, ...]]]:
    rollouts = [
        Rollout(sample_id=str(i), group_id="g", response_ids=np.array([1, 2, 3], np.int32), reward=1.0, truncated=cut)
        for i, cut in enumerate(truncated)
    ]
    store = Store(tmp_path)
    store.write_meta(Meta(source="r", trainer="t"), None)
    store.write_step(TokenTable.from_rollouts(4, rollouts, algorithm=replace(RULE, **fields)), None)
    return [(each.sentence, each.severity, each.links) for each in checks[CODE](store)]


def test_cut_responses_under_a_critic_are_counted(tmp_path: Path) -> None:
    ((sentence, severity, links),) = found(tmp_path, [True, False, None, False], advantage="gae")
    assert sentence == "1 of 3 responses (33 %) were cut off, and GAE puts the value 0 behind their end."
    assert severity is Severity.WARNING
    assert links == (TokenLink(4, "0", 2, 3),)


@pytest.mark.parametrize("fields", [{}, {"advantage": "gae", "mask_truncated": True}])
def test_rules_that_put_no_value_there_are_left_alone(tmp_path: Path, fields: dict[str, object]) -> None:
    assert found(tmp_path, [True, False], **fields) == []


def test_a_clean_run_under_a_critic_is_left_alone(tmp_path: Path) -> None:
    assert found(tmp_path, [False, None], advantage="gae") == []
