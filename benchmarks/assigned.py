"""Assigned credit of a large step: how fast, how much memory, and against the trainers' own torch functions.

1,024 ragged responses with 4 million tokens; all assigned-credit columns. Three promises in one run:

- at least 1 M tokens a second on two cores: the value is the promised rate over the measured one, and a line before says
  how many passes of ``exp`` over the same tokens it takes, which a slow or busy machine does not change;
- at most 3 GB of memory at the peak of the process that holds the step;
- not slower than TRL's and verl's own functions for advantage and loss coefficient (theirs by autograd, on the same
  responses padded to the longest), where they are installed.

Each promise prints a JSON line; the last line is the worst of them as a share of its bound, and the exit code is 1 when one is
missed.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np

from credit_inspector.algorithm import Algorithm
from credit_inspector.columns import Inputs, compute
from credit_inspector.credit import credits as credit_columns
from credit_inspector.metrics import metrics
from credit_inspector.rollout import Rollout
from credit_inspector.table import Floats, TokenTable

RESPONSES, TOKENS, ROUNDS = 1_024, 4_000_000, 5
GIGABYTE = 2**30

RATE, MEMORY = 1_000_000, 3.0

SPECS = {spec.name: spec for registry in (metrics, credit_columns) for spec in registry.members()}
ASSIGNED = tuple(name for name, spec in SPECS.items() if spec.family == "assigned" and "models" not in spec.needs)
WANTED = (*ASSIGNED, "log_ratio", "ratio", "outside", "kl/k1", "kl/k2", "kl/k3", "log_ratio/rollout", "surprisal")
RECORDED = ("logprob/policy", "logprob/old", "logprob/ref", "logprob/rollout", "sum_p2/policy")
COMPARED = ("advantage", "weight", "credit/policy_push", "credit/kl_push", "credit/coefficient")

RULE = Algorithm(
    name="benchmark",
    source="benchmark",
    aggregation="seq-mean-token-mean",
    kl_beta=0.04,
    kl_gradient="ratio-weighted",
    dual_clip=3.0,
    log_ratio_clamp=20.0,
    rollout_weight="token",
    rollout_high=2.0,
    updates_per_batch=4,
)


def step() -> TokenTable:
    """A step of ragged responses in groups of eight, a tenth of the tokens masked."""
    random = np.random.default_rng(0)
    share = random.uniform(0.25, 1.75, size=RESPONSES)
    lengths = np.maximum(1, share / share.sum() * TOKENS).astype(int)
    lengths[lengths.argmin()] += TOKENS - lengths.sum()
    rollouts = []
    for i, n in enumerate(lengths):
        policy = -random.exponential(0.5, n).astype(np.float32)
        moved = random.normal(0, 0.1, (3, n)).astype(np.float32)
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
                    "logprob/rollout": policy + moved[2],
                    "sum_p2/policy": chosen**2 + 0.5 * (1 - chosen) ** 2,
                },
            )
        )
    return TokenTable.from_rollouts(0, rollouts, algorithm=RULE)


def assigned(table: TokenTable, rule: Algorithm = RULE, wanted: tuple[str, ...] = WANTED) -> None:
    """Make the wanted columns anew."""
    for name in set(SPECS) - set(RECORDED):
        table.columns.pop(name, None)
    table.algorithm = rule
    compute(Inputs(table, algorithm=rule), wanted, SPECS)
    if missing := [name for name in wanted if not table.has(name)]:
        raise RuntimeError(f"{missing[0]} was not made: {table.columns[missing[0]].note}")


def seconds(work: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


# ── the promises ────────────────────────────────────────────────────────────────────────────────────────────────────────


def speed(table: TokenTable) -> dict[str, Any]:
    """All columns: the promised rate over the measured one."""
    logprob: Floats = table.values("logprob/policy")
    ratios, rates = [], []
    for _ in range(ROUNDS):
        one_pass = sorted(seconds(lambda: np.exp(logprob)) for _ in range(5))[2]
        whole = seconds(lambda: assigned(table))
        ratios.append(whole / one_pass)
        rates.append(table.n_tokens / whole)
    rate, passes = float(np.median(rates)), float(np.median(ratios))
    print(f"{len(WANTED)} columns of {table.n_tokens:,} tokens: {rate:,.0f} tokens a second, {passes:.0f} passes of exp")
    return promise("assigned.rate", RATE / rate, 1.0)


def memory() -> dict[str, Any]:
    """The most that this process ever held, the step itself included, in GiB."""
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return promise("assigned.memory", kilobytes * 1024 / GIGABYTE, MEMORY)


def against_trainers(table: TokenTable) -> Iterator[dict[str, Any]]:
    """Ours over theirs, for each trainer that is installed; the coefficients have to agree too."""
    for name, theirs, rule in (("trl", trl, TRL_RULE), ("verl", verl, VERL_RULE)):
        if find_spec(name) is None:
            print(f"{name} is not installed: not compared")
            continue
        work = theirs(table)
        ratios = []
        for _ in range(ROUNDS):
            ours = seconds(lambda rule=rule: assigned(table, rule, COMPARED))  # type: ignore[misc]
            ratios.append(ours / seconds(work))
        assigned(table, rule, COMPARED)
        ours_signed = table.values("credit/coefficient")[table.loss_mask]
        differs = ~np.isclose(-ours_signed, work()[table_mask(table)], rtol=1e-4, atol=1e-4 * np.abs(ours_signed).max())
        # Theirs is float32: a ratio within 1e-7 of a bound may fall on its other side.
        if differs.sum() > 1e-5 * len(differs):
            raise RuntimeError(f"{name}: coefficients of {differs.sum()} tokens differ")
        yield promise(f"assigned.over_{name}", float(np.median(ratios)), 1.0)


def promise(name: str, value: float, bound: float) -> dict[str, Any]:
    """A measured figure beside its bound."""
    return {"name": name, "value": round(value, 3), "bound": bound, "ok": value <= bound}


# ── the trainers' own functions ─────────────────────────────────────────────────────────────────────────────────────────

TRL_RULE = replace(
    RULE, std_eps=1e-4, kl_beta=0.0, dual_clip=None, log_ratio_clamp=None, clip_high=0.28, rollout_weight="none", count_empty=True
)
VERL_RULE = replace(RULE, kl_beta=0.0, rollout_weight="none", clip_high=0.28, aggregation="token-mean", singleton="reward")


def padded(table: TokenTable, values: np.ndarray) -> Any:
    """``[T]`` → ``[N, longest]`` float32, padded with 0: the form that trainers compute in."""
    import torch

    wide = torch.zeros(table.n_rows, int(table.lengths.max()))
    wide[torch.from_numpy(table.row), torch.from_numpy(table.position)] = torch.from_numpy(values.astype(np.float32))
    return wide


def table_mask(table: TokenTable) -> Any:
    """``[N, longest]`` true at trained tokens."""
    return padded(table, table.loss_mask.astype(np.float32)).numpy() > 0


def trl(table: TokenTable) -> Callable[[], np.ndarray]:
    """TRL's ``GRPOTrainer._compute_loss`` under autograd; the advantages by the lines that it computes them with."""
    import torch
    from trl import GRPOTrainer  # type: ignore[attr-defined]

    mask = padded(table, table.loss_mask.astype(np.float32))
    policy, old = (padded(table, table.values(f"logprob/{name}")) for name in ("policy", "old"))
    rewards = torch.tensor(table.reward, dtype=torch.float32)
    prompt = torch.ones(table.n_rows, 1, dtype=torch.long)
    ids = torch.zeros(mask.shape, dtype=torch.long)
    stub = _trl_stub(GRPOTrainer)

    def work() -> np.ndarray:
        grouped = rewards.view(-1, 8)
        mean, std = grouped.mean(1).repeat_interleave(8), grouped.std(1).repeat_interleave(8)
        logp = policy.clone().requires_grad_()
        stub._get_per_token_logps_and_entropies = lambda *_, **__: (logp, torch.zeros_like(logp), None)
        batch = {
            "prompt_ids": prompt,
            "prompt_mask": prompt,
            "completion_ids": ids,
            "completion_mask": mask,
            "advantages": (rewards - mean) / (std + 1e-4),
            "old_per_token_logps": old,
            "num_items_in_batch": mask.sum(),
        }
        GRPOTrainer._compute_loss(stub, None, batch).backward()
        return np.asarray(logp.grad)

    return work


def _trl_stub(trainer: Any) -> Any:
    """What ``_compute_loss`` reads of a trainer."""
    accelerator = SimpleNamespace(
        num_processes=1,
        sync_gradients=True,
        gather=lambda x: x,
        gather_for_metrics=lambda x: x,
        reduce=lambda x, reduction="sum": x,
        pad_across_processes=lambda x, dim=0, pad_index=0: x,
    )
    args = SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1)
    return SimpleNamespace(
        accelerator=accelerator,
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        _metrics={"train": defaultdict(list)},
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        beta=0.0,
        epsilon_low=0.2,
        epsilon_high=0.28,
        loss_type="grpo",
        importance_sampling_level="token",
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        off_policy_mask_threshold=None,
        _entropy_bonus_enabled=False,
        max_completion_length=8192,
        args=args,
        get_off_policy_mask=trainer.get_off_policy_mask,
        get_gamma_weights=getattr(trainer, "get_gamma_weights", None),
    )


def verl(table: TokenTable) -> Callable[[], np.ndarray]:
    """The trainer's ``compute_grpo_outcome_advantage`` and ``compute_policy_loss_vanilla`` under autograd."""
    from verl.trainer.ppo import core_algos
    from verl.workers.config import ActorConfig

    mask = padded(table, table.loss_mask.astype(np.float32))
    policy, old = (padded(table, table.values(f"logprob/{name}")) for name in ("policy", "old"))
    last = np.zeros(table.n_tokens)
    last[table.offsets[1:] - 1] = table.reward
    rewards, index = padded(table, last), np.array([r.group_id for r in table.rollouts])
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=8,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=0.2,
        clip_ratio_high=0.28,
        loss_agg_mode="token-mean",
    )

    def work() -> np.ndarray:
        advantages, _ = core_algos.compute_grpo_outcome_advantage(rewards, mask, index)
        logp = policy.clone().requires_grad_()
        loss, _ = core_algos.compute_policy_loss_vanilla(old, logp, advantages, mask, "token-mean", config)
        loss.backward()
        return np.asarray(logp.grad)

    return work


def main() -> int:
    """Measure, print, judge."""
    table = step()
    assigned(table)
    held = memory()
    found = [held, speed(table), *against_trainers(table)]
    for one in found:
        print(json.dumps(one))
    worst = max(one["value"] / one["bound"] for one in found)
    print(json.dumps({"name": "assigned", "value": round(worst, 3), "bound": 1.0, "ok": all(one["ok"] for one in found)}))
    return 0 if all(one["ok"] for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
