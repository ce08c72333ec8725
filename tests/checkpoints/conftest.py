"""Small sharded checkpoints, written once for all test workers by the libraries that write them in training."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Rewrite = Callable[[Path, Callable[[dict[str, Any], int], None]], Path]


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The folder that ``write_shards.py`` fills; nobody may change what is in it."""
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    pytest.importorskip("accelerate")
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available() or not distributed.is_gloo_available() or not hasattr(os, "fork"):
        pytest.skip("torch without gloo, or a system without fork")
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent
    with (shared / "shards.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "shards" / "done").exists():
            shutil.rmtree(shared / "shards", ignore_errors=True)
            (shared / "shards").mkdir()
            script = Path(__file__).with_name("write_shards.py")
            command = [sys.executable, "-W", "ignore", str(script), str(shared / "shards")]
            ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
            assert ran.returncode == 0, ran.stderr[-3000:]
            (shared / "shards" / "done").touch()
    return shared / "shards"


class MakesAFolder:
    """Stands for any code that a pickle may carry."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (self.path,)


@pytest.fixture
def code(tmp_path: Path) -> tuple[Any, Path]:
    """An object that makes a folder when it is unpickled, and that folder."""
    mark = tmp_path / "ran"
    return MakesAFolder(str(mark)), mark


@pytest.fixture
def same() -> Callable[[Any, Path], None]:
    """Compare a model with a stored state dict, name by name."""
    import torch

    def compare(model: Any, file: Path) -> None:
        wanted, have = torch.load(file), model.state_dict()
        assert set(wanted) == set(have)
        for name, tensor in wanted.items():
            torch.testing.assert_close(have[name], tensor, rtol=1e-6, atol=1e-7, msg=name)

    return compare
