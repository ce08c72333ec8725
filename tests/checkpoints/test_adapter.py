"""LoRA adapters saved by peft, against peft's own models; what matches nothing is an error and not the base model."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
safetensors = pytest.importorskip("safetensors.torch")

from credit_inspector.checkpoints import CheckpointOptions  # noqa: E402
from credit_inspector.checkpoints.adapter import open_adapter  # noqa: E402
from credit_inspector.checkpoints.opening import open_checkpoint  # noqa: E402
from credit_inspector.errors import CheckpointError, MissingExtra  # noqa: E402
from places import SAMPLE  # noqa: E402

CPU = torch.device("cpu")
IDS = torch.arange(3, 19)[None]


def base_model(kind: str = "llama", *, tied: bool = False) -> Any:
    torch.manual_seed(0)
    shape = {
        "vocab_size": 64,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "tie_word_embeddings": tied,
    }
    if kind == "gpt2":
        config = transformers.GPT2Config(vocab_size=64, n_embd=16, n_layer=2, n_head=2, n_positions=64)
        return transformers.GPT2LMHeadModel(config).eval()
    if kind == "qwen2":
        return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**shape)).eval()
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape)).eval()


def adapter(folder: Path, *, kind: str = "llama", tied: bool = False, base: str | None = None, **lora: Any) -> Path:
    """``folder/base`` and ``folder/checkpoint-4``; the adapter's tensors are random, so that it changes the model."""
    if not (folder / "base").exists():
        base_model(kind, tied=tied).save_pretrained(folder / "base")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "base")
    settings = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", **lora}
    wrapped = peft.get_peft_model(model, peft.LoraConfig(**settings))
    torch.manual_seed(1)
    for name, parameter in wrapped.named_parameters():
        if parameter.requires_grad:
            parameter.data = (
                parameter.data + 0.2 * torch.randn_like(parameter) if "lora" not in name else 0.3 * torch.randn_like(parameter)
            )
    wrapped.save_pretrained(folder / "checkpoint-4")
    change(folder / "checkpoint-4", base_model_name_or_path=base or str(folder / "base"))
    return folder / "checkpoint-4"


def change(folder: Path, **settings: Any) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))


def rewrite(folder: Path, edit: Any) -> None:
    file = folder / "adapter_model.safetensors"
    safetensors.save_file(edit(safetensors.load_file(file)), file)


def logits(model: Any) -> Any:
    with torch.no_grad():
        return model.eval()(IDS).logits


def pefts_own(folder: Path) -> Any:
    return logits(peft.AutoPeftModelForCausalLM.from_pretrained(str(folder)))


@pytest.mark.parametrize(
    ("kind", "lora"),
    [
        ("llama", {}),
        ("llama", {"target_modules": "all-linear", "r": 2}),
        ("llama", {"target_modules": r".*layers\.(0|1)\.self_attn\.(q|v)_proj"}),
        ("llama", {"use_rslora": True, "lora_alpha": 3}),
        ("llama", {"use_dora": True}),
        ("llama", {"rank_pattern": {"layers.0.self_attn.q_proj": 2}, "alpha_pattern": {"v_proj": 32}}),
        ("llama", {"layers_to_transform": [1], "layers_pattern": "layers"}),
        ("llama", {"target_modules": ["q_proj", "lm_head"]}),
        ("llama", {"target_modules": ["q_proj", "embed_tokens"]}),
        ("llama", {"modules_to_save": ["lm_head"]}),
        ("llama", {"modules_to_save": ["embed_tokens", "lm_head"]}),
        ("llama", {"trainable_token_indices": [3, 5, 7]}),
        ("llama", {"task_type": None}),
        ("qwen2", {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}),
        ("gpt2", {"target_modules": ["c_attn"], "fan_in_fan_out": True}),
    ],
)
def test_logits_are_pefts_own_and_the_base_is_the_adapter_off(tmp_path: Path, kind: str, lora: dict[str, Any]) -> None:
    folder = adapter(tmp_path, kind=kind, **lora)
    checkpoint = open_checkpoint(folder)
    loaded = checkpoint.load(CPU, torch.float32)
    own = peft.PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base"), str(folder))
    whole = logits(own)
    torch.testing.assert_close(logits(loaded), whole, atol=1e-5, rtol=1e-5)
    if lora.get("task_type", "") is not None:
        torch.testing.assert_close(pefts_own(folder), whole)
    assert isinstance(loaded, transformers.PreTrainedModel)
    assert not loaded.training
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    assert checkpoint.base is not None
    off = logits(checkpoint.base.load(CPU, torch.float32))
    with own.disable_adapter():
        torch.testing.assert_close(off, logits(own))
    assert float((off - whole).abs().max()) > 1e-3


@pytest.mark.parametrize("bias", ["lora_only", "all"])
def test_trained_biases_are_no_reference(tmp_path: Path, bias: str) -> None:
    """peft leaves them on when the adapter is off, so that the base is not the trainer's reference."""
    folder = adapter(tmp_path, kind="qwen2", bias=bias)
    checkpoint = open_checkpoint(folder)
    loaded = logits(checkpoint.load(CPU, torch.float32))
    own = peft.AutoPeftModelForCausalLM.from_pretrained(str(folder))
    torch.testing.assert_close(loaded, logits(own), atol=1e-5, rtol=1e-5)
    base = logits(open_checkpoint(tmp_path / "base").load(CPU, torch.float32))
    with own.disable_adapter():
        assert float((logits(own) - base).abs().max()) > 1e-3
    assert checkpoint.base is None


def test_summary_and_tokenizer(tmp_path: Path) -> None:
    folder = adapter(tmp_path)
    checkpoint = open_checkpoint(folder)
    base = open_checkpoint(tmp_path / "base")
    assert checkpoint.summary == f"LoRA adapter, rank 4, alpha 8, on q_proj, v_proj; base base: {base.summary}"
    assert (checkpoint.format, checkpoint.vocabulary, checkpoint.tokenizer) == ("adapter", 64, None)
    (tmp_path / "base/tokenizer.json").write_text("{}")
    assert open_checkpoint(folder).tokenizer == tmp_path / "base"
    (folder / "tokenizer.json").write_text("{}")
    assert open_checkpoint(folder).tokenizer == folder


def test_a_trainers_checkpoint_n(tmp_path: Path) -> None:
    folder = adapter(tmp_path)
    (folder / "trainer_state.json").write_text("{}")
    for name in ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (folder / name).write_bytes(b"a pickle that nobody opens")
    torch.testing.assert_close(logits(open_checkpoint(folder).load(CPU, torch.float32)), pefts_own(folder))


def test_bfloat16_runs_as_peft_runs_it(tmp_path: Path) -> None:
    folder = adapter(tmp_path)
    loaded = open_checkpoint(folder).load(CPU, torch.bfloat16)
    own = peft.AutoPeftModelForCausalLM.from_pretrained(str(folder), dtype=torch.bfloat16)
    assert loaded.dtype == torch.bfloat16
    torch.testing.assert_close(logits(loaded), logits(own))


# ── in an analysis ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_scored_and_differentiated_like_any_model(tmp_path: Path) -> None:
    """Log-probs, KL to the model with the adapter off, and gradients through LoRA layers."""
    import numpy as np

    from credit_inspector.rollout import Rollout
    from credit_inspector.scoring import Models
    from credit_inspector.scoring.alignment import align
    from credit_inspector.spans import SpanTable
    from credit_inspector.table import TokenTable

    folder = adapter(tmp_path)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.base is not None
    ids = IDS[0].numpy().astype(np.int32)
    table = TokenTable.from_rollouts(0, [Rollout(sample_id="a", prompt_ids=ids[:4], response_ids=ids[4:])])
    models = Models({"policy": checkpoint, "ref": checkpoint.base}, "cpu")
    on = peft.AutoPeftModelForCausalLM.from_pretrained(str(folder))
    p = logits(on).log_softmax(-1)[0, 3:-1]
    with on.disable_adapter():
        q = logits(on).log_softmax(-1)[0, 3:-1]
    chosen = torch.from_numpy(ids[4:].astype(np.int64))[:, None]
    np.testing.assert_allclose(models.scores("policy", table).logprob, p.gather(1, chosen)[:, 0], atol=1e-5)
    np.testing.assert_allclose(models.scores("ref", table).logprob, q.gather(1, chosen)[:, 0], atol=1e-5)
    np.testing.assert_allclose(models.kl("policy", "ref", table), (p.exp() * (p - q)).sum(-1), atol=1e-5)

    places = [np.array(each) for each in ([0, 0], [0, 9], [9, 12])]
    spans = SpanTable(row=places[0], start=places[1], end=places[2], label=("sentence", "answer"), text=("", ""))
    found = align(models, table, spans)
    assert found.way.startswith("forward")
    np.testing.assert_allclose(found.inner[9:].sum(), found.norm2[0], rtol=1e-3)


# ── the base model ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "named", ["/somebody/elses/disk/Qwen", "Qwen/Qwen-nowhere", "", None, "\0", "n" * 5000, "\ud800", "../../../base/x", "."]
)
def test_base_missing_g07(tmp_path: Path, named: str | None) -> None:
    folder = adapter(tmp_path)
    change(folder, base_model_name_or_path=named)
    with pytest.raises(CheckpointError, match=r"adapter, base model missing.*give --base"):
        open_checkpoint(folder)
    given = open_checkpoint(folder, tmp_path / "base")
    change(folder, base_model_name_or_path=str(tmp_path / "base"))
    torch.testing.assert_close(logits(given.load(CPU, torch.float32)), pefts_own(folder))


def test_base_as_seen_from_the_adapter_and_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = adapter(tmp_path, base="../base")
    assert open_checkpoint(folder).base is not None
    change(folder, base_model_name_or_path="base")
    with pytest.raises(CheckpointError, match="base model missing"):
        open_checkpoint(folder)
    monkeypatch.chdir(tmp_path)
    assert open_checkpoint(folder).base is not None


def test_base_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = adapter(tmp_path, base="someone/tiny")
    snapshot = tmp_path / "hub/models--someone--tiny/snapshots/0123456789012345678901234567890123456789"
    shutil.copytree(tmp_path / "base", snapshot)
    (tmp_path / "hub/models--someone--tiny/refs").mkdir()
    (tmp_path / "hub/models--someone--tiny/refs/main").write_text(snapshot.name)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    base = open_checkpoint(folder).base
    assert base is not None
    assert base.path == snapshot


def test_an_adapter_on_an_adapter_and_on_itself(tmp_path: Path) -> None:
    folder = adapter(tmp_path)
    shutil.copytree(folder, tmp_path / "second")
    change(tmp_path / "second", base_model_name_or_path=str(folder))
    with pytest.raises(CheckpointError, match="is an adapter too"):
        open_checkpoint(tmp_path / "second")
    with pytest.raises(CheckpointError, match="is an adapter too"):
        open_checkpoint(folder, folder)


def test_another_base_does_not_fit(tmp_path: Path) -> None:
    folder = adapter(tmp_path)
    base_model("gpt2").save_pretrained(tmp_path / "gpt2")
    with pytest.raises(CheckpointError, match=r"checkpoint-4 does not load: Target modules"):
        open_checkpoint(folder, tmp_path / "gpt2").load(CPU, torch.float32)
    config = base_model().config
    config.hidden_size = 32
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "wide")
    with pytest.raises(CheckpointError, match="size mismatch for base_model"):
        open_checkpoint(folder, tmp_path / "wide").load(CPU, torch.float32)
    config = base_model().config
    config.num_hidden_layers = 1
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "short")
    with pytest.raises(CheckpointError, match=r"4 of 8 adapter tensors matched, without a place: .*layers\.1.*--base"):
        open_checkpoint(folder, tmp_path / "short").load(CPU, torch.float32)


# ── tensors that match nothing ──────────────────────────────────────────────────────────────────────────────────────


def test_keys_of_another_wrapper_match_nothing_g07(tmp_path: Path) -> None:
    folder = adapter(tmp_path)
    rewrite(folder, lambda held: {key.replace("model.model.", "model.language_model.model."): held[key] for key in held})
    with pytest.warns(UserWarning, match="missing adapter keys"):  # peft only warns, and is the base model
        silent = pefts_own(folder)
    torch.testing.assert_close(silent, logits(base_model()))
    with pytest.raises(CheckpointError, match=r"0 of 8 adapter tensors matched.*8 places without a tensor"):
        open_checkpoint(folder).load(CPU, torch.float32)


def test_some_keys_missing(tmp_path: Path) -> None:
    folder = adapter(tmp_path)
    rewrite(folder, lambda held: {key: held[key] for key in held if "layers.1.self_attn.q_proj" not in key})
    with pytest.raises(CheckpointError, match=r"6 of 6 adapter tensors matched, 2 places without a tensor"):
        open_checkpoint(folder).load(CPU, torch.float32)


def test_no_tensors_g07(tmp_path: Path) -> None:
    folder = adapter(tmp_path)
    rewrite(folder, lambda _: {})
    with pytest.raises(CheckpointError, match="adapter file holds no tensors"):
        open_checkpoint(folder)
    (folder / "adapter_model.safetensors").unlink()
    torch.save({}, folder / "adapter_model.bin")
    with pytest.raises(CheckpointError, match="adapter file holds no tensors"):
        open_checkpoint(folder).load(CPU, torch.float32)
    (folder / "adapter_model.bin").unlink()
    with pytest.raises(CheckpointError, match=r"an adapter without its tensors; wanted adapter_model\.safetensors or"):
        open_checkpoint(folder)
    (folder / "optimizer.pt").write_bytes(b"")
    with pytest.raises(CheckpointError, match="optimizer state only"):
        open_checkpoint(folder)


def test_modules_to_save_that_were_not_saved(tmp_path: Path) -> None:
    folder = adapter(tmp_path, modules_to_save=["lm_head"])
    rewrite(folder, lambda held: {key: held[key] for key in held if "lm_head" not in key})
    with pytest.raises(CheckpointError, match=r"the adapter file lacks '.*lm_head"):
        open_checkpoint(folder).load(CPU, torch.float32)


def test_rank_of_another_adapter(tmp_path: Path) -> None:
    folder = adapter(tmp_path)
    for rank in (2, 8192):
        change(folder, r=rank)
        with pytest.raises(CheckpointError, match=f"the settings say rank {rank}, the tensors have rank 4"):
            open_checkpoint(folder).load(CPU, torch.float32)
    for rank in (0, -1, 10**9, "4", None, [4]):
        change(folder, r=rank)
        with pytest.raises(CheckpointError, match="wanted two numbers"):
            open_checkpoint(folder)


def test_added_words(tmp_path: Path) -> None:
    """The vocabulary was resized before training: peft saves the embeddings whole."""
    base_model().save_pretrained(tmp_path / "base")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    model.resize_token_embeddings(70, mean_resizing=False)
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    for name, parameter in wrapped.named_parameters():
        if "lora" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    whole = logits(wrapped)
    folder = tmp_path / "checkpoint-4"
    wrapped.save_pretrained(folder, save_embedding_layers=True)
    change(folder, base_model_name_or_path=str(tmp_path / "base"))
    checkpoint = open_checkpoint(folder)
    assert (checkpoint.vocabulary, checkpoint.base) == (70, None)
    loaded = checkpoint.load(CPU, torch.float32)
    assert logits(loaded).shape[-1] == 70
    torch.testing.assert_close(logits(loaded), whole)
    rewrite(folder, lambda held: {key: held[key] for key in held if "lm_head" not in key})
    with pytest.raises(CheckpointError, match=r"changed to 70 words, and only model\.embed_tokens was saved"):
        open_checkpoint(folder).load(CPU, torch.float32)


@pytest.mark.parametrize("modules", [{"target_modules": ["q_proj", "embed_tokens"]}, {"modules_to_save": ["lm_head"]}])
def test_a_tied_embedding_that_is_adapted(tmp_path: Path, modules: dict[str, Any]) -> None:
    folder = adapter(tmp_path, tied=True, **modules)
    torch.testing.assert_close(logits(open_checkpoint(folder).load(CPU, torch.float32)), pefts_own(folder), atol=1e-5, rtol=1e-5)


# ── nothing of the data's runs ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"peft_type": "PREFIX_TUNING"}, "an adapter of type PREFIX_TUNING; wanted a LoRA adapter; merge"),
        ({"peft_type": None}, "an adapter of type None"),
        ({"auto_map": {"AutoModel": "mine.Model"}}, "auto_map.*no code of the data's runs"),
        ({"auto_mapping": {"base_model_class": "M", "parent_library": "planted"}}, "auto_mapping to planted"),
        ({"auto_mapping": ["planted"]}, "auto_mapping"),
        ({"megatron_config": {"x": 1}, "megatron_core": "planted"}, "megatron_config.*a module to import"),
        ({"megatron_core": "planted"}, "megatron_core to planted"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights to pissa: it changes the base"),
        ({"init_lora_weights": ["loftq"]}, "init_lora_weights"),
        ({"alora_invocation_tokens": [1, 2]}, "acts on some tokens only"),
        ({"layer_replication": [[0, 10**9]]}, "layer_replication"),
        ({"rank_pattern": {"(a+)+b": 4}}, "an expression"),
        ({"rank_pattern": {"q_proj": "4"}}, "rank_pattern"),
        ({"rank_pattern": 4}, "rank_pattern"),
        ({"alpha_pattern": {"(.*)*q": 4}}, "an expression"),
        ({"layers_pattern": "(x*)*"}, "an expression"),
        ({"exclude_modules": "(x*)*"}, "an expression"),
        ({"modules_to_save": 5}, "modules_to_save"),
        ({"lora_alpha": "8"}, "two numbers"),
        ({"lora_alpha": float("nan")}, "two numbers"),
        ({"lora_alpha": 10**400}, "two numbers"),
        ({"alpha_pattern": {"q_proj": float("inf")}}, "alpha_pattern"),
    ],
)
def test_settings_that_are_refused(tmp_path: Path, settings: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = adapter(tmp_path)
    (tmp_path / "planted.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    (folder / "mine.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    change(folder, **settings)
    with pytest.raises(CheckpointError, match=words) as caught:
        open_checkpoint(folder)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("ran"))


def test_settings_of_a_newer_peft(tmp_path: Path) -> None:
    folder = adapter(tmp_path)
    change(folder, use_wonder=True, use_nothing=False)
    with pytest.raises(CheckpointError, match="settings that this peft does not know: use_wonder; update peft"):
        open_checkpoint(folder).load(CPU, torch.float32)


def test_an_expression_that_would_search_for_ever(tmp_path: Path) -> None:
    """``target_modules`` may be one; the modules are then those that the tensors name, and it is not run."""
    folder = adapter(tmp_path)
    whole = logits(open_checkpoint(folder).load(CPU, torch.float32))
    change(folder, target_modules=r"(.*)*(.*)*(.*)*(.*)*x")
    torch.testing.assert_close(logits(open_checkpoint(folder).load(CPU, torch.float32)), whole)


class MakesAFolder:
    """Stands for any code that a pickle may carry."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (self.path,)


def test_bin_by_the_restricted_loader_g06(tmp_path: Path) -> None:
    folder = adapter(tmp_path)
    whole = pefts_own(folder)
    held = safetensors.load_file(folder / "adapter_model.safetensors")
    (folder / "adapter_model.safetensors").unlink()
    torch.save(held, folder / "adapter_model.bin")
    torch.testing.assert_close(logits(open_checkpoint(folder).load(CPU, torch.float32)), whole)
    mark = tmp_path / "ran"
    torch.save({**held, "odd": MakesAFolder(str(mark))}, folder / "adapter_model.bin")
    with pytest.raises(CheckpointError, match=r"the pickle asks for \w+\.mkdir"):
        open_checkpoint(folder).load(CPU, torch.float32)
    assert not mark.exists()
    for odd in ([1, 2], {"a": 3}):
        torch.save(odd, folder / "adapter_model.bin")
        with pytest.raises(CheckpointError, match="holds more than tensors by name"):
            open_checkpoint(folder).load(CPU, torch.float32)


# ── what else may lie there ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_whole_model_beside_an_adapter(tmp_path: Path) -> None:
    """transformers would put the adapter on without a word."""
    folder = adapter(tmp_path)
    shutil.copytree(tmp_path / "base", folder, dirs_exist_ok=True)
    with pytest.raises(CheckpointError, match="holds a whole model and an adapter; wanted one of them"):
        open_checkpoint(folder)


def test_damaged(tmp_path: Path) -> None:
    folder = adapter(tmp_path)
    (folder / "adapter_model.safetensors").write_bytes(b"\xff" * 40)
    with pytest.raises(CheckpointError, match="no safetensors file"):
        open_checkpoint(folder)
    for content, words in ((b"{", "cannot be read"), (b"[]", "no JSON object")):
        (folder / "adapter_config.json").write_bytes(content)
        with pytest.raises(CheckpointError, match=words):
            open_checkpoint(folder)


def test_without_peft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    checkpoint = open_checkpoint(adapter(tmp_path))
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingExtra, match=r"needs peft.*credit-inspector\[peft\]"):
        checkpoint.load(CPU, torch.float32)


def test_other_folders_are_not_its_own(tmp_path: Path) -> None:
    base_model().save_pretrained(tmp_path / "base")
    for path in (tmp_path, tmp_path / "base", tmp_path / "nowhere"):
        assert open_adapter(path, CheckpointOptions()) is None


def test_the_reference_of_an_analysis_is_the_base_g07(tmp_path: Path) -> None:
    """A run without checkpoints, an adapter over its first one: what is named is the policy alone."""
    import numpy as np

    from credit_inspector import pipeline
    from credit_inspector.trainers.opening import open_run

    base = SAMPLE / "checkpoints" / "step_000000"
    shutil.copytree(base, tmp_path / "base")
    folder = adapter(tmp_path, base="moved/away")
    run = dataclasses.replace(open_run(SAMPLE), checkpoints=())
    options = pipeline.Options(checkpoints={"policy": folder}, base=base, columns=("kl/exact",), device="cpu")
    table, _ = pipeline.in_memory(run, options, run.steps[0])
    note = table.columns["kl/exact"].note
    assert "policy" in note
    assert "ref checkpoints/step_000000" in note
    own = peft.PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(base), str(folder))
    row = table.rollouts[0]
    ids = torch.tensor([[*row.prompt_ids.tolist(), *row.response_ids.tolist()]])
    start = len(row.prompt_ids) - 1
    with torch.no_grad():
        temperature = table.algorithm.temperature if table.algorithm else 1.0
        on = (own.eval()(ids).logits[0, start:-1] / temperature).log_softmax(-1)
        with own.disable_adapter():
            off = (own(ids).logits[0, start:-1] / temperature).log_softmax(-1)
    kl = (on.exp() * (on - off)).sum(-1).numpy()
    np.testing.assert_allclose(table.values("kl/exact")[table.slice(0)], kl, atol=1e-4)
    assert kl.max() > 1e-3
    alone = dataclasses.replace(options, checkpoints={"ref": base})
    table, _ = pipeline.in_memory(run, alone, run.steps[0])
    assert table.columns["kl/exact"].values is None
    assert "--policy" in table.columns["kl/exact"].note
    given = dataclasses.replace(options, checkpoints={"policy": folder, "ref": folder})
    table, _ = pipeline.in_memory(run, given, run.steps[0])
    assert np.abs(table.values("kl/exact")).max() < 1e-5
