"""What the service brings to disk: before an answer, after a while, with the checkpoints."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import grpc.aio
import pytest
from log_storage_batches import batch
from log_storage_client import DEADLINE_S, FOLLOWER, LEADER, Code, appending, key, running

from highwater.rpc.process.loop_turn import LoopTurn
from highwater.v1 import log_storage_pb2

pytestmark = pytest.mark.usefixtures("each_transport")


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
        call = storage.append_call()
        for number in range(20):
            fields = {"leader_epoch": 1, "expected_offset": number, "records": batch()}
            await call.write(appending(LEADER, number, partition=key(), **fields))
        await call.write(appending(LEADER, 20, partition=key(1), leader_epoch=1, expected_offset=0, records=batch()))
        answer = asyncio.ensure_future(call.read())
        while await log_end() < 20 or not flushes:  # noqa: ASYNC110  (bounded by the test's deadline)
            await asyncio.sleep(0.01)
        assert not answer.done()
        assert len(flushes) == 1
        disk.set()
        answers = [await answer, *[await call.read() for _ in range(20)]]
        assert [response.correlation_id for response in answers] == list(range(21))
        assert not any(response.results[0].error.code for response in answers)
        assert len(flushes) <= 2  # what had been appended when the first began, and the rest, if any
        assert flushes[-1] == 20 * len(batch())
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF


async def test_a_refusal_tells_of_no_log_end_that_is_not_on_disk(tmp_path: Path) -> None:
    """An append of a stream that broke was not waited for: a leader takes the log end in any answer for its own."""
    async with running(tmp_path, flush_messages="1") as storage:
        await storage.create(key())
        await storage.fence(LEADER, 1, [key()])
        servicer = storage.service._servicer
        request = appending(LEADER, partition=key(), leader_epoch=1, expected_offset=0, records=batch())
        await servicer.append_and_read._append(request, LoopTurn())  # and its stream broke
        (hosted,) = servicer.access.manager.logs
        assert hosted.online().synced_offset == 0
        refused = (await servicer.append_and_read.append(request)).results[0]
        assert refused.error.code == Code.OFFSET_MISMATCH
        assert refused.log.log_end_offset == hosted.online().synced_offset == 1


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
            call = storage.append_call()
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

        [hosted] = storage.service._manager.logs
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
            call = storage.append_call()
            for number in range(3):
                fields = {"leader_epoch": 1, "expected_offset": number, "records": batch()}
                await call.write(appending(LEADER, number, partition=key(), **fields))
            answers = [await call.read() for _ in range(3)]
        assert {response.results[0].error.code for response in answers} == {Code.LOG_STORAGE_ERROR}
        call.cancel()


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
        logs = {hosted.key.partition: hosted.online() for hosted in storage.service._manager.logs}
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
        fields = {"partition": key(), "leader_epoch": 1, "leader_high_watermark": 3}
        await storage.append(FOLLOWER, **fields, expected_offset=0, records=batch(4, epoch=1))
        expected = {
            "recovery-point-offset-checkpoint": "0\n1\nt 0 4\n",
            "log-start-offset-checkpoint": "0\n1\nt 0 0\n",
            "replication-offset-checkpoint": "0\n1\nt 0 3\n",
        }
        while True:
            if {name: (tmp_path / "data" / name).read_text() for name in expected} == expected:
                break
            await asyncio.sleep(0.01)
        # Once all is flushed: what is below a log start is synced for it, and there is nothing left to be flushed then.
        await storage.append(FOLLOWER, **fields, expected_offset=4, leader_log_start_offset=2)
        expected["log-start-offset-checkpoint"] = "0\n1\nt 0 2\n"
        while True:
            if {name: (tmp_path / "data" / name).read_text() for name in expected} == expected:
                break
            await asyncio.sleep(0.01)
