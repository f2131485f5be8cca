"""Headers changed without touching the payload."""

import pytest

from highwater.records import (
    STAMP_BYTES,
    Codec,
    CorruptBatchError,
    Record,
    decode,
    encode_lists,
    encode_rows,
    read_header,
    stamp,
    verify,
    with_log_append_time,
    with_producer,
)

ROWS = encode_rows([Record(0, 10, b"k", b"v"), Record(1, 20, None, None)], codec=Codec.GZIP)
COLUMNS = encode_lists([10, 20], [b"k", None], [b"v", None], codec=Codec.LZ4)


@pytest.mark.parametrize("batch", [ROWS, COLUMNS], ids=["rows", "columns"])
def test_a_stamp_moves_a_batch_without_touching_the_rest(batch: bytes) -> None:
    buffer = b"before" + batch + b"after"
    header = read_header(buffer, 6)
    front = stamp(header, 2**40, 17)
    assert len(front) == STAMP_BYTES == 16
    moved = front + memoryview(buffer)[6 + STAMP_BYTES : 6 + header.size_bytes]
    verify(moved, 0, read_header(moved))
    assert read_header(moved).partition_leader_epoch == 17
    assert decode(moved).records() == [Record(2**40, 10, b"k", b"v"), Record(2**40 + 1, 20, None, None)]


@pytest.mark.parametrize("batch", [ROWS, COLUMNS], ids=["rows", "columns"])
def test_producer_fields_are_set_under_a_new_crc(batch: bytes) -> None:
    changed = decode(with_producer(batch, 2**50, 9, 2**31 - 1))
    header = changed.header
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2**50, 9, 2**31 - 1)
    assert header.last_sequence == 0
    assert changed.records() == decode(batch).records()
    assert with_producer(with_producer(batch, 5, 5, 5), -1, -1, -1) == batch


@pytest.mark.parametrize("batch", [ROWS, COLUMNS], ids=["rows", "columns"])
def test_log_append_time_replaces_every_timestamp(batch: bytes) -> None:
    changed = decode(with_log_append_time(batch, 77))
    assert changed.header.log_append_time
    assert changed.header.max_timestamp == 77
    assert changed.records() == [record._replace(timestamp=77) for record in decode(batch).records()]
    assert changed.to_arrow()["timestamp"].to_pylist() == [77, 77]


def test_only_one_whole_batch_can_be_changed() -> None:
    for wrong in (ROWS[:-1], ROWS + b"x", ROWS + ROWS):
        with pytest.raises(CorruptBatchError, match="bytes were given for a batch of"):
            with_producer(wrong, 1, 1, 1)
        with pytest.raises(CorruptBatchError, match="bytes were given for a batch of"):
            with_log_append_time(wrong, 1)
