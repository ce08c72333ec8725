"""Write ``sample_runs/formats/mapped``: tables as home-grown training scripts leave them, in four containers.

    python sample_runs/recipe/formats/mapped.py

Nobody's format: the columns are named as people name them, the tokens are those of the shipped tokenizer, and the log-probs are
made up, in steps of 1/64.
"""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer

SAMPLES = Path(__file__).parents[2]
OUT = SAMPLES / "formats" / "mapped"
QUESTIONS = {
    "Use 3, 5, 7: make 22\n": [("3*5+7", 1.0), ("So 3*5 = 15.\n15+7", 1.0), ("3+5+7", 0.0), ("等等，3+5+7", 0.0)],
    "Use 2, 6, 9: make 21\n": [("2*6+9", 1.0), ("2+6+9", 0.0), ("6*9", 0.0), ("9+6*2", 1.0)],
}


def rows() -> list[dict[str, Any]]:
    """Two iterations of two questions with four completions each."""
    tokenizer = Tokenizer.from_file(str(SAMPLES / "countdown" / "tokenizer" / "tokenizer.json"))
    rng = random.Random(4)
    found = []
    for iteration in (1, 2):
        for number, (question, answers) in enumerate(QUESTIONS.items()):
            for completion, score in answers:
                ids = tokenizer.encode(completion, add_special_tokens=False).ids
                found.append(
                    {
                        "iteration": iteration,
                        "question_id": f"q{number}",
                        "question": question,
                        "completion": completion,
                        "completion_ids": ids,
                        "logprobs": [-rng.randrange(200) / 64 for _ in ids],
                        "score": score,
                        "format_reward": 0.5,
                    }
                )
    return found


def text_columns(row: dict[str, Any]) -> dict[str, Any]:
    """What a table of plain cells holds of a row."""
    return {name: value for name, value in row.items() if not isinstance(value, list)}


def main() -> None:
    """Write all four."""
    OUT.mkdir(parents=True, exist_ok=True)
    found = rows()
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found).encode()
    (OUT / "homemade.jsonl").write_bytes(lines)
    (OUT / "homemade.jsonl.zst").write_bytes(pa.compress(lines, codec="zstd", asbytes=True))
    with (OUT / "homemade.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, list(text_columns(found[0])), lineterminator="\n")
        table.writeheader()
        table.writerows(map(text_columns, found))
    pq.write_table(pa.Table.from_pylist(found), OUT / "homemade.parquet", compression="zstd")


if __name__ == "__main__":
    main()
