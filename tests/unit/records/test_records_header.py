"""The 61 bytes of the header, against bytes written by hand and by a Kafka broker."""

import dataclasses
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.records import (
    HEADER_BYTES,
    BatchHeader,
    Codec,
    CorruptBatchError,
    Record,
    TimestampType,
    encode_lists,
    encode_rows,
    first_columnar,
    iter_batches,
    read_header,
    split_batches,
    verify,
)
from highwater.records import header as headers

HEADER = bytes.fromhex(
    "00000000000003e8"  # base offset 1000
    "00000040"  # length 64: 49 bytes of header and 15 of payload
    "00000007"  # partition leader epoch 7
    "02"  # magic
    "deadbeef"  # CRC, not checked by read_header
    "03ab"  # lz4, log append time, control, columnar, headers, offset deltas
    "00000009"  # last offset delta 9
    "0000018bcfe56800"  # base timestamp 1700000000000
    "0000018bcfe56be8"  # max timestamp 1700000001000
    "0000000000000fa1"  # producer id 4001
    "0003"  # producer epoch 3
    "7ffffffe"  # base sequence 2^31 - 2
    "00000005"  # five records left of ten
)


def altered(position: int, replacement: str, header: bytes = HEADER) -> bytes:
    changed = bytes.fromhex(replacement)
    return header[:position] + changed + header[position + len(changed) :]


def test_every_field_is_read_from_its_place() -> None:
    assert len(HEADER) == HEADER_BYTES
    assert read_header(b"before" + HEADER, 6) == BatchHeader(
        base_offset=1000,
        length=64,
        partition_leader_epoch=7,
        magic=2,
        crc=0xDEADBEEF,
        attributes=0x3AB,
        last_offset_delta=9,
        base_timestamp=1_700_000_000_000,
        max_timestamp=1_700_000_001_000,
        producer_id=4001,
        producer_epoch=3,
        base_sequence=2**31 - 2,
        record_count=5,
    )


def test_properties_follow_from_the_fields() -> None:
    header = read_header(HEADER)
    assert (header.size_bytes, header.last_offset, header.next_offset) == (76, 1009, 1010)
    assert header.codec is Codec.LZ4
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert (header.log_append_time, header.control, header.columnar) == (True, True, True)
    assert (header.has_headers, header.has_offset_deltas, header.transactional) == (True, True, False)
    assert header.delete_horizon_ms is None


@pytest.mark.parametrize(
    ("base_sequence", "last_offset_delta", "last_sequence"),
    [(0, 0, 0), (5, 9, 14), (2**31 - 2, 1, 2**31 - 1), (2**31 - 2, 2, 0), (2**31 - 1, 9, 8), (-1, 9, -1)],
)
def test_sequences_wrap_to_zero_after_the_largest(
    base_sequence: int, last_offset_delta: int, last_sequence: int
) -> None:
    header = dataclasses.replace(read_header(HEADER), base_sequence=base_sequence, last_offset_delta=last_offset_delta)
    assert header.last_sequence == last_sequence


def test_delete_horizon_stands_in_the_base_timestamp() -> None:
    assert read_header(altered(21, "0040")).delete_horizon_ms == 1_700_000_000_000


# Written by a Kafka broker (aiokafka's and kafka-python's own fixture): one record, value b"123", leader epoch 1.
FROM_KAFKA = bytes.fromhex(
    "0000000000000000 0000003b 00000001 02 0318a270 0000 00000000 0000015dff7b063c 0000015dff7b063c"
    "ffffffffffffffff ffff ffffffff 00000001 12 00 00 00 01 06 313233 00"
)


def test_a_batch_of_a_kafka_broker_is_reproduced_byte_for_byte() -> None:
    header = read_header(FROM_KAFKA)
    verify(FROM_KAFKA, 0, header)
    assert header.crc == 0x0318A270
    assert encode_rows([Record(0, 1_503_229_838_908, None, b"123")], leader_epoch=1) == FROM_KAFKA


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        (HEADER[:60], "truncated: 60 bytes"),
        (b"", "truncated: 0 bytes"),
        (altered(16, "01"), "magic 1"),
        (altered(8, "00000030"), "impossible length 48"),
        (altered(8, "80000000"), "impossible length -2147483648"),
        (altered(8, "7fffffff"), "impossible length 2147483647"),
        (altered(0, "ffffffffffffffff"), "impossible base offset -1"),
        (altered(0, "7fffffffffffffff"), "impossible base offset"),
        (altered(12, "fffffffe"), "impossible leader epoch -2"),
        (altered(21, "0005"), "unknown attributes 0x0005"),
        (altered(21, "0400"), "unknown attributes 0x0400"),
        (altered(21, "8000"), "unknown attributes 0x8000"),
        (altered(21, "0100"), "the payload is rows"),
        (altered(23, "ffffffff"), "do not fit into last offset delta -1"),
        (altered(57, "0000000b"), "11 records do not fit into last offset delta 9"),
        (altered(57, "ffffffff"), "-1 records"),
    ],
)
def test_a_header_that_no_batch_can_have_is_refused(damaged: bytes, reason: str) -> None:
    with pytest.raises(CorruptBatchError) as caught:
        read_header(b"xyz" + damaged, 3)
    assert caught.value.position == 3
    assert reason in caught.value.reason
    assert "at byte 3" in str(caught.value)


def test_the_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(CorruptBatchError(12, "magic 1")))
    assert (type(error), error.position, error.reason) == (CorruptBatchError, 12, "magic 1")


def three_batches() -> list[bytes]:
    return [encode_lists([i] * 3, None, [b"value"] * 3, base_offset=3 * i, codec=Codec.LZ4) for i in range(3)]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_batches_are_found_one_after_the_other(kind: type) -> None:
    batches = three_batches()
    found = list(iter_batches(kind(b"".join(batches))))
    assert [position for position, _ in found] == [0, len(batches[0]), len(batches[0]) + len(batches[1])]
    assert [header.base_offset for _, header in found] == [0, 3, 6]
    assert list(iter_batches(kind(b""))) == []
    assert len(list(iter_batches(kind(b"".join(batches)), len(batches[0])))) == 2


@pytest.mark.parametrize("missing", [1, 20, 60])
def test_a_cut_off_tail_is_refused_or_left_out(missing: int) -> None:
    batches = three_batches()
    for cut in (missing, len(batches[2]) - missing):
        buffer = b"".join(batches)[:-cut]
        assert [header.base_offset for _, header in iter_batches(buffer, partial_ok=True)] == [0, 3]
        with pytest.raises(CorruptBatchError, match="truncated") as caught:
            list(iter_batches(buffer))
        assert caught.value.position == len(batches[0]) + len(batches[1])


def test_partial_ok_does_not_excuse_a_bad_header() -> None:
    first, second, _ = three_batches()
    with pytest.raises(CorruptBatchError, match="magic 9"):
        list(iter_batches(first + altered(16, "09", second), partial_ok=True))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_verify_sees_any_damaged_byte_that_the_crc_covers(kind: type) -> None:
    batch = encode_rows([Record(0, 5, b"key", b"value")])
    header = read_header(batch)
    verify(kind(b"__" + batch), 2, header)
    for position in range(21, len(batch)):
        damaged = bytearray(b"__" + batch)
        damaged[position + 2] ^= 0x10
        with pytest.raises(CorruptBatchError, match="CRC-32C") as caught:
            verify(kind(damaged), 2, header)
        assert caught.value.position == 2
    with pytest.raises(CorruptBatchError, match="truncated"):
        verify(kind(b"__" + batch[:-1]), 2, header)


@given(sizes=st.lists(st.integers(0, 200), max_size=40), most=st.integers(1, 7), cut=st.integers(0, 60))
def test_batches_are_split_between_them(sizes: list[int], most: int, cut: int) -> None:
    batches = [encode_rows([Record(0, 0, None, b"x" * size, ())]) for size in sizes]
    pieces = list(split_batches(b"".join(batches), most))
    assert b"".join(pieces) == b"".join(batches)
    assert all(len(list(iter_batches(piece))) <= most for piece in pieces)
    assert len(pieces) == max(1, -(-len(batches) // most))
    torn = b"".join(batches)[: -cut or None]
    assert b"".join(split_batches(torn, most)) == torn


@given(st.binary(max_size=2_000), st.integers(1, 3))
def test_bytes_that_are_no_batches_are_split_somehow(content: bytes, most: int) -> None:
    assert b"".join(split_batches(content, most)) == content


ROWS = encode_rows([Record(0, 1, b"k", b"v")])
COLUMNS = encode_lists([1], [b"k"], [b"v"])


@given(st.lists(st.sampled_from([ROWS, COLUMNS]), max_size=6), st.integers(0, 100))
def test_the_first_columnar_batch_is_found_as_by_reading_all_headers(batches: list[bytes], cut: int) -> None:
    joined = b"".join(batches)
    joined = joined[: len(joined) - cut]
    read = (position for position, header in iter_batches(joined, partial_ok=True) if header.columnar)
    assert first_columnar(joined) == first_columnar(memoryview(joined)) == next(read, None)


@pytest.mark.parametrize(
    ("position", "replacement", "reason"),
    [(16, "01", "magic 1"), (8, "00000030", "impossible length 48"), (8, "ffffffff", "impossible length -1")],
)
def test_no_first_columnar_batch_is_looked_for_in_what_is_none(position: int, replacement: str, reason: str) -> None:
    with pytest.raises(CorruptBatchError, match=reason):
        first_columnar(ROWS + altered(position, replacement, ROWS) + COLUMNS)


def test_thousands_of_small_batches_are_passed_over_by_the_few_fields_that_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A header that is read whole is 4 us."""
    monkeypatch.setattr(headers, "read_header", None)
    assert first_columnar(ROWS * 10_000) is None
    assert first_columnar(ROWS * 10_000 + COLUMNS) == len(ROWS) * 10_000
