"""A scan of a payload knows what `decode` knows, refuses what `decode` refuses, and does without Arrow where it can."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

import lz4.frame
import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from test_records_corruption import BATCHES, damage, sealed

from highwater.records import (
    Codec,
    CorruptBatchError,
    Record,
    decode,
    encode_lists,
    encode_rows,
    read_header,
    retain,
)
from highwater.records.codecs import Lz4Front, Scratch, compress, decompress, plain_lz4_bytes
from highwater.records.column_frame import ColumnFrame, read_column_frame
from highwater.records.errors import CorruptPayloadError, PayloadTooLargeError
from highwater.records.header import CHECKED_FROM, HEADER_BYTES
from highwater.records.limits import MAX_BATCH_HEADERS, MAX_RECORD_HEADERS
from highwater.records.payload_scan import PayloadScan, scan_payload
from highwater.records.varint import encode_varint

NOW = 1_800_000_000_000


def scan(batch: bytes) -> PayloadScan:
    return scan_payload(batch, 0, read_header(batch))


def frame_of(batch: bytes) -> ColumnFrame | None:
    """Of a batch that is not compressed."""
    payload = batch[HEADER_BYTES:]
    return read_column_frame(lambda _: payload, len(payload), read_header(batch))


def assert_same(batch: bytes) -> None:
    found, table = scan(batch), decode(batch, verify_crc=False).to_arrow()
    assert found.offsets.tolist() == table.column(0).to_pylist()
    assert found.timestamps.tolist() == table.column(1).to_pylist()
    assert found.keyless == table.column(2).null_count


@pytest.mark.parametrize("batch", BATCHES)
def test_a_scan_knows_what_decode_knows(batch: bytes) -> None:
    assert_same(batch)
    keep = [index % 3 != 1 for index in range(read_header(batch).record_count)]
    assert_same(retain(batch, 0, np.array(keep)))


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 63, 64, 65, 1000])
@pytest.mark.parametrize("keys", ["none", "some", "all"])
def test_the_columns_that_our_encoder_writes_are_read_without_arrow(count: int, keys: str) -> None:
    given_keys = [b"k" * index if keys == "all" or index % 3 else None for index in range(count)]
    batch = encode_lists(range(NOW, NOW + count), None if keys == "none" else given_keys, [b"v", *[None] * (count - 1)])
    frame = frame_of(batch)
    assert frame is not None
    assert frame.timestamps.tolist() == list(range(NOW, NOW + count))
    assert_same(batch)


@given(data=st.data())
def test_what_a_scan_takes_decode_takes_and_the_other_way_round(data: st.DataObject) -> None:
    original = data.draw(st.sampled_from(BATCHES))
    batch = sealed(data.draw(damage(original, start=CHECKED_FROM).filter(lambda one: len(one) >= HEADER_BYTES)))
    try:
        header = read_header(batch)
    except CorruptBatchError:
        return
    try:
        scan_payload(batch, 0, header, max_payload_bytes=1 << 20)
    except CorruptBatchError:
        with pytest.raises(CorruptBatchError):
            decode(batch, max_payload_bytes=1 << 20)
    else:
        decode(batch, max_payload_bytes=1 << 20).records()
        assert_same(batch)


PLAIN = encode_lists([NOW, NOW + 1, NOW + 2], [b"a", None, b"c"], [b"1", b"22", None])


@given(at=st.integers(HEADER_BYTES, len(PLAIN) - 1), value=st.integers(0, 255))
def test_each_byte_of_a_frame_is_judged_as_arrow_judges_it(at: int, value: int) -> None:
    changed = sealed(PLAIN[:at] + bytes([value]) + PLAIN[at + 1 :])
    if frame_of(changed) is not None:
        assert_same(changed)


def lz4_columns(count: int = 300) -> bytes:
    return encode_lists(
        range(NOW, NOW + count), None, [b"value-%d" % number for number in range(count)], codec=Codec.LZ4
    )


@given(data=st.data())
def test_the_front_of_a_frame_is_what_readers_expand(data: st.DataObject) -> None:
    original = lz4_columns(data.draw(st.sampled_from([1, 3, 300])))
    frame = memoryview(data.draw(damage(original, start=HEADER_BYTES)))[HEADER_BYTES:]
    size = plain_lz4_bytes(frame)
    if size is None or size > 1 << 20:
        return
    try:
        whole = decompress(Codec.LZ4, frame, 1 << 20)
    except CorruptPayloadError:
        whole = None
    try:
        front = bytes(Lz4Front(Scratch(), frame, size).first(size))
    except CorruptPayloadError:
        assert whole is None
    else:
        assert whole is None or whole == front


def test_the_values_of_columns_are_not_expanded() -> None:
    values = [bytes([number % 251]) * 1000 for number in range(4000)]
    batch = encode_lists(range(4000), None, values, codec=Codec.LZ4)
    asked = []

    def first(count: int) -> memoryview:
        asked.append(count)
        return front.first(count)

    payload = memoryview(batch)[HEADER_BYTES:]
    size = plain_lz4_bytes(payload)
    assert size is not None
    front = Lz4Front(Scratch(), payload, size)
    assert read_column_frame(first, size, read_header(batch)) is not None
    assert max(asked) < 100_000
    assert front._filled < 600_000
    assert size > 4_000_000
    assert_same(batch)


@pytest.mark.parametrize(
    "behind", [b"\0", lz4.frame.compress(b""), lz4.frame.compress(b"", store_size=False), b"\x50\x2a\x4d\x18\0\0\0\0"]
)
def test_nothing_may_stand_behind_a_frame(behind: bytes) -> None:
    for batch in (
        sealed(lz4_columns() + behind),
        sealed(lz4_columns()[:HEADER_BYTES] + behind + lz4_columns()[HEADER_BYTES:]),
    ):
        for reader in (decode, scan):
            with pytest.raises(CorruptBatchError):
                reader(batch)


def test_scratch_is_written_over_and_what_was_found_is_not() -> None:
    first = scan(lz4_columns())
    expected = first.timestamps.tolist()
    scan(encode_lists([1] * 500, None, [b"other"] * 500, codec=Codec.LZ4))
    assert first.timestamps.tolist() == expected
    scratch = Scratch()
    assert scratch.of(100) is scratch.of(50)
    assert len(scratch.of(Scratch.MOST_BYTES + 1)) == Scratch.MOST_BYTES + 1
    assert len(scratch.of(Scratch.MOST_BYTES)) == Scratch.MOST_BYTES


def empty_headers(count: int, codec: Codec = Codec.ZSTD) -> bytes:
    """One row with so many empty headers."""
    body = b"\0\0\0" + encode_varint(-1) + encode_varint(-1) + encode_varint(count) + b"\0\1" * count
    payload = encode_varint(len(body)) + body
    front = encode_rows([Record(0, NOW, None, None)], codec=codec)[:HEADER_BYTES]
    return sealed(front + bytes(compress(codec, payload)))


def test_six_million_empty_headers_are_refused_before_they_are_made() -> None:
    batch = empty_headers(6_000_000)
    assert len(batch) < 2_000
    tracemalloc.start()
    try:
        for reader in (decode, scan):
            with pytest.raises(CorruptBatchError, match=f"6000000 headers, the limit is {MAX_RECORD_HEADERS}"):
                reader(batch)
        assert tracemalloc.get_traced_memory()[1] < 40 << 20  # the payload, and no object a header
    finally:
        tracemalloc.stop()


def test_the_headers_of_a_record_and_of_a_batch_are_bounded() -> None:
    for encode in (
        encode_rows,
        lambda records: encode_lists(
            [NOW] * len(records), None, [b"v"] * len(records), [record.headers for record in records]
        ),
    ):
        most = [Record(0, NOW, None, b"v", (("h", None),) * MAX_RECORD_HEADERS)]
        assert len(decode(encode(most)).records()[0].headers) == MAX_RECORD_HEADERS
        assert_same(encode(most))
        full = MAX_BATCH_HEADERS // MAX_RECORD_HEADERS
        for bad, limit in (
            ([most[0]._replace(headers=(*most[0].headers, ("h", None)))], MAX_RECORD_HEADERS),
            (most * (full + 1), MAX_BATCH_HEADERS),
        ):
            for reader in (decode, scan):
                with pytest.raises(CorruptBatchError, match=f"limit.* is {limit}"):
                    reader(encode(bad))


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_a_payload_is_not_expanded_beyond_the_limit(codec: Codec) -> None:
    batch = encode_rows([Record(0, NOW, None, bytes(8 << 20))], codec=codec)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatchError, match="the limit is 1048576") as refused:
            scan_payload(batch, 0, read_header(batch), max_payload_bytes=1 << 20)
        assert isinstance(refused.value.__cause__, PayloadTooLargeError)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_zstd_frame_of_undeclared_size_stops_one_block_behind_the_limit() -> None:
    whole = zstandard.ZstdCompressor(write_content_size=False)
    frame = whole.compress(bytes(64 << 20))
    assert zstandard.frame_content_size(frame) == -1
    front = encode_rows([Record(0, NOW, None, b"v")], codec=Codec.ZSTD)[:HEADER_BYTES]
    batch = sealed(front + frame)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatchError, match="the limit is 1048576"):
            scan_payload(batch, 0, read_header(batch), max_payload_bytes=1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_gzip_members_without_end_are_refused() -> None:
    member = bytes(compress(Codec.GZIP, b""))
    front = encode_rows([Record(0, NOW, None, b"v")], codec=Codec.GZIP)[:HEADER_BYTES]
    with pytest.raises(CorruptBatchError, match="members"):
        scan(sealed(front + member * 1_000))


def test_a_readers_memory_error_is_a_corrupt_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> bytes:
        raise MemoryError

    batch = encode_rows([Record(0, NOW, None, b"v")], codec=Codec.ZSTD)
    monkeypatch.setattr("highwater.records.batch.decompress", no_memory)
    monkeypatch.setattr("highwater.records.payload_scan.decompress", no_memory)
    for reader in (decode, scan):
        with pytest.raises(CorruptBatchError, match="not enough memory"):
            reader(batch)


def test_a_scan_of_what_producers_send_loads_no_arrow() -> None:
    batches = [encode_rows([Record(0, NOW, b"k", b"v")], codec=Codec.LZ4), PLAIN]
    code = (
        "import sys; from highwater.records import read_header\n"
        "from highwater.records.payload_scan import scan_payload\n"
        f"for batch in {batches!r}: scan_payload(batch, 0, read_header(batch))\n"
        "print('pyarrow' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
