"""Write the samples of ROLL's dumps with ROLL's own code.

    PYTHONPATH=ROLL python sample_runs/recipe/formats/roll.py     # commit 8eb27cc

``rlvr`` is by ``dump_rollout_to_specific_path``, ``agentic`` by ``dump_rollout_trajectories``, ``mock`` by
``RolloutMockMixin._dump_batch`` from batches that ``TrajEnvManager.formulate_rollouts`` made, each for a trainer that is a
stand-in. The trajectories' text of ``agentic`` has the keys that ``AgentNativeStepEnvManager`` gives it.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import multiprocessing
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.pop(0)  # this file is called roll, too
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from transformers import AutoTokenizer

from formats.batch_answers import FORMATS, PAD, TOKENIZER, Answer, answers, encode

FOLDER = FORMATS / "roll"
LENGTH = 72


def main() -> None:
    """Two steps of each, one of the agentic text."""
    for name in ("rlvr", "agentic", "mock"):
        shutil.rmtree(FOLDER / name, ignore_errors=True)
    for step in (1, 2):
        _write_text(step)
        _write_pickle(step)
    _write_trajectories(1)
    for process in multiprocessing.active_children():
        process.join()


def _proto() -> Any:
    return importlib.import_module("roll.distributed.scheduler.protocol").DataProto


def _objects(**lists: list[Any]) -> dict[str, Any]:
    found = {}
    for name, values in lists.items():
        found[name] = np.empty(len(values), dtype=object)
        found[name][:] = values
    return found


def _write_text(step: int) -> None:
    rows = answers(step)
    width = max(len(one.response_ids) for one in rows)
    responses = [one.response_ids + [PAD] * (width - len(one.response_ids)) for one in rows]
    tensors = {"responses": torch.tensor(responses), "scores": torch.tensor([one.reward for one in rows])}
    objects = _objects(
        id=[one.group for one in rows],
        prompt=[one.prompt for one in rows],
        ground_truth=[str(one.target) for one in rows],
        tag=["countdown"] * len(rows),
        domain=["math_rule"] * len(rows),
        difficulty=["easy"] * len(rows),
    )
    data = _proto().from_dict(tensors=tensors, non_tensors=objects, meta_info={"generation_config": {"temperature": 0.99}})
    write = importlib.import_module("roll.pipeline.rlvr.utils").dump_rollout_to_specific_path
    write(str(FOLDER / "rlvr"), step, data, AutoTokenizer.from_pretrained(str(TOKENIZER)))


def _trajectory(one: Answer) -> str:
    where = {"tag": "countdown", "group_id": int(one.group, 16) % 11, "episode_id": one.step, "seed": 42, "env_id": one.place}
    data = {
        "trajectory_id": f"countdown_{one.group}_{one.place}",
        "env_info": where,
        "length_info": {"trajectory_length": 1, "num_actions": 1, "terminated": True, "truncated": one.is_cut},
        "reward_info": {"episode_reward": one.reward, "step_rewards": [one.reward], "final_reward": one.reward},
        "failure_info": {"stop_reason": "FINISH"},
    }
    return json.dumps(data)


def _write_trajectories(step: int) -> None:
    rows = answers(step)[:4]
    chats = [json.dumps([{"role": "user", "content": one.prompt}, *_turns(one)], ensure_ascii=False) for one in rows]
    objects = _objects(
        trajectory_data=[_trajectory(one) for one in rows],
        messages=chats,
        tools=[json.dumps([{"name": "tool"}])] * len(rows),
        exp_name=["countdown"] * len(rows),
    )
    meta = {"COLUMMNS_CONFIG": [[name, "string"] for name in objects]}
    data = _proto().from_dict(tensors={"scores": torch.zeros(len(rows))}, non_tensors=objects, meta_info=meta)
    importlib.import_module("roll.pipeline.agentic.utils").dump_rollout_trajectories(str(FOLDER / "agentic"), step, data)


def _turns(one: Answer) -> list[dict[str, str]]:
    return [{"role": "tool" if i % 2 else "assistant", "content": part} for i, part in enumerate(one.parts)]


def _write_pickle(step: int) -> None:
    rows = answers(step)[1:6]
    manager = importlib.import_module("roll.pipeline.agentic.env_manager.traj_env_manager").TrajEnvManager
    batches = []
    for one in rows:
        cache = SimpleNamespace(
            env_id=one.place, group_id=int(one.group, 16) % 11, tag="countdown", history=_history(one), step=1
        )
        stand_in = SimpleNamespace(
            rollout_cache=cache,
            pipeline_config=SimpleNamespace(sequence_length=LENGTH),
            tokenizer=SimpleNamespace(pad_token_id=PAD),
        )
        batch = manager.formulate_rollouts(stand_in, cache)
        group = f"{cache.tag}_{cache.group_id}_{step}_42"
        for name, value in (("traj_group_id", group), ("traj_id", f"{group}_{cache.env_id}")):
            batch.non_tensor_batch[name] = np.array([value], dtype=object)
        batches.append(batch)
    whole = _proto().concat(batches)
    whole.meta_info = {"metrics": {}}
    mixin = importlib.import_module("roll.distributed.scheduler.rollout_mock_mixin").RolloutMockMixin
    stand_in = SimpleNamespace(mock_config=SimpleNamespace(dump_dir=str(FOLDER / "mock")), _get_mode_str=lambda: "train")
    asyncio.run(mixin._dump_batch(stand_in, whole, step))


def _history(one: Answer) -> list[dict[str, Any]]:
    """The model's turns, each with what came before it: the prompt, or what the tool said."""
    found = []
    before, begin = one.prompt_ids, 0
    numbers = one.logprobs("rollout")
    for place in range(0, len(one.parts), 2):
        is_last = place + 2 >= len(one.parts)
        end = len(one.response_ids) if is_last else begin + len(encode(one.parts[place]))
        reward = one.reward if is_last else 0.0
        turn = {"prompt_ids": before, "response_ids": one.response_ids[begin:end], "infer_logprobs": numbers[begin:end]}
        found.append(turn | {"reward": reward, "metrics": {}})
        if not is_last:
            before = encode(one.parts[place + 1])
            begin = end + len(before)
    return found


if __name__ == "__main__":
    main()
