"""Batches made of tables."""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa
import pytest

from highwater.client import InvalidRequestError
from highwater.client.producer.partitioner import partition_for_key
from highwater.client.producer.table_batches import MOST_OF_BATCH, TableColumns, as_table, chunks, normalised


def cut(rows: int, about: int, *, partitions: int = 3, keyed: bool = True) -> dict[int, list[pa.RecordBatch]]:
    """By partition, in order."""
    columns = {"value": [b"%d" % number for number in range(rows)]}
    if keyed:
        columns["key"] = [b"k%d" % (number % 50) for number in range(rows)]
    table = normalised(pa.table(columns), TableColumns())
    found = defaultdict(list)
    for chunk in chunks(table, partitions, rows_per_batch=lambda row_bytes: about, partition=None, first_sticky=0):
        batch = chunk.rows()
        assert batch.num_rows == chunk.records
        found[chunk.partition].append(batch)
    return found


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize(("rows", "about"), [(1, 10), (1000, 10), (1000, 97), (1000, 400), (1000, 10_000), (7, 1)])
def test_every_row_once_and_in_order(rows: int, about: int, keyed: bool) -> None:
    found = cut(rows, about, keyed=keyed)
    seen = []
    for partition, batches in found.items():
        values = [int(value) for batch in batches for value in batch.column("value").to_pylist()]
        if keyed:
            assert values == sorted(values)
            keys = {key for batch in batches for key in batch.column("key").to_pylist()}
            assert {partition_for_key(key, 3) for key in keys} == {partition}
        seen += values
    assert sorted(seen) == list(range(rows))


def test_headers_that_no_row_has_are_no_column() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    columns = TableColumns(headers="headers")

    def names(headers: list[list[dict[str, object]] | None]) -> list[str]:
        values = [b"x"] * len(headers)
        table = pa.table({"value": values, "headers": pa.array(headers, kind)})
        found: list[str] = normalised(table, columns).schema.names
        return found

    assert names([[], None, []]) == names([]) == ["timestamp", "value"]
    assert names([None, [], [{"key": "h", "value": None}]]) == ["timestamp", "value", "headers"]


@pytest.mark.parametrize(
    ("rows", "batches"),
    [(100, 1), (103, 1), (150, 1), (151, 2), (200, 2), (250, 2), (251, 3), (1000, 10)],
)
def test_a_batch_that_is_a_little_too_large_stays_whole(rows: int, batches: int) -> None:
    (found,) = cut(rows, 100, partitions=1).values()
    assert len(found) == batches
    sizes = [batch.num_rows for batch in found]
    assert max(sizes) <= 100 * MOST_OF_BATCH
    assert max(sizes) - min(sizes) <= 1


class Stream:
    """The frame of another library: nothing but Arrow's C stream."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def test_whatever_has_arrows_stream_is_a_table() -> None:
    table = pa.table({"key": pa.array(["a", None], pa.string_view()), "value": pa.array(["1", "2"], pa.large_string())})
    assert as_table(Stream(table)) == table
    assert as_table(table) is table
    assert as_table(table.to_batches()[0]) == table
    assert as_table(pa.RecordBatchReader.from_batches(table.schema, table.to_batches())) == table
    columns = normalised(as_table(Stream(table)), TableColumns(), now_ms=1)
    assert columns.column("key").to_pylist() == [b"a", None]
    assert columns.column("value").to_pylist() == [b"1", b"2"]


@pytest.mark.parametrize("values", [pa.string(), pa.large_string(), pa.string_view(), pa.binary()], ids=str)
def test_categories_are_what_they_stand_for(values: pa.DataType) -> None:
    """Of pandas, and of Polars, whose dictionaries are of string views."""
    dictionary = pa.array(["a", "b"]).cast(values)
    keys = pa.DictionaryArray.from_arrays(pa.array([1, None, 0], pa.uint32()), dictionary)
    table = pa.table({"key": pa.chunked_array([keys, keys]), "value": pa.array(["v"] * 6)})
    assert normalised(table, TableColumns()).column("key").to_pylist() == [b"b", None, b"a"] * 2
    numbers = pa.table({"value": pa.array([1, 2]).dictionary_encode()})
    with pytest.raises(InvalidRequestError, match="column 'value' is int64"):
        normalised(numbers, TableColumns())


def test_what_is_no_table_is_refused() -> None:
    for wrong in ({"key": ["a"]}, [("a", "b")], None, "text"):
        with pytest.raises(InvalidRequestError, match="what has __arrow_c_stream__"):
            as_table(wrong)  # type: ignore[arg-type]

    class Broken:
        def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
            raise TypeError("column x mixes text and numbers")

    with pytest.raises(InvalidRequestError, match="the Broken cannot be read as Arrow columns: column x mixes"):
        as_table(Broken())
