"""Log-storage's rounds look at the logs of which something is due: at all of these, and at no others."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from weakref import ref

import pytest
from log_storage_batches import append, batch, produced
from log_storage_client import FOLLOWER, LEADER, Storage, key, running
from test_cleaner_choice import WITHOUT_CLEANER, cleaner_of
from test_cleaner_service import COMPACT, fill

from highwater.log_storage.clock import monotonic_ms
from highwater.log_storage.compaction.cleaner_job import PassLimits
from highwater.log_storage.compaction.cleaner_worker import CleanerWorker
from highwater.log_storage.config import LogConfig
from highwater.log_storage.log.log import Log
from highwater.log_storage.log_manager.due_logs import has_chores, unfiled_high_watermark
from highwater.log_storage.log_manager.flush_times import FlushTimes, flush_due_ms
from highwater.log_storage.log_manager.hosted_log import HostedLog
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.log_storage.log_manager.log_registry import LogRegistry
from highwater.log_storage.segment.damage import DamagedRange
from highwater.log_storage.service import LogStorageService
from highwater.model.partition import PartitionKey
from highwater.rpc.partition_keys import from_key
from highwater.v1 import log_storage_pb2

HOUR_MS = 3_600_000
NEVER_MS = 2**63 - 1
STEPS = 120


def log_of(storage: Storage, partition: int = 0) -> HostedLog:
    return storage.service._manager.logs.get(from_key(key(partition)))


def missed(logs: LogRegistry) -> list[str]:
    """Finds by a walk over all logs what is due of them, and no round would meet."""
    found = []
    alone = [each for each in logs if not each.busy]
    for each in sorted(alone, key=lambda each: flush_due_ms(each) or 0):
        due_ms = flush_due_ms(each)
        if due_ms is not None and each not in logs.due.to_flush(due_ms):
            found.append(f"the flush of {each.directory}")
    with_chores, high_watermarks = logs.due.with_chores(), dict(logs.due.with_high_watermark())
    found += [f"the chores of {each.directory}" for each in alone if has_chores(each) and each not in with_chores]
    for each in alone:
        if unfiled_high_watermark(each) != high_watermarks.get(each):
            found.append(f"the high watermark of {each.directory}")
    return found


# -- the cost of a round ----------------------------------------------------------------------------------------------


@contextmanager
def counted_looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[HostedLog]]:
    """Each look that is taken at a log meanwhile."""
    looks: list[HostedLog] = []

    def look(hosted: HostedLog) -> Log | None:
        looks.append(hosted)
        return hosted.__dict__["log"]  # type: ignore[no-any-return]

    with monkeypatch.context() as patched:
        patched.setattr(HostedLog, "log", property(look), raising=False)
        yield looks


def host_idle(service: LogStorageService, log: Log, count: int) -> list[HostedLog]:
    """All of them are the same log: they have been appended to, and nothing is due of them."""
    logs = service._manager.logs
    (first,) = logs
    idle = [HostedLog(PartitionKey(bytes(16), n), "idle", first.log_dir, first.directory, log) for n in range(count)]
    for each in idle:
        each.configured = True
        each.flushed_ms = monotonic_ms()
        logs.add(each)
    return idle


async def look_around(service: LogStorageService) -> None:
    flushes = service._servicer.flushes
    await flushes.flush_due()
    await service._housekeep()
    await flushes.checkpoint_high_watermarks()
    await service._look_after_dirs()


@pytest.mark.parametrize("flush_ms", [HOUR_MS, NEVER_MS])
async def test_a_round_costs_the_same_beside_however_many_idle_logs(
    tmp_path: Path, flush_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks_taken = []
    async with running(tmp_path, log_flush_interval_ms=str(flush_ms)) as storage:
        await storage.create(key())
        log = log_of(storage).online()
        log.append_as_leader(produced(sequence=0), 1, 0, 0)
        for count in (1_000, 3_000):
            idle = host_idle(storage.service, log, count)
            for _ in range(2):
                await look_around(storage.service)
            with counted_looks(monkeypatch) as looks:
                await look_around(storage.service)
            looks_taken.append(len(looks))
            for each in idle:
                storage.service._manager.logs.take_out(each)
    assert looks_taken[0] == looks_taken[1] <= 10


def test_entries_that_are_void_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    times, hosted = FlushTimes(), object()
    due_ms = 10_000
    monkeypatch.setattr("highwater.log_storage.log_manager.flush_times.flush_due_ms", lambda _: due_ms)
    for due_ms in range(10_000, 0, -1):  # noqa: B007
        times.note(hosted)  # type: ignore[arg-type]
    assert len(times._entries) <= 70
    assert times.due(0) == []
    assert times.due(1) == times.due(1) == [hosted]
    times.forget(hosted)  # type: ignore[arg-type]
    assert times.due(20_000) == []


# -- nothing that is due is missed ------------------------------------------------------------------------------------


async def test_a_shorter_flush_ms_counts_for_what_was_appended_before(tmp_path: Path) -> None:
    """Of a topic, and of the broker for topics that set none."""
    async with running(tmp_path, log_flush_scheduler_interval_ms="5", log_flush_interval_ms=str(NEVER_MS)) as storage:
        for partition in range(2):
            await storage.create(key(partition))
        await storage.fence(LEADER, 1, [key(0), key(1)])
        for partition in range(2):
            await storage.append(
                LEADER, partition=key(partition), leader_epoch=1, expected_offset=0, records=produced(sequence=0)
            )
        await asyncio.sleep(0.05)
        assert [log_of(storage, partition).online().synced_offset for partition in range(2)] == [0, 0]
        await storage.stub.AlterLogConfig(
            log_storage_pb2.AlterLogConfigRequest(partition=key(0), config={"flush.ms": "1"})
        )
        while log_of(storage, 0).online().synced_offset < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert log_of(storage, 1).online().synced_offset == 0
        await storage.service._take_config({"log.flush.interval.ms": "1"})
        while log_of(storage, 1).online().synced_offset < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_a_log_that_is_changed_while_it_stands_still_is_looked_at_afterwards(tmp_path: Path) -> None:
    async with running(tmp_path) as storage:
        await storage.create(key(), segment_bytes="1024")
        hosted, due = log_of(storage), storage.service._manager.logs.due
        log = hosted.online()
        async with hosted.alone():
            due.touch(hosted)
            for sequence in range(30):
                log.append_as_leader(produced(sequence=sequence), 1, sequence, 0)
            assert due.with_chores() == []
        assert due.with_chores() == [hosted]


async def test_what_nobody_told_of_is_found_with_the_next_checkpoint(tmp_path: Path) -> None:
    async with running(tmp_path) as storage:
        await storage.create(key(), segment_bytes="1024")
        logs = storage.service._manager.logs
        log = log_of(storage).online()
        assert missed(logs) == []
        for sequence in range(30):
            log.append_as_leader(produced(sequence=sequence), 1, sequence, 0)
        assert len(missed(logs)) == 2
        await storage.service._checkpoint()
        assert missed(logs) == []


async def test_segments_that_compaction_has_replaced_are_to_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("highwater.log_storage.service.HOUSEKEEPING_MS", HOUR_MS)
    async with running(tmp_path, **WITHOUT_CLEANER) as storage:
        await storage.create(key(), **COMPACT)
        await storage.fence(LEADER, 1, [key()])
        await fill(storage, 41)
        hosted, due = log_of(storage), storage.service._manager.logs.due
        await storage.service._servicer.flushes.flush(hosted)
        assert due.with_chores() == []
        worker = CleanerWorker(PassLimits())
        try:
            assert await cleaner_of(storage).clean_next(worker)
        finally:
            await worker.close()
        assert hosted.online().segment_list.removable
        assert due.with_chores() == [hosted]


async def test_segments_that_a_copy_lets_go_of_as_it_takes_the_place_are_to_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log start has risen since they were copied."""
    monkeypatch.setattr("highwater.log_storage.service.HOUSEKEEPING_MS", HOUR_MS)
    async with running(tmp_path, **SETTINGS, log_dirs=f"{tmp_path}/a,{tmp_path}/b") as storage:
        await storage.create(key(), segment_bytes="1024")
        service, hosted = storage.service, log_of(storage)
        log, moves, due = hosted.online(), service._servicer.moves, service._manager.logs.due
        for _ in range(40):
            append(log, batch())
        log.offsets.raise_high_watermark(40)
        (target,) = [each for each in service._manager.logs.log_dirs if each is not hosted.log_dir]
        service._manager.mover.start_move(hosted.key, str(target.path))
        future = hosted.future
        assert future is not None
        while await moves._copy(hosted, future):
            pass
        log.log_start.raise_to(log.segments[2].base_offset)
        await service._servicer.flushes.flush(hosted)
        log.segment_list.take_removable()
        assert due.with_chores() == []
        await moves._swap(hosted, future)
        assert hosted.online().segment_list.removable
        assert due.with_chores() == [hosted]


async def test_a_high_watermark_that_waited_for_the_disk_is_written_after_the_flush(tmp_path: Path) -> None:
    async with running(tmp_path, **SETTINGS) as storage:
        await storage.create(key(), flush_messages="1")
        service, hosted = storage.service, log_of(storage)
        due = service._manager.logs.due
        await service._servicer.flushes.checkpoint_high_watermarks()
        append(hosted.online(), batch())
        hosted.online().offsets.raise_high_watermark(1)
        due.touch(hosted)
        assert due.with_high_watermark() == []
        await service._servicer.flushes.flush(hosted)
        assert due.with_high_watermark() == [(hosted, 1)]


def test_a_log_that_is_there_when_it_is_to_be_made_is_looked_at(tmp_path: Path) -> None:
    manager = LogManager([tmp_path], LogConfig(), broker_id=1)
    manager.load()
    partition = PartitionKey(bytes(16), 0)
    manager.create("t", partition, {"flush.ms": str(HOUR_MS)})
    hosted = manager.logs.get(partition)
    append(hosted.online(), batch())
    assert manager.logs.due.to_flush(1) == []
    manager.create("t", partition, {"flush.ms": "1"})
    assert manager.logs.due.to_flush(1) == [hosted]
    manager.close()


async def test_a_log_that_is_deleted_is_kept_by_nobody(tmp_path: Path) -> None:
    async with running(tmp_path) as storage:
        await storage.create(key())
        await storage.fence(LEADER, 1, [key()])
        await storage.append(LEADER, partition=key(), leader_epoch=1, expected_offset=0, records=batch())
        due = storage.service._manager.logs.due
        assert due.with_chores() == []
        hosted = ref(log_of(storage))
        await storage.stub.DeleteLog(log_storage_pb2.DeleteLogRequest(partition=key(), leader_epoch=1))
        await look_around(storage.service)
        gc.collect()
        assert hosted() is None or hosted() not in due._flush_times._noted_ms


async def test_a_flush_that_is_cut_short_is_due_still(tmp_path: Path) -> None:
    async with running(tmp_path, log_flush_interval_ms="0", log_flush_scheduler_interval_ms=str(HOUR_MS)) as storage:
        await storage.create(key(), segment_bytes="1024")
        await storage.fence(LEADER, 1, [key()])
        await storage.append(LEADER, partition=key(), leader_epoch=1, expected_offset=0, records=produced(sequence=0))
        hosted, flushes = log_of(storage), storage.service._servicer.flushes
        async with hosted.maintenance:
            flushing = asyncio.create_task(flushes.flush_due())
            await asyncio.sleep(0.01)
            flushing.cancel()
            await asyncio.wait((flushing,))
        assert hosted.online().synced_offset == 0
        await flushes.flush_due()
        assert hosted.online().synced_offset == 1
        assert storage.service._manager.logs.due.to_flush(NEVER_MS) == []


class Walk:
    """Random steps over three logs in two directories; each may be refused."""

    def __init__(self, storage: Storage, directory: Path, seed: int) -> None:
        self.storage = storage
        self.random = Random(seed)
        self.directory = directory
        self.epoch = 0
        self.steps = [
            self.lead,
            self.lead,
            self.lead,
            self.follow,
            self.follow,
            self.move_high_watermark,
            self.move_high_watermark,
            self.cut,
            self.restart,
            self.raise_log_start,
            self.configure,
            self.configure_broker,
            self.retain,
            self.move,
            self.delete,
            self.drop_damaged,
            self.create_again,
            self.flush,
            self.look_around,
        ]

    async def step(self) -> str:
        partition = self.random.randrange(3)
        work = self.random.choice(self.steps)
        self.hosted = log_of(self.storage, partition)
        self.log = self.hosted.online()
        self.partition = key(partition)
        await work()
        return f"{work.__name__} of {partition}"

    async def _fence(self, role: int) -> None:
        self.epoch += 1
        await self.storage.fence(role, self.epoch, [self.partition])

    async def _append(self, role: int, **fields: Any) -> None:
        await self.storage.append(
            role,
            partition=self.partition,
            leader_epoch=self.epoch,
            expected_offset=self.log.log_end_offset,
            **fields,
        )

    async def lead(self) -> None:
        await self._fence(LEADER)
        await self._append(LEADER, records=batch(self.random.randrange(1, 40)))

    async def follow(self) -> None:
        await self._fence(FOLLOWER)
        end = self.log.log_end_offset
        await self._append(
            FOLLOWER,
            records=batch(self.random.randrange(1, 40), base_offset=end, epoch=self.epoch),
            leader_high_watermark=self.random.randint(0, end + 10),
            leader_log_start_offset=self.random.choice([0, self.random.randint(0, end)]),
        )

    async def move_high_watermark(self) -> None:
        await self._fence(LEADER)
        offset = self.random.randint(0, self.log.log_end_offset)
        request = log_storage_pb2.CheckpointHighWatermarksRequest()
        request.partitions.add(partition=self.partition, leader_epoch=self.epoch, high_watermark=offset)
        await self.storage.stub.CheckpointHighWatermarks(request)

    async def cut(self) -> None:
        await self._fence(FOLLOWER)
        offset = self.random.randint(self.log.high_watermark, self.log.log_end_offset)
        await self.storage.stub.TruncateTo(
            log_storage_pb2.TruncateToRequest(
                partition=self.partition, leader_epoch=self.epoch, offset=offset, unclean_epoch=-1
            )
        )

    async def restart(self) -> None:
        await self._fence(FOLLOWER)
        await self.storage.stub.TruncateFullyAndStartAt(
            log_storage_pb2.TruncateFullyAndStartAtRequest(
                partition=self.partition,
                leader_epoch=self.epoch,
                offset=self.log.log_end_offset + 5,
                unclean_epoch=-1,
            )
        )

    async def raise_log_start(self) -> None:
        await self._fence(LEADER)
        offset = self.random.randint(self.log.log_start_offset, self.log.high_watermark)
        await self.storage.stub.RaiseLogStart(
            log_storage_pb2.RaiseLogStartRequest(
                partition=self.partition, leader_epoch=self.epoch, log_start_offset=offset
            )
        )

    async def configure(self) -> None:
        config = {"segment.bytes": "1024", "flush.ms": str(self.random.choice([1, 1_000, HOUR_MS]))}
        config["flush.messages"] = str(self.random.choice([1, 1_000]))
        config["retention.bytes"] = str(self.random.choice([0, 3_000, 100_000]))
        await self.storage.stub.AlterLogConfig(
            log_storage_pb2.AlterLogConfigRequest(partition=self.partition, config=config)
        )

    async def configure_broker(self) -> None:
        flush_ms = self.random.choice([1, 1_000, HOUR_MS])
        await self.storage.service._take_config({"log.flush.interval.ms": str(flush_ms)})

    async def retain(self) -> None:
        await self.storage.service._servicer.flushes.retain()

    async def move(self) -> None:
        request = log_storage_pb2.AlterLogDirsRequest()
        request.moves.add(partition=self.partition, log_dir=str(self.directory / self.random.choice("ab")))
        await self.storage.stub.AlterReplicaLogDirs(request)
        while self.hosted.future is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    async def delete(self) -> None:
        await self.storage.stub.DeleteLog(
            log_storage_pb2.DeleteLogRequest(partition=self.partition, leader_epoch=self.epoch)
        )
        await self.storage.create(self.partition, segment_bytes="1024")

    async def drop_damaged(self) -> None:
        segment = self.random.choice(self.log.segments)
        self.log.damage.note(segment, [DamagedRange(segment.base_offset, segment.base_offset, "flipped")])
        self.epoch += 1
        await self.storage.stub.DropDamaged(
            log_storage_pb2.DropDamagedRequest(partition=self.partition, leader_epoch=self.epoch)
        )

    async def create_again(self) -> None:
        await self.storage.create(self.partition, segment_bytes="1024", flush_ms=str(self.random.choice([1, HOUR_MS])))

    async def flush(self) -> None:
        request = log_storage_pb2.FlushRequest(partitions=[self.partition])
        await self.storage.stub.Flush(request)

    async def look_around(self) -> None:
        await look_around(self.storage.service)


async def look_all_the_time(logs: LogRegistry) -> None:
    """Between many steps of whatever goes on, and some of its threads' time is left to them."""
    while True:
        for pause_s in (0, 0, 0, 0.0005):
            logs.due.with_chores()
            await asyncio.sleep(pause_s)


SETTINGS = {
    "log_flush_scheduler_interval_ms": str(HOUR_MS),
    "replica_high_watermark_checkpoint_interval_ms": str(HOUR_MS),
    "log_flush_interval_ms": str(HOUR_MS),
    "file_delete_delay_ms": "0",
}


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_happens_to_logs_the_next_rounds_meet_what_is_due(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("highwater.log_storage.service.HOUSEKEEPING_MS", HOUR_MS)
    settings = SETTINGS | {"log_dirs": f"{tmp_path}/a,{tmp_path}/b"}
    done = []
    async with running(tmp_path, **settings) as storage:
        for partition in range(3):
            await storage.create(key(partition), segment_bytes="1024")
        walk = Walk(storage, tmp_path, seed)
        logs = storage.service._manager.logs
        looking = asyncio.create_task(look_all_the_time(logs))
        for _ in range(STEPS):
            done.append(await walk.step())
            assert missed(logs) == [], done[-3:]
        looking.cancel()
        for partition in range(3):
            await storage.stub.AlterLogConfig(
                log_storage_pb2.AlterLogConfigRequest(partition=key(partition), config={"flush.ms": "0"})
            )
        for _ in range(2):
            await look_around(storage.service)
        assert logs.due.to_flush(NEVER_MS) == logs.due.with_chores() == logs.due.with_high_watermark() == []
        assert all(each.online().synced_offset == each.online().log_end_offset for each in logs)
    async with running(tmp_path, **settings) as storage:
        assert missed(storage.service._manager.logs) == []


@pytest.mark.parametrize("whole_directory", [False, True])
async def test_logs_that_are_offline_are_not_looked_at_again_and_again(
    tmp_path: Path, whole_directory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stay offline until the next start."""
    async with running(tmp_path, **SETTINGS) as storage:
        await storage.create(key(), segment_bytes="1024", flush_ms="0")
        await storage.fence(LEADER, 1, [key()])
        for offset in range(30):
            await storage.append(
                LEADER, partition=key(), leader_epoch=1, expected_offset=offset, records=produced(sequence=offset)
            )
        hosted, logs = log_of(storage), storage.service._manager.logs
        assert logs.due.with_chores() == logs.due.to_flush(monotonic_ms()) == [hosted]
        if whole_directory:
            hosted.log_dir.disk.fail("gone")
        else:
            hosted.online().context.fail("gone")
        for _ in range(2):
            await look_around(storage.service)
        with counted_looks(monkeypatch) as looks:
            await look_around(storage.service)
        assert looks == []
