"""The reference vectors: what trainers' own functions gave, against what this package gives.

One case a vector. Inputs and outputs are the producers' (``tests/data/oracles.json``: package, version and callable are
in each vector); ``dloss_dlogp`` is autograd through the producer's function. Batches lie padded in the file and are
laid end to end here. The checks stand in ``oracles/``, each under the longest beginning of a vector's id that it takes.
"""

from __future__ import annotations

import pytest

from oracles import VECTORS, Checks, Vector, advantages, attribution, losses, metrics, returns, shaping, weights

CHECKS: Checks = {
    **advantages.CHECKS,
    **returns.CHECKS,
    **losses.CHECKS,
    **weights.CHECKS,
    **metrics.CHECKS,
    **shaping.CHECKS,
    **attribution.CHECKS,
}


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["id"])
def test_oracle(vector: Vector) -> None:
    fitting = [start for start in CHECKS if vector["id"].startswith(start)]
    assert fitting, f"nothing checks {vector['id']} ({vector['quantity']})"
    CHECKS[max(fitting, key=len)](vector)
