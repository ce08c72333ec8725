"""Batched deletions and prefixes against one forward pass for each, written out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from credit_inspector.scoring.answers import answers, opening, without_answer
from credit_inspector.scoring.occlusion import (
    Seam,
    answer_drops,
    delete_each,
    influence_matrix,
    prefix_values,
    removals,
    seam,
)
from credit_inspector.spans import SpanTable
from credit_inspector.table import TokenTable

ROWS = (
    [(0, 3, "sentence"), (3, 5, "sentence"), (5, 6, "markup"), (6, 8, "answer"), (8, 9, "markup")],
    [(0, 2, "sentence"), (3, 5, "answer")],
    [(0, 6, "sentence"), (7, 13, "sentence")],
    [(0, 1, "answer")],
)


def _logprobs(model, prompt, response):
    """Log-prob of each response token by one forward pass."""
    ids = torch.tensor([*prompt, *response])
    if not len(prompt) + len(response):
        return np.zeros(0)
    with torch.no_grad():
        log_p = model(input_ids=ids[None].long(), use_cache=False).logits[0].log_softmax(-1)
    return np.array([float(log_p[len(prompt) + t - 1, y]) for t, y in enumerate(response)])


def _twin(model, rollout, removed):
    """Drops of the tokens from the first removed one on, NaN for removed ones."""
    prompt, response = rollout.prompt_ids.tolist(), rollout.response_ids.tolist()
    gone = {t for start, end, *_ in removed for t in range(start, end)}
    kept = [t for t in range(len(response)) if t not in gone]
    without = dict(zip(kept, _logprobs(model, prompt, [response[t] for t in kept]), strict=True))
    full = _logprobs(model, prompt, response)
    return np.array([full[t] - without[t] if t in without else np.nan for t in range(min(gone), len(response))])


def test_each_span_deleted_equals_a_forward_pass_without_it(model, models_of, step, cut):
    table = step()
    spans = cut(table, *ROWS)
    found = delete_each(models_of(policy=model), table, spans)
    assert len(found) == len(spans)
    number = 0
    for row, of in enumerate(ROWS):
        for span in of:
            removal = found[number]
            assert (removal.row, removal.spans, removal.first) == (row, (number,), table.offsets[row] + span[0])
            np.testing.assert_allclose(removal.drops, _twin(model, table.rollouts[row], [span]), atol=2e-5)
            number += 1


def test_spans_deleted_together(model, models_of, step, cut):
    table = step()
    spans = cut(table, *ROWS)
    models = models_of(policy=model)
    (both,) = removals(models, table, spans, [(0, 2)])
    np.testing.assert_allclose(both.drops, _twin(model, table.rollouts[0], [ROWS[0][0], ROWS[0][2]]), atol=2e-5)
    drops = answer_drops(models, table, spans, [(0, 2), (1,), (5,), (7,)])
    np.testing.assert_allclose(drops[0], both.drops[6:8].sum(), atol=2e-5)
    np.testing.assert_allclose(drops[1], _twin(model, table.rollouts[0], [ROWS[0][1]])[3:5].sum(), atol=2e-5)
    np.testing.assert_allclose(drops[2], _twin(model, table.rollouts[1], [ROWS[1][0]])[3:5].sum(), atol=2e-5)
    assert np.isnan(drops[3])


def test_a_seam_is_mended_and_what_it_takes_is_no_loss(tiny, models_of, step, cut):
    """ "A. 乙 C" without 乙, which has no space before it: the answer's space goes with it."""
    table = step()
    rows = ([(0, 3, "sentence"), (3, 5, "sentence"), (5, 8, "answer")],)
    spans = replace(cut(table, *rows), lead=np.array([0, 0, 1]), text=("A.", "乙", " C"))
    models = models_of(policy=tiny("llama"))
    twin = _twin(models.model("policy"), table.rollouts[0], [(3, 5), (5, 6)])
    removal = delete_each(models, table, spans)[1]
    np.testing.assert_allclose(removal.drops, twin, atol=2e-5)
    lost = twin[3:5].sum()
    assert influence_matrix(spans, delete_each(models, table, spans), 0)[1, 2] == pytest.approx(lost, abs=2e-5)
    assert answer_drops(models, table, spans, [(1,)])[0] == pytest.approx(lost, abs=2e-5)


@pytest.mark.parametrize(
    ("gone", "lead", "follower", "next_lead", "wanted"),
    [
        ("Okay.", 0, " Then", 1, Seam(False, True, True)),  # the text would begin with a space
        ("Okay.", 0, " Then", 0, Seam(False, False, False)),  # the space is part of the word's token
        (" 乙。", 1, "丙", 0, Seam(True, False, True)),  # the space before the gap is wanted, and there to keep
        (" Okay.", 0, "丙", 0, Seam(False, False, False)),
        (" Okay.", 0, " Then", 1, Seam(False, False, True)),
        ("乙。", 0, "丙", 0, Seam(False, False, True)),
    ],
)
def test_a_seam_reads_as_the_text_did(gone, lead, follower, next_lead, wanted):
    ends = np.array([3, 6])
    spans = SpanTable(
        row=np.zeros(2, np.int64),
        start=np.array([0, 3]),
        end=ends,
        label=("sentence",) * 2,
        text=(gone, follower),
        lead=np.array([lead, next_lead]),
    )
    assert seam(spans, 0, 1) == wanted


def test_the_influence_matrix_sums_the_drops(tiny, models_of, step, cut):
    table = step()
    spans = cut(table, *ROWS)
    deleted = delete_each(models_of(policy=tiny("llama")), table, spans)
    matrix = influence_matrix(spans, deleted, 0)
    assert np.isnan(matrix[np.tril_indices(5)]).all()
    assert matrix[0, 1] == pytest.approx(deleted[0].drops[3:5].sum(), abs=1e-5)
    assert matrix[1, 3] == pytest.approx(deleted[1].drops[3:5].sum(), abs=1e-5)
    weights = np.zeros(table.n_tokens)
    weights[7] = 0.5
    assert influence_matrix(spans, deleted, 0, weights)[1, 3] == pytest.approx(0.5 * deleted[1].drops[4], abs=1e-6)
    assert influence_matrix(spans, deleted, 0, weights)[0, 1] == 0


def test_the_answer_after_every_prefix_equals_a_forward_pass_for_each(model, models_of, step, cut):
    table = step()
    values = prefix_values(models_of(policy=model), table, cut(table, *ROWS))

    def forced(row, upto, opening, answer):
        rollout = table.rollouts[row]
        response = rollout.response_ids.tolist()
        prefix = [*rollout.prompt_ids.tolist(), *response[:upto], *response[opening : answer[0]]]
        return _logprobs(model, prefix, response[slice(*answer)]).sum()

    # The markup before the answer of row 0 is forced with it; row 1 has a token between its spans, which is the first
    # one's.
    np.testing.assert_allclose(values[0], [forced(0, upto, 5, (6, 8)) for upto in (0, 3, 5)], atol=3e-5)
    np.testing.assert_allclose(values[1], [forced(1, upto, 3, (3, 5)) for upto in (0, 3)], atol=3e-5)
    assert values[2] is None
    np.testing.assert_allclose(values[3], [forced(3, 0, 0, (0, 1))], atol=3e-5)


def test_a_response_alone_equals_it_among_others(model, models_of, step, cut):
    table = step()
    models = models_of(policy=model)
    alone = TokenTable.from_rollouts(7, table.rollouts[:1], algorithm=table.algorithm)
    among, by_itself = ((t, cut(t, *ROWS[: t.n_rows])) for t in (table, alone))
    for ours, theirs in zip(delete_each(models, *by_itself), delete_each(models, *among), strict=False):
        np.testing.assert_allclose(ours.drops, theirs.drops, atol=2e-5)
    np.testing.assert_allclose(prefix_values(models, *by_itself)[0], prefix_values(models, *among)[0], atol=2e-5)


def test_equal_rows_run_once(tiny, models_of, step, cut):
    table = step(((4, 9),))
    group = TokenTable.from_rollouts(7, table.rollouts * 3, algorithm=table.algorithm)
    told = []
    models = models_of(policy=tiny("llama"))
    models._progress = lambda *what: told.append(what)
    found = delete_each(models, group, cut(group, *[ROWS[0]] * 3))
    assert ("deleting spans", 4, 4) in told
    np.testing.assert_array_equal(found[0].drops, found[5].drops)
    prefix_values(models, group, cut(group, *[ROWS[0]] * 3))
    assert told[-1] == ("answer after every prefix", 2, 2)


def test_without_a_prompt_what_has_nothing_before_it_is_missing(tiny, models_of, step, cut):
    table = step(((0, 9),))
    spans = cut(table, ROWS[0])
    models = models_of(policy=tiny("llama"))
    first = delete_each(models, table, spans)[0].drops
    assert np.isnan(first[:4]).all()
    assert np.isfinite(first[4:]).all()
    values = prefix_values(models, table, cut(table, [(0, 3, "sentence"), (3, 6, "answer")]))[0]
    assert np.isnan(values[0])
    assert np.isfinite(values[1])


def test_a_row_that_cannot_be_run_has_no_removal(tiny, models_of, step, cut):
    table = step()
    table.rollouts[1].response_ids[0] = 999
    spans = cut(table, *ROWS)
    models = models_of(policy=tiny("llama"))
    missing = [removal is None for removal in delete_each(models, table, spans)]
    assert missing == [*[False] * 5, True, True, *[False] * 3]
    assert prefix_values(models, table, spans)[1] is None
    assert np.isnan(influence_matrix(spans, delete_each(models, table, spans), 1)).all()
    assert np.isnan(answer_drops(models, table, spans, [(5,)])).all()


def test_no_spans_at_all(tiny, models_of, step, cut):
    table = step()
    models = models_of(policy=tiny("llama"))
    assert delete_each(models, table, cut(table)) == []
    assert prefix_values(models, table, cut(table)) == [None] * 4


def test_the_last_of_several_answers_counts_with_the_markup_before_it(step, cut):
    table = step()
    spans = cut(table, [(0, 1, "answer"), (1, 2, "markup"), (2, 3, "markup"), (3, 4, "answer")], [(0, 1, "answer")])
    assert answers(spans, 4).tolist() == [3, 4, -1, -1]
    assert opening(spans, 3) == 1
    assert opening(spans, 4) == 4
    assert without_answer(answers(spans, 4)) == "2 of 4 responses have no answer span and no value"
    assert without_answer(answers(spans, 2)) == ""
