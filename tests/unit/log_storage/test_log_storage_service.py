"""The service over a Unix socket: fencing, the append stream, reads, cuts, deletion, checkpoints, restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from log_storage_batches import batch, produced
from log_storage_client import FOLLOWER, LEADER, Code, Storage, appending, key, running

from highwater.log_storage.server import append_and_read
from highwater.rpc.partition_keys import from_key
from highwater.v1 import common_pb2, log_storage_pb2

pytestmark = pytest.mark.usefixtures("each_transport")


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
    asked = log_storage_pb2.LogListOffsetsRequest()
    asked.partitions.add(partition=key(), timestamp=1_003, max_offset=-1)
    asked.partitions.add(partition=key(topic=b"u"), timestamp=1_003, max_offset=-1)
    found, absent = (await storage.stub.ListOffsets(asked)).results
    assert absent.error.code == Code.UNKNOWN_TOPIC_ID
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


async def test_a_log_that_stands_still_does_not_hold_up_the_lookups_of_others(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = storage.service._manager
    asked = log_storage_pb2.LogListOffsetsRequest()
    for partition in range(3):
        await storage.create(key(partition))
        asked.partitions.add(partition=key(partition), timestamp=-2, max_offset=-1)
    standing = manager.logs.get(from_key(key(0)))

    async def listed() -> list[tuple[int, int]]:
        return [(each.error.code, each.offset) for each in (await storage.stub.ListOffsets(asked)).results]

    async with standing.alone():
        waiting = asyncio.create_task(listed())
        await asyncio.sleep(0.1)
        assert not waiting.done()
    assert await waiting == [(0, 0)] * 3
    monkeypatch.setattr(append_and_read, "LOOKUP_PATIENCE_S", 0.05)
    async with standing.alone():
        assert await listed() == [(Code.LOG_STORAGE_ERROR, -1), (0, 0), (0, 0)]


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
    call = storage.append_call()
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
    call = storage.append_call()
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


async def test_a_follower_and_its_cuts(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_and_read, "LOG_START_PATIENCE_S", 10.0)
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


async def test_producers_are_forgotten_after_a_while(tmp_path: Path) -> None:
    """`producer.id.expiration.ms`."""
    settings = {"producer_id_expiration_ms": "1", "log_flush_offset_checkpoint_interval_ms": "20"}
    async with running(tmp_path, **settings) as storage:
        await storage.create(key())
        await storage.fence(LEADER, 1, [key()])
        records = produced(2, sequence=0)
        await storage.append(LEADER, partition=key(), leader_epoch=1, expected_offset=0, records=records)
        [hosted] = storage.service._manager.logs
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
async def test_segments_let_go_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.setattr(append_and_read, "LOG_START_PATIENCE_S", 10.0)
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
