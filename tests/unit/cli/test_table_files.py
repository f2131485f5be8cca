"""Parquet and Arrow files, as `consume --output` writes them and `produce --file` reads them."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from highwater.atomic_file import replacing
from highwater.cli.records import table_file as table_file_module
from highwater.cli.records.input_rows import Row
from highwater.cli.records.table_file import check_suffix, table_file
from highwater.cli.records.table_rows import opened_table
from highwater.errors import UserError


def write(path: Path, table: pa.Table) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)
    return path


def read(path: Path, key_column: str | None = None) -> list[Row]:
    with opened_table(path, key_column) as (total, rows):
        found = list(rows)
    assert total in (0, len(found))
    return found


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_file_module, "_GROUP_ROWS", 5)
    path = tmp_path / f"t{suffix}"
    schema = pa.schema([("n", pa.int64())])
    path.write_bytes(b"old")

    def fail_half_way() -> None:
        with table_file(path, schema) as file:
            for number in range(20):
                file.write(pa.record_batch([pa.array([number])], schema=schema))
            raise ValueError

    with pytest.raises(ValueError):
        fail_half_way()
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == b"old"
    with table_file(path, schema) as file:
        for number in range(12):
            file.write(pa.record_batch([pa.array([number])], schema=schema))
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    found = pq.read_table(path) if suffix == ".parquet" else pa.ipc.open_file(str(path)).read_all()
    assert found["n"].to_pylist() == list(range(12))
    if suffix == ".parquet":
        assert pq.ParquetFile(path).num_row_groups == 3


def test_files_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"neither \.parquet nor \.arrow"):
        check_suffix(tmp_path / "t.csv")
    schema = pa.schema([("n", pa.int64())])
    for path in (tmp_path / "absent" / "t.parquet", tmp_path / "absent" / "t.arrow"):
        with pytest.raises(UserError, match="cannot write"), table_file(path, schema):
            pass
    (tmp_path / "d.parquet").mkdir()
    with pytest.raises(UserError, match="cannot write"), table_file(tmp_path / "d.parquet", schema):
        pass
    assert [each.name for each in tmp_path.iterdir()] == ["d.parquet"]
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "nothing"):
        pass  # which writes nothing


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_table_of_records(tmp_path: Path, suffix: str) -> None:
    headers = pa.list_(pa.struct([("key", pa.utf8()), ("value", pa.binary())]))
    table = pa.table(
        {
            "topic": ["old", "old"],
            "offset": [7, 8],
            "key": pa.array(["a", None], pa.large_string()),
            "value": pa.array([b"\xff", None], pa.large_binary()),
            "headers": pa.array([[{"key": "h", "value": b"1"}, {"key": "n", "value": None}], None], headers),
            "timestamp": pa.array([1_000_001, None], pa.timestamp("us", "UTC")),
            "partition": pa.array([2, None], pa.int64()),
        }
    )
    assert read(write(tmp_path / f"t{suffix}", table)) == [
        Row(b"a", b"\xff", 1, 1, (("h", b"1"), ("n", None)), 1000, 2),
        Row(None, None, 1, 2, (), None, None),
    ]


def test_a_table_of_values_alone_and_another_key(tmp_path: Path) -> None:
    values = pa.array(["x", "y", "x"]).dictionary_encode()
    path = write(tmp_path / "t.arrow", pa.table({"value": values, "topic": ["a", "b", "c"]}))
    assert [(row.key, row.value) for row in read(path)] == [(None, b"x"), (None, b"y"), (None, b"x")]
    assert [row.key for row in read(path, "topic")] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_rows_of_other_tables_are_json(tmp_path: Path, suffix: str) -> None:
    table = pa.table(
        {
            "id": [1, 2],
            "value": [0.5, float("nan")],
            "at": [datetime(2026, 1, 1, tzinfo=UTC), None],
            "day": [date(2026, 1, 1), None],
            "raw": [b"\xff", b"text"],
            "price": [Decimal("1.10"), None],
            "tags": [["a"], []],
            "nested": [{"x": [True, None]}, {"x": None}],
        }
    )
    rows = read(write(tmp_path / f"t{suffix}", table), "id")
    assert [row.key for row in rows] == [b"1", b"2"]
    assert [json.loads(row.value or b"") for row in rows] == [
        {
            **{"id": 1, "value": 0.5, "at": "2026-01-01T00:00:00+00:00", "day": "2026-01-01", "raw": "/w=="},
            **{"price": "1.10", "tags": ["a"], "nested": {"x": [True, None]}},
        },
        {
            **{"id": 2, "value": None, "at": None, "day": None, "raw": "text"},
            **{"price": None, "tags": [], "nested": {"x": None}},
        },
    ]


def test_a_stream_of_arrow_and_many_rows(tmp_path: Path) -> None:
    table = pa.table({"value": [b"%d" % number for number in range(25_000)]})
    with pa.ipc.new_stream(str(tmp_path / "t.arrow"), table.schema) as writer:
        writer.write_table(table)
    found = read(tmp_path / "t.arrow")
    assert [row.value for row in found] == table["value"].to_pylist()
    assert [row.number for row in found] == list(range(1, 25_001))


def test_files_that_are_none(tmp_path: Path) -> None:
    for suffix in (".parquet", ".arrow"):
        path = tmp_path / f"t{suffix}"
        path.write_bytes(b"no table at all")
        with pytest.raises(UserError, match=f"is no {suffix[1:].title()} file"):
            read(path)
        with pytest.raises(OSError):
            read(tmp_path / f"absent{suffix}")
    path = write(tmp_path / "t.arrow", pa.table({"a": [1]}))
    with pytest.raises(UserError, match="there is no column 'b': the file has a"):
        read(path, "b")
    whole = pa.table({"value": [b"x" * 100] * 30_000, "key": [b"k"] * 30_000})
    pq.write_table(
        whole,
        tmp_path / "cut.parquet",
        row_group_size=10_000,
        compression="none",
        use_dictionary=False,
        data_page_size=4096,
    )
    data = bytearray((tmp_path / "cut.parquet").read_bytes())
    data[len(data) // 2 : len(data) // 2 + 200_000] = bytes(200_000)
    (tmp_path / "cut.parquet").write_bytes(data)
    with pytest.raises(UserError, match="cannot be read behind row"):
        read(tmp_path / "cut.parquet")
