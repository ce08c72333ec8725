"""What users reported about masks and tokens (kind d), each with its input and its answer.

d02 and d03 are in ``test_advantages.py``.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from typer.testing import CliRunner

from credit_inspector import pipeline
from credit_inspector.checkpoints import Checkpoint
from credit_inspector.checks import checks
from credit_inspector.cli import app
from credit_inspector.columns import Inputs, compute
from credit_inspector.components import decompose_step
from credit_inspector.metrics import metrics
from credit_inspector.rollout import Rollout, Step
from credit_inspector.scoring import Models
from credit_inspector.segmenters import segmenters
from credit_inspector.spans import SpanTable
from credit_inspector.store import Store
from credit_inspector.table import Provenance, TokenTable
from credit_inspector.tokens import has_end, pieces, special
from credit_inspector.trainers.tokenising import tokenised
from field_cases.tables import rule
from places import SAMPLE


def lines(file: Path, *rows: dict[str, object]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def analysed(folder: Path, *rows: dict[str, object], **options: object) -> Store:
    return pipeline.analyze(lines(folder / "run.jsonl", *rows), folder / "out", pipeline.Options(score=False, **options))


def record(name: str, **values: object) -> dict[str, object]:
    return {"schema_version": 1, "step": 1, "sample_id": name, **values}


# ── d01 ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def hello() -> Tokenizer:
    """``he|llo`` as ids 258 and 3245, and ``hello`` as one, which encoding prefers."""
    words = {"he": 258, "llo": 3245, "hello": 9, "[UNK]": 0}
    return Tokenizer(models.WordLevel(words, unk_token="[UNK]"))


def test_d01_ids_are_shown_as_given_and_text_that_does_not_fit_is_not_aligned() -> None:
    values = {"logprob/old": np.array([-0.5, -0.25], np.float32)}
    a = Rollout(sample_id="A", response="hello", response_ids=np.array([258, 3245], np.int32), columns=values)
    b = Rollout(sample_id="B", response="hello", columns=values, reward=1.0)
    step = tokenised(Step(1, (a, b)), hello())
    table = TokenTable.from_rollouts(1, step.rollouts)
    assert table.token_ids[table.slice(0)].tolist() == [258, 3245]
    assert table.values("logprob/old")[table.slice(0)].tolist() == [-0.5, -0.25]
    assert ("2 log-probs but 1 token after encoding; cannot align", "B") in [(p.message, p.where) for p in step.problems]
    assert np.isnan(table.values("logprob/old")[table.slice(1)]).all()
    assert table.reward[1] == 1.0


# ── d04 ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_d04_thinking_that_the_prompt_opened_begins_with_the_response(tmp_path: Path) -> None:
    response = "Two plus two.\n</think>\nThe answer is 4."
    parts = [(response[span.start : span.end], span.label) for span in segmenters["thinking"](response)]
    assert parts == [("Two plus two.\n", "thinking"), ("</think>", "markup"), ("\nThe answer is 4.", "rest")]
    row = {"prompt": "2 + 2?<think>\n", "response": response, "group_id": "g"}
    rewards = [{"correct": right, "format": 0.0} for right in (1.0, 0.0)]
    store = analysed(tmp_path, *(record(n, **row, rewards=r, reward=r["correct"]) for n, r in zip("ab", rewards, strict=True)))
    (found,) = checks["thinking-opened-in-prompt"](store)
    assert found.sentence.startswith("The opening tag is in the prompt in 2 of 2 responses")
    table, _ = store.read_step(1, [])
    split = decompose_step(table, rule())
    assert split.names == ("correct", "format")
    np.testing.assert_array_equal(split.centred, [[0.5, -0.5], [0.0, 0.0]])
    assert split.idle.tolist() == [False, True]


def test_d04_a_block_that_the_response_opens_is_its_own(tmp_path: Path) -> None:
    text = "<think>a</think>b<think>c"
    labels = [(text[s.start : s.end], s.label) for s in segmenters["thinking"](text)]
    assert [part for part in labels if part[1] != "markup"] == [("a", "thinking"), ("b", "rest"), ("c", "thinking")]
    store = analysed(tmp_path, record("a", prompt="q", response=text), record("b", prompt="<think>\n", response=text))
    assert checks["thinking-opened-in-prompt"](store) == []


# ── d06 ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def gpt2() -> PreTrainedModel:
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=16, n_positions=64, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=1)
    )


def llama() -> PreTrainedModel:
    config = LlamaConfig(vocab_size=16, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2)
    return LlamaForCausalLM(config)


@pytest.mark.parametrize("make", [gpt2, llama])
def test_d06_what_stands_beside_a_response_in_a_batch_changes_nothing(make: type) -> None:
    torch.manual_seed(0)
    model = make().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0, 0.5)

    def scored(*lengths: int) -> np.ndarray:
        first = Rollout(sample_id="0", prompt_ids=np.array([3], np.int32), response_ids=np.array([4, 5, 6], np.int32))
        others = [
            Rollout(
                sample_id=str(i + 1),
                prompt_ids=np.full(length, 2, np.int32),
                response_ids=np.full(length, 7, np.int32),
            )
            for i, length in enumerate(lengths)
        ]
        table = TokenTable.from_rollouts(1, [first, *others])
        one = Checkpoint(path=Path("x"), format="", summary="", vocabulary=16, tokenizer=None, load=lambda *_: model)
        compute(Inputs(table, models=Models({"policy": one}, device="cpu")), ["logprob/recomputed"], specs)
        return table.values("logprob/recomputed")[:3]

    specs = {spec.name: spec for spec in metrics.members()}
    with torch.no_grad():
        logits = model(torch.tensor([[3, 4, 5, 6]])).logits[0].double()
    expected = torch.log_softmax(logits, -1)[torch.arange(3), torch.tensor([4, 5, 6])].numpy()
    for beside in ((), (3,), (1, 9, 20)):
        np.testing.assert_allclose(scored(*beside), expected, atol=1e-5)


# ── d07, d10 ────────────────────────────────────────────────────────────────────────────────────────────────────────


def byte_level() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={sign: i for i, sign in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<bos>", "<eos>"])
    return tokenizer


def test_d07_an_emoji_over_four_tokens_shows_once_and_each_token_keeps_its_value() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("😀 ok").ids
    found = pieces(tokenizer, ids)
    assert "".join(found.text) == "😀 ok"
    assert found.text[:4] == ("😀", "", "", "")
    assert found.clusters[:5].tolist() == [0, 0, 0, 0, 4]
    table = TokenTable.from_rollouts(1, [Rollout(sample_id="0", response_ids=np.array(ids, np.int32))])
    table.add("advantage", [0.5] * len(ids), Provenance.RECORDED)
    assert table.values("advantage").tolist() == [0.5] * len(ids)


@pytest.mark.parametrize(("ids", "text", "shown", "hidden"), [
    ("A<eos>", "A", ["A", "<eos>"], 1),
    ("A<bos>B<eos>", "AB", ["A", "<bos>", "B", "<eos>"], 2),
])  # fmt: skip
def test_d10_tokens_that_the_text_leaves_out_are_shown_and_counted(ids: str, text: str, shown: list[str], hidden: int) -> None:
    tokenizer = byte_level()
    sampled = tokenizer.encode(ids).ids
    assert list(pieces(tokenizer, sampled).text) == shown
    assert int(special(tokenizer, sampled).sum()) == hidden
    assert tokenizer.decode(sampled, skip_special_tokens=True) == text


# ── d08 ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stored", [False, True])
def test_d08_any_of_several_end_ids_ends_a_response(tmp_path: Path, stored: bool) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes((SAMPLE / "tokenizer/tokenizer.json").read_bytes())
    (folder / "config.json").write_text('{"eos_token_id": 9}')
    (folder / "generation_config.json").write_text('{"eos_token_id": [9, 7]}')
    row = {"prompt_ids": [1], "reward": 1.0}
    store = analysed(
        tmp_path,
        record("a", response_ids=[4, 5, 7], truncated=stored, **row),
        record("b", response_ids=[4, 5, 9], truncated=False, **row),
        tokenizer=folder,
    )
    assert store.meta().ends == (9, 7)
    table, _ = store.read_step(1, [])
    assert has_end(np.array([one.response_ids for one in table.rollouts]), store.meta().ends).all()
    assert table.loss_mask.all()
    found = checks["ended-counted-as-cut"](store)
    assert bool(found) == stored
    if stored:
        assert "id 7" in found[0].sentence
        assert "0 % are truncated, not 50 %" in found[0].sentence


# ── g04 ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_g04_a_padding_id_is_shown_and_named(tmp_path: Path) -> None:
    words = {"ok": 9906, "[UNK]": 0}
    Tokenizer(models.WordLevel(words, unk_token="[UNK]")).save(str(tmp_path / "tokenizer.json"))
    rows = [record(name, response_ids=[9906, number], reward=1.0) for name, number in (("a", 151900), ("b", 152000), ("c", 9906))]
    store = analysed(tmp_path, *rows, tokenizer=tmp_path / "tokenizer.json")
    table, _ = store.read_step(1, [])
    assert [(problem.message, problem.where) for problem in table.problems if problem.kind == "padding-id"] == [
        ("id 151900 is a padding id: the tokenizer has no token for it (in 1 response)", "a"),
        ("id 152000 is a padding id: the tokenizer has no token for it (in 1 response)", "b"),
    ]
    assert store.pieces([9906, 151900]).text == ("ok", "<id 151900>")


# ── scripts ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "text", ["👩‍👩‍👧‍👦 ok", "سلام، ٣+٤", "שלום", "東京で3+4", "e\u0301 ñ", "<|im_start|>x", "\u2028\u202eabc", "𝒳🏳️‍🌈"]
)
def test_every_script_reads_as_it_was_written_and_keeps_its_values(text: str) -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode(text).ids
    found = pieces(tokenizer, ids)
    assert "".join(found.text) == text
    assert len(found.text) == len(ids)
    for place, first in enumerate(found.clusters):
        assert found.text[place] == "" or first == place


# ── d23 ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_d23_text_comes_from_ids_where_the_normaliser_changed_it() -> None:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.Replace("…", "...")
    text = "Karadžić…"
    encoded = tokenizer.encode(text)
    spans = encoded.offsets
    assert len(set(spans)) < len(spans), "the case needs tokens that share a span"
    found = pieces(tokenizer, encoded.ids)
    assert "".join(found.text) == "Karadžić..."
    table = TokenTable.from_rollouts(1, [Rollout(sample_id="0", response_ids=np.array(encoded.ids, np.int32))])
    cut = SpanTable.from_text(table, [found.text], segmenters["sentence"])
    credit = np.arange(1.0, table.n_tokens + 1)
    assert np.nansum(cut.sums(credit)) == credit.sum()


def test_the_checks_print_nothing_of_it_on_a_clean_run(tmp_path: Path) -> None:
    file = lines(
        tmp_path / "run.jsonl", record("a", prompt="q", response="x", reward=1), record("b", prompt="q", response="y", reward=0)
    )
    printed = CliRunner().invoke(app, ["check", str(file)]).output
    assert "opened" not in printed
    assert "count as truncated" not in printed
