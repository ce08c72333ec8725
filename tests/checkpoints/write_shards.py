"""Write small checkpoints with the real libraries: ``python write_shards.py FOLDER``.

Ranks are processes of one machine (gloo), forked, so that torch is imported once. Each folder in FOLDER is one checkpoint;
``whole.pt`` is the state dict that all of them hold.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
import transformers
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

CONFIG: dict[str, Any] = {
    "vocab_size": 37,
    "hidden_size": 8,
    "intermediate_size": 11,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "architectures": ["LlamaForCausalLM"],
}


def model(*, tied: bool = False) -> Any:
    """A Llama whose sizes do not divide by the number of ranks."""
    torch.manual_seed(0)
    made = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG, tie_word_embeddings=tied))
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)
    return made


def sharded(made: Any, mesh: Any) -> Any:
    for layer in made.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(made, mesh=mesh)


def verl(made: Any, folder: Path, rank: int, world: int) -> None:
    """As verl's ``FSDPCheckpointManager.save_checkpoint`` of 1dda039 names and fills the files."""
    folder.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    torch.save(made.state_dict(), folder / f"model_world_size_{world}_rank_{rank}.pt")
    torch.save({"state": {}}, folder / f"optim_world_size_{world}_rank_{rank}.pt")
    torch.save({"lr_scheduler": None}, folder / f"extra_state_world_size_{world}_rank_{rank}.pt")
    if rank == 0:
        made.config.save_pretrained(folder / "huggingface")
        (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": world}))
    dist.barrier()


@dataclass
class Held:
    """A part of a training loop that saves its state, as prime-rl and NeMo-RL wrap theirs."""

    made: Any
    optimizer: Any = None

    def state_dict(self) -> dict[str, Any]:
        if self.optimizer is None:
            return get_model_state_dict(self.made)
        return get_optimizer_state_dict(self.made, self.optimizer)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


def with_lora(made: Any) -> Any:
    import peft

    settings = peft.LoraConfig(r=2, lora_alpha=6, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    return peft.get_peft_model(made, settings)


def two_ranks(rank: int, root: Path) -> None:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",))
    made = sharded(model(), mesh)
    verl(made, root / "verl" / "global_step_4" / "actor", rank, 2)
    verl(sharded(model(tied=True), mesh), root / "tied" / "actor", rank, 2)
    lora = with_lora(model())
    verl(sharded_lora(lora, mesh), root / "lora" / "actor", rank, 2)

    optimizer = torch.optim.AdamW(made.parameters(), lr=0.0)
    made(torch.arange(8)[None]).logits.sum().backward()
    optimizer.step()
    dcp.save(get_model_state_dict(made), checkpoint_id=root / "flat")
    dcp.save({"model": Held(made)}, checkpoint_id=root / "nemo" / "step_2" / "policy" / "weights")
    app = {"app": {"model": get_model_state_dict(made), "optimizers": get_optimizer_state_dict(made, optimizer), "step": 3}}
    dcp.save(app, checkpoint_id=root / "prime" / "step_3" / "trainer")
    dcp.save({"optim": Held(made, optimizer)}, checkpoint_id=root / "nemo" / "step_2" / "policy" / "optimizer")
    writer = dcp.HuggingFaceStorageWriter(str(root / "safe"), save_distributed=True)
    dcp.save(get_model_state_dict(made), storage_writer=writer)
    accelerate(made, root / "accelerate" / "checkpoint-6")
    if rank == 0:
        whole(root)


def sharded_lora(made: Any, mesh: Any) -> Any:
    for layer in made.base_model.model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(made, mesh=mesh)


def accelerate(made: Any, folder: Path) -> None:
    """By accelerate's own function; of the accelerator it asks only for who it is."""
    from types import SimpleNamespace

    from accelerate import PartialState
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.fsdp_utils import save_fsdp_model

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29400")  # asked for, and not used: the group is there already
    PartialState(cpu=True)
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="SHARDED_STATE_DICT")
    who = SimpleNamespace(process_index=dist.get_rank(), num_processes=2, wait_for_everyone=dist.barrier)
    save_fsdp_model(plugin, who, made, str(folder))


def whole(root: Path) -> None:
    """What the sharded ones must give back, and the configs where no trainer leaves one."""
    torch.save(model().state_dict(), root / "whole.pt")
    torch.save(model(tied=True).state_dict(), root / "tied.pt")
    torch.save(with_lora(model()).merge_and_unload().state_dict(), root / "lora.pt")
    config = model().config
    for name in ("flat", "prime", "safe", "base"):
        config.save_pretrained(root / name)


def four_ranks(rank: int, root: Path) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("ddp", "fsdp"))
    verl(sharded(model(), mesh), root / "copies" / "actor", rank, 4)


def run(rank: int, world: int, root: str) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo", init_method=f"file://{root}/.meeting{world}", rank=rank, world_size=world)
    (two_ranks if world == 2 else four_ranks)(rank, Path(root))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for size in (2, 4):
        mp.start_processes(run, (size, sys.argv[1]), nprocs=size, start_method="fork")
