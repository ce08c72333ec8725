"""What the oracle checks share: reading a vector, laying its padded batch end to end, comparing within its tolerance."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from credit_inspector.algorithm import Algorithm
from credit_inspector.rollout import Rollout
from credit_inspector.table import TokenTable

Vector = dict[str, Any]
Checks = dict[str, Callable[[Vector], None]]
_DATA = Path(__file__).parents[1] / "data"
_FILES = ("oracles.json", "oracles_verl.json", "oracles_openrlhf.json")
VECTORS: list[Vector] = [vector for name in _FILES for vector in json.loads((_DATA / name).read_text())["vectors"]]


def rule(**fields: Any) -> Algorithm:
    return Algorithm(name="test", source="test", **fields)


def floats(values: Any) -> np.ndarray:
    return np.array(values, dtype=float)  # "nan" and "inf" are spelled as strings


def table_of(mask: Any, rewards: Any = None, groups: Any = None) -> TokenTable:
    mask = np.array(mask, bool).reshape(len(mask), -1)
    return TokenTable.from_rollouts(
        0,
        [
            Rollout(
                sample_id=str(i),
                group_id=None if groups is None else str(groups[i]),
                response_ids=np.zeros(mask.shape[1], np.int32),
                loss_mask=mask[i],
                reward=None if rewards is None or np.isnan(rewards[i]) else float(rewards[i]),
            )
            for i in range(len(mask))
        ],
    )


def close(ours: Any, theirs: Any, vector: Vector) -> None:
    np.testing.assert_allclose(np.asarray(ours, float), floats(theirs), rtol=0, atol=vector["tolerance"])
