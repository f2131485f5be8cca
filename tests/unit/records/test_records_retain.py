"""What compaction keeps of a batch (RULES 10.2): offsets never change, and the header still names the next."""

import numpy as np
import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from highwater.records import (
    HEADER_BYTES,
    Codec,
    CorruptBatchError,
    Record,
    TimestampType,
    decode,
    encode_lists,
    encode_rows,
    iter_batches,
    read_header,
    retain,
    verify,
)

RECORDS = [
    Record(
        100 + i, 1_000 + (i * 37) % 50, b"k%d" % (i % 4), None if i % 3 == 0 else b"v%d" % i, (("h", b"x"),) * (i % 2)
    )
    for i in range(10)
]
IDENTITY = {
    "base_offset": 100,
    "leader_epoch": 3,
    "producer_id": 7,
    "producer_epoch": 1,
    "base_sequence": 40,
}


def batch_of(columnar: bool, codec: Codec, **options) -> bytes:
    if not columnar:
        return encode_rows(RECORDS, codec=codec, **IDENTITY, **options)
    lists = [[record[column] for record in RECORDS] for column in (1, 2, 3, 4)]
    return encode_lists(*lists, codec=codec, **IDENTITY, **options)


@given(
    columnar=st.booleans(),
    codec=st.sampled_from(list(Codec)),
    keep=st.lists(st.booleans(), min_size=10, max_size=10),
    again=st.lists(st.booleans(), min_size=10, max_size=10),
)
def test_survivors_keep_their_offsets(columnar: bool, codec: Codec, keep: list[bool], again: list[bool]) -> None:
    original = batch_of(columnar, codec)
    once = retain(b"--" + original, 2, np.array(keep))
    survivors = [record for record, kept in zip(RECORDS, keep, strict=True) if kept]
    check(once, original, survivors)
    # What was compacted is compacted again.
    twice = retain(once, 0, np.array(again[: len(survivors)], dtype=bool))
    check(twice, original, [record for record, kept in zip(survivors, again, strict=False) if kept])


def check(compacted: bytes, original: bytes, survivors: list[Record]) -> None:
    before, after = read_header(original), read_header(compacted)
    verify(compacted, 0, after)
    batch = decode(compacted)
    assert batch.records() == survivors
    assert batch.to_arrow()["offset"].to_pylist() == [record.offset for record in survivors]
    for field in ("base_offset", "last_offset_delta", "partition_leader_epoch", "producer_id", "producer_epoch"):
        assert getattr(after, field) == getattr(before, field)
    assert (after.next_offset, after.last_sequence) == (110, 49)
    assert after.record_count == len(survivors)
    if survivors:
        assert after.max_timestamp == max(record.timestamp for record in survivors)
        assert after.codec is before.codec
        assert after.columnar is before.columnar
        assert after.has_offset_deltas is (before.columnar and len(survivors) < 10)
    else:
        assert len(compacted) == HEADER_BYTES


@pytest.mark.parametrize("columnar", [False, True])
def test_a_batch_that_loses_nothing_is_not_re_encoded(columnar: bool) -> None:
    original = batch_of(columnar, Codec.ZSTD)
    assert retain(original, 0, np.ones(10, dtype=bool)) == original


@pytest.mark.parametrize("columnar", [False, True])
def test_a_batch_without_survivors_is_its_header(columnar: bool) -> None:
    empty = retain(batch_of(columnar, Codec.LZ4), 0, np.zeros(10, dtype=bool))
    follower = batch_of(columnar, Codec.LZ4)
    assert [header.record_count for _, header in iter_batches(empty + follower)] == [0, 10]
    batch = decode(empty + follower)
    assert batch.records() == []
    assert batch.to_arrow().num_rows == 0
    assert batch.to_arrow().schema.names == ["offset", "timestamp", "key", "value"]
    assert batch.header.max_timestamp == -1  # no record has one
    assert retain(empty, 0, np.zeros(0, dtype=bool)) == empty


@pytest.mark.parametrize("columnar", [False, True])
def test_the_delete_horizon_is_kept_from_pass_to_pass(columnar: bool) -> None:
    everything = np.ones(10, dtype=bool)
    marked = retain(batch_of(columnar, Codec.NONE), 0, everything, delete_horizon_ms=5_000)
    assert read_header(marked).delete_horizon_ms == 5_000
    assert decode(marked).records() == RECORDS
    fewer = retain(marked, 0, np.arange(10) % 2 == 0)
    assert read_header(fewer).delete_horizon_ms == 5_000
    assert decode(fewer).records() == RECORDS[::2]
    moved = retain(fewer, 0, np.ones(5, dtype=bool), delete_horizon_ms=6_000)
    assert read_header(moved).delete_horizon_ms == 6_000
    assert decode(moved).records() == RECORDS[::2]


@pytest.mark.parametrize("columnar", [False, True])
def test_log_append_time_outlives_the_records(columnar: bool) -> None:
    original = batch_of(columnar, Codec.SNAPPY, timestamp_type=TimestampType.LOG_APPEND_TIME)
    latest = read_header(original).max_timestamp
    compacted = decode(retain(original, 0, np.arange(10) < 2))
    assert compacted.header.log_append_time
    assert {record.timestamp for record in compacted.records()} == {latest}


def test_kafka_reads_compacted_rows() -> None:
    compacted = DefaultRecordBatch(retain(batch_of(False, Codec.GZIP), 0, np.arange(10) % 4 == 1))
    assert compacted.validate_crc()
    assert compacted.next_offset == 110
    assert [(record.offset, record.value) for record in compacted] == [
        (record.offset, record.value) for record in RECORDS[1::4]
    ]


def test_keep_has_one_entry_a_record() -> None:
    with pytest.raises(ValueError, match="9 entries of keep for 10 records"):
        retain(batch_of(True, Codec.NONE), 0, np.ones(9, dtype=bool))
    with pytest.raises(CorruptBatchError, match="truncated"):
        retain(batch_of(True, Codec.NONE)[:-1], 0, np.ones(10, dtype=bool))
