"""What a batch may claim and expand to: a header is believed up to what its payload can hold."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from highwater.client.scan.columns import header_is_enough, scan_schema
from highwater.errors import ErrorCode
from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.log.append_validation import check_produced
from highwater.records import Codec, CorruptBatchError, Record, decode, encode_lists, encode_rows, read_header
from highwater.records.header import CHECKED_FROM, HEADER_BYTES, crc32c
from highwater.records.limits import most_records
from highwater.replica_manager.partition.topic_config import TopicConfig
from highwater.replica_manager.requests.batch_check import check

NOW = 1_800_000_000_000
CONFIG = TopicConfig(min_insync_replicas=1, max_message_bytes=1 << 20, rows_only=False, compacted=False)
LARGEST = 2**31 - 1


def sealed(batch: bytes, records: int | None = None) -> bytes:
    """The batch with the length and CRC that make its outside right, and so many records claimed."""
    changed = bytearray(batch)
    struct.pack_into(">i", changed, 8, len(changed) - 12)
    if records is not None:
        struct.pack_into(">i", changed, 23, records - 1)
        struct.pack_into(">i", changed, 57, records)
    struct.pack_into(">I", changed, 17, crc32c(bytes(changed[CHECKED_FROM:])))
    return bytes(changed)


ROWS = {codec: encode_rows([Record(0, NOW, None, b"value")], codec=codec) for codec in Codec}
COLUMNS = {codec: encode_lists([NOW], None, [b"value"], codec=codec) for codec in Codec}
CLAIMS = [
    sealed(ROWS[Codec.NONE][:HEADER_BYTES], LARGEST),
    sealed(COLUMNS[Codec.ZSTD][:HEADER_BYTES], LARGEST),
    *(sealed(batch, LARGEST) for batch in (*ROWS.values(), *COLUMNS.values())),
]


@pytest.mark.parametrize("batch", CLAIMS)
def test_a_batch_that_claims_more_records_than_it_can_hold_is_refused_by_all(batch: bytes) -> None:
    checked = check(batch, CONFIG, NOW)
    assert checked.error is ErrorCode.CORRUPT_MESSAGE
    assert f"claims {LARGEST} records" in checked.message
    header = read_header(batch)
    with pytest.raises(LogError, match=f"claims {LARGEST} records") as refused:
        check_produced(header, LogConfig())
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
    with pytest.raises(CorruptBatchError, match=f"{LARGEST} records cannot fit into"):
        decode(batch)
    assert not header_is_enough(header, scan_schema(["offset"]))


@pytest.mark.parametrize("codec", Codec)
def test_what_a_payload_holds_is_below_the_bound(codec: Codec) -> None:
    for count in (1, 2, 1000, 100_000):
        rows = encode_rows([Record(0, NOW, None, None)] * count, codec=codec)
        columns = encode_lists([NOW] * count, None, [None] * count, codec=codec)
        for batch in (rows, columns):
            header = read_header(batch)
            assert count <= most_records(header)
            assert most_records(replace(header, length=header.length - (header.size_bytes - HEADER_BYTES))) == 0
