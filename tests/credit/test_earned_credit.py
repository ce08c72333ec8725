"""Earned and realised credit: what the formulas promise, on a random model and on one that can be worked out by
hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from credit_inspector import credit
from credit_inspector.algorithm import Algorithm
from credit_inspector.checkpoints import Checkpoint
from credit_inspector.columns import Inputs, compute
from credit_inspector.credit.influence import LEVELS, lost_with, weights_within
from credit_inspector.rollout import Rollout
from credit_inspector.scoring import Models
from credit_inspector.scoring.saliency import saliency
from credit_inspector.spans import SpanTable
from credit_inspector.table import Provenance, TokenTable

VOCABULARY = 37
SPECS = {spec.name: spec for spec in credit.credits.members()}
BY_SPAN = ("credit/deletion", "credit/prefix_gain", "credit/influence")
EARNED = (*BY_SPAN, "credit/saliency", "credit/alignment")
TEXT = "sentence"
ROWS = (
    [(0, 3, TEXT), (3, 5, TEXT), (5, 8, TEXT), (8, 9, "markup"), (9, 12, "answer"), (12, 14, TEXT)],
    [(0, 2, TEXT), (2, 6, TEXT)],
    [(0, 4, TEXT), (4, 6, "answer")],
)


def _models(*, seeds=(0, 0, 1), model=None):
    def at(seed):
        def load(device, dtype):
            torch.manual_seed(seed)
            size = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
            config = LlamaConfig(**size, intermediate_size=24, initializer_range=0.3, pad_token_id=None)
            return model or LlamaForCausalLM(config).to(device, dtype).requires_grad_(False).eval()

        path = Path("run") / f"step-{seed}"
        return Checkpoint(path=path, format="test", summary="", vocabulary=VOCABULARY, tokenizer=None, load=load)

    roles = zip(("policy", "before", "after"), seeds, strict=True)
    return Models({role: at(seed) for role, seed in roles}, device="cpu")


def _step(lengths=(14, 6, 7), responses=None, masks=None, prompt=3):
    rng = np.random.default_rng(0)
    given = responses or [rng.integers(0, VOCABULARY, n) for n in lengths]
    rollouts = [
        Rollout(
            sample_id=str(i),
            prompt_ids=(np.zeros(1) if responses else rng.integers(0, VOCABULARY, prompt)).astype(np.int32),
            response_ids=np.asarray(ids, np.int32),
            loss_mask=None if masks is None else masks[i],
        )
        for i, ids in enumerate(given)
    ]
    return TokenTable.from_rollouts(1, rollouts, algorithm=Algorithm(name="test", source="recorded"))


def _cut(table, *rows):
    flat = [(i, table.offsets[i] + a, table.offsets[i] + b, label) for i, of in enumerate(rows) for a, b, label in of]
    row, start, end, label = zip(*flat, strict=True)
    arrays = [np.array(values, np.int64) for values in (row, start, end)]
    return SpanTable(row=arrays[0], start=arrays[1], end=arrays[2], label=label, text=("",) * len(flat))


def _made(table, spans, models, *names):
    compute(Inputs(table=table, spans=spans, models=models), names, SPECS)
    missing = [table.columns[name].note for name in names if table.columns[name].values is None]
    assert not missing, missing
    return [table.values(name) for name in names]


# ── realised ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_realised_credit_is_the_change_between_the_two_checkpoints():
    table, models = _step(), _models()
    (values,) = _made(table, None, models, "credit/realised")
    before, after = (models.scores(role, table).logprob for role in ("before", "after"))
    np.testing.assert_allclose(values, after - before, atol=1e-6)
    note = table.columns["credit/realised"].note
    assert "from before run/step-0" in note
    assert "to after run/step-1" in note


def test_the_same_checkpoint_twice_realises_exactly_nothing():
    (values,) = _made(_step(), None, _models(seeds=(0, 3, 3)), "credit/realised")
    assert (values == 0).all()


# ── what all earned columns promise ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", EARNED)
def test_a_response_without_an_answer_is_missing_and_counted(name):
    table = _step()
    (values,) = _made(table, _cut(table, *ROWS), _models(), name)
    assert np.isnan(values[table.slice(1)]).all()
    assert np.isfinite(values[table.slice(0)]).any()
    assert "1 of 3 responses have no answer span" in table.columns[name].note
    assert "policy run/step-0" in table.columns[name].note
    assert table.columns[name].provenance is Provenance.RECOMPUTED


@pytest.mark.parametrize("name", EARNED)
def test_a_response_alone_equals_it_among_others_in_any_order(name):
    table, models = _step(), _models()
    (among,) = _made(table, _cut(table, *ROWS), models, name)
    turned = TokenTable.from_rollouts(1, table.rollouts[::-1], algorithm=table.algorithm)
    (last,) = _made(turned, _cut(turned, *ROWS[::-1]), models, name)
    alone = TokenTable.from_rollouts(1, table.rollouts[:1], algorithm=table.algorithm)
    (single,) = _made(alone, _cut(alone, ROWS[0]), models, name)
    for other in (last[turned.slice(2)], single):
        np.testing.assert_allclose(other, among[table.slice(0)], atol=2e-4)


@pytest.mark.parametrize("name", EARNED)
def test_the_mask_hides_tokens_and_changes_no_other(name):
    table, models = _step(), _models()
    (whole,) = _made(table, _cut(table, *ROWS), models, name)
    masks = [np.ones(n, bool) for n in table.lengths]
    masks[0][3:5] = False
    masked = _step(masks=masks)
    (values,) = _made(masked, _cut(masked, *ROWS), models, name)
    np.testing.assert_allclose(values, np.where(masked.loss_mask, whole, np.nan), atol=1e-6)


@pytest.mark.parametrize("name", BY_SPAN)
def test_spans_hold_one_value_the_answer_none_and_the_rest_exactly_zero(name):
    table = _step()
    (values,) = _made(table, _cut(table, *ROWS), _models(), name)
    first = values[table.slice(0)]
    for start, end in ((0, 3), (3, 5), (5, 8)):
        assert np.isfinite(first[start])
        assert (first[start:end] == first[start]).all()
    assert np.isnan(first[8:12]).all()
    assert (first[12:] == 0).all()
    assert np.isnan(values[table.slice(2)][6:]).all()


@pytest.mark.parametrize("name", EARNED)
def test_a_table_whose_spans_hold_no_answer_is_all_missing(name):
    table = _step()
    (values,) = _made(table, _cut(table, [(0, 3, "sentence")]), _models(), name)
    assert np.isnan(values).all()
    assert "3 of 3 responses have no answer span" in table.columns[name].note


# ── alignment and saliency ────────────────────────────────────────────────────────────────────────────────────────────


def test_the_answers_own_alignment_sums_to_one():
    table = _step()
    (values,) = _made(table, _cut(table, *ROWS), _models(), "credit/alignment")
    assert values[table.slice(0)][9:12].sum() == pytest.approx(1, abs=1e-4)
    assert values[table.slice(2)][4:6].sum() == pytest.approx(1, abs=1e-4)
    assert "by forward mode, several responses at once" in table.columns["credit/alignment"].note


def test_saliency_is_zero_where_the_answer_cannot_see():
    table = _step()
    (values,) = _made(table, _cut(table, *ROWS), _models(), "credit/saliency")
    first = values[table.slice(0)]
    assert (first[11:] == 0).all()
    assert (first[:11] != 0).all()


# ── deletion, prefix gain and influence by one forward pass for each ──────────────────────────────────────────────────


class _Twin:
    """The log-prob of row 0's answer after deleting tokens, by one whole forward pass each."""

    def __init__(self, table, models):
        self.prompt, self.response = table.rollouts[0].prompt_ids.tolist(), table.rollouts[0].response_ids.tolist()
        self.model = models.model("policy")

    def logprobs(self, prefix, tokens):
        ids = torch.tensor([*prefix, *tokens])
        log_p = self.model(input_ids=ids[None], use_cache=False).logits[0].log_softmax(-1)
        return {t: float(log_p[len(prefix) + t - 1, y]) for t, y in enumerate(tokens)}

    def answer(self, *spans):
        gone = {t for start, end, _ in spans for t in range(start, end)}
        kept = [t for t in range(12) if t not in gone]
        found = self.logprobs(self.prompt, [self.response[t] for t in kept])
        return sum(found[i] for i, t in enumerate(kept) if 9 <= t < 12)

    def drops(self, span, later):
        kept = [t for t in range(12) if not span[0] <= t < span[1]]
        full = self.logprobs(self.prompt, self.response[:12])
        without = dict(zip(kept, self.logprobs(self.prompt, [self.response[t] for t in kept]).values(), strict=True))
        return np.array([full[t] - without[t] for t in range(later[0], later[1])])


def test_deletion_equals_a_forward_pass_without_the_span():
    table, models = _step(), _models()
    (values,) = _made(table, _cut(table, *ROWS), models, "credit/deletion")
    twin = _Twin(table, models)
    for span in ROWS[0][:3]:
        assert values[span[0]] == pytest.approx(twin.answer() - twin.answer(span), abs=3e-5)


def test_prefix_gains_telescope_from_the_prompt_to_the_whole():
    table, models = _step(), _models()
    (values,) = _made(table, _cut(table, *ROWS), models, "credit/prefix_gain")
    twin = _Twin(table, models)
    opening = twin.response[8:9]
    alone = sum(twin.logprobs([*twin.prompt, *opening], twin.response[9:12]).values())
    assert sum(values[span[0]] for span in ROWS[0][:3]) == pytest.approx(twin.answer() - alone, abs=5e-5)
    after_one = sum(twin.logprobs([*twin.prompt, *twin.response[:3], *opening], twin.response[9:12]).values())
    assert values[0] == pytest.approx(after_one - alone, abs=5e-5)


def test_influence_equals_its_formula_written_out():
    table, models = _step(), _models()
    spans = _cut(table, *ROWS)
    (values,) = _made(table, spans, models, "credit/influence")
    twin, of = _Twin(table, models), ROWS[0][:3]
    weight = np.abs(saliency(models, table, spans).astype(float))

    def depends(j, k):
        w = weight[k[0] : k[1]] / weight[k[0] : k[1]].sum()
        return 1 - np.exp(-max(0.0, float((w * twin.drops(j, k)).sum())))

    a, b, c = of
    lost = {a: {b: depends(a, b)}, b: {c: depends(b, c)}, c: {}}
    lost[a][c] = max(depends(a, c), lost[a][b] * depends(b, c))
    for span in of:
        drops = [twin.answer() - twin.answer(span, *(k for k, r in lost[span].items() if r >= u)) for u in LEVELS]
        assert values[span[0]] == pytest.approx(np.mean(drops), abs=5e-5)


def test_what_is_lost_with_a_span_follows_the_strongest_chain():
    drops = np.array([[np.nan, 1.0, 0.1], [np.nan, np.nan, 2.0], [np.nan] * 3])
    lost = lost_with(drops)
    a, b = 1 - np.exp(-1), 1 - np.exp(-2)
    np.testing.assert_allclose(lost, [[1, a, a * b], [0, 1, b], [0, 0, 1]])
    assert (lost_with(-np.ones((3, 3))) == np.eye(3)).all()
    assert lost_with(np.zeros((0, 0))).shape == (0, 0)


def test_weights_sum_to_one_within_every_span():
    table = _step()
    spans = _cut(table, *ROWS)
    size = np.random.default_rng(1).normal(size=table.n_tokens).astype(np.float32)
    size[3:5], size[14:16] = 0, np.nan
    weights = weights_within(spans, size)
    np.testing.assert_allclose(spans.sums(weights), 1)
    np.testing.assert_allclose(weights[3:5], 0.5)
    np.testing.assert_allclose(weights[14:16], 0.5)
    assert weights[-1] == 0


# ── a model that can be worked out by hand ────────────────────────────────────────────────────────────────────────────

FILLER, MORE_FILLER, PLAN, WORK, COPY, CUE, ANSWER = range(1, 8)
_RAISES = ((FILLER, MORE_FILLER, 6), (PLAN, WORK, 6), (WORK, ANSWER, 18), (COPY, ANSWER, 18), (WORK, COPY, 20))
_RAISES += ((COPY, COPY, -20), (CUE, COPY, -40))


class Seen(torch.nn.Module):
    """What has been seen raises logits: filler more filler, a plan work, work its copy, and work or copy the answer."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding.from_pretrained(torch.eye(8))
        self.out = torch.nn.Linear(8, 8, bias=False)
        self.out.weight.data.zero_()
        for seen, raised, by in _RAISES:
            self.out.weight.data[raised, seen] = by
        self.config = SimpleNamespace(get_text_config=SimpleNamespace)
        self.base_model = _SoFar(self.words)

    def get_input_embeddings(self):
        return self.words

    def get_output_embeddings(self):
        return self.out

    def forward(self, input_ids, **_):
        return SimpleNamespace(logits=self.out(self.base_model(input_ids).last_hidden_state))


class _SoFar(torch.nn.Module):
    def __init__(self, words):
        super().__init__()
        self.words = words

    def forward(self, input_ids, **_):
        return SimpleNamespace(last_hidden_state=self.words(input_ids).cummax(1).values)


def _of_words(*words):
    table = _step(responses=[list(words)])
    labels = {ANSWER: "answer", CUE: "markup"}
    spans = _cut(table, [(i, i + 1, labels.get(word, "sentence")) for i, word in enumerate(words)])
    return [values.round(3) for values in _made(table, spans, _models(model=Seen()), *BY_SPAN)]


def test_influence_reaches_the_plan_through_the_work_and_leaves_filler_alone():
    deletion, gain, influence = _of_words(FILLER, MORE_FILLER, PLAN, WORK, CUE, ANSWER)
    assert deletion[3] > 3
    assert abs(deletion[2]) < 1
    assert abs(gain[2]) < 1 or gain[2] < 0
    assert influence[3] == pytest.approx(deletion[3])
    # Without the plan there is no work, and without the work no answer.
    assert influence[2] > 3
    # Filler makes filler likely, and that is all it does.
    assert abs(influence[:2]).max() < 1


def test_of_two_copies_deletion_credits_none_and_the_others_the_first():
    deletion, gain, influence = _of_words(WORK, FILLER, COPY, CUE, ANSWER)
    np.testing.assert_allclose(deletion[[0, 2]], 0, atol=1e-3)
    assert gain[0] > 1.5
    assert gain[2] == pytest.approx(0, abs=1e-3)
    assert influence[0] > 3
    assert influence[2] == pytest.approx(0, abs=1e-3)


def test_equal_rows_have_equal_credit():
    table = _step(responses=[[WORK, FILLER, ANSWER]] * 3)
    spans = _cut(table, *[[(0, 1, "sentence"), (1, 2, "sentence"), (2, 3, "answer")]] * 3)
    for values in _made(table, spans, _models(model=Seen()), *BY_SPAN):
        np.testing.assert_array_equal(values[:3], values[3:6])
        np.testing.assert_array_equal(values[:3], values[6:])


def test_rows_that_the_model_refuses_are_missing_and_the_others_go_on():
    table = _step()
    bad = replace(table.rollouts[2], response_ids=np.array([1, 2, 3, 4, 999, 1, 1], np.int32))
    table = TokenTable.from_rollouts(1, [*table.rollouts[:2], bad], algorithm=table.algorithm)
    for values in _made(table, _cut(table, *ROWS), _models(), *EARNED):
        assert np.isnan(values[table.slice(2)]).all()
        assert np.isfinite(values[table.slice(0)]).any()
    assert [p.kind for p in table.problems] == ["vocabulary"]
