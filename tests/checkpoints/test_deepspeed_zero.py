"""Checkpoints that DeepSpeed 0.19.8 wrote (``tests/data/deepspeed``) against what DeepSpeed itself makes of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from places import ROOT

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from credit_inspector.checkpoints.opening import open_checkpoint  # noqa: E402
from credit_inspector.errors import CheckpointError  # noqa: E402
from credit_inspector.pickles import load_torch, stub  # noqa: E402

CPU = torch.device("cpu")
WRITTEN = ROOT / "tests" / "data" / "deepspeed"
KINDS = {"zero2": "ZeRO-1 or 2 on 2 ranks", "zero2_bf16": "ZeRO-1 or 2 on 2 ranks", "zero3": "ZeRO-3 on 2 ranks"}
TYPES = (
    "deepspeed.runtime.fp16.loss_scaler.LossScaler",
    "deepspeed.runtime.zero.config.ZeroStageEnum",
    "deepspeed.utils.tensor_fragment.fragment_address",
)


def copied(tmp_path: Path, name: str) -> Path:
    return Path(shutil.copytree(WRITTEN / name, tmp_path / "_actor"))


def changed(file: Path, change: Callable[[Any], None]) -> None:
    """The same file after ``change``; DeepSpeed's own types become their numbers."""
    state = load_torch(file, allow={name: stub(name) for name in TYPES})
    optimizer = state.get("optimizer_state_dict", {})
    for key in ("loss_scaler", "param_slice_mappings"):
        optimizer.pop(key, None)
    if "zero_stage" in optimizer:
        optimizer["zero_stage"] = optimizer["zero_stage"].args[0]
    change(state)
    torch.save(state, file)


# ── merging ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", KINDS)
def test_ranks_give_what_deepspeed_makes_of_them(name: str, same: Any) -> None:
    checkpoint = open_checkpoint(WRITTEN / name)
    assert checkpoint.summary == f"Llama, vocabulary 37, {KINDS[name]}"
    assert (checkpoint.format, checkpoint.path) == ("deepspeed_zero", WRITTEN / name / "global_step2")
    model = checkpoint.load(CPU, torch.float32)
    same(model, WRITTEN / name / "merged.pt")
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    with torch.no_grad():
        answer = model(torch.arange(8)[None]).logits[0, -1]
    bound = 5e-3 if name.endswith("bf16") else 1e-6
    torch.testing.assert_close(answer, torch.load(WRITTEN / name / "logits.pt"), rtol=0, atol=bound)


def test_every_place_that_users_name(tmp_path: Path) -> None:
    actor = copied(tmp_path, "zero3")
    for path in (tmp_path, actor, actor / "global_step2"):
        assert open_checkpoint(path).path == actor / "global_step2"


def test_config_of_openrlhf(tmp_path: Path) -> None:
    """The Hugging Face folder of the same tag, beside ``_actor``."""
    actor = copied(tmp_path, "zero2")
    (tmp_path / "global_step2_hf").mkdir()
    (actor / "config.json").rename(tmp_path / "global_step2_hf" / "config.json")
    assert open_checkpoint(actor).vocabulary == 37


def test_names_under_a_wrapper(tmp_path: Path, same: Any) -> None:
    """OpenRLHF's ``Actor`` holds the model as ``model``."""

    def wrap(state: Any) -> None:
        state["param_shapes"] = [{f"model.{name}": shape for name, shape in each.items()} for each in state["param_shapes"]]
        for key in ("frozen_param_shapes", "frozen_param_fragments"):
            state[key] = {f"model.{name}": each for name, each in state[key].items()}

    actor = copied(tmp_path, "zero3")
    for file in (actor / "global_step2").glob("*_model_states.pt"):
        changed(file, wrap)
    same(open_checkpoint(actor).load(CPU, torch.float32), WRITTEN / "zero3" / "merged.pt")


def test_tied_head_follows_the_shared_name(tmp_path: Path) -> None:
    state = torch.load(WRITTEN / "zero2" / "global_step2" / "mp_rank_00_model_states.pt", weights_only=True)
    assert state["shared_params"] == {"lm_head.weight": "model.embed_tokens.weight"}
    model = open_checkpoint(WRITTEN / "zero2").load(CPU, torch.float32)
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()


def test_buffers_are_kept(tmp_path: Path) -> None:
    """A buffer is no parameter: it lies in the module's own state, here one that the config's model lacks."""

    def add(state: Any) -> None:
        state["module"]["model.odd"] = torch.arange(3)
        state["buffer_names"] = ["model.odd"]

    actor = copied(tmp_path, "zero2")
    changed(actor / "global_step2" / "mp_rank_00_model_states.pt", add)
    with pytest.raises(CheckpointError, match=r"1 unexpected tensors \(model\.odd\)"):
        open_checkpoint(actor).load(CPU, torch.float32)


def test_padding_between_tensors_is_left_out(tmp_path: Path, same: Any) -> None:
    """Newer versions align each tensor and say by how much (``param_alignment_paddings``)."""
    actor = copied(tmp_path, "zero2_bf16")
    states = actor / "global_step2"
    shapes = torch.load(states / "mp_rank_00_model_states.pt", weights_only=True)["param_shapes"][0]
    merged = torch.load(WRITTEN / "zero2_bf16" / "merged.pt")
    flat = torch.cat([torch.cat([merged[name].reshape(-1), torch.full((3,), 9.0)]) for name in shapes])
    halves = flat.tensor_split(2)
    for rank in (0, 1):

        def pad(state: Any, half: Any = halves[rank]) -> None:
            state["optimizer_state_dict"]["single_partition_of_fp32_groups"] = [half]
            state["optimizer_state_dict"]["param_alignment_paddings"] = [[3] * len(shapes)]

        changed(states / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", pad)
    same(open_checkpoint(actor).load(CPU, torch.float32), WRITTEN / "zero2_bf16" / "merged.pt")


def test_without_optimizer_the_16_bit_weights_are_taken(tmp_path: Path) -> None:
    actor = copied(tmp_path, "zero2_bf16")
    for file in (actor / "global_step2").glob("*_optim_states.pt"):
        file.unlink()
    checkpoint = open_checkpoint(actor)
    assert checkpoint.summary == "Llama, vocabulary 37, model states of DeepSpeed"
    merged = torch.load(WRITTEN / "zero2_bf16" / "merged.pt")
    for name, tensor in checkpoint.load(CPU, torch.float32).state_dict().items():
        assert torch.equal(tensor, merged[name].bfloat16().float()), name


# ── what is missing or foreign ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "gone", "words"),
    [
        ("zero3", "zero_pp_rank_0_mp_rank_00_model_states.pt", "the model states of rank 0 of 2 ranks missing"),
        ("zero3", "zero_pp_rank_0_mp_rank_00_optim_states.pt", "the optimizer states of rank 0 of 2 ranks missing"),
        ("zero3", "zero_pp_rank_1_mp_rank_00_optim_states.pt", "the optimizer states of rank 1 of 2 ranks missing"),
        ("zero2", "zero_pp_rank_0_mp_rank_00_optim_states.pt", "the optimizer states of rank 0 of 2 ranks missing"),
        ("zero2", "zero_pp_rank_1_mp_rank_00_optim_states.pt", "the optimizer states of rank 1 of 2 ranks missing"),
        ("zero2", "mp_rank_00_model_states.pt", "optimizer state only, no weights"),
    ],
)
def test_missing_files_g05(tmp_path: Path, name: str, gone: str, words: str) -> None:
    actor = copied(tmp_path, name)
    (actor / "global_step2" / gone).unlink()
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(actor).load(CPU, torch.float32)


def test_latest_names_what_is_gone(tmp_path: Path) -> None:
    actor = copied(tmp_path, "zero2")
    for tag, words in (("global_step9", rf"latest names 'global_step9'.*name {actor}/global_step2"), ("../x", "latest names")):
        (actor / "latest").write_text(tag)
        with pytest.raises(CheckpointError, match=words):
            open_checkpoint(actor)


def test_files_of_two_saves(tmp_path: Path) -> None:
    actor = copied(tmp_path, "zero2")
    states = actor / "global_step2"
    shutil.copy(states / "zero_pp_rank_1_mp_rank_00_optim_states.pt", states / "zero_pp_rank_2_mp_rank_00_optim_states.pt")
    with pytest.raises(CheckpointError, match="3 optimizer files, and the checkpoint is of 2 ranks: some are foreign"):
        open_checkpoint(actor).load(CPU, torch.float32)


def test_a_rank_that_holds_too_little(tmp_path: Path) -> None:
    def shorten(state: Any) -> None:
        groups = state["optimizer_state_dict"]["single_partition_of_fp32_groups"]
        state["optimizer_state_dict"]["single_partition_of_fp32_groups"] = [each[:-40].clone() for each in groups]

    actor = copied(tmp_path, "zero2")
    changed(actor / "global_step2" / "zero_pp_rank_1_mp_rank_00_optim_states.pt", shorten)
    with pytest.raises(
        CheckpointError, match=r"the tensors need \d+ numbers and the ranks hold \d+; wanted the files of one save"
    ):
        open_checkpoint(actor).load(CPU, torch.float32)


def test_stages_that_do_not_belong_together(tmp_path: Path) -> None:
    actor = copied(tmp_path, "zero3")
    for file in (actor / "global_step2").glob("*_optim_states.pt"):
        shutil.copy(WRITTEN / "zero2" / "global_step2" / file.name, file)
    with pytest.raises(CheckpointError, match="the optimizer is of ZeRO-2, and the model states are of another stage"):
        open_checkpoint(actor).load(CPU, torch.float32)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("mp_rank_01_model_states.pt", "tensor parallelism"),
        ("layer_00-model_states.pt", "cut into layers"),
        ("zero_pp_rank_0_mp_rank_00_model_states.pt", "mixes the model states of stage 3"),
    ],
)
def test_models_cut_in_other_ways(tmp_path: Path, extra: str, words: str) -> None:
    actor = copied(tmp_path, "zero2")
    (actor / "global_step2" / extra).touch()
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(actor)


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("model", lambda state: state.update(param_shapes=None), r"no shapes \(param_shapes\)"),
        ("model", lambda state: state.update(param_shapes=[{"a": [-1]}]), r"no shapes \(param_shapes\)"),
        ("model", lambda state: state.update(param_shapes=[{"a": 3}]), "is damaged: TypeError"),
        ("model", lambda state: state.update(shared_params=3), "is damaged: TypeError"),
        ("model", lambda state: state.update(param_shapes=[{}, {}]), "2 groups of shapes"),
        ("model", lambda state: state["param_shapes"][0].update({"model.norm.weight": [10**12]}), "the tensors need"),
        ("optim", lambda state: state.pop("optimizer_state_dict"), "holds no optimizer"),
        ("optim", lambda state: state["optimizer_state_dict"].pop("single_partition_of_fp32_groups"), "hold no single_part"),
    ],
)
def test_states_that_lie(tmp_path: Path, file: str, change: Callable[[Any], Any], words: str) -> None:
    actor = copied(tmp_path, "zero2")
    names = {"model": "mp_rank_00_model_states.pt", "optim": "zero_pp_rank_0_mp_rank_00_optim_states.pt"}
    changed(actor / "global_step2" / names[file], change)
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(actor).load(CPU, torch.float32)


def swell(state: Any) -> None:
    wide = torch.zeros(1).expand(10**12)
    if "optimizer_state_dict" in state:
        state["optimizer_state_dict"]["fp32_flat_groups"] = [wide]
    else:
        state["frozen_param_fragments"] = {"model.embed_tokens.weight": wide}


@pytest.mark.parametrize("kind", ["model", "optim"])
def test_a_tensor_that_only_claims_its_size(tmp_path: Path, kind: str) -> None:
    actor = copied(tmp_path, "zero3")
    changed(actor / "global_step2" / f"zero_pp_rank_1_mp_rank_00_{kind}_states.pt", swell)
    with pytest.raises(CheckpointError, match=r"of shape \(1000000000000,\) is larger than what is stored of it"):
        open_checkpoint(actor).load(CPU, torch.float32)


# ── code ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_code_never_runs_and_other_types_are_named_g06(tmp_path: Path, code: tuple[Any, Path]) -> None:
    thing, mark = code
    actor = copied(tmp_path, "zero2")
    file = actor / "global_step2" / "zero_pp_rank_0_mp_rank_00_optim_states.pt"
    changed(file, lambda state: state.update(client=thing))
    with pytest.raises(CheckpointError, match=r"rank_0\S*: the pickle asks for \w+\.mkdir.* was not run"):
        open_checkpoint(actor).load(CPU, torch.float32)
    assert not mark.exists()
