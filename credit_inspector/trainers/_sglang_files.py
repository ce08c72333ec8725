"""Which files of a folder are slime's or miles' dumps, and what they hold, told from their names and their first bytes.

Both trainers write with ``torch.save``, so reading a file means reading all of it. A pickle can be looked at without being
run, though: here the words at its beginning are read as a list, nothing of it is built.
"""

from __future__ import annotations

import pickletools
import re
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Literal

Kind = Literal["rollout", "train", "ranks"]
"""Sampled responses; what was trained on, one file a rollout (slime since August 2026); the same, one file a rank."""

_WINDOW = 8_000_000
_TAIL = 65_536
_OPS = 20_000
_LOOKED_AT = 3
_NAME = re.compile(r"(eval_)?(\d{1,12})(?:_(\d{1,12}))?")
_WORDS = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"})
_NUMBERS = frozenset({"BININT", "BININT1", "BININT2", "INT", "LONG1"})
_FOLDERS = ("rollout_data", "train_data")
_BY_MILES = ("dashboard_columns", "trajectory")
_HOLDERS = frozenset({"samples", "rollout_data"})
_LAST = frozenset({"tokens", "response_lengths"})
_BEFORE_NUMBER = (["rollout_id"], ["format_version", "rollout_id"])


@dataclass(frozen=True, slots=True)
class Head:
    """What the first bytes of a dump say."""

    kind: Kind
    rollout_id: int | None
    by_miles: bool
    """Whether something stands there that miles alone writes."""
    columns: frozenset[str]
    """Which of ``COLUMN_KEYS`` have a value in the first sample."""


def head(path: Path) -> Head | None:
    """What a file holds; ``None`` where it is no whole torch file of these trainers."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return _head(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=1024)
def _head(path: Path, _modified: int, _size: int) -> Head | None:
    raw = _pickle_of(path)
    if raw is None:
        return None
    first, last = raw
    words, rollout_id = _words(first)
    kind = _kind(words)
    if kind is None:
        return None
    by_miles = "metadata" in words[: words.index("samples")] if kind == "rollout" else b"qkv_format" in last
    columns = frozenset(key for key in COLUMN_KEYS if _has_value(first, key))
    return Head(kind, rollout_id, kind != "train" and by_miles, columns)


def _pickle_of(path: Path) -> tuple[bytes, bytes] | None:
    """The first and the last bytes of the pickle inside a torch file."""
    try:
        with zipfile.ZipFile(path) as archive:
            inside = [one for one in archive.infolist() if one.filename.rpartition("/")[2] == "data.pkl"]
            if len(inside) != 1 or inside[0].compress_type != zipfile.ZIP_STORED:
                return None
            with archive.open(inside[0]) as file:
                first = file.read(_WINDOW)
                file.seek(max(file.tell() - _TAIL, inside[0].file_size - _TAIL, 0))
                return first, file.read(_TAIL)
    except (zipfile.BadZipFile, OSError, ValueError, EOFError, NotImplementedError, RuntimeError):
        return None


def _words(raw: bytes) -> tuple[list[str], int | None]:
    """The texts at the beginning of a pickle, in order, up to the first tokens; and the rollout's number."""
    words: list[str] = []
    rollout_id: int | None = None
    try:
        for op, value, _ in islice(pickletools.genops(raw), _OPS):
            if op.name in _WORDS:
                words.append(str(value))
                if value in _LAST and not _HOLDERS.isdisjoint(words):
                    break
            elif op.name in _NUMBERS and rollout_id is None and words in _BEFORE_NUMBER:
                rollout_id = value if isinstance(value, int) and 0 <= value < 10**12 else None
    except Exception:  # a damaged pickle fails in any way; what stood before it counts
        return words, rollout_id
    return words, rollout_id


def _kind(words: list[str]) -> Kind | None:
    found = set(words)
    if "rollout_id" not in words[:2]:
        return None
    if words[0] == "format_version":
        return "train" if "samples" in found else None
    if "samples" in found:
        return "rollout" if {"index", "tokens"} <= found or len(words) <= 3 else None
    return "ranks" if {"rank", "rollout_data"} <= found and not _LAST.isdisjoint(words) else None


def _has_value(raw: bytes, key: str) -> bool:
    """Whether a key has a value at its first place: it is followed by its memo and not by ``None``."""
    word = key.encode()
    for spelled in (b"X" + len(word).to_bytes(4, "little") + word, b"\x8c" + bytes([len(word)]) + word):
        place = raw.find(spelled)
        if place >= 0:
            after = raw[place + len(spelled) :][:6]
            memo = {b"q": 2, b"r": 5, b"\x94": 1}.get(after[:1], 0)
            return after[memo : memo + 1] != b"N"
    return False


COLUMN_KEYS = (
    "loss_mask",
    "rollout_log_probs",
    "log_probs",
    "ref_log_probs",
    "teacher_log_probs",
    "values",
    "advantages",
    "returns",
    "kl",
    "entropy",
    "ref_entropy",
    "opd_reverse_kl",
)
"""Keys of values per token, which stand behind long lists."""


# ── folders ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Files:
    """The dumps of a folder by rollout."""

    home: Path
    """The folder."""
    rollout: dict[int, Path] = field(default_factory=dict)
    evals: dict[int, Path] = field(default_factory=dict)
    train: dict[int, list[Path]] = field(default_factory=dict)
    heads: list[Head] = field(default_factory=list)
    """Of the first files of each sort."""

    @property
    def root(self) -> Path:
        """What was given as ``--dump-details``, where the files lie so."""
        return self.home.parent if self.home.name in _FOLDERS else self.home

    @property
    def steps(self) -> tuple[int, ...]:
        """Rollouts that were trained on; those of the evaluation where there are no others."""
        return tuple(sorted(self.rollout.keys() | self.train.keys()) or sorted(self.evals))

    @property
    def only_evals(self) -> bool:
        """Whether there is nothing but the evaluation."""
        return not self.rollout and not self.train

    @property
    def by_miles(self) -> bool:
        """Whether miles wrote them: something in them says so, or one of its own folders stands beside them."""
        beside = any((self.root / name).is_dir() for name in _BY_MILES)
        return beside or any(one.by_miles for one in self.heads)

    @property
    def columns(self) -> frozenset[str]:
        """Keys that the first file of each sort has a value for."""
        return frozenset(key for one in self.heads for key in one.columns)

    def put(self, path: Path, kind: Kind, number: int, *, evaluation: bool) -> None:
        """Add a file."""
        if kind != "rollout":
            self.train.setdefault(number, []).append(path)
        elif evaluation:
            self.evals.setdefault(number, path)
        else:
            self.rollout.setdefault(number, path)


def find(path: Path) -> Files | None:
    """The dumps at a path: a run's root with ``rollout_data`` and ``train_data``, one such folder, or one file."""
    if path.is_file():
        return _one(path) if path.suffix == ".pt" else None
    if not path.is_dir():
        return None
    files = Files(path)
    inner = [folder for name in _FOLDERS if (folder := path / name).is_dir()]
    for folder in inner or [path]:
        _add(files, sorted(folder.glob("*.pt")))
    return files if files.heads else None


def _one(path: Path) -> Files | None:
    found = head(path)
    if found is None:
        return None
    files = Files(path.parent, heads=[found])
    name = _NAME.fullmatch(path.stem)
    number = found.rollout_id if found.rollout_id is not None else int(name[2]) if name else 0
    files.put(path, found.kind, number, evaluation=_is_eval(path))
    return files


def _is_eval(path: Path) -> bool:
    return re.search(r"eval_\d", path.stem) is not None


def _add(files: Files, paths: Iterable[Path]) -> None:
    """Files of one shape of name (``#``, ``eval_#``, ``#_#``) are of one kind, which the first readable one says."""
    shapes: dict[str, list[Path]] = {}
    for path in paths:
        shapes.setdefault(re.sub(r"\d+", "#", path.stem), []).append(path)
    for same in shapes.values():
        found = next((one for one in map(head, _ends(same)) if one), None)
        if found is not None:
            files.heads.append(found)
        for path, kind, number in _numbered(same, found.kind if found else _by_folder(same[0])):
            files.put(path, kind, number, evaluation=_is_eval(path))


def _by_folder(path: Path) -> Kind | None:
    """What a damaged file should have held by its place."""
    if path.parent.name == "train_data":
        return "ranks" if re.fullmatch(r"\d+_\d+", path.stem) else "train"
    return "rollout" if path.parent.name == "rollout_data" else None


def _ends(paths: list[Path]) -> list[Path]:
    """Some files to look at, from both ends: the newest may be unfinished."""
    return [*paths[:_LOOKED_AT], *paths[_LOOKED_AT:][-_LOOKED_AT:]]


def _numbered(paths: list[Path], first: Kind | None) -> Iterator[tuple[Path, Kind, int]]:
    """The rollout of each file: by its name where that is the trainer's own, else as it says itself."""
    for path in paths:
        name = _NAME.fullmatch(path.stem)
        if name and first and (name[3] is None or first == "ranks"):
            yield path, first, int(name[2])
        elif (found := head(path)) is not None:
            yield path, found.kind, found.rollout_id if found.rollout_id is not None else 0


def broken(path: Path) -> list[Path]:
    """Damaged files that stand where dumps do."""
    folders = [*(path / name for name in _FOLDERS), path] if path.is_dir() else []
    named = [path, *(file for folder in folders for file in sorted(folder.glob("*.pt")))]
    ours = (one for one in named if one.parent.name in _FOLDERS and one.suffix == ".pt" and _NAME.fullmatch(one.stem))
    return [one for one in ours if _pickle_of(one) is None]
