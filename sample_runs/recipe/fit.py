"""Fit a small Llama to written Countdown solutions: the reference model of the sample run."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import countdown

PAD, EOS = "<pad>", "<eos>"
VOCABULARY = 512
BATCH = 64
PEAK_RATE, WARM_UP = 2e-3, 100


def make_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE that keeps every digit a token of its own."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\d"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=[PAD, EOS],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(tokenizer_object=bpe, pad_token=PAD, eos_token=EOS, padding_side="left")


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A Llama of about 1.4 M parameters with a tied head."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=160,
            intermediate_size=448,
            num_hidden_layers=4,
            num_attention_heads=4,
            max_position_embeddings=256,
            tie_word_embeddings=True,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        )
    )


def fit(
    templates: countdown.Templates, *, seed: int, steps: int, concise: bool = False
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Fit a new model to freshly written solutions and return it with its tokenizer."""
    rng = random.Random(seed)
    torch.manual_seed(seed)

    def write() -> tuple[str, str]:
        problem, worked, answer = countdown.draw(rng)
        return problem.prompt, countdown.write_solution(problem, worked, answer, templates, rng, concise=concise)

    tokenizer = make_tokenizer(["".join(write()) for _ in range(20_000)])
    model = make_model(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, steps))
    print(f"fitting {sum(p.numel() for p in model.parameters()):,} parameters for {steps} steps", flush=True)
    began = time.monotonic()
    for step, batch in enumerate(_batches(write, tokenizer, steps)):
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 100 == 0 or step == steps - 1:
            print(f"  step {step:5d}  loss {loss.item():.4f}  {time.monotonic() - began:6.1f} s", flush=True)
    return model.eval(), tokenizer


def _rate(step: int, steps: int) -> float:
    warm = min(1.0, (step + 1) / WARM_UP)
    return warm * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps))))


def _batches(
    write: Callable[[], tuple[str, str]], tokenizer: PreTrainedTokenizerFast, steps: int
) -> Iterator[dict[str, torch.Tensor]]:
    """Batches of 64 texts of like length, so that little is padded; the prompt is context and not a label."""
    pool: list[list[tuple[list[int], int]]] = []
    rng = random.Random(0)
    for _ in range(steps):
        if not pool:
            texts = [write() for _ in range(16 * BATCH)]
            prompts = tokenizer([prompt for prompt, _ in texts])["input_ids"]
            answers = tokenizer([answer + EOS for _, answer in texts])["input_ids"]
            rows = sorted(((p + a, len(p)) for p, a in zip(prompts, answers, strict=True)), key=lambda one: len(one[0]))
            blocks = [rows[i : i + BATCH] for i in range(0, len(rows), BATCH)]
            rng.shuffle(blocks)
            pool = blocks
        rows = pool.pop()
        width = max(len(ids) for ids, _ in rows)
        ids = torch.full((BATCH, width), tokenizer.pad_token_id)
        labels = torch.full((BATCH, width), -100)
        for i, (row, start) in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
            labels[i, start : len(row)] = torch.tensor(row[start:])
        yield {"input_ids": ids, "attention_mask": (ids != tokenizer.pad_token_id).long(), "labels": labels}
