"""Write ``sample_runs/formats/trl`` by training: TRL's ``GRPOTrainer`` on the Countdown run's first model, a few steps on a CPU.

    cd sample_runs/recipe && python -m formats.trl

Two folders: ``plain`` prompts are text, ``chat`` ones are messages. Of each only ``completions/`` is kept. Each batch serves two
optimizer steps, so TRL writes its rows twice; the second reward function has no opinion on some responses and returns None.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

import countdown

SAMPLES = Path(__file__).parents[2]
OUT = SAMPLES / "formats" / "trl"
PROBLEMS = (((3, 5, 7), 22), ((2, 6, 9), 21), ((4, 8, 3), 20), ((1, 5, 6), 31))
GROUP, GROUPS = 4, 2
_AS_TEXT = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def main() -> None:
    """Write both folders anew."""
    with tempfile.TemporaryDirectory() as scratch:
        for name, chat, steps in (("plain", False, 4), ("chat", True, 2)):
            train(Path(scratch) / name, chat=chat, steps=steps)
            shutil.rmtree(OUT / name, ignore_errors=True)
            shutil.copytree(Path(scratch) / name / "completions", OUT / name / "completions")


def train(folder: Path, *, chat: bool, steps: int) -> None:
    """A few optimizer steps, two a batch."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(SAMPLES / "countdown" / "tokenizer")
    tokenizer.chat_template = _AS_TEXT
    problems = [countdown.Problem(numbers, target) for numbers, target in PROBLEMS]
    rows = [
        {
            "prompt": [{"role": "user", "content": problem.prompt}] if chat else problem.prompt,
            "numbers": list(problem.numbers),
            "target": problem.target,
        }
        for problem in problems
    ]
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(SAMPLES / "countdown" / "checkpoints" / "step_000000"),
        processing_class=tokenizer,
        reward_funcs=[correct, short],
        train_dataset=Dataset.from_list(rows),
        args=GRPOConfig(
            output_dir=str(folder),
            max_steps=steps,
            per_device_train_batch_size=GROUP * GROUPS,
            num_generations=GROUP,
            num_iterations=2,
            max_completion_length=64,
            logging_steps=1,
            log_completions=True,
            num_completions_to_print=0,
            save_strategy="no",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            disable_tqdm=True,
        ),
    )
    trainer.train()


def _text(completion: Any) -> str:
    return str(completion if isinstance(completion, str) else completion[0]["content"])


def correct(completions: list[Any], numbers: list[list[int]], target: list[int], **_: Any) -> list[float | None]:
    """1 for a right answer, 0 otherwise."""
    problems = [countdown.Problem((n[0], n[1], n[2]), t) for n, t in zip(numbers, target, strict=True)]
    return [float(countdown.is_correct(p, _text(c))) for p, c in zip(problems, completions, strict=True)]


def short(completions: list[Any], **_: Any) -> list[float | None]:
    """A little for a short answer; no opinion on one without an answer."""
    return [0.1 * (len(_text(c)) < 60) if "<answer>" in _text(c) else None for c in completions]


if __name__ == "__main__":
    main()
