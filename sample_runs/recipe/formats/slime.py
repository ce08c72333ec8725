"""Write ``sample_runs/formats/slime`` with slime's own functions, read at commit 624b824.

    cd sample_runs/recipe && python -m formats.slime path/to/slime

``Sample.append_response_tokens`` builds the samples, ``save_debug_rollout_data`` writes them, ``_convert_samples_to_train_data``
makes the columns of training, ``_build_dump_payload`` (all that ``save_debug_train_data`` writes) joins them. The split over two
data-parallel ranks and the training engine's log-probs, which need GPUs, are made up.
"""

from __future__ import annotations

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

from formats.batch_answers import FORMATS, Answer, answers, encode
from formats.their_code import taken

OUT = FORMATS / "slime" / "dump_details"
PER_ROW = (
    "tokens",
    "response_lengths",
    "rewards",
    "truncated",
    "loss_masks",
    "sample_indices",
    "rollout_ids",
    "rollout_log_probs",
)
HELPERS = ("_to_int_list", "_to_float_list", "_extract_rollout_top_p_token_data")
DTYPES = {"tokens": torch.long, "loss_masks": torch.int, "rollout_log_probs": torch.float32}


def main() -> None:
    """Write all of it anew."""
    source = Path(sys.argv[1]) / "slime"
    slime = _slime(source)
    shutil.rmtree(OUT, ignore_errors=True)
    template = f"{OUT}/rollout_data/{{rollout_id}}.pt"
    for rollout_id in (0, 1):
        samples = sampled(slime.Sample, rollout_id)
        slime.save_debug_rollout_data(template, samples, rollout_id=rollout_id, evaluation=False)
        if rollout_id == 1:
            break  # the run was stopped while it trained on this one
        payload = slime._build_dump_payload(_shards(slime, samples), rollout_id=rollout_id, writer_rank=0)
        (OUT / "train_data").mkdir(exist_ok=True)
        torch.save(payload, OUT / "train_data" / f"{rollout_id}.pt")
    held_out = {"countdown_test": {"samples": sampled(slime.Sample, 0)[:2]}}
    slime.save_debug_rollout_data(template, held_out, rollout_id=0, evaluation=True)


def _slime(source: Path) -> SimpleNamespace:
    around = {"torch": torch, "np": np, "Any": Any, "Path": Path, "logger": logging.getLogger(__name__)}
    made = {"dataclass": dataclass, "field": field, "Enum": Enum, "decode_int32_meta_array": lambda meta, names: None}
    keys = {"_TOP_P_TOKEN_ID_META_KEYS": (), "_TOP_P_TOKEN_OFFSET_META_KEYS": ()}
    types = taken(source / "utils/types.py", *HELPERS, "Sample", **around, **made, **keys)
    around["Sample"] = types.Sample
    rollouts = taken(
        source / "observability/rollout_data_utils.py",
        "_cpu_tensor",
        "tensorize_rollout_data_for_training",
        "save_debug_rollout_data",
        _ROLLOUT_DATA_TENSOR_DTYPES=DTYPES,
        **around,
    )
    sets = {
        "_LAYOUT_FIELDS": ("micro_batch_indices", "num_microbatches", "global_batch_sizes"),
        "_WHOLE_BATCH_FIELDS": ("raw_reward",),
    }
    trained = taken(source / "observability/train_data_utils.py", "_is_per_sample", "_build_dump_payload", **sets, **around)
    manager = [f"RolloutManager.{name}" for name in ("_post_process_rewards", "_convert_samples_to_train_data")]
    converting = taken(source / "ray/rollout.py", *manager, get_source=lambda sample: "countdown", **around)
    return SimpleNamespace(**{**vars(types), **vars(rollouts), **vars(trained), **vars(converting)})


# ── what was sampled ────────────────────────────────────────────────────────────────────────────────────────────────


def sampled(kind: Any, rollout_id: int) -> list[Any]:
    """The samples of a rollout, as a custom generate function makes them."""
    return [_sample(kind, rollout_id, place, one) for place, one in enumerate(answers(rollout_id + 1))]


def _sample(kind: Any, rollout_id: int, place: int, one: Answer) -> Any:
    sample = kind(
        group_index=2 * rollout_id + place // 4,
        index=8 * rollout_id + place,
        prompt=one.prompt,
        tokens=list(one.prompt_ids),
        label=str(one.target),
        reward=one.reward,
        metadata={"numbers": list(one.numbers)},
        remove_sample=(rollout_id, place) == (0, 6),
    )
    logprobs = one.logprobs("rollout")
    begin = 0
    for turn, text in enumerate(one.parts):
        last = turn == len(one.parts) - 1
        ids = one.response_ids[begin:] if last else encode(text)
        version = rollout_id if (rollout_id, place) == (1, 4) else rollout_id + 1
        meta = {"weight_version": str(version), "finish_reason": {"type": "length" if one.is_cut else "stop"}}
        if turn % 2 == 0:
            sample.append_response_tokens(_ARGS, tokens=ids, log_probs=logprobs[begin:][: len(ids)], meta_info=meta, text=text)
        else:
            sample.append_response_tokens(_ARGS, tokens=ids, trainable=False, text=text)
        begin += len(ids)
    return sample


_ARGS = Namespace(
    reward_key=None,
    advantage_estimator="grpo",
    rewards_normalization=True,
    grpo_std_normalization=True,
    n_samples_per_prompt=4,
    rollout_batch_size=2,
    rollout_top_p=1.0,
    sglang_speculative_algorithm=None,
)


# ── what was trained on ─────────────────────────────────────────────────────────────────────────────────────────────


def _shards(slime: SimpleNamespace, samples: Sequence[Any]) -> list[dict[str, Any]]:
    """Two ranks' columns after training: each has every other sample."""
    manager = SimpleNamespace(args=_ARGS, custom_reward_post_process_func=None, custom_convert_samples_to_train_data_func=None)
    manager._post_process_rewards = lambda rows: slime._post_process_rewards(manager, rows)
    data = slime._convert_samples_to_train_data(manager, samples)
    found = []
    for rank in (0, 1):
        partition = list(range(rank, len(samples), 2))
        columns = {"partition": partition, **{key: [data[key][i] for i in partition] for key in PER_ROW}}
        columns |= {"raw_reward": data["raw_reward"], "total_lengths": [len(data["tokens"][i]) for i in partition]}
        columns |= {"global_batch_sizes": [8], "num_microbatches": [1], "micro_batch_indices": [[0, 1, 2, 3]]}
        slime.tensorize_rollout_data_for_training(columns)
        columns |= {"local_raw_reward": [data["raw_reward"][i] for i in partition]}
        columns |= _engine(columns)
        found.append({"rank": rank, "data_parallel_rank": rank, "rollout_data": columns})
    return found


def _engine(columns: dict[str, Any]) -> dict[str, list[torch.Tensor]]:
    """What training computes: log-probs near the sampler's, GRPO's advantages, a KL that ``--kl-coef 0`` leaves at 0."""
    draw = torch.Generator().manual_seed(columns["sample_indices"][0])
    near = [values - 0.02 * torch.rand(len(values), generator=draw) for values in columns["rollout_log_probs"]]
    kl = [torch.zeros_like(values) for values in near]
    returns = [torch.ones_like(zero) * reward for zero, reward in zip(kl, columns["rewards"], strict=True)]
    return {"log_probs": near, "kl": kl, "advantages": returns, "returns": [values.clone() for values in returns]}


if __name__ == "__main__":
    main()
