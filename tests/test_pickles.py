"""Pickle and torch files: data comes out as it went in, nothing of theirs runs, and none asks for more than it is."""

from __future__ import annotations

import os
import pickle
import struct
import zipfile
from collections import OrderedDict, defaultdict
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from credit_inspector.errors import CreditInspectorError, FormatError, UsageError
from credit_inspector.pickles import ALLOWED_TYPES, Stub, load_pickle, load_torch, stub

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


class Batch:
    """Stands for a trainer's class."""

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows


class Makes:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.folder,)


def torch_bytes(value: Any, **how: Any) -> bytes:
    file = BytesIO()
    torch.save(value, file, **how)
    return file.getvalue()


DATA: dict[str, Any] = {
    "floats": np.arange(6.0).reshape(2, 3),
    "half": np.array([0.5, np.nan], np.float16),
    "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "objects": np.array(["x", {"y": 1}, None, [1, 2]], dtype=object),
    "texts": np.array(["ab", "c"]),
    "truth": np.array([True, False]),
    "scalar": np.float64(0.5),
    "count": np.int64(3),
    "pair": (1, "two", None),
    "ordered": OrderedDict(a=1),
    "default": defaultdict(list, {"z": [1]}),
    "set": {1, 2},
    "frozen": frozenset({"a"}),
    "large": 2**70,
    "bytes": b"\x00\xff",
    "array": bytearray(b"xx"),
    "text": "数😀",
    "complex": 1 + 2j,
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", DATA)
def test_data_comes_out_as_it_went_in(name: str, protocol: int) -> None:
    found = load_pickle(pickle.dumps({name: DATA[name]}, protocol))
    np.testing.assert_equal(found[name], DATA[name])


@pytest.mark.parametrize("name", sorted(set(DATA) - {"default", "complex", "frozen"}))
def test_torch_files_may_hold_numpy(name: str) -> None:
    np.testing.assert_equal(load_torch(torch_bytes({name: DATA[name]}))[name], DATA[name])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_code_that_runs_is_refused_and_named_g06(tmp_path: Path, protocol: int) -> None:
    trace = tmp_path / "trace"
    file = tmp_path / "evil.pkl"
    file.write_bytes(pickle.dumps({"rows": [Makes(trace)]}, protocol))
    with pytest.raises(FormatError, match=rf"{os.mkdir.__module__}.mkdir.*was not run.*--allow-type"):
        load_pickle(file)
    assert not trace.exists()


@pytest.mark.parametrize("zipped", [True, False])
def test_a_torch_file_that_runs_is_refused_and_named_g06(tmp_path: Path, *, zipped: bool) -> None:
    trace = tmp_path / "trace"
    file = tmp_path / "evil.pt"
    file.write_bytes(torch_bytes({"rows": [Makes(trace)]}, _use_new_zipfile_serialization=zipped))
    with pytest.raises(FormatError, match=r"mkdir.*was not run"):
        load_torch(file)
    assert not trace.exists()


def test_foreign_types_come_as_stubs_where_a_reader_lists_them() -> None:
    name = f"{Batch.__module__}.{Batch.__qualname__}"
    raw = pickle.dumps(Batch([1, 2]))
    with pytest.raises(FormatError, match=name.replace(".", r"\.")):
        load_pickle(raw)
    for protocol in PROTOCOLS:
        found = load_pickle(pickle.dumps(Batch([1, 2]), protocol), allow={name: stub(name)})
        assert isinstance(found, Stub)
        assert (found.name, found.state) == (name, {"rows": [1, 2]})
    with pytest.raises(TypeError, match="not written"):
        pickle.dumps(found)


def test_a_stub_goes_before_what_others_told_torch_to_trust_and_theirs_stays() -> None:
    name = f"{Batch.__module__}.{Batch.__qualname__}"
    raw = torch_bytes(Batch([1, 2]))
    with torch.serialization.safe_globals([Batch]):
        found = load_torch(raw, allow={name: stub(name)})
        assert isinstance(found, Stub)
        assert found.state == {"rows": [1, 2]}
        assert Batch in torch.serialization.get_safe_globals()
        assert isinstance(load_torch(raw), Batch)
    with pytest.raises(FormatError, match="Batch"):
        load_torch(raw)


def test_a_stub_that_was_not_called_is_empty() -> None:
    name = f"{Batch.__module__}.{Batch.__qualname__}"
    found = load_pickle(pickle.dumps(Batch.__new__(Batch)), allow={name: stub(name)})
    assert (found.args, found.state) == ((), None)


def test_a_user_may_trust_a_type_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = pickle.dumps(Path("a"))
    with pytest.raises(FormatError, match="pathlib"):
        load_pickle(raw)
    monkeypatch.setenv(ALLOWED_TYPES, f"{Path('a').__class__.__module__}.{type(Path('a')).__name__}")
    assert load_pickle(raw) == Path("a")
    monkeypatch.setenv(ALLOWED_TYPES, "no_such_module.Type")
    with pytest.raises(UsageError, match="no_such_module"):
        load_pickle(raw)


# ── nothing asks for more than it is ────────────────────────────────────────────────────────────────────────────────


def test_sizes_are_checked_before_they_are_allocated() -> None:
    huge = struct.pack("<Q", 2**50)
    for code in (pickle.BYTEARRAY8, pickle.BINBYTES8, pickle.BINUNICODE8, pickle.FRAME):
        with pytest.raises(FormatError):
            load_pickle(b"\x80\x05" + code + huge + b"abc.")
    # a place in the memo that the interpreter in C would make room for
    with pytest.raises(FormatError):
        load_pickle(b"\x80\x04]r\xff\xff\xff\xff0.")
    with pytest.raises(FormatError, match="bytearray"):
        load_pickle(b"\x80\x04cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R.")


def test_an_array_holds_what_its_shape_says() -> None:
    whole = pickle.dumps(np.zeros(3, np.int8), 2)
    assert load_pickle(whole).tolist() == [0, 0, 0]
    with pytest.raises(FormatError, match="shape"):
        load_pickle(whole.replace(b"K\x03\x85", b"J\xff\xff\xff\x7f\x85", 1))


def test_keys_that_take_for_ever_to_hash_are_refused() -> None:
    deep = b"\x80\x04}(" + b")" + b"2\x86" * 60 + b"K\x01u."
    with pytest.raises(FormatError, match="key of type tuple"):
        load_pickle(deep)


def test_a_tensor_is_no_larger_than_its_file() -> None:
    with pytest.raises(FormatError, match="claims a tensor"):
        load_torch(torch_bytes({"x": [torch.zeros(1).expand(10**9)]}))
    assert load_torch(torch_bytes(torch.zeros(3).expand(2, 3))).shape == (2, 3)


def test_an_archive_that_swells_is_refused() -> None:
    file = BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02N.")
        archive.writestr("archive/data/0", bytes(50_000_000))
    with pytest.raises(FormatError, match="claims to hold"):
        load_torch(file.getvalue())


SEEDS = [pickle.dumps(DATA, protocol) for protocol in PROTOCOLS] + [
    torch_bytes({name: value for name, value in DATA.items() if name not in ("default", "complex", "frozen")}),
    torch_bytes({"x": torch.arange(3), "y": [np.zeros(2)]}),
]


@settings(max_examples=1500, deadline=None)
@given(st.sampled_from(SEEDS), st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=6), st.integers(0, 4000))
def test_any_bytes_are_a_value_or_one_error(seed: bytes, changes: list[tuple[int, int]], end: int) -> None:
    raw = bytearray(seed)
    for place, value in changes:
        raw[place % len(raw)] = value
    if end < len(raw) and end % 3 == 0:
        del raw[end:]
    for load in (load_pickle, load_torch):
        with suppress(CreditInspectorError):
            load(bytes(raw))
