"""Write ``sample_runs/formats/nemo_rl`` with NeMo-RL's own code, read at commit 7ea279a.

    PYTHONPATH=path/to/NeMo-RL python -P sample_runs/recipe/formats/nemo_rl.py

NeMo-RL's functions pad the messages of a batch (``batched_message_log_to_flat_message``), cut it into lines and write them
(``Logger.log_batched_dict_as_jsonl``), and name the folder (``get_next_experiment_dir``). The keys of a step, their order and the
filled-in values are those of ``grpo_train`` in ``algorithms/grpo.py``. Log-probs are made up, in steps of 1/64.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

SAMPLES = Path(__file__).parents[2]
OUT = SAMPLES / "formats" / "nemo_rl"
TOKENIZER = Tokenizer.from_file(str(SAMPLES / "countdown" / "tokenizer" / "tokenizer.json"))
PAD, END = 0, 1


@dataclass(frozen=True)
class Sample:
    """One rollout: what was asked, then model and environment in turn."""

    prompt: str
    turns: tuple[str, ...]
    reward: float
    truncated: bool = False


def _group(prompt: str, *samples: tuple[tuple[str, ...], float]) -> list[Sample]:
    return [Sample(prompt, turns, reward) for turns, reward in samples]


RIGHT, WRONG = "Environment: correct", "Environment: incorrect"
STEPS: dict[int, list[Sample]] = {
    1: [
        *_group(
            "Use 3, 5, 7: make 22\n",
            (("3*5+7", RIGHT), 1.0),
            (("So 3*5 = 15.\n15+7", RIGHT), 1.0),
            (("3+5+7", WRONG), 0.0),
        ),
        Sample("Use 3, 5, 7: make 22\n", ("Wait. Wait. Wait. Wait.",), 0.0, truncated=True),
        *_group(
            "Use 2, 6, 9: make 21\n",
            (("<calc>2*6", "12\n", "12+9", RIGHT), 1.0),
            (("2+6+9", WRONG), 0.0),
            (("<calc>6+9", "15\n", "15*2", WRONG), 0.0),
            (("9+6*2", RIGHT), 1.0),
        ),
    ],
    2: [
        *_group(
            "Use 4, 8, 3: make 20\n",
            (("答案是 4*8-3*4。", WRONG), 0.0),
            (("8+4*3", RIGHT), 1.0),
            (("4+8*3", WRONG), 0.0),
            (("4*3+8", RIGHT), 1.0),
        ),
        *_group(
            "Use 1, 5, 6: make 31\n",
            (("5*6+1", RIGHT), 1.0),
            (("<calc>5*6", "30\n", "30+1", RIGHT), 1.0),
            (("1+5*6", RIGHT), 1.0),
            (("6*5+1", RIGHT), 1.0),
        ),
    ],
}
FILTERED = _group("Use 2, 2, 5: make 9\n", (("2+2+5",), 1.0), (("2*2+5",), 1.0), (("5*2-2",), 0.0), (("9",), 0.0))
BEFORE_THE_FILTER = [0.0, 0.0, 0.0, 0.0]
"""The rewards of the batch's first rows, all of one group, which dynamic sampling dropped."""


def main() -> None:
    """Write all of it anew."""
    for folder in ("logs", "dynamic_sampling"):
        shutil.rmtree(OUT / folder, ignore_errors=True)
    logs = Path(import_module("nemo_rl.utils.logger").get_next_experiment_dir(str(OUT / "logs")))
    chance = random.Random(3)
    for step, samples in STEPS.items():
        write(logs, f"train_data_step{step}.jsonl", train_data(samples, chance))
    chats = [_chat(sample) for sample in STEPS[2][:2]]
    write(logs, "val_data_step0.jsonl", {"content": chats, "rewards": [sample.reward for sample in STEPS[2][:2]]})
    data = train_data(FILTERED, chance)
    rest = {key: value for key, value in data.items() if key not in ("content", "rewards")}
    rest["prev_logprobs"] = [[0.0] * len(row) for row in rest["prev_logprobs"]]
    filtered = {"content": data["content"], "rewards": BEFORE_THE_FILTER, "filtered_rewards": data["rewards"], **rest}
    write(OUT / "dynamic_sampling", "train_data_step3.jsonl", filtered)


def write(folder: Path, name: str, data: dict[str, Any]) -> None:
    """By NeMo-RL's own function."""
    import_module("nemo_rl.utils.logger").Logger.log_batched_dict_as_jsonl(SimpleNamespace(base_log_dir=str(folder)), data, name)


def _chat(sample: Sample) -> list[dict[str, str]]:
    roles = ("assistant", "environment") * len(sample.turns)
    turns = [{"role": role, "content": text} for role, text in zip(roles, sample.turns, strict=False)]
    return [{"role": "user", "content": sample.prompt}, *turns]


def _messages(sample: Sample, chance: random.Random) -> list[dict[str, Any]]:
    found = []
    for message in _chat(sample):
        generated = message["role"] == "assistant"
        ids = TOKENIZER.encode(message["content"]).ids + [END] * (generated and not sample.truncated)
        logprobs = [-chance.randint(1, 120) / 64 if generated else 0.0 for _ in ids]
        tokens = {"token_ids": torch.tensor(ids), "token_loss_mask": torch.full((len(ids),), int(generated))}
        found.append({**message, **tokens, "generation_logprobs": torch.tensor(logprobs)})
    return found


def train_data(samples: list[Sample], chance: random.Random) -> dict[str, Any]:
    """What ``grpo_train`` logs of one step."""
    flatten = import_module("nemo_rl.data.llm_message_utils").batched_message_log_to_flat_message
    flat, lengths = flatten([_messages(sample, chance) for sample in samples], pad_value_dict={"token_ids": PAD})
    shape = flat["token_ids"].shape
    prev = flat["generation_logprobs"] + torch.tensor(np.round(np.random.default_rng(5).normal(0, 2, shape)) / 64).float()
    inside = torch.arange(shape[1])[None] < lengths[:, None]
    spoken = (flat["token_loss_mask"] == 1) & inside
    prev = torch.where(spoken, prev, torch.where(inside, torch.tensor(-2.5), torch.tensor(0.0)))
    prev[:, 0] = 0.0
    advantages = torch.tensor([_advantage(one, samples) for one in samples], dtype=torch.float32)
    return {
        "content": flat["content"],
        "rewards": [sample.reward for sample in samples],
        "input_lengths": lengths.tolist(),
        "token_ids": flat["token_ids"].tolist(),
        "token_loss_mask": flat["token_loss_mask"].tolist(),
        "sample_loss_mask": [0.0 if sample.truncated else 1.0 for sample in samples],
        "advantages": advantages[:, None].expand(shape).tolist(),
        "generation_logprobs": flat["generation_logprobs"].tolist(),
        "prev_logprobs": prev.tolist(),
    }


def _advantage(one: Sample, samples: list[Sample]) -> float:
    """Distance to the mean of the group's others, by their standard deviation where they have one (NeMo-RL's default)."""
    others = np.array([other.reward for other in samples if other.prompt == one.prompt and other is not one])
    std = others.std(ddof=1)
    return float((one.reward - others.mean()) / (std + 1e-6 if std > 0 else 1.0))


if __name__ == "__main__":
    main()
