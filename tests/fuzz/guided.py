"""Coverage-guided inputs for one reader, by atheris: what reaches new lines of the reader is kept and damaged further.

    python tests/fuzz/guided.py slime -atheris_runs=100000

Options after the reader's name are libFuzzer's. An input that brings out another error than this project's own, or that takes too
long, is left in the working folder as ``crash-…``.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from random import Random

import atheris

sys.path.insert(0, str(Path(__file__).parents[1]))
with atheris.instrument_imports(include=["credit_inspector.trainers", "credit_inspector.pickles"]):
    from credit_inspector.trainers import readers

    list(readers)

from fuzz.damage import damaged
from fuzz.test_readers import MEMORY_DISK, alarm, found_in, read


def main() -> None:
    """Fuzz the reader that is named first."""
    name = sys.argv.pop(1)
    memory = MEMORY_DISK if os.access(MEMORY_DISK, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        files = [(paths[0], file, whole) for paths, file, whole in found_in(name, Path(folder))]
        corpus = Path(folder) / "corpus"
        corpus.mkdir()
        for i, (_, _, whole) in enumerate(files):
            (corpus / f"{i}").write_bytes(bytes((i % 256,)) + whole)

        def one(data: bytes) -> None:
            if not data:
                return
            place, file, whole = files[data[0] % len(files)]
            file.write_bytes(data[1:])
            try:
                with alarm():
                    read(name, place)
            finally:
                file.write_bytes(whole)

        def mutate(data: bytes, most: int, seed: int) -> bytes:
            rng = Random(seed)
            if not data:
                return b"\0"
            _, file, _ = files[data[0] % len(files)]
            return (data[:1] + damaged(file.name, data[1:], rng))[:most]

        atheris.Setup([*sys.argv, f"-artifact_prefix={Path.cwd()}/", str(corpus)], one, custom_mutator=mutate)
        try:
            atheris.Fuzz()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
