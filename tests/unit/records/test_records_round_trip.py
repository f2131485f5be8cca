"""What goes into a batch comes out of it, as rows and as columns, by every codec."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.records import (
    Codec,
    Record,
    TimestampType,
    decode,
    encode_arrays,
    encode_columns,
    encode_lists,
    encode_rows,
    iter_batches,
    read_header,
)

CODECS = list(Codec)
TIMESTAMPS = st.integers(-(2**62), 2**62 - 1)  # any two differ by an int64
HEADER_LISTS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3).map(tuple)
RECORDS = st.lists(
    st.tuples(TIMESTAMPS, st.none() | st.binary(max_size=20), st.none() | st.binary(max_size=200), HEADER_LISTS),
    min_size=1,
    max_size=30,
).map(lambda rows: [Record(offset, *row) for offset, row in enumerate(rows)])


def as_lists(records: list[Record]) -> list[list[object]]:
    return [[record[column] for record in records] for column in (1, 2, 3, 4)]


def as_columns(records: list[Record], **options: object) -> bytes:
    return encode_lists(*as_lists(records), **options)  # type: ignore[arg-type]


@given(records=RECORDS, codec=st.sampled_from(CODECS), base_offset=st.integers(0, 2**40))
def test_rows_and_columns_give_the_same_records_back(records: list[Record], codec: Codec, base_offset: int) -> None:
    expected = [record._replace(offset=base_offset + record.offset) for record in records]
    for encode in (encode_rows, as_columns):
        batch = decode(b"-" + encode(records, codec=codec, base_offset=base_offset) + b"-", 1)
        assert batch.records() == expected
        assert all(type(record) is Record for record in batch.records())
        # The two views of a batch agree, and a batch made of its table is the same again.
        again = decode(encode_columns(batch.to_arrow(), codec=codec, base_offset=base_offset))
        assert again.records() == expected
        assert again.to_arrow().equals(batch.to_arrow())


@given(records=RECORDS)
def test_the_header_sums_the_records_up(records: list[Record]) -> None:
    timestamps = [record.timestamp for record in records]
    for encode in (encode_rows, as_columns):
        header = read_header(encode(records))
        assert (header.base_timestamp, header.max_timestamp) == (timestamps[0], max(timestamps))
        assert (header.record_count, header.last_offset_delta) == (len(records), len(records) - 1)
        assert header.columnar is (encode is as_columns)
        assert header.has_headers is (encode is as_columns and any(record.headers for record in records))


@pytest.mark.parametrize("encode", [encode_rows, as_columns])
def test_options_stand_in_the_header(encode) -> None:
    options = {
        "base_offset": 77,
        "leader_epoch": 4,
        "producer_id": 2**40,
        "producer_epoch": 12,
        "base_sequence": 99,
        "transactional": True,
        "control": True,
    }
    header = read_header(encode([Record(0, 1, None, b"x")], **options))
    assert (header.base_offset, header.partition_leader_epoch) == (77, 4)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2**40, 12, 99)
    assert header.transactional
    assert header.control
    plain = read_header(encode([Record(0, 1, None, b"x")]))
    assert (plain.producer_id, plain.producer_epoch, plain.base_sequence) == (-1, -1, -1)
    assert (plain.base_offset, plain.partition_leader_epoch, plain.transactional, plain.control) == (
        0,
        -1,
        False,
        False,
    )


@pytest.mark.parametrize("encode", [encode_rows, as_columns])
def test_under_log_append_time_every_record_has_the_max_timestamp(encode) -> None:
    records = [Record(0, 10, b"a", b"1"), Record(1, 30, b"b", None), Record(2, 20, None, b"3")]
    batch = decode(encode(records, timestamp_type=TimestampType.LOG_APPEND_TIME))
    assert batch.header.log_append_time
    assert [record.timestamp for record in batch.records()] == [30, 30, 30]
    assert batch.to_arrow()["timestamp"].to_pylist() == [30, 30, 30]


@pytest.mark.parametrize("size", [63, 64, 8191, 8192, 1 << 20, 3 << 20])
@pytest.mark.parametrize("codec", CODECS)
def test_sizes_at_the_edges_of_varints_and_blocks(size: int, codec: Codec) -> None:
    records = [Record(0, 0, b"k" * size, b"v" * size), Record(1, size, b"", b""), Record(2, -size, None, None)]
    assert decode(encode_rows(records, codec=codec)).records() == records
    assert decode(as_columns(records, codec=codec)).records() == records


def test_many_records() -> None:
    records = [Record(i, 1_000 + i * 7, b"%d" % i, b"v" * (i % 90)) for i in range(20_000)]
    assert decode(encode_rows(records, codec=Codec.LZ4)).records() == records
    assert decode(as_columns(records, codec=Codec.LZ4)).records() == records


def test_the_readers_schema() -> None:
    table = decode(encode_lists([1], [b"k"], [b"v"], [[("h", None)]])).to_arrow()
    assert table.schema.names == ["offset", "timestamp", "key", "value", "headers"]
    assert [str(table.schema.field(name).type) for name in table.schema.names[:4]] == [
        "int64",
        "int64",
        "binary",
        "binary",
    ]
    assert decode(encode_lists([1], None, [b"v"])).to_arrow().schema.names == ["offset", "timestamp", "key", "value"]
    assert decode(encode_rows([Record(0, 1, None, b"v")])).to_arrow().schema.names[-1] == "value"


def test_a_table_of_other_types_and_chunks_is_converted() -> None:
    table = pa.table(
        {
            "when": ["unused"] * 4,
            "value": pa.chunked_array([["a", None], ["c", "d"]], pa.large_string()),
            "timestamp": pa.array([1_500_000, 2_000_999, 3_000_000, 4_000_000], pa.timestamp("us", "UTC")),
            "key": pa.array(["x", "y", None, "x"]).dictionary_encode(),
        }
    )
    expected = [
        Record(0, 1_500, b"x", b"a"),
        Record(1, 2_000, b"y", None),
        Record(2, 3_000, None, b"c"),
        Record(3, 4_000, b"x", b"d"),
    ]
    assert decode(encode_columns(table)).records() == expected
    assert decode(encode_columns(table.slice(1, 2))).records() == [
        record._replace(offset=offset) for offset, record in enumerate(expected[1:3])
    ]
    only_values = decode(encode_columns(pa.record_batch({"value": [b"a"]})))
    assert only_values.records() == [Record(0, -1, None, b"a")]


def test_slices_of_headers_keep_their_own() -> None:
    records = [Record(i, i, None, b"v", ((f"h{i}", b"%d" % i),) * (i % 3)) for i in range(10)]
    table = decode(as_columns(records)).to_arrow()
    sliced = decode(encode_columns(table.slice(3, 5))).records()
    assert [record.headers for record in sliced] == [record.headers for record in records[3:8]]
    assert not decode(encode_columns(table.slice(3, 1))).header.has_headers


def test_separate_arrays_of_numpy_and_arrow() -> None:
    timestamps = np.array([5, 6], dtype=np.int64)
    batch = decode(encode_arrays(timestamps, None, pa.array([b"a", b"b"]), codec=Codec.ZSTD, level=9))
    assert batch.records() == [Record(0, 5, None, b"a"), Record(1, 6, None, b"b")]


def test_a_null_list_of_headers_is_an_empty_one() -> None:
    records = decode(encode_lists([1, 2, 3], None, [b"a", b"b", b"c"], [None, [("h", b"x")], []])).records()
    assert [record.headers for record in records] == [(), (("h", b"x"),), ()]
    columns = pa.record_batch(
        {
            "value": [b"a", b"b"],
            "headers": pa.array(
                [None, [{"key": "h", "value": b"x"}]],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )
    assert [record.headers for record in decode(encode_columns(columns)).records()] == [(), (("h", b"x"),)]


def test_what_cannot_be_a_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        encode_rows([])
    with pytest.raises(ValueError, match="at least one record"):
        encode_lists([], None, [])
    with pytest.raises(ValueError, match="needs a column 'value'; it has a"):
        encode_columns(pa.table({"a": [1]}))
    with pytest.raises(ValueError, match="a timestamp is null"):
        encode_columns(pa.table({"timestamp": pa.array([1, None], pa.int64()), "value": [b"a", b"b"]}))
    with pytest.raises(ValueError, match="a record header has no key"):
        encode_lists([1], None, [b"a"], [[(None, b"x")]])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="out of range"):
        encode_rows([Record(0, 1, None, b"")], producer_epoch=1 << 15)
    with pytest.raises(TypeError):
        encode_rows([Record(0, 1, None, "text")])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="same length"):
        encode_lists([1], [b"a", b"b"], [b"a"])
    with pytest.raises(pa.ArrowException):
        encode_lists([1], None, ["text", 5])  # type: ignore[list-item]


def test_the_list_of_records_belongs_to_the_caller() -> None:
    batch = decode(encode_rows([Record(0, 1, None, b"")]))
    batch.records().clear()
    assert len(batch.records()) == 1


def test_a_batch_outlives_the_buffer_it_was_read_from() -> None:
    buffer = bytearray(encode_lists([1, 2], [b"a", b"b"], [b"one", b"two"]))
    batch = decode(buffer)
    buffer[:] = bytes(len(buffer))
    assert batch.records() == [Record(0, 1, b"a", b"one"), Record(1, 2, b"b", b"two")]


@given(batches=st.lists(RECORDS, min_size=1, max_size=4), codec=st.sampled_from(CODECS))
def test_batches_in_a_row_are_read_by_position(batches: list[list[Record]], codec: Codec) -> None:
    encoded = [(encode_rows if i % 2 else as_columns)(records, codec=codec) for i, records in enumerate(batches)]
    buffer = b"".join(encoded)
    positions = [position for position, _ in iter_batches(buffer)]
    assert [decode(buffer, position).records() for position in positions] == batches
    assert [right - left for left, right in pairwise([*positions, len(buffer)])] == [len(batch) for batch in encoded]
