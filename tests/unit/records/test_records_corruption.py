"""A damaged batch is refused with a CorruptBatchError, whole, and by no other error; bombs are not expanded."""

import struct
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.records import Batch, Codec, CorruptBatchError, Record, decode, encode_lists, encode_rows, read_header
from highwater.records.header import CHECKED_FROM, HEADER_BYTES, crc32c

RECORDS = [
    Record(i, 1_000 + 977 * i, None if i % 4 == 0 else b"key-%d" % i, None if i % 5 == 0 else b"value-%d" % i * i)
    for i in range(12)
]
WITH_HEADERS = [record._replace(headers=(("h", b"x"), ("n", None))[: i % 3]) for i, record in enumerate(RECORDS)]


def as_columns(records: list[Record], codec: Codec) -> bytes:
    return encode_lists(*[[record[column] for record in records] for column in (1, 2, 3, 4)], codec=codec)  # type: ignore[arg-type]


BATCHES = [
    encode(records, codec=codec)
    for codec in Codec
    for records in (RECORDS, WITH_HEADERS)
    for encode in (encode_rows, as_columns)
]


@st.composite
def damage(draw: st.DrawFn, batch: bytes, start: int = 0) -> bytes:
    """`batch` with bytes flipped, cut out, put in or replaced somewhere from `start` on."""
    damaged = bytearray(batch)
    for _ in range(draw(st.integers(1, 3))):
        position = draw(st.integers(start, max(start, len(damaged) - 1)))
        match draw(st.sampled_from(["flip", "truncate", "cut", "insert", "replace"])):
            case "flip" if position < len(damaged):
                damaged[position] ^= draw(st.integers(1, 255))
            case "truncate":
                del damaged[position:]
            case "cut":
                del damaged[position : position + draw(st.integers(1, 20))]
            case "insert":
                damaged[position:position] = draw(st.binary(min_size=1, max_size=20))
            case _:
                replacement = draw(st.binary(min_size=1, max_size=9))
                damaged[position : position + len(replacement)] = replacement
    return bytes(damaged)


def sealed(batch: bytes) -> bytes:
    """`batch` with the length and CRC that make its outside right."""
    batch = bytearray(batch)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[CHECKED_FROM:])))
    return bytes(batch)


def decoded_or_refused(damaged: bytes) -> Batch | None:
    """The batch, or None where it was refused. Any error but CorruptBatchError fails the test."""
    try:
        return decode(damaged, max_payload_bytes=1 << 20)
    except CorruptBatchError:
        return None


@given(data=st.data())
def test_a_damaged_batch_gives_its_records_or_is_refused(data: st.DataObject) -> None:
    original = data.draw(st.sampled_from(BATCHES))
    batch = decoded_or_refused(data.draw(damage(original)))
    if batch is None:
        return
    # The base offset is the broker's to change, and no CRC covers it.
    moved = batch.header.base_offset
    assert [record._replace(offset=record.offset - moved) for record in batch.records()] == decode(original).records()


@given(data=st.data())
def test_damage_under_a_right_crc_gives_a_sound_batch_or_is_refused(data: st.DataObject) -> None:
    original = data.draw(st.sampled_from(BATCHES))
    damaged = data.draw(damage(original, start=CHECKED_FROM).filter(lambda batch: len(batch) >= HEADER_BYTES))
    batch = decoded_or_refused(sealed(damaged))
    if batch is not None:
        assert_sound(batch)


@given(payload=st.binary(max_size=200), columnar=st.booleans(), codec=st.sampled_from(list(Codec)))
def test_any_bytes_as_payload_give_a_sound_batch_or_are_refused(payload: bytes, columnar: bool, codec: Codec) -> None:
    front = bytearray((as_columns if columnar else encode_rows)(RECORDS, codec=codec)[:HEADER_BYTES])
    batch = decoded_or_refused(sealed(bytes(front) + payload))
    if batch is not None:
        assert_sound(batch)


def assert_sound(batch: Batch) -> None:
    header = batch.header
    records, table = batch.records(), batch.to_arrow()
    table.validate(full=True)
    offsets = [record.offset for record in records]
    assert len(records) == table.num_rows == header.record_count
    assert offsets == sorted(set(offsets)) == table["offset"].to_pylist()
    assert all(header.base_offset <= offset <= header.last_offset for offset in offsets)
    assert [record.value for record in records] == table["value"].to_pylist()


@pytest.mark.parametrize("batch", BATCHES)
def test_every_truncation_is_refused(batch: bytes) -> None:
    for size in range(len(batch)):
        with pytest.raises(CorruptBatchError, match="truncated"):
            decode(batch[:size])
        with pytest.raises(CorruptBatchError):
            decode(batch[:size], verify_crc=False)


def test_the_error_names_the_place_of_the_batch_in_the_buffer() -> None:
    first, second = encode_rows(RECORDS), bytearray(as_columns(RECORDS, Codec.ZSTD))
    second[-1] ^= 1
    with pytest.raises(CorruptBatchError, match=f"corrupt batch at byte {len(first)}: CRC-32C") as caught:
        decode(first + second, len(first))
    assert caught.value.position == len(first)


def rebuilt(records: list[Record], alter: Callable[[bytearray], None]) -> bytes:
    """An uncompressed row batch whose payload was altered, under a right CRC."""
    batch = encode_rows(records)
    payload = bytearray(batch[HEADER_BYTES:])
    alter(payload)
    return sealed(batch[:HEADER_BYTES] + payload)


def set_byte(position: int, value: int) -> Callable[[bytearray], None]:
    return lambda payload: payload.__setitem__(position, value)


# size 0, attributes 1, timestamp 2, offset 3, key size 4, value size 5, value 6 7, headers 8
ONE = [Record(0, 5, None, b"ab")]


@pytest.mark.parametrize(
    ("alter", "reason"),
    [
        (set_byte(0, 14), r"ends at byte 9, its size says 8"),
        (set_byte(0, 15), r"its size says -7"),
        (set_byte(3, 2), "offset delta 1 above the last, 0"),
        (set_byte(3, 1), "offset delta -1 after -1"),
        (set_byte(4, 3), "a key of -2 bytes"),
        (set_byte(5, 3), "a value of -2 bytes"),
        (set_byte(5, 100), "ends within a record"),
        (set_byte(8, 1), "-1 headers"),
        (set_byte(8, 4), "2 headers"),
        (lambda payload: payload.append(0), "1 bytes after the last record"),
        (lambda payload: payload.__delitem__(slice(7, None)), "ends within a record"),
        (lambda payload: payload.__setitem__(slice(0, 1), b"\xff" * 11), "longer than 64 bits"),
        (lambda payload: payload.__setitem__(slice(2, 3), b"\xfe" + b"\xff" * 8 + b"\x01"), "leaves 64 bits"),
    ],
)
def test_the_reason_tells_what_is_wrong_with_a_row(alter: Callable[[bytearray], None], reason: str) -> None:
    with pytest.raises(CorruptBatchError, match=reason):
        decode(rebuilt(ONE, alter))


def test_headers_of_rows_are_checked() -> None:
    records = [Record(0, 5, None, None, (("key", b"v"),))]
    # ... headers 6, key size 7, key 8-10, value size 11, value 12
    for position, value, reason in ((8, 0xFF, "not UTF-8"), (7, 99, "key of -50 bytes"), (11, 3, "value of -2 bytes")):
        with pytest.raises(CorruptBatchError, match=reason):
            decode(rebuilt(records, set_byte(position, value)))


def test_a_record_count_that_cannot_fit_is_refused_before_anything_is_read() -> None:
    batch = bytearray(encode_rows(ONE))
    struct.pack_into(">i", batch, 23, 2**31 - 1)
    struct.pack_into(">i", batch, 57, 2**31 - 1)
    with pytest.raises(CorruptBatchError, match="cannot fit into 9 bytes"):
        decode(sealed(bytes(batch)))


TIMES = pa.array([1, 2], pa.int64())
BLOBS = pa.array([b"a", b"b"])


def columnar_batch(message: bytes, count: int = 2, last_offset_delta: int = 1, attributes: int = 0x80) -> bytes:
    """A batch around any Arrow message."""
    front = bytearray(encode_rows(ONE)[:HEADER_BYTES])
    struct.pack_into(">hi", front, 21, attributes, last_offset_delta)
    struct.pack_into(">i", front, 57, count)
    return sealed(bytes(front) + message)


def message(*columns: pa.Array, options: pa.ipc.IpcWriteOptions | None = None) -> bytes:
    names = [str(index) for index in range(len(columns))]
    batch = pa.RecordBatch.from_arrays(list(columns), names)
    if options is None:
        return batch.serialize().to_pybytes()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
        stream.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()  # the schema
    serialized: bytes = reader.read_next_message().serialize().to_pybytes()
    return serialized


def header_lists(key: str | None) -> pa.Array:
    kind = pa.list_(pa.struct([("key", pa.utf8()), ("value", pa.binary())]))
    return pa.array([[{"key": key, "value": b""}], []], kind)


def deltas(*values: int | None) -> pa.Array:
    return pa.array(values, pa.int32())


GOOD = message(TIMES, BLOBS, BLOBS)


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        (columnar_batch(b"\xff\xff\xff\xff"), "2 records cannot fit into 4 bytes"),
        (columnar_batch(b"\xff\xff\xff\xfe" + GOOD[4:]), "not an Arrow message"),
        (columnar_batch(GOOD + b"\0"), "an Arrow body of"),
        (columnar_batch(GOOD[:-8]), "an Arrow body of"),
        (columnar_batch(pa.schema([("a", pa.int8())]).serialize().to_pybytes()), "type 1, not a record batch"),
        (columnar_batch(GOOD, count=1), "2 rows, the header says 1"),
        (columnar_batch(GOOD, last_offset_delta=4), "2 rows without offset deltas up to 4"),
        (columnar_batch(message(TIMES, BLOBS)), "columns: "),
        (columnar_batch(message(pa.array([1, None], pa.int64()), BLOBS, BLOBS)), "a timestamp is null"),
        (
            columnar_batch(
                message(TIMES, BLOBS, pa.array([b"x" * 10_000] * 2), options=pa.ipc.IpcWriteOptions(compression="zstd"))
            ),
            "Arrow's buffer compression is not part of the format",
        ),
        (
            columnar_batch(message(TIMES, BLOBS, BLOBS, header_lists(None)), attributes=0x180),
            "a record header without a key",
        ),
        (
            columnar_batch(message(TIMES, BLOBS, BLOBS, deltas(0, None)), attributes=0x280),
            "an offset delta is null",
        ),
        *(
            (
                columnar_batch(message(TIMES, BLOBS, BLOBS, deltas(*pair)), last_offset_delta=5, attributes=0x280),
                "offset deltas do not rise from 0 to 5",
            )
            for pair in ((1, 1), (3, 2), (-1, 2), (0, 6))
        ),
    ],
)
def test_the_reason_tells_what_is_wrong_with_columns(batch: bytes, reason: str) -> None:
    with pytest.raises(CorruptBatchError, match=reason):
        decode(batch)


def test_the_columns_of_these_tests_are_sound_where_they_are_not_damaged() -> None:
    assert decode(columnar_batch(GOOD)).records() == [Record(0, 1, b"a", b"a"), Record(1, 2, b"b", b"b")]
    spread = columnar_batch(message(TIMES, BLOBS, BLOBS, deltas(0, 5)), last_offset_delta=5, attributes=0x280)
    assert [record.offset for record in decode(spread).records()] == [0, 5]
    named = columnar_batch(message(TIMES, BLOBS, BLOBS, header_lists("k")), attributes=0x180)
    assert decode(named).records()[0].headers == (("k", b""),)


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_the_error_names_the_codec(codec: Codec) -> None:
    header = encode_rows(RECORDS, codec=codec)[:HEADER_BYTES]
    assert read_header(header).codec is codec
    with pytest.raises(CorruptBatchError, match=f"{codec.name.lower()}: "):
        decode(sealed(header + b"this is not a frame"))
