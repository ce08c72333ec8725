"""Write the checkpoints of this folder: ``python write.py FOLDER`` where DeepSpeed is installed (CPU, no compiled parts).

Two ranks of one machine (gloo) train a Llama of a thousand parameters for two steps and save it by
``DeepSpeedEngine.save_checkpoint``. ``logits.pt`` is what the engine says of eight ids, ``merged.pt`` what DeepSpeed's own
``zero_to_fp32`` makes of the files: our reading is compared with both. Each case is one process group, so the script runs
itself again for each.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

CASES: dict[str, dict[str, Any]] = {
    "zero2": {"stage": 2, "tied": True, "frozen": True},
    "zero2_bf16": {"stage": 2, "bf16": True},
    "zero3": {"stage": 3, "frozen": True},
}
CONFIG = {
    "vocab_size": 37,
    "hidden_size": 7,
    "head_dim": 4,
    "intermediate_size": 11,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "architectures": ["LlamaForCausalLM"],
}
"""Odd sizes, so that stage 3 has to pad."""


def train(rank: int, name: str, folder: str) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_SIZE="2")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29407", DS_ACCELERATOR="cpu")
    import deepspeed
    import torch
    import transformers

    case = CASES[name]
    deepspeed.init_distributed("gloo")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**CONFIG, tie_word_embeddings=case.get("tied", False))
    model = transformers.LlamaForCausalLM(config)
    model.model.embed_tokens.weight.requires_grad_(not case.get("frozen", False))
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": case["stage"], "stage3_param_persistence_threshold": 0},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        "bf16": {"enabled": case.get("bf16", False)},
    }
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    engine = deepspeed.initialize(model=model, model_parameters=learned, config=settings)[0]
    ids = torch.arange(8)[None]
    for _ in range(2):
        engine.backward(engine(input_ids=ids + rank, labels=ids + rank).loss)
        engine.step()
    engine.save_checkpoint(f"{folder}/{name}", client_state={"consumed_samples": 4})
    engine.eval()
    with torch.no_grad():
        logits = engine(input_ids=ids).logits[0, -1].float().clone()
    if rank == 0:
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

        config.save_pretrained(f"{folder}/{name}")
        torch.save(logits, f"{folder}/{name}/logits.pt")
        merged = get_fp32_state_dict_from_zero_checkpoint(f"{folder}/{name}")
        torch.save({key: tensor.clone() for key, tensor in merged.items()}, f"{folder}/{name}/merged.pt")
        for script in Path(folder, name).glob("zero_to_*.py"):
            script.unlink()
        print(name, "by deepspeed", deepspeed.__version__, "torch", torch.__version__)  # noqa: T201
    torch.distributed.barrier()


def main(folder: str, name: str = "") -> None:
    if not name:
        for each in CASES:
            subprocess.run([sys.executable, __file__, folder, each], check=True)
        return
    import torch.multiprocessing

    torch.multiprocessing.spawn(train, (name, folder), nprocs=2)


if __name__ == "__main__":
    main(*sys.argv[1:])
