"""What several test folders use: small tables, and the shipped run."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from credit_inspector import pipeline
from credit_inspector.algorithm import Algorithm
from credit_inspector.rollout import Rollout
from credit_inspector.store import Store
from credit_inspector.table import TokenTable
from credit_inspector.trainers.opening import open_run
from places import SAMPLE

# Two workers share two cores: a deadline would measure the neighbour. CI draws the same examples every time.
settings.register_profile("project", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("project")

RULE = Algorithm(name="test/grpo", source="preset", std_eps=0.0)

MakeTable = Callable[..., TokenTable]


@pytest.fixture
def sample_run() -> Path:
    return SAMPLE


@pytest.fixture
def make_table() -> MakeTable:
    """Rows of ids with rewards and groups → a table under a plain GRPO rule."""

    def make(
        ids: Sequence[Sequence[int]],
        rewards: Sequence[float | None] | None = None,
        groups: Sequence[str | None] | None = None,
        masks: Sequence[Sequence[bool]] | None = None,
    ) -> TokenTable:
        rollouts = [
            Rollout(
                sample_id=f"s{i}",
                group_id=groups[i] if groups else "g",
                group_source="given",
                prompt_ids=np.array([1, 2], np.int32),
                response_ids=np.array(row, np.int32),
                loss_mask=None if masks is None else np.array(masks[i], bool),
                reward=rewards[i] if rewards else None,
            )
            for i, row in enumerate(ids)
        ]
        return TokenTable.from_rollouts(1, rollouts, algorithm=RULE)

    return make


@pytest.fixture(scope="session")
def analysis(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Store:
    """The shipped run, three steps of it, analysed once for all test workers."""
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent
    with (shared / "analysis.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        steps = open_run(SAMPLE).steps
        return pipeline.analyze(SAMPLE, shared / "analysis", pipeline.Options(steps=(steps[0], steps[1], steps[-1])))
