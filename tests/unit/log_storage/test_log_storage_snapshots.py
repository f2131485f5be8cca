"""Producer snapshots: Kafka's layout, what a restart and a truncation make of them, and which are not believed."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_storage_batches import batch, follow, header_of, lead, make_log, produced

from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.log.log import Log
from highwater.log_storage.producers import producer_snapshots
from highwater.log_storage.producers.producer_snapshots import SnapshotError, decode, encode
from highwater.log_storage.producers.producer_states import MAX_SEQUENCE, ProducerStates
from highwater.log_storage.recovery.recovery import Checkpointed, open_log
from highwater.records import BatchHeader

ROLLING = LogConfig(segment_bytes=1024)


def states_of(*headers: BatchHeader) -> ProducerStates:
    states = ProducerStates()
    states.rebuild(headers, 5)
    return states


def names(directory: Path) -> list[int]:
    return producer_snapshots.offsets(directory)


# The layout


def test_the_layout_is_kafka_s() -> None:
    """`ProducerStateManager`: version, crc, producer_entries[producer_id, epoch, last_sequence, last_offset,
    offset_delta, timestamp, coordinator_epoch, current_txn_first_offset]."""
    states = states_of(header_of(produced(3, sequence=10, producer_id=7, producer_epoch=2, base_offset=100)))
    entries = bytes.fromhex(
        "00000001000000000000000700020000000c00000000000000660000000200000000000003edffffffffffffffffffffffff"
    )
    crc = google_crc32c.value(entries).to_bytes(4, "big")
    assert encode(states, 1_000) == b"\x00\x01" + crc + entries


sequences = st.tuples(
    st.integers(0, 3), st.integers(0, 2), st.one_of(st.integers(0, 50), st.integers(MAX_SEQUENCE - 9, MAX_SEQUENCE))
)


@given(st.lists(sequences, max_size=20))
def test_what_is_written_is_read(batches: list[tuple[int, int, int]]) -> None:
    states = states_of(
        *(
            header_of(produced(3, sequence=sequence, producer_id=who, producer_epoch=epoch, base_offset=3 * number))
            for number, (who, epoch, sequence) in enumerate(batches)
        )
    )
    assert decode(encode(states, 1_000), 5, 1_000) == states


def test_every_damage_is_seen() -> None:
    good = encode(states_of(header_of(produced(3, sequence=0)), header_of(produced(2, sequence=3))), 0)
    for position in range(len(good)):
        for bad in (good[:position], good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :]):
            with pytest.raises(SnapshotError):
                decode(bad, 0, 0)
    with pytest.raises(SnapshotError):
        decode(good + b"\0", 0, 0)
    miscounted = struct.pack(">i", 9) + good[10:]
    with pytest.raises(SnapshotError, match="9 entries"):
        decode(good[:2] + google_crc32c.value(miscounted).to_bytes(4, "big") + miscounted, 0, 0)


def test_the_clock_of_another_start() -> None:
    """A producer's last append is kept as the time of day; the monotonic clock begins anew with the machine."""
    content = encode(states_of(header_of(produced(sequence=0))), 1_000_000)

    def updated_ms(now_ms: int, wall_offset_ms: int) -> int:
        [(_, state)] = decode(content, now_ms, wall_offset_ms).items()
        return state.updated_ms

    assert updated_ms(70, 1_000_000) == 5
    assert updated_ms(70, 1_000_100) == -95  # the machine has been started again
    assert updated_ms(70, 900_000) == 70  # the clock was set back


# A log


def with_producers(directory: Path) -> Log:
    """Producer 1 writes the first segment, producer 2 the second, both the third."""
    log = make_log(directory, ROLLING)
    for number in range(12):
        who = 1 if number < 4 or number % 2 else 2
        sequence = log.producers.get(who)
        first = 0 if sequence is None else sequence.batches[-1].last_sequence + 1
        lead(log, batch(producer_id=who, producer_epoch=0, sequence=first, value=b"x" * 150))
    assert [segment.base_offset for segment in log.segments] == [0, 4, 8]
    assert names(directory) == [4, 8]
    log.offsets.raise_high_watermark(12)
    return log


def reopened(log: Log, *, clean: bool = False) -> Log:
    if clean:
        log.close()
    known = Checkpointed(clean, log.recovery_point, log.log_start_offset, log.high_watermark)
    return make_log(log.directory, ROLLING, known)


@pytest.mark.parametrize("clean", [True, False])
def test_a_producer_survives_its_records_and_a_restart(tmp_path: Path, clean: bool) -> None:
    log = make_log(tmp_path, ROLLING)
    for number in range(6):
        lead(log, produced(2, sequence=2 * number))
    lead(log, batch(value=b"x" * 1000))
    lead(log, batch(value=b"x" * 1000))
    log.offsets.raise_high_watermark(14)
    log.log_start.raise_to(13)
    log.remove_deleted()
    again = reopened(log, clean=clean)
    assert again.producers == log.producers
    for number in range(1, 6):  # all five that are kept
        assert lead(again, produced(2, sequence=2 * number)).base_offset == 2 * number
    assert lead(again, produced(1, sequence=12)).base_offset == 14


def test_only_what_follows_is_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = with_producers(tmp_path)
    replayed = []
    update = ProducerStates.update

    def watched(self: ProducerStates, header: BatchHeader, base_offset: int, now_ms: int = 0) -> None:
        replayed.append(base_offset)
        update(self, header, base_offset, now_ms)

    monkeypatch.setattr(ProducerStates, "update", watched)
    assert reopened(log).producers == log.producers
    assert replayed == [8, 9, 10, 11]
    replayed.clear()
    assert reopened(log, clean=True).producers == log.producers
    assert replayed == []


@pytest.mark.parametrize("cut", range(13))
def test_a_truncation_takes_those_above_it_along(tmp_path: Path, cut: int) -> None:
    log = with_producers(tmp_path)
    log.close()
    assert names(tmp_path) == [4, 8, 12]
    log.offsets.promise_at_most(log.truncation.cut_for(cut, 9))
    log.truncation.truncate_to(cut)
    assert names(tmp_path) == [offset for offset in (4, 8, 12) if offset <= cut]
    expected = ProducerStates()
    expected.rebuild(log.segment_list.headers())
    assert log.producers == expected
    assert reopened(log).producers == expected


def test_a_truncation_forgets_nobody_who_wrote_below_it(tmp_path: Path) -> None:
    log = with_producers(tmp_path)
    lead(log, produced(sequence=0, producer_id=3))
    log.offsets.raise_high_watermark(8)
    log.log_start.raise_to(8)
    for offset in names(tmp_path):
        producer_snapshots.path_of(tmp_path, offset).unlink()
    before = log.producers.get(2)
    log.truncation.truncate_to(12)
    assert log.producers.get(2) == before  # it could not be found in the log
    assert log.producers.get(3) is None


def test_a_log_that_starts_anew_has_none(tmp_path: Path) -> None:
    log = with_producers(tmp_path)
    log.truncation.truncate_fully_and_start_at(12)
    assert names(tmp_path) == []
    assert len(log.producers) == 0
    assert len(reopened(log).producers) == 0


def test_those_of_segments_that_are_gone_go(tmp_path: Path) -> None:
    log = with_producers(tmp_path)
    log.close()
    log.log_start.raise_to(8)
    assert names(tmp_path) == [8, 12]


@pytest.mark.parametrize("damage", [b"", b"\0" * 60, b"\0\1damaged"])
def test_a_damaged_one_is_not_used(tmp_path: Path, damage: bytes) -> None:
    log = with_producers(tmp_path)
    producer_snapshots.path_of(tmp_path, 8).write_bytes(damage)
    again = reopened(log)
    assert again.producers == log.producers
    assert names(tmp_path) == [4]


def test_one_from_before_the_log_s_first_batch_is_not_used(tmp_path: Path) -> None:
    """What came between is not known: UNKNOWN_PRODUCER_ID then, and no wrong sequence."""
    log = with_producers(tmp_path)
    early = producer_snapshots.path_of(tmp_path, 4).read_bytes()
    log.log_start.raise_to(8)
    producer_snapshots.path_of(tmp_path, 8).unlink()
    producer_snapshots.path_of(tmp_path, 4).write_bytes(early)
    again = reopened(log)
    expected = ProducerStates()
    expected.rebuild(log.segment_list.headers())
    assert again.producers == expected
    assert names(tmp_path) == []


def test_one_above_the_log_s_end_is_removed(tmp_path: Path) -> None:
    """After a crash of the machine: the file is there, the batches are not."""
    log = with_producers(tmp_path)
    segment = log.segments[-2]
    log.segments[-1].path.unlink()
    os.truncate(segment.path, segment.size_bytes // 2)
    again = make_log(tmp_path, ROLLING)
    assert again.log_end_offset == 6
    assert names(tmp_path) == [4]
    expected = ProducerStates()
    expected.rebuild(again.segment_list.headers())
    assert again.producers == expected


def test_a_roll_within_an_append(tmp_path: Path) -> None:
    """The snapshot is about what stands before the last new segment, not about the whole append."""
    for name, append in (("leader", lead), ("follower", follow)):
        log = make_log(tmp_path / name, ROLLING)
        records = [
            batch(producer_id=1, producer_epoch=0, sequence=at, base_offset=at, epoch=1, value=b"x" * 500)
            for at in range(4)
        ]
        append(log, b"".join(records))  # type: ignore[operator]
        assert [segment.base_offset for segment in log.segments] == [0, 1, 2, 3]
        assert names(tmp_path / name) == [3]
        _, states = producer_snapshots.latest(tmp_path / name, 0, 3, 0, 0)
        [(_, state)] = states.items()
        assert state.batches[-1].last_offset == 2
        assert reopened(log).producers == log.producers


def test_a_failed_append_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = make_log(tmp_path, ROLLING)
    lead(log, produced(sequence=0))
    pwritev, calls = os.pwritev, []

    def third_fails(descriptor: int, buffers: list[bytes], position: int) -> int:
        calls.append(position)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        return pwritev(descriptor, buffers, position)

    records = b"".join(batch(producer_id=1, producer_epoch=0, sequence=at, value=b"x" * 700) for at in range(3))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", third_fails)
        with pytest.raises(LogError):
            lead(log, records)
    assert names(tmp_path) == []
    assert log.log_end_offset == 1
    assert lead(log, records).base_offset == 1
    assert reopened(log).producers == log.producers


def test_expiry_counts_from_the_last_append_across_restarts(tmp_path: Path) -> None:
    log = open_log(tmp_path, ROLLING, Checkpointed(), now_ms=100, wall_offset_ms=1_000)
    log.append_as_leader(produced(sequence=0), 1, 0, 100)
    log.close()
    again = open_log(tmp_path, ROLLING, Checkpointed(True, 1, 0, 0), now_ms=50, wall_offset_ms=2_000)
    # At 1,100 of the day it appended; it is 2,050 now.
    assert again.producers.expire(50 - 950) == 0
    assert again.producers.expire(50 - 949) == 1
