from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from credit_inspector.scoring.batches import SMALL, Line, batches, distinct, pack, to_batch

CPU = torch.device("cpu")


@given(st.lists(st.integers(1, 300), max_size=60), st.integers(1, 2000))
def test_every_line_is_in_one_batch_and_batches_keep_the_budget(lengths, tokens):
    packed = list(pack(lengths, tokens))
    assert sorted(i for batch in packed for i in batch) == list(range(len(lengths)))
    for batch in packed:
        width = max(lengths[i] for i in batch)
        assert len(batch) == 1 or len(batch) * width <= tokens
        padded, real = len(batch) * width, sum(lengths[i] for i in batch)
        assert padded - real <= padded / (20 if padded > SMALL else 4)


def test_the_longest_comes_first():
    assert next(pack([3, 50, 7, 49], 120)) == [1, 3]


def test_padding_wastes_little_on_a_realistic_step():
    lengths = np.random.default_rng(0).gamma(4, 60, 500).astype(int) + 1
    padded = sum(len(batch) * max(lengths[i] for i in batch) for batch in pack(list(lengths)))
    assert padded <= 1.05 * lengths.sum()


def test_the_state_before_a_token_scores_it():
    lines = [Line(np.array([5, 6, 7, 8, 2]), 2), Line(np.array([9, 4, 3]), 1)]
    batch = to_batch(lines, [0, 1], CPU)
    assert batch.ids.tolist() == [[5, 6, 7, 8, 2], [9, 4, 3, 0, 0]]
    assert batch.mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    assert batch.position.tolist() == [[0, 1, 2, 3, 4]] * 2
    assert list(zip(batch.row.tolist(), batch.state.tolist(), batch.target.tolist(), strict=True)) == [
        (0, 1, 7), (0, 2, 8), (0, 3, 2), (1, 0, 4), (1, 1, 3)
    ]  # fmt: skip
    assert batch.lengths == [3, 2]


def test_lines_with_nothing_to_score_are_not_run():
    assert list(batches([Line(np.array([5]), 1), Line(np.zeros(0, np.int64), 1)], CPU)) == []


def test_equal_lines_stand_once():
    a, b = Line(np.array([1, 2, 3]), 1), Line(np.array([1, 2, 3]), 2)
    once, twins = distinct([a, b, Line(np.array([1, 2, 3]), 1)])
    assert once[0] is a
    assert once[1] is b
    assert twins == [0, 1, 0]
