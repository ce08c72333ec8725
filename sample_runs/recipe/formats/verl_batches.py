"""Write the sample of verl's batches with verl's own code: ``DataProto.save_to_disk`` and ``RolloutTqSkip.prepare_data``.

    python sample_runs/recipe/formats/verl_batches.py         # needs verl 0.9.1, tensordict, torch

``rollout_dump`` is what ``skip.rollout`` leaves at V0, ``late_batch.dp`` a batch that was saved after its advantages, and
``tq_dump`` what ``skip.rollout_tq`` leaves at V1, its TensorDict built by ``AgentLoopOutput.as_dict`` and
``list_of_dict_to_tensordict`` as ``AgentLoopWorkerTQ`` does. TransferQueue itself is not asked: a stand-in hands back that
TensorDict.
"""

from __future__ import annotations

import importlib
import shutil
import sys
import types
from pathlib import Path
from typing import Any

sys.path.pop(0)  # beside this file lies one that is called verl
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
from verl.utils.skip.rollout_skip import RolloutSkip, RolloutTqSkip
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from formats.batch_answers import FORMATS, PAD, Answer, answers

P, R = 20, 48


def main() -> None:
    """The dumps of both trainers, and one batch by itself."""
    dumps: Any = (("rollout_dump", RolloutSkip, _write_pickle, (1, 2)), ("tq_dump", RolloutTqSkip, _write_queue, (1,)))
    for name, kind, prepare, steps in dumps:
        folder = FORMATS / "verl_batches" / name
        shutil.rmtree(folder, ignore_errors=True)
        for step in steps:
            prepare(_skip(kind, folder), step)
    _late(answers(1)[:4]).save_to_disk(FORMATS / "verl_batches" / "late_batch.dp")


def _skip(kind: Any, folder: Path) -> Any:
    settings = {
        "trainer": {"experiment_name": "countdown", "project_name": "grpo", "v1": {"trainer_mode": "colocate_sync"}},
        "actor_rollout_ref": {"rollout": {"n": 4}},
        "data": {"train_batch_size": 2, "max_prompt_length": P, "max_response_length": R},
    }
    local = {"dump_dir": str(folder), "action": "cache", "steps": [1, 2], "enable": True}
    create = importlib.import_module("omegaconf").OmegaConf.create
    return kind(create(local), create(settings))


# ── V0 ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _write_pickle(skip: Any, step: int) -> None:
    rows = answers(step)[1:6]
    skip.prepare_data(step, _batch(rows[::2] + rows[1::2]))  # balance_batch shuffles


def _batch(rows: list[Answer]) -> Any:
    prompts = torch.tensor([[PAD] * (P - len(one.prompt_ids)) + one.prompt_ids for one in rows])
    responses = torch.tensor([_right(one.response_ids) for one in rows])
    real = [[0] * (P - len(one.prompt_ids)) + [1] * len(one.prompt_ids) + _right([1] * len(one.response_ids)) for one in rows]
    attention = torch.tensor(real)
    mask = torch.tensor([_right(one.mask) for one in rows])
    scores = torch.tensor([_right([0.0] * (len(one.response_ids) - 1) + [one.reward], 0.0) for one in rows])
    tensors = {
        "prompts": prompts,
        "responses": responses,
        "input_ids": torch.cat([prompts, responses], 1),
        "attention_mask": attention,
        "position_ids": (attention.cumsum(1) - 1).clip(0),
        "response_mask": mask,
        "rollout_log_probs": _floats(rows, "rollout"),
        "rm_scores": scores,
    }
    others = {
        "uid": np.array([one.group for one in rows], dtype=object),
        "raw_prompt": np.array([[{"role": "user", "content": one.prompt}] for one in rows] + [None], dtype=object)[:-1],
        "data_source": np.array(["countdown"] * len(rows), dtype=object),
        "reward_model": np.array([{"ground_truth": str(one.target), "style": "rule"} for one in rows], dtype=object),
        "__num_turns__": np.array([len(one.parts) + 1 for one in rows], dtype=object),
        "acc": np.array([one.reward for one in rows], dtype=object),
    }
    return DataProto.from_dict(tensors=tensors, non_tensors=others, meta_info={"reward_extra_keys": ["acc"], "temperature": 1.0})


def _late(rows: list[Answer]) -> Any:
    """The batch after ``compute_advantage``."""
    batch = _batch(rows)
    scores, mask = batch.batch["rm_scores"], batch.batch["response_mask"]
    advantages, returns = compute_grpo_outcome_advantage(scores, mask, batch.non_tensor_batch["uid"])
    late = {
        "old_log_probs": _floats(rows, "old"),
        "ref_log_prob": _floats(rows, "ref"),
        "token_level_scores": scores,
        "token_level_rewards": scores,
        "advantages": advantages,
        "returns": returns,
    }
    return batch.union(DataProto.from_dict(tensors=late))


def _right(values: list[Any], fill: Any = PAD) -> list[Any]:
    return values + [fill] * (R - len(values))


def _floats(rows: list[Answer], kind: str) -> torch.Tensor:
    return torch.tensor([_right(one.logprobs(kind), 0.0) for one in rows])


# ── V1 ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _write_queue(skip: Any, step: int) -> None:
    rows = answers(step)[1:4]
    fields = [_fields(one) for one in rows]
    keys = [f"{one.group}-0000-4000-8000-000000000000_{one.place}_0" for one in rows]
    tags = [{"status": "success", "global_steps": step, "min_global_steps": step - 1, "max_global_steps": step - 1} for _ in rows]
    held = list_of_dict_to_tensordict(fields)
    queue: Any = types.ModuleType("transfer_queue")
    queue.kv_batch_get = lambda keys, partition_id: held
    sys.modules["transfer_queue"] = queue
    skip.prepare_data(step, types.SimpleNamespace(keys=keys, tags=tags, partition_id="train"), step)


def _fields(one: Answer) -> dict[str, Any]:
    """A response as ``AgentLoopWorkerTQ._agent_loop_postprocess`` puts it into the queue."""
    output = AgentLoopOutput(
        prompt_ids=one.prompt_ids,
        response_ids=one.response_ids,
        response_mask=one.mask,
        response_logprobs=one.logprobs("rollout"),
        reward_score=one.reward,
        num_turns=len(one.parts) + 1,
        metrics=AgentLoopMetrics(),
        extra_fields={"reward_extra_info": {"acc": one.reward}, "min_global_steps": one.step - 1},
    )
    found: dict[str, Any] = output.as_dict()
    prompt = [{"role": "user", "content": one.prompt}]
    truth = {"ground_truth": str(one.target), "style": "rule"}
    found |= {"uid": one.group, "raw_prompt": prompt, "reward_model": truth, "data_source": "countdown", "global_steps": one.step}
    ids = torch.cat([found["prompts"], found["responses"]])
    found |= {"loss_mask": found["response_mask"], "input_ids": ids, "position_ids": torch.arange(len(ids))}
    return found | {"multi_modal_inputs": {}, "session_id": one.place}


if __name__ == "__main__":
    main()
