"""Scrubbing finds every flipped bit of a sealed segment, lists it, and the damaged segment and all behind it can be
dropped."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from counted_turns import counted_turns
from faulty_disk import READS, FaultyDisk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from log_storage_batches import batch

from highwater.errors import ErrorCode
from highwater.log_storage.config import LogConfig
from highwater.log_storage.fence import Fence
from highwater.log_storage.files.fence_journal import FILE_NAME, read_fences
from highwater.log_storage.log.log import Log
from highwater.log_storage.log_manager.hosted_log import HostedLog
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.log_storage.scrubbing import segment_examiner
from highwater.log_storage.scrubbing.scrubber import Scrubber
from highwater.log_storage.segment.damage import DamagedRange, check_segment
from highwater.log_storage.segment.segment import Segment
from highwater.log_storage.segment.segment_reader import SegmentReader
from highwater.log_storage.segment.walk import WalkedBatch
from highwater.log_storage.server.servicer import LogStorageServicer
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey
from highwater.rpc.errors import from_proto
from highwater.rpc.partition_keys import to_key
from highwater.telemetry.metrics import Metrics
from highwater.v1 import log_storage_pb2

KEY = PartitionKey(bytes(16), 0)
RECORDS = 3
BATCHES = 12


class World:
    """One log of some sealed segments, served."""

    def __init__(self, directory: Path) -> None:
        self.manager = LogManager([directory], LogConfig(segment_bytes=1024), broker_id=1)
        self.manager.load()
        self.manager.create("t", KEY, {})
        self.hosted: HostedLog = self.manager.logs.get(KEY)
        self.log = self.hosted.online()
        self.log.become_leader(0)
        for _ in range(BATCHES):
            self.log.append_as_leader(batch(RECORDS, value=b"x" * 90), 0, self.log.log_end_offset, 0)
        self.log.offsets.raise_high_watermark(self.log.log_end_offset)
        self.threads = ThreadPoolExecutor(2)
        self.metrics = Metrics("log-storage")
        self.scrubber = Scrubber(self.manager.logs, self.threads, self.metrics, bytes_per_second=1e12, interval_ms=1)
        self.servicer = LogStorageServicer(self.manager, "one", self.threads, self.metrics)

    async def list(self, offset: int = 0, *, check_crcs: bool = False) -> log_storage_pb2.LogListBatchesResponse:
        request = log_storage_pb2.LogListBatchesRequest(
            partition=to_key(KEY), offset=offset, max_batches=4, check_crcs=check_crcs
        )
        return await self.servicer.ListBatches(request, None)

    def counted(self, name: str) -> float:
        return self.metrics.registry.get_sample_value(f"highwater_log_storage_{name}") or 0.0


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    assert len(made.log.segments) > 3
    yield made
    await made.servicer.access.settle()
    made.threads.shutdown()
    made.manager.close()


def flip(segment: Segment, position: int, bit: int = 0) -> None:
    with segment.path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1 << bit]))


def batches(segment: Segment) -> list[WalkedBatch]:
    walked = list(check_segment(segment, 0, check_crcs=True, end_offset=segment.end_offset))
    assert all(isinstance(each, WalkedBatch) for each in walked)
    return walked  # type: ignore[return-value]


async def test_a_sound_log(world: World) -> None:
    await world.scrubber.scrub(world.hosted)
    assert world.hosted.known_damage == []
    assert world.hosted.scrubbed_ms > 0
    assert world.counted("scrubbed_bytes_total") == sum(segment.size_bytes for segment in world.log.segments[:-1])
    described = await world.servicer.DescribeLogs(log_storage_pb2.DescribeLogsRequest(), None)
    assert described.logs[0].scrubbed_ms == world.hosted.scrubbed_ms


async def test_sound_logs_are_not_counted_one_by_one_and_others_have_their_turn(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of logs of one segment each would hold the event loop until the last has been looked at."""
    for number in range(1, 20):
        world.manager.create("t", PartitionKey(bytes(16), number), {})
    counts: list[int] = []
    monkeypatch.setattr(world.manager.logs, "count_offline", lambda: counts.append(1))
    with counted_turns() as turns:
        await world.scrubber.scrub_all()
    assert all(hosted.scrubbed_ms for hosted in world.manager.logs)
    assert counts == []
    assert turns.count >= 19


async def test_it_is_the_disk_that_is_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a segment has in the page cache is let go before it is read: damage beneath it would not show."""
    read_up_to: dict[Path, int] = {}
    step = segment_examiner._step

    def observed(descriptor: int, position: int, size: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_DONTNEED
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        read_up_to[path] = max(read_up_to.get(path, 0), position + size)

    def checked(segment: SegmentReader, walk: Any, position: int, found: list[DamagedRange]) -> int:
        def read() -> Iterator[Any]:
            for each in walk:
                assert read_up_to.get(segment.path, 0) > position  # let go by then
                yield each

        after = step(segment, read(), position, found)
        assert read_up_to[segment.path] >= (segment.size_bytes if after < 0 else after)
        return after

    monkeypatch.setattr(os, "posix_fadvise", observed)
    monkeypatch.setattr(segment_examiner, "_step", checked)
    await world.scrubber.scrub(world.hosted)
    assert set(read_up_to) == {segment.path for segment in world.log.segments[:-1]}


async def test_a_flipped_bit_is_found_told_and_forgotten_when_it_is_mended(world: World) -> None:
    segment = world.log.segments[1]
    damaged = batches(segment)[1]
    flip(segment, damaged.position + damaged.header.size_bytes - 1)
    await world.scrubber.scrub(world.hosted)
    (found,) = world.hosted.known_damage
    assert (found.first_offset, found.last_offset) == (damaged.header.base_offset, damaged.header.last_offset)
    assert "CRC-32C" in found.problem
    assert world.manager.logs.damaged_logs == 1
    described = await world.servicer.DescribeLogs(log_storage_pb2.DescribeLogsRequest(), None)
    assert [each.first_offset for each in described.logs[0].damaged] == [damaged.header.base_offset]
    listed = await world.list(segment.base_offset)
    assert [each.first_offset for each in listed.batches.damaged] == [damaged.header.base_offset]
    flip(segment, damaged.position + damaged.header.size_bytes - 1)
    await world.scrubber.scrub(world.hosted)
    assert world.hosted.known_damage == []
    assert world.manager.logs.damaged_logs == 0


async def test_damage_is_counted_before_the_log_has_been_read_to_its_end(world: World) -> None:
    segment = world.log.segments[1]
    damaged = batches(segment)[1]
    flip(segment, damaged.position + damaged.header.size_bytes - 1)
    world.manager.logs.recount()
    await world.scrubber._examiner.examine(world.hosted, world.log, segment)
    world.manager.logs.recount()
    assert world.manager.logs.damaged_logs == 1


async def test_a_segment_that_cannot_be_read_is_damaged_and_the_log_stays_online(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultyDisk(tmp_path, monkeypatch)
    disk.fail(READS)
    await world.scrubber.scrub(world.hosted)
    sealed = world.log.segments[:-1]
    assert [(each.first_offset, each.last_offset) for each in world.hosted.known_damage] == [
        (segment.base_offset, segment.end_offset - 1) for segment in sealed
    ]
    assert world.hosted.offline_reason == ""
    disk.heal()
    await world.scrubber.scrub(world.hosted)
    assert world.hosted.known_damage == []


async def test_the_active_segment_is_left_alone(world: World) -> None:
    active = world.log.segments[-1]
    flip(active, active.size_bytes - 1)
    await world.scrubber.scrub(world.hosted)
    assert world.hosted.known_damage == []


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_flipped_bit_but_those_of_the_epoch_is_damage(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Base offset and leader epoch are not under the CRC. An offset that is too high is found at the next batch."""
    world = World(tmp_path_factory.mktemp("log"))
    segment = world.log.segments[1]
    whole = batches(segment)
    position = data.draw(st.integers(0, segment.size_bytes - 1))
    struck = next(each for each in reversed(whole) if each.position <= position)
    inside = position - struck.position
    flip(segment, position, data.draw(st.integers(0, 7)))
    walked = list(check_segment(segment, 0, check_crcs=True, end_offset=segment.end_offset))
    damaged = [each for each in walked if isinstance(each, DamagedRange)]
    good = [each.header for each in walked if isinstance(each, WalkedBatch)]
    before = [each.header for each in whole if each.position < struck.position]
    assert good[: len(before)] == before
    if not 12 <= inside < 16:
        assert damaged
    if inside >= 8 and damaged:
        assert damaged[0].first_offset == struck.header.base_offset
    world.threads.shutdown()
    world.manager.close()


async def test_pages_of_batches(world: World) -> None:
    found: list[int] = []
    offset = 0
    while offset < world.log.log_end_offset:
        page = (await world.list(offset, check_crcs=True)).batches
        assert len(page.base_offsets) <= 4
        assert page.next_offset > offset
        found += page.base_offsets
        offset = page.next_offset
    assert found == list(range(0, BATCHES * RECORDS, RECORDS))
    empty = await world.list(world.log.log_end_offset)
    assert list(empty.batches.base_offsets) == []
    inside = await world.list(RECORDS + 1)
    assert inside.batches.base_offsets[0] == RECORDS


async def test_a_page_passes_over_a_header_that_is_gone(world: World) -> None:
    segment = world.log.segments[1]
    flip(segment, 16)  # the magic byte
    page = (await world.list(segment.base_offset, check_crcs=True)).batches
    (damaged,) = page.damaged
    assert (damaged.first_offset, damaged.last_offset) == (segment.base_offset, segment.end_offset - 1)
    assert page.base_offsets[0] == segment.end_offset


@pytest.mark.parametrize("number", [0, 1, 2])
async def test_what_is_damaged_is_dropped_with_all_behind_it(world: World, number: int) -> None:
    segment = world.log.segments[number]
    flip(segment, 16)
    await world.scrubber.scrub(world.hosted)
    world.hosted.log_dir.fences.fences[KEY] = Fence(3, Role.FOLLOWER, "", "one", led_before=1)

    async def drop(leader_epoch: int) -> log_storage_pb2.DropDamagedResponse:
        request = log_storage_pb2.DropDamagedRequest(partition=to_key(KEY), leader_epoch=leader_epoch)
        return await world.servicer.DropDamaged(request, None)

    assert from_proto((await drop(2)).error) is ErrorCode.STALE_FENCE
    dropped = await drop(3)
    assert from_proto(dropped.error) is ErrorCode.NONE, dropped
    assert dropped.log.log_end_offset == segment.base_offset
    assert dropped.log.high_watermark == segment.base_offset
    assert world.hosted.known_damage == []
    assert world.manager.logs.damaged_logs == 0
    # What it has led is not in it any more (RULES 7.9).
    assert read_fences(world.hosted.log_dir.path / FILE_NAME)[KEY].last_led_epoch is None
    # It goes on from there, and is sound.
    world.log.become_leader(4)
    world.log.append_as_leader(batch(RECORDS), 4, world.log.log_end_offset, 0)
    assert world.log.log_end_offset == segment.base_offset + RECORDS
    again = await drop(3)  # a second one that comes late finds nothing to drop
    assert again.log.log_end_offset == segment.base_offset + RECORDS


async def test_a_segment_whose_file_is_gone_is_found_after_a_restart(tmp_path: Path) -> None:
    """And dropped with what is in front of it, down to the beginning of a segment, to be copied again (RULES 7.6)."""
    first = World(tmp_path)
    before, lost, behind = first.log.segments[1:4]
    first.threads.shutdown()
    first.manager.close()
    lost.path.unlink()
    again = LogManager([tmp_path], LogConfig(segment_bytes=1024), broker_id=1)
    again.load()
    hosted, threads = again.logs.get(KEY), ThreadPoolExecutor(1)
    await Scrubber(again.logs, threads, Metrics("log-storage"), bytes_per_second=1e12, interval_ms=1).scrub(hosted)
    (found,) = hosted.known_damage
    assert (found.first_offset, found.last_offset) == (lost.base_offset, behind.base_offset - 1)
    assert again.logs.damaged_logs == 1
    again.drop_damaged(hosted)
    assert hosted.online().log_end_offset == before.base_offset
    assert hosted.known_damage == []
    threads.shutdown()
    again.close()


async def test_what_compaction_has_left_out_is_not_missing(world: World) -> None:
    world.log.segment_list.note_gaps()
    segment = world.log.segments[1]
    kept = batches(segment)[0].header
    segment.undo(kept.size_bytes)
    await world.scrubber.scrub(world.hosted)
    assert world.hosted.known_damage == []


async def test_a_segment_that_is_cut_while_it_is_read_is_not_damaged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    examiner = world.scrubber._examiner
    read = examiner.read

    async def cut(segment: SegmentReader, end_offset: int, log: Log) -> list[DamagedRange]:
        if segment.path == world.log.segments[0].path:
            world.log.truncation.truncate_to(world.log.segments[0].end_offset - RECORDS)
        return await read(segment, end_offset, log)

    monkeypatch.setattr(examiner, "read", cut)
    await world.scrubber.scrub(world.hosted)
    assert len(world.log.segments) == 1
    assert world.hosted.known_damage == []


async def test_a_leaders_log_is_not_cut(world: World) -> None:
    flip(world.log.segments[0], 16)
    await world.scrubber.scrub(world.hosted)
    world.hosted.log_dir.fences.fences[KEY] = Fence(3, Role.LEADER, "manager", "one")
    request = log_storage_pb2.DropDamagedRequest(partition=to_key(KEY), leader_epoch=3)
    assert from_proto((await world.servicer.DropDamaged(request, None)).error) is ErrorCode.STALE_FENCE


async def test_a_log_that_goes_away_meanwhile_does_not_end_the_pass(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.manager.create("u", PartitionKey(bytes(16), 1), {})
    examiner = world.scrubber._examiner
    read = examiner.read

    async def deleted(segment: SegmentReader, end_offset: int, log: Log) -> list[DamagedRange]:
        found = await read(segment, end_offset, log)
        world.hosted.log = None
        return found

    monkeypatch.setattr(examiner, "read", deleted)
    log = world.log
    await world.scrubber.scrub_all()
    world.hosted.log = log
    assert world.hosted.scrubbed_ms < 0
    assert world.manager.logs.get(PartitionKey(bytes(16), 1)).scrubbed_ms > 0
    assert world.counted("scrub_passes_total") == 1


async def test_a_pass_goes_over_all_logs(world: World) -> None:
    world.manager.create("u", PartitionKey(bytes(16), 1), {})
    await world.scrubber.scrub_all()
    assert all(hosted.scrubbed_ms > 0 for hosted in world.manager.logs)
    assert world.counted("scrub_passes_total") == 1
