"""Offsets by timestamp, the earliest, the latest, the newest."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from log_storage_batches import batch, lead, make_log

from highwater.log_storage.config import LogConfig
from highwater.log_storage.log.timestamp_lookup import EARLIEST, LATEST, MAX_TIMESTAMP, FoundOffset
from highwater.records import encode_columns

SMALL = LogConfig(segment_bytes=1024, index_interval_bytes=100)


def test_offsets_by_timestamp(tmp_path: Path) -> None:
    log = make_log(tmp_path, SMALL)
    for number in range(30):
        lead(log, batch(5, timestamp=1_000 + 100 * number, value=b"x" * 30), epoch=1 + number // 10)
    assert log.reader.list_offset(LATEST) == FoundOffset(150, -1, 3)
    assert log.reader.list_offset(LATEST, 50).offset == 50
    assert log.reader.list_offset(EARLIEST) == FoundOffset(0, -1, 1)
    assert log.reader.list_offset(0) == FoundOffset(0, 1_000, 1)
    assert log.reader.list_offset(1_303) == FoundOffset(18, 1_303, 1)
    assert log.reader.list_offset(1_305) == FoundOffset(20, 1_400, 1)
    assert log.reader.list_offset(3_904) == FoundOffset(149, 3_904, 3)
    assert log.reader.list_offset(3_905) == FoundOffset(-1, -1, -1)
    assert log.reader.list_offset(1_305, 20) == FoundOffset(-1, -1, -1)
    assert log.reader.list_offset(MAX_TIMESTAMP) == FoundOffset(149, 3_904, 3)
    assert log.reader.list_offset(MAX_TIMESTAMP, 50) == FoundOffset(49, 1_904, 1)


def test_the_earliest_offset_is_the_log_start(tmp_path: Path) -> None:
    """Which may be inside a segment, and inside a batch; its epoch is that of its batch."""
    log = make_log(tmp_path)
    for epoch in (1, 4):
        lead(log, batch(5, timestamp=1_000 * epoch), epoch=epoch)
    log.offsets.raise_high_watermark(10)
    for start, epoch in ((3, 1), (7, 4)):
        log.log_start.raise_to(start)
        assert log.segments[0].base_offset == 0
        assert log.reader.list_offset(EARLIEST) == FoundOffset(start, -1, epoch)
        assert log.reader.list_offset(0) == FoundOffset(start, 1_000 * epoch + start % 5, epoch)


def test_timestamps_out_of_order(tmp_path: Path) -> None:
    log = make_log(tmp_path, SMALL)
    stamps = [500, 900, 100, 900, 300, 901, 5, 902, 1, 2, 3]
    for timestamp in stamps:
        lead(log, batch(timestamp=timestamp, value=b"x" * 90))
    for asked in range(0, 904):
        expected = next((offset for offset, stamp in enumerate(stamps) if stamp >= asked), -1)
        assert log.reader.list_offset(asked).offset == expected
    assert log.reader.list_offset(MAX_TIMESTAMP).offset == 7
    assert log.reader.list_offset(MAX_TIMESTAMP, 5).offset == 1


def test_the_newest_below_the_high_watermark_is_found_without_a_walk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest of all is not committed yet: a large active segment is not read for that."""
    log = make_log(tmp_path, LogConfig(segment_bytes=1 << 30))
    for number in range(2_000):
        lead(log, batch(timestamp=10_000 + number, value=b"x" * 2_000))
    read_bytes = 0
    pread = os.pread

    def observed(descriptor: int, size: int, position: int) -> bytes:
        nonlocal read_bytes
        read_bytes += size
        return pread(descriptor, size, position)

    monkeypatch.setattr(os, "pread", observed)
    for bound in (1_990, 1_500, 700):
        assert log.reader.list_offset(MAX_TIMESTAMP, bound) == FoundOffset(bound - 1, 10_000 + bound - 1, 1)
    assert read_bytes < log.size_bytes / 10


def test_lookup_in_columns(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    table = pa.table({"timestamp": [30, 10, 20], "key": [None, b"k", b"k"], "value": [b"a", b"b", None]})
    lead(log, encode_columns(table))
    assert log.reader.list_offset(15) == FoundOffset(0, 30, 1)
    assert log.reader.list_offset(MAX_TIMESTAMP) == FoundOffset(0, 30, 1)
    log.offsets.high_watermark = 3
    log.log_start.raise_to(1)
    assert log.reader.list_offset(15) == FoundOffset(2, 20, 1)
    assert log.reader.list_offset(MAX_TIMESTAMP) == FoundOffset(2, 20, 1)
