"""slime's dumps: ``rollout_data/{rollout_id}.pt`` and ``train_data/{rollout_id}.pt`` of ``--dump-details DIR``.

Written at every rollout (read in slime at 624b824, August 2026); ``--save-debug-rollout-data`` and
``--save-debug-train-data`` write each of them alone, under any name. A rollout file holds the samples as SGLang gave them:
``tokens`` (prompt and response), ``response_length``, ``reward``, ``loss_mask``, ``rollout_log_probs``, ``status``. A train
file adds what training made of them: ``log_probs``, ``ref_log_probs``, ``advantages``, the mask after ``remove_sample``.
Train files of before August 2026 are one a rank. Evaluations are ``eval_{rollout_id}.pt``.

miles, a fork, writes the same samples; what tells its files apart is in ``miles.py``.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from credit_inspector.errors import FormatError
from credit_inspector.rollout import Run
from credit_inspector.tokens import has_tokenizer
from credit_inspector.trainers import ReadOptions, reader
from credit_inspector.trainers._sglang_files import broken, find
from credit_inspector.trainers._sglang_samples import columns, notes, read


@reader("slime")
def open_slime(path: Path, options: ReadOptions) -> Run | None:
    """Open a dump folder, its ``rollout_data`` or ``train_data``, any folder of such files, or one file.

    Raises:
        FormatError: the files stand where slime's and miles' do, but none is a whole torch file.
        UsageError: on reading a rollout that is not there.
    """
    files = find(path)
    if files is None:
        if torn := broken(path):
            raise FormatError(f"{torn[0]} is no whole torch file of slime or miles", do="copy it again")
        return None
    if files.by_miles:
        return None
    tokenizer = files.root / "tokenizer"
    return Run(
        path=path,
        trainer="slime",
        steps=files.steps,
        read=partial(read, files),
        tokenizer=tokenizer if has_tokenizer(tokenizer) else None,
        columns=columns(files),
        notes=notes(files),
    )
