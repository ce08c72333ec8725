"""Assigned credit of a large step, against what the same machine needs for one pass of ``exp`` over the same tokens.

1,024 ragged responses with 4 million tokens; advantage, weight, ratio, clip, the KL estimators, the pushes, the
coefficient and delivered credit. The value is how many such passes all of it costs, the middle of several rounds,
each of which times both, so that a slow or busy machine cancels out. The last line is JSON; the exit code is 1 when
the bound is missed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import numpy as np

from credit_inspector.algorithm import Algorithm
from credit_inspector.columns import Inputs, compute
from credit_inspector.credit import credits as credit_columns
from credit_inspector.metrics import metrics
from credit_inspector.rollout import Rollout
from credit_inspector.table import Floats, TokenTable

RESPONSES, TOKENS, ROUNDS = 1_024, 4_000_000, 5

# Measured 46 to 61 on two cores that were busy with other work.
BOUND = 100.0

WANTED = (
    "advantage",
    "weight",
    "log_ratio",
    "ratio",
    "kl/k1",
    "kl/k2",
    "kl/k3",
    "clip",
    "credit/policy_push",
    "credit/kl_push",
    "credit/coefficient",
    "credit/delivered",
)

RULE = Algorithm(
    name="benchmark",
    source="benchmark",
    aggregation="seq-mean-token-mean",
    kl_beta=0.04,
    kl_gradient="ratio-weighted",
    dual_clip=3.0,
    log_ratio_clamp=20.0,
    updates_per_batch=4,
)


def step() -> TokenTable:
    """A step of ragged responses in groups of eight, a tenth of the tokens masked."""
    random = np.random.default_rng(0)
    share = random.gamma(2.0, size=RESPONSES)
    lengths = np.maximum(1, share / share.sum() * TOKENS).astype(int)
    lengths[lengths.argmax()] += TOKENS - lengths.sum()
    rollouts = []
    for i, n in enumerate(lengths):
        policy = -random.exponential(0.5, n).astype(np.float32)
        moved = random.normal(0, 0.1, (2, n)).astype(np.float32)
        chosen = np.exp(policy)
        rollouts.append(
            Rollout(
                sample_id=str(i),
                group_id=str(i // 8),
                response_ids=np.zeros(n, np.int32),
                loss_mask=random.random(n) < 0.9,
                reward=float(random.integers(2)),
                columns={
                    "logprob/policy": policy,
                    "logprob/old": policy + moved[0],
                    "logprob/ref": policy + moved[1],
                    "sum_p2/policy": chosen**2 + 0.5 * (1 - chosen) ** 2,
                },
            )
        )
    return TokenTable.from_rollouts(0, rollouts, algorithm=RULE)


def assigned(table: TokenTable) -> None:
    """Make all columns anew."""
    specs = {spec.name: spec for registry in (metrics, credit_columns) for spec in registry.members()}
    for name in WANTED:
        table.columns.pop(name, None)
    compute(Inputs(table, algorithm=RULE), WANTED, specs)
    if missing := [name for name in WANTED if not table.has(name)]:
        raise RuntimeError(f"{missing[0]} was not made: {table.columns[missing[0]].note}")


def seconds(work: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> int:
    """Measure, print, judge."""
    table = step()
    logprob: Floats = table.values("logprob/policy")
    assigned(table)
    ratios, rates = [], []
    for _ in range(ROUNDS):
        one_pass = sorted(seconds(lambda: np.exp(logprob)) for _ in range(5))[2]
        whole = seconds(lambda: assigned(table))
        ratios.append(whole / one_pass)
        rates.append(table.n_tokens / whole)
    value = float(np.median(ratios))
    print(f"{len(WANTED)} columns of {table.n_tokens:,} tokens: {np.median(rates):,.0f} tokens a second")
    print(json.dumps({"name": "assigned", "value": round(value, 1), "bound": BOUND, "ok": value <= BOUND}))
    return 0 if value <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
