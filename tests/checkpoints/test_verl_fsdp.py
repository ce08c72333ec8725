"""Rank shards of FSDP2 in verl's naming, written on two and four gloo ranks, give the model back without verl."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from credit_inspector.checkpoints.opening import open_checkpoint  # noqa: E402
from credit_inspector.errors import CheckpointError  # noqa: E402

CPU = torch.device("cpu")
Change = Callable[[dict[str, Any], int], None]


def copied(shards: Path, tmp_path: Path, name: str = "verl/global_step_4/actor") -> Path:
    return Path(shutil.copytree(shards / name, tmp_path / "actor"))


def changed(actor: Path, change: Change) -> Path:
    """The same shards after ``change(state dict, rank)``."""
    import torch.distributed.tensor

    for file in sorted(actor.glob("model_world_size_*")):
        state = torch.load(file, weights_only=False)
        change(state, int(file.stem.rsplit("_", 1)[1]))
        torch.save(state, file)
    return actor


def settings(actor: Path, **new: Any) -> None:
    file = actor / "huggingface" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **new}))


# ── merging ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("folder", "weights", "world"),
    [
        ("verl/global_step_4/actor", "whole.pt", 2),
        ("copies/actor", "whole.pt", 4),
        ("tied/actor", "tied.pt", 2),
    ],
)
def test_shards_give_the_model_back(shards: Path, same: Any, folder: str, weights: str, world: int) -> None:
    checkpoint = open_checkpoint(shards / folder)
    assert checkpoint.summary == f"Llama, vocabulary 37, FSDP shards of world size {world}"
    assert (checkpoint.format, checkpoint.vocabulary) == ("verl_fsdp", 37)
    model = checkpoint.load(CPU, torch.float32)
    same(model, shards / weights)
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not torch.distributed.is_initialized()


def test_precision_is_the_asked_one(shards: Path) -> None:
    model = open_checkpoint(shards / "verl/global_step_4/actor").load(CPU, torch.bfloat16)
    whole = torch.load(shards / "whole.pt")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, whole[name].bfloat16()), name


@pytest.mark.parametrize("place", ["", "global_step_4", "global_step_4/actor/huggingface"])
def test_every_place_that_users_name(shards: Path, tmp_path: Path, place: str) -> None:
    run = Path(shutil.copytree(shards / "verl", tmp_path / "run"))
    shutil.copytree(run / "global_step_4", run / "global_step_10")
    (run / "latest_checkpointed_iteration.txt").write_text("4")
    if place == "global_step_4":
        assert open_checkpoint(run / place).path == run / "global_step_4" / "actor"
        return
    words = {
        "": r"checkpoints in global_step_4, global_step_10; wanted one of them; name \S+global_step_4, the latest",
        "global_step_4/actor/huggingface": r"huggingface/ holds no weights, only a config; .* beside it: name \S+/actor$",
    }
    with pytest.raises(CheckpointError, match=words[place]):
        open_checkpoint(run / place)


def test_the_model_does_not_stand_on_the_files(shards: Path, tmp_path: Path, same: Any) -> None:
    actor = copied(shards, tmp_path)
    model = open_checkpoint(actor).load(CPU, torch.float32)
    for file in actor.glob("*.pt"):
        with file.open("r+b") as raw:
            raw.write(bytes(file.stat().st_size))
    same(model, shards / "whole.pt")


def test_tokenizer_is_beside_the_config(shards: Path, tmp_path: Path) -> None:
    actor = copied(shards, tmp_path)
    (actor / "huggingface" / "tokenizer.json").write_text("{}")
    assert open_checkpoint(actor).tokenizer == actor / "huggingface"


@pytest.mark.parametrize("cut", [True, False])
def test_plain_tensors(shards: Path, tmp_path: Path, same: Any, *, cut: bool) -> None:
    """Without DTensors: slices along the first dimension, or the whole on every rank."""
    whole = torch.load(shards / "whole.pt")

    def plain(state: dict[str, Any], rank: int) -> None:
        for name, tensor in whole.items():
            half = (len(tensor) + 1) // 2
            state[name] = tensor[rank * half : (rank + 1) * half].clone() if cut else tensor

    actor = changed(copied(shards, tmp_path), plain)
    same(open_checkpoint(actor).load(CPU, torch.float32), shards / "whole.pt")


def test_whole_tensors_beside_slices_are_not_doubled(shards: Path, tmp_path: Path, same: Any) -> None:
    whole = torch.load(shards / "whole.pt")
    actor = changed(copied(shards, tmp_path), lambda state, _: state.update({"model.norm.weight": whole["model.norm.weight"]}))
    same(open_checkpoint(actor).load(CPU, torch.float32), shards / "whole.pt")


def test_mesh_and_placement_as_an_older_torch_wrote_them(shards: Path, tmp_path: Path, same: Any) -> None:
    """Up to 2.8 a mesh holds its ranks under ``mesh``, a name that newer ones compute from others."""

    def age(state: dict[str, Any], _: int) -> None:
        for tensor in state.values():
            spec = tensor._spec
            ranks = torch.arange(2, dtype=torch.int)
            vars(spec.mesh).clear()
            vars(spec.mesh).update(
                device_type="cpu", mesh=ranks, mesh_dim_names=("fsdp",), _thread_id=1, _flatten_mesh_list=(0, 1)
            )
            for name in set(vars(spec)) - {"mesh", "placements", "tensor_meta"}:
                del vars(spec)[name]

    actor = changed(copied(shards, tmp_path), age)
    same(open_checkpoint(actor).load(CPU, torch.float32), shards / "whole.pt")


# ── LoRA ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_lora_is_merged_with_its_recorded_alpha(shards: Path, tmp_path: Path, same: Any) -> None:
    actor = copied(shards, tmp_path, "lora/actor")
    with pytest.raises(CheckpointError, match=r"lora_alpha is not recorded; wanted lora_train_meta\.json"):
        open_checkpoint(actor).load(CPU, torch.float32)
    (actor / "lora_train_meta.json").write_text('{"r": 2, "lora_alpha": 6, "task_type": "CAUSAL_LM"}')
    same(open_checkpoint(actor).load(CPU, torch.float32), shards / "lora.pt")


def test_lora_without_its_base(shards: Path, tmp_path: Path) -> None:
    """What verl leaves under ``save_lora_only``."""

    def only(state: dict[str, Any], _: int) -> None:
        for name in [name for name in state if "lora_" not in name]:
            del state[name]

    actor = changed(copied(shards, tmp_path, "lora/actor"), only)
    (actor / "lora_train_meta.json").write_text('{"r": 2, "lora_alpha": 6}')
    with pytest.raises(CheckpointError, match=r"LoRA's parts of .* without the weights.*--base"):
        open_checkpoint(actor).load(CPU, torch.float32)


# ── what is missing or foreign ──────────────────────────────────────────────────────────────────────────────────────


def empty(folder: Path, *names: str) -> Path:
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"{}")
    return folder


def test_missing_rank_and_config_beside_the_shards_g05(tmp_path: Path) -> None:
    names = [f"model_world_size_8_rank_{rank}.pt" for rank in (0, 1, 2, 4, 5, 6, 7)]
    actor = empty(tmp_path / "run" / "actor", *names, "huggingface/config.json")
    lacks = rf"FSDP shards of world size 8, rank 3 missing; .*model_merger merge --backend fsdp --local_dir {actor} --target_dir"
    for path in (actor, actor.parent):
        with pytest.raises(CheckpointError, match=lacks):
            open_checkpoint(path)
    with pytest.raises(CheckpointError, match=r"huggingface/ holds no weights.*the weights lie beside it.*rank 3 missing"):
        open_checkpoint(actor / "huggingface")


def test_optimizer_alone_g05(tmp_path: Path) -> None:
    names = [f"optim_world_size_8_rank_{rank}.pt" for rank in range(8)]
    with pytest.raises(CheckpointError, match="optimizer state only, no weights"):
        open_checkpoint(empty(tmp_path / "actor", *names, "huggingface/config.json"))


def test_missing_rank_where_the_whole_model_was_saved_too(tmp_path: Path) -> None:
    names = ("model_world_size_2_rank_0.pt", "huggingface/config.json", "huggingface/model.safetensors")
    actor = empty(tmp_path / "actor", *names)
    with pytest.raises(CheckpointError, match=rf"rank 1 missing; .*name {actor}/huggingface, which holds the whole model"):
        open_checkpoint(actor)


def test_world_size_out_of_a_name_is_not_counted_to(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"world size 9999999, rank 0, 1, 2, 4, 5, 6, 7, 8 … missing"):
        open_checkpoint(empty(tmp_path / "actor", "model_world_size_9999999_rank_3.pt"))


def test_shards_of_two_runs(shards: Path, tmp_path: Path) -> None:
    actor = copied(shards, tmp_path)
    (actor / "model_world_size_4_rank_0.pt").touch()
    assert open_checkpoint(actor).load(CPU, torch.float32) is not None  # fsdp_config.json says which
    (actor / "fsdp_config.json").write_text('{"world_size": 3}')
    with pytest.raises(CheckpointError, match="says world size 3, and the shards are of 2 and 4"):
        open_checkpoint(actor)
    (actor / "fsdp_config.json").unlink()
    with pytest.raises(CheckpointError, match="shards of world sizes 2 and 4, so some are foreign"):
        open_checkpoint(actor)


def test_a_rank_of_another_model(shards: Path, tmp_path: Path) -> None:
    def other(state: dict[str, Any], rank: int) -> None:
        if rank:
            state["model.other.weight"] = state.pop("model.norm.weight")

    actor = changed(copied(shards, tmp_path), other)
    with pytest.raises(CheckpointError, match=r"model_world_size_2_rank_1\.pt is foreign: it and rank 0 differ in 2 tensors"):
        open_checkpoint(actor).load(CPU, torch.float32)


def test_slices_that_do_not_make_the_tensor(shards: Path, tmp_path: Path) -> None:
    actor = copied(shards, tmp_path)
    shutil.copy(actor / "model_world_size_2_rank_0.pt", actor / "model_world_size_2_rank_1.pt")
    with pytest.raises(
        CheckpointError, match=r"pieces of model\.embed_tokens\.weight do not fit together: they make \(38, 8\), not \(37, 8\)"
    ):
        open_checkpoint(actor).load(CPU, torch.float32)


def test_truncated_shard(shards: Path, tmp_path: Path) -> None:
    actor = copied(shards, tmp_path)
    file = actor / "model_world_size_2_rank_1.pt"
    file.write_bytes(file.read_bytes()[:-400])
    with pytest.raises(CheckpointError, match=r"rank_1\.pt is no readable torch file"):
        open_checkpoint(actor).load(CPU, torch.float32)


@pytest.mark.parametrize("content", [{}, [torch.zeros(2)], {"a": 1}, {3: torch.zeros(2)}])
def test_no_state_dict(shards: Path, tmp_path: Path, content: Any) -> None:
    actor = copied(shards, tmp_path)
    torch.save(content, actor / "model_world_size_2_rank_0.pt")
    with pytest.raises(CheckpointError, match=r"rank_0\.pt holds no (state dict|named tensors)"):
        open_checkpoint(actor).load(CPU, torch.float32)


@pytest.mark.parametrize("whole", [True, False])
def test_a_tensor_that_only_claims_its_size(shards: Path, tmp_path: Path, *, whole: bool) -> None:
    """Terabytes by stride 0, plain and as a slice: never walked, never copied."""

    def swell(state: dict[str, Any], _: int) -> None:
        if whole:
            state.clear()
            state["model.norm.weight"] = torch.zeros(1).expand(10**12)
        else:
            state["model.norm.weight"]._local_tensor = torch.zeros(1).expand(10**12)

    actor = changed(copied(shards, tmp_path), swell)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight of shape \(1000000000000,\) is larger than what is stored"):
        open_checkpoint(actor).load(CPU, torch.float32)


def test_lora_parts_of_another_shape(shards: Path, tmp_path: Path) -> None:
    """Their product alone could be of any size."""

    def widen(state: dict[str, Any], _: int) -> None:
        for name in list(state):
            if "lora_A" in name:
                state[name] = torch.zeros(2, 50_000)

    actor = changed(copied(shards, tmp_path, "lora/actor"), widen)
    (actor / "lora_train_meta.json").write_text('{"r": 2, "lora_alpha": 6}')
    with pytest.raises(CheckpointError, match=r"do not fit together: LoRA's parts \(8, 2\) and \(2, 50000\) beside weights"):
        open_checkpoint(actor).load(CPU, torch.float32)


# ── what does not fit the config ────────────────────────────────────────────────────────────────────────────────────


def drop(name: str) -> Change:
    return lambda state, _: state.pop(name)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (drop("model.layers.1.mlp.up_proj.weight"), r"1 missing tensors \(model\.layers\.1\.mlp\.up_proj\.weight\)"),
        (drop("lm_head.weight"), r"the head lm_head\.weight is missing, and the config does not tie it to the embedding"),
        (lambda state, _: state.update(odd=torch.ones(2)), r"1 unexpected tensors \(odd\)"),
    ],
)
def test_tensors_that_do_not_fit(shards: Path, tmp_path: Path, change: Change, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(changed(copied(shards, tmp_path), change)).load(CPU, torch.float32)


def test_a_tied_head_need_not_be_stored(shards: Path, tmp_path: Path, same: Any) -> None:
    actor = changed(copied(shards, tmp_path, "tied/actor"), lambda state, _: state.pop("lm_head.weight", None))
    same(open_checkpoint(actor).load(CPU, torch.float32), shards / "tied.pt")


@pytest.mark.parametrize(
    ("new", "words"),
    [
        ({"vocab_size": 33}, r"the embedding has 37 rows and config\.json says vocab_size 33: a padded vocabulary; .*--base"),
        ({"vocab_size": 40}, r"37 rows and config\.json says vocab_size 40: the vocabulary of another model"),
        ({"intermediate_size": 12}, r"6 mismatched tensors \(model\S+ \(8, 11\) for \(8, 12\), .* …\)"),
        ({"num_hidden_layers": 200}, r"describes a model of .* parameters, and .* are stored"),
        ({"num_hidden_layers": 10**9}, "the config asks for num_hidden_layers = 1000000000"),
        ({"model_type": "nonesuch"}, "does not load"),
    ],
)
def test_a_config_of_another_size(shards: Path, tmp_path: Path, new: dict[str, Any], words: str) -> None:
    actor = copied(shards, tmp_path)
    settings(actor, **new)
    with pytest.raises(CheckpointError, match=words) as caught:
        open_checkpoint(actor).load(CPU, torch.float32)
    assert "\n" not in str(caught.value)


def test_a_critic_is_no_policy(shards: Path, tmp_path: Path) -> None:
    actor = copied(shards, tmp_path)
    settings(actor, architectures=["LlamaForTokenClassification"])
    with pytest.raises(CheckpointError, match=r"value or reward model \(LlamaForTokenClassification\); wanted a policy"):
        open_checkpoint(actor)


def test_base_is_where_the_config_is(shards: Path, tmp_path: Path, same: Any) -> None:
    actor = copied(shards, tmp_path)
    shutil.rmtree(actor / "huggingface")
    for other in ('{"lr": 1e-6}', "[1, 2", "[]"):  # a run's own settings
        (tmp_path / "config.json").write_text(other)
        with pytest.raises(CheckpointError, match=r"no config\.json lies in it.*--base FOLDER"):
            open_checkpoint(actor)
    (actor / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"actor/config\.json cannot be read"):
        open_checkpoint(actor)
    (actor / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"no config\.json lies in it.*--base FOLDER"):
        open_checkpoint(actor)
    with pytest.raises(CheckpointError, match=r"verl has no config\.json"):
        open_checkpoint(actor, shards / "verl")
    same(open_checkpoint(actor, shards / "base").load(CPU, torch.float32), shards / "whole.pt")


# ── code ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_code_in_a_shard_never_runs_g06(shards: Path, tmp_path: Path, code: tuple[Any, Path]) -> None:
    thing, mark = code
    actor = copied(shards, tmp_path)
    torch.save({"odd": thing}, actor / "model_world_size_2_rank_1.pt")
    checkpoint = open_checkpoint(actor)
    with pytest.raises(CheckpointError, match=r"the pickle asks for \w+\.mkdir.* was not run") as caught:
        checkpoint.load(CPU, torch.float32)
    assert not mark.exists()
    assert "weights_only" not in str(caught.value)


def test_model_code_is_refused_g06(shards: Path, tmp_path: Path) -> None:
    actor = copied(shards, tmp_path)
    settings(actor, auto_map={"AutoModelForCausalLM": "m.Model"})
    with pytest.raises(CheckpointError, match="no code of the data's runs"):
        open_checkpoint(actor)
