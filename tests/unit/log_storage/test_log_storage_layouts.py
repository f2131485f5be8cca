"""The files of a log, byte for byte as Kafka documents them; its row batches as an independent decoder reads them."""

from __future__ import annotations

import gc
import struct
import warnings
from pathlib import Path

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.memory_records import MemoryRecords
from log_storage_batches import batch, lead, make_log

from highwater.log_storage.compaction.cleaner_job import PassLimits
from highwater.log_storage.compaction.cleaner_process import run_pass
from highwater.log_storage.compaction.cleaner_selection import CleanableRange
from highwater.log_storage.compaction.segment_swap import clean_job, swap_in
from highwater.log_storage.config import LogConfig
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.model.partition import PartitionKey
from highwater.records import Codec, Record, encode_rows


def test_a_batch_in_a_segment(tmp_path: Path) -> None:
    """https://kafka.apache.org/documentation/#recordbatch, field by field; varints by hand."""
    log = make_log(tmp_path)
    records = [Record(0, 1_000, b"key", b"value", (("h", b"x"),)), Record(0, 1_003, None, None, ())]
    lead(log, encode_rows(records, producer_id=9, producer_epoch=2, base_sequence=0), epoch=5)
    first = bytes([0, 0, 0, 3 << 1]) + b"key" + bytes([5 << 1]) + b"value" + bytes([1 << 1, 1 << 1]) + b"h\x02x"
    second = bytes([0, 3 << 1, 1 << 1, 1, 1, 0])
    body = b"".join(bytes([len(record) << 1]) + record for record in (first, second))
    checked = struct.pack(">hiqqqhii", 0, 1, 1_000, 1_003, 9, 2, 0, 2) + body
    content = (tmp_path / "00000000000000000000.log").read_bytes()
    crc = content[17:21]
    assert content == struct.pack(">qiib", 0, 9 + len(checked), 5, 2) + crc + checked
    assert DefaultRecordBatch(content).validate_crc()


def test_every_file_of_a_log(tmp_path: Path) -> None:
    """Read with nothing of ours: where batches stand, and so what the indexes must hold (an entry behind more than
    `index.interval.bytes`, and the largest timestamp at the end), where leader epochs begin."""
    interval = 400
    log = make_log(tmp_path, LogConfig(segment_bytes=2_000, index_interval_bytes=interval))
    timestamps = [1_000, 1_500, 1_200, 1_600, 1_600, 1_700, 1_100, 1_900]
    for number in range(24):
        timestamp = timestamps[number % 8] + 1_000 * (number // 8)
        lead(log, batch(2, value=b"x" * 80, timestamp=timestamp), epoch=1 + number // 10)
    log.close()
    names = {path.name for path in tmp_path.iterdir()}
    bases = [segment.base_offset for segment in log.segments]
    assert len(bases) > 2
    assert names == {
        "leader-epoch-checkpoint",
        *(f"{base:020d}{suffix}" for base in bases for suffix in (".log", ".index", ".timeindex")),
        *(f"{base:020d}.snapshot" for base in [*bases[1:], log.log_end_offset]),
    }
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n3\n1 0\n2 20\n3 40\n"
    expected = 0
    for base in bases:
        content = (tmp_path / f"{base:020d}.log").read_bytes()
        index, time_index, position, since, largest = b"", b"", 0, 0, (-1, 0)
        assert base == expected
        while position < len(content):
            offset, length = struct.unpack_from(">qi", content, position)
            (delta,) = struct.unpack_from(">i", content, position + 23)
            (newest,) = struct.unpack_from(">q", content, position + 35)
            assert offset == expected
            if newest > largest[0]:
                largest = (newest, offset + delta - base)
            if since > interval:
                index += struct.pack(">ii", offset + delta - base, position)
                if not time_index or largest[0] > struct.unpack_from(">q", time_index, len(time_index) - 12)[0]:
                    time_index += struct.pack(">qi", *largest)
                since = 0
            since += 12 + length
            position += 12 + length
            expected = offset + delta + 1
        if not time_index or largest[0] > struct.unpack_from(">q", time_index, len(time_index) - 12)[0]:
            time_index += struct.pack(">qi", *largest)
        assert (tmp_path / f"{base:020d}.index").read_bytes() == index
        assert (tmp_path / f"{base:020d}.timeindex").read_bytes() == time_index
    assert expected == log.log_end_offset


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_rows_on_disk_are_read_by_an_independent_decoder(tmp_path: Path, codec: Codec) -> None:
    """Of several segments, before compaction and after it."""
    config = LogConfig(segment_bytes=1_024, index_interval_bytes=200)
    log = make_log(tmp_path, config)
    expected: dict[int, tuple[int, bytes | None, bytes | None, list[tuple[str, bytes]]]] = {}
    for number in range(60):
        records = [
            Record(
                0,
                5_000 + number,
                b"k%d" % (key % 4),
                None if key == 3 else b"value %d " % number * 20,
                (("number", b"%d" % number),),
            )
            for key in range(number, number + 3)
        ]
        base = log.log_end_offset
        encoded = encode_rows(records, codec=codec, producer_id=1, producer_epoch=0, base_sequence=base)
        lead(log, encoded, epoch=1 + number // 5)
        for delta, record in enumerate(records):
            headers = list(record.headers)
            expected[base + delta] = (record.timestamp, record.key, record.value, headers)
    log.offsets.raise_high_watermark(log.log_end_offset)
    log.flush()
    assert len(log.segments) > 2
    assert _read_by_aiokafka(tmp_path) == expected
    job, present = clean_job(log, CleanableRange(0, log.segments[-1].base_offset), 0)
    run_pass(job, PassLimits(), lambda group: swap_in(log, group, present), lambda _: None)
    log.remove_deleted()
    cleaned = _read_by_aiokafka(tmp_path)
    assert len(cleaned) < len(expected)
    assert cleaned.items() <= expected.items()
    assert {key for _, key, _, _ in cleaned.values()} == {b"k0", b"k1", b"k2", b"k3"}


def _read_by_aiokafka(
    directory: Path,
) -> dict[int, tuple[int, bytes | None, bytes | None, list[tuple[str, bytes]]]]:
    found = {}
    for path in sorted(directory.glob("*.log")):
        theirs = MemoryRecords(path.read_bytes())
        while (batch_read := theirs.next_batch()) is not None:
            assert batch_read.validate_crc()
            for record in batch_read:
                found[record.offset] = (record.timestamp, record.key, record.value, list(record.headers))
    return found


def test_no_file_is_left_open(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        manager = LogManager([tmp_path], LogConfig(), broker_id=0)
        manager.load()
        for partition in range(3):
            manager.create("t", PartitionKey(bytes(16), partition), {})
            lead(manager.logs.get(PartitionKey(bytes(16), partition)).online(), batch())
        manager.close()
        before = len(list(Path("/proc/self/fd").iterdir()))
        del manager
        gc.collect()
        assert len(list(Path("/proc/self/fd").iterdir())) < before
