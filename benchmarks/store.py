"""What an analysis takes on disk, and what reading it back costs, beside plain Parquet.

Two promises, measured in one run on a step of a million tokens:

* **size**: at most 40 bytes a token for the twelve standard columns, the token ids and everything else in the file included.
  Nine of them differ from token to token, and their mantissas are as good as random, as those of a trained model's are.
* **reading**: not more than 1.1 times the processor time that the same table takes from a file of pyarrow's default encodings.
  Both are read in turn and the median of the ratios counts.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from credit_inspector.rollout import Rollout
from credit_inspector.store import ROWS_A_GROUP, Store
from credit_inspector.table import Provenance, TokenTable

TOKENS, RESPONSES, VOCABULARY = 1_000_000, 1_024, 151_936
SIZE, READING, REPEATS = 40.0, 1.1, 9


def main() -> int:
    """Measure, print, judge."""
    table = step()
    with tempfile.TemporaryDirectory() as folder:
        ours, plain = Store(Path(folder) / "ours"), Store(Path(folder) / "plain")
        ours.write_step(table, None)
        same_in_default_encodings(ours, plain)
        check_equal(table, ours)
        found = [size(table, ours, plain), reading(ours, plain)]
    for one in found:
        print(json.dumps(one))
    ok = all(one["ok"] for one in found)
    print(json.dumps({"name": "store", "value": found[0]["value"], "bound": SIZE, "ok": ok}))
    return 0 if ok else 1


def step() -> TokenTable:
    """1,024 responses whose lengths, log-probs and advantages are spread as those of a reasoning run are."""
    chance = np.random.default_rng(0)
    shares = chance.lognormal(0, 0.6, RESPONSES)
    bounds = np.round(np.concatenate([[0], np.cumsum(shares)]) * (TOKENS / shares.sum())).astype(np.int64)
    words = np.minimum(chance.zipf(1.3, TOKENS), VOCABULARY - 1).astype(np.int32)
    rollouts = [
        Rollout(
            sample_id=f"1-{i}",
            group_id=str(i // 8),
            response_ids=words[bounds[i] : bounds[i + 1]],
            loss_mask=np.ones(bounds[i + 1] - bounds[i], bool),
            reward=float(i % 3 == 0),
        )
        for i in range(RESPONSES)
    ]
    table = TokenTable.from_rollouts(1, rollouts)
    for name, values in columns(table, chance).items():
        table.add(name, values, Provenance.DERIVED)
    return table


def columns(table: TokenTable, chance: np.random.Generator) -> dict[str, np.ndarray]:
    """The twelve standard columns: what a trainer records, what scoring adds and what follows from both."""
    old = -chance.gamma(0.35, 1.2, TOKENS)
    policy = old + chance.normal(0, 0.01, TOKENS)
    ref = old + chance.normal(0, 0.15, TOKENS)
    advantage = table.to_tokens(chance.normal(0, 1, RESPONSES))
    ratio = np.exp(policy - old)
    return {
        "logprob/old": old,
        "logprob/policy": policy,
        "logprob/ref": ref,
        "logprob/after": policy + chance.normal(0, 0.05, TOKENS),
        "entropy/policy": chance.gamma(0.5, 0.8, TOKENS),
        "kl/k3": np.expm1(ref - policy) - (ref - policy),
        "ratio": ratio,
        "clip": (np.abs(ratio - 1) > 0.2).astype(np.float64),
        "advantage": advantage,
        "credit/coefficient": advantage * ratio / TOKENS,
        "credit/delivered": advantage * ratio * -np.expm1(policy) / TOKENS,
        "credit/realised": chance.normal(0, 0.05, TOKENS),
    }


def same_in_default_encodings(ours: Store, plain: Store) -> None:
    """The same table, its encodings left to pyarrow."""
    (plain.folder / "steps").mkdir(parents=True)
    name = "steps/step_000001.parquet"
    pq.write_table(pq.read_table(ours.folder / name), plain.folder / name, compression="zstd", row_group_size=ROWS_A_GROUP)


def check_equal(table: TokenTable, store: Store) -> None:
    """Nothing was rounded on the way."""
    back = store.read_step(1)[0]
    for name, column in table.columns.items():
        np.testing.assert_array_equal(back.columns[name].values, column.values)
    np.testing.assert_array_equal(back.token_ids, table.token_ids)


def size(table: TokenTable, ours: Store, plain: Store) -> dict[str, Any]:
    """Bytes a token of the whole file; beside it, plain Parquet and the columns unpacked."""
    a, b = ((store.folder / "steps/step_000001.parquet").stat().st_size / table.n_tokens for store in (ours, plain))
    names = sorted(table.columns)
    more = {"plain_parquet": round(b, 2), "unpacked": 4 * len(names) + 4, "columns": names}
    return {"name": "store.size", "value": round(a, 2), "bound": SIZE, "ok": a <= SIZE, **more}


def reading(ours: Store, plain: Store) -> dict[str, Any]:
    """The whole step, and one column of it."""
    ratios = {}
    for what, wanted in (("all", None), ("one column", ["logprob/policy"])):
        first, second = (partial(store.read_step, 1, wanted) for store in (ours, plain))
        pairs = [(seconds(first), seconds(second)) for _ in range(REPEATS)]
        ratios[what] = statistics.median(one / other for one, other in pairs)
    worst = max(ratios.values())
    more = {what: round(ratio, 3) for what, ratio in ratios.items()}
    return {"name": "store.reading", "value": round(worst, 3), "bound": READING, "ok": worst <= READING, **more}


def seconds(work: Callable[[], object]) -> float:
    """Processor seconds, so that other work on the machine plays a smaller part."""
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    sys.exit(main())
