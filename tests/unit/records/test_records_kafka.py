"""Row batches against aiokafka, an independent implementation of the format: theirs decodes ours, ours theirs."""

import aiokafka.codec
import pytest
from aiokafka.record.default_records import (
    DefaultRecordBatch,
    DefaultRecordBatchBuilder,
    _DefaultRecordBatchBuilderPy,
    _DefaultRecordBatchPy,
)
from hypothesis import given
from hypothesis import strategies as st

from highwater.records import Codec, Record, TimestampType, decode, encode_rows
from highwater.records.codecs import compress, decompress

CODECS = list(Codec)
RECORDS = st.lists(
    st.tuples(
        st.integers(0, 2**41),
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=300),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=20,
).map(lambda rows: [Record(offset, *row) for offset, row in enumerate(rows)])
SAMPLE = [
    Record(0, 1_700_000_000_000, b"key", b"value"),
    Record(1, 1_700_000_000_500, None, b"v" * 5_000, (("trace", b"\x00\xff"), ("empty", b""), ("null", None))),
    Record(2, 1_699_999_999_000, b"tombstone", None),
    Record(3, 1_700_000_090_000, b"", b""),
]


def decoded_by_aiokafka(batch: bytes, reader=DefaultRecordBatch) -> list[Record]:
    theirs = reader(batch)
    assert theirs.validate_crc()
    return [Record(r.offset, r.timestamp, r.key, r.value, tuple((k, v) for k, v in r.headers)) for r in theirs]


def encoded_by_aiokafka(records: list[Record], codec: Codec, builder=DefaultRecordBatchBuilder) -> bytes:
    theirs = builder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=77,
        producer_epoch=3,
        base_sequence=11,
        batch_size=1 << 30,
    )
    for offset, timestamp, key, value, headers in records:
        assert theirs.append(offset, timestamp, key, value, list(headers)) is not None
    return bytes(theirs.build())


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("reader", [DefaultRecordBatch, _DefaultRecordBatchPy])
def test_theirs_decodes_ours(codec: Codec, reader: type) -> None:
    batch = encode_rows(SAMPLE, codec=codec, base_offset=500, producer_id=9, producer_epoch=1, base_sequence=4)
    expected = [record._replace(offset=500 + record.offset) for record in SAMPLE]
    assert decoded_by_aiokafka(batch, reader) == expected
    theirs = reader(batch)
    assert (theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == (9, 1, 4)
    assert (theirs.base_offset, theirs.next_offset, theirs.last_offset_delta) == (500, 504, 3)
    assert (theirs.first_timestamp, theirs.max_timestamp) == (1_700_000_000_000, 1_700_000_090_000)
    assert theirs.compression_type == codec


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("builder", [DefaultRecordBatchBuilder, _DefaultRecordBatchBuilderPy])
def test_ours_decodes_theirs(codec: Codec, builder: type) -> None:
    batch = decode(encoded_by_aiokafka(SAMPLE, codec, builder))
    assert batch.records() == SAMPLE
    header = batch.header
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, 11)
    assert (header.record_count, header.last_offset_delta, header.codec) == (4, 3, codec)
    assert batch.to_arrow()["value"].to_pylist() == [record.value for record in SAMPLE]


@given(records=RECORDS, codec=st.sampled_from(CODECS))
def test_any_records_both_ways(records: list[Record], codec: Codec) -> None:
    assert decoded_by_aiokafka(encode_rows(records, codec=codec)) == records
    assert decode(encoded_by_aiokafka(records, codec)).records() == records


@given(records=RECORDS)
def test_uncompressed_batches_are_equal_byte_for_byte(records: list[Record]) -> None:
    ours = encode_rows(records, producer_id=77, producer_epoch=3, base_sequence=11, leader_epoch=-1)
    theirs = encoded_by_aiokafka(records, Codec.NONE)
    # They leave the leader epoch, which no CRC covers, at 0 and write the CRC over the same bytes.
    assert ours[:12] + ours[16:] == theirs[:12] + theirs[16:]


def test_log_append_time_is_understood() -> None:
    batch = encode_rows(SAMPLE, timestamp_type=TimestampType.LOG_APPEND_TIME)
    assert {record.timestamp for record in decoded_by_aiokafka(batch)} == {1_700_000_090_000}


def test_offsets_with_gaps_as_after_kafkas_compaction() -> None:
    gaps = [record._replace(offset=offset) for record, offset in zip(SAMPLE, (0, 2, 7, 300), strict=True)]
    batch = decode(encoded_by_aiokafka(gaps, Codec.NONE))
    assert batch.records() == gaps
    assert (batch.header.last_offset_delta, batch.header.record_count, batch.header.next_offset) == (300, 4, 301)
    assert batch.to_arrow()["offset"].to_pylist() == [0, 2, 7, 300]


PAYLOAD = b"".join(b'{"id":%d,"name":"record %d"}' % (i, i % 50) for i in range(20_000))
THEIR_ENCODERS = {
    "gzip": (Codec.GZIP, aiokafka.codec.gzip_encode),
    "snappy in xerial's framing": (Codec.SNAPPY, aiokafka.codec.snappy_encode),
    "raw snappy": (Codec.SNAPPY, lambda data: bytes(aiokafka.codec.snappy_encode(data, xerial_compatible=False))),
    "lz4": (Codec.LZ4, aiokafka.codec.lz4_encode),
    "zstd": (Codec.ZSTD, aiokafka.codec.zstd_encode),
}
THEIR_DECODERS = {
    Codec.GZIP: aiokafka.codec.gzip_decode,
    Codec.SNAPPY: aiokafka.codec.snappy_decode,
    Codec.LZ4: aiokafka.codec.lz4_decode,
    Codec.ZSTD: aiokafka.codec.zstd_decode,
}


@pytest.mark.parametrize("name", THEIR_ENCODERS)
@pytest.mark.parametrize("payload", [b"", b"x", PAYLOAD], ids=["empty", "one byte", "many blocks"])
def test_our_codecs_expand_what_theirs_compress(name: str, payload: bytes) -> None:
    codec, encode = THEIR_ENCODERS[name]
    assert decompress(codec, memoryview(encode(payload))) == payload


@pytest.mark.parametrize("codec", THEIR_DECODERS)
@pytest.mark.parametrize("payload", [b"x", PAYLOAD, PAYLOAD * 3], ids=["one byte", "many blocks", "more than 1 MiB"])
def test_their_codecs_expand_what_ours_compress(codec: Codec, payload: bytes) -> None:
    assert THEIR_DECODERS[codec](bytes(compress(codec, payload))) == payload


def test_lz4_blocks_are_independent_as_kafkas_java_reader_demands() -> None:
    version_and_flags = bytes(compress(Codec.LZ4, PAYLOAD))[4]
    assert version_and_flags >> 6 == 1
    assert version_and_flags & 0x20
