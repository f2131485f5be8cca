"""One log: appending in both roles, reading, looking up, cutting."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from log_storage_batches import batch, follow, header_of, lead, make_log, produced, read_all

from highwater.errors import ErrorCode
from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.log.log import Appended
from highwater.log_storage.recovery.recovery import Checkpointed
from highwater.model.log_state import LogState
from highwater.records import Record, decode, encode_rows, retain

SMALL = LogConfig(segment_bytes=1024, index_interval_bytes=100)


def refused(code: ErrorCode) -> Any:
    return pytest.raises(LogError, check=lambda error: error.code is code)


# -- as leader -------------------------------------------------------------------------------------------------------


def test_a_leader_assigns_offsets_and_epoch(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    given = batch(3)
    assert lead(log, given, epoch=4) == Appended(0, 2, False, -1)
    assert lead(log, batch(2) + batch(1), epoch=4) == Appended(3, 5, False, -1)
    assert log.state == LogState(6, 4, 0, 0)
    headers = read_all(log)
    assert [(header.base_offset, header.partition_leader_epoch) for header in headers] == [(0, 4), (3, 4), (5, 4)]
    stored = log.read(0, -1, 1)
    assert stored[16:] == given[16:]  # the batch is not touched behind its stamp
    assert [record.offset for record in decode(stored).records()] == [0, 1, 2]


def test_the_expected_offset_must_be_the_log_end(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    lead(log, batch(3))
    for expected in (0, 2, 4):
        with refused(ErrorCode.OFFSET_MISMATCH):
            log.append_as_leader(batch(), 1, expected, 0)
        with refused(ErrorCode.OFFSET_MISMATCH):
            log.append_as_follower(batch(base_offset=3, epoch=1), 1, expected, -1, -1, 0)
    assert log.log_end_offset == 3


@pytest.mark.parametrize("position", [17, 25, 60, -1])
def test_a_damaged_batch_is_refused(tmp_path: Path, position: int) -> None:
    log = make_log(tmp_path)
    damaged = bytearray(batch(3))
    damaged[position] ^= 1
    with refused(ErrorCode.CORRUPT_MESSAGE):
        lead(log, batch() + bytes(damaged))
    with refused(ErrorCode.CORRUPT_MESSAGE):
        lead(log, batch()[:-1])
    assert log.state == LogState(0, -1, 0, 0)
    assert log.size_bytes == 0


def test_limits_of_a_produced_batch(tmp_path: Path) -> None:
    log = make_log(tmp_path, LogConfig(message_max_bytes=1024))
    with refused(ErrorCode.MESSAGE_TOO_LARGE):
        lead(log, batch(value=b"x" * 1024))
    follow(log, batch(value=b"x" * 1024, epoch=1))  # a follower takes what the leader took
    for bad in (
        encode_rows([Record(0, 1, b"k", b"v", ())], control=True),
        encode_rows([Record(0, 1, b"k", b"v", ())], transactional=True),
        retain(batch(3), 0, np.array([True, False, True])),
    ):
        with refused(ErrorCode.INVALID_RECORD):
            lead(log, bad)


def test_a_duplicate_gets_its_old_offsets(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    lead(log, batch(10))
    first = produced(3, sequence=0)
    assert lead(log, first) == Appended(10, 12, False, -1)
    lead(log, produced(2, sequence=3))
    assert lead(log, first) == Appended(10, 12, True, -1)
    assert log.log_end_offset == 15
    with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        lead(log, produced(sequence=9))
    with refused(ErrorCode.UNKNOWN_PRODUCER_ID):
        lead(log, produced(sequence=9, producer_id=8))
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        lead(log, produced(sequence=5, producer_epoch=-1))


def test_partial_duplicates(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    old, new = produced(3, sequence=0), produced(2, sequence=3)
    lead(log, old)
    # In front: skipped, and the range covers old and new.
    assert lead(log, old + new) == Appended(0, 4, False, -1)
    assert lead(log, old + new) == Appended(0, 4, True, -1)
    # Behind a new batch: refused as a whole.
    with refused(ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
        lead(log, produced(sequence=5) + new)
    twice = produced(sequence=5)
    with refused(ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
        lead(log, twice + twice)
    # One bad batch refuses those before it, and leaves no trace in the producers.
    with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        lead(log, produced(sequence=5) + produced(sequence=7))
    assert log.log_end_offset == 5
    assert lead(log, produced(sequence=5) + produced(sequence=6)) == Appended(5, 6, False, -1)


def test_log_append_time(tmp_path: Path) -> None:
    log = make_log(tmp_path, LogConfig().with_topic({"message.timestamp.type": "LogAppendTime"}))
    appended = log.append_as_leader(batch(2) + batch(1), 1, 0, 0, wall_clock_ms=777)
    assert appended == Appended(0, 2, False, 777)
    assert [record.timestamp for record in decode(log.read(0, -1, 1)).records()] == [777, 777]


def test_topic_configuration() -> None:
    config = LogConfig().with_topic({"segment.bytes": "2048", "compression.type": "lz4", "flush.messages": "1"})
    assert config == LogConfig(segment_bytes=2048, flush_messages=1)
    for bad in ({"segment.bytes": "many"}, {"segment.bytes": "1"}, {"message.timestamp.type": "never"}):
        with refused(ErrorCode.INVALID_CONFIG):
            LogConfig().with_topic(bad)


# -- as follower -----------------------------------------------------------------------------------------------------


def test_a_follower_takes_batches_as_they_are(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    records = batch(3, epoch=1) + batch(2, base_offset=3, epoch=3)
    assert follow(log, records, epoch=4, high_watermark=4) == Appended(0, 4, False, -1)
    assert log.state == LogState(5, 3, 0, 4)
    assert log.epochs.entries == ((1, 0), (3, 3))
    assert log.read(0, -1, 10_000) == records


def test_what_a_follower_refuses(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    follow(log, batch(3, epoch=2), epoch=5)
    for records, code in (
        (batch(base_offset=2, epoch=2), ErrorCode.OFFSET_MISMATCH),
        (batch(base_offset=3, epoch=1), ErrorCode.CORRUPT_MESSAGE),
        (batch(base_offset=3, epoch=6), ErrorCode.CORRUPT_MESSAGE),
        (batch(base_offset=3, epoch=-1), ErrorCode.CORRUPT_MESSAGE),
        (batch(base_offset=3, epoch=2) + batch(base_offset=3, epoch=2), ErrorCode.OFFSET_MISMATCH),
    ):
        with refused(code):
            follow(log, records, epoch=5)
    assert log.state == LogState(3, 2, 0, 0)


def test_a_follower_takes_what_a_compacted_log_has_left(tmp_path: Path) -> None:
    """Offsets are missing between batches; a segment begins where the one before it ended all the same, and a killed
    process loses none of it."""
    log = make_log(tmp_path, SMALL)
    for base_offset in (3, 10, 100, 2000):
        follow(log, batch(2, base_offset=base_offset, epoch=1, value=b"x" * 400), high_watermark=5000)
    assert log.state == LogState(2002, 1, 0, 2002)
    assert [segment.base_offset for segment in log.segments] == [0, 5, 12, 102]
    assert [header.base_offset for header in read_all(log)] == [3, 10, 100, 2000]
    assert [header.base_offset for header in (header_of(log.read(50, -1, 1)), header_of(log.read(102, -1, 1)))] == [
        100,
        2000,
    ]
    again = make_log(tmp_path, SMALL, Checkpointed(recovery_point=0, high_watermark=2002))
    assert again.state == log.state
    assert [header.base_offset for header in read_all(again)] == [3, 10, 100, 2000]


def test_a_follower_updates_producers_without_checking(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    content = bytearray(produced(2, sequence=40))
    content[12:16] = (1).to_bytes(4, "big")
    follow(log, bytes(content))
    assert lead(log, produced(sequence=42), epoch=2) == Appended(2, 2, False, -1)


def test_high_watermark_and_log_start_of_a_follower(tmp_path: Path) -> None:
    """RULES 4.6."""
    log = make_log(tmp_path, SMALL)
    for number in range(10):
        follow(log, batch(1, base_offset=number, epoch=1, value=b"x" * 300), high_watermark=99)
        assert log.high_watermark == number + 1  # min(leader's, log end)
    follow(log, b"", high_watermark=3)
    assert log.high_watermark == 10  # never down
    follow(log, b"", high_watermark=-1, log_start=7)
    assert log.log_start_offset == 7
    assert log.segments[0].base_offset <= 7 < log.segments[1].base_offset
    with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
        log.read(6, -1, 1)


# -- reading ---------------------------------------------------------------------------------------------------------


def test_reads_are_of_whole_batches(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    for _ in range(10):
        lead(log, batch(5))
    size = len(batch(5))
    assert log.read(0, -1, 1) == log.read(4, -1, 1)  # the first batch whole, whatever the limit (RULES 4.8)
    assert len(log.read(7, -1, size)) == size
    assert len(log.read(7, -1, 3 * size - 1)) == 2 * size
    assert len(log.read(7, -1, 100_000)) == 9 * size
    assert len(log.read(7, 20, 100_000)) == 3 * size
    assert log.read(7, 7, 100_000) == b""
    assert log.read(50, -1, 1) == b""
    for offset in (-1, 51):
        with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
            log.read(offset, -1, 1)


def test_a_large_batch_is_read_whole(tmp_path: Path) -> None:
    log = make_log(tmp_path, LogConfig(message_max_bytes=10 << 20))
    large = batch(value=b"x" * (3 << 20))
    lead(log, batch())
    lead(log, large)
    assert len(log.read(1, -1, 10)) == len(large)


def test_a_batch_with_a_bad_crc_is_never_served(tmp_path: Path) -> None:
    """Invariant 7."""
    log = make_log(tmp_path)
    for _ in range(3):
        lead(log, batch(2))
    size = len(batch(2))
    with log.segments[0].path.open("r+b") as file:
        file.seek(2 * size - 1)
        file.write(b"\xff")
    assert len(log.read(0, -1, 10_000)) == size  # up to the damage
    with refused(ErrorCode.CORRUPT_MESSAGE):
        log.read(2, -1, 10_000)
    assert len(log.read(4, -1, 10_000)) == size


# -- cutting ---------------------------------------------------------------------------------------------------------


def filled(directory: Path) -> Any:
    """30 batches of 2 records over 15 segments, epochs 1 to 3 at 0, 20 and 40."""
    log = make_log(directory, SMALL)
    for number in range(30):
        lead(
            log, produced(2, sequence=number - 1) if number % 2 else batch(2, value=b"x" * 150), epoch=1 + number // 10
        )
    return log


def test_truncation_cuts_at_a_batch(tmp_path: Path) -> None:
    log = make_log(tmp_path, SMALL)
    for number in range(30):
        lead(log, batch(2, value=b"x" * 150), epoch=1 + number // 10)
    assert log.truncation.cut_for(31, -1) == 30
    log.truncation.truncate_to(30)
    assert log.state == LogState(30, 2, 0, 0)
    assert log.epochs.entries == ((1, 0), (2, 20))
    assert [header.base_offset for header in read_all(log)] == list(range(0, 30, 2))
    lead(log, batch(1), epoch=7)
    assert read_all(log)[-1].base_offset == 30
    log.truncation.truncate_to(log.truncation.cut_for(0, -1))
    assert log.state == LogState(0, -1, 0, 0)
    assert lead(log, batch(1), epoch=8).base_offset == 0


def test_truncation_at_or_above_the_end_drops_epochs_without_batches(tmp_path: Path) -> None:
    """RULES 4.3."""
    log = make_log(tmp_path)
    lead(log, batch(3), epoch=1)
    log.become_leader(5)
    assert log.epochs.entries == ((1, 0), (5, 3))
    assert log.state.last_epoch == 1
    log.truncation.truncate_to(log.truncation.cut_for(99, -1))
    assert log.epochs.entries == ((1, 0),)
    log.become_leader(6)
    log.become_follower()
    assert log.epochs.entries == ((1, 0),)


def test_truncation_never_goes_below_the_high_watermark(tmp_path: Path) -> None:
    """RULES 4.4."""
    log = make_log(tmp_path)
    for epoch in (1, 1, 3):
        lead(log, batch(2), epoch=epoch)
    log.offsets.raise_high_watermark(4)
    assert log.truncation.cut_for(4, -1) == 4
    for unclean_epoch in (-1, 2, 3):
        with refused(ErrorCode.TRUNCATION_BELOW_HIGH_WATERMARK):
            log.truncation.cut_for(3, unclean_epoch)
        with refused(ErrorCode.TRUNCATION_BELOW_HIGH_WATERMARK):
            log.truncation.check_restart_at(0, unclean_epoch)
    log.truncation.truncate_to(log.truncation.cut_for(3, 4))
    assert log.state == LogState(2, 1, 0, 2)
    log.truncation.check_restart_at(2, -1)


def test_starting_anew(tmp_path: Path) -> None:
    log = make_log(tmp_path, SMALL)
    for number in range(10):
        lead(log, produced(sequence=number))
    log.truncation.truncate_fully_and_start_at(100)
    assert log.state == LogState(100, -1, 100, 100)
    assert [path.name for path in tmp_path.glob("*.log")] == [f"{100:020d}.log"]
    assert log.epochs.entries == ()
    with refused(ErrorCode.UNKNOWN_PRODUCER_ID):
        lead(log, produced(sequence=10))
    assert lead(log, batch()).base_offset == 100


def test_producers_after_truncation(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    sent = [produced(sequence=number) for number in range(12)]
    for encoded in sent:
        lead(log, encoded)
    log.truncation.truncate_to(log.truncation.cut_for(6, -1))  # all five that were remembered are gone
    assert lead(log, sent[5]).duplicate
    assert lead(log, sent[1]).duplicate
    assert lead(log, sent[6]) == Appended(6, 6, False, -1)


def test_raising_the_log_start(tmp_path: Path) -> None:
    log = make_log(tmp_path, SMALL)
    for number in range(20):
        lead(log, batch(value=b"x" * 300), epoch=1 + number // 5)
    log.offsets.raise_high_watermark(12)
    with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
        log.log_start.raise_to(13)
    log.log_start.raise_to(11)
    assert log.state == LogState(20, 4, 11, 12)
    assert log.segments[0].base_offset == 10
    assert log.epochs.entries[0] == (3, 10)
    assert len(list(tmp_path.glob("*.deleted"))) == len(log.segment_list.removable) > 0
    log.remove_deleted()
    assert not list(tmp_path.glob("*.deleted"))
    log.log_start.raise_to(5)
    assert log.log_start_offset == 11
    assert [header.base_offset for header in read_all(log)] == list(range(11, 20))


def test_the_end_of_an_epoch(tmp_path: Path) -> None:
    log = filled(tmp_path)
    assert log.reader.end_offset_for_epoch(1) == (1, 20)
    assert log.reader.end_offset_for_epoch(3) == (3, 60)
    assert log.reader.end_offset_for_epoch(0) == (-1, -1)


# -- failing disks ---------------------------------------------------------------------------------------------------


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = make_log(tmp_path, SMALL)
    lead(log, produced(2, sequence=0))
    size, real = log.size_bytes, os.pwritev

    def half(descriptor: int, buffers: list[bytes], position: int) -> int:
        os.pwrite(descriptor, b"".join(buffers)[:50], position)
        raise OSError(errno.ENOSPC, "No space left on device")

    calls = []

    def second_fails(descriptor: int, buffers: list[bytes], position: int) -> int:
        calls.append(position)
        return half(descriptor, buffers, position) if len(calls) == 2 else real(descriptor, buffers, position)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", half)
        with pytest.raises(LogError, match="No space left"):
            lead(log, produced(sequence=2))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", second_fails)
        with pytest.raises(LogError, match="No space left"):
            lead(log, b"".join(batch(value=b"x" * 300) for _ in range(5)))
    assert log.failure is None
    assert log.state == LogState(2, 1, 0, 0)
    assert log.segments[0].path.stat().st_size == log.size_bytes == size
    assert len(list(tmp_path.glob("*.log"))) == 1
    assert lead(log, produced(sequence=2)) == Appended(2, 2, False, -1)
    assert len(read_all(log)) == 2


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = make_log(tmp_path)
    real = os.pwritev
    monkeypatch.setattr(
        os, "pwritev", lambda descriptor, buffers, position: real(descriptor, [buffers[0][:7]], position)
    )
    lead(log, batch(3) + batch(2))
    assert [header.base_offset for header in read_all(log)] == [0, 3]


def test_a_log_that_cannot_be_put_right_goes_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = make_log(tmp_path)
    lead(log, batch())

    def broken(*arguments: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", broken)
        patch.setattr(os, "ftruncate", broken)
        with refused(ErrorCode.LOG_STORAGE_ERROR):
            lead(log, batch())
    for operation in (lambda: lead(log, batch()), lambda: log.read(0, -1, 1), lambda: log.become_leader(9), log.flush):
        with refused(ErrorCode.LOG_STORAGE_ERROR):
            operation()


def test_a_failed_fsync_takes_the_log_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = make_log(tmp_path)
    lead(log, batch())

    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    with refused(ErrorCode.LOG_STORAGE_ERROR):
        log.flush()
    assert log.recovery_point == 0


def test_row_batches_on_disk_are_kafkas(tmp_path: Path) -> None:
    """An independent decoder reads the segment file."""
    from aiokafka.record.memory_records import MemoryRecords

    log = make_log(tmp_path)
    lead(log, batch(2, value=b"one"), epoch=3)
    lead(log, batch(1, value=b"two"), epoch=3)
    theirs = MemoryRecords(log.segments[0].path.read_bytes())
    found = []
    while theirs.has_next():
        found += [(record.offset, record.value) for record in theirs.next_batch()]
    assert found == [(0, b"one"), (1, b"one"), (2, b"two")]


def test_headers_are_iterated_in_order(tmp_path: Path) -> None:
    log = filled(tmp_path)
    assert [header.base_offset for header in log.segment_list.headers()] == list(range(0, 60, 2))
    assert header_of(log.read(59, -1, 1)).last_offset == 59


def test_truncation_below_the_log_start_finds_the_epochs_again(tmp_path: Path) -> None:
    """After an unclean election: what is left had been below the log start, and its epoch was let go."""
    log = make_log(tmp_path)
    lead(log, batch(2), epoch=1)
    lead(log, batch(2), epoch=2)
    log.offsets.raise_high_watermark(4)
    log.log_start.raise_to(4)
    assert log.epochs.start_of(1) is None
    cut = log.truncation.cut_for(2, 3)
    log.offsets.promise_at_most(cut)
    log.truncation.truncate_to(cut)
    assert (log.log_start_offset, log.log_end_offset, log.last_epoch) == (2, 2, 1)
    assert make_log(tmp_path, known=Checkpointed(False, 0, 2, 2)).state == log.state
