"""Batches of the log as Spark's columns, and Spark's rows as what is sent where."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from highwater.client.consumer.fetch_buffer import FetchBuffer
from highwater.client.topic_partition import TopicPartition
from highwater.records import Batch, Record, TimestampType, decode, encode_columns, encode_rows
from highwater.spark.errors import OptionError
from highwater.spark.schema import READ_COLUMNS, spark_schema
from highwater.spark.sink.write_rows import Target, check_write_columns, rows_by_target
from highwater.spark.source.columns import arrow_schema, read_columns

HEADERS = "array<struct<key:string,value:binary>>"


def a_batch(*, base_offset: int = 100, timestamp_type: TimestampType = TimestampType.CREATE_TIME) -> Batch:
    table = pa.table(
        {
            "timestamp": pa.array([1000, 2000, 3000], pa.int64()),
            "key": pa.array([b"a", None, b"c"]),
            "value": pa.array([b"1", b"2", None]),
            "headers": pa.array(
                [[("h", b"x")], [], None],
                pa.list_(pa.struct([pa.field("key", pa.utf8(), nullable=False), pa.field("value", pa.binary())])),
            ),
        }
    )
    return decode(encode_columns(table, base_offset=base_offset, timestamp_type=timestamp_type))


def test_the_columns_of_sparks_kafka_source() -> None:
    found = read_columns(a_batch(), "events", 3, 0, 1000, READ_COLUMNS)
    assert found.schema.equals(arrow_schema(READ_COLUMNS))
    assert found.to_pylist()[0] == {
        "key": b"a",
        "value": b"1",
        "topic": "events",
        "partition": 3,
        "offset": 100,
        "timestamp": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        "timestampType": 0,
        "headers": [{"key": "h", "value": b"x"}],
    }
    assert found.column("headers").to_pylist() == [[{"key": "h", "value": b"x"}], None, None]
    assert found.column("value").to_pylist() == [b"1", b"2", None]


def test_only_the_offsets_of_the_range() -> None:
    assert read_columns(a_batch(), "t", 0, 101, 102, ("offset",)).column(0).to_pylist() == [101]
    assert read_columns(a_batch(), "t", 0, 0, 100, ("offset",)).num_rows == 0


def test_some_columns() -> None:
    found = read_columns(a_batch(), "t", 0, 0, 1000, ("value", "offset"))
    assert found.schema.names == ["value", "offset"]
    assert spark_schema(("value", "offset")) == "`value` binary, `offset` bigint"


def test_columns_that_are_not_asked_for_are_not_made() -> None:
    """What goes to Spark holds on to none of a megabyte of values."""
    table = pa.table(
        {
            "timestamp": pa.array(range(1000), pa.int64()),
            "key": pa.array([b"k"] * 1000, pa.binary()),
            "value": pa.array([b"v" * 1000] * 1000, pa.binary()),
        }
    )
    batch = decode(encode_columns(table))
    wanted = [read_columns(batch, "t", 0, 0, 1000, names) for names in (("offset", "partition"), ("offset", "value"))]
    assert [one.num_rows for one in wanted] == [1000, 1000]
    assert wanted[0].get_total_buffer_size() < 50_000
    assert wanted[1].get_total_buffer_size() >= 1_000_000


def test_the_leaders_time_is_said_to_be_so() -> None:
    batch = a_batch(timestamp_type=TimestampType.LOG_APPEND_TIME)
    assert read_columns(batch, "t", 0, 0, 1000, ("timestampType",)).column(0).to_pylist() == [1, 1, 1]


def test_rows_of_kafkas_own_form() -> None:
    batch = decode(encode_rows([Record(0, 5, b"k", b"v", (("h", None),)), Record(0, 6, None, b"w", ())]))
    found = read_columns(batch, "t", 0, 0, 10, READ_COLUMNS)
    assert found.column("headers").to_pylist() == [[{"key": "h", "value": None}], None]
    assert found.column("key").to_pylist() == [b"k", None]
    without = decode(encode_rows([Record(0, 5, b"k", b"v", ())]))
    assert read_columns(without, "t", 0, 0, 10, ("headers",)).column(0).to_pylist() == [None]


def test_a_buffer_hands_out_whole_batches() -> None:
    buffer = FetchBuffer(TopicPartition("t", 0), lambda _: None)
    buffer.seek(101)
    first = encode_columns(pa.table({"value": [b"a", b"b"]}), base_offset=100)
    second = encode_columns(pa.table({"value": [b"c"]}), base_offset=102)
    buffer.accept(first + second, 103, 0)
    taken = [buffer.take_encoded(), buffer.take_encoded(), buffer.take_encoded()]
    assert [None if one is None else (one[0].header.base_offset, one[1]) for one in taken] == [
        (100, 101),
        (102, 102),
        None,
    ]
    assert (buffer.position, buffer.buffered_bytes) == (103, 0)


# Writing


def test_columns_that_can_be_written() -> None:
    types = {"key": "string", "value": "binary", "topic": "string", "partition": "int", "headers": HEADERS, "more": "x"}
    wanted = {"key", "value", "topic", "partition", "headers"}
    assert check_write_columns(types, topic=None, include_timestamp=False) == wanted
    assert check_write_columns({"value": "varchar(3)"}, topic="t", include_timestamp=False) == {"value"}
    stamped = {"value": "string", "timestamp": "timestamp"}
    assert check_write_columns(stamped, topic="t", include_timestamp=True) == {"value", "timestamp"}


@pytest.mark.parametrize(
    ("types", "topic", "include_timestamp", "message"),
    [
        ({"key": "string"}, "t", False, "needs a column value; there are key"),
        ({"value": "string"}, None, False, "set option topic, or give rows a column topic"),
        ({"value": "bigint"}, "t", False, "column value is bigint; it must be string or binary: cast it"),
        ({"value": "string", "partition": "string"}, "t", False, "column partition is string"),
        ({"value": "string", "headers": "map<string,string>"}, "t", False, "column headers is map"),
        ({"value": "string"}, "t", True, "there is no column timestamp"),
    ],
)
def test_columns_that_cannot(types: dict[str, str], topic: str | None, include_timestamp: bool, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        check_write_columns(types, topic=topic, include_timestamp=include_timestamp)


def where(targets: list[Target]) -> dict[tuple[str, int | None], list[str]]:
    return {(one.topic, one.partition): one.rows.column("value").to_pylist() for one in targets}


def test_rows_go_where_their_columns_say_in_their_order() -> None:
    table = pa.table(
        {
            "value": list("abcdef"),
            "topic": ["x", "y", "x", "y", "x", "x"],
            "partition": pa.array([None, 1, 0, 1, None, 0], pa.int32()),
        }
    )
    assert where(list(rows_by_target(table, None))) == {
        ("x", None): ["a", "e"],
        ("x", 0): ["c", "f"],
        ("y", 1): ["b", "d"],
    }
    assert where(list(rows_by_target(table, "z"))) == {
        ("z", None): ["a", "e"],
        ("z", 0): ["c", "f"],
        ("z", 1): ["b", "d"],
    }


def test_rows_of_one_target_are_not_copied() -> None:
    table = pa.table({"value": ["a", "b"]})
    (target,) = rows_by_target(table, "t")
    assert target == Target("t", None, table)
    assert target.rows is table
    named = pa.table({"value": ["a", "b"], "topic": ["t", "t"], "partition": pa.array([None, None], pa.int32())})
    (target,) = rows_by_target(named, None)
    assert target.rows is named


def test_rows_that_go_nowhere() -> None:
    with pytest.raises(OptionError, match="a row's topic is null"):
        list(rows_by_target(pa.table({"value": ["a"], "topic": pa.array([None], pa.utf8())}), None))
    with pytest.raises(OptionError, match="a row's partition is -4"):
        list(rows_by_target(pa.table({"value": ["a"], "partition": pa.array([-4], pa.int32())}), "t"))
