"""Damage that a read meets, in the active segment too, which is not scrubbed: it is looked into and made known as
scrubbing's is (RULES 7.6), or readers would stand before it for ever."""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from log_storage_batches import batch, lead

from highwater.errors import ErrorCode
from highwater.log_storage.config import LogConfig
from highwater.log_storage.fence import Fence
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.log_storage.scrubbing import segment_examiner
from highwater.log_storage.segment.segment import Segment
from highwater.log_storage.server.servicer import LogStorageServicer
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey
from highwater.records import CorruptBatchError
from highwater.rpc.errors import from_proto
from highwater.rpc.partition_keys import to_key
from highwater.telemetry.metrics import Metrics
from highwater.v1 import log_storage_pb2

KEY = PartitionKey(b"t" * 16, 0)
BATCH_BYTES = len(batch(3))


class Served:
    def __init__(self, directory: Path) -> None:
        self.manager = LogManager([directory], LogConfig(segment_bytes=4 * BATCH_BYTES), broker_id=1)
        self.manager.load()
        self.manager.create("t", KEY, {})
        self.manager.logs.log_dirs[0].record_fences({KEY: Fence(1, Role.LEADER, "rm", "ls")})
        self.hosted = self.manager.logs.get(KEY)
        self.log = self.hosted.online()
        for _ in range(7):  # four in the first segment, three in the active one
            lead(self.log, batch(3))
        self.log.offsets.raise_high_watermark(self.log.log_end_offset)
        self.threads = ThreadPoolExecutor(2)
        self.servicer = LogStorageServicer(self.manager, "ls", self.threads, Metrics("log-storage"))

    async def read(self, offset: int) -> ErrorCode:
        """Once what a damaged read begins has come to its end."""
        request = log_storage_pb2.ReadRequest(partition=to_key(KEY), offset=offset, max_offset=-1, max_bytes=1)
        answer = await self.servicer.Read(request, None)
        await self.servicer.access.inquest.settle()
        return from_proto(answer.error)

    async def append(self) -> Any:
        partition = log_storage_pb2.AppendPartition(
            partition=to_key(KEY), leader_epoch=1, expected_offset=self.log.log_end_offset, records=batch()
        )
        return await self.servicer.append_and_read.append(
            log_storage_pb2.AppendRequest(role=log_storage_pb2.ROLE_LEADER, partitions=[partition])
        )

    @property
    def known(self) -> list[tuple[int, int]]:
        return [(each.first_offset, each.last_offset) for each in self.hosted.known_damage]


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    made = Served(tmp_path)
    assert [segment.base_offset for segment in made.log.segments] == [0, 12]
    yield made
    await made.servicer.access.settle()
    made.threads.shutdown()
    made.manager.unlock()


def flip(segment: Segment, position: int) -> None:
    content = bytearray(segment.path.read_bytes())
    content[position] ^= 1
    with segment.path.open("r+b") as file:
        file.write(content)


async def test_damage_in_the_active_segment_is_made_known(served: Served) -> None:
    flip(served.log.segments[-1], 2 * BATCH_BYTES - 1)
    assert await served.read(12) is ErrorCode.NONE
    assert served.known == []
    assert await served.read(15) is ErrorCode.CORRUPT_MESSAGE
    assert served.known == [(15, 17)]
    answer = await served.append()
    assert answer.damaged_logs == 1
    assert not answer.results[0].HasField("error")
    described = await served.servicer.DescribeLogs(log_storage_pb2.DescribeLogsRequest(), None)
    assert [each.first_offset for each in described.logs[0].damaged] == [15]
    # It is dropped as what scrubbing finds is.
    served.manager.drop_damaged(served.hosted)
    assert served.log.log_end_offset == 12
    assert served.known == []
    await served.append()
    assert await served.read(12) is ErrorCode.NONE


@pytest.mark.parametrize("position", [16, BATCH_BYTES + 7, 8])  # magic, base offset, length
async def test_a_damaged_header(served: Served, position: int) -> None:
    flip(served.log.segments[-1], position)
    assert await served.read(15) is ErrorCode.CORRUPT_MESSAGE
    ((first, last),) = served.known
    assert first in (12, 15)
    assert last == 20


async def test_a_base_offset_beyond_the_log_end(served: Served) -> None:
    flip(served.log.segments[-1], 2 * BATCH_BYTES + 3)
    assert await served.read(18) is ErrorCode.CORRUPT_MESSAGE
    assert served.known == [(18, 20)]


async def test_damage_in_a_sealed_segment_need_not_wait_for_scrubbing(served: Served) -> None:
    flip(served.log.segments[0], BATCH_BYTES - 1)
    assert await served.read(0) is ErrorCode.CORRUPT_MESSAGE
    assert served.known == [(0, 2)]


async def test_a_lookup_by_time_that_meets_it(served: Served) -> None:
    flip(served.log.segments[-1], BATCH_BYTES - 1)
    flip(served.log.segments[0], 16)
    request = log_storage_pb2.LogListOffsetsRequest()
    request.partitions.add(partition=to_key(KEY), timestamp=1_000, max_offset=-1)
    [answer] = (await served.servicer.ListOffsets(request, None)).results
    await served.servicer.access.inquest.settle()
    assert from_proto(answer.error) is ErrorCode.CORRUPT_MESSAGE
    assert served.known


async def test_what_is_sound_on_the_disk_is_not_damaged_and_not_read_again_at_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*arguments: Any) -> bytes:
        raise CorruptBatchError(0, "on the way")

    monkeypatch.setattr(Segment, "read", failing)
    looked_into = []
    examine = segment_examiner.Examiner.examine

    async def counted(self: Any, *arguments: Any) -> None:
        looked_into.append(arguments)
        await examine(self, *arguments)

    monkeypatch.setattr(segment_examiner.Examiner, "examine", counted)
    for _ in range(5):
        assert await served.read(12) is ErrorCode.CORRUPT_MESSAGE
    assert served.known == []
    assert len(looked_into) == 1


async def test_appends_go_on_beside_it(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is appended while the segment is read is neither missing nor damaged."""
    flip(served.log.segments[-1], BATCH_BYTES - 1)
    step = segment_examiner._step

    def beside(*arguments: Any) -> int:
        lead(served.log, batch())
        return step(*arguments)

    monkeypatch.setattr(segment_examiner, "_step", beside)
    assert await served.read(12) is ErrorCode.CORRUPT_MESSAGE
    assert served.known == [(12, 14)]
    assert served.log.log_end_offset == 23
