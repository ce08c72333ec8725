"""Write the sample of SkyRL's dumps with SkyRL's own code.

    PYTHONPATH=SkyRL:SkyRL/skyrl-gym python sample_runs/recipe/formats/skyrl.py     # commit a956457, Python 3.12

``RayPPOTrainer.convert_to_training_input``, ``compute_advantages_and_returns`` and ``dump_data`` make the batches, as its
training step calls them one after another, with three workers, so that a row fills the batch up; the evaluation is by
``dump_per_dataset_eval_results``. No model is asked: log-probabilities are made up, and what the methods read of a trainer
is a stand-in.
"""

from __future__ import annotations

import importlib
import shutil
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.pop(0)  # this file is called skyrl, too
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from transformers import AutoTokenizer

from formats.batch_answers import FORMATS, TOKENIZER, Answer, answers

FOLDER = FORMATS / "skyrl" / "export"


def main() -> None:
    """Two batches and one evaluation."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    for step in (1, 2):
        _batch(step)
    _evaluation(2)


def _trainer(step: int) -> Any:
    """What the methods read of a trainer."""
    algorithm = SimpleNamespace(
        max_seq_len=None,
        off_policy_correction=SimpleNamespace(tis_ratio_type=None, sequence_mask_metric=None),
        advantage_estimator="grpo",
        gamma=1.0,
        lambd=1.0,
        grpo_norm_by_std=True,
    )
    settings = SimpleNamespace(
        trainer=SimpleNamespace(
            algorithm=algorithm,
            export_path=str(FOLDER),
            train_batch_size=2,
            policy_mini_batch_size=2,
            critic=SimpleNamespace(model=SimpleNamespace(path=None)),
        ),
        generator=SimpleNamespace(n_samples_per_prompt=4, step_wise_trajectories=False),
    )
    dispatch = SimpleNamespace(get_lcm_dp_size=lambda: 3)
    return SimpleNamespace(cfg=settings, tokenizer=_tokenizer(), all_metrics={}, dispatch=dispatch, global_step=step)


def _tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(str(TOKENIZER))


def _batch(step: int) -> None:
    kind = importlib.import_module("skyrl.train.trainer").RayPPOTrainer
    trainer, rows = _trainer(step), answers(step)
    call = {name: partial(getattr(kind, name), trainer) for name in ("convert_to_training_input", "dump_data")}
    batch = call["convert_to_training_input"](_generated(rows), [one.group for one in rows])
    filled = [*rows, *rows[:1]]
    for name, kind_of in (("action_log_probs", "old"), ("base_action_log_probs", "ref")):
        batch[name] = _right_aligned(filled, kind_of, batch["response_mask"].shape[1])
    batch["values"] = None
    batch = kind.compute_advantages_and_returns(trainer, batch)
    batch.pop("rewards")
    batch.metadata.pop("uids")
    batch.metadata.pop("is_last_step", None)
    call["dump_data"](batch, file_name=f"global_step_{step}_training_input")


def _generated(rows: list[Answer]) -> dict[str, Any]:
    """What a generator gives, after ``postprocess_generator_output`` has put the reward at the last token."""
    return {
        "prompt_token_ids": [one.prompt_ids for one in rows],
        "response_ids": [one.response_ids for one in rows],
        "rewards": [[0.0] * (len(one.response_ids) - 1) + [one.reward] for one in rows],
        "loss_masks": [one.mask for one in rows],
        "rollout_logprobs": [one.logprobs("rollout") for one in rows],
        "stop_reasons": ["length" if one.is_cut else "stop" for one in rows],
    }


def _right_aligned(rows: list[Answer], kind: str, width: int) -> torch.Tensor:
    return torch.tensor([[0.0] * (width - len(one.response_ids)) + one.logprobs(kind) for one in rows])


def _evaluation(step: int) -> None:
    write = importlib.import_module("skyrl.train.utils.trainer_utils").dump_per_dataset_eval_results
    rows = answers(step)[:4]
    folder = FOLDER / "dumped_evals" / f"global_step_{step}_evals"
    folder.mkdir(parents=True)
    generated = {**_generated(rows), "rewards": [one.reward for one in rows]}
    extras = [{"reward_spec": {"ground_truth": str(one.target)}} for one in rows]
    write(folder, _tokenizer(), generated, ["countdown"] * 4, ["countdown"] * 4, extras, {"eval/all/avg_score": 0.5})


if __name__ == "__main__":
    main()
