"""Streaming rows from damaged files: what can be read is read, the rest is said, and no other error ever comes out."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from credit_inspector.errors import CreditInspectorError, FormatError
from credit_inspector.rollout import Problem, Step
from credit_inspector.trainers import ReadOptions, _rows
from credit_inspector.trainers._rows import Item, JsonLines, Places, Row, by_step, first_rows, kind, open_table
from credit_inspector.trainers._values import whole
from credit_inspector.trainers.opening import open_run


def scan(path: Path) -> list[Item]:
    table = open_table(path)
    assert table is not None
    return list(table.scan())


def rows(items: list[Item]) -> list[Row]:
    return [item for item in items if isinstance(item, Row)]


def kinds(items: list[Item]) -> list[str]:
    found = [item.kind for item in items if isinstance(item, Problem)]
    return found + [problem.kind for row in rows(items) for problem in row.problems]


def test_torn_last_line_g03(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    content = b'{"uid":"p","reward":1}\n' * 3 + b'{"uid":"p","rew'
    file.write_bytes(content)
    items = scan(file)
    assert len(rows(items)) == 3
    assert items[-1] == Problem("torn-line", "line 4 incomplete (15 bytes), skipped", "run.jsonl")
    assert file.read_bytes() == content


def test_whole_last_line_without_its_end_is_a_row(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    file.write_text('{"a":1}\n{"a":2}')
    assert [row.values["a"] for row in rows(scan(file))] == [1, 2]


def test_line_separators_inside_a_line(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    file.write_text(json.dumps({"a": "x\u2028y\u0085z"}, ensure_ascii=False) + "\n\n" + '{"a": "b"}\n', "utf-8")
    items = scan(file)
    assert [row.values["a"] for row in rows(items)] == ["x\u2028y\u0085z", "b"]
    assert [row.number for row in rows(items)] == [1, 3]


@pytest.mark.parametrize(
    ("line", "kind", "values"),
    [
        (b'{"a": "\xff"}\n', "invalid-utf8", {"a": "\ufffd"}),
        (b'{"a": "\\ud83d"}\n', "lone-surrogate", {"a": "\ufffd"}),
        (b'{"a": 1, "a": 2}\n', "repeated-key", {"a": 2}),
    ],
)
def test_mended_lines_say_so(tmp_path: Path, line: bytes, kind: str, values: dict[str, object]) -> None:
    file = tmp_path / "run.jsonl"
    file.write_bytes(line)
    items = scan(file)
    assert rows(items)[0].values == values
    assert kinds(items) == [kind]


@pytest.mark.parametrize("line", [b"[1, 2]\n", b"7\n", b"{broken}\n", b"[" * 9000 + b"\n", b'{"a": ' + b"1" * 5000 + b"}\n"])
def test_lines_that_are_no_objects_are_skipped(tmp_path: Path, line: bytes) -> None:
    file = tmp_path / "run.jsonl"
    file.write_bytes(b'{"a": 1}\n' + line + b'{"a": 2}\n')
    items = scan(file)
    assert [row.values["a"] for row in rows(items)] == [1, 2]
    assert kinds(items) == ["bad-line"]


def test_byte_order_mark_and_pairs(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"a": "\\ud83d\\ude00"}\n')
    items = scan(file)
    assert rows(items)[0].values == {"a": "😀"}
    assert kinds(items) == []


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz", ".zst"])
def test_compressed(tmp_path: Path, ending: str) -> None:
    raw = b'{"step": 1, "a": 1}\n{"step": 2, "a": 2}\n'
    packers = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
    pack = packers.get(ending, lambda data: pa.compress(data, codec="zstd", asbytes=True))
    file = tmp_path / f"run.jsonl{ending}"
    file.write_bytes(pack(raw))
    table = JsonLines(file)
    steps = by_step(table, lambda row: whole(row.values["step"]), 0)
    assert [row.values["a"] for row in table.at(steps[2])] == [2]
    file.write_bytes(pack(raw)[:-9])
    assert "torn-file" in kinds(scan(file)) or len(rows(scan(file))) == 2


def test_json_shapes(tmp_path: Path) -> None:
    for value in ([{"a": 1}, {"a": 2}], {"meta": [{"b": 1}], "samples": [{"a": 1}, {"a": 2}]}):
        file = tmp_path / "run.json"
        file.write_text(json.dumps(value))
        assert [row.values["a"] for row in rows(scan(file))] == [1, 2]
    file.write_text("{broken")
    with pytest.raises(FormatError, match="is no JSON"):
        scan(file)


def test_csv_keeps_text_and_skips_short_rows(tmp_path: Path) -> None:
    file = tmp_path / "run.csv"
    file.write_text('gold,text\n007,"two\nlines"\n1\n008,b\n', "utf-8-sig")
    items = scan(file)
    assert [row.values for row in rows(items)] == [{"gold": "007", "text": "two\nlines"}, {"gold": "008", "text": "b"}]
    assert kinds(items) == ["bad-line"]


def test_parquet_reads_nested_columns_and_only_its_row_groups_g08(tmp_path: Path) -> None:
    table = pa.table(
        {
            "prompt": [[{"role": "user", "content": "hi"}]] * 3,
            "ids": [[1, 2, 3], None, []],
            "reward_model": [{"ground_truth": "4"}] * 3,
            "mask": [[True, None], [], None],
        }
    )
    file = tmp_path / "run.parquet"
    pq.write_table(table, file, row_group_size=2)
    found = rows(scan(file))
    assert found[0].values["ids"].tolist() == [1, 2, 3]
    assert found[1].values["ids"] is None
    assert found[2].values["ids"].tolist() == []
    assert found[0].values["reward_model"]["ground_truth"] == "4"
    parquet = open_table(file)
    assert parquet is not None
    steps = by_step(parquet, lambda row: row.number, 0)
    assert [row.number for row in parquet.at(steps[3])] == [3]


def test_rows_without_a_step_follow_the_row_before(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    file.write_text('{"a": 0}\n{"step": 5, "a": 1}\n{"a": 2}\n{"step": 3, "a": 3}\n{"torn')
    table = JsonLines(file)
    steps = by_step(table, lambda row: whole(row.values.get("step")), 0)
    assert {step: [row.values["a"] for row in table.at(places)] for step, places in steps.items()} == {
        3: [0, 3],
        5: [1, 2],
    }
    assert [problem.kind for problem in steps[3].problems] == ["torn-line", "no-step"]


def test_kinds_by_name() -> None:
    names = {
        "a.jsonl": "jsonl",
        "a.b.JSONL.gz": "jsonl",
        "a.parquet": "parquet",
        "a.tsv": "csv",
        "a.txt": None,
        "a": None,
    }
    assert {name: kind(Path(name)) for name in names} == names
    assert first_rows(Path("nowhere.jsonl")) == []


def read_all(file: Path, options: ReadOptions) -> list[Step] | str:
    """Every step of a file, or the error's one line."""
    try:
        run = open_run(file, options)
        return [run.read(step) for step in run.steps]
    except CreditInspectorError as error:
        return str(error)


pieces_of_lines = st.sampled_from(
    [
        b'{"response": "a", "reward": 1}\n',
        b'{"response": "b", "reward": NaN}\n',
        b"\n",
        b"{",
        b"\xff",
        b'"\\ud800"',
        b"[]\n",
    ]
)


@given(st.lists(st.one_of(st.binary(max_size=30), pieces_of_lines), max_size=12).map(b"".join))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_rows_and_problems_or_one_error(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.jsonl"
        file.write_bytes(content)
        for options in (ReadOptions(), ReadOptions({"response": "response"})):
            read = read_all(file, options)
            if isinstance(read, str):
                assert "\n" not in read
            else:
                assert {one.reward for step in read for one in step.rollouts} <= {None, 1.0}


@given(st.binary(max_size=60), st.sampled_from(["json", "csv", "parquet", "jsonl.gz", "tsv"]))
@settings(max_examples=100, deadline=None)
def test_any_bytes_under_any_name(content: bytes, ending: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"run.{ending}"
        file.write_bytes(content)
        read = read_all(file, ReadOptions({"response": "response"}))
        assert isinstance(read, list) or "\n" not in read


# ── the quick way through JSON lines is the careful one ─────────────────────────────────────────────────────────────


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(['a":', '\\":', "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4) | st.sampled_from(['k":', '"']), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.dictionaries(st.text(max_size=4), JSON, max_size=5), max_size=6), st.integers(1, 400), st.booleans())
def test_lines_are_what_json_says_however_they_are_cut(rows_in: list[dict[str, object]], batch: int, closed: bool) -> None:
    text = "\n".join(json.dumps(row, ensure_ascii=True) for row in rows_in) + "\n" * closed
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(_rows, "_BATCH", batch)
        file = Path(folder) / "run.jsonl"
        file.write_text(text)
        found = scan(file)
        again = list(JsonLines(file).at(_places(found)))
    expected = [_rows._mend(row) for row in rows_in]
    assert repr([dict(row.values) for row in rows(found)]) == repr(expected)
    assert repr([row.values for row in again]) == repr([row.values for row in rows(found)])


def _places(items: list[Item]) -> Places:
    places = Places()
    for row in rows(items):
        places.add(row)
    return places


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('{"a": 1, "a": 2}', "a"),
        ('{"x": {"b": 1, "b": 2}}', "b"),
        ('{"x": [1, {"c": 1, "c": 2}]}', "c"),
        ('{"x": [[{"d": "{\\"y\\": 1}", "d": 2}]]}', "d"),
        ('{"long": "' + "\\\\" * 5000 + '", "e": 1, "e": 2}', "e"),
    ],
)
def test_a_key_given_twice_is_found_at_any_depth(tmp_path: Path, line: str, key: str) -> None:
    file = tmp_path / "run.jsonl"
    file.write_text('{"a": "{\\"a\\": 1}"}\n' * 3 + line + "\n")
    found = rows(scan(file))
    assert [len(row.problems) for row in found] == [0, 0, 0, 1]
    assert found[3].problems[0] == Problem("repeated-key", f"line 4: key {key!r} stands twice, the last one counts", "run.jsonl")


def test_whole_numbers_stay_whole_however_large(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    file.write_text(f'{{"seed": {2**80}}}\n')
    assert rows(scan(file))[0].values == {"seed": 2**80}


def test_a_compressed_file_that_breaks_off_keeps_what_came_before(tmp_path: Path) -> None:
    content = b"".join(json.dumps({"a": i, "b": "x" * 50 + str(i * 7919)}).encode() + b"\n" for i in range(5000))
    file = tmp_path / "run.jsonl.gz"
    file.write_bytes(gzip.compress(content)[:-2000])
    items = scan(file)
    assert len(rows(items)) > 3000
    assert kinds(items)[-1] == "torn-file"


def test_a_glance_reads_no_more_than_the_beginning_and_sees_what_changed(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    file.write_text('{"a": 1}\n' * 100)
    assert len(first_rows(file)) == 20
    assert len(first_rows(file, 5)) == 5
    file.write_text('{"a": 2}\n{"a": "' + "x" * 5_000_000 + '"}\n' * 2)
    assert [len(str(row["a"])) for row in first_rows(file)] == [1, 5_000_000]
    file.write_bytes(b"no\n" * 5000 + b'{"a": 1}\n')
    assert first_rows(file) == []


@pytest.mark.parametrize("ending", ["json", "json.gz"])
def test_a_long_list_is_read_row_by_row_as_a_short_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    content = [{"a": i, "b": ["x]" * 40, {"c": "数\u2028"}]} for i in range(300)] + [7, {"d": 1}]
    raw = b"\xef\xbb\xbf\n [" + json.dumps(content, indent=1).encode()[1:] + b"\n"
    file = tmp_path / f"run.{ending}"
    file.write_bytes(gzip.compress(raw) if ending.endswith("gz") else raw)
    short = scan(file)
    monkeypatch.setattr(_rows, "_STREAMED", 1000)
    monkeypatch.setattr(_rows, "_BATCH", 333)
    assert scan(file) == short
    assert len(rows(short)) == 301
    assert kinds(short) == ["bad-line"]
    table = open_table(file)
    assert table is not None
    assert [row.values for row in table.at(_places(short))] == [row.values for row in rows(short)]


def test_a_long_list_that_breaks_off_keeps_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_rows, "_STREAMED", 1000)
    monkeypatch.setattr(_rows, "_BATCH", 333)
    file = tmp_path / "run.json"
    for broken in (b'{"a": 299, "b"', b'{"a" 299}, {"a": 1}]', b""):
        file.write_bytes(b"[" + b",".join(b'{"a": %d}' % i for i in range(299)) + b", " + broken)
        items = scan(file)
        assert len(rows(items)) == 299
        assert kinds(items) == ["torn-file"]


def test_a_line_of_100_megabytes_is_a_row(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    with file.open("wb") as lines:
        lines.write(b'{"prompt": "q", "response": "a", "reward": 1}\n{"prompt": "q", "reward": 0, "response": "')
        for _ in range(100):
            lines.write(b"x" * 1_000_000)
        lines.write(b'"}\n{"prompt": "q", "response": "b", "reward": NaN}\n')
    run = open_run(file)
    (step,) = [run.read(number) for number in run.steps]
    assert [len(one.response or "") for one in step.rollouts] == [1, 100_000_000, 1]
    assert [one.reward for one in step.rollouts] == [1.0, 0.0, None]
    assert len({one.group_id for one in step.rollouts}) == 1
