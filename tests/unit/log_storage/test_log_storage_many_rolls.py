"""What an append may ask for by way of segments and snapshots is bounded, whatever is in it: the excess stays in the
segment, and every batch can be read."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from log_storage_batches import batch, follow, make_log, produced, read_all

from highwater.errors import ErrorCode
from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.log.append_validation import BATCHES_AN_APPEND
from highwater.log_storage.log.log import Log
from highwater.log_storage.producers import producer_snapshots
from highwater.log_storage.producers.producer_states import ProducerStates
from highwater.log_storage.recovery.recovery import Checkpointed
from highwater.log_storage.segment.roll_allowance import ROLLS_A_SECOND, ROLLS_AN_APPEND, ROLLS_AT_ONCE, RollAllowance
from highwater.records import HEADER_BYTES
from highwater.records.header import crc32c

WEEK_MS = 7 * 24 * 3600 * 1000
TINY = LogConfig(segment_bytes=1024, index_interval_bytes=100)


def lead_at(log: Log, records: bytes, now_ms: int = 0) -> None:
    log.append_as_leader(records, 1, log.log_end_offset, now_ms)


def sound(log: Log, count: int) -> bool:
    """All batches are there; now, and for a start after a kill and one after a clean stop."""
    wanted = list(range(count))
    found = [[header.base_offset for header in read_all(log)]]
    log.producer_state.write_snapshots()
    states = log.producers
    again = make_log(log.directory, log.config)
    found.append([header.base_offset for header in read_all(again)])
    assert again.producers == states
    log.close()
    found.append([header.base_offset for header in read_all(make_log(log.directory, log.config, Checkpointed(True)))])
    return found == [wanted] * 3


@pytest.mark.parametrize("leads", [True, False])
def test_an_append_of_many_batches_begins_few_segments_and_asks_for_one_snapshot(tmp_path: Path, leads: bool) -> None:
    log = make_log(tmp_path, TINY)
    batches = [
        batch(base_offset=number, epoch=1, producer_id=7, producer_epoch=0, sequence=number, value=b"x" * 400)
        for number in range(300)
    ]
    if leads:
        lead_at(log, b"".join(batches))
        assert len(log.producer_state.pending) == 1
    else:
        follow(log, b"".join(batches))
    assert len(log.segments) == 1 + ROLLS_AN_APPEND
    log.producer_state.write_snapshots()
    assert producer_snapshots.offsets(tmp_path) == [log.segments[-1].base_offset]
    assert sound(log, 300)


def test_the_cost_of_an_append_does_not_grow_with_its_rolls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch is taken in once for the log, and once for the snapshot."""
    counted = 0
    update = ProducerStates.update

    def count(self: ProducerStates, *given: Any) -> None:
        nonlocal counted
        counted += 1
        update(self, *given)

    monkeypatch.setattr(ProducerStates, "update", count)
    log = make_log(tmp_path, TINY)
    lead_at(log, b"".join(produced(sequence=number) for number in range(900)))
    assert counted <= 900


def test_batches_a_week_apart_begin_a_bounded_number_of_segments(tmp_path: Path) -> None:
    """Kafka's roll by time has no bound: 400 small batches would be 400 segments."""
    log = make_log(tmp_path, LogConfig())
    for number in range(400):
        lead_at(log, batch(timestamp=1_000 + 2 * number * WEEK_MS), now_ms=5_000)
    assert len(log.segments) == 1 + ROLLS_AT_ONCE
    for number in range(400, 500):
        lead_at(log, batch(timestamp=1_000 + 2 * number * WEEK_MS), now_ms=6_000)
    assert len(log.segments) == 1 + ROLLS_AT_ONCE + ROLLS_A_SECOND
    assert sound(log, 500)


def test_snapshots_take_no_more_space_than_batches_do(tmp_path: Path) -> None:
    """104 MB of them came of 122 KB of batches."""
    log = make_log(tmp_path, LogConfig())
    for producer_id in range(500):
        lead_at(log, produced(sequence=0, producer_id=producer_id))
    for number in range(80):
        lead_at(log, batch(timestamp=1_000 + 2 * number * WEEK_MS))
        log.producer_state.write_snapshots()
    assert len(log.segments) > 70
    snapshots = sum(
        producer_snapshots.path_of(tmp_path, at).stat().st_size for at in producer_snapshots.offsets(tmp_path)
    )
    assert 0 < snapshots <= log.size_bytes
    assert sound(log, 580)


def test_a_follower_begins_the_segments_that_it_has_to(tmp_path: Path) -> None:
    """Its leader has had the allowance; offsets too far apart for one index are in no common segment."""
    log = make_log(tmp_path, LogConfig())
    for number in range(ROLLS_AT_ONCE + 10):
        lead_at(log, batch(timestamp=1_000 + 2 * number * WEEK_MS))
    end, count = log.log_end_offset, len(log.segments)
    far = [end + (number << 31) for number in range(1, 1 + 2 * ROLLS_AN_APPEND)]
    follow(log, b"".join(batch(base_offset=offset, epoch=1) for offset in far))
    assert len(log.segments) == count + len(far)
    assert [header.base_offset for header in read_all(log)] == [*range(end), *far]


def claiming(count: int) -> bytes:
    """A batch of 61 bytes that says that it holds so many records."""
    content = bytearray(batch(value=b"")[:HEADER_BYTES])
    struct.pack_into(">i", content, 8, HEADER_BYTES - 12)
    struct.pack_into(">i", content, 23, count - 1)
    struct.pack_into(">i", content, 57, count)
    struct.pack_into(">I", content, 17, crc32c(bytes(content[21:])))
    return bytes(content)


def test_a_leader_is_refused_what_has_to_begin_too_many_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Dense batches of many records would do it as well, at a few MB each.
    monkeypatch.setattr("highwater.log_storage.log.append_validation.most_records", lambda header: header.record_count)
    log = make_log(tmp_path, LogConfig())
    for _ in range(1 + ROLLS_AT_ONCE):
        lead_at(log, claiming(2**31 - 1), now_ms=5_000)
    end = log.log_end_offset
    with pytest.raises(LogError, match="has to begin a segment") as raised:
        lead_at(log, claiming(2**31 - 1), now_ms=5_000)
    assert raised.value.code is ErrorCode.OVERLOADED
    assert (log.log_end_offset, len(log.segments)) == (end, 1 + ROLLS_AT_ONCE)
    lead_at(log, claiming(2**31 - 1), now_ms=6_000)
    with pytest.raises(LogError, match="has to begin a segment"):
        lead_at(log, claiming(2**31 - 1) * (ROLLS_AN_APPEND + 1), now_ms=20_000)


def test_a_leader_takes_a_bounded_number_of_batches_at_once(tmp_path: Path) -> None:
    log = make_log(tmp_path / "leader")
    with pytest.raises(LogError, match="more than 1000 batches") as raised:
        lead_at(log, batch() * (BATCHES_AN_APPEND + 1))
    assert raised.value.code is ErrorCode.INVALID_REQUEST
    assert log.log_end_offset == log.size_bytes == 0
    lead_at(log, batch() * BATCHES_AN_APPEND)
    assert log.log_end_offset == BATCHES_AN_APPEND
    follower = make_log(tmp_path / "follower")  # takes what its leader has
    batches = [batch(base_offset=number, epoch=1) for number in range(BATCHES_AN_APPEND + 1)]
    follow(follower, b"".join(batches))
    assert follower.log_end_offset == BATCHES_AN_APPEND + 1


def test_an_allowance_comes_back_up_to_its_limit() -> None:
    allowance = RollAllowance()
    assert sum(allowance.take(10_000) for _ in range(500)) == ROLLS_AT_ONCE
    assert sum(allowance.take(9_000) for _ in range(500)) == 0
    assert sum(allowance.take(11_000) for _ in range(500)) == ROLLS_A_SECOND
    assert sum(allowance.take(11_050) for _ in range(500)) == 0
    assert sum(allowance.take(11_100) for _ in range(500)) == 1
    assert sum(allowance.take(10_000_000) for _ in range(500)) == ROLLS_AT_ONCE
