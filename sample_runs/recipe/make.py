"""Make the Countdown sample run by real training: fit a small Llama, train it with TRL's GRPO, keep what a user would have.

    python sample_runs/recipe/make.py --out sample_runs/countdown            # what is shipped: about 25 minutes on two cores
    python sample_runs/recipe/make.py --out /tmp/other --seed 7 --templates my_templates.json --steps 160

What ``--out`` holds afterwards: ``record.json``, ``steps/`` and ``tokenizer/`` (written by ``credit_inspector.attach`` during
that very training), ``checkpoints/step_*`` (reference, middle, last), ``trl/`` (TRL's own completions of the same steps),
``filler_truth.jsonl`` (the kind of every span), ``facts.json`` (accuracy, length and filler share of each checkpoint).
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, set_seed  # noqa: E402
from trl.trainer.grpo_config import GRPOConfig  # noqa: E402
from trl.trainer.grpo_trainer import GRPOTrainer  # noqa: E402

import countdown  # noqa: E402
import credit_inspector  # noqa: E402
import fit  # noqa: E402
from credit_inspector.trainers import ReadOptions  # noqa: E402
from credit_inspector.trainers.record import open_record  # noqa: E402

GROUP, BATCH, UPDATES = 8, 64, 2
MAX_TOKENS = 112
KEPT_PER_PLACE = 4
FACT_PROBLEMS = 512


def main() -> None:
    """Fit, train, keep."""
    options = _options()
    templates = countdown.read_templates(options.templates)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        reference = options.reference or _fit(templates, options, work / "reference")
        trained = _train(reference, options, work / "trl")
        _keep(reference, trained, templates, options)
    print(f"done in {(time.monotonic() - began) / 60:.1f} min: {options.out}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder to write; must not exist or be a former run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--templates", type=Path, default=HERE / "templates.json", help="see countdown.py for the form")
    parser.add_argument("--steps", type=int, default=240, help="optimizer steps of GRPO (two a batch), at least 12")
    parser.add_argument("--fit-steps", type=int, default=1700, help="steps of the first fit")
    parser.add_argument("--reference", type=Path, help="start from this fitted model instead of fitting one")
    parser.add_argument("--concise", action="store_true", help="fit on solutions without filler")
    options = parser.parse_args()
    if options.steps < 3 * KEPT_PER_PLACE or options.steps % 4:
        parser.error(f"--steps is {options.steps}; wanted a multiple of 4, at least {3 * KEPT_PER_PLACE}")
    return options


def _fit(templates: countdown.Templates, options: argparse.Namespace, folder: Path) -> Path:
    model, tokenizer = fit.fit(templates, seed=options.seed, steps=options.fit_steps, concise=options.concise)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _kept_steps(steps: int) -> set[int]:
    """The first four optimizer steps, the four after the middle checkpoint, and the last four."""
    starts = (0, steps // 2, steps - KEPT_PER_PLACE)
    return {start + i for start in starts for i in range(1, KEPT_PER_PLACE + 1)}


def _train(reference: Path, options: argparse.Namespace, folder: Path) -> Path:
    set_seed(options.seed)
    rng = random.Random(options.seed + 1)
    problems = [countdown.draw(rng)[0] for _ in range(options.steps * BATCH // (GROUP * UPDATES))]
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(reference, dtype=torch.float32),
        processing_class=PreTrainedTokenizerFast.from_pretrained(reference),
        reward_funcs=correct,
        train_dataset=Dataset.from_list([{"prompt": p.prompt, "numbers": list(p.numbers), "target": p.target} for p in problems]),
        args=GRPOConfig(
            output_dir=str(folder),
            seed=options.seed,
            max_steps=options.steps,
            per_device_train_batch_size=BATCH,
            num_generations=GROUP,
            num_iterations=UPDATES,
            max_completion_length=MAX_TOKENS,
            learning_rate=2e-4,
            lr_scheduler_type="linear",
            beta=0.04,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            logging_steps=1,
            log_completions=True,
            num_completions_to_print=0,
            save_strategy="steps",
            save_steps=options.steps // 2,
            save_only_model=True,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            disable_tqdm=True,
        ),
    )
    credit_inspector.attach(trainer, folder / "record", keep=_kept_steps(options.steps).__contains__)
    trainer.train()
    trainer.state.save_to_json(str(folder / "trainer_state.json"))
    return folder


def correct(completions: list[str], numbers: list[list[int]], target: list[int], **_: Any) -> list[float | None]:
    """The reward: 1 for a right answer, 0 otherwise."""
    problems = (countdown.Problem((n[0], n[1], n[2]), t) for n, t in zip(numbers, target, strict=True))
    return [float(countdown.is_correct(p, text)) for p, text in zip(problems, completions, strict=True)]


def _keep(reference: Path, trained: Path, templates: countdown.Templates, options: argparse.Namespace) -> None:
    out: Path = options.out
    for name in ("checkpoints", "steps", "tokenizer", "trl", "analysis"):
        shutil.rmtree(out / name, ignore_errors=True)
    half, last = options.steps // 2, options.steps
    folders = {0: reference, half: trained / f"checkpoint-{half}", last: trained / f"checkpoint-{last}"}
    facts: dict[str, Any] = {"seed": options.seed, "steps": options.steps, "fit_steps": options.fit_steps}
    for step, folder in folders.items():
        _copy_model(folder, out / "checkpoints" / f"step_{step:06d}")
        facts[f"step_{step}"] = _facts(folder, templates)
        print(f"step {step}: {facts[f'step_{step}']}", flush=True)
    shutil.copytree(trained / "record", out, ignore=shutil.ignore_patterns("tensorboard"), dirs_exist_ok=True)
    (out / "trl" / "completions").mkdir(parents=True)
    for step in sorted(_kept_steps(last)):
        shutil.copy(trained / "completions" / f"completions_{step:05d}.parquet", out / "trl" / "completions")
    shutil.copy(trained / "trainer_state.json", out / "trl")
    (out / "facts.json").write_text(json.dumps(facts, indent=2) + "\n")
    _write_truth(out, templates)


def _copy_model(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for pattern in ("config.json", "generation_config.json", "model.safetensors", "tokenizer*.json"):
        for file in source.glob(pattern):
            shutil.copy(file, target)


@torch.no_grad()
def _facts(folder: Path, templates: countdown.Templates) -> dict[str, float]:
    """Accuracy, mean length and unearned share on fresh problems, sampled at temperature 1."""
    rng = random.Random(123)
    problems = [countdown.draw(rng)[0] for _ in range(FACT_PROBLEMS)]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    torch.manual_seed(123)
    batch = tokenizer([p.prompt for p in problems], return_tensors="pt", padding=True, padding_side="left")
    sampled = model.generate(
        input_ids=batch["input_ids"],
        attention_mask=batch["attention_mask"],
        do_sample=True,
        top_k=0,
        max_new_tokens=MAX_TOKENS,
    )
    texts = tokenizer.batch_decode(sampled[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    spans = [(text, span) for text in texts for span in countdown.spans_of(text, templates)]
    length = {
        kind: sum(len(tokenizer(t[s.start : s.end])["input_ids"]) for t, s in spans if s.kind == kind) for kind in countdown.KINDS
    }
    total = sum(length.values())
    return {
        "accuracy": round(sum(map(countdown.is_correct, problems, texts)) / len(texts), 4),
        "mean_tokens": round(total / len(texts), 2),
        "unearned_share": round(sum(length[kind] for kind in countdown.UNEARNED) / total, 4),
        **{f"{kind}_share": round(count / total, 4) for kind, count in length.items()},
    }


def _write_truth(out: Path, templates: countdown.Templates) -> None:
    run = open_record(out, ReadOptions())
    assert run is not None
    seen: set[str] = set()
    with (out / "filler_truth.jsonl").open("w", encoding="utf-8") as file:
        for step in run.steps:
            for rollout in run.read(step).rollouts:
                if rollout.sample_id in seen:
                    continue
                seen.add(rollout.sample_id)
                text = (rollout.response or "").removesuffix(fit.EOS)
                spans = [{"kind": s.kind, "start": s.start, "end": s.end} for s in countdown.spans_of(text, templates)]
                line = {"sample_id": rollout.sample_id, "text": text, "spans": spans}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
