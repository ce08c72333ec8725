"""A response of which only text is known can be read, in words and without a value."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from credit_inspector import pipeline
from credit_inspector.panel import Strip
from credit_inspector.views import Place, views


def test_text_without_ids_is_shown_in_words(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    rows = [{"question": "What is\n1 + 1?", "completion": text, "score": 1} for text in ("It is 2.\n", "二", "")]
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    store = pipeline.open_store(file)
    for name, text in (("0", "It is 2.\n"), ("1", "二"), ("2", "")):
        panel = views["response"].build(store, Place(step=0, sample_id=name))
        (strip,) = [block for block in panel.blocks if isinstance(block, Strip)]
        prompt = [piece for piece, kind in zip(strip.pieces, strip.kinds, strict=True) if kind == "prompt"]
        assert "".join(prompt) == "What is\n1 + 1?"
        assert "".join(strip.pieces[len(prompt) :]) == text
        assert (strip.token_ids == -1).all()
        np.testing.assert_array_equal(strip.clusters, np.arange(len(strip.pieces)))
        assert strip.signals == ()
        assert "no token ids" in strip.title
