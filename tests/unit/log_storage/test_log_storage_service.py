"""The service over a Unix socket: fencing, the append stream, reads, cuts, deletion, checkpoints, restarts."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from log_storage_batches import batch, produced

from highwater.log_storage.service import LogStorageService
from highwater.rpc.channel import open_channel
from highwater.rpc.settings import LogStorageSettings, load
from highwater.v1 import common_pb2, log_storage_pb2, log_storage_pb2_grpc

LEADER, FOLLOWER = log_storage_pb2.LEADER, log_storage_pb2.FOLLOWER
Code = common_pb2.ErrorCode

DEADLINE_S = 20


class Storage:
    """A client of one log-storage, with the calls that the tests need."""

    def __init__(self, service: LogStorageService, stub: log_storage_pb2_grpc.LogStorageAsyncStub) -> None:
        self.service = service
        self.stub = stub

    async def create(self, partition: common_pb2.PartitionKey, topic: str = "t", **config: str) -> Any:
        keys = {key.replace("_", "."): value for key, value in config.items()}
        return await self.stub.CreateLog(
            log_storage_pb2.CreateLogRequest(topic=topic, partition=partition, config=keys)
        )

    async def fence(
        self, role: int, epoch: int, partitions: Iterable[common_pb2.PartitionKey], replica_manager: str = "rm"
    ) -> list[log_storage_pb2.FenceResult]:
        answer = await self.stub.FenceEpoch(
            log_storage_pb2.FenceEpochRequest(
                role=role,  # type: ignore[arg-type]
                replica_manager_incarnation=replica_manager,
                partitions=[
                    log_storage_pb2.FencePartition(partition=partition, leader_epoch=epoch) for partition in partitions
                ],
            )
        )
        assert answer.incarnation == self.service.incarnation
        return list(answer.results)

    async def append(self, role: int, **fields: Any) -> log_storage_pb2.AppendResult:
        """One request through a stream of its own."""
        call = self.stub.Append()
        await call.write(appending(role, **fields))
        answer = await call.read()
        await call.done_writing()
        return answer.results[0]

    async def read(self, partition: common_pb2.PartitionKey, offset: int, max_bytes: int = 1 << 20) -> Any:
        return await self.stub.Read(
            log_storage_pb2.ReadRequest(partition=partition, offset=offset, max_offset=-1, max_bytes=max_bytes)
        )


def appending(role: int, correlation_id: int = 0, **fields: Any) -> log_storage_pb2.AppendRequest:
    return log_storage_pb2.AppendRequest(
        correlation_id=correlation_id,
        role=role,  # type: ignore[arg-type]
        partitions=[log_storage_pb2.AppendPartition(**fields)],
    )


def key(partition: int = 0, topic: bytes = b"t") -> common_pb2.PartitionKey:
    return common_pb2.PartitionKey(topic_id=topic * 16, partition=partition)


@asynccontextmanager
async def running(directory: Path, **settings: str) -> AsyncIterator[Storage]:
    values = {
        "broker.id": "1",
        "log.dirs": str(directory / "data"),
        "listen": f"unix:{directory}/s",
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    service = LogStorageService(load(LogStorageSettings, values))
    await service.start()
    try:
        async with open_channel(service.addresses[0]) as channel, asyncio.timeout(DEADLINE_S):
            yield Storage(service, log_storage_pb2_grpc.LogStorageStub(channel))
    finally:
        await service.stop()


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[Storage]:
    async with running(tmp_path) as started:
        yield started


async def test_a_log_from_creation_to_deletion(storage: Storage) -> None:
    assert (await storage.create(key())).created
    assert not (await storage.create(key())).created
    assert (await storage.create(key(topic=b"u"))).error.code == Code.INCONSISTENT_TOPIC_ID
    [fence] = await storage.fence(LEADER, 3, [key()])
    assert (fence.fenced_epoch, fence.log.log_end_offset, fence.log.last_epoch) == (3, 0, -1)
    assert [(entry.leader_epoch, entry.start_offset) for entry in fence.epochs] == [(3, 0)]  # RULES 3.2
    result = await storage.append(LEADER, partition=key(), leader_epoch=3, expected_offset=0, records=batch(5))
    assert (result.base_offset, result.last_offset, result.log.log_end_offset, result.log.last_epoch) == (0, 4, 5, 3)
    read = await storage.read(key(), 2)
    assert len(read.records) == len(batch(5))
    assert (await storage.read(key(), 6)).error.code == Code.OFFSET_OUT_OF_RANGE
    found = await storage.stub.ListOffsets(
        log_storage_pb2.LogListOffsetsRequest(partition=key(), timestamp=1_003, max_offset=-1)
    )
    assert (found.offset, found.timestamp, found.leader_epoch) == (3, 1_003, 3)
    end = await storage.stub.EndOffsetForEpoch(
        log_storage_pb2.EndOffsetForEpochRequest(partition=key(), leader_epoch=7)
    )
    assert (end.leader_epoch, end.end_offset) == (3, 5)
    delete = log_storage_pb2.DeleteLogRequest(partition=key(), leader_epoch=2)
    assert (await storage.stub.DeleteLog(delete)).error.code == Code.STALE_FENCE
    delete.leader_epoch = 3
    assert not (await storage.stub.DeleteLog(delete)).error.code
    assert (await storage.read(key(), 0)).error.code == Code.UNKNOWN_TOPIC_ID
    assert (await storage.create(key(topic=b"u"))).created


async def test_what_the_fence_shuts_out(storage: Storage) -> None:
    """RULES 3.1."""
    await storage.create(key())

    async def code(role: int, epoch: int) -> int:
        result = await storage.append(role, partition=key(), leader_epoch=epoch, expected_offset=0, records=b"")
        return result.error.code

    assert await code(LEADER, 0) == Code.UNKNOWN_FENCE
    await storage.fence(FOLLOWER, 4, [key()])
    assert await code(FOLLOWER, 4) == Code.NONE
    assert await code(FOLLOWER, 3) == Code.STALE_FENCE
    assert await code(FOLLOWER, 5) == Code.STALE_FENCE
    assert await code(LEADER, 4) == Code.STALE_FENCE
    assert [r.error.code for r in await storage.fence(LEADER, 4, [key()])] == [Code.STALE_FENCE]
    assert [r.error.code for r in await storage.fence(FOLLOWER, 3, [key()])] == [Code.STALE_FENCE]
    refused, unknown = await storage.fence(FOLLOWER, 4, [key(), key(9)])
    assert refused.error.code == Code.NONE
    assert unknown.error.code == Code.UNKNOWN_TOPIC_ID
    assert unknown.fenced_epoch == -1
    await storage.fence(LEADER, 5, [key()])
    assert [r.error.code for r in await storage.fence(LEADER, 5, [key()], "another start")] == [Code.STALE_FENCE]
    assert [r.error.code for r in await storage.fence(LEADER, 5, [key()])] == [Code.NONE]
    assert await code(FOLLOWER, 5) == Code.STALE_FENCE
    assert await code(LEADER, 5) == Code.NONE


async def test_one_call_fences_many(storage: Storage) -> None:
    partitions = [key(number) for number in range(50)]
    for partition in partitions:
        await storage.create(partition)
    results = await storage.fence(LEADER, 1, partitions)
    assert [result.partition.partition for result in results] == list(range(50))
    assert not any(result.error.code for result in results)


async def test_the_stream_is_answered_in_order(storage: Storage) -> None:
    await storage.create(key())
    await storage.fence(LEADER, 1, [key()])
    call = storage.stub.Append()
    count = 200

    async def write() -> None:
        for number in range(count):
            request = appending(
                LEADER, number, partition=key(), leader_epoch=1, expected_offset=number, records=batch(value=b"x" * 900)
            )
            await call.write(request)
        await call.write(log_storage_pb2.AppendRequest(correlation_id=count, role=LEADER))  # the probe of RULES 8.2
        await call.done_writing()

    writer = asyncio.create_task(write())
    answers = [answer async for answer in call]
    await writer
    assert [answer.correlation_id for answer in answers] == list(range(count + 1))
    assert [answer.results[0].base_offset for answer in answers[:-1]] == list(range(count))
    assert not answers[-1].results
    assert {answer.incarnation for answer in answers} == {storage.service.incarnation}


async def test_after_a_refusal_what_was_pipelined_behind_is_refused_too(storage: Storage) -> None:
    """RULES 3.4."""
    await storage.create(key())
    await storage.fence(LEADER, 1, [key()])
    call = storage.stub.Append()
    for number, (offset, records) in enumerate([(0, batch(2)), (2, b"garbage"), (3, batch()), (2, batch())]):
        await call.write(
            appending(LEADER, number, partition=key(), leader_epoch=1, expected_offset=offset, records=records)
        )
    await call.done_writing()
    answers = [answer async for answer in call]
    codes = [answer.results[0].error.code for answer in answers]
    assert codes == [Code.NONE, Code.CORRUPT_MESSAGE, Code.OFFSET_MISMATCH, Code.NONE]
    assert [answer.results[0].log.log_end_offset for answer in answers] == [2, 2, 2, 3]
    assert [answer.results[0].base_offset for answer in answers] == [0, -1, -1, 2]


async def test_a_follower_and_its_cuts(storage: Storage) -> None:
    await storage.create(key())
    await storage.fence(FOLLOWER, 4, [key()])
    records = batch(3, epoch=1) + batch(2, base_offset=3, epoch=2)
    result = await storage.append(
        FOLLOWER,
        partition=key(),
        leader_epoch=4,
        expected_offset=0,
        records=records,
        leader_high_watermark=3,
        leader_log_start_offset=1,
    )
    assert (result.log.log_end_offset, result.log.high_watermark, result.log.log_start_offset) == (5, 3, 1)
    assert (await storage.read(key(), 1)).records == records

    async def truncate(offset: int, epoch: int = 4, unclean_epoch: int = -1) -> Any:
        return await storage.stub.TruncateTo(
            log_storage_pb2.TruncateToRequest(
                partition=key(), leader_epoch=epoch, offset=offset, unclean_epoch=unclean_epoch
            )
        )

    assert (await truncate(3, epoch=3)).error.code == Code.STALE_FENCE
    answer = await truncate(0)
    assert answer.error.code == Code.TRUNCATION_BELOW_HIGH_WATERMARK  # RULES 4.4
    assert answer.log.log_end_offset == 5
    assert (await truncate(3)).log.log_end_offset == 3
    restart = log_storage_pb2.TruncateFullyAndStartAtRequest(
        partition=key(), leader_epoch=4, offset=100, unclean_epoch=-1
    )
    answer = await storage.stub.TruncateFullyAndStartAt(restart)
    assert (answer.log.log_start_offset, answer.log.log_end_offset, answer.log.last_epoch) == (100, 100, -1)
    await storage.fence(LEADER, 5, [key()])
    assert (await truncate(100, epoch=5)).error.code == Code.STALE_FENCE  # only a follower is cut


async def test_high_watermarks_and_log_start_of_a_leader(storage: Storage, tmp_path: Path) -> None:
    await storage.create(key())
    await storage.fence(LEADER, 1, [key()])
    await storage.append(LEADER, partition=key(), leader_epoch=1, expected_offset=0, records=batch(8))
    answer = await storage.stub.CheckpointHighWatermarks(
        log_storage_pb2.CheckpointHighWatermarksRequest(
            partitions=[
                log_storage_pb2.PartitionHighWatermark(partition=key(), leader_epoch=1, high_watermark=6),
                log_storage_pb2.PartitionHighWatermark(partition=key(), leader_epoch=0, high_watermark=8),
            ]
        )
    )
    assert [error.error.code for error in answer.errors] == [Code.STALE_FENCE]
    assert (tmp_path / "data" / "replication-offset-checkpoint").read_bytes() == b"0\n1\nt 0 6\n"
    raised = await storage.stub.RaiseLogStart(
        log_storage_pb2.RaiseLogStartRequest(partition=key(), leader_epoch=1, log_start_offset=5)
    )
    assert raised.log.log_start_offset == 5
    assert (tmp_path / "data" / "log-start-offset-checkpoint").read_bytes() == b"0\n1\nt 0 5\n"
    raised = await storage.stub.RaiseLogStart(
        log_storage_pb2.RaiseLogStartRequest(partition=key(), leader_epoch=1, log_start_offset=7)
    )
    assert raised.error.code == Code.OFFSET_OUT_OF_RANGE


async def test_configuration_and_description(storage: Storage) -> None:
    await storage.create(key(), segment_bytes="1024")
    await storage.fence(LEADER, 1, [key()])
    for number in range(4):
        await storage.append(
            LEADER, partition=key(), leader_epoch=1, expected_offset=number, records=batch(value=b"x" * 800)
        )
    answer = await storage.stub.DescribeLogs(log_storage_pb2.DescribeLogsRequest(partitions=[key(), key(5)]))
    described, missing = answer.logs
    assert (described.topic, described.segments, described.fenced_epoch, described.fenced_role) == ("t", 4, 1, LEADER)
    assert described.log.log_end_offset == 4
    assert missing.error.code == Code.UNKNOWN_TOPIC_ID
    assert answer.log_dirs[0].logs == 1
    assert answer.log_dirs[0].total_bytes > 0
    altered = log_storage_pb2.AlterLogConfigRequest(partition=key(), config={"max.message.bytes": "1024"})
    assert not (await storage.stub.AlterLogConfig(altered)).error.code
    large = await storage.append(
        LEADER, partition=key(), leader_epoch=1, expected_offset=4, records=batch(value=b"x" * 1024)
    )
    assert large.error.code == Code.MESSAGE_TOO_LARGE
    altered = log_storage_pb2.AlterLogConfigRequest(partition=key(), config={"segment.bytes": "-1"})
    assert (await storage.stub.AlterLogConfig(altered)).error.code == Code.INVALID_CONFIG


@pytest.mark.parametrize("recorded", [True, False])
async def test_flush_ends_tail_lost(tmp_path: Path, recorded: bool) -> None:
    """RULES 7.2."""
    async with running(tmp_path) as storage:
        await storage.create(key())
        await storage.fence(LEADER, 1, [key()])
        await storage.append(LEADER, partition=key(), leader_epoch=1, expected_offset=0, records=batch(8))
        describe = log_storage_pb2.DescribeLogsRequest()
        assert (await storage.stub.DescribeLogs(describe)).log_dirs[0].tail_lost
        answer = await storage.stub.Flush(log_storage_pb2.FlushRequest(record_boot=recorded))
        assert not answer.errors
        assert (tmp_path / "data" / "recovery-point-offset-checkpoint").read_bytes() == b"0\n1\nt 0 8\n"
        assert (await storage.stub.DescribeLogs(describe)).log_dirs[0].tail_lost is not recorded
    async with running(tmp_path) as storage:
        assert (await storage.stub.DescribeLogs(describe)).log_dirs[0].tail_lost is not recorded


async def test_a_restart_keeps_the_fence_and_costs_an_election(tmp_path: Path) -> None:
    """RULES 3.1, 3.5."""
    async with running(tmp_path) as storage:
        first = storage.service.incarnation
        await storage.create(key())
        await storage.create(key(1))
        await storage.fence(LEADER, 3, [key()])
        await storage.fence(FOLLOWER, 3, [key(1)])
        await storage.append(
            LEADER, partition=key(), leader_epoch=3, expected_offset=0, records=produced(2, sequence=0)
        )
    async with running(tmp_path) as storage:
        assert storage.service.incarnation != first
        late = await storage.append(LEADER, partition=key(), leader_epoch=3, expected_offset=2, records=batch())
        assert late.error.code == Code.STALE_FENCE
        assert [r.error.code for r in await storage.fence(LEADER, 3, [key()])] == [Code.STALE_FENCE]
        assert [r.error.code for r in await storage.fence(FOLLOWER, 3, [key(1)])] == [Code.NONE]
        [fence] = await storage.fence(LEADER, 4, [key()])
        assert (fence.log.log_end_offset, fence.log.last_epoch) == (2, 3)
        assert [(entry.leader_epoch, entry.start_offset) for entry in fence.epochs] == [(3, 0), (4, 2)]
        again = await storage.append(
            LEADER, partition=key(), leader_epoch=4, expected_offset=2, records=produced(2, sequence=0)
        )
        assert (again.duplicate, again.base_offset, again.last_offset) == (True, 0, 1)


async def test_every_message_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, flush_messages="1") as storage:
        await storage.create(key())
        await storage.fence(LEADER, 1, [key()])
        synced = 0

        def count(descriptor: int) -> None:
            nonlocal synced
            synced += 1

        with monkeypatch.context() as patch:
            patch.setattr("os.fdatasync", count)
            for number in range(3):
                result = await storage.append(
                    LEADER, partition=key(), leader_epoch=1, expected_offset=number, records=batch()
                )
                assert not result.error.code
                assert synced == number + 1


@pytest.mark.parametrize("name", ["flush_messages", "log_flush_interval_messages"])
async def test_so_many_messages_are_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Each third record waits for the disk, under either name; a topic's own number goes first."""
    async with running(tmp_path, **{name: "3"}) as storage:
        await storage.create(key())
        await storage.create(key(1), flush_messages="2")
        await storage.fence(LEADER, 1, [key(), key(1)])
        synced: list[int] = []
        with monkeypatch.context() as patch:
            patch.setattr("os.fdatasync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
            for partition in (0, 1):
                for number in range(6):
                    fields = {"leader_epoch": 1, "expected_offset": number, "records": batch()}
                    assert not (await storage.append(LEADER, partition=key(partition), **fields)).error.code
        one = len(batch())
        assert synced == [3 * one, 6 * one, 2 * one, 4 * one, 6 * one]


async def test_producers_are_forgotten_after_a_while(tmp_path: Path) -> None:
    """`producer.id.expiration.ms`."""
    settings = {"producer_id_expiration_ms": "1", "log_flush_offset_checkpoint_interval_ms": "20"}
    async with running(tmp_path, **settings) as storage:
        await storage.create(key())
        await storage.fence(LEADER, 1, [key()])
        records = produced(2, sequence=0)
        await storage.append(LEADER, partition=key(), leader_epoch=1, expected_offset=0, records=records)
        [hosted] = storage.service._manager or []
        while len(hosted.online().producers):  # noqa: ASYNC110  (bounded by the test's deadline)
            await asyncio.sleep(0.01)
        late = produced(2, sequence=2)
        answer = await storage.append(LEADER, partition=key(), leader_epoch=1, expected_offset=2, records=late)
        assert answer.error.code == Code.UNKNOWN_PRODUCER_ID
    async with running(tmp_path) as storage:  # a day
        await storage.fence(LEADER, 2, [key()])
        await storage.append(LEADER, partition=key(), leader_epoch=2, expected_offset=2, records=records)
        late = produced(2, sequence=2)
        answer = await storage.append(LEADER, partition=key(), leader_epoch=2, expected_offset=4, records=late)
        assert (answer.error.code, answer.base_offset) == (0, 4)


async def test_appends_of_a_stream_share_a_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one waits for the disk the next ones are appended; none is answered before it is on disk, all in order."""
    async with running(tmp_path, flush_messages="1") as storage:
        for partition in (key(), key(1)):
            await storage.create(partition, flush_messages="1" if partition == key() else str(2**63 - 1))
            await storage.fence(LEADER, 1, [partition])
        disk, flushes, fdatasync = threading.Event(), [], os.fdatasync

        def slow(descriptor: int) -> None:
            flushes.append(os.fstat(descriptor).st_size)
            assert disk.wait(DEADLINE_S)
            fdatasync(descriptor)

        async def log_end() -> int:
            described = await storage.stub.DescribeLogs(log_storage_pb2.DescribeLogsRequest(partitions=[key()]))
            return described.logs[0].log.log_end_offset

        monkeypatch.setattr("os.fdatasync", slow)
        call = storage.stub.Append()
        for number in range(20):
            fields = {"leader_epoch": 1, "expected_offset": number, "records": batch()}
            await call.write(appending(LEADER, number, partition=key(), **fields))
        await call.write(appending(LEADER, 20, partition=key(1), leader_epoch=1, expected_offset=0, records=batch()))
        answer = asyncio.ensure_future(call.read())
        while await log_end() < 20:  # noqa: ASYNC110  (bounded by the test's deadline)
            await asyncio.sleep(0.01)
        assert not answer.done()
        assert len(flushes) == 1
        disk.set()
        answers = [await answer, *[await call.read() for _ in range(20)]]
        assert [response.correlation_id for response in answers] == list(range(21))
        assert not any(response.results[0].error.code for response in answers)
        assert len(flushes) == 2  # what had been appended when the first began, and the rest
        assert flushes[1] == 20 * len(batch())
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF


async def test_the_logs_of_a_request_are_flushed_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, flush_messages="1") as storage:
        keys = [key(), key(1), key(2)]
        for partition in keys:
            await storage.create(partition)
        await storage.fence(LEADER, 1, keys)
        together, fdatasync = threading.Barrier(len(keys)), os.fdatasync

        def flush(descriptor: int) -> None:
            together.wait(DEADLINE_S)
            fdatasync(descriptor)

        with monkeypatch.context() as patch:
            patch.setattr("os.fdatasync", flush)
            request = log_storage_pb2.AppendRequest(role=LEADER)
            for partition in keys:
                request.partitions.add(partition=partition, leader_epoch=1, expected_offset=0, records=batch())
            call = storage.stub.Append()
            await call.write(request)
            answer = await call.read()
            assert [result.error.code for result in answer.results] == [0, 0, 0]
            call.cancel()


async def test_appends_of_several_streams_share_a_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one log: whoever comes while the disk is busy waits for the next flush, together with all the others."""
    async with running(tmp_path, flush_messages="1") as storage:
        await storage.create(key())
        await storage.fence(LEADER, 1, [key()])
        disk, flushes, fdatasync = threading.Event(), [], os.fdatasync

        def slow(descriptor: int) -> None:
            flushes.append(os.fstat(descriptor).st_size)
            assert disk.wait(DEADLINE_S)
            fdatasync(descriptor)

        [hosted] = storage.service._manager or []
        monkeypatch.setattr("os.fdatasync", slow)
        appends = []
        for number in range(8):
            fields = {"leader_epoch": 1, "expected_offset": number, "records": batch()}
            appends.append(asyncio.create_task(storage.append(LEADER, partition=key(), **fields)))
            while hosted.online().log_end_offset == number or not flushes:  # noqa: ASYNC110  (bounded by the deadline)
                await asyncio.sleep(0.01)
        assert not any(append.done() for append in appends)
        assert len(flushes) == 1
        disk.set()
        assert [(await append).base_offset for append in appends] == list(range(8))
        assert flushes == [flushes[0], 8 * len(batch())]


async def test_a_failed_flush_fails_all_that_wait_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, flush_messages="1") as storage:
        await storage.create(key())
        await storage.fence(LEADER, 1, [key()])

        def broken(descriptor: int) -> None:
            raise OSError("no disk")

        with monkeypatch.context() as patch:
            patch.setattr("os.fdatasync", broken)
            call = storage.stub.Append()
            for number in range(3):
                fields = {"leader_epoch": 1, "expected_offset": number, "records": batch()}
                await call.write(appending(LEADER, number, partition=key(), **fields))
            answers = [await call.read() for _ in range(3)]
        assert {response.results[0].error.code for response in answers} == {Code.LOG_STORAGE_ERROR}
        call.cancel()


async def test_a_fence_that_cannot_be_written_is_not_answered(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await storage.create(key())

    def broken(descriptor: int) -> None:
        raise OSError("no disk")

    with monkeypatch.context() as patch:
        patch.setattr("os.fdatasync", broken)
        [result] = await storage.fence(LEADER, 1, [key()])
    assert result.error.code == Code.LOG_STORAGE_ERROR
    [result] = await storage.fence(LEADER, 1, [key()])
    assert result.error.code == Code.LOG_STORAGE_ERROR  # not known to be on disk, even now


@pytest.mark.parametrize("where", ["broker", "topic"])
async def test_segments_let_go_are_removed(tmp_path: Path, where: str) -> None:
    delay = {"file_delete_delay_ms": "0"}
    async with running(tmp_path, **(delay if where == "broker" else {})) as storage:
        await storage.create(key(), segment_bytes="1024", **(delay if where == "topic" else {}))
        await storage.fence(FOLLOWER, 1, [key()])
        records = b"".join(batch(base_offset=number, epoch=1, value=b"x" * 800) for number in range(6))
        result = await storage.append(
            FOLLOWER,
            partition=key(),
            leader_epoch=1,
            expected_offset=0,
            records=records,
            leader_high_watermark=6,
            leader_log_start_offset=4,
        )
        assert result.log.log_start_offset == 4
        directory = tmp_path / "data" / "t-0"
        while list(directory.glob("*.deleted")):  # noqa: ASYNC110  (bounded by the test's deadline)
            await asyncio.sleep(0.02)
        assert sorted(path.name for path in directory.glob("*.log")) == [f"{4:020d}.log", f"{5:020d}.log"]


async def test_a_partition_whose_topic_id_is_none_is_unknown(storage: Storage) -> None:
    short = common_pb2.PartitionKey(topic_id=b"short")
    assert (await storage.create(short)).error.code == Code.INVALID_REQUEST
    assert (await storage.read(short, 0)).error.code == Code.UNKNOWN_TOPIC_ID
    [fence] = await storage.fence(LEADER, 1, [short])
    assert fence.error.code == Code.UNKNOWN_TOPIC_ID
    flushed = await storage.stub.Flush(log_storage_pb2.FlushRequest(partitions=[short]))
    assert flushed.errors[0].error.code == Code.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("where", ["broker", "topic"])
async def test_what_is_old_enough_is_flushed(tmp_path: Path, where: str) -> None:
    """`log.flush.interval.ms`, and a topic's `flush.ms` over it."""
    settings = {"log_flush_scheduler_interval_ms": "10"}
    config = {"flush_ms": "20"}
    if where == "broker":
        settings["log_flush_interval_ms"], config = "20", {}
    async with running(tmp_path, **settings) as storage:
        await storage.create(key(), **config)
        await storage.create(key(1), flush_ms=str(2**63 - 1))
        for partition in (key(), key(1)):
            await storage.fence(LEADER, 1, [partition])
            await storage.append(LEADER, partition=partition, leader_epoch=1, expected_offset=0, records=batch(3))

        async def recovery_points() -> dict[int, int]:
            described = await storage.stub.DescribeLogs(log_storage_pb2.DescribeLogsRequest())
            return {log.partition.partition: log.recovery_point for log in described.logs}

        while (await recovery_points())[0] != 3:  # noqa: ASYNC110  (bounded by the test's deadline)
            await asyncio.sleep(0.01)
        assert (await recovery_points())[1] == 0


async def test_what_was_rolled_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that recovery has one segment to scan, and compaction something to begin with, though no flush is set."""
    monkeypatch.setattr("highwater.log_storage.service.HOUSEKEEPING_MS", 20)
    async with running(tmp_path) as storage:
        await storage.create(key(), segment_bytes="1024")
        await storage.create(key(1))
        await storage.fence(LEADER, 1, [key(), key(1)])
        for partition in (key(), key(1)):
            for number in range(3):
                fields = {"leader_epoch": 1, "expected_offset": number, "records": batch(value=b"x" * 700)}
                await storage.append(LEADER, partition=partition, **fields)
        logs = {hosted.key.partition: hosted.online() for hosted in storage.service._manager or []}
        while logs[0].recovery_point < logs[0].segments[-1].base_offset:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert logs[1].recovery_point == 0  # of one segment, that is appended to


async def test_checkpoints_are_written_by_themselves(tmp_path: Path) -> None:
    """Recovery points and log starts, high watermarks: each at its interval, as the log then stands."""
    settings = {
        "log_flush_offset_checkpoint_interval_ms": "20",
        "replica_high_watermark_checkpoint_interval_ms": "20",
        "log_flush_interval_ms": "0",
        "log_flush_scheduler_interval_ms": "20",
    }
    async with running(tmp_path, **settings) as storage:
        await storage.create(key())
        await storage.fence(FOLLOWER, 1, [key()])
        fields = {"partition": key(), "leader_epoch": 1, "leader_high_watermark": 3, "leader_log_start_offset": 2}
        await storage.append(FOLLOWER, **fields, expected_offset=0, records=batch(4, epoch=1))
        expected = {
            "recovery-point-offset-checkpoint": "0\n1\nt 0 4\n",
            "log-start-offset-checkpoint": "0\n1\nt 0 2\n",
            "replication-offset-checkpoint": "0\n1\nt 0 3\n",
        }
        while True:
            if {name: (tmp_path / "data" / name).read_text() for name in expected} == expected:
                break
            await asyncio.sleep(0.01)
