"""Compaction as the service runs it: a process of its own, aborted by who needs the log alone, and not by appends."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from log_storage_client import FOLLOWER, LEADER, Storage, key, running

from highwater.log_storage.compaction.cleaner_job import CleanJob
from highwater.log_storage.compaction.cleaner_worker import CleanerWorker
from highwater.log_storage.compaction.offset_map import ENTRY_BYTES
from highwater.log_storage.compaction.segment_swap import DueJob
from highwater.log_storage.files.checkpoints import CLEANER_OFFSETS, read_offsets
from highwater.log_storage.log.log import Log
from highwater.log_storage.log_manager.cleaning_state import CleaningState
from highwater.log_storage.segment.segment_files import CLEANED_SUFFIX, LOG_SUFFIX
from highwater.model.partition import PartitionKey
from highwater.records import Record, decode, encode_rows, iter_batches
from highwater.v1 import log_storage_pb2

SETTINGS = {
    "log_cleaner_backoff_ms": "20",
    "log_cleaner_min_cleanable_ratio": "0",
    "replica_high_watermark_checkpoint_interval_ms": "50",
    "file_delete_delay_ms": "0",
}
COMPACT = {"cleanup_policy": "compact", "segment_bytes": "1024"}
THROTTLED = {"log_cleaner_io_max_bytes_per_second": "200"}  # a pass over the few KB of these tests takes for ever


def rows(*pairs: tuple[bytes | None, bytes | None], timestamp: int = 1000, **fields: int) -> bytes:
    return encode_rows([Record(0, timestamp, key, value, ()) for key, value in pairs], **fields)  # type: ignore[arg-type]


def log_of(storage: Storage, partition: int = 0) -> Log:
    manager = storage.service._manager
    return manager.logs.get(PartitionKey(b"t" * 16, partition)).online()


async def fill(storage: Storage, count: int, keys: int = 4, first: int = 0, epoch: int = 1, partition: int = 0) -> None:
    """Batches of one record, all of them committed; the last of them in the active segment."""
    for number in range(first, first + count):
        result = await storage.append(
            LEADER,
            partition=key(partition),
            leader_epoch=epoch,
            expected_offset=number,
            records=rows((b"key-%d" % (number % keys), b"%d" % number + b"." * 200)),
        )
        assert result.last_offset == number
    await commit(storage, first + count, epoch, partition)


async def commit(storage: Storage, high_watermark: int, epoch: int = 1, partition: int = 0) -> None:
    await storage.stub.Flush(log_storage_pb2.FlushRequest(partitions=[key(partition)]))
    request = log_storage_pb2.CheckpointHighWatermarksRequest()
    request.partitions.add(partition=key(partition), leader_epoch=epoch, high_watermark=high_watermark)
    assert not (await storage.stub.CheckpointHighWatermarks(request)).errors


async def read_records(storage: Storage) -> list[Record]:
    found: list[Record] = []
    offset = 0
    while True:
        answer = await storage.read(key(), offset)
        if not answer.records:
            assert answer.log.log_end_offset == offset
            return found
        for position, header in iter_batches(answer.records):
            found += decode(answer.records, position).records()
            offset = header.next_offset


async def until(condition: Any) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def cleaner_offset(directory: Path) -> int | None:
    return read_offsets(directory / "data" / CLEANER_OFFSETS).get(("t", 0))


async def test_a_compacted_log_keeps_the_last_value_of_every_key(tmp_path: Path) -> None:
    async with running(tmp_path, **SETTINGS) as storage:
        await storage.create(key(), **COMPACT)
        await storage.create(key(1), segment_bytes="1024")
        await storage.fence(LEADER, 1, [key()])
        await fill(storage, 41)
        log = log_of(storage)
        await until(lambda: cleaner_offset(tmp_path) == log.segments[-1].base_offset)
        assert log.cleaned_to == cleaner_offset(tmp_path)
        records = await read_records(storage)
        compacted = [record for record in records if record.offset < (log.cleaned_to or 0)]
        assert len(compacted) == len({record.key for record in compacted}) == 4
        assert {record.key: int((record.value or b"").strip(b".")) for record in records} == {
            b"key-0": 40,
            b"key-1": 37,
            b"key-2": 38,
            b"key-3": 39,
        }
        assert all(record.value == b"%d" % record.offset + b"." * 200 for record in records)
        directory = tmp_path / "data" / "t-0"
        await until(lambda: len(list(directory.glob("*.log*"))) == len(log.segments))
        await until(lambda: not list(directory.glob("*.deleted")))
        assert {path.suffix for path in directory.iterdir() if path.name[0].isdigit()} <= {
            LOG_SUFFIX,
            ".index",
            ".timeindex",
            ".snapshot",
        }
        passes = "highwater_log_storage_cleaner_passes_total", {"outcome": "done"}
        await until(lambda: storage.service.metrics.registry.get_sample_value(*passes))
        before = await read_records(storage)
    async with running(tmp_path, **SETTINGS) as storage:
        assert log_of(storage).cleaned_to == cleaner_offset(tmp_path)
        assert await read_records(storage) == before


async def test_nothing_is_compacted_where_the_topic_or_the_broker_does_not_say_so(tmp_path: Path) -> None:
    async with running(tmp_path, log_cleaner_enable="false", **SETTINGS) as storage:
        await storage.create(key(), **COMPACT)
        await storage.fence(LEADER, 1, [key()])
        await fill(storage, 12)
        assert "cleaner" not in {task.get_name() for task in asyncio.all_tasks()}
    async with running(tmp_path, **SETTINGS) as storage:
        # Before the topic's configuration has been given again nothing is touched.
        await until(
            lambda: (
                storage.service.metrics.registry.get_sample_value("highwater_log_storage_cleaner_max_dirty_ratio")
                is not None
            )
        )
        assert len(await read_records(storage)) == 12


async def test_the_brokers_policy_is_that_of_topics_without_one(tmp_path: Path) -> None:
    async with running(tmp_path, log_cleanup_policy="compact", **SETTINGS) as storage:
        await storage.create(key(), segment_bytes="1024")
        await storage.create(key(1), segment_bytes="1024", cleanup_policy="delete")
        assert [(log.config.compacts, log.config.deletes) for log in (log_of(storage), log_of(storage, 1))] == [
            (True, False),
            (False, True),
        ]
        await storage.fence(LEADER, 1, [key()])
        await fill(storage, 41)
        log = log_of(storage)
        await until(lambda: log.cleaned_to == log.segments[-1].base_offset)
        records = [record for record in await read_records(storage) if record.offset < (log.cleaned_to or 0)]
        assert len({record.key for record in records}) == len(records) == 4
        # A policy of its own that is taken away again gives way to the broker's.
        for policy, compacts in (({"cleanup.policy": "delete"}, False), ({}, True)):
            altered = log_storage_pb2.AlterLogConfigRequest(partition=key(), config=policy)
            assert not (await storage.stub.AlterLogConfig(altered)).error.code
            assert log.config.compacts is compacts


async def test_a_map_too_small_takes_several_passes(tmp_path: Path) -> None:
    small = {"log_cleaner_dedupe_buffer_size": str(70 * ENTRY_BYTES)}
    async with running(tmp_path, **SETTINGS, **small) as storage:
        await storage.create(key(), **COMPACT)
        await storage.fence(LEADER, 1, [key()])
        await fill(storage, 160, keys=75)
        log = log_of(storage)
        await until(lambda: log.cleaned_to == log.segments[-1].base_offset)
        records = [record for record in await read_records(storage) if record.offset < (log.cleaned_to or 0)]
        assert len({record.key for record in records}) == len(records)
        assert {record.offset for record in records} == set(range((log.cleaned_to or 0) - 75, log.cleaned_to or 0))


async def test_appends_and_reads_go_on_and_who_needs_the_log_alone_stops_it(tmp_path: Path) -> None:
    async with running(tmp_path, **SETTINGS, **THROTTLED) as storage:
        await storage.create(key(), **COMPACT)
        await storage.fence(LEADER, 1, [key()])
        await fill(storage, 41)
        log = log_of(storage)
        directory = tmp_path / "data" / "t-0"
        manager = storage.service._manager
        [hosted] = manager.logs
        await until(lambda: hosted.abort_cleaning is not None)
        await fill(storage, 4, first=41)
        assert len(await read_records(storage)) == 45
        assert log.cleaned_to is None
        await storage.fence(FOLLOWER, 2, [key()])
        cut = log_storage_pb2.TruncateToRequest(partition=key(), leader_epoch=2, offset=20, unclean_epoch=2)
        answer = await storage.stub.TruncateTo(cut)
        assert (answer.error.code, answer.log.log_end_offset) == (0, 20)
        assert not list(directory.glob(f"*{CLEANED_SUFFIX}"))
        assert len(await read_records(storage)) == 20
        delete = log_storage_pb2.DeleteLogRequest(partition=key(), leader_epoch=2)
        assert not (await storage.stub.DeleteLog(delete)).error.code
        assert storage.service.metrics.registry.get_sample_value(
            "highwater_log_storage_cleaner_passes_total", {"outcome": "aborted"}
        )


@pytest.mark.parametrize("held", ["the job", "the process"])
async def test_who_needs_the_log_alone_stops_a_pass_before_it_has_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: str
) -> None:
    begun, free = threading.Event(), threading.Event()
    complete, start = DueJob.complete, CleanerWorker._start

    def completed(due: DueJob) -> CleanJob:
        begun.set()
        assert free.wait(10)
        return complete(due)

    async def started(worker: CleanerWorker) -> asyncio.subprocess.Process:
        begun.set()
        await asyncio.to_thread(free.wait, 10)
        return await start(worker)

    if held == "the job":
        monkeypatch.setattr(DueJob, "complete", completed)
    else:
        monkeypatch.setattr(CleanerWorker, "_start", started)
    async with running(tmp_path, **SETTINGS, **THROTTLED) as storage:
        await storage.create(key(), **COMPACT)
        await storage.fence(LEADER, 1, [key()])
        await fill(storage, 41)
        manager = storage.service._manager
        [hosted] = manager.logs
        await until(begun.is_set)
        delete = log_storage_pb2.DeleteLogRequest(partition=key(), leader_epoch=1)
        deleted = asyncio.ensure_future(storage.stub.DeleteLog(delete))
        await until(lambda: hosted.cleaning.state is CleaningState.ABORTED)
        free.set()
        assert not (await deleted).error.code


async def test_a_stop_in_the_middle_of_a_pass_leaves_a_clean_log(tmp_path: Path) -> None:
    async with running(tmp_path, **SETTINGS, **THROTTLED) as storage:
        await storage.create(key(), **COMPACT)
        await storage.fence(LEADER, 1, [key()])
        await fill(storage, 41)
        [hosted] = storage.service._manager.logs
        await until(lambda: hosted.abort_cleaning is not None)
    directory = tmp_path / "data" / "t-0"
    assert not list(directory.glob(f"*{CLEANED_SUFFIX}"))
    async with running(tmp_path, **SETTINGS) as storage:
        assert len(await read_records(storage)) == 41


async def test_a_truncation_below_what_was_clean_makes_it_dirty_again(tmp_path: Path) -> None:
    async with running(tmp_path, **SETTINGS) as storage:
        await storage.create(key(), **COMPACT)
        await storage.fence(LEADER, 1, [key()])
        await fill(storage, 41)
        log = log_of(storage)
        await until(lambda: log.cleaned_to == log.segments[-1].base_offset)
        await storage.fence(FOLLOWER, 2, [key()])
        cut = log_storage_pb2.TruncateToRequest(partition=key(), leader_epoch=2, offset=10, unclean_epoch=2)
        end = (await storage.stub.TruncateTo(cut)).log.log_end_offset
        assert end <= 10
        assert (log.cleaned_to or 0) <= end
        assert (cleaner_offset(tmp_path) or 0) <= end


async def test_a_damaged_log_is_left_alone_and_counted(tmp_path: Path) -> None:
    async with running(tmp_path, **SETTINGS, log_cleaner_enable="false") as storage:
        await storage.create(key(), **COMPACT)
        await storage.fence(LEADER, 1, [key()])
        await fill(storage, 41)
    first = tmp_path / "data" / "t-0" / "00000000000000000000.log"
    content = bytearray(first.read_bytes())
    content[100] ^= 1
    first.write_bytes(content)
    async with running(tmp_path, **SETTINGS) as storage:
        await storage.create(key(), **COMPACT)
        sample = storage.service.metrics.registry.get_sample_value
        await until(lambda: sample("highwater_log_storage_cleaner_uncleanable_logs") == 1)
        assert (sample("highwater_log_storage_cleaner_uncleanable_bytes") or 0) > 8000
        [hosted] = storage.service._manager.logs
        assert "CRC" in hosted.uncleanable
        assert first.read_bytes() == content
        assert not list(first.parent.glob(f"*{CLEANED_SUFFIX}"))


async def test_a_log_that_was_mended_is_compacted_again(tmp_path: Path) -> None:
    """RULES 7.6: the damaged segment is dropped, and what stood there copied again."""
    async with running(tmp_path, **SETTINGS, log_cleaner_enable="false") as storage:
        await storage.create(key(), **COMPACT)
        await storage.fence(LEADER, 1, [key()])
        await fill(storage, 41)
        second = log_of(storage).segments[1].path
    content = bytearray(second.read_bytes())
    content[100] ^= 1
    second.write_bytes(content)
    async with running(tmp_path, **SETTINGS, log_scrub_interval_ms="1000") as storage:
        await storage.create(key(), **COMPACT)
        [hosted] = storage.service._manager.logs
        await until(lambda: hosted.uncleanable and hosted.known_damage)
        await storage.fence(FOLLOWER, 2, [key()])
        drop = log_storage_pb2.DropDamagedRequest(partition=key(), leader_epoch=2)
        answer = await storage.stub.DropDamaged(drop)
        assert not answer.error.code, answer.error
        await storage.fence(LEADER, 3, [key()])
        await fill(storage, 40, first=answer.log.log_end_offset, epoch=3)
        log = log_of(storage)
        await until(lambda: log.cleaned_to == log.segments[-1].base_offset)
        assert not hosted.uncleanable
        sample = storage.service.metrics.registry.get_sample_value
        await until(lambda: sample("highwater_log_storage_cleaner_uncleanable_logs") == 0)


async def test_a_log_that_is_configured_anew_is_tried_again(tmp_path: Path) -> None:
    async with running(tmp_path, **SETTINGS) as storage:
        await storage.create(key(), **COMPACT)
        [hosted] = storage.service._manager.logs
        hosted.uncleanable = "its cleaned segment would be too large"
        await storage.create(key(), **COMPACT)
        assert hosted.uncleanable  # nothing has changed
        await storage.create(key(), **(COMPACT | {"segment_bytes": "2048"}))
        assert not hosted.uncleanable


async def test_compact_and_delete_together(tmp_path: Path) -> None:
    settings = SETTINGS | {"log_retention_check_interval_ms": "20"}
    async with running(tmp_path, **settings) as storage:
        await storage.create(
            key(), **(COMPACT | {"cleanup_policy": "compact,delete", "retention_bytes": "3000", "retention_ms": "-1"})
        )
        await storage.fence(LEADER, 1, [key()])
        await fill(storage, 60, keys=1000)
        log = log_of(storage)
        await until(lambda: log.size_bytes < 3000 + 1024 and log.cleaned_to == log.segments[-1].base_offset)
        assert log.log_start_offset > 0
        records = (await storage.read(key(), log.log_start_offset)).records
        assert decode(records).records()[0].offset == log.log_start_offset


async def test_two_logs_at_a_time(tmp_path: Path) -> None:
    async with running(tmp_path, **SETTINGS, **THROTTLED, log_cleaner_threads="2") as storage:
        for partition in (key(), key(1)):
            await storage.create(partition, **COMPACT)
            await storage.fence(LEADER, 1, [partition])
            for number in range(12):
                await storage.append(
                    LEADER,
                    partition=partition,
                    leader_epoch=1,
                    expected_offset=number,
                    records=rows((b"key", b"." * 300)),
                )
        await storage.stub.Flush(log_storage_pb2.FlushRequest())
        request = log_storage_pb2.CheckpointHighWatermarksRequest()
        for partition in (key(), key(1)):
            request.partitions.add(partition=partition, leader_epoch=1, high_watermark=12)
        await storage.stub.CheckpointHighWatermarks(request)
        manager = storage.service._manager
        await until(lambda: all(hosted.abort_cleaning is not None for hosted in manager.logs))
        # Each is stopped by itself.
        assert not (
            await storage.stub.DeleteLog(log_storage_pb2.DeleteLogRequest(partition=key(), leader_epoch=1))
        ).error.code
        [other] = manager.logs
        assert other.abort_cleaning is not None
