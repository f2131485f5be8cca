"""When the active segment is closed and another begun."""

from __future__ import annotations

from pathlib import Path

import pytest
from log_storage_batches import batch, follow, lead, make_log, read_all

from highwater.log_storage.config import LogConfig
from highwater.log_storage.log.log import Appended
from highwater.log_storage.recovery.recovery import Checkpointed

SMALL = LogConfig(segment_bytes=1024, index_interval_bytes=100)


def test_segments_roll_by_size(tmp_path: Path) -> None:
    log = make_log(tmp_path, SMALL)
    for _ in range(20):
        lead(log, batch(value=b"x" * 300))
    assert all(segment.size_bytes <= 1024 for segment in log.segments)
    assert len(log.segments) == 10
    names = sorted(path.name for path in tmp_path.glob("*.log"))
    assert names == [f"{base:020d}.log" for base in range(0, 20, 2)]
    assert [header.base_offset for header in read_all(log)] == list(range(20))


def test_one_append_may_span_segments(tmp_path: Path) -> None:
    log = make_log(tmp_path, SMALL)
    assert lead(log, b"".join(batch(value=b"x" * 300) for _ in range(9))) == Appended(0, 8, False, -1)
    assert len(log.segments) == 5
    log = make_log(tmp_path / "f", SMALL)
    follow(log, b"".join(batch(base_offset=number, epoch=1, value=b"x" * 300) for number in range(9)))
    assert len(log.segments) == 5
    assert [header.base_offset for header in read_all(log)] == list(range(9))


def test_segments_roll_when_an_index_is_full(tmp_path: Path) -> None:
    log = make_log(tmp_path, LogConfig(index_interval_bytes=0, index_max_bytes=36))
    for _ in range(20):
        lead(log, batch())
    assert len(log.segments) > 3


def test_segments_roll_when_a_time_index_is_full(tmp_path: Path) -> None:
    """Its entries are the larger ones, where timestamps rise."""
    log = make_log(tmp_path, LogConfig(index_interval_bytes=0, index_max_bytes=48))
    for number in range(20):
        lead(log, batch(timestamp=1_000 + number))
    assert [segment.base_offset for segment in log.segments] == [0, 5, 10, 15]
    assert {len(segment.offset_index) for segment in log.segments} == {4}  # of 6


def test_a_compacted_log_rolls_before_its_records_have_waited_too_long(tmp_path: Path) -> None:
    """`max.compaction.lag.ms`: the active segment cannot be compacted."""
    for compacts, bases in ((True, [0, 2]), (False, [0])):
        config = LogConfig(roll_ms=10_000, max_compaction_lag_ms=500, compacts=compacts)
        log = make_log(tmp_path / str(compacts), config)
        for timestamp in (10_000, 10_500, 10_501):
            lead(log, batch(timestamp=timestamp))
        assert [segment.base_offset for segment in log.segments] == bases


def test_segments_roll_by_age(tmp_path: Path) -> None:
    log = make_log(tmp_path, LogConfig(roll_ms=1_000))
    for timestamp in (10_000, 10_999, 11_000, 11_001, 12_001, 12_002):
        lead(log, batch(timestamp=timestamp))
    assert [segment.base_offset for segment in log.segments] == [0, 3, 5]


def test_segments_without_timestamps_roll_by_the_clock(tmp_path: Path) -> None:
    """Else retention by time would never let go of what a log without timestamps holds."""
    config = LogConfig(roll_ms=1_000)
    log = make_log(tmp_path, config)
    for now_ms in (5_000, 5_600, 6_000, 6_001, 7_001, 7_002):
        log.append_as_leader(batch(timestamp=-1), 1, log.log_end_offset, now_ms)
    assert [segment.base_offset for segment in log.segments] == [0, 3, 5]
    log.close()
    again = make_log(tmp_path, config, Checkpointed(clean=True))
    for now_ms in (100, 1_100, 1_101):  # the clock of another start
        again.append_as_leader(batch(timestamp=-1), 1, again.log_end_offset, now_ms)
    assert [segment.base_offset for segment in again.segments] == [0, 3, 5, 8]
    # A first batch with a timestamp counts by that.
    again.append_as_leader(batch(timestamp=10_000, value=b"x"), 1, 9, 9_000)
    again.append_as_leader(batch(timestamp=11_000), 1, 10, 90_000)
    again.append_as_leader(batch(timestamp=11_001), 1, 11, 90_000)
    assert [segment.base_offset for segment in again.segments] == [0, 3, 5, 8, 9, 11]


def test_segments_roll_at_ages_of_their_own(tmp_path: Path) -> None:
    """Each at one between `roll_ms` less the jitter and `roll_ms`, also where the log is opened again on the way."""
    config = LogConfig(roll_ms=1_000, roll_jitter_ms=800)
    ages = set()
    for number in range(20):
        log = make_log(tmp_path / f"topic-{number}", config)
        lead(log, batch(timestamp=10_000))
        age = 0
        while len(log.segments) == 1:
            age += 50
            if number % 2:
                log.close()
                log = make_log(tmp_path / f"topic-{number}", config, Checkpointed(clean=True))
            lead(log, batch(timestamp=10_000 + age))
        assert 200 < age <= 1_050
        ages.add(age)
    assert len(ages) > 5


def test_segments_roll_by_bytes_and_age_also_after_a_restart(tmp_path: Path) -> None:
    """What a roll is decided by is found again in a log that is opened after a clean stop."""
    for name, config in {
        "bytes": LogConfig(segment_bytes=1024),
        "age": LogConfig(roll_ms=20),
    }.items():
        whole = make_log(tmp_path / f"{name}-whole", config)
        parts = make_log(tmp_path / f"{name}-parts", config)
        for number in range(30):
            records = batch(value=b"x" * 100, timestamp=10_000 + 10 * number)
            lead(whole, records)
            lead(parts, records)
            parts.close()
            parts = make_log(tmp_path / f"{name}-parts", config, Checkpointed(clean=True))
        assert [segment.base_offset for segment in parts.segments] == [s.base_offset for s in whole.segments]
        assert len(whole.segments) > 2
        for mine, other in zip(parts.segments, whole.segments, strict=True):
            assert (mine.size_bytes, mine.max_timestamp) == (other.size_bytes, other.max_timestamp)
            assert mine.first_timestamp == other.first_timestamp
            assert mine.offset_index.columns().tolist() == other.offset_index.columns().tolist()


def test_segments_roll_when_a_relative_offset_overflows(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    log.truncation.truncate_fully_and_start_at(5)
    lead(log, batch())
    log.segments[0].base_offset = 5 - 2**31  # as if the segment had begun so far below
    lead(log, batch())
    assert [segment.base_offset for segment in log.segments][1:] == [6]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("clean", [True, False])
def test_a_follower_of_a_much_compacted_log_rolls_where_31_bits_do_not_reach(
    tmp_path: Path, together: bool, clean: bool
) -> None:
    """An index entry has 31 bits for an offset, from the segment's base on."""
    log = make_log(tmp_path, LogConfig(index_interval_bytes=0))
    far = [0, 2**31 - 2, 2**31 - 1, 2**31, 2**32 + 9, 2**32 + 10]
    sent = [batch(base_offset=offset, epoch=1) for offset in far]
    for records in [b"".join(sent)] if together else sent:
        follow(log, records)
    bases = [segment.base_offset for segment in log.segments]
    assert bases == [0, 2**31, 2**32 + 9]
    log.flush()
    log.close()
    again = make_log(tmp_path, log.config, Checkpointed(clean, 2**32 + 11 if clean else 0))
    assert [segment.base_offset for segment in again.segments] == bases
    assert [header.base_offset for header in read_all(again)] == far
    for segment, following in zip(again.segments, [*bases[1:], 2**33], strict=True):
        for number in range(len(segment.offset_index)):
            offset = segment.base_offset + segment.offset_index.entry(number)[0]
            assert segment.base_offset <= offset < following
    assert lead(again, batch(), epoch=2).base_offset == 2**32 + 11
