"""What looks like damage and is none: a page of batches across a swap, a log that starts inside its first batch, a
segment that retention cannot decode."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from log_storage_batches import batch, follow, lead
from test_log_storage_replacing import SMALL, cleaned

from highwater.errors import ErrorCode
from highwater.log_storage.config import LogConfig
from highwater.log_storage.fence import Fence
from highwater.log_storage.inspect.verify import verify
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.log_storage.segment.segment import Segment
from highwater.log_storage.server import list_batches
from highwater.log_storage.server.servicer import LogStorageServicer
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey
from highwater.records.errors import CorruptBatchError
from highwater.rpc.errors import from_proto
from highwater.rpc.partition_keys import to_key
from highwater.telemetry.metrics import Metrics
from highwater.v1 import log_storage_pb2

KEY = PartitionKey(b"t" * 16, 0)


def opened(path: Path, config: LogConfig = SMALL) -> LogManager:
    manager = LogManager([path], config, broker_id=1)
    manager.load()
    return manager


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Of five segments, stopped cleanly: none is open after a start."""
    manager = opened(tmp_path)
    manager.logs.log_dirs[0].record_boot()
    manager.create("t", KEY, {})
    manager.logs.log_dirs[0].record_fences({KEY: Fence(1, Role.LEADER, "rm", "ls")})
    log = manager.logs.get(KEY).online()
    for number in range(10):
        lead(log, batch(value=b"x" * 300, timestamp=1_000 + number))
    log.offsets.raise_high_watermark(10)
    assert len(log.segments) == 5
    manager.close()
    return tmp_path


@pytest.mark.parametrize("times", [1, 99])
@pytest.mark.parametrize("change", ["swap", "truncate", "retain"])
async def test_a_page_of_batches_across_a_change(
    data: Path, monkeypatch: pytest.MonkeyPatch, change: str, times: int
) -> None:
    manager = opened(data)
    log, threads = manager.logs.get(KEY).online(), ThreadPoolExecutor(2)
    servicer = LogStorageServicer(manager, "ls", threads, Metrics("log-storage"))
    real, changes = list_batches._page_of, 0

    def meanwhile(*arguments: Any) -> Any:
        nonlocal changes
        changes += 1
        if changes <= times:
            if change == "swap" and changes == 1:
                old = log.segments[1:3]
                assert log.replacement.replace(old, cleaned(log, old, [3]))
            elif change == "truncate":
                log.truncation.truncate_to(log.log_end_offset - 1)
            elif change == "retain" and changes == 1:
                log.log_start.raise_to(5)
        return real(*arguments)

    monkeypatch.setattr(list_batches, "_page_of", meanwhile)
    offset, found = 0, []
    while offset < log.log_end_offset:
        request = log_storage_pb2.LogListBatchesRequest(
            partition=to_key(KEY), offset=offset, max_batches=100, check_crcs=True
        )
        answer = await servicer.ListBatches(request, None)
        assert from_proto(answer.error) is ErrorCode.NONE
        assert list(answer.batches.damaged) == []
        found += answer.batches.base_offsets
        offset = answer.batches.next_offset
    expected = {"swap": [0, 1, 3, 6, 7, 8, 9], "truncate": list(range(log.log_end_offset)), "retain": [5, 6, 7, 8, 9]}
    assert found == expected[change]
    await servicer.access.settle()
    threads.shutdown()
    manager.unlock()


async def test_what_is_appended_while_a_page_is_read_is_in_the_next(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = opened(data)
    log, threads = manager.logs.get(KEY).online(), ThreadPoolExecutor(2)
    servicer = LogStorageServicer(manager, "ls", threads, Metrics("log-storage"))
    real, appended = list_batches.check_segment, []

    def beside_an_append(segment: Segment, *arguments: Any, **options: Any) -> Iterator[Any]:
        yield from real(segment, *arguments, **options)
        if segment is log.segments[-1] and not appended:
            appended.append(lead(log, batch(timestamp=2_000)))

    monkeypatch.setattr(list_batches, "check_segment", beside_an_append)
    found: list[int] = []
    while not found or found[-1] < 10:
        offset = found[-1] + 1 if found else 0
        request = log_storage_pb2.LogListBatchesRequest(partition=to_key(KEY), offset=offset, max_batches=100)
        answer = await servicer.ListBatches(request, None)
        assert answer.batches.next_offset == answer.batches.last_offsets[-1] + 1
        found += answer.batches.base_offsets
    assert found == list(range(11))
    await servicer.access.settle()
    threads.shutdown()
    manager.unlock()


def test_verify_of_a_follower_that_starts_inside_its_first_batch(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    manager.logs.log_dirs[0].record_boot()
    manager.create("t", KEY, {})
    manager.logs.log_dirs[0].record_fences({KEY: Fence(1, Role.FOLLOWER, "", "ls")})
    log = manager.logs.get(KEY).online()
    log.truncation.truncate_fully_and_start_at(13)
    follow(log, batch(5, base_offset=10, epoch=1), high_watermark=13, log_start=13)
    assert log.segments[0].base_offset == 10
    assert log.log_start_offset == 13
    manager.close()
    assert [(file.path.name, file.problems) for file in verify(tmp_path) if file.problems] == []


def test_verify_still_sees_an_epoch_that_begins_elsewhere(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    manager.logs.log_dirs[0].record_boot()
    manager.create("t", KEY, {})
    manager.logs.log_dirs[0].record_fences({KEY: Fence(2, Role.LEADER, "rm", "ls")})
    log = manager.logs.get(KEY).online()
    lead(log, batch(5), 1)
    lead(log, batch(5), 2)
    manager.close()
    (tmp_path / "t-0" / "leader-epoch-checkpoint").write_bytes(b"0\n2\n1 0\n2 7\n")
    assert any("leader epoch 2 begins at 7" in " ".join(file.problems) for file in verify(tmp_path))


@pytest.mark.parametrize("position", [-1, 16])
def test_retention_goes_on_over_a_segment_that_cannot_be_decoded(data: Path, position: int) -> None:
    path = data / "t-0" / f"{2:020}.log"
    content = bytearray(path.read_bytes())
    content[len(content) // 2 + 16 if position < 0 else position] ^= 0xFF  # the last batch's magic, or the first's
    path.write_bytes(content)
    (data / "t-0" / f"{2:020}.index").unlink()
    manager = opened(data)
    hosted = manager.logs.get(KEY)
    manager.create("t", KEY, {"retention.ms": "-1", "retention.bytes": "800"})
    log = hosted.online()
    segment = log.segments[1]
    while manager.retain(hosted, 0):
        pass
    assert segment.end_offset == 4
    assert log.log_start_offset == 6
    manager.unlock()


def test_a_segment_ends_where_it_did_when_its_indexes_cannot_be_made_again(data: Path) -> None:
    manager = opened(data)
    segment = manager.logs.get(KEY).online().segments[0]
    before = segment.end_offset
    *_, (position, _) = segment.headers(0)
    assert position
    with segment.path.open("r+b") as file:
        file.seek(position)
        file.write(b"\xff" * 60)
    with pytest.raises(CorruptBatchError):
        segment.rebuild_indexes()
    assert segment.end_offset == before
    manager.unlock()
