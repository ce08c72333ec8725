"""Write the samples of verl's rollout dump with verl's own code: ``_log_rollout_data`` of both its trainers.

    python sample_runs/recipe/formats/verl.py         # needs verl 0.9.1, ray, tensordict, torch, TransferQueue

``v0`` is by ``RayPPOTrainer`` (no uid; rows lie as ``balance_batch`` left them), ``v1`` by ``PPOTrainer`` (uid; rows sorted by
it). Neither trainer is started: what the methods read of it is a stand-in.
"""

from __future__ import annotations

import shutil
import sys
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.pop(0)  # this file is called verl, too
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from transformers import AutoTokenizer
from verl import DataProto
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.trainer.ppo.v1 import trainer_base
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from formats.batch_answers import FORMATS, PAD, TOKENIZER, Answer, answers


def main() -> None:
    """Both dumps, both steps."""
    writers: dict[str, Callable[[Path, int], None]] = {"v0": _write_v0, "v1": _write_v1}
    for name, write in writers.items():
        folder = FORMATS / "verl" / name
        shutil.rmtree(folder, ignore_errors=True)
        for step in (1, 2):
            write(folder, step)


def _trainer(kind: Any, step: int) -> Any:
    """What the methods that write read of a trainer; they write at once and not in the background."""
    tokenizer = AutoTokenizer.from_pretrained(str(TOKENIZER))
    found = types.SimpleNamespace(tokenizer=tokenizer, global_steps=step, _dump_futures=[])
    found._dump_executor = types.SimpleNamespace(submit=_now)
    found._write_generations = kind._write_generations
    found._dump_generations = partial(kind._dump_generations, found)
    return found


def _now(function: Callable[..., None], *args: Any) -> Any:
    function(*args)
    return types.SimpleNamespace(done=lambda: True, result=lambda: None)


def _truth(one: Answer) -> dict[str, str]:
    return {"ground_truth": str(one.target), "style": "rule"}


def _scores(one: Answer) -> torch.Tensor:
    scores = torch.zeros(len(one.response_ids))
    scores[-1] = one.reward
    return scores


def _write_v0(folder: Path, step: int) -> None:
    rows = answers(step)[::2] + answers(step)[1::2]
    responses = [torch.tensor(one.response_ids) for one in rows]
    padded = torch.nn.utils.rnn.pad_sequence(responses, batch_first=True, padding_value=PAD)
    scores = torch.nn.utils.rnn.pad_sequence([_scores(one) for one in rows], batch_first=True)
    width = max(len(one.prompt_ids) for one in rows)
    prompts = torch.tensor([[PAD] * (width - len(one.prompt_ids)) + one.prompt_ids for one in rows])
    truths = np.array([_truth(one) for one in rows], dtype=object)
    tensors = {"prompts": prompts, "responses": padded, "token_level_scores": scores}
    batch = DataProto.from_dict(tensors=tensors, non_tensors={"reward_model": truths})
    extras = {"acc": np.array([one.reward == 1.0 for one in rows]), "pred": [_answer(one) for one in rows]}
    RayPPOTrainer._log_rollout_data(_trainer(RayPPOTrainer, step), batch, extras, {}, str(folder))


def _answer(one: Answer) -> str:
    """What a reward function took for the answer; verl's own say so where they find none."""
    _, found, rest = one.response.partition("<answer>")
    return rest.partition("</answer>")[0] if found else "[INVALID]"


def _write_v1(folder: Path, step: int) -> None:
    rows = answers(step)
    fields = [
        {
            "uid": one.group,
            "prompts": torch.tensor(one.prompt_ids),
            "responses": torch.tensor(one.response_ids),
            "rm_scores": _scores(one),
            "reward_model": _truth(one),
        }
        for one in rows
    ]
    kind: Any = next(value for name, value in vars(trainer_base).items() if name.startswith("PPOTrainer"))
    held = _padded(list_of_dict_to_tensordict(fields))
    queue: Any = trainer_base.tq
    queue.kv_batch_get = lambda keys, partition_id, select_fields: held
    keys = [f"{one.group}_{one.place}_0" for one in rows]
    batch = types.SimpleNamespace(keys=keys, partition_id="train")
    kind._log_rollout_data(_trainer(kind, step), batch, {}, str(folder))


def _padded(held: Any) -> Any:
    """The queue hands tensors of one length out as nested ones, too."""
    for name in ("prompts", "responses", "rm_scores"):
        if not held[name].is_nested:
            held[name] = torch.nested.as_nested_tensor(list(held[name]), layout=torch.jagged)
    return held


if __name__ == "__main__":
    main()
