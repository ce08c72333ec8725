"""Write the sample of LSRL's group lines, to the letter of ``GenLogRecorder.log`` (``lsrl/lsrl.py``, commit 29e933b).

    python sample_runs/recipe/formats/group_lines.py

LSRL itself is not imported, since its module starts with DeepSpeed.
"""

from __future__ import annotations

import json
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).parents[1])

from formats.batch_answers import FORMATS, Answer, answers  # noqa: E402

OUT = FORMATS / "group_lines"


def line(number: int, group: list[Answer]) -> dict[str, Any]:
    """One group as LSRL logs it; ``total`` is the sum that ``reward_processor='base'`` makes."""
    first = group[0]
    penalties = [-0.25 if len(one.response_ids) > 40 else 0 for one in group]
    rewards = [
        {"correct_fn": int(one.reward), "soft_len_penalty_tok": penalty, "total": one.reward + penalty}
        for one, penalty in zip(group, penalties, strict=True)
    ]
    return {
        "iter": number,
        "Q": {"Q": first.prompt.strip(), "A": str(first.target), "numbers": list(first.numbers)},
        "anss": [one.response for one in group],
        "rewards": rewards,
        "lens": [len(one.response_ids) for one in group],
        "infos": None,
    }


def main() -> None:
    """One file: two iterations of two groups, as ``gen_batch_size=2`` gives them."""
    OUT.mkdir(parents=True, exist_ok=True)
    rows = [line(step, list(group)) for step in (1, 2) for _, group in groupby(answers(step), key=lambda one: one.group)]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (OUT / "log_rl.log.jsonl").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
