"""Retention: which segments go, what stays, and what a crash or a reader sees of it."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_storage_batches import batch, header_of, lead, make_log, produced, read_all
from log_storage_client import FOLLOWER, LEADER, Code, key, running

from highwater.log_storage import service
from highwater.log_storage.clock import monotonic_ms
from highwater.log_storage.config import LogConfig
from highwater.log_storage.log.log import Log
from highwater.log_storage.log.log_start import LogStart
from highwater.log_storage.log.retention import UNLIMITED, Aged, Limits, expired_segments
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.log_storage.log_manager.log_registry import LogRegistry
from highwater.log_storage.recovery.recovery import Checkpointed
from highwater.log_storage.settings import LogStorageSettings
from highwater.model.partition import PartitionKey
from highwater.rpc.settings import load
from highwater.v1 import log_storage_pb2

DAY_MS = 24 * 3600 * 1000
PATIENCE_S = 0.2  # for what must not happen
KEY = PartitionKey(b"t" * 16, 0)


# The decision

aged = st.builds(
    Aged, end_offset=st.integers(0, 1_000), size_bytes=st.integers(1, 100), newest_ms=st.integers(0, 1_000)
)


@given(
    segments=st.lists(aged, min_size=1, max_size=8).map(lambda found: sorted(found, key=lambda one: one.end_offset)),
    limits=st.builds(Limits, st.integers(-1, 1_000), st.integers(-1, 500)),
    log_start_offset=st.integers(0, 1_000),
    high_watermark=st.integers(0, 1_000),
)
def test_what_goes_may_go_and_what_stays_must_stay(
    segments: list[Aged], limits: Limits, log_start_offset: int, high_watermark: int
) -> None:
    asked = []
    count = expired_segments(
        (asked.append(segment) or segment for segment in segments),  # type: ignore[func-returns-value]
        sum(segment.size_bytes for segment in segments),
        limits,
        log_start_offset=log_start_offset,
        high_watermark=high_watermark,
        wall_clock_ms=1_000,
    )
    assert len(asked) == min(count + 1, len(segments))

    def may_go(number: int) -> bool:
        segment, rest = segments[number], sum(later.size_bytes for later in segments[number + 1 :])
        return segment.end_offset <= high_watermark and (
            segment.end_offset <= log_start_offset
            or (limits.retention_ms >= 0 and segment.newest_ms + limits.retention_ms < 1_000)
            or (limits.retention_bytes >= 0 and rest >= limits.retention_bytes)
        )

    assert all(may_go(number) for number in range(count))
    assert count == len(segments) or not may_go(count)


def test_an_empty_active_segment_never_goes() -> None:
    def count(*segments: Aged) -> int:
        size_bytes = sum(segment.size_bytes for segment in segments)
        return expired_segments(
            segments, size_bytes, Limits(0, 0), log_start_offset=9, high_watermark=9, wall_clock_ms=DAY_MS
        )

    assert count(Aged(9, 0, 0)) == 0
    assert count(Aged(9, 10, 0), Aged(9, 0, 0)) == 1
    assert count(Aged(8, 10, 0), Aged(9, 10, 0)) == 2


# Kafka's keys


@pytest.mark.parametrize(
    ("given", "retention_ms"),
    [
        ({}, 168 * 3600 * 1000),
        ({"log.retention.hours": "2"}, 2 * 3600 * 1000),
        ({"log.retention.hours": "-1"}, UNLIMITED),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 3 * 60_000),
        ({"log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.minutes": "3", "log.retention.ms": "-1"}, UNLIMITED),
    ],
)
def test_the_finest_unit_counts(given: dict[str, str], retention_ms: int) -> None:
    required = {"broker.id": "1", "log.dirs": "/d", "listen": "unix:/s"}
    assert load(LogStorageSettings, {**required, **given}).retention_ms == retention_ms


def test_kafkas_defaults() -> None:
    settings = load(LogStorageSettings, {"broker.id": "1", "log.dirs": "/d", "listen": "unix:/s"})
    assert settings.retention_ms == 7 * DAY_MS
    assert settings.log_retention_bytes == UNLIMITED
    assert settings.log_retention_check_interval_ms == 5 * 60_000
    assert settings.file_delete_delay_ms == 60_000
    assert (settings.log_segment_bytes, settings.log_roll_ms, settings.log_roll_jitter_ms) == (1 << 30, 7 * DAY_MS, 0)
    assert (settings.log_index_interval_bytes, settings.log_index_size_max_bytes) == (4096, 10 << 20)
    assert settings.log_cleanup_policy == "delete"
    assert (settings.log_cleaner_enable, settings.log_cleaner_threads) == (True, 1)
    assert settings.log_cleaner_dedupe_buffer_size == 128 << 20
    assert settings.log_cleaner_min_cleanable_ratio == 0.5
    assert settings.log_cleaner_delete_retention_ms == DAY_MS
    assert settings.log_flush_offset_checkpoint_interval_ms == 60_000
    assert settings.replica_high_watermark_checkpoint_interval_ms == 5_000
    assert settings.producer_id_expiration_ms == DAY_MS
    assert settings.num_recovery_threads_per_data_dir == 1
    # Unset in Kafka: the operating system flushes.
    assert settings.flush_after_messages == settings.log_flush_interval_ms == 2**63 - 1


def test_the_topic_s_keys_go_before_the_broker_s() -> None:
    config = LogConfig(retention_ms=5).with_topic({"retention.ms": "-1", "retention.bytes": "7"})
    assert (config.retention_ms, config.retention_bytes, config.deletes) == (UNLIMITED, 7, True)
    assert not LogConfig().with_topic({"cleanup.policy": "compact"}).deletes
    assert LogConfig().with_topic({"cleanup.policy": "compact, delete"}).deletes


# A log


def aging(directory: Path, **config: int | bool) -> Log:
    """Five segments of two batches of one record each, one for each day, all committed."""
    log = make_log(directory, LogConfig(segment_bytes=1024, **config))  # type: ignore[arg-type]
    for day in range(1, 6):
        for _ in range(2):
            lead(log, batch(timestamp=day * DAY_MS, value=b"x" * 400))
    log.offsets.raise_high_watermark(log.log_end_offset)
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4, 6, 8]
    return log


def retain(log: Log, wall_clock_ms: int) -> int:
    count = log.log_start.expired(wall_clock_ms)
    if count:
        log.log_start.move_behind(count)
        log.log_start.release_segments()
    return count


def test_by_time(tmp_path: Path) -> None:
    log = aging(tmp_path, retention_ms=DAY_MS)
    assert retain(log, 2 * DAY_MS) == 0  # a day old, not older
    assert retain(log, 2 * DAY_MS + 1) == 1
    assert retain(log, 4 * DAY_MS + 1) == 2
    assert (log.log_start_offset, log.log_end_offset) == (6, 10)
    assert [header.base_offset for header in read_all(log)] == [6, 7, 8, 9]
    assert list(log.segment_list.removable) == [tmp_path / f"{base:020}.log.deleted" for base in (0, 2, 4)]
    assert sorted(tmp_path.glob("*.deleted")) == list(log.segment_list.removable)


def test_a_young_segment_keeps_the_older_ones_behind_it(tmp_path: Path) -> None:
    log = make_log(tmp_path, LogConfig(segment_bytes=1024, retention_ms=DAY_MS))
    for day in (9, 1, 1):
        lead(log, batch(timestamp=day * DAY_MS, value=b"x" * 900))
    log.offsets.raise_high_watermark(3)
    assert log.log_start.expired(9 * DAY_MS) == 0


def test_without_timestamps_the_file_s_age_counts(tmp_path: Path) -> None:
    log = make_log(tmp_path, LogConfig(retention_ms=DAY_MS))
    lead(log, batch(timestamp=-1))
    log.offsets.raise_high_watermark(1)
    os.utime(log.segments[0].path, (3 * DAY_MS / 1000, 3 * DAY_MS / 1000))
    assert log.log_start.expired(4 * DAY_MS) == 0
    assert log.log_start.expired(4 * DAY_MS + 1) == 1


def test_by_size_never_below_the_limit(tmp_path: Path) -> None:
    log = aging(tmp_path, retention_ms=UNLIMITED)
    size = log.segments[0].size_bytes
    for limit, kept in ((5 * size, 5), (5 * size - 1, 5), (4 * size, 4), (2 * size + 1, 3), (1, 1)):
        log.config = LogConfig(segment_bytes=1024, retention_ms=UNLIMITED, retention_bytes=limit)
        retain(log, 0)
        assert len(log.segments) == kept
        assert log.size_bytes >= limit


def test_never_past_the_high_watermark(tmp_path: Path) -> None:
    log = aging(tmp_path, retention_ms=0, retention_bytes=0)
    log.offsets.high_watermark = 5
    assert retain(log, 99 * DAY_MS) == 2
    assert log.log_start_offset == 4


def test_a_compacted_log_is_not_touched(tmp_path: Path) -> None:
    log = aging(tmp_path, retention_ms=0, retention_bytes=0, deletes=False)
    assert log.log_start.expired(99 * DAY_MS) == 0
    log.offsets.log_start_offset = 2  # but for what was deleted and then left behind by a crash
    assert log.log_start.expired(99 * DAY_MS) == 1


def test_when_all_go_an_active_segment_is_begun(tmp_path: Path) -> None:
    log = aging(tmp_path, retention_ms=0)
    lead(log, produced(3, sequence=0), epoch=4)
    log.offsets.raise_high_watermark(13)
    assert retain(log, 99 * DAY_MS) == 6
    assert [segment.base_offset for segment in log.segments] == [13]
    assert (log.log_start_offset, log.log_end_offset, log.last_epoch) == (13, 13, 4)
    assert log.log_start.expired(99 * DAY_MS) == 0
    # The producer is not forgotten with its records.
    assert lead(log, produced(3, sequence=0), epoch=4).duplicate
    assert lead(log, produced(1, sequence=3), epoch=4).base_offset == 13
    log.flush()
    again = make_log(tmp_path, log.config, Checkpointed(False, log.recovery_point, 13, 13))
    assert again.state == log.state
    assert again.epochs.entries[-1].leader_epoch == 4


def test_an_emptied_log_knows_the_epoch_of_its_last_batch(tmp_path: Path) -> None:
    """Also where the next leader has begun its epoch there, and written nothing."""
    log = aging(tmp_path, retention_ms=0)
    log.become_leader(2)
    retain(log, 99 * DAY_MS)
    again = make_log(tmp_path, log.config, Checkpointed(False, 0, 10, 10))
    assert again.state == log.state == (10, 1, 10, 10)


def test_a_reader_of_a_removed_segment_goes_on(tmp_path: Path) -> None:
    log = aging(tmp_path, retention_ms=0)
    plan = log.reader.plan_read(0, -1, 1)
    retain(log, 99 * DAY_MS)
    log.remove_deleted()
    assert not list(tmp_path.glob("*.deleted"))
    assert plan is not None
    assert header_of(plan.run()).base_offset == 0


def test_a_segment_is_out_of_the_log_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody begins to read what is being let go."""
    log = aging(tmp_path, retention_ms=0)
    all_of_them = log.segments.copy()
    renamed: list[Path] = []
    replace = os.replace

    def observed(source: Path, target: Path) -> None:
        if str(target).endswith(".deleted"):
            renamed.append(source)
            assert source not in [path for segment in log.segments for path in segment.paths()]
        replace(source, target)

    monkeypatch.setattr(os, "replace", observed)
    retain(log, 99 * DAY_MS)
    assert set(renamed) >= {segment.path for segment in all_of_them}


# The directory


def managed(directory: Path) -> tuple[LogManager, Log]:
    manager = LogManager([directory], LogConfig(segment_bytes=1024, retention_ms=0), broker_id=1)
    manager.load()
    manager.create("t", KEY, {})
    return manager, manager.logs.get(KEY).online()


@pytest.mark.parametrize("step", ["move_behind", "write_checkpoint", "release_segments"])
def test_a_crash_on_the_way_finds_no_lower_log_start(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, log = managed(tmp_path)
    for number in range(5):
        lead(log, batch(timestamp=number, value=b"x" * 900))
    log.offsets.raise_high_watermark(5)
    log.flush()
    manager.logs.write_checkpoints(manager.logs.log_dirs[0])

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LogRegistry if step == "write_checkpoint" else LogStart, step, crash)
    with pytest.raises(KeyboardInterrupt):
        manager.retain(manager.logs.get(KEY), DAY_MS)
    monkeypatch.undo()
    manager.unlock()
    manager, log = managed(tmp_path)
    assert log.log_start_offset == (5 if step == "release_segments" else 0)
    assert log.log_end_offset == 5
    manager.retain(manager.logs.get(KEY), DAY_MS)
    assert (log.log_start_offset, log.log_end_offset, len(log.segments)) == (5, 5, 1)
    manager.close()


def test_the_log_start_survives_a_restart(tmp_path: Path) -> None:
    manager, log = managed(tmp_path)
    lead(log, batch(3, timestamp=1))
    log.offsets.raise_high_watermark(3)
    assert manager.retain(manager.logs.get(KEY), DAY_MS) == 1
    manager.unlock()
    manager, log = managed(tmp_path)
    assert log.state == (3, 1, 3, 3)
    manager.unlock()


# The service


async def test_the_service_retains_and_removes(tmp_path: Path) -> None:
    settings = {"log_retention_check_interval_ms": "20", "file_delete_delay_ms": "0"}
    async with running(tmp_path, **settings) as storage:
        await storage.create(key(), retention_ms="0")
        await storage.create(key(1), cleanup_policy="compact", retention_ms="0")
        for partition in (key(), key(1)):
            await storage.fence(FOLLOWER, 1, [partition])
            await storage.append(
                FOLLOWER,
                partition=partition,
                leader_epoch=1,
                expected_offset=0,
                records=batch(3, epoch=1),
                leader_high_watermark=3,
            )
        directory = tmp_path / "data" / "t-0"
        while [path.name for path in directory.glob("*.log*")] != ["00000000000000000003.log"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        gone = await storage.read(key(), 0)
        assert (gone.error.code, gone.log.log_start_offset) == (Code.OFFSET_OUT_OF_RANGE, 3)
        assert (await storage.read(key(1), 0)).records
        await storage.fence(LEADER, 2, [key()])
        result = await storage.append(
            LEADER, partition=key(), leader_epoch=2, expected_offset=3, records=batch(2, timestamp=1 << 41)
        )
        assert (result.base_offset, result.log.log_start_offset) == (3, 3)


async def test_files_stay_for_a_while_after_they_were_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`file.delete.delay.ms`: who is reading them by name, a backup say, comes to its end."""
    monkeypatch.setattr(service, "HOUSEKEEPING_MS", 10)
    now = [monotonic_ms()]
    monkeypatch.setattr(service, "monotonic_ms", lambda: now[0])
    async with running(tmp_path, file_delete_delay_ms="60000", log_retention_check_interval_ms="20") as storage:
        await storage.create(key(), retention_ms="0")
        await storage.fence(FOLLOWER, 1, [key()])
        fields = {"leader_epoch": 1, "expected_offset": 0, "leader_high_watermark": 3}
        await storage.append(FOLLOWER, partition=key(), records=batch(3, epoch=1), **fields)
        deleted = tmp_path / "data" / "t-0" / "00000000000000000000.log.deleted"
        while not (deleted.exists() and storage.service._to_remove):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        unlinked_by: list[str] = []
        unlink = Path.unlink

        def observed(path: Path, *, missing_ok: bool = False) -> None:
            if path.suffix == ".deleted":
                unlinked_by.append(threading.current_thread().name)
            unlink(path, missing_ok=missing_ok)

        monkeypatch.setattr(Path, "unlink", observed)
        now[0] += 59_999
        await asyncio.sleep(PATIENCE_S)
        assert deleted.exists()
        now[0] += 60_000
        while deleted.exists():  # noqa: ASYNC110  (bounded by the test's deadline)
            await asyncio.sleep(0.01)
        assert unlinked_by
        assert all(name.startswith("log-storage") for name in unlinked_by)  # not the loop, that others wait for


async def test_after_a_restart_nothing_goes_before_the_topic_s_configuration_is_known(tmp_path: Path) -> None:
    """The broker's own would let go of what the topic keeps for ever."""
    config = {"retention_ms": "-1"}
    async with running(tmp_path) as storage:
        for partition in (key(), key(1)):
            await storage.create(partition, **(config if partition == key() else {}))
            await storage.fence(FOLLOWER, 1, [partition])
            await storage.append(
                FOLLOWER,
                partition=partition,
                leader_epoch=1,
                expected_offset=0,
                records=batch(3, epoch=1),
                leader_high_watermark=3,
            )
    async with running(tmp_path, log_retention_check_interval_ms="10", log_retention_ms="0") as storage:

        async def log_starts() -> list[int]:
            described = await storage.stub.DescribeLogs(log_storage_pb2.DescribeLogsRequest())
            return [log.log.log_start_offset for log in sorted(described.logs, key=lambda log: log.partition.partition)]

        await asyncio.sleep(PATIENCE_S)
        assert await log_starts() == [0, 0]
        await storage.create(key(), **config)
        await storage.create(key(1))
        while (await log_starts())[1] != 3:  # noqa: ASYNC110  (bounded by the test's deadline)
            await asyncio.sleep(0.01)
        assert await log_starts() == [0, 3]
