"""Write ``sample_runs/formats/miles`` with miles' own functions, read at commit 31f1ca9.

    cd sample_runs/recipe && python -m formats.miles path/to/miles

``save_debug_rollout_data`` writes the samples, the chats and (with polars) the dashboard's columns,
``convert_samples_to_train_data`` makes the columns of training, ``slice_log_prob_with_cp`` cuts them for two context-parallel
ranks, ``save_debug_train_data_for_rank`` writes those. The training engine's log-probs, which need GPUs, are made up.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from formats.batch_answers import FORMATS, Answer, answers
from formats.their_code import taken

OUT = FORMATS / "miles" / "dump_details"
RANKS = 2
_CONVERTING = (
    "convert_samples_to_train_data",
    "_compute_rollout_mask_sums",
    "_reward_group_segments",
    "_normalize_rewards_by_rollout",
    "_post_process_rewards",
    "split_train_data_by_dp_raw",
    "_package_shards",
    "process_rollout_data_shard",
)
_CUTTING = ("get_logits_and_tokens_offset_with_cp", "slice_log_prob_with_cp")


def main() -> None:
    """Write all of it anew."""
    miles = _miles(Path(sys.argv[1]) / "miles")
    shutil.rmtree(OUT, ignore_errors=True)
    for rollout_id in (0, 1):
        samples = [_sample(miles.Sample, rollout_id, place, one) for place, one in enumerate(answers(rollout_id + 1))]
        miles.save_debug_rollout_data(_ARGS, samples, rollout_id, evaluation=False, metadata={})
        if rollout_id == 0:  # the run was stopped while it trained on the other one
            _train(miles, samples, rollout_id)


def _miles(source: Path) -> SimpleNamespace:
    around = {"torch": torch, "numpy": np, "Any": Any, "Path": Path, "json": json, "logger": logging.getLogger(__name__)}
    state = SimpleNamespace(cp=SimpleNamespace(rank=0, size=RANKS))
    types = taken(
        source / "utils/types.py", "AdapterRef", "RewardSpec", "Sample", dataclass=dataclass, field=field, Enum=Enum, **around
    )
    around |= {"Sample": types.Sample, "is_multi_lora_enabled": lambda args: False, "_warned_no_polars": False}
    names = ("trajectory_rows", "save_dashboard_columns", "save_debug_trajectory_data", "save_debug_rollout_data")
    rollouts = taken(source / "ray/rollout/debug_data.py", *names, **around)
    converting = taken(source / "ray/rollout/train_data_conversion.py", *_CONVERTING, Timer=SimpleNamespace, **around)
    trained = taken(source / "utils/train_dump_utils.py", "save_debug_train_data_for_rank", **around)
    cutting = taken(source / "backends/training_utils/cp_utils.py", *_CUTTING, get_parallel_state=lambda: state, **around)
    parts = (types, rollouts, converting, trained, cutting)
    return SimpleNamespace(state=state, **{name: value for part in parts for name, value in vars(part).items()})


def _sample(kind: Any, rollout_id: int, place: int, one: Answer) -> Any:
    said = [{"role": "tool" if turn % 2 else "assistant", "content": text} for turn, text in enumerate(one.parts)]
    calls_tool = len(one.parts) > 1
    return kind(
        group_index=2 * rollout_id + place // 4,
        index=8 * rollout_id + place,
        prompt=one.prompt,
        tokens=[*one.prompt_ids, *one.response_ids],
        response=one.response,
        response_length=len(one.response_ids),
        label=str(one.target),
        reward=one.reward,
        loss_mask=one.mask if calls_tool else None,
        rollout_log_probs=one.logprobs("rollout"),
        weight_versions=[str(rollout_id + 1)] * (2 if calls_tool else 1),
        metadata={"messages": [{"role": "user", "content": one.prompt}, *said]} if calls_tool else {},
        status=kind.Status.TRUNCATED if one.is_cut else kind.Status.COMPLETED,
    )


_ARGS = Namespace(
    save_debug_rollout_data=f"{OUT}/rollout_data/{{rollout_id}}.pt",
    save_debug_trajectory_data=f"{OUT}/trajectory/{{rollout_id}}.jsonl",
    save_debug_train_data=f"{OUT}/train_data/{{rollout_id}}_{{rank}}.pt",
    balance_data=False,
    use_dynamic_global_batch_size=False,
    advantage_estimator="grpo",
    rewards_normalization=True,
    grpo_std_normalization=True,
    rollout_batch_size=2,
    n_samples_per_prompt=4,
    reward_key=None,
    qkv_format="thd",
)


def _train(miles: SimpleNamespace, samples: Sequence[Any], rollout_id: int) -> None:
    """Two context-parallel ranks of one data-parallel rank: both have all samples, and half of each one's values."""
    data = miles.convert_samples_to_train_data(_ARGS, samples, {}, None, None)
    shard = miles.process_rollout_data_shard(_ARGS, miles.split_train_data_by_dp_raw(_ARGS, data, dp_size=1)[0])
    shard["tokens"] = [torch.tensor(tokens) for tokens in shard["tokens"]]
    shard["loss_masks"] = [torch.tensor(mask, dtype=torch.int) for mask in shard["loss_masks"]]
    draw = torch.Generator().manual_seed(rollout_id)
    sampled = [torch.tensor(values) for values in shard["rollout_log_probs"]]
    near = [values - 0.02 * torch.rand(len(values), generator=draw) for values in sampled]
    returns = [torch.full_like(values, reward) for values, reward in zip(near, shard["rewards"], strict=True)]
    whole = {"rollout_log_probs": sampled, "log_probs": near, "returns": returns}
    for rank in range(RANKS):
        miles.state.cp.rank = rank
        columns = {**shard, **{name: _slices(miles, shard, values) for name, values in whole.items()}}
        columns["advantages"] = list(columns["returns"])
        miles.save_debug_train_data_for_rank(
            _ARGS, rollout_id=rollout_id, rollout_data=columns, rank=rank, cp_rank=rank, cp_size=RANKS
        )


def _slices(miles: SimpleNamespace, shard: dict[str, Any], values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    rows = zip(values, shard["total_lengths"], shard["response_lengths"], strict=True)
    return [miles.slice_log_prob_with_cp(one, total, response) for one, total, response in rows]


if __name__ == "__main__":
    main()
